"""Decides about each request before a route sees it: who asks, from where, and with what."""

import hmac
import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from wintermute.web.parts import WebParts
from wintermute.web.sessions import Visitor

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

HEADERS = (
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src"
        b" 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none';"
        b" require-trusted-types-for 'script'; trusted-types wintermute",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
)
TOKEN = "web.token"


class Guarded:
    """The application behind the checks."""

    def __init__(self, app: App, parts: WebParts) -> None:
        self._app = app
        file = parts.config.data_dir / TOKEN
        if not file.exists():
            file.write_text(secrets.token_urlsafe(32))
        self._token = file.read_text().strip()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        headers = dict(scope["headers"])
        given = headers.get(b"authorization", b"").decode("latin-1").removeprefix("Bearer ")
        given = given or headers.get(b"cookie", b"").decode("latin-1").removeprefix("wintermute=")
        is_open = scope["path"].startswith("/static/") or scope["path"] == "/healthz"
        if not (is_open or hmac.compare_digest(given.encode(), self._token.encode())):
            await send({"type": "http.response.start", "status": 401, "headers": []})
            await send({"type": "http.response.body", "body": b"{}"})
            return

        scope.setdefault("state", {})["visitor"] = Visitor(None)

        async def guarded_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *HEADERS]
            await send(message)

        await self._app(scope, receive, guarded_send)
