"""A scripted OpenAI-compatible server on loopback that also checks every request it gets.

    async with ModelServer() as server:
        server.script(Fail(500), Text("hello"))
        ...

Each chat request takes one step: that of `keyed` if it gives one, else the next of the script, else
the default, which echoes the last user message. Leaving the block fails if any request broke a rule,
or said something differently than the one before it in its branch (`tests/world/prefixes.py`).
"""

import asyncio
import json
import re
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from types import TracebackType
from typing import Literal, Self, assert_never

from aiohttp import web

from tests.world.prefixes import Cause, Prefixes
from tests.world.request_rules import broken_rules as broken_rules
from tests.world.request_rules import canary as canary
from tests.world.request_rules import is_for_core, is_for_reconstruction
from tests.world.request_rules import is_for_summary as is_for_summary
from wintermute.llm.models import PROBE
from wintermute.messages import Json, Usage

USUAL = Usage(100, 10, 0)
VIOLATION = "RULE BROKEN"
PIECE = 24
Finish = Literal["stop", "length", "tool_calls", "content_filter"]


@dataclass(frozen=True, slots=True)
class Text:
    """Says something. `usage` None: the server does not report any."""

    text: str
    finish: Finish | None = "stop"
    usage: Usage | None = USUAL


@dataclass(frozen=True, slots=True)
class Use:
    """One call of a tool; arguments that are text go out as they are."""

    name: str
    arguments: Json | str = field(default_factory=dict)
    id: str | None = None
    fields: Json = field(default_factory=dict)
    """More fields that a provider sends with the call."""


@dataclass(frozen=True, slots=True)
class Calls:
    """Calls tools, in this order; `fields`: what a provider sends beside them."""

    calls: tuple[Use, ...]
    text: str = ""
    finish: Finish | None = "tool_calls"
    usage: Usage | None = USUAL
    fields: Json = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Fail:
    """Answers with an HTTP error; `body` text or JSON."""

    status: int
    body: Json | str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ContextTooLarge:
    """Refuses the request as too large, as OpenAI does."""


@dataclass(frozen=True, slots=True)
class Html:
    """A web page where an answer should be."""


@dataclass(frozen=True, slots=True)
class Garbage:
    """These bytes, as a whole body."""

    data: bytes = b"\x00\xff{not json"
    content_type: str = "application/json"


@dataclass(frozen=True, slots=True)
class Events:
    """A stream of these events, as they are; text or JSON. Nothing is added.

    `stay` leaves it open after the last one, with these bytes again and again if it is some;
    `breaks` breaks the connection then. `told`: the message that later requests show it as.
    """

    events: tuple[Json | str, ...]
    stay: bool | bytes = False
    breaks: bool = False
    told: Json | None = None


@dataclass(frozen=True, slots=True)
class EmptyChoices:
    """`choices: []`."""


@dataclass(frozen=True, slots=True)
class NullChoices:
    """`choices: null` and an error, with status 200."""


@dataclass(frozen=True, slots=True)
class Empty:
    """A well-formed answer with neither text nor calls."""

    finish: Finish | None = "stop"
    usage: Usage | None = USUAL


@dataclass(frozen=True, slots=True)
class Hang:
    """Never answers, not even with headers."""


@dataclass(frozen=True, slots=True)
class Drip:
    """Says the text word by word: one for each release of `gate`, or one each `interval` seconds.

    Then it calls tools, or `breaks` the connection.
    """

    text: str
    gate: asyncio.Semaphore | None = None
    interval: float = 0.05
    calls: tuple[Use, ...] = ()
    breaks: bool = False


@dataclass(frozen=True, slots=True)
class Trickle:
    """These bytes again and again, for ever."""

    data: bytes
    interval: float


@dataclass(frozen=True, slots=True)
class Cut:
    """Says the text, but the connection breaks after so many pieces."""

    text: str = "this sentence will never reach its end, for the connection breaks"
    after_chunks: int = 1


