"""The stream of a conversation: states, not pieces, so that nothing can be doubled or missed.

    messages  the newest ones by id and order, with those that are new or look different
    draft     the answer being made: its blocks from the first that differs, tools, what it waits for

Whoever connects gets what they have not got; nothing is kept for whoever is away.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import takewhile

from wintermute import markdown
from wintermute.clock import Clock
from wintermute.conversation.words import MODEL, waiting_for
from wintermute.mailbox.reading import NEWEST
from wintermute.messages import Json
from wintermute.web.messages import IN_THREAD, MessageViews
from wintermute.web.parts import WebParts
from wintermute.web.sessions import Logins, Visitor
from wintermute.web.speaker import Making

DRAWS = 0.1
"""Seconds between two states of a draft."""
SHARE = 10
"""Of so many parts of the time one may go into rendering a draft."""
SETTLES = 0.03
"""Seconds in which what belongs together arrives."""
LOOKS = 2.0
"""Seconds between looks for what nobody tells of: what was forgotten, or came by a command line."""
BEATS = 15.0
"""Seconds of silence after which a dead connection is found out."""
PATIENCE = 2
"""Seconds from which on a wait is worth a line."""


@dataclass(frozen=True, slots=True)
class DrawnDraft:
    """A draft as HTML, one piece for each block. `until`: when it may be drawn anew."""

    text: str
    blocks: tuple[str, ...]
    until: float


@dataclass(slots=True)
class _Desk:
    """A draft that somebody watches, and the lock of whoever draws it."""

    watchers: int = 0
    drawn: DrawnDraft = DrawnDraft("", (), 0.0)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class Drafts:
    """Draws the drafts that somebody watches, each once for all who do."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._desks: dict[str, _Desk] = {}

    @contextmanager
    def watched(self, conversation_id: str) -> Iterator[None]:
        """Keep a conversation's draft while the block lasts."""
        desk = self._desks.setdefault(conversation_id, _Desk())
        desk.watchers += 1
        try:
            yield
        finally:
            desk.watchers -= 1
            if not desk.watchers:
                del self._desks[conversation_id]

    async def drawn(self, conversation_id: str, text: str) -> DrawnDraft:
        """Give the draft of a text, or the one before while drawing would take too much time."""
        desk = self._desks[conversation_id]
        async with desk.lock:
            begun = self._clock.monotonic()
            if text == desk.drawn.text or (text and begun < desk.drawn.until):
                return desk.drawn
            if len(text) < IN_THREAD:
                blocks = markdown.blocks(text)
            else:
                blocks = await asyncio.to_thread(markdown.blocks, text)
            now = self._clock.monotonic()
            pause = max(DRAWS, SHARE * (now - begun)) if text else 0.0
            desk.drawn = DrawnDraft(text, blocks, now + pause)
            return desk.drawn


@dataclass(frozen=True, slots=True)
class DraftState:
    """A draft as a page shows it."""

    answers: str
    blocks: tuple[str, ...]
    tools: tuple[str, ...]
    waiting: str

    def event(self, before: "DraftState | None") -> Json:
        """Tell a page that shows the state `before` what is different now."""
        known = before.blocks if before and before.answers == self.answers else ()
        pairs = zip(known, self.blocks, strict=False)
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        return {
            "answers": self.answers,
            "from": same,
            "blocks": self.blocks[same:],
            "tools": self.tools,
            "waiting": self.waiting,
        }


def waiting_line(making: Making, now: float) -> str:
    """Say what an answer waits for, and for how long, in words of the terminal; "": nothing."""
    seconds = int(now - making.since)
    if seconds < PATIENCE or (making.text and not making.tool):
        return ""
    return waiting_for(making.tool or MODEL, seconds, making.waiting).removeprefix("· ")


