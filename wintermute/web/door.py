"""The web door as the composition root builds it. The framework behind it loads when it serves (A-8)."""

import asyncio
import socket
from typing import Protocol

from wintermute.web.parts import WebParts


class Served(Protocol):
    """A server at work on an open socket."""

    async def __call__(self, parts: WebParts, listener: socket.socket) -> None: ...


class WebDoor:
    """Serves the pages until it is cancelled."""

    def __init__(self, parts: WebParts) -> None:
        self._parts = parts

    async def run(self, listener: socket.socket) -> None:
        """Load the framework in a thread, then answer requests. Ends the streams when cancelled."""
        serve = await asyncio.to_thread(_server)
        await serve(self._parts, listener)


def _server() -> Served:
    from wintermute.web.server import serve  # noqa: PLC0415  the framework loads with the door

    return serve