@dataclass(frozen=True, slots=True)
class Slow:
    """Waits for the gate, then takes the step."""

    gate: asyncio.Event
    then: "Step"


@dataclass(frozen=True, slots=True)
class Reads:
    """Tells how much of the question it has read, once for each release of `gate`, as llama.cpp.

    After one more release it takes the step; where there is none, the connection breaks.
    """

    told: tuple[tuple[int, int], ...]
    gate: asyncio.Semaphore
    then: "Text | Calls | Empty | None"


@dataclass(frozen=True, slots=True)
class Plain:
    """Answers with plain JSON, although a stream was asked for."""

    then: "Text | Calls | Empty"


Step = (
    Text
    | Calls
    | Fail
    | ContextTooLarge
    | Html
    | Garbage
    | Events
    | EmptyChoices
    | NullChoices
    | Empty
    | Hang
    | Drip
    | Trickle
    | Cut
    | Slow
    | Reads
    | Plain
)


BLOCK = re.compile(r"<context>\n(.*?)\n</context>", re.DOTALL)
SUMMARY = re.compile(r"# Conversation Summary\n.*?\n\n---\n\n", re.DOTALL)
LEFT_OUT = re.compile(r"\[… \d+ earlier messages left out to fit the model's window …\]\n\n")


def own_words(content: str) -> str:
    """A message without what the prompt added: summary, mark, block."""
    for added in (SUMMARY, LEFT_OUT, BLOCK):
        content = added.sub("", content)
    return content.rstrip("\n") if content.strip() else content


@dataclass(frozen=True, slots=True)
class Seen:
    """One chat request as it arrived."""

    body: Json
    headers: Mapping[str, str]
    """Names in lower case."""
    peer: object = None
    """The client's end of the connection."""

    @property
    def messages(self) -> list[Json]:
        found: list[Json] = self.body.get("messages", [])
        return found

    @property
    def is_probe(self) -> bool:
        """Whether this is only to see whether anybody answers (F-021)."""
        return self.messages == list(PROBE.messages) and "tools" not in self.body

    @property
    def last_user(self) -> str:
        """The text of the newest user message, as the person wrote it."""
        texts = [message["content"] for message in self.messages if message.get("role") == "user"]
        return own_words(str(texts[-1])) if texts else ""

    @property
    def system(self) -> str:
        """The first message: the prompt of a chat, or the whole of a question of ours."""
        return str(self.messages[0]["content"])

    @property
    def texts(self) -> list[str]:
        """The text of each message; empty where a model only called tools."""
        return [str(message["content"] or "") for message in self.messages]

    def block(self, name: str) -> str:
        """The text of the last block of this name in the first message; it has to be there."""
        _, there, rest = self.system.rpartition(f"\n<{name}>\n")
        assert there, f"no <{name}> in {self.system!r}"
        return rest.partition(f"\n</{name}>")[0]

    @property
    def prompt(self) -> str:
        """All that the prompt tells in the newest request: the system message and every block."""
        told = (BLOCK.findall(str(message["content"] or "")) for message in self.messages[1:])
        return "\n\n---\n\n".join([self.messages[0]["content"], *chain(*told)])


def echo(seen: Seen) -> Step:
    """What an unscripted request gets."""
    return Text(f"echo: {seen.last_user}")


ASIDE = Text('{"memories": [], "coverage": "incomplete"}')
NO_CORE = Text('{"should_update": false, "core_markdown": null}')


