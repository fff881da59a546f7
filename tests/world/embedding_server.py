"""A scripted `/embeddings` on loopback, as OpenAI's, and in ways that no server should.

Each request takes the next step of the script, else an answer as it should be: three numbers for
each text, how often a, e and i stand in it.
"""

import json
from collections import deque
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

from aiohttp import web

from wintermute.messages import Json

EmbeddingStep = Callable[[Json], web.Response]


def numbers(text: str) -> list[float]:
    """The vector of a text, not 1 long."""
    return [text.count(sign) + 0.5 for sign in "aei"]


def rows(body: Json, means: Callable[[str], list[float]] = numbers) -> list[Json]:
    """What `data` holds in a right answer."""
    return [
        {"object": "embedding", "index": index, "embedding": means(text)}
        for index, text in enumerate(body["input"])
    ]


def well(body: Json, means: Callable[[str], list[float]] = numbers) -> web.Response:
    """As it should be."""
    words = sum(len(text.split()) for text in body["input"])
    usage = {"prompt_tokens": words, "total_tokens": words}
    return web.json_response({"object": "list", "data": rows(body, means), "usage": usage})


def data(change: Callable[[list[Json]], Any]) -> EmbeddingStep:
    """As it should be, but for what is done to `data`."""

    def step(body: Json) -> web.Response:
        found = change(rows(body))
        return web.Response(
            text=json.dumps({"object": "list", "data": found}), content_type="application/json"
        )

    return step


def text_step(
    text: str, status: int = 200, kind: str = "application/json", **headers: str
) -> EmbeddingStep:
    """This, whatever is asked."""
    return lambda _: web.Response(text=text, status=status, content_type=kind, headers=headers)


class EmbeddingServer:
    """The server; `requests` are the bodies it got."""

    def __init__(
        self,
        *steps: EmbeddingStep,
        most_texts: int = 10_000,
        means: Callable[[str], list[float]] = numbers,
    ) -> None:
        """`most_texts`: more in one request are refused. `means`: the vector of a text."""
        self._means = means
        self.requests: list[Json] = []
        self.headers: list[Mapping[str, str]] = []
        self._steps = deque(steps)
        self._most = most_texts
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.router.add_post("/v1/embeddings", self._embed)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)

    @property
    def url(self) -> str:
        """What a configuration has as `base_url`."""
        return f"http://127.0.0.1:{self._runner.addresses[0][1]}/v1"

    def script(self, *steps: EmbeddingStep) -> None:
        """Append steps, one for each coming request."""
        self._steps.extend(steps)

    async def __aenter__(self) -> Self:
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._runner.cleanup()

    async def _embed(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.requests.append(body)
        self.headers.append(dict(request.headers))
        if self._steps:
            return self._steps.popleft()(body)
        if len(body["input"]) > self._most:
            error = f"batch size {len(body['input'])} > maximum allowed batch size {self._most}"
            return web.json_response({"error": error}, status=422)
        return well(body, self._means)
