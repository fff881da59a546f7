"""How memory stands, for whoever asks: what a new installation can have, what there is, what is wrong.

A status only reads. A check also tries: it starts the embedder and asks servers, each once.
"""

import asyncio
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from wintermute.config.schema import BY_MEANING, Memory
from wintermute.db import Database, loads_vectors
from wintermute.errors import MemoryUnavailable
from wintermute.health.health import Finding, Health
from wintermute.llm.embedded import EXTRA, is_there
from wintermute.memory.facts import LIVE
from wintermute.memory.meaning import PART, Meaning
from wintermute.text import counted

LEAST_BYTES = 1_500_000_000
"""Of memory: under that, 160 MB for the embedder are missed elsewhere."""
PROBE_SECONDS = 15.0
NAME = "memory"
"""What status and check call it."""
LIST_TOO_LONG = (
    "{n} older memories do not fit into the model's window: shorten that file, or set memory.backend: fts5 (or"
    " local_vector) in config.yaml. These two show a model the memories that fit each message"
)
"""Warning that a model misses memories of a `flat_file`, with the remedy (M-092)."""
RELOAD = "then set memory.backend: local_vector in config.yaml"


@dataclass(frozen=True, slots=True)
class Machine:
    """What decides how a new installation finds memories. `memory`: bytes; None: nobody knows."""

    embedder: bool
    vectors: bool
    memory: int | None

    @classmethod
    def here(cls) -> "Machine":
        """This one, with what is installed on it."""
        return cls(is_there(), loads_vectors(), _bytes())


@dataclass(frozen=True, slots=True)
class FirstBackend:
    """What a new config.yaml says; `why` it is not found by meaning, with what to do; else ""."""

    backend: str
    why: str = ""

    @property
    def chosen(self) -> Mapping[str, str]:
        """By its key, as `starter_config` takes it."""
        return MappingProxyType({"memory.backend": self.backend})


def first_backend(machine: Machine) -> FirstBackend:
    """By meaning and offline where that works, else by words."""
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
        meaning: Meaning | None,
        health: Health,
        installed: Callable[[], bool] = is_there,
    ) -> None:
        self._memory = memory
        self._database = database
        self._meaning = meaning
        self._health = health
        self._installed = installed

    async def finding(self) -> Finding:
        """What there is and what is wrong, from what is stored alone."""
        backend = self._memory.backend
        query = f"SELECT count(*) FROM facts WHERE {LIVE}"
        (count,) = await self._database.scalars(query)
        told = [f"{backend}, {'1 memory' if count == 1 else f'{count} memories'}"]
        if self._meaning is None:
            return Finding(NAME, "ok", told[0])
        owed, former = sum((await self._meaning.owed()).values()), await self._meaning.former()
        wrong = [self._missing()] if self._missing() else await self._trouble()
        if former and owed and not wrong:
            wrong.append(
                f"another model than {former}: all are embedded again, and found by words meanwhile"
            )
        told += [f"{counted(owed, 'embedding')} missing"] if owed else []
        return Finding(NAME, "warn" if wrong else "ok", "; ".join([*told, *wrong]))

    async def _trouble(self) -> list[str]:
        """What went wrong when it was last needed."""
        part = await self._health.part(PART)
        return [part.detail] if part and part.state != "ok" else []

    def _missing(self) -> str:
        """What is not installed."""
        embeddings = self._memory.embeddings
        if embeddings.provider == "embedded" and not self._installed():
            return f"found by words alone: the embedder is not installed -> {EXTRA}"
        if self._memory.backend == "local_vector" and not self._database.knows_vectors:
            return (
                "found by words alone: sqlite-vec cannot be loaded -> use a Python whose SQLite"
                " loads extensions, with sqlite-vec, or set memory.backend: fts5"
            )
        return ""

    async def probe(self) -> Finding:
        """Whether what finds by meaning answers now, each asked once."""
        backend = self._memory.backend
        if backend not in BY_MEANING:
            return Finding(NAME, "ok", f"{backend}, which needs nothing else")
        if self._meaning is None:
            return Finding(NAME, "ok", f"{backend} without embeddings: found by words alone")
        if missing := self._missing():
            return Finding(NAME, "warn", f"{backend}; {missing}")
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                answered = await self._meaning.probe()
        except MemoryUnavailable as problem:
            return Finding(NAME, "warn", f"{backend}; found by words alone: {problem}")
        except TimeoutError:
            late = f"no answer within {PROBE_SECONDS:.0f} s"
            return Finding(NAME, "warn", f"{backend}; found by words alone: {late}")
        return Finding(NAME, "ok", f"{backend}, by meaning with {answered}")


def with_memory(findings: Iterable[Finding], memory: Finding) -> tuple[Finding, ...]:
    """The lines of a status with that of memory, which says what a part of it last said."""
    return (memory, *(each for each in findings if each.name not in PARTS))


PARTS: Collection[str] = (PART, NAME)