class ModelServer:
    """The server. `rules=False` for tests that send bare requests."""

    def __init__(
        self,
        *,
        default: Callable[[Seen], Step] = echo,
        rules: bool = True,
        port: int = 0,
        slots: int | None = None,
    ) -> None:
        """`slots`: how many conversations it says it remembers, as llama.cpp; None: it does not say."""
        self.requests: list[Seen] = []
        """Without those that only ask whether anybody answers."""
        self.aside: list[Seen] = []
        """Questions about memories in the background, which take no step of a script: all stays."""
        self.reconstructs = False
        """Whether they do take one."""
        self.updates_core = False
        """The same of questions about core memory."""
        self.probes = 0
        self.violations: list[str] = []
        self.prefixes = Prefixes()
        self.port = port
        self._default = default
        self._rules = rules
        self._script: deque[Step] = deque()
        self._keyed: Callable[[Seen], Step | None] | None = None
        self._arrived = asyncio.Condition()
        self._closing = asyncio.Event()
        app = web.Application(client_max_size=64 * 1024 * 1024)
        for at in ("/v1", "/{door}/v1"):
            app.router.add_post(f"{at}/chat/completions", self._chat)
        if slots is not None:
            told = {"total_slots": slots}

            async def props(_: web.Request) -> web.Response:
                return web.json_response(told)

            app.router.add_get("/props", props)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)

    @property
    def url(self) -> str:
        """What a configuration has as `base_url`."""
        return f"http://127.0.0.1:{self.port}/v1"

    def script(self, *steps: Step) -> None:
        """Append steps, one for each coming request."""
        self._script.extend(steps)

    def keyed(self, choose: Callable[[Seen], Step | None]) -> None:
        """Answer by content; where `choose` gives None, the script and the default go on."""
        self._keyed = choose

    def allow(self, *causes: Cause, perhaps: bool = False) -> None:
        """Name why requests of this test may begin anew; `perhaps`: it does not always happen."""
        self.prefixes.allow(*causes, perhaps=perhaps)

    async def request_arrived(self, n: int) -> Seen:
        """Wait for the n-th chat request, counted from 1."""
        async with self._arrived:
            await self._arrived.wait_for(lambda: len(self.requests) >= n)
        return self.requests[n - 1]

    async def probe_arrived(self) -> None:
        """Wait until somebody has asked whether anybody answers."""
        async with self._arrived:
            await self._arrived.wait_for(lambda: self.probes > 0)

    async def __aenter__(self) -> Self:
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True)
        await site.start()
        self.port = self._runner.addresses[0][1]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._closing.set()
        await self._runner.cleanup()
        violations = [*self.violations, *self.prefixes.problems()]
        if error is None:
            assert not violations, violations
        else:
            for violation in violations:
                error.add_note(violation)

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        seen = Seen(
            json.loads(await request.read()),
            {name.lower(): value for name, value in request.headers.items()},
            request.transport and request.transport.get_extra_info("peername"),
        )
        if seen.is_probe:
            async with self._arrived:
                self.probes += 1
                self._arrived.notify_all()
            return await self._take(
                self._to_probe(seen), _Exchange(request, seen, len(self.requests), self._closing)
            )
        if self._rules and not self.reconstructs and is_for_reconstruction(seen.body):
            self.violations.extend(broken_rules(seen.body))
            self.aside.append(seen)
            return await self._take(ASIDE, _Exchange(request, seen, 0, self._closing))
        if self._rules and not self.updates_core and is_for_core(seen.body):
            self.violations.extend(broken_rules(seen.body))
            self.aside.append(seen)
            return await self._take(NO_CORE, _Exchange(request, seen, 0, self._closing))
        broken = broken_rules(seen.body) if self._rules else []
        self.violations.extend(f"request {len(self.requests) + 1}: {rule}" for rule in broken)
        step = Fail(500, f"{VIOLATION}: {broken}") if broken else self._step(seen)
        async with self._arrived:
            self.requests.append(seen)
            self._arrived.notify_all()
        if not (isinstance(step, Fail) and step.status == 400):  # that one nobody has read
            self.prefixes.saw(seen.body)
        if told := _told(step, len(self.requests)):
            self.prefixes.answered(told)
        return await self._take(step, _Exchange(request, seen, len(self.requests), self._closing))

    def _to_probe(self, seen: Seen) -> Step:
        """As the next one would fare, which keeps its step."""
        if self._keyed and (step := self._keyed(seen)):
            return step
        return self._script[0] if self._script else self._default(seen)

    def _step(self, seen: Seen) -> Step:
        if self._keyed and (step := self._keyed(seen)):
            return step
        return self._script.popleft() if self._script else self._default(seen)

    async def _take(self, step: Step, to: "_Exchange") -> web.StreamResponse:
        match step:
            case Text() | Calls() | Empty():
                return await to.say(step)
            case Slow():
                await step.gate.wait()
                return await self._take(step.then, to)
            case Reads():
                return await to.read(step)
            case Hang():
                return await to.hang()
            case Drip():
                return await to.drip(step)
            case Trickle():
                return await to.trickle(step)
            case Cut():
                return await to.break_off(step)
            case Events():
                response = await to.stream(list(step.events), stay=step.stay)
                return to.cut() if step.breaks else response
            case Plain():
                return to.whole(step.then)
            case _:
                return _body(step)


