"""The checks of each request before a route sees it: the sender, the origin, and the body."""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import unquote_to_bytes, urlsplit

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from wintermute.config.schema import is_loopback
from wintermute.web.sessions import Logins, Visitor
from wintermute.web.views import Refusal, Views, is_api

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

OPEN = re.compile(r"/healthz|/login|/login/[^/]+|/static/.+")
"""The only paths without a session. They show nothing about the person (V-006)."""
READING = frozenset({"GET", "HEAD", "OPTIONS"})
MOST_HEAD = 16 * 1024
MOST_BODY = 1_000_000
MOST_OPEN = 8 * 1024
"""The largest body, in bytes, without a login."""
MOST_READ = 8 * MOST_BODY
"""Bytes of a too large body that are read and dropped: a client that is cut off while sending gets no answer."""
BODY_SECONDS = 10.0
DEEPEST = 32
MOST_VALUES = 10_000
"""The most values in a body: so many are parsed within a few milliseconds, in the event loop."""
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

LOG_IN = (
    "You are not logged in.",
    "Send the token as `Authorization: Bearer TOKEN`, or log in at /login.",
)
BEARER = {"WWW-Authenticate": "Bearer"}
FOREIGN_ORIGIN = "This request came from another site.", "Open the page itself, and do it there."
TOO_LARGE = "The body is too large.", "Send at most 1 MB, and to /login 8 kB."
UNREADABLE = (
    "The body cannot be read as JSON.",
    f"Send valid JSON in UTF-8, of at most {MOST_VALUES:,} values.",
)
NO_TEXT_IN_BODY = (
    "The text has characters that cannot be stored.",
    "Remove NUL characters and broken emoji, then send it again.",
)
PUBLIC = (
    "To use this name, add to config.yaml, below `web:`, the line `public_url: http://{host}` (https"
    " if your browser shows it)."
)


class RequestChecks:
    """The application behind the checks."""

    def __init__(self, app: App, views: Views) -> None:
        self._app = app
        self._views = views
        self._logins = views.sessions
        self._web = views.parts.config.web

    async def __call__(self, scope: Scope, receive: Receive, out: "Out") -> None:
        request = Request(scope, receive)
        is_open = OPEN.fullmatch(scope["path"]) is not None
        try:
            self._check_head(request)
            visitor = await self._visitor(request, is_open=is_open)
            if not visitor.is_known and not is_open:
                await self._led_to_login(request)(scope, receive, out)
                return
            if request.method not in READING:
                self._check_origin(request)
            body = await _body(request, MOST_OPEN if is_open else MOST_BODY)
        except Refusal as refusal:
            await self._views.problem(scope, refusal)(scope, receive, out)
            return
        scope.setdefault("state", {})["visitor"] = visitor
        with self._logins.present(visitor):
            try:
                async with visitor.limit:
                    await self._app(scope, _given(body, receive), out)
            except TimeoutError:
                if not visitor.left.is_set():
                    raise
                if out.is_open:  # a client that does not read would not read the end either
                    scope["state"]["abort"]()
                    await out(END)

    def _check_head(self, request: Request) -> None:
        """Check host and size of a request. Raises: Refusal."""
        scope, host = request.scope, request.headers.get("host", "").lower()
        name = _name(host)
        if not (_is_text(scope["raw_path"]) and _is_text(scope["query_string"])):
            raise Refusal(
                400, "The address has characters that are no text.", "Correct the address."
            )
        if sum(len(name) + len(value) for name, value in scope["headers"]) > MOST_HEAD:
            raise Refusal(431, "The headers are over 16 kB.", "Delete cookies of this address.")
        if "websocket" in request.headers.get("upgrade", "").lower():
            raise Refusal(400, "There are no websockets here.", "Ask with plain HTTP.")
        # Under another name a foreign site may point at this machine (DNS rebinding).
        server = scope.get("server") or ("",)
        known = {self._web.public_host, _name(self._web.host), str(server[0])} - {""}
        if not is_loopback(name) and name not in known:
            shown = host if re.fullmatch(r"[\w.:\[\]-]{1,253}", host, re.ASCII) else "NAME"
            error = "Wintermute does not know the name that you used for it."
            raise Refusal(403, error, PUBLIC.format(host=shown))

    async def _visitor(self, request: Request, *, is_open: bool) -> Visitor:
        """Find the sender. Raises: Refusal for a wrong token."""
        kind, _, token = request.headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and not is_open:
            check_token(self._logins, token)
            return Visitor()
        cookie = request.cookies.get(self._views.cookie)
        return await self._logins.visitor(cookie or "")

    def _check_origin(self, request: Request) -> None:
        """Check where a change comes from: another site may have made the browser send it."""
        headers = request.headers
        origin, site = headers.get("origin"), headers.get("sec-fetch-site")
        if not headers.get("authorization", "").lower().startswith("bearer "):
            here = f"{request.scope['scheme']}://{headers.get('host', '')}"
            ours = {_origin(here), _origin(self._web.public_url or "")} - {None}
            if origin is None and site != "same-origin":
                raise Refusal(403, *FOREIGN_ORIGIN)
            if origin is not None and (_origin(origin) not in ours or site == "cross-site"):
                raise Refusal(403, *FOREIGN_ORIGIN)
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            what_to_do = "Send it with `Content-Type: application/json`."
            raise Refusal(403, "The body is not JSON.", what_to_do)

    def _led_to_login(self, request: Request) -> Response:
        """Send a client without a session to the login; links from other sites bring no strict cookie."""
        if is_api(request.scope["path"]) or request.method not in READING:
            raise Refusal(401, *LOG_IN, BEARER)
        fetch = [request.headers.get(f"sec-fetch-{name}") for name in ("site", "mode")]
        if fetch == ["cross-site", "navigate"]:
            return self._views.page("again.html", title="Wintermute", place="login", to="")
        return RedirectResponse("/login", 303)


