"""One model server of the configuration: each attempt gives one answer or one named failure."""

import asyncio
import gc
import json
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol, TypeVar
from urllib.parse import urlsplit

from wintermute.config.schema import Backend
from wintermute.config.secrets import UNHIDDEN, Redaction, StreamRedactor
from wintermute.ids import NewId
from wintermute.llm.context_windows import cut_warning, is_private
from wintermute.llm.failures import Failed, Outage, Refused
from wintermute.llm.provider_fields import fields_for, sender_id
from wintermute.llm.provider_quirks import ProviderQuirks
from wintermute.llm.template_tool_calls import context_of
from wintermute.llm.tokens import Measure
from wintermute.llm.wire import Answer, AnswerParser
from wintermute.messages import Json, Request

if TYPE_CHECKING:
    from wintermute.llm.sdk import Client

MOST_SILENCES = 4
"""The most times that comment lines can extend the wait for a token (F-017)."""
KNOCK_SECONDS = 2.0
MOST_BYTES = 64 * 1024 * 1024
"""Limit for an answer that is read whole."""
Parsed = TypeVar("Parsed")
LAST_BYTES = 0.3
"""Seconds to wait for the end of a finished stream: once read whole, its connection is reused."""
LAST_WORD = 5.0
"""Seconds to wait for the last event and the usage after the finish reason (F-062)."""
PLAIN_MOST = 5
"""Answers in a row without reasoning, after which the model's text is shown as it comes again."""


@dataclass(frozen=True, slots=True)
class Wait:
    """The wait for a first token of a backend: attempt number `attempt` of `of`.

    `problem`: the error of the attempt before. `read`: tokens of `total` that the server has read;
    0 of 0 if it does not report them.
    """

    backend: str
    attempt: int = 1
    of: int = 1
    problem: str = ""
    read: int = 0
    total: int = 0


class Listener(Protocol):
    """Follows a request while it is being answered."""

    def asked(self) -> None:
        """Begin an attempt: the text of an earlier one is void, and nothing has come yet."""
        ...

    def awaits(self, wait: Wait) -> None:
        """Report the state of the wait for a first token, at each change."""
        ...

    def begun(self) -> None:
        """Report the first token: text, reasoning or part of a call (F-017)."""
        ...

    def said(self, piece: str) -> None:
        """Take more text, without secrets (L-089)."""
        ...

    def was_reasoning(self) -> None:
        """Void the text of this attempt: it was reasoning, which nobody should read (F-020)."""
        ...

    def failed(self, problem: str, *, unreachable: bool) -> None:
        """Report a failed attempt; another may follow. `unreachable`: connection refused (F-036)."""
        ...


class SilentListener:
    """A listener that ignores everything."""

    def asked(self) -> None:
        """Do nothing."""

    def awaits(self, wait: Wait) -> None:
        """Do nothing."""

    def begun(self) -> None:
        """Do nothing."""

    def said(self, piece: str) -> None:
        """Do nothing."""

    def was_reasoning(self) -> None:
        """Do nothing."""

    def failed(self, problem: str, *, unreachable: bool) -> None:
        """Do nothing."""


SILENT_LISTENER = SilentListener()


class QuirkRecord(Protocol):
    """The record of a quirk of a model. See `llm.text_tool_calls.ModelQuirk`."""

    async def known(self) -> bool:
        """Return True if the model has the quirk."""
        ...

    async def found(self, *, has: bool) -> None:
        """Record whether the model has it."""
        ...


class NoQuirkRecord:
    """A record that stays empty. Implements `QuirkRecord`."""

    async def known(self) -> bool:
        return False

    async def found(self, *, has: bool) -> None:
        pass


NO_QUIRK_RECORD = NoQuirkRecord()