class WatchedDraft:
    """The answer being made in a conversation, as one page knows it."""

    def __init__(self, parts: WebParts, drafts: Drafts, conversation_id: str) -> None:
        self._parts = parts
        self._drafts = drafts
        self._conversation_id = conversation_id
        self._state: DraftState | None = None
        self._drawn_until, self._is_behind = 0.0, False

    async def event(self, making: Making | None) -> str:
        """Give the event of what the page does not show yet; "": nothing."""
        before, self._state = self._state, await self._drawn(making)
        if self._state == before:
            return ""
        return event("draft", self._state.event(before) if self._state else {"answers": None})

    async def _drawn(self, making: Making | None) -> DraftState | None:
        if making is None:
            self._drawn_until, self._is_behind = 0.0, False
            return None
        drawn = await self._drafts.drawn(self._conversation_id, making.text)
        self._drawn_until, self._is_behind = drawn.until, drawn.text != making.text
        waiting = waiting_line(making, self._parts.clock.monotonic())
        return DraftState(making.answers, drawn.blocks, making.gates, waiting)

    async def woken(self, seen: int) -> int:
        """Wait until something may be different, for a second at most while an answer is made."""
        clock = self._parts.clock
        await clock.sleep(max(SETTLES, self._drawn_until - clock.monotonic()))
        if self._is_behind:
            return seen
        async with asyncio.TaskGroup() as group:
            change = group.create_task(self._parts.speaker.changed(seen))
            end = group.create_task(self._parts.ending.wait())
            nap = group.create_task(clock.sleep(1.0 if self._state else LOOKS))
            await asyncio.wait({change, end, nap}, return_when=asyncio.FIRST_COMPLETED)
            for task in (change, end, nap):
                task.cancel()
        return change.result() if change.done() and not change.cancelled() else seen


class Stream:
    """One page's stream of a conversation."""

    def __init__(
        self,
        parts: WebParts,
        sessions: Logins,
        messages: MessageViews,
        drafts: Drafts,
        conversation_id: str,
        visitor: Visitor,
        has: str,
    ) -> None:
        """`has`: the version of the newest messages that the page has."""
        self._parts = parts
        self._sessions = sessions
        self._messages = messages
        self._drafts = drafts
        self._conversation_id = conversation_id
        self._visitor = visitor
        self._has = has
        self._versions: dict[str, str] | None = None
        self._draft = WatchedDraft(parts, drafts, conversation_id)
        self._touched = -1
        self._stored = -1
        self._looked_at = -LOOKS

    async def events(self) -> AsyncIterator[str]:
        """Give events until the session or the scope is over, or the server ends."""
        clock, seen, spoke_at = self._parts.clock, 0, 0.0
        with self._drafts.watched(self._conversation_id):
            while not self._parts.ending.is_set():
                found = [event async for event in self._changes()]
                if not await self._may_go_on():
                    return
                if found or clock.monotonic() - spoke_at > BEATS:
                    yield "".join(found) or ": still here\n\n"
                    spoke_at = clock.monotonic()
                seen = await self._draft.woken(seen)

    async def _changes(self) -> AsyncIterator[str]:
        """Give what the page does not show yet."""
        making = self._parts.speaker.making(self._conversation_id)
        if await self._is_worth_a_look():
            page = await self._messages.page(self._conversation_id, NEWEST)
            known = self._versions
            if known is None and page.version == self._has:
                known = {each.id: each.version for each in page.messages}
            self._versions = {each.id: each.version for each in page.messages}
            if known != self._versions:
                rows = [
                    {"id": each.id, "html": each.html, "answers": each.answers}
                    for each in page.messages
                    if (known or {}).get(each.id) != each.version
                ]
                ids, earlier = [*self._versions], str(page.earlier) if page.earlier else None
                yield event(
                    "messages",
                    {"ids": ids, "rows": rows, "earlier": earlier, "version": page.version},
                )
        if draft := await self._draft.event(making):
            yield draft

    async def _is_worth_a_look(self) -> bool:
        """Decide if the messages may be others by now."""
        now, touched = (
            self._parts.clock.monotonic(),
            self._parts.speaker.touched(self._conversation_id),
        )
        if touched == self._touched and now - self._looked_at < LOOKS:
            return False
        self._looked_at, before = now, (self._touched, self._stored)
        self._touched, self._stored = touched, await self._parts.stores.database.version()
        return before != (self._touched, self._stored)

    async def _may_go_on(self) -> bool:
        return await self._sessions.lives(self._visitor) and await self._messages.reader.is_held(
            self._conversation_id
        )


def event(name: str, value: Json) -> str:
    """Write an event as a stream sends it."""
    return f"event: {name}\ndata: {json.dumps(value)}\n\n"