def check_token(logins: Logins, token: str) -> None:
    """Check a token. Raises: Refusal for a wrong one, and for any one, unchecked, after too many."""
    if seconds := logins.wait():
        what_to_do = f"Try again in {seconds} seconds, or use a login address of `wintermute web`."
        retry = {"Retry-After": str(seconds)}
        raise Refusal(429, "There were too many wrong tokens.", what_to_do, retry)
    if not logins.knows(token.strip()):
        what_to_do = "Run `wintermute web` for a login address."
        raise Refusal(401, "This is not the token.", what_to_do, BEARER)


def _name(host: str) -> str:
    """Return the name or address in a Host header, in small letters and without brackets."""
    found = re.fullmatch(r"(\[[^\]]*\]|[^:]*)(:\d*)?", host)
    return (found[1] if found else host).strip("[]").lower()


def _origin(address: str) -> tuple[str, str, int] | None:
    """Return scheme, name and port of an address, so that two can be compared; None for no address."""
    try:
        parts = urlsplit(address)
        port = parts.port or PORTS.get(parts.scheme, 0)
    except ValueError:
        return None
    return (parts.scheme, parts.hostname, port) if parts.hostname else None


def _is_text(raw: bytes) -> bool:
    """Return True if a decoded part of an address is text."""
    try:
        return not NO_TEXT.search(unquote_to_bytes(raw).decode())
    except UnicodeDecodeError:
        return False


async def _body(request: Request, most: int) -> bytes:
    """Read the whole body, if it is one that a route may get. Raises: Refusal."""
    length = request.headers.get("content-length", "0")
    if not length.isdecimal() or int(length[:20]) > MOST_READ:
        raise Refusal(413, *TOO_LARGE)
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
        error, close = "The body took too long to arrive.", {"Connection": "close"}
        raise Refusal(408, error, "Send it again.", close) from None
    if size > most:
        raise Refusal(413, *TOO_LARGE)
    if request.method in READING or not found:
        return b""
    await asyncio.to_thread(_check_json, bytes(found))
    return bytes(found)


def _check_json(body: bytes) -> None:
    """Refuse a body that is no JSON, too deep or too long, or has texts that cannot be stored."""
    bare = STRING.sub(b"", body)
    if sum(map(bare.count, (b",", b":", b"[", b"{"))) > MOST_VALUES:
        raise Refusal(400, *UNREADABLE)
    try:
        layer = [json.loads(body.decode(), parse_constant=_refuse)]
    except (ValueError, RecursionError):
        raise Refusal(400, *UNREADABLE) from None
    for _ in range(DEEPEST):
        inner: list[Any] = []
        for value in layer:
            if isinstance(value, dict):
                inner += [*value, *value.values()]
            elif isinstance(value, list):
                inner += value
            elif isinstance(value, str) and NO_TEXT.search(value):
                raise Refusal(400, *NO_TEXT_IN_BODY)
        layer = inner
    if layer:
        raise Refusal(400, *UNREADABLE)


def _refuse(constant: str) -> None:
    raise ValueError(constant)  # NaN and infinities are no JSON


def _given(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that gives the body that was read, then what follows it."""
    read: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def give() -> Message:
        return read.pop() if read else await receive()

    return give


class Out:
    """Sends an answer with the headers that every answer has."""

    def __init__(self, scope: Scope, send: Send) -> None:
        path, query = str(scope["path"]), scope["query_string"]
        self._static = path.startswith("/static/")
        # Otherwise linked files and pages would get the key as referrer.
        self._referrer = b"no-referrer" if path.startswith("/login/") else b"same-origin"
        self._versioned = query.startswith(b"v=")
        self._send = send
        self.has_begun = self.is_open = False
        """True while the answer has begun and not ended."""

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