class Endpoint:
    """A configured backend. Connects at the first request."""

    def __init__(
        self,
        name: str,
        settings: Backend,
        new_id: NewId,
        redact: Redaction = UNHIDDEN,
        spells: QuirkRecord = NO_QUIRK_RECORD,
        aloud: QuirkRecord = NO_QUIRK_RECORD,
    ) -> None:
        """Take the settings.

        `spells`: the model writes its calls as text. `aloud`: see `SpecialTokens`.
        """
        self.name = name
        self.settings = settings
        self.measure = Measure()
        self.sender = sender_id(name, settings)
        self._redact = redact
        self._new_id = new_id
        self._calls_habit, self._aloud_habit = spells, aloud
        self._key = settings.api_key.reveal() if settings.api_key else ""
        self._client: Client | None = None
        self._opening = asyncio.Lock()
        self._dialect = ProviderQuirks(calls_in_turn=settings.size == "small")
        self.thinks_aloud = False
        """True if the model thought aloud in this process."""
        self._plain_answers = 0
        self._names_ends = False  # has marked an answer as complete in this process

    async def ask(
        self, request: Request, most_tokens: int | None = None, listener: Listener = SILENT_LISTENER
    ) -> Answer:
        """Make one attempt, with the deadlines of F-017.

        Raises: Failed, whose text names this backend and never its key.
        """
        try:
            client = await self._opened()
            return await self._ask_adapting(client, request, most_tokens, listener)
        except Failed as failure:
            raise failure.naming_backend(self.name, self._key, self._redact) from None

    def with_own_fields(self, request: Request) -> Request:
        """Return the request with the fields and call ids that this backend wants back (F-040, F-041)."""
        fields = self._dialect.placeholders
        return replace(
            request, messages=fields_for(request.messages, self.sender, self._redact, fields)
        )

    async def fetch(
        self, path: str, body: Json, seconds: float, read: Callable[[bytes], Parsed]
    ) -> Parsed:
        """Return the result of `read` for a whole answer, for requests other than chat.

        Raises: Failed, also that of `read`; its text names this backend and never its key.
        """
        try:
            client = await self._opened()
            async with asyncio.timeout(seconds), client.opened(body, path) as chunks:
                return read(await _whole(chunks))
        except TimeoutError:
            failure: Failed = Outage("timeout", f"gave no answer in {seconds:g} s")
        except Failed as failed:
            failure = failed
        raise failure.naming_backend(self.name, self._key, self._redact) from None

    async def accepts_connections(self) -> bool:
        """Return True if its address accepts connections."""
        address = urlsplit(self.settings.proxy or self.settings.base_url)
        try:
            port = address.port or (443 if address.scheme == "https" else 80)
            async with asyncio.timeout(KNOCK_SECONDS):
                _, writer = await asyncio.open_connection(address.hostname, port)
        except (OSError, TimeoutError, ValueError):  # ValueError: an impossible host or port
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
                private = await is_private(self.settings)
                self._dialect = replace(self._dialect, tells_progress=private)
                # In a thread: the import is slow, and the rooms must not wait for it.
                self._client = await asyncio.to_thread(
                    _open, self.settings, self._key, self._redact
                )
        return self._client

    async def _ask_adapting(
        self, client: "Client", request: Request, most_tokens: int | None, listener: Listener
    ) -> Answer:
        """Ask, and again without each API feature that the server rejects."""
        first, longest = self._dialect, most_tokens or self.settings.longest_answer
        while True:
            dialect = self._dialect  # a copy: another request may change it meanwhile
            body = dialect.body(self.with_own_fields(request), self.settings, longest)
            try:
                return await self._answer(client, body, request, listener, longest)
            except UnicodeEncodeError:  # lone surrogates, such as in file names
                request = _encodable(request)
            except Failed as failure:
                other = dialect.after_complaint(failure.complaint, body, self.settings)
                if other is None and isinstance(failure, Refused):
                    self._dialect = first  # none of the changes helped
                if other is None:
                    raise
                self._dialect = other

    @property
    def request_changes(self) -> str:
        """The changes to requests since the start, for a person (F-042, F-064)."""
        cut = self.measure.cut
        changes = [self._dialect.request_changes, cut_warning(self.name, cut) if cut else ""]
        return "; ".join(filter(None, changes))

    async def _answer(
        self, client: "Client", body: Json, request: Request, listener: Listener, longest: int
    ) -> Answer:
        known = self.thinks_aloud or await self._aloud_habit.known()
        gathering = AnswerParser(
            self._redact,
            offered(request),
            aloud=known,
            spells=await self._writes_calls_as_text(),
            view=context_of(request),
        )
        shown = StreamRedactor(self._redact, listener.said)
        listener.asked()
        listener.awaits(Wait(self.name))
        loop, begun = asyncio.get_running_loop(), False
        first, heard, heard_at = self.settings.first_token_s, 0, loop.time()
        try:
            async with asyncio.timeout(first) as deadline, client.opened(body) as chunks:
                async for chunk in chunks:
                    gathering.feed(chunk)
                    if gathering.heard > heard:
                        heard, heard_at = gathering.heard, loop.time()
                    if gathering.begun and not begun:
                        begun = True
                        listener.begun()
                    elif not begun and gathering.progress:
                        listener.awaits(Wait(self.name, 1, 1, "", *gathering.progress))
                    self._show(gathering, shown, listener)
                    deadline.reschedule(patience(gathering, self.settings, loop.time(), heard_at))
        except TimeoutError:
            if not gathering.complete:
                silence = f"did not begin an answer in {first:g} s"
                if begun:
                    seconds = round(loop.time() - heard_at, 1)
                    silence = f"fell silent in the middle of an answer for {seconds:g} s"
                raise Outage("timeout", silence) from None
        except Outage:
            if not gathering.complete:
                raise
        named, self._names_ends = self._names_ends, self._names_ends or gathering.complete
        answer = gathering.answer(self._new_id, longest, named=named)
        self._show(gathering, shown, listener)
        shown.end()
        await self._learn_aloud(known, aloud=gathering.aloud, said=bool(answer.text.strip()))
        return answer

    async def _learn_aloud(self, was_aloud: bool, *, aloud: bool, said: bool) -> None:
        was_aloud = was_aloud or self.thinks_aloud
        self._plain_answers = 0 if aloud else self._plain_answers + said
        still = aloud or (was_aloud and self._plain_answers < PLAIN_MOST)
        if still is not was_aloud:
            await self._aloud_habit.found(has=still)
        self.thinks_aloud = still

    async def _writes_calls_as_text(self) -> bool:
        configured = self.settings.calls_as_text
        return await self._calls_habit.known() if configured is None else configured

    def _show(self, gathering: AnswerParser, shown: StreamRedactor, listener: Listener) -> None:
        piece = gathering.fresh()
        if piece is None:  # the text so far was reasoning
            shown.end()
            listener.was_reasoning()
            piece = gathering.fresh()
        if piece:
            shown.feed(piece)


