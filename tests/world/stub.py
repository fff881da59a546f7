"""A server that gives fixed answers at fixed paths."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from aiohttp import web

from wintermute.messages import Json

PROPS: Json = {"default_generation_settings": {"n_ctx": 4096}, "total_slots": 4}


class Stub:
    """A server that says this at these paths, and nothing elsewhere; `asked` is what it heard."""

    def __init__(self, answers: Mapping[str, object]) -> None:
        self.answers = answers
        self.asked: list[str] = []
        self.keys: set[str | None] = set()
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(f"{request.method} {request.path}")
        self.keys.add(request.headers.get("Authorization"))
        said = self.answers.get(request.path)
        if said is None:
            return web.Response(status=404, text="not here")
        if isinstance(said, web.StreamResponse):
            return said
        if isinstance(said, asyncio.Event):
            await said.wait()
        if request.method == "POST":
            assert (await request.json())["model"] == "qwen"
        return web.json_response(said) if isinstance(said, dict) else web.Response(text=str(said))


@asynccontextmanager
async def stub_serving(answers: Mapping[str, object]) -> AsyncIterator[Stub]:
    """Serve these answers while the block lasts."""
    stub = Stub(answers)
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", stub.answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    stub.port = runner.addresses[0][1]
    try:
        yield stub
    finally:
        await runner.cleanup()
