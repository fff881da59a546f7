"""Lines that come through a pipe: `echo hi | wintermute chat`."""

import asyncio
from typing import BinaryIO


class Pipe:
    """Each line of a stream is a message, as if it were typed."""

    patient = False

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream

    async def next(self) -> str | None:
        """The next line; None at the end of the stream."""
        line = await asyncio.to_thread(self._stream.readline)
        return line.decode("utf-8", "replace").rstrip("\r\n") if line else None
