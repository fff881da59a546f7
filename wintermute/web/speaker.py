"""The Speaker of the web pages: shows answers as they are made, and loses none if nobody watches.

The outbox is the list of messages of a page, so nothing is sent. It needs no web framework, because
the daemon also answers while its web door is closed.
"""

import asyncio
from dataclasses import dataclass, replace

from wintermute.clock import Clock
from wintermute.llm.backend import Wait
from wintermute.loom.conversations import Conversation
from wintermute.mailbox.inbox import InboxRow
from wintermute.mailbox.outbox import WEB, Outbox
from wintermute.messages import Quote
from wintermute.text import display_name

TEXT_MOST = 200_000
"""The characters of a growing answer that are kept; the outbox gets all of it in the end."""
GATES_MOST = 50


@dataclass(frozen=True, slots=True)
class AnswerInProgress:
    """An answer that is being made.

    `answers`: the event of the message. `text`: the model's Markdown so far. `gates`: the tools
    used so far, the newest last; `tool`: the running one. `since`: the beginning of the present
    wait, by the monotonic clock.
    """

    answers: str
    text: str
    gates: tuple[str, ...]
    waiting: Wait | None
    since: float
    tool: str = ""


class WebSpeaker:
    """Keeps the growing answers of all conversations, and marks messages to pages as delivered.

    Implements `Speaker`.
    """

    def __init__(self, outbox: Outbox, clock: Clock) -> None:
        self._outbox = outbox
        self._clock = clock
        self._making: dict[str, AnswerInProgress] = {}
        self._moves: dict[str, int] = {}
        self._touched: dict[str, int] = {}
        self._wakeups: dict[str, asyncio.Event] = {}
        self._count = 0
        self._spoke = asyncio.Event()

    async def run(self) -> None:
        """Mark messages for pages in the outbox as delivered, until cancelled."""
        while True:
            self._spoke.clear()
            for outbox_id in await self._outbox.waiting_for_pages():
                await self._outbox.mark_shown(outbox_id)
            await self._spoke.wait()

    def answer_in_progress(self, conversation_id: str) -> AnswerInProgress | None:
        """Return the answer that is being made in a conversation."""
        return self._making.get(conversation_id)

    def touched(self, conversation_id: str) -> int:
        """Return the number of the last change that may have altered the messages of a conversation."""
        return self._touched.get(conversation_id, 0)

    async def wait_for_change(self, conversation_id: str, seen: int) -> int:
        """Wait for a change of a conversation after the change number `seen`. Return the new number."""
        while self._moves.get(conversation_id, 0) <= seen:
            await self._wakeups.setdefault(conversation_id, asyncio.Event()).wait()
        return self._moves[conversation_id]

    def serves(self, room_id: str) -> bool:
        """Return True for conversations in the browser only."""
        return room_id.startswith(WEB)

    def fits(self, conversation: Conversation) -> bool:
        """Return False: a person may not open a page for days, so no notice is sent here."""
        return False

    def room_for(self, scope: str, *, encrypted: bool) -> str | None:
        """Return None: a conversation in the browser begins with its first message."""
        return None

    def attend(self, row: InboxRow) -> None:
        """Note that an answer begins."""
        self.begin_answer(row.conversation_id, row.event_id)

    def begin_answer(self, conversation_id: str, answers: str) -> None:
        """Keep an answer from now on, also one that is made for no room."""
        self._keep(conversation_id, AnswerInProgress(answers, "", (), None, self._now()))
        self._touch(conversation_id)

    def rest(self, row: InboxRow) -> None:
        """End the answer to this message; that to another one stays."""
        self.end_answer(row.conversation_id, row.event_id)

    def end_answer(self, conversation_id: str, answers: str) -> None:
        """Keep an answer no longer."""
        known = self._making.get(conversation_id)
        if known is not None and known.answers == answers:
            del self._making[conversation_id]
        self._touch(conversation_id)

    def draft(self, conversation_id: str, piece: str) -> None:
        """Add to the text; an empty part retracts it."""
        if known := self._making.get(conversation_id):
            text = (known.text + piece)[:TEXT_MOST] if piece else ""
            since = known.since if piece else self._now()
            made = replace(known, text=text, waiting=None, since=since, tool="")
            self._keep(conversation_id, made)

    def retract(self, conversation_id: str) -> None:
        """Retract the text so far."""
        self.draft(conversation_id, "")

    def wait(self, conversation_id: str, wait: Wait) -> None:
        """Note what the answer waits for."""
        if known := self._making.get(conversation_id):
            self._keep(conversation_id, replace(known, waiting=wait))

    def gate(self, conversation_id: str, name: str, doing: str) -> None:
        """Note that a tool runs; the text before it stays until more comes."""
        if known := self._making.get(conversation_id):
            tool = display_name(name)
            gates = (*known.gates, tool)[-GATES_MOST:]
            made = replace(known, gates=gates, waiting=None, since=self._now(), tool=tool)
            self._keep(conversation_id, made)

    def shown(self, row: InboxRow) -> str:
        """Return nothing: no draft is replaced by an answer."""
        return ""

    def speak(self, conversation_id: str) -> None:
        """Note that the outbox has a new message."""
        self._spoke.set()
        self._touch(conversation_id)

    async def quote(self, row: InboxRow) -> Quote | None:
        """Return None: a page has no replies to single messages."""
        return None

    def _now(self) -> float:
        return self._clock.monotonic()

    def _keep(self, conversation_id: str, made: AnswerInProgress) -> None:
        self._move(conversation_id)
        self._making[conversation_id] = made

    def _touch(self, conversation_id: str) -> None:
        self._move(conversation_id)
        self._touched[conversation_id] = self._count

    def _move(self, conversation_id: str) -> None:
        self._count += 1
        self._moves[conversation_id] = self._count
        if wakeup := self._wakeups.pop(conversation_id, None):
            wakeup.set()
