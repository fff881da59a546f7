"""One model server of the configuration: one attempt gives one answer or one named failure."""

import asyncio
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlsplit

from wintermute.config.schema import Backend
from wintermute.config.secrets import UNHIDDEN, Redaction, StreamRedactor
from wintermute.ids import NewId
from wintermute.llm.failures import Failed, Outage, Refused
from wintermute.llm.tokens import Measure
from wintermute.llm.wire import Answer, Gathering
from wintermute.messages import Json, Request

if TYPE_CHECKING:
    from wintermute.llm.sdk import Client

FIRST_TOKEN_TIMES = 4
"""So many times its longest silence an answer may take to begin in all (F-017)."""
TOOL_CHOICE = re.compile(r"tool.?choice", re.IGNORECASE)
KNOCK_SECONDS = 2.0
LAST_BYTES = 0.3
"""Seconds for the end of a stream that has said all: read to its end, a connection serves again."""


class Listener(Protocol):
    """Who hears what comes of a question while it is being answered."""

    def asked(self) -> None:
        """An attempt begins: what an earlier one said is void, and nothing has come yet."""
        ...

    def begun(self) -> None:
        """The first token is here: text, reasoning or part of a call (F-017)."""
        ...

    def said(self, piece: str) -> None:
        """More of the text, without secrets (L-089)."""
        ...

    def failed(self, problem: str, *, unreachable: bool) -> None:
        """An attempt failed; another may follow. `unreachable`: nobody is there to ask (F-036)."""
        ...


class Unheard:
    """Nobody listens."""

    def asked(self) -> None:
        """Nothing."""

    def begun(self) -> None:
        """Nothing."""

    def said(self, piece: str) -> None:
        """Nothing."""

    def failed(self, problem: str, *, unreachable: bool) -> None:
        """Nothing."""


UNHEARD = Unheard()


