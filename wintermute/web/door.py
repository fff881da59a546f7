"""The web door as the composition root builds it. Its framework is loaded when it serves (A-8)."""

import asyncio
import errno
import gc
import logging
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from importlib.util import find_spec

from wintermute.config.schema import Web
from wintermute.errors import StorageBlocked, WebUnavailable
from wintermute.web.parts import WebParts
from wintermute.web.sessions import DoorStore, door_token

log = logging.getLogger(__name__)

PART = "web"
FRAMEWORK = ("fastapi", "uvicorn", "jinja2")
MISSING = (
    "the pages need packages that are not installed: run `pip install 'wintermute[web]'` in the"
    " environment of Wintermute"
)
EXPOSED = (
    "other machines can reach the pages on {host}, without encryption: set web.host to 127.0.0.1, or"
    " let only a proxy with TLS reach the port"
)
TURN_SECONDS = 0.001
"""Seconds for which a busy thread may keep the interpreter from the event loop; a request waits for
several such turns.
"""
GARBAGE = (700, 10, 100)
"""The thresholds of garbage collection: Python's, but for the last. A full collection stops
everything for 50 ms beside a wiki of 10,000 pages, and came five times while it was read.
"""
ANYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}

Server = Callable[[WebParts, socket.socket], Awaitable[None]]
"""Answers requests on an open socket until it is cancelled."""


class WebDoor:
    """Serves the pages until it is cancelled."""

    def __init__(self, parts: WebParts) -> None:
        self._parts = parts
        self._web = parts.config.web
        self._health = parts.stores.health
        self._store = DoorStore(parts.stores.database, parts.clock)

    async def load(self) -> Server:
        """Load the framework in a thread. Raises: WebUnavailable where it is not installed."""
        return await asyncio.to_thread(_server)

    async def listen(self, listener: socket.socket) -> None:
        """Answer requests on an open socket. Ends the streams when cancelled. Raises: WebUnavailable."""
        serve = await self.load()
        await serve(self._parts, listener)

    async def serve_until(
        self, leaving: asyncio.Event, listener: socket.socket, invite: Callable[[str], None]
    ) -> None:
        """Serve until `leaving` is set; `invite` gets the key of a login address.

        Raises: WebUnavailable.
        """
        await self.load()
        async with asyncio.TaskGroup() as group:
            serving = group.create_task(self.listen(listener))
            invite(await self._store.invite())
            await leaving.wait()
            serving.cancel()

    async def prepare(self) -> None:
        """Note at a start that no page is served yet; an old note is replaced."""
        await self._store.serve_at(None)
        if await self._health.part(PART):
            state = "opens after the first sync" if self._web.enabled else "off"
            await self._health.note(PART, "ok", state)

    async def serve(self) -> None:
        """Serve at the configured address. A failure is noted, and the other parts go on."""
        try:
            with await asyncio.to_thread(open_listener, self._web.host, self._web.port) as listener:
                await self.load()
                async with self.announced():
                    await self._note()
                    await self.listen(listener)
        except WebUnavailable as problem:
            log.warning("web door not opened reason=%s", problem)
            await self._health.note(PART, "fail", str(problem))

    @asynccontextmanager
    async def announced(self) -> AsyncIterator[None]:
        """Let commands find the served pages during a block. Raises: WebUnavailable."""
        door_token(self._parts.config)
        await self._store.id()
        await self._store.serve_at(address_of(self._web))
        try:
            yield
        finally:
            with suppress(StorageBlocked):  # the next start writes it again
                await self._store.serve_at(None)

    async def _note(self) -> None:
        address, host = address_of(self._web), self._web.host
        log.info("web door open address=%s", address)
        warning = EXPOSED.format(host=host) if self._web.is_exposed else ""
        if warning:
            log.warning("web door exposed reason=%s", warning)
        detail = f"serves {address}; {warning}" if warning else f"serves {address}"
        await self._health.note(PART, "warn" if warning else "ok", detail)


def address_of(web: Web) -> str:
    """Return the address that a person opens."""
    if web.public_url:
        return web.public_url
    host = ANYWHERE.get(web.host.strip("[]"), web.host.strip("[]"))
    return f"http://[{host}]:{web.port}" if ":" in host else f"http://{host}:{web.port}"


def open_listener(host: str, port: int, setting: str = "web.") -> socket.socket:
    """Open the port. Raises: WebUnavailable if it is taken, or the address is not ours.

    `setting`: the prefix of the setting to correct: of a key, or `--` for an option.
    """
    try:
        found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)
        family, _, _, _, address = found[0]
        return socket.create_server((str(address[0]), port), family=family, backlog=128)
    except (OSError, UnicodeError) as error:
        number = getattr(error, "errno", None)
        if number == errno.EADDRINUSE:
            detail = f"port {port} on {host} is taken: end the program that uses it, or set {setting}port"
        elif number == errno.EACCES:
            detail = f"port {port} may not be opened: set {setting}port to one above 1023"
        else:
            detail = f"{host} is no address of this machine: correct {setting}host"
        raise WebUnavailable(detail) from error


def is_installed() -> bool:
    """Return True if the framework is installed, without loading it."""
    return all(find_spec(name) for name in FRAMEWORK)


def _server() -> Server:
    first = "wintermute.web.server" not in sys.modules
    try:
        from wintermute.web.server import serve  # noqa: PLC0415  the framework loads with the door
    except ImportError as error:
        raise WebUnavailable(MISSING) from error
    if first:
        _favour_the_loop()
    return serve


def _favour_the_loop() -> None:
    """Let the event loop wait less for searching threads and garbage collection."""
    sys.setswitchinterval(TURN_SECONDS)
    gc.freeze()
    gc.set_threshold(*GARBAGE)
