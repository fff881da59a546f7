"""Messages that are taken back: what that ends, and what is kept of them no more (F-027)."""

import logging
from collections.abc import Collection, Iterable, Sequence
from typing import Protocol

from wintermute.commands.forgetting import with_reports
from wintermute.commands.stores import Stores
from wintermute.conversation.intent import without, without_quote
from wintermute.db import Transaction
from wintermute.mailbox.inbox import Waiting
from wintermute.matrix.inbox import is_id, mapping, string
from wintermute.messages import Json

log = logging.getLogger(__name__)


class Work(Protocol):
    """What conversations have under way. See `conversation.rooms.Rooms`."""

    def wake(self, conversation_id: str) -> None:
        """Something in a conversation has changed."""
        ...

    async def take_back(self, tx: Transaction, conversation_id: str, events: Sequence[str]) -> None:
        """End all that was begun for these events, without a word."""
        ...

    def ask_anew(self, conversation_id: str) -> None:
        """Once it is woken: what is under way must not be asked with what it was asked with."""
        ...


def redacted(events: Iterable[Json]) -> set[str]:
    """The ids of what is taken back by these events or among them, where it comes without its text.

    Our homeserver passes on only redactions that were allowed; whose they are does not matter.
    """
    found = {string(e, "event_id") if is_gone(e) else _target(e) for e in events}
    return {event_id for event_id in found if is_id(event_id)}


def is_gone(event: Json) -> bool:
    """Whether an event was taken back before it came."""
    return "redacted_because" in mapping(event.get("unsigned"))


def _target(event: Json) -> str:
    """What a redaction is of: at its top up to room version 10, in its content since then.

    Servers write both; where they differ it cannot be told which one was allowed.
    """
    if string(event, "type") != "m.room.redaction":
        return ""
    named = {string(event, "redacts"), string(mapping(event.get("content")), "redacts")} - {""}
    return named.pop() if len(named) == 1 else ""


class Redactions:
    """Takes messages back, in the transaction that stores what a sync brought."""

    def __init__(self, stores: Stores, work: Work) -> None:
        self._stores = stores
        self._work = work

    async def take(self, tx: Transaction, room_id: str, events: Collection[str]) -> set[str]:
        """Take back these events of a room; the conversations in which that changes something."""
        if not events:
            return set()
        await self._stores.edits.take_back(tx, room_id, events)
        found = await self._stores.inbox.of_events(tx, room_id, events)
        conversations = {row.conversation_id for row in found}
        for conversation_id in sorted(conversations):
            rows = [row for row in found if row.conversation_id == conversation_id]
            log.info("taken back conversation=%s messages=%d", conversation_id, len(rows))
            await self._take(tx, conversation_id, rows)
        originals = {row.edits for row in found if row.edits}
        return conversations | await self._unquote(tx, room_id, originals.union(events))

    async def _unquote(self, tx: Transaction, room_id: str, events: Collection[str]) -> set[str]:
        """Take the text of these out of what was asked in reply to them; the conversations."""
        casts, changed = self._stores.casts, dict[str, list[str]]()
        for conversation_id, cast_id, said in await casts.quoting(tx, room_id, events):
            if (left := without_quote(said)) != said:
                await casts.cut(tx, cast_id, left)
                changed.setdefault(conversation_id, []).append(cast_id)
        for conversation_id, touched in changed.items():
            self._work.ask_anew(conversation_id)
            shown = await casts.from_first(tx, conversation_id, touched)
            await self._stores.model_calls.forget(tx, shown, ())
        return set(changed)

    async def _take(self, tx: Transaction, conversation_id: str, rows: Sequence[Waiting]) -> None:
        stores = self._stores
        events = await with_reports(stores, tx, {row.event_id for row in rows})
        await self._work.take_back(tx, conversation_id, events)
        # What nobody has heard of goes with all that was done for it; what was answered stays so.
        unheard = await stores.outbox.take_back(tx, events)
        unheard += await stores.inbox.take_back(tx, events)
        touched = await stores.casts.take_back(tx, events)
        if unheard:
            await stores.casts.forget(tx, unheard, ())
        await stores.sub_sessions.forget(tx, events, ())
        for row in rows:
            if not row.direct:
                touched += await self._cut(tx, row)
        if touched:
            self._work.ask_anew(conversation_id)
        shown = await stores.casts.from_first(tx, conversation_id, touched)
        below = await stores.casts.of_events(tx, events)
        await stores.model_calls.forget(tx, [*shown, *below], ())

    async def _cut(self, tx: Transaction, line: Waiting) -> list[str]:
        """Take a line out of what was said before the messages that follow it; their casts."""
        if line.sender_name and not line.body:  # it was taken back before
            return []
        found = await self._stores.casts.in_groups(tx, line.conversation_id, line.sender)
        after = None if line.body else await self._stores.inbox.followers(tx, line)
        changed = {
            cast_id: without(said, line)
            for cast_id, event_id, said in found
            if after is None or event_id in after
        }
        intents = {cast_id: left for cast_id, left in changed.items() if left is not None}
        for cast_id, left in intents.items():
            await self._stores.casts.cut(tx, cast_id, left)
        return [*intents]