class Endpoint:
    """A configured backend that can be asked. Opens with the first question."""

    def __init__(
        self,
        name: str,
        settings: Backend,
        new_id: NewId,
        redact: Redaction = UNHIDDEN,
    ) -> None:
        self.name = name
        self.settings = settings
        self.measure = Measure()
        self._redact = redact
        self._new_id = new_id
        self._key = settings.api_key.reveal() if settings.api_key else ""
        self._client: Client | None = None
        self._opening = asyncio.Lock()
        self._reports_usage = True
        self._limit = "max_tokens"
        self._can_be_forced = True
        self._calls_in_turn = settings.size == "small"
        self._thinks_aloud = False

    async def ask(
        self, request: Request, most_tokens: int | None = None, listener: Listener = UNHEARD
    ) -> Answer:
        """One attempt, with the deadlines of F-017.

        Raises: Failed, whose text names this backend and never its key.
        """
        try:
            client = await self._opened()
            return await self._asked(client, request, most_tokens, listener)
        except Failed as failure:
            raise failure.told_by(self.name, self._key, self._redact) from None

    async def listens(self) -> bool:
        """Whether somebody accepts connections at its address."""
        address = urlsplit(self.settings.base_url)
        try:
            port = address.port or (443 if address.scheme == "https" else 80)
            async with asyncio.timeout(KNOCK_SECONDS):
                _, writer = await asyncio.open_connection(address.hostname, port)
        except (OSError, TimeoutError, ValueError):  # also where no such host or port can be
            return False
        writer.close()
        return True

    async def aclose(self) -> None:
        """Close all connections."""
        if self._client:
            await self._client.aclose()

    async def _opened(self) -> "Client":
        async with self._opening:
            if self._client is None:
                # In a thread, for the import takes long and the rooms must not wait for it.
                self._client = await asyncio.to_thread(
                    _open, self.settings, self._key, self._redact
                )
        return self._client

    async def _asked(
        self, client: "Client", request: Request, most_tokens: int | None, listener: Listener
    ) -> Answer:
        """Ask, and once more in simpler words for each that this server turns out not to know."""
        while True:
            body = self._body(request, most_tokens or self.settings.max_output_tokens)
            try:
                return await self._answer(client, body, offered(request), listener)
            except UnicodeEncodeError:  # half characters, in file names for one
                request = _encodable(request)
            except Refused as refusal:
                if not self._learnt_from(str(refusal), body):
                    raise

    def _body(self, request: Request, most_tokens: int) -> Json:
        body: Json = {
            "model": self.settings.model,
            "messages": request.messages,
            "stream": True,
            self._limit: most_tokens,
        }
        if request.tools:
            body["tools"] = request.tools
            if self._calls_in_turn:
                body["parallel_tool_calls"] = False
        if request.must_call and self._can_be_forced:
            body["tool_choice"] = "required"
        if self._reports_usage:
            body["stream_options"] = {"include_usage": True}
        return body

    def _learnt_from(self, complaint: str, body: Json) -> bool:
        """Whether the complaint is about a field that we can do without from now on."""
        if "stream_options" in complaint and "stream_options" in body:
            self._reports_usage = False
            return True
        if "max_completion_tokens" in complaint and "max_tokens" in body:
            self._limit = "max_completion_tokens"
            return True
        if "parallel_tool_calls" in complaint and "parallel_tool_calls" in body:
            self._calls_in_turn = False
            return True
        if "tool_choice" in body and TOOL_CHOICE.search(complaint):
            self._can_be_forced = False
            return True
        return False

    async def _answer(
        self, client: "Client", body: Json, tools: Mapping[str, Json], listener: Listener
    ) -> Answer:
        gathering = Gathering(self._redact, tools, aloud=self._thinks_aloud)
        shown = StreamRedactor(self._redact, listener.said)
        listener.asked()
        began, begun = asyncio.get_running_loop().time(), False
        first = self.settings.first_token_s
        try:
            async with asyncio.timeout(first) as deadline, client.opened(body) as chunks:
                async for chunk in chunks:
                    gathering.feed(chunk)
                    if gathering.begun and not begun:
                        begun = True
                        listener.begun()
                    self._show(gathering, shown, listener)
                    deadline.reschedule(self._patience(gathering, began))
        except TimeoutError:
            if not gathering.complete:
                silence = f"did not begin an answer in {first:g} s"
                if begun:
                    seconds = self.settings.timeout_s
                    silence = f"fell silent in the middle of an answer for {seconds:g} s"
                raise Outage("timeout", silence) from None
        except Outage:
            if not gathering.complete:
                raise
        answer = gathering.answer(self._new_id)
        self._thinks_aloud = gathering.aloud
        self._show(gathering, shown, listener)
        shown.end()
        return answer

    def _show(self, gathering: Gathering, shown: StreamRedactor, listener: Listener) -> None:
        piece = gathering.fresh()
        if piece is None:  # reasoning, as it turned out
            shown.end()
            listener.asked()
            listener.begun()
            piece = gathering.fresh()
        if piece:
            shown.feed(piece)

    def _patience(self, gathering: Gathering, began: float) -> float:
        """When to give up waiting for more (F-017)."""
        now, first = asyncio.get_running_loop().time(), self.settings.first_token_s
        if gathering.ended:
            return now + LAST_BYTES
        if gathering.begun:
            return now + self.settings.timeout_s
        return min(now + first, began + FIRST_TOKEN_TIMES * first)


def offered(request: Request) -> dict[str, Json]:
    """The parameters of the tools of a request, by name."""
    functions = [tool["function"] for tool in request.tools]
    return {function["name"]: function.get("parameters", {}) for function in functions}


def _open(settings: Backend, key: str, redact: Redaction) -> "Client":
    from wintermute.llm.sdk import Client  # noqa: PLC0415  openai loads with the first question

    return Client(settings.base_url, key or "none", settings.first_token_s, redact)


def _encodable(request: Request) -> Request:
    text = json.dumps([request.messages, request.tools], ensure_ascii=False)
    messages, tools = json.loads(text.encode("utf-8", "replace"))
    return replace(request, messages=tuple(messages), tools=tuple(tools))
