"""Decides about each request before a route sees it: who asks, from where, and with what."""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import unquote_to_bytes, urlsplit

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from wintermute.config.schema import is_loopback
from wintermute.web.sessions import OpenRequest, Visitor
from wintermute.web.views import Views, is_api

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

OPEN = re.compile(r"/healthz|/login|/login/[^/]+|/static/.+")
"""The only paths that are answered without a session. They show nothing of the person (V-006)."""
READING = frozenset({"GET", "HEAD", "OPTIONS"})
MOST_HEAD = 16 * 1024
MOST_BODY = 1_000_000
MOST_OPEN = 8 * 1024
"""Bytes of a body from somebody who is not logged in."""
MOST_READ = 8 * MOST_BODY
"""Read and thrown away of a larger body: who is cut off while sending sees no answer."""
BODY_SECONDS = 10.0
DEEPEST = 32
MOST_VALUES = 10_000
"""In a body: so many are parsed within a few milliseconds, and a route parses in the loop."""
STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*+"?', re.DOTALL)
NO_TEXT = re.compile("[\0\ud800-\udfff]")
PORTS = {"http": 80, "https": 443}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self';"
    " form-action 'self'; base-uri 'none'; frame-ancestors 'none';"
    " require-trusted-types-for 'script'; trusted-types wintermute"
)
HEADERS = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
END: Message = {"type": "http.response.body", "body": b""}
KEPT = b"public, max-age=31536000, immutable"
"""Browsers keep a static file for a year: its address changes with it."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A request that is not answered: what happened, then what to do."""

    status: int
    error: str
    what_to_do: str
    headers: Mapping[str, str] = field(default_factory=dict)


LOG_IN = Refusal(
    401,
    "You are not logged in.",
    "Send the token as `Authorization: Bearer TOKEN`, or log in at /login.",
    {"WWW-Authenticate": "Bearer"},
)
FOREIGN_ORIGIN = Refusal(
    403, "This request came from another site.", "Open the page itself, and do it there."
)
NO_JSON = Refusal(403, "The body is not JSON.", "Send it with `Content-Type: application/json`.")
TOO_LARGE = Refusal(413, "The body is too large.", "Send at most 1 MB, and to /login 8 kB.")
TOO_SLOW = Refusal(
    408, "The body took too long to arrive.", "Send it again.", {"Connection": "close"}
)
UNREADABLE = Refusal(
    400,
    "The body cannot be read as JSON.",
    f"Send valid JSON in UTF-8, of at most {MOST_VALUES:,} values.",
)
NO_TEXT_IN_BODY = Refusal(
    400,
    "The text has characters that cannot be stored.",
    "Remove NUL characters and broken emoji, then send it again.",
)
BROKEN_PATH = Refusal(400, "The address has characters that are no text.", "Correct the address.")
FOREIGN_HOST = Refusal(
    403,
    "Wintermute does not know the name that you used for it.",
    "To use this name, add to config.yaml, below `web:`, the line `public_url: http://{host}` (https"
    " if your browser shows it).",
)
LONG_HEAD = Refusal(431, "The headers are over 16 kB.", "Delete cookies of this address.")
NO_SOCKETS = Refusal(400, "There are no websockets here.", "Ask with plain HTTP.")