class _Exchange:
    """One request and the ways to answer it."""

    def __init__(self, request: web.Request, seen: Seen, n: int, closing: asyncio.Event) -> None:
        self._request = request
        self._seen = seen
        self._n = n
        self._closing = closing
        self._response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})

    async def say(self, step: Text | Calls | Empty) -> web.StreamResponse:
        if not self._seen.body.get("stream"):
            return self.whole(step)
        text, calls = _content(step, self._n)
        events: list[Json | str] = [
            self._delta({"content": text[at : at + PIECE]}) for at in range(0, len(text), PIECE)
        ]
        events += self._called(calls)
        events.append(self._delta({}, step.finish))
        options = self._seen.body.get("stream_options") or {}
        if step.usage and options.get("include_usage"):
            events.append({"choices": [], "usage": _usage(step.usage)})
        fields = step.fields if isinstance(step, Calls) else {}
        return await self.stream([self._delta({"role": "assistant", **fields}), *events, "[DONE]"])

    def whole(self, step: Text | Calls | Empty) -> web.Response:
        text, calls = _content(step, self._n)
        message: Json = {"role": "assistant", "content": text or None}
        if calls:
            message["tool_calls"] = calls
        body: Json = {
            "id": f"chatcmpl-{self._n}",
            "object": "chat.completion",
            "model": self._seen.body.get("model"),
            "choices": [{"index": 0, "message": message, "finish_reason": step.finish}],
        }
        if step.usage:
            body["usage"] = _usage(step.usage)
        return web.json_response(body)

    async def stream(self, events: list[Json | str], stay: object = None) -> web.StreamResponse:
        await self._response.prepare(self._request)
        for event in events:
            await self._send(event)
        if isinstance(stay, bytes):
            return await self.trickle(Trickle(stay, 0.05))
        if stay:
            await self._closing.wait()
        return self._response

    async def hang(self) -> web.StreamResponse:
        await self._closing.wait()
        return self.cut()

    async def drip(self, step: Drip) -> web.StreamResponse:
        await self._response.prepare(self._request)
        for word in step.text.split(" "):
            if step.gate:
                await step.gate.acquire()
            else:
                await asyncio.sleep(step.interval)
            await self._send(self._delta({"content": f"{word} "}))
        if step.breaks:
            return self.cut()
        for event in self._called(_content(Calls(step.calls), self._n)[1]):
            await self._send(event)
        await self._send(self._delta({}, "tool_calls" if step.calls else "stop"))
        await self._send("[DONE]")
        return self._response

    async def read(self, step: Reads) -> web.StreamResponse:
        await self._response.prepare(self._request)
        for processed, total in step.told:
            await step.gate.acquire()
            progress = {"total": total, "cache": 0, "processed": processed, "time_ms": 1}
            await self._send(self._delta({"role": "assistant"}) | {"prompt_progress": progress})
        await step.gate.acquire()
        return await self.say(step.then) if step.then else self.cut()

    async def trickle(self, step: Trickle) -> web.StreamResponse:
        await self._response.prepare(self._request)
        while not self._closing.is_set():
            await self._response.write(step.data)
            await asyncio.sleep(step.interval)
        return self._response

    def _called(self, calls: list[Json]) -> list[Json]:
        events = []
        for index, call in enumerate(calls):
            function = call["function"]
            head = {**call, "index": index, "function": {"name": function["name"]}}
            events.append(self._delta({"tool_calls": [head]}))
            rest = {"index": index, "function": {"arguments": function["arguments"]}}
            events.append(self._delta({"tool_calls": [rest]}))
        return events

    async def break_off(self, step: Cut) -> web.StreamResponse:
        words = step.text.split(" ")[: step.after_chunks]
        await self.stream([self._delta({"content": f"{word} "}) for word in words])
        return self.cut()

    def cut(self) -> web.StreamResponse:
        """Close the connection in the middle of things."""
        if self._request.transport:
            self._request.transport.abort()
        return self._response

    async def _send(self, event: Json | str) -> None:
        data = event if isinstance(event, str) else json.dumps(event)
        await self._response.write(f"data: {data}\n\n".encode("utf-8", "surrogatepass"))

    def _delta(self, delta: Json, finish: str | None = None) -> Json:
        return {
            "id": f"chatcmpl-{self._n}",
            "object": "chat.completion.chunk",
            "model": self._seen.body.get("model"),
            "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
        }


