"""Serves the practice model as model servers do: OpenAI's chat completions, on loopback only.

    async with PracticeModel() as model:
        Backend(base_url=model.url, model=NAME)

aiohttp is there because matrix-nio needs it.

Lines that nobody types at a terminal: from a file, or from whatever standard input is.
"""

import asyncio
import contextlib
import json
import os
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Self

from aiohttp import web

from wintermute.clock import Clock, SystemClock
from wintermute.demo.practice import Utterance, answer
from wintermute.ids import new_id
from wintermute.llm.tokens import estimate
from wintermute.messages import Json

CHUNK = 65536


async def read_lines(file: Path | None) -> AsyncIterator[str]:
    """The lines of a file, or of standard input as they come."""
    if file is not None:
        content = await asyncio.to_thread(file.read_bytes)
        for line in content.decode(errors="replace").splitlines():
            yield line
        return
    rest = b""
    async for chunk in _standard_input():
        *whole, rest = (rest + chunk).split(b"\n")
        for part in whole:
            yield part.decode(errors="replace")
    if rest:
        yield rest.decode(errors="replace")


async def _standard_input() -> AsyncIterator[bytes]:
    """What comes in, whatever it is: a file, a pipe or nothing.

    In a thread of its own, which nobody waits for: a read cannot be called off.
    """
    loop = asyncio.get_running_loop()
    chunks: asyncio.Queue[bytes] = asyncio.Queue()

    def read() -> None:
        chunk = b"."
        with contextlib.suppress(RuntimeError):  # the loop is over, nobody listens
            while chunk:
                chunk = os.read(0, CHUNK)
                loop.call_soon_threadsafe(chunks.put_nowait, chunk)

    threading.Thread(target=read, daemon=True).start()
    while chunk := await chunks.get():
        yield chunk


SERVED_NAME = "practice"
HOST = "127.0.0.1"
MOST_BYTES = 64 * 1024 * 1024
MOST_PIECES = 60
PAUSE = 0.06
"""Seconds between two pieces of what somebody waits for: it can be seen to grow, and takes 4 s at most."""


class PracticeModel:
    """The server; `port` 0 takes a free one."""

    def __init__(self, port: int = 0, *, clock: Clock | None = None) -> None:
        self._port = port
        self._clock = clock or SystemClock()
        app = web.Application(client_max_size=MOST_BYTES)
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_get("/v1/models", self._models)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1)

    @property
    def url(self) -> str:
        """What a configuration has as `base_url`."""
        return f"http://{HOST}:{self._port}/v1"

    async def __aenter__(self) -> Self:
        """Raises: OSError for a port that is taken."""
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, HOST, self._port).start()
        except OSError:
            await self._runner.cleanup()
            raise
        self._port = self._runner.addresses[0][1]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    async def _models(self, _: web.Request) -> web.Response:
        model = {"id": SERVED_NAME, "object": "model", "created": 0, "owned_by": "wintermute"}
        return web.json_response({"object": "list", "data": [model]})

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        try:
            body = _checked(await request.read())
        except ValueError as problem:
            error = {"message": str(problem), "type": "invalid_request_error", "code": None}
            return web.json_response({"error": error}, status=400)
        reply = _message(answer(body["messages"], _tools(body)))
        head: Json = {
            "id": new_id("chatcmpl"),
            "created": int(self._clock.now().timestamp()),
            "model": SERVED_NAME,
        }
        usage = _usage(body, reply)
        if body.get("stream"):
            options = body.get("stream_options")
            wanted = isinstance(options, dict) and options.get("include_usage")
            response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
            with contextlib.suppress(ConnectionResetError):  # who asked has left
                # Chats offer tools, work in the background none.
                pause = PAUSE if _tools(body) else 0.0
                told = usage if wanted else None
                await self._stream(request, response, head, reply, told, pause)
            return response
        choice = {"index": 0, "message": reply, "finish_reason": _finish(reply)}
        whole = {**head, "object": "chat.completion", "choices": [choice], "usage": usage}
        return web.json_response(whole)

    async def _stream(
        self,
        request: web.Request,
        response: web.StreamResponse,
        head: Json,
        reply: Json,
        usage: Json | None,
        pause: float,
    ) -> None:
        await response.prepare(request)
        head = {**head, "object": "chat.completion.chunk"}
        for delta in _deltas(reply):
            choice = {"index": 0, "delta": delta, "finish_reason": None}
            await _send(response, json.dumps({**head, "choices": [choice]}))
            await self._clock.sleep(pause)
        choice = {"index": 0, "delta": {}, "finish_reason": _finish(reply)}
        await _send(response, json.dumps({**head, "choices": [choice]}))
        if usage:
            await _send(response, json.dumps({**head, "choices": [], "usage": usage}))
        await _send(response, "[DONE]")


async def _send(response: web.StreamResponse, event: str) -> None:
    await response.write(f"data: {event}\n\n".encode())


def _checked(raw: bytes) -> Json:
    """The request. Raises: ValueError, which says what is wrong with it."""
    try:
        body: Any = json.loads(raw)
    except (ValueError, RecursionError):
        raise ValueError("the request is not JSON") from None
    if not isinstance(body, dict):
        raise ValueError("the request is not a JSON object")  # noqa: TRY004  for the client
    messages = body.get("messages")
    if not messages or not _are_objects(messages):
        raise ValueError("messages must be a list of at least one object")
    if not _are_objects(body.get("tools") or []):
        raise ValueError("tools must be a list of objects")
    return body


def _are_objects(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, dict) for item in value)


def _tools(body: Json) -> set[str]:
    functions = [tool.get("function") for tool in body.get("tools") or []]
    return {str(each.get("name")) for each in functions if isinstance(each, dict)}


def _message(reply: Utterance) -> Json:
    if isinstance(reply, str):
        return {"role": "assistant", "content": reply}
    calls = [
        {
            "id": new_id("call"),
            "type": "function",
            "function": {"name": tool, "arguments": json.dumps(arguments)},
        }
        for tool, arguments in reply
    ]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def _finish(reply: Json) -> str:
    return "tool_calls" if "tool_calls" in reply else "stop"


def _deltas(reply: Json) -> list[Json]:
    """The message in pieces: a few words each, a call as a whole."""
    words = (reply["content"] or "").split(" ")
    size = len(words) // MOST_PIECES + 1
    pieces = [" ".join(words[at : at + size]) for at in range(0, len(words), size)]
    texts = [f" {piece}" if at else piece for at, piece in enumerate(pieces)]
    calls = [{**call, "index": at} for at, call in enumerate(reply.get("tool_calls", ()))]
    return [
        {"role": "assistant"},
        *({"content": text} for text in texts if text),
        *({"tool_calls": [call]} for call in calls),
    ]


def _usage(body: Json, reply: Json) -> Json:
    asked = estimate([body["messages"], body.get("tools")])
    said = estimate(reply.get("tool_calls") or reply["content"])
    return {"prompt_tokens": asked, "completion_tokens": said, "total_tokens": asked + said}
