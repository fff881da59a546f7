"""A bare server on loopback that answers, or hangs up."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def refuse(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Hang up at once."""
    writer.transport.abort()


@asynccontextmanager
async def served(answer: Answer) -> AsyncIterator[str]:
    """Serve so on loopback while the block lasts; the address."""
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