def patience(gathering: AnswerParser, settings: Backend, now: float, heard_at: float) -> float:
    """Return the time at which to stop waiting for more (F-017, F-062, F-063).

    `heard_at`: the time of its last output, or of the request.
    """
    if gathering.ended:
        return heard_at + LAST_BYTES
    if gathering.complete:
        return heard_at + min(LAST_WORD, settings.timeout_s)
    longest = settings.timeout_s if gathering.begun else settings.first_token_s
    return min(now + longest, heard_at + MOST_SILENCES * longest)


async def _whole(chunks: AsyncIterator[bytes]) -> bytes:
    content = bytearray()
    async for chunk in chunks:
        content += chunk
        if len(content) > MOST_BYTES:
            raise Refused("garbage", f"sent more than {MOST_BYTES} bytes in one answer")
    return bytes(content)


def offered(request: Request) -> dict[str, Json]:
    """Return the parameters of a request's tools, by name."""
    functions = [tool["function"] for tool in request.tools]
    return {function["name"]: function.get("parameters", {}) for function in functions}


def _open(settings: Backend, key: str, redact: Redaction) -> "Client":
    first = "wintermute.llm.sdk" not in sys.modules
    from wintermute.llm.sdk import Client  # noqa: PLC0415  openai loads with the first question

    if first:  # the whole program is loaded: keep it out of garbage collections
        gc.freeze()
    return Client(settings, key or "none", redact)


def _encodable(request: Request) -> Request:
    text = json.dumps([request.messages, request.tools], ensure_ascii=False)
    messages, tools = json.loads(text.encode("utf-8", "replace"))
    return replace(request, messages=tuple(messages), tools=tuple(tools))
