"""The way to a real model server that can be watched: what went through it, how long it took and how
much of it the server had read before.

    async with serving(command, 16384) as url, Relay(url) as relay:
        ...                                     # `relay.url` is a backend's base_url
        relay.passed[-1].cached
"""

import asyncio
import json
import shlex
import socket
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

import aiohttp
from aiohttp import web

from tests.world.model import Use
from tests.world.prefixes import common, rendered
from wintermute.messages import Json

URL = "WINTERMUTE_MODEL_URL"
"""A server that runs already; its address ends in /v1."""
SERVER = "WINTERMUTE_MODEL_SERVER"
"""A command that starts one: `{port}` and `{context}` stand for its port and its window."""
START_SECONDS = 300.0
READY_PAUSE = 0.5
FOREVER = aiohttp.ClientTimeout(total=None, sock_read=None)


@dataclass(frozen=True, slots=True)
class Passed:
    """One request and what the server told of it. Seconds count from its arrival here."""

    body: Json
    first: float
    """Until the first token."""
    usage: Json = field(default_factory=dict)
    timings: Json = field(default_factory=dict)
    """What llama.cpp says of its work; empty where it is another server."""

    @property
    def tokens(self) -> int:
        """How many the request had."""
        return int(self.usage.get("prompt_tokens") or 0)

    @property
    def cached(self) -> int:
        """How many of them the server had read before."""
        details = self.usage.get("prompt_tokens_details") or {}
        return int(self.timings.get("cache_n", details.get("cached_tokens") or 0))

    def kept(self, before: "Passed") -> float:
        """Which share of this request its beginning is that it has in common with another, in bytes."""
        text = rendered(self.body).text
        at = common(rendered(before.body).text, text)
        return len(text[:at].encode()) / len(text.encode())


class Relay:
    """Passes requests on, each with `sampling` in it. `instead`: the next one is answered by a call.

    The server reads that one all the same, for what comes after it to be measured.
    """

    def __init__(self, server: str) -> None:
        self.passed: list[Passed] = []
        self.sampling: Json = {}
        self.instead: Use | None = None
        self._server = server.rstrip("/")
        self._port = 0
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.router.add_post("/v1/chat/completions", self._chat)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)

    @property
    def url(self) -> str:
        """What a configuration has as `base_url`."""
        return f"http://127.0.0.1:{self._port}/v1"

    async def __aenter__(self) -> Self:
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self._port = self._runner.addresses[0][1]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._runner.cleanup()

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        body: Json = {**json.loads(await request.read()), **self.sampling}
        use, self.instead = self.instead, None
        asked = {**body, "max_tokens": 1} if use else body
        began = time.monotonic()
        async with (
            aiohttp.ClientSession(timeout=FOREVER) as session,
            session.post(f"{self._server}/chat/completions", json=asked) as answer,
        ):
            if answer.status != 200 or "event-stream" not in answer.content_type:
                return web.Response(
                    status=answer.status,
                    body=await answer.read(),
                    content_type=answer.content_type,
                )
            response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
            await response.prepare(request)
            heard = _Heard(began)
            async for line in answer.content:
                heard.line(line)
                if use is None:
                    await response.write(line)
        self.passed.append(Passed(body, heard.first, heard.usage, heard.timings))
        if use:
            await response.write(_call(use, len(self.passed)))
        return response


class _Heard:
    """What a stream has told so far."""

    def __init__(self, began: float) -> None:
        self._began = began
        self.first = 0.0
        self.usage: Json = {}
        self.timings: Json = {}

    def line(self, line: bytes) -> None:
        if not line.startswith(b"data: {"):
            return
        event = json.loads(line[6:])
        deltas = [choice.get("delta") or {} for choice in event.get("choices") or ()]
        begun = any(delta.get("content") or delta.get("tool_calls") for delta in deltas)
        if begun and not self.first:  # a role, or how much was read, is no token yet
            self.first = time.monotonic() - self._began
        self.usage = event.get("usage") or self.usage
        self.timings = event.get("timings") or self.timings


def _call(use: Use, n: int) -> bytes:
    function = {"name": use.name, "arguments": json.dumps(use.arguments)}
    call = {"index": 0, "id": f"relayed_{n}", "type": "function", "function": function}
    delta = {"role": "assistant", "tool_calls": [call]}
    choices: list[Json] = [
        {"index": 0, "delta": delta, "finish_reason": None},
        {"index": 0, "delta": {}, "finish_reason": "tool_calls"},
    ]
    events = [json.dumps({"id": f"relayed-{n}", "choices": [choice]}) for choice in choices]
    return "".join(f"data: {event}\n\n" for event in [*events, "[DONE]"]).encode()


@asynccontextmanager
async def serving(context: int, environment: Mapping[str, str]) -> AsyncIterator[str]:
    """The address of a real server: one that runs, or one started for this with a window so large."""
    if url := environment.get(URL):
        yield url
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [word.format(port=port, context=context) for word in shlex.split(environment[SERVER])]
    process = await asyncio.create_subprocess_exec(*words, stdout=asyncio.subprocess.DEVNULL)
    try:
        url = f"http://127.0.0.1:{port}/v1"
        await _ready(url, process)
        yield url
    finally:
        with suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


async def _ready(url: str, process: asyncio.subprocess.Process) -> None:
    async with asyncio.timeout(START_SECONDS), aiohttp.ClientSession() as session:
        while process.returncode is None:
            with suppress(aiohttp.ClientError):
                async with session.get(f"{url}/models") as answer:
                    if answer.status == 200:
                        return
            await asyncio.sleep(READY_PAUSE)
    raise AssertionError(f"the model server ended with {process.returncode}")
