"""A person at a pseudo-terminal in front of a command."""

import asyncio
import os
import signal
import sys
import termios
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

from tests.world.clock import WITHIN
from tests.world.proxy import Answer


class Typist:
    """Types, and waits for what is shown."""

    def __init__(self, process: asyncio.subprocess.Process, terminal: int) -> None:
        self.process = process
        self._terminal = terminal
        self._seen = b""
        self._came = asyncio.Event()
        asyncio.get_running_loop().add_reader(terminal, self._read)

    def _read(self) -> None:
        piece = b""
        with suppress(OSError):  # the other end is gone
            piece = os.read(self._terminal, 65536)
        if not piece:
            asyncio.get_running_loop().remove_reader(self._terminal)
        self._seen += piece
        self._came.set()

    @property
    def seen(self) -> str:
        """The whole output so far."""
        return self._seen.decode(errors="replace")

    def type(self, keys: str) -> None:
        """Press these keys."""
        os.write(self._terminal, keys.encode())

    async def until_seen(self, true: Callable[[], bool]) -> None:
        """Wait until what is shown makes this true."""
        async with asyncio.timeout(WITHIN):
            while not true():
                self._came.clear()
                await self._came.wait()


T = TypeVar("T", bound=Typist)


@asynccontextmanager
async def typing(
    kind: type[T], *words: str | Path, size: tuple[int, int] = (0, 0), **env: str
) -> AsyncIterator[T]:
    """A command in a terminal of so many lines and columns, killed if it does not end."""
    ours, theirs = os.openpty()
    termios.tcsetwinsize(theirs, size)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "wintermute", *map(str, words)),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        env={"PATH": os.defpath, "PYTHONPATH": str(Path.cwd()), "LANG": "C.UTF-8", **env},
    )
    os.close(theirs)
    try:
        yield kind(process, ours)
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        asyncio.get_running_loop().remove_reader(ours)
        os.close(ours)


class Asked(Typist):
    """A person whom `init` asks."""

    _at = 0

    @property
    def shown(self) -> str:
        """The lines so far."""
        return self.seen.replace("\r\n", "\n")

    async def sees(self, text: str) -> None:
        """Wait until this is shown, after what was waited for before."""
        try:
            await self.until_seen(lambda: text in self.shown[self._at :])
        except TimeoutError:
            raise AssertionError(f"{text!r} is not in:\n{self.shown[self._at :]}") from None
        self._at = self.shown.index(text, self._at) + len(text)

    async def answers(self, asked: str, typed: str, said: str) -> None:
        """Type an answer when its question is shown, and see what is said of it."""
        await self.sees(asked)
        await self.sees(": ")
        self.type(f"{typed}\n")
        await self.sees(said)

    async def ended(self, way: signal.Signals | None = None) -> int:
        """Its exit code; `way`: sent again, for one between a prompt and its `read` comes too early."""
        async with asyncio.timeout(WITHIN):
            while way is not None and self.process.returncode is None:
                self.process.send_signal(way)
                with suppress(TimeoutError):
                    await asyncio.wait_for(self.process.wait(), 1)
            return await self.process.wait()


interviewed = partial(typing, Asked)


def models_listed(names: Iterable[str]) -> Answer:
    """A list of models."""
    return Answer(200, {"data": [{"id": name} for name in names]})
