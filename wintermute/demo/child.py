"""A program that the demo starts, watches, and ends with itself."""

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from wintermute.errors import WintermuteError

ENDING_SECONDS = 15.0  # a daemon may take ten for what it is sending
LOOK_SECONDS = 0.05
TAIL_LINES = 15


@dataclass(frozen=True, slots=True)
class Child:
    """A running program. `log` is what it wrote since this start."""

    name: str
    process: asyncio.subprocess.Process
    log: Path

    def said(self, text: str) -> bool:
        """Whether its log has this text."""
        return text in self.log.read_text("utf-8", errors="replace")

    def tail(self) -> str:
        """The end of its log."""
        lines = self.log.read_text("utf-8", errors="replace").splitlines()
        return "\n".join(lines[-TAIL_LINES:])

    async def lost(self) -> None:
        """Wait for its end, which nobody wants. Raises: WintermuteError."""
        code = await self.process.wait()
        raise WintermuteError(f"{self.name} ended ({code}); its last lines:\n{self.tail()}")

    async def until(self, true: Callable[[], Awaitable[bool]], within: float) -> None:
        """Wait, looking often, until something holds. Raises: WintermuteError."""
        try:
            async with asyncio.timeout(within):
                while not await true():
                    try:
                        await asyncio.wait_for(self.lost(), LOOK_SECONDS)
                    except TimeoutError:
                        continue
        except TimeoutError:
            raise WintermuteError(
                f"{self.name} is not ready after {within:.0f} s; its last lines:\n{self.tail()}"
            ) from None


@asynccontextmanager
async def leashed(
    name: str, log: Path, folder: Path, environment: Mapping[str, str], *words: str
) -> AsyncIterator[Child]:
    """A module and its arguments as a program running in `folder`; asked to end, then killed."""
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",  # no module of that folder may hide one of the program's
            "-m",
            "wintermute.demo.leash",
            *words,
            stdin=asyncio.subprocess.PIPE,
            stdout=output,
            stderr=output,
            cwd=folder,
            env=environment,
        )
    try:
        yield Child(name, process, log)
    finally:
        await _end(process)


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.terminate()
        try:
            await asyncio.wait_for(process.wait(), ENDING_SECONDS)
        except TimeoutError:
            process.kill()
            await process.wait()
    if process.stdin is not None:
        process.stdin.close()