class Guarded:
    """The application behind the checks."""

    def __init__(self, app: App, views: Views) -> None:
        self._app = app
        self._views = views
        self._logins = views.sessions
        self._web = views.parts.config.web

    async def __call__(self, scope: Scope, receive: Receive, out: "Out") -> None:
        judged = await self._judged(Request(scope, receive))
        if isinstance(judged, Response):
            await judged(scope, receive, out)
            return
        visitor, body = judged
        scope.setdefault("state", {})["visitor"] = visitor
        with self._logins.present(visitor) as presence:
            try:
                async with presence.limit:
                    await self._app(scope, _In(body, receive, presence), out)
                    if presence.left.is_set() and out.is_open:
                        await out(END)
            except TimeoutError:
                if not presence.left.is_set():
                    raise
                if out.is_open:  # who does not read would not read the end either
                    scope["state"]["abort"]()
                    await out(END)

    async def _judged(self, request: Request) -> tuple[Visitor | None, bytes] | Response:
        if refusal := self._refused(request):
            return self._told(request, refusal)
        visitor = await self._visitor(request)
        if isinstance(visitor, Refusal):
            return self._told(request, visitor)
        if visitor is None and not OPEN.fullmatch(request.scope["path"]):
            return self._led_to_login(request)
        if request.method not in READING and (refusal := self._forged(request)):
            return self._told(request, refusal)
        is_open = OPEN.fullmatch(request.scope["path"])
        body = await _body(request, MOST_OPEN if is_open else MOST_BODY)
        return self._told(request, body) if isinstance(body, Refusal) else (visitor, body)

    def _refused(self, request: Request) -> Refusal | None:
        """Judge the head alone."""
        scope, host = request.scope, request.headers.get("host", "").lower()
        name = _name(host)
        if not (_is_text(scope["raw_path"]) and _is_text(scope["query_string"])):
            return BROKEN_PATH
        if sum(len(name) + len(value) for name, value in scope["headers"]) > MOST_HEAD:
            return LONG_HEAD
        if "websocket" in request.headers.get("upgrade", "").lower():
            return NO_SOCKETS
        # Another name may be that of a site which points at this machine.
        server = scope.get("server") or ("",)
        known = {self._web.public_host, _name(self._web.host), str(server[0])} - {""}
        if is_loopback(name) or name in known:
            return None
        shown = host if re.fullmatch(r"[\w.:\[\]-]{1,253}", host, re.ASCII) else "NAME"
        return replace(FOREIGN_HOST, what_to_do=FOREIGN_HOST.what_to_do.format(host=shown))

    async def _visitor(self, request: Request) -> Visitor | Refusal | None:
        """Find out who asks; None: nobody that we know."""
        kind, _, token = request.headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and not OPEN.fullmatch(request.scope["path"]):
            if seconds := self._logins.wait():
                return too_often(seconds)
            return Visitor(None) if self._logins.knows(token.strip()) else LOG_IN
        cookie = request.cookies.get(self._views.cookie)
        return await self._logins.visitor(cookie) if cookie else None

    def _forged(self, request: Request) -> Refusal | None:
        """Judge a request that changes something: another site may have made the browser send it."""
        headers = request.headers
        origin, site = headers.get("origin"), headers.get("sec-fetch-site")
        if not headers.get("authorization", "").lower().startswith("bearer "):
            here = f"{request.scope['scheme']}://{headers.get('host', '')}"
            ours = {_origin(here), _origin(self._web.public_url or "")} - {None}
            if origin is None and site != "same-origin":
                return FOREIGN_ORIGIN
            if origin is not None and (_origin(origin) not in ours or site == "cross-site"):
                return FOREIGN_ORIGIN
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        return None if kind == "application/json" else NO_JSON

    def _led_to_login(self, request: Request) -> Response:
        """Answer whoever is not logged in; a strict cookie stays behind where another site leads here."""
        if is_api(request.scope["path"]) or request.method not in READING:
            return self._told(request, LOG_IN)
        fetch = [request.headers.get(f"sec-fetch-{name}") for name in ("site", "mode")]
        if fetch == ["cross-site", "navigate"]:
            return self._views.page("again.html", title="Wintermute", place="login", to="")
        return RedirectResponse("/login", 303)

    def _told(self, request: Request, refusal: Refusal) -> Response:
        answer = self._views.problem(
            request.scope, refusal.status, refusal.error, refusal.what_to_do
        )
        answer.headers.update(refusal.headers)
        return answer


def too_often(seconds: int) -> Refusal:
    """Refuse a token unseen after too many wrong ones."""
    return Refusal(
        429,
        "There were too many wrong tokens.",
        f"Try again in {seconds} seconds, or use a login address of `wintermute web`.",
        {"Retry-After": str(seconds)},
    )


