"""Events that are about an earlier event: what an edit, a reaction, a reply or a redaction asks of us.

X-026, L-054, F-025, F-027. What is decided without waiting raises on nothing that strangers send.
A message that is taken back ends what was begun for it, and is kept no more.
"""

import logging
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Literal, NamedTuple

from wintermute.changes.nights import asked_by
from wintermute.commands.chat import NAMES
from wintermute.conversation.casting import without, without_quote
from wintermute.conversation.rooms import REDONE, Rooms
from wintermute.db import Transaction
from wintermute.db.eraser import Came, erase
from wintermute.forgetting.forget_jobs import owe_forgetting, owe_unsaying
from wintermute.forgetting.forgetting import with_reports
from wintermute.llm.calls import RECORDED
from wintermute.loom.casts import LOOM
from wintermute.loom.conversations import Reward
from wintermute.loom.sub_sessions import SESSIONS
from wintermute.mailbox.inbox import LAST, Waiting
from wintermute.mailbox.retractions import Retracted
from wintermute.matrix.inbox import (
    Account,
    Policy,
    RoomView,
    bounded,
    is_id,
    is_marked_by,
    read_event,
    replied_to,
    string,
)
from wintermute.messages import PERSON, Incoming, Json, mapping
from wintermute.owner import is_owner
from wintermute.stores import Stores
from wintermute.tasks.tasks import SIGNS, Sign

ReactionMeaning = Literal["good", "bad", "stop"] | Sign
MARKS: Mapping[str, ReactionMeaning] = {
    "\N{THUMBS UP SIGN}": "good",
    "\N{THUMBS DOWN SIGN}": "bad",
    "\N{OCTAGONAL SIGN}": "stop",
    **SIGNS,
}
ANSWERS: Mapping[ReactionMeaning, str] = {"done": "yes", "cancel": "no"}
"""What the signs say to what a night asks."""
VARIATIONS = dict.fromkeys((0xFE0E, 0xFE0F, *range(0x1F3FB, 0x1F400)))
"""Presentation selectors and skin tones: with or without them it is the same sign."""


class Reaction(NamedTuple):
    """A sign on an earlier event, and what would be done about it if it asks for something."""

    target: str
    mark: ReactionMeaning
    command: Incoming
    """What a stop sign says; the other signs that ask for something say it in other words."""


def meaning(key: str) -> ReactionMeaning | None:
    """What the key of a reaction says to us."""
    return MARKS.get(key.translate(VARIATIONS))


def read_reaction(
    source: object, room: RoomView, account: Account, policy: Policy, received_at: datetime
) -> Reaction | None:
    """The reaction of an allowed person that an event is, when it means something to us (X-026)."""
    event = mapping(source)
    relation = mapping(mapping(event.get("content")).get("m.relates_to"))
    target, mark = string(relation, "event_id"), meaning(string(relation, "key"))
    if (
        string(event, "type") != "m.reaction"
        or string(relation, "rel_type") != "m.annotation"
        or mark is None
        or not is_target(target, event)
        or string(event, "sender") not in policy.allowed
    ):
        return None
    typed = event | {"type": "m.room.message", "content": {"msgtype": "m.text", "body": "/stop"}}
    read = read_event(typed, room, account, policy, received_at)
    if read is None:
        return None
    return Reaction(target, mark, replace(read, kind="command", raw=bounded(event)))


def read_edit(
    source: object,
    room: RoomView,
    account: Account,
    policy: Policy,
    received_at: datetime,
    *,
    answers_us: bool = False,
) -> Incoming | None:
    """The new text that an allowed person gives an earlier message, read as if said now (L-054).

    Not of bots: theirs grow while they write, and each step would be answered (X-004).
    `answers_us`: the earlier message does, which an edit does not change.
    """
    event = mapping(source)
    content, edited, sender = (
        mapping(event.get("content")),
        edited_by(event),
        string(event, "sender"),
    )
    if edited is None or sender not in policy.allowed:
        return None
    # What a message relates to is not changed by an edit, whatever stands in there.
    new = {k: v for k, v in mapping(content.get("m.new_content")).items() if k != "m.relates_to"}
    if is_marked_by(content, sender) or is_marked_by(new, sender):
        return None
    said = event | {"content": new}
    read = read_event(said, room, account, policy, received_at, answers_us=answers_us)
    return replace(read, edits=edited, raw=bounded(event)) if read else None


