"""One model server of the configuration: one attempt gives one answer or one named failure."""

import asyncio
import json
from collections.abc import Callable
from typing import TYPE_CHECKING

from wintermute.config.schema import Backend
from wintermute.config.secrets import UNHIDDEN, Redaction, Veil
from wintermute.ids import NewId
from wintermute.llm.failures import Failed, Outage, Refused
from wintermute.llm.tokens import Measure
from wintermute.llm.wire import Answer, Gathering
from wintermute.messages import Json, Request

if TYPE_CHECKING:
    from wintermute.llm.sdk import Client

LONGEST_SILENCE = 60.0
"""Seconds between two parts of an answer."""
LAST_BYTES = 0.3
"""Seconds for the end of a stream that has said all: read to its end, a connection serves again."""


Draft = Callable[[str], None]
"""Takes what a model says, piece by piece; an empty one begins an attempt."""


def unseen(_piece: str) -> None:
    """Nobody watches."""


class Endpoint:
    """A configured backend that can be asked. Opens with the first question."""

    def __init__(
        self,
        name: str,
        settings: Backend,
        new_id: NewId,
        longest_silence: float = LONGEST_SILENCE,
        redact: Redaction = UNHIDDEN,
    ) -> None:
        self.name = name
        self.settings = settings
        self.measure = Measure()
        self._redact = redact
        self._new_id = new_id
        self._silence = min(longest_silence, settings.timeout_s)
        self._key = settings.api_key.reveal() if settings.api_key else ""
        self._client: Client | None = None
        self._opening = asyncio.Lock()
        self._reports_usage = True
        self._limit = "max_tokens"

    async def ask(
        self, request: Request, most_tokens: int | None = None, draft: Draft = unseen
    ) -> Answer:
        """One attempt; `draft` is given what the model says, as it comes, without secrets (L-089).

        Raises: Failed, whose text names this backend and never its key.
        """
        try:
            client = await self._opened()
            return await self._asked(client, request, most_tokens, draft)
        except Failed as failure:
            raise failure.told_by(self.name, self._key, self._redact) from None

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
        self, client: "Client", request: Request, most_tokens: int | None, draft: Draft
    ) -> Answer:
        """Ask, and once more in simpler words for each that this server turns out not to know."""
        while True:
            body = self._body(request, most_tokens or self.settings.max_output_tokens)
            try:
                return await self._answer(client, body, draft)
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
        return False

    async def _answer(self, client: "Client", body: Json, draft: Draft) -> Answer:
        gathering, shown = Gathering(self._redact), Veil(self._redact, draft)
        draft("")
        seconds = self.settings.timeout_s
        latest = asyncio.get_running_loop().time() + seconds
        try:
            async with asyncio.timeout_at(latest) as deadline, client.opened(body) as chunks:
                async for chunk in chunks:
                    gathering.feed(chunk)
                    if piece := gathering.fresh():
                        shown.feed(piece)
                    deadline.reschedule(self._patience(gathering, latest))
        except TimeoutError:
            if not gathering.complete:
                raise Outage(
                    "timeout",
                    f"gave no complete answer in {seconds:g} s,"
                    f" or fell silent in the middle of one for {self._silence:g} s",
                ) from None
        except Outage:
            if not gathering.complete:
                raise
        answer = gathering.answer(self._new_id)
        shown.end()
        return answer

    def _patience(self, gathering: Gathering, latest: float) -> float:
        """When to give up waiting for more. Until the answer begins, the model may think."""
        if not (gathering.begun or gathering.ended):
            return latest
        pause = LAST_BYTES if gathering.ended else self._silence
        return min(latest, asyncio.get_running_loop().time() + pause)


def _open(settings: Backend, key: str, redact: Redaction) -> "Client":
    from wintermute.llm.sdk import Client  # noqa: PLC0415  openai loads with the first question

    return Client(settings.base_url, key or "none", settings.timeout_s, redact)


def _encodable(request: Request) -> Request:
    text = json.dumps([request.messages, request.tools], ensure_ascii=False)
    messages, tools = json.loads(text.encode("utf-8", "replace"))
    return Request(tuple(messages), tuple(tools))
