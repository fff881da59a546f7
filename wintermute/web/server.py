"""The HTTP server inside the daemon's own loop: signals, logs and lifetimes stay the daemon's."""

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from wintermute.web.app import WebApp, unguarded
from wintermute.web.parts import WebParts
from wintermute.web.safety import MOST_HEAD

LEAVE_SECONDS = 6
"""Seconds for open answers, of the twenty that a stop may take (L-023)."""
ARRIVE_SECONDS = 15.0
"""Seconds for a request to arrive as a whole; its body has less, and an error for that."""
MOST_CONNECTIONS = 200
DONE = (h11.DONE, h11.MUST_CLOSE, h11.CLOSED, h11.ERROR)


class _Connection(H11Protocol):
    """A connection that is closed if its request does not arrive in time."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._arriving: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
        super().connection_made(transport)
        self.app_state = {**self.app_state, "abort": transport.abort}
        if len(self.connections) > MOST_CONNECTIONS:
            transport.abort()
            return
        # Otherwise a page waits 40 ms for the acknowledgement of its headers. Not every system inherits
        # this from the listening socket, and the loop sets it only if that names its protocol.
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._arriving = self.loop.call_later(ARRIVE_SECONDS, transport.abort)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state in DONE:
            self._arrived()
        elif self._arriving is None:
            self._arriving = self.loop.call_later(ARRIVE_SECONDS, self.transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        self._arrived()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Report an invalid request, unless an answer is on its way."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            self.transport.abort()

    def _arrived(self) -> None:
        if self._arriving is not None:
            self._arriving.cancel()
            self._arriving = None


class _PageServer(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals to the daemon."""
        yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End; a client that does not read is cut off before the server would cancel it."""
        loop = asyncio.get_running_loop()
        cutting = loop.call_later(LEAVE_SECONDS - 1, self._cut)
        await super().shutdown(sockets)
        cutting.cancel()

    def _cut(self) -> None:
        for connection in list(self.server_state.connections):
            connection.transport.abort()


async def serve(parts: WebParts, listener: socket.socket) -> None:
    """Answer requests on an open socket until cancelled; streams end before the server does."""
    app = WebApp(await unguarded(parts))
    settings = uvicorn.Config(
        app,
        http=_Connection,
        h11_max_incomplete_event_size=MOST_HEAD,
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        ws="none",
        timeout_graceful_shutdown=LEAVE_SECONDS,
    )
    server = _PageServer(settings)
    async with asyncio.TaskGroup() as group:
        serving = group.create_task(server.serve(sockets=[listener]))
        working = group.create_task(app.work())
        try:
            await asyncio.shield(serving)
        except asyncio.CancelledError:
            app.leave()
            server.should_exit = True
            await asyncio.shield(serving)
            raise
        finally:
            working.cancel()
