"""Lines that nobody types at a terminal: from a file, or from whatever standard input is."""

import asyncio
import contextlib
import os
import threading
from collections.abc import AsyncIterator
from pathlib import Path

CHUNK = 65536


async def read_lines(file: Path | None) -> AsyncIterator[str]:
    """The lines of a file, or of standard input as they come."""
    if file is not None:
        for line in (
            (await asyncio.to_thread(file.read_bytes)).decode(errors="replace").splitlines()
        ):
            yield line
        return
    rest = b""
    async for chunk in _standard_input():
        *whole, rest = (rest + chunk).split(b"\n")
        for part in whole:
            yield part.decode(errors="replace")
    if rest:
        yield rest.decode(errors="replace")


async def _standard_input() -> AsyncIterator[bytes]:
    """What comes in, whatever it is: a file, a pipe or nothing.

    In a thread of its own, which nobody waits for: a read cannot be called off.
    """
    loop = asyncio.get_running_loop()
    chunks: asyncio.Queue[bytes] = asyncio.Queue()

    def read() -> None:
        chunk = b"."
        with contextlib.suppress(RuntimeError):  # the loop is over, nobody listens
            while chunk:
                chunk = os.read(0, CHUNK)
                loop.call_soon_threadsafe(chunks.put_nowait, chunk)

    threading.Thread(target=read, daemon=True).start()
    while chunk := await chunks.get():
        yield chunk