def _name(host: str) -> str:
    """The name or address in a Host header, in small letters and without brackets."""
    found = re.fullmatch(r"(\[[^\]]*\]|[^:]*)(:\d*)?", host)
    return (found[1] if found else host).strip("[]").lower()


def _origin(address: str) -> tuple[str, str, int] | None:
    """Scheme, name and port of an address, so that two can be compared; None for no address."""
    try:
        parts = urlsplit(address)
        port = parts.port or PORTS.get(parts.scheme, 0)
    except ValueError:
        return None
    return (parts.scheme, parts.hostname, port) if parts.hostname else None


def _is_text(raw: bytes) -> bool:
    """Decide if a part of an address is text once it is decoded."""
    try:
        return not NO_TEXT.search(unquote_to_bytes(raw).decode())
    except UnicodeDecodeError:
        return False


async def _body(request: Request, most: int) -> bytes | Refusal:
    """Read the whole body, if it is one that a route may get."""
    length = request.headers.get("content-length", "0")
    if not length.isdecimal() or int(length[:20]) > MOST_READ:
        return TOO_LARGE
    found, size, more = bytearray(), 0, True
    try:
        async with asyncio.timeout(BODY_SECONDS):
            while more:
                message = await request.receive()
                size += len(message.get("body", b""))
                more = bool(message.get("more_body")) and size <= MOST_READ
                if size <= most:
                    found += message.get("body", b"")
    except TimeoutError:
        return TOO_SLOW
    if size > most:
        return TOO_LARGE
    if request.method in READING or not found:
        return b""
    return await asyncio.to_thread(_unreadable, bytes(found)) or bytes(found)


def _unreadable(body: bytes) -> Refusal | None:
    """Refuse what is no JSON of texts that can be stored, deeper or of more than anything we read."""
    bare = STRING.sub(b"", body)
    if sum(map(bare.count, (b",", b":", b"[", b"{"))) > MOST_VALUES:
        return UNREADABLE
    try:
        layer = [json.loads(body.decode(), parse_constant=_refuse)]
    except (ValueError, RecursionError):
        return UNREADABLE
    for _ in range(DEEPEST):
        inner: list[Any] = []
        for value in layer:
            if isinstance(value, dict):
                inner += [*value, *value.values()]
            elif isinstance(value, list):
                inner += value
            elif isinstance(value, str) and NO_TEXT.search(value):
                return NO_TEXT_IN_BODY
        layer = inner
    return UNREADABLE if layer else None


def _refuse(constant: str) -> None:
    raise ValueError(constant)  # NaN and infinities, which no JSON has


class _In:
    """Gives an application the body that was read; then tells it when to stop."""

    def __init__(self, body: bytes, receive: Receive, presence: OpenRequest) -> None:
        self._body: bytes | None = body
        self._receive = receive
        self._presence = presence

    async def __call__(self) -> Message:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        async with asyncio.TaskGroup() as group:
            waits = {
                group.create_task(self._presence.left.wait()),
                group.create_task(self._disconnected()),
            }
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for each in waits:
                each.cancel()
        return {"type": "http.disconnect"}

    async def _disconnected(self) -> bool:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        return True


class Out:
    """Sends an answer with the headers that every answer has."""

    def __init__(self, scope: Scope, send: Send) -> None:
        path, query = str(scope["path"]), scope["query_string"]
        self._static = path.startswith("/static/")
        # Else files that the page asks for, and the page that it leads to, are told the key.
        self._referrer = b"no-referrer" if path.startswith("/login/") else b"same-origin"
        self._versioned = query.startswith(b"v=")
        self._send = send
        self.has_begun = self.is_open = False
        """The answer has begun, and is not over."""

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            caching = b"no-store"
            if self._static and message["status"] in (200, 304):
                caching = KEPT if self._versioned else b"no-cache"
            message["headers"] = [
                *message.get("headers", ()),
                *HEADERS,
                (b"referrer-policy", self._referrer),
                (b"cache-control", caching),
            ]
            self.has_begun = self.is_open = True
        await self._send(message)
        if message["type"] == "http.response.body" and not message.get("more_body"):
            self.is_open = False
