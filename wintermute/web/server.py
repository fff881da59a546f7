"""The HTTP server inside the daemon's own loop: signals, logs and lifetimes stay the daemon's."""

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import uvicorn

from wintermute.web.app import web_app
from wintermute.web.parts import WebParts

LEAVE_SECONDS = 5
"""Of the twenty that a stop may take (L-023), what open answers get."""


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals to the daemon."""
        yield


async def serve(parts: WebParts, listener: socket.socket) -> None:
    """Answer requests on an open socket until cancelled; streams end before the server does."""
    settings = uvicorn.Config(
        web_app(parts),
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        ws="none",
        timeout_graceful_shutdown=LEAVE_SECONDS,
    )
    server = _Server(settings)
    async with asyncio.TaskGroup() as group:
        serving = group.create_task(server.serve(sockets=[listener]))
        try:
            await asyncio.shield(serving)
        except asyncio.CancelledError:
            parts.ending.set()
            server.should_exit = True
            await asyncio.shield(serving)
            raise
