"""The way back to a page: answers as they are made, for whoever looks, and none is lost if nobody does.

The outbox is the list of messages of a page, so nothing here is sent. No web framework is needed: the
daemon also answers with its web door closed.
"""

import asyncio
from dataclasses import dataclass, replace

from wintermute.clock import Clock
from wintermute.llm.backend import Wait
from wintermute.loom.conversations import Conversation
from wintermute.mailbox.inbox import Waiting
from wintermute.mailbox.outbox import WEB, Outbox
from wintermute.messages import Quote
from wintermute.text import display_name

TEXT_MOST = 200_000
"""Characters of an answer that are kept while it is made; all of it is in the outbox in the end."""
GATES_MOST = 50


@dataclass(frozen=True, slots=True)
class Making:
    """An answer that is being made.

    `answers`: the event of the message. `text`: the Markdown so far of what the model is saying.
    `gates`: the tools used so far, the newest last; `tool`: the one at work. `since`: from when on it
    waits for what comes next, by the steady clock.
    """

    answers: str
    text: str
    gates: tuple[str, ...]
    waiting: Wait | None
    since: float
    tool: str = ""


class WebSpeaker:
    """Keeps what is being made in all conversations, and marks what is said to pages as said.

    Implements `Speaker`.
    """

    def __init__(self, outbox: Outbox, clock: Clock) -> None:
        self._outbox = outbox
        self._clock = clock
        self._making: dict[str, Making] = {}
        self._moves: dict[str, int] = {}
        self._touched: dict[str, int] = {}
        self._bells: dict[str, asyncio.Event] = {}
        self._count = 0
        self._spoke = asyncio.Event()

    async def run(self) -> None:
        """Mark what is in the outbox for pages as said, until cancelled."""
        while True:
            self._spoke.clear()
            for outbox_id in await self._outbox.waiting_for_pages():
                await self._outbox.shown(outbox_id)
            await self._spoke.wait()

    def making(self, conversation_id: str) -> Making | None:
        """The answer that is being made in a conversation."""
        return self._making.get(conversation_id)

    def touched(self, conversation_id: str) -> int:
        """Number the last change after which the messages of a conversation may be others."""
        return self._touched.get(conversation_id, 0)

    async def moved(self, conversation_id: str, seen: int) -> int:
        """Wait for a change in one conversation after the one that was seen; its number."""
        while self._moves.get(conversation_id, 0) <= seen:
            await self._bells.setdefault(conversation_id, asyncio.Event()).wait()
        return self._moves[conversation_id]

    def serves(self, room_id: str) -> bool:
        """Only conversations in the browser."""
        return room_id.startswith(WEB)

    def fits(self, conversation: Conversation) -> bool:
        """Never: whoever is to be told something may look at no page for days."""
        return False

    def room_for(self, scope: str, *, encrypted: bool) -> str | None:
        """None: a conversation in the browser begins with its first message."""
        return None

    def attend(self, row: Waiting) -> None:
        """An answer is begun."""
        self.begin_answer(row.conversation_id, row.event_id)

    def begin_answer(self, conversation_id: str, answers: str) -> None:
        """Keep an answer from now on, also one that is made for no room."""
        self._keep(conversation_id, Making(answers, "", (), None, self._now()))
        self._touch(conversation_id)

    def rest(self, row: Waiting) -> None:
        """No answer is being made any more; that of another message stays."""
        self.end_answer(row.conversation_id, row.event_id)

    def end_answer(self, conversation_id: str, answers: str) -> None:
        """Keep an answer no longer."""
        known = self._making.get(conversation_id)
        if known is not None and known.answers == answers:
            del self._making[conversation_id]
        self._touch(conversation_id)

    def draft(self, conversation_id: str, piece: str) -> None:
        """Add a piece; an empty one takes back what was said so far."""
        if known := self._making.get(conversation_id):
            text = (known.text + piece)[:TEXT_MOST] if piece else ""
            since = known.since if piece else self._now()
            made = replace(known, text=text, waiting=None, since=since, tool="")
            self._keep(conversation_id, made)

    def retract(self, conversation_id: str) -> None:
        """Take back what it said so far."""
        self.draft(conversation_id, "")

    def wait(self, conversation_id: str, wait: Wait) -> None:
        """Keep what is waited for."""
        if known := self._making.get(conversation_id):
            self._keep(conversation_id, replace(known, waiting=wait))

    def gate(self, conversation_id: str, name: str, doing: str) -> None:
        """Keep that a tool is used; what was said before it stays until more is said."""
        if known := self._making.get(conversation_id):
            tool = display_name(name)
            gates = (*known.gates, tool)[-GATES_MOST:]
            made = replace(known, gates=gates, waiting=None, since=self._now(), tool=tool)
            self._keep(conversation_id, made)

    def shown(self, row: Waiting) -> str:
        """Nothing that an answer would take the place of."""
        return ""

    def speak(self, conversation_id: str) -> None:
        """Something is in the outbox."""
        self._spoke.set()
        self._touch(conversation_id)

    async def quote(self, row: Waiting) -> Quote | None:
        """None: on a page nobody replies to one message among many."""
        return None

    def _now(self) -> float:
        return self._clock.monotonic()

    def _keep(self, conversation_id: str, made: Making) -> None:
        self._move(conversation_id)
        self._making[conversation_id] = made

    def _touch(self, conversation_id: str) -> None:
        self._move(conversation_id)
        self._touched[conversation_id] = self._count

    def _move(self, conversation_id: str) -> None:
        self._count += 1
        self._moves[conversation_id] = self._count
        if bell := self._bells.pop(conversation_id, None):
            bell.set()
