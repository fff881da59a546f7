"""The stream of a conversation: states, not changes, so that nothing can be doubled or missed.

    messages  the newest ones by id and order, with those that are new or look different; the title,
              and a number that is another one after messages were erased, here or elsewhere
    draft     the answer being made: its blocks from the first that differs, tools, what it waits for

A page that connects gets what it lacks; nothing is stored for absent pages.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass
from itertools import takewhile

from wintermute.conversation.replies import MODEL, waiting_for
from wintermute.messages import Json
from wintermute.web.messages import DraftDesk, MessageViews, title_of
from wintermute.web.parts import WebParts
from wintermute.web.sessions import Visitor
from wintermute.web.speaker import AnswerInProgress

SETTLES = 0.03
"""Seconds in which related changes are collected."""
LOOKS = 2.0
"""Seconds between polls for changes without a signal: forgetting, or the command line."""
BEATS = 15.0
"""Seconds of silence after which a dead connection is noticed."""
PATIENCE = 2
"""Seconds after which a wait is shown."""


@dataclass(frozen=True, slots=True)
class DraftState:
    """A draft as a page shows it."""

    answers: str | None = None
    blocks: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()
    waiting: str = ""

    def event(self, before: "DraftState") -> Json:
        """Return the difference from the state `before` for a page."""
        known = before.blocks if before.answers == self.answers else ()
        pairs = zip(known, self.blocks, strict=False)
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        return asdict(self) | {"from": same, "blocks": self.blocks[same:]}


NO_DRAFT = DraftState()


def waiting_line(making: AnswerInProgress, now: float) -> str:
    """Return a line about a longer wait, as in the terminal; "": none."""
    seconds = int(now - making.since)
    if seconds < PATIENCE or (making.text and not making.tool):
        return ""
    return waiting_for(making.tool or MODEL, seconds, making.waiting).removeprefix("· ")


class WatchedDraft:
    """The answer being made in a conversation, as one page shows it."""

    def __init__(
        self, parts: WebParts, visitor: Visitor, desk: DraftDesk, conversation_id: str
    ) -> None:
        self._parts = parts
        self._visitor = visitor
        self._desk = desk
        self._id = conversation_id
        self._state = NO_DRAFT
        self._is_behind = False

    async def news(self, making: AnswerInProgress | None) -> list[str]:
        """Return the event with everything that the page does not show yet, if there is any."""
        state = NO_DRAFT
        if making is not None:
            await self._desk.draw(making.text)
            waiting = waiting_line(making, self._parts.clock.monotonic())
            state = DraftState(making.answers, self._desk.blocks, making.gates, waiting)
        self._is_behind = making is not None and making.text != self._desk.text
        before, self._state = self._state, state
        return [] if state == before else [event("draft", state.event(before))]

    async def woken(self, seen: int) -> int:
        """Wait for a change, for at most a second while an answer is made."""
        clock, is_made = self._parts.clock, self._state.answers is not None
        pause = self._desk.until - clock.monotonic() if is_made else 0.0
        await clock.sleep(max(SETTLES, pause))
        if self._is_behind:
            return seen
        async with asyncio.TaskGroup() as group:
            change = group.create_task(self._parts.speaker.wait_for_change(self._id, seen))
            end = group.create_task(self._visitor.left.wait())
            nap = group.create_task(clock.sleep(1.0 if is_made else LOOKS))
            await asyncio.wait({change, end, nap}, return_when=asyncio.FIRST_COMPLETED)
            for task in (change, end, nap):
                task.cancel()
        return seen if change.cancelled() else change.result()


class Stream:
    """One page's stream of a conversation."""

    def __init__(
        self, messages: MessageViews, conversation_id: str, visitor: Visitor, has: str
    ) -> None:
        """`has` is the version of the newest messages that the page has."""
        self._parts = messages.views.parts
        self._sessions = messages.views.sessions
        self._messages = messages
        self._id = conversation_id
        self._visitor = visitor
        self._has = has
        self._shown: dict[str, str] = {}
        desk = messages.desk(conversation_id)
        self._draft = WatchedDraft(self._parts, visitor, desk, conversation_id)
        self._seen = (-1, -1)
        self._looks_at = 0.0

    async def events(self) -> AsyncIterator[str]:
        """Yield events until the session or the scope ends, or the server does (V-004)."""
        clock, seen, spoke_at, asked_at = self._parts.clock, 0, 0.0, 0.0
        while not self._visitor.left.is_set():
            making = self._parts.speaker.answer_in_progress(
                self._id
            )  # first: the answer it made is then found
            found = [*await self._news(), *await self._draft.news(making)]
            if found or clock.monotonic() - asked_at >= LOOKS:
                asked_at = clock.monotonic()
                if not await self._may_go_on():
                    return
            if found or clock.monotonic() - spoke_at >= BEATS:
                yield "".join(found) or ": still here\n\n"
                spoke_at = clock.monotonic()
            seen = await self._draft.woken(seen)

    async def _news(self) -> list[str]:
        """Return what the page does not show yet, if the messages may have changed."""
        now, touched = self._parts.clock.monotonic(), self._parts.speaker.touched(self._id)
        if touched == self._seen[0] and now < self._looks_at:
            return []
        stored = await self._parts.stores.database.version()
        is_same = self._seen == (touched, stored)
        self._looks_at, self._seen = now + LOOKS, (touched, stored)
        page = None if is_same else await self._messages.page(self._id)
        if page is None:
            return []
        shown = {each.id: each.html for each in page.messages}
        known, self._shown, has, self._has = self._shown, shown, self._has, page.version
        held = None if page.version == has else await self._messages.reader.conversation(self._id)
        if held is None:
            return []
        rows = [asdict(each) for each in page.messages if known.get(each.id) != each.html]
        more: Json = {"earlier": page.earlier, "version": page.version}
        more |= {"erased": page.erased, "title": title_of(held)}
        return [event("messages", {"ids": [*shown], "rows": rows} | more)]

    async def _may_go_on(self) -> bool:
        is_held = await self._messages.reader.conversation(self._id) is not None
        return is_held and await self._sessions.lives(self._visitor)


def event(name: str, value: Json) -> str:
    """Write an event as a stream sends it."""
    return f"event: {name}\ndata: {json.dumps(value)}\n\n"