def _body(
    step: Fail | ContextTooLarge | Html | Garbage | EmptyChoices | NullChoices,
) -> web.Response:
    match step:
        case Fail(status, body, headers):
            told = {"error": {"message": f"scripted {status}"}} if body is None else body
            text = told if isinstance(told, str) else json.dumps(told)
            return web.Response(status=status, text=text, headers=headers)
        case ContextTooLarge():
            message = "This model's maximum context length is 4096 tokens."
            error = {"message": message, "code": "context_length_exceeded"}
            return web.json_response({"error": error}, status=400)
        case Html():
            page = "<!doctype html><title>It works</title><p>data: none"
            return web.Response(text=page, content_type="text/html")
        case Garbage(data, content_type):
            return web.Response(body=data, content_type=content_type)
        case EmptyChoices():
            return web.json_response({"choices": []})
        case NullChoices():
            return web.json_response({"choices": None, "error": {"message": "scripted null"}})
    assert_never(step)


def _content(step: Text | Calls | Empty, n: int) -> tuple[str, list[Json]]:
    if isinstance(step, Text):
        return step.text, []
    if isinstance(step, Empty):
        return "", []
    calls = []
    for position, use in enumerate(step.calls, 1):
        arguments = use.arguments
        text = arguments if isinstance(arguments, str) else json.dumps(arguments)
        function = {"name": use.name, "arguments": text}
        name = use.id or f"call_{n}_{position}"
        calls.append({"id": name, "type": "function", "function": function, **use.fields})
    return step.text, calls


def _told(step: Step, n: int) -> Json | None:
    """A whole answer as the message that later requests show it as."""
    match step:
        case Drip(breaks=True):
            return None
        case Drip(text, calls=uses):
            _, calls = _content(Calls(uses), n)
            return {"role": "assistant", "content": text} | ({"tool_calls": calls} if calls else {})
        case Events(told=told):
            return told
        case Text() | Calls():
            text, calls = _content(step, n)
            return {"role": "assistant", "content": text, "tool_calls": calls}
        case Slow(_, then) | Plain(then):
            return _told(then, n)
        case _:
            return None


def _usage(usage: Usage) -> Json:
    return {
        "prompt_tokens": usage.tokens_in,
        "completion_tokens": usage.tokens_out,
        "total_tokens": usage.tokens_in + usage.tokens_out,
        "prompt_tokens_details": {"cached_tokens": usage.tokens_cached},
    }
