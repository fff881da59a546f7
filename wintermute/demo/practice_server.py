"""Serves the practice model as model servers do: OpenAI's chat completions, on loopback only.

    async with PracticeModel() as model:
        Backend(base_url=model.url, model=NAME)

aiohttp is installed anyway, because matrix-nio needs it. `read_lines` gives the demo's lines from a
file or a pipe.
"""

import asyncio
import contextlib
import json
import os
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Self

from aiohttp import web

from wintermute.clock import Clock, SystemClock
from wintermute.demo.practice import Utterance, answer
from wintermute.ids import new_id
from wintermute.messages import Json

SERVED_NAME = "practice"
HOST = "127.0.0.1"
MOST_BYTES = 64 * 1024 * 1024
MOST_PARTS = 60
PAUSE = 0.06
"""Seconds between two parts of an answer to a person: it grows visibly, and takes at most 4 s."""


async def read_lines(file: Path | None) -> AsyncIterator[str]:
    """Yield the lines of a file, or of standard input as they come, be it a file, a pipe or nothing.

    The thread is never waited for, because a read cannot be cancelled.
    """
    loop = asyncio.get_running_loop()
    lines: asyncio.Queue[str | None] = asyncio.Queue()
    source = file.open("rb", 0) if file else os.fdopen(0, "rb", 0, closefd=False)

    def read() -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            with contextlib.suppress(OSError), source:
                for line in source:
                    loop.call_soon_threadsafe(lines.put_nowait, line.decode(errors="replace"))
            loop.call_soon_threadsafe(lines.put_nowait, None)

    threading.Thread(target=read, daemon=True).start()
    while (line := await lines.get()) is not None:
        yield line.rstrip("\r\n")


class PracticeModel:
    """The model server, on a free port. It always streams, because its only client always asks for that."""

    def __init__(self, *, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self.url = ""
        app = web.Application(client_max_size=MOST_BYTES)
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_get("/v1/models", self._models)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1)

    async def __aenter__(self) -> Self:
        """Start the server; from now on it has its `url`."""
        await self._runner.setup()
        await web.TCPSite(self._runner, HOST, 0).start()
        self.url = f"http://{HOST}:{self._runner.addresses[0][1]}/v1"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    async def _models(self, _: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": SERVED_NAME}]})

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        try:
            body = json.loads(await request.read())
            tools = {str(tool["function"]["name"]) for tool in body.get("tools") or ()}
            messages = [{**message} for message in body["messages"]]
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            error = {"message": "this is no request for a chat completion"}
            return web.json_response({"error": error}, status=400)
        reply = answer(messages, tools)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        with contextlib.suppress(ConnectionResetError):  # the client has gone
            await response.prepare(request)
            for event in _events(reply):
                await response.write(f"data: {event}\n\n".encode())
                # Chats offer tools, background questions none.
                await self._clock.sleep(PAUSE if tools else 0.0)
        return response


def _events(reply: Utterance) -> Iterator[str]:
    """Yield the answer in parts: a few words each, a call as a whole."""
    deltas: list[Json]
    if isinstance(reply, str):
        words = reply.split(" ")
        size = len(words) // MOST_PARTS + 1
        pieces = (" ".join(words[at : at + size]) for at in range(0, len(words), size))
        deltas = [{"content": f" {piece}" if at else piece} for at, piece in enumerate(pieces)]
    else:
        deltas = [{"tool_calls": [_call(at, *each)]} for at, each in enumerate(reply)]
    choices = [{"index": 0, "delta": delta} for delta in deltas]
    reason = "stop" if isinstance(reply, str) else "tool_calls"
    choices.append({"index": 0, "delta": {}, "finish_reason": reason})
    head = {"object": "chat.completion.chunk", "model": SERVED_NAME}
    yield from (json.dumps(head | {"choices": [choice]}) for choice in choices)
    yield "[DONE]"


def _call(index: int, tool: str, arguments: Json) -> Json:
    function = {"name": tool, "arguments": json.dumps(arguments)}
    return {"index": index, "id": new_id("call"), "type": "function", "function": function}
