"""A reverse proxy on loopback that watches requests and makes the network misbehave on purpose."""

import asyncio
import contextlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import aiohttp
from aiohttp import web
from yarl import URL

from tests.world.homeserver import free_port
from tests.world.person import Person

HOP_BY_HOP = frozenset(
    {"connection", "keep-alive", "transfer-encoding", "content-length", "host", "accept-encoding"}
)
AT_ONCE = 0.05
"""Seconds a handler gets to end when the proxy goes down; aiohttp reads 0 as "for ever"."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request as it came; `path` is decoded and without the query."""

    method: str
    path: str
    query: dict[str, str]
    body: bytes
    authorization: str = ""

    @property
    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)


@dataclass(frozen=True, slots=True)
class Answer:
    """Say this instead. A body that is not bytes is sent as JSON."""

    status: int
    body: object = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def payload(self) -> bytes:
        """The body's bytes."""
        return self.body if isinstance(self.body, bytes) else json.dumps(self.body).encode()


@dataclass(frozen=True, slots=True)
class Cut:
    """Break the connection after so many bytes of the answer's body; None: before its headers."""

    after: int | None = None


@dataclass(frozen=True, slots=True)
class Hang:
    """Say nothing until the other side gives up."""


@dataclass(frozen=True, slots=True)
class Held:
    """Say this, once the bell has rung."""

    bell: asyncio.Event
    answer: Answer


Action = Answer | Cut | Hang | Held | None
Before = Callable[[Request], Action]
After = Callable[[Request, int, bytes], Action]


def pass_before(request: Request) -> Action:
    """No interference."""
    return None


def pass_after(request: Request, status: int, body: bytes) -> Action:
    """No interference."""
    return None


class Proxy:
    """Passes everything on to `target`, unless a hook wants something else.

    `before` decides when a request came and the target has not seen it; `after` when the target
    has answered and the client has not heard it. A hook may do anything synchronous, such as
    killing the client's process. None means: go on as if nothing was there.
    """

    def __init__(self, target: str) -> None:
        self._target = target.rstrip("/")
        self._port = free_port()
        self._runner: web.AppRunner | None = None
        self._session: aiohttp.ClientSession | None = None
        self.requests: list[Request] = []
        self.before: Before = pass_before
        self.after: After = pass_after

    @property
    def url(self) -> str:
        """Where clients connect; the same for the proxy's whole life."""
        return f"http://127.0.0.1:{self._port}"

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=None),
            connector=aiohttp.TCPConnector(limit=0, force_close=True),
        )
        await self.up()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        await self.down()
        if self._session:
            await self._session.close()

    async def down(self) -> None:
        """Refuse connections and break the open ones."""
        runner, self._runner = self._runner, None
        if runner:
            await runner.cleanup()

    async def up(self) -> None:
        """Listen (again), on the same port."""
        if self._runner:
            return
        app = web.Application(client_max_size=2**30)
        app.router.add_route("*", "/{path:.*}", self._handle)
        # A client that goes away cancels its handler, and with it the request to the target.
        self._runner = web.AppRunner(
            app, handler_cancellation=True, shutdown_timeout=AT_ONCE, access_log=None
        )
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self._port).start()

    def seen(self, method: str, part: str) -> list[Request]:
        """The requests of a method whose path contains a text."""
        return [r for r in self.requests if r.method == method and part in r.path]

    async def _handle(self, incoming: web.Request) -> web.StreamResponse:
        request = Request(
            incoming.method,
            incoming.path,
            dict(incoming.query),
            await incoming.read(),
            incoming.headers.get("Authorization", ""),
        )
        self.requests.append(request)
        action = self.before(request)
        if action is not None:
            return await self._act(incoming, action, Answer(200, b""))
        try:
            answer = await self._ask_target(incoming, request.body)
        except aiohttp.ClientError as error:
            return respond(Answer(502, {"errcode": "M_UNKNOWN", "error": str(error)}))
        action = self.after(request, answer.status, answer.payload)
        return await self._act(incoming, action, answer)

    async def _ask_target(self, incoming: web.Request, body: bytes) -> Answer:
        assert self._session is not None
        url = URL(self._target + incoming.raw_path, encoded=True)
        async with self._session.request(
            incoming.method,
            url,
            headers={k: v for k, v in incoming.headers.items() if k.lower() not in HOP_BY_HOP},
            data=body,
            allow_redirects=False,
            skip_auto_headers=["Accept-Encoding"],  # so that hooks see plain bodies
        ) as answer:
            headers = {k: v for k, v in answer.headers.items() if k.lower() not in HOP_BY_HOP}
            return Answer(answer.status, await answer.read(), headers)

    async def _act(
        self, incoming: web.Request, action: Action, answer: Answer
    ) -> web.StreamResponse:
        match action:
            case None:
                return respond(answer)
            case Answer():
                return respond(action)
            case Cut():
                return await cut(incoming, answer, action.after)
            case Held():
                await action.bell.wait()
                return respond(action.answer)
            case Hang():
                await asyncio.get_running_loop().create_future()
                raise AssertionError("nobody ends this wait")


def respond(answer: Answer) -> web.Response:
    """An answer as it goes out whole."""
    headers = {"Content-Type": "application/json"} | answer.headers
    return web.Response(status=answer.status, body=answer.payload, headers=headers)


async def cut(incoming: web.Request, answer: Answer, after: int | None) -> web.StreamResponse:
    """Promise the whole answer, send a part of it, break the connection."""
    response = web.StreamResponse(status=answer.status, headers=answer.headers)
    response.content_length = len(answer.payload)
    if after is not None:
        await response.prepare(incoming)
        with contextlib.suppress(ConnectionError):
            await response.write(answer.payload[:after])
    if incoming.transport:
        incoming.transport.close()
    return response


def withhold(proxy: Proxy) -> list[Request]:
    """Let nothing reach a device; the list fills with what was to."""
    withheld: list[Request] = []

    def before(request: Request) -> Action:
        if "/sendToDevice/" not in request.path:
            return None
        withheld.append(request)
        return Answer(200, {})

    proxy.before = before
    return withheld


async def hand_over(person: Person, withheld: list[Request]) -> None:
    """Deliver what was withheld, as the person's own requests."""
    for request in withheld:
        body: Any = request.json
        answer = await person.api("PUT", request.path, body)
        assert answer[0] == 200