def edited_by(event: Json) -> str | None:
    """The event that another one edits, by its own word."""
    relation = mapping(mapping(event.get("content")).get("m.relates_to"))
    edited = string(relation, "event_id")
    is_edit = string(relation, "rel_type") == "m.replace" and is_target(edited, event)
    return edited if is_edit else None


def is_target(event_id: str, event: Json) -> bool:
    """Whether an event can be about the event of this id."""
    return is_id(event_id) and event_id != string(event, "event_id")


log = logging.getLogger(__name__)


def redacted(events: Iterable[Json]) -> set[str]:
    """The ids of what is taken back by these events or among them, where it comes without its text.

    Our homeserver passes on only redactions that were allowed; whose they are does not matter.
    """
    found = {string(e, "event_id") if is_gone(e) else _target(e) for e in events}
    return {event_id for event_id in found if is_id(event_id)}


def redactor(event: Json) -> str:
    """Who took something back, as far as an event says it."""
    because = mapping(mapping(event.get("unsigned")).get("redacted_because"))
    return string(because, "sender") if is_gone(event) else string(event, "sender")


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


class Relations:
    """Does what is about earlier events, in the transaction that stores what a sync brought."""

    def __init__(self, stores: Stores, work: Rooms) -> None:
        self._stores = stores
        self._work = work

    async def redact(
        self, tx: Transaction, room_id: str, events: Collection[str], *, asks: bool = False
    ) -> set[str]:
        """Take back these events of a room; the conversations in which that changes something.

        `asks`: not the owner deleted them, so of the owner's pages it is only asked (M-082).
        """
        if not events:
            return set()
        edits = await self._stores.edits.take_back(tx, room_id, events)
        found = await self._stores.inbox.of_events(tx, room_id, events)
        conversations = {row.conversation_id for row in found}
        for conversation_id in sorted(conversations):
            rows = [row for row in found if row.conversation_id == conversation_id]
            log.info("taken back conversation=%s messages=%d", conversation_id, len(rows))
            conversations |= await self._take(tx, conversation_id, rows)
        texts = [*edits.values(), *(row.body for row in found if row.body)]
        gone = {*edits, *(row.event_id for row in found)}
        if gone:  # what it said may be gone already, and what was learnt from it not
            tell = await self._alone(tx, room_id)
            await owe_forgetting(self._stores, tx, gone, texts, tell=tell, asks=asks)
        originals = {row.edits for row in found if row.edits}
        return conversations | await self._unquote(tx, room_id, originals.union(events))

    async def _alone(self, tx: Transaction, room_id: str) -> str | None:
        """The conversation of a room, if one person has it."""
        held = await self._stores.conversations.of_room(tx, room_id)
        return held.id if held and held.scope.startswith(PERSON) else None

    async def unsay(self, tx: Transaction, room_id: str, events: Collection[str]) -> set[str]:
        """Keep nothing of answers of ours that were taken back; the conversations they were in."""
        changed, texts = set[str](), defaultdict[str, list[str]](list)
        for event_id in sorted(events):
            found = await self._stores.retractions.redacted(tx, room_id, event_id)
            if found is None:
                continue
            conversation = await self._stores.conversations.of_room(tx, room_id)
            for ours in found.said:
                texts[ours.meant_for or (conversation.scope if conversation else "")] += [ours.body]
            casts = {ours.cast_id for ours in found.said if ours.cast_id}
            casts |= await self._stop_growing(tx, found)
            for cast_id in sorted(casts):
                await self._stores.casts.unsay(tx, cast_id)
            changed |= await self._ask_anew(tx, found.conversation_id, sorted(casts))
        for scope, said in texts.items():
            if said:
                await owe_unsaying(self._stores, tx, scope, said)
        return changed

    async def _stop_growing(self, tx: Transaction, found: Retracted) -> set[str]:
        """End the answer that somebody took back while it grew, without a word; its casts (F-027)."""
        rows = [await self._stores.inbox.find(tx, event_id) for event_id in found.perhaps]
        growing = {str(row.edits) for row in rows if row and self._work.shows(row)}
        ended = list[str]()
        for event_id in sorted(growing | {found.growing} - {""}):
            ended += await self._stores.inbox.give_up_versions(tx, event_id, LAST)
        await self._work.take_back(tx, found.conversation_id, ended)
        return {*await self._stores.casts.of_events(tx, ended)}

    async def _unquote(self, tx: Transaction, room_id: str, events: Collection[str]) -> set[str]:
        """Take the text of these out of what was asked in reply to them; the conversations."""
        casts, changed = self._stores.casts, dict[str, list[str]]()
        for conversation_id, cast_id, said in await casts.quoting(tx, room_id, events):
            if (left := without_quote(said)) != said:
                await casts.cut(tx, cast_id, left)
                changed.setdefault(conversation_id, []).append(cast_id)
        found = [await self._ask_anew(tx, where, casts) for where, casts in changed.items()]
        return set().union(*found)

    async def _take(
        self, tx: Transaction, conversation_id: str, rows: Sequence[Waiting]
    ) -> set[str]:
        stores = self._stores
        events = await with_reports(stores, tx, {row.event_id for row in rows})
        await self._work.take_back(tx, conversation_id, events)
        # What nobody has heard of goes with all that was done for it; what was answered stays so.
        unheard = await stores.outbox.take_back(tx, events)
        await stores.retractions.take_drafts(tx, events)
        unheard += await stores.inbox.take_back(tx, events)
        touched = await stores.casts.take_back(tx, events)
        if unheard:
            await erase(tx, LOOM, came=await stores.casts.came_of(tx, unheard))
        came = await stores.casts.came_of(tx, events)
        await erase(tx, [SESSIONS, RECORDED], came=came)
        for row in rows:
            if not row.direct:
                touched += await self._cut(tx, row)
        return await self._ask_anew(tx, conversation_id, touched)

    async def _ask_anew(
        self, tx: Transaction, conversation_id: str, casts: Sequence[str]
    ) -> set[str]:
        """Less of these casts is in view: in which conversations of their room that may matter.

        Nothing is kept of what was asked from the first of them on.
        """
        beside = await self._stores.threads.beside(tx, conversation_id) if casts else set[str]()
        for each in beside:
            self._work.ask_anew(each)
        kept = await self._stores.model_calls.of_record(tx)
        shown = await self._stores.casts.from_first(tx, conversation_id, casts, kept)
        await erase(tx, [RECORDED], came=Came(casts=shown))
        return beside

    async def _cut(self, tx: Transaction, line: Waiting) -> list[str]:
        """Take a line out of what was said before the messages that follow it; their casts."""
        if line.sender_name and not line.body:  # it was taken back before
            return []
        found = await self._stores.casts.in_groups(tx, line.conversation_id, line.sender)
        after = None if line.body else await self._stores.inbox.followers(tx, line)
        changed = []
        for cast_id, event_id, said in found:
            left = without(said, line) if after is None or event_id in after else None
            if left is not None:
                await self._stores.casts.cut(tx, cast_id, left)
                changed.append(cast_id)
        return changed

    async def command(self, tx: Transaction, reaction: Reaction) -> Incoming | None:
        """The command that a reaction is to be taken as, if any; a reward is stored on the way.

        Taking a reaction back undoes nothing. A sign counts once on a reminder (T-063), and on what a
        night asks as long as it is open (M-079).
        """
        command, mark = reaction.command, reaction.mark
        ours = await self._stores.outbox.sent_event(tx, command.room_id, reaction.target)
        if mark == "stop":
            waits = await self._stores.inbox.is_open(tx, command.room_id, reaction.target)
            return command if ours is not None or waits else None
        if ours is None:
            return None
        if mark == "good" or mark == "bad":
            value: Reward = 1 if mark == "good" else -1
            if ours.cast_id is not None:
                sender, event_id = command.sender, command.event_id
                await self._stores.rewards.add(tx, ours.cast_id, value, sender, event_id)
            return None
        by_owner = is_owner(command.origin)
        task_id = await self._stores.occurrences.answer(tx, ours.id, mark, by_owner=by_owner)
        if task_id is not None:
            return replace(command, body=f"/tasks {mark} {task_id}")
        item = await asked_by(tx, ours.id) if mark in ANSWERS else None
        return replace(command, body=f"/night {ANSWERS[mark]} {item.id}") if item else None

    async def answers_us(self, tx: Transaction, room_id: str, event: Json) -> bool:
        """Whether an event replies to something that we said, or edits a message that does."""
        target, edited = replied_to(event), edited_by(event)
        if edited is not None:
            found = await self._stores.inbox.find(tx, edited)
            target = found.replies_to if found else None
        if target is None:
            return False
        return await self._stores.outbox.sent_event(tx, room_id, target) is not None

    async def original(self, tx: Transaction, edit: Incoming) -> Waiting | None:
        """What an edit changes, when it is for us and its sender's own to change.

        It may still be locked, and whose it is be known only later. A line of a group is for us
        with the edit that addresses us (F-025).
        """
        found = await self._stores.inbox.find(tx, edit.edits or "")
        if found is None or (found.room_id, found.sender) != (edit.room_id, edit.sender):
            return None
        if found.state in ("locked", "untrusted"):
            return found
        if found.kind == "context":
            return found if edit.kind == "message" else None
        ours = found.state != "ignored" and found.edits is None
        return found if ours and found.kind in ("message", "command") else None

    async def wording(self, tx: Transaction, original: Waiting) -> str:
        """Return the current wording of a message, as far as its edits are known."""
        noted = await self._stores.edits.last(tx, original.event_id)
        answered = await self._stores.inbox.newest_version(tx, original.event_id)
        return noted or (answered or original).body

    async def is_redone(
        self, tx: Transaction, edit: Incoming, original: Waiting, seq: int | None
    ) -> bool:
        """Decide if an edit replaces the effect of a command, if there was any (F-049)."""
        then = (edit.body.split(maxsplit=1) or [""])[0].lower()
        can_be = original.word in REDONE or original.word not in NAMES  # that one did nothing
        if not original.kind == edit.kind == "command" or then not in REDONE or not can_be:
            return False
        newest = await self._stores.inbox.newest_message(tx, original.conversation_id, "command")
        if newest is None or edit.edits not in (newest.event_id, newest.edits):
            return False
        return seq is None or seq > newest.seq

    async def is_newest(
        self, tx: Transaction, edit: Incoming, original: Waiting, seq: int | None
    ) -> bool:
        """Whether an edit is answered: of the newest message (no command is), and a message itself.

        A line that did not address us has no answer that could be out of date: any may be.
        `seq` is its place if it has been waiting for its key; a later edit may be there by now.
        """
        conversation = original.conversation_id
        newest = await self._stores.inbox.newest_message(tx, conversation)
        is_newest = (
            newest is not None
            and edit.edits in (newest.event_id, newest.edits)
            and (seq is None or seq > newest.seq)
        )
        return (
            edit.kind == "message"
            and (is_newest or original.kind == "context")
            and original.received_at >= await self._stores.edits.since(tx, conversation)
            and not await self._stores.inbox.new_waits(tx, conversation, original.seq)
        )
