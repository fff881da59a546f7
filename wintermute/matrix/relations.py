"""Edits, reactions, replies and redactions: the effect of events that refer to an earlier event.

X-026, L-054, F-025, F-027. The pure functions here never raise an error for malformed events. A
redacted message ends the work begun for it, and its text is erased.
"""

import logging
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Literal, NamedTuple

from wintermute.changes.nights import asked_by
from wintermute.commands.chat import NAMES
from wintermute.conversation.dispatcher import without, without_quote
from wintermute.conversation.rooms import REDONE, Rooms
from wintermute.db import Transaction
from wintermute.db.eraser import DerivedFrom, erase
from wintermute.forgetting.forget_jobs import enqueue_forgetting, enqueue_forgetting_answers
from wintermute.forgetting.forgetting import with_reports
from wintermute.llm.calls import RECORDED
from wintermute.loom.casts import FOLDS, INTENTS, LOOM
from wintermute.loom.conversations import Reward
from wintermute.loom.sub_sessions import SESSIONS
from wintermute.mailbox.inbox import LAST, InboxRow
from wintermute.mailbox.retractions import RedactedRows
from wintermute.matrix.inbox import (
    Account,
    Policy,
    RoomView,
    bounded,
    has_tag_of,
    is_id,
    read_event,
    replied_to,
    string,
)
from wintermute.messages import PERSON, Incoming, Json, mapping
from wintermute.owner import is_owner
from wintermute.stores import Stores
from wintermute.tasks.tasks import REMINDER_REACTIONS, ReminderAnswer

ReactionMeaning = Literal["good", "bad", "stop"] | ReminderAnswer
MARKS: Mapping[str, ReactionMeaning] = {
    "\N{THUMBS UP SIGN}": "good",
    "\N{THUMBS DOWN SIGN}": "bad",
    "\N{OCTAGONAL SIGN}": "stop",
    **REMINDER_REACTIONS,
}
ANSWERS: Mapping[ReactionMeaning, str] = {"done": "yes", "cancel": "no"}
"""The answer that a reaction gives to a question of the night."""
VARIATIONS = dict.fromkeys((0xFE0E, 0xFE0F, *range(0x1F3FB, 0x1F400)))
"""Presentation selectors and skin tones, which are ignored in reactions."""
log = logging.getLogger(__name__)


class Reaction(NamedTuple):
    """A reaction to an earlier event, and the command that it may become."""

    target: str
    meaning: ReactionMeaning
    command: Incoming
    """The command for a stop reaction; for other reactions its text is replaced."""


def meaning(key: str) -> ReactionMeaning | None:
    """Return the meaning of a reaction key; None if it has none for us."""
    return MARKS.get(key.translate(VARIATIONS))


def read_reaction(
    source: object, room: RoomView, account: Account, policy: Policy, received_at: datetime
) -> Reaction | None:
    """Parse an allowed person's reaction; None if it has no meaning for us (X-026)."""
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
    """Parse the new text of an allowed person's edit, as if it were sent now (L-054).

    Edits of bots are left out: they stream their answers, and each step would be answered (X-004).
    `answers_us`: the original message does, which an edit does not change.
    """
    event = mapping(source)
    content, edited, sender = (
        mapping(event.get("content")),
        edited_by(event),
        string(event, "sender"),
    )
    if edited is None or sender not in policy.allowed:
        return None
    # An edit cannot change what the original message relates to.
    new = {k: v for k, v in mapping(content.get("m.new_content")).items() if k != "m.relates_to"}
    if has_tag_of(content, sender) or has_tag_of(new, sender):
        return None
    said = event | {"content": new}
    read = read_event(said, room, account, policy, received_at, answers_us=answers_us)
    return replace(read, edits=edited, raw=bounded(event)) if read else None


def edited_by(event: Json) -> str | None:
    """Return the event that this event edits; None for another event."""
    relation = mapping(mapping(event.get("content")).get("m.relates_to"))
    edited = string(relation, "event_id")
    is_edit = string(relation, "rel_type") == "m.replace" and is_target(edited, event)
    return edited if is_edit else None


def is_target(event_id: str, event: Json) -> bool:
    """Check if an id is valid and not the event's own."""
    return is_id(event_id) and event_id != string(event, "event_id")


def redacted(events: Iterable[Json]) -> set[str]:
    """Return the ids of events redacted by these events, and of those that came without their text.

    The homeserver passes on only allowed redactions, so their senders are not checked.
    """
    found = {string(e, "event_id") if is_gone(e) else _target(e) for e in events}
    return {event_id for event_id in found if is_id(event_id)}


def redactor(event: Json) -> str:
    """Return the sender of a redaction, or of the redaction that an event names."""
    because = mapping(mapping(event.get("unsigned")).get("redacted_because"))
    return string(because, "sender") if is_gone(event) else string(event, "sender")


def is_gone(event: Json) -> bool:
    """Check if an event came without its text, because it was redacted before."""
    return "redacted_because" in mapping(event.get("unsigned"))


def _target(event: Json) -> str:
    """Return the target of a redaction: top-level up to room version 10, in its content since then.

    Servers write both. If they differ, the allowed one is unknown and "" is returned.
    """
    if string(event, "type") != "m.room.redaction":
        return ""
    named = {string(event, "redacts"), string(mapping(event.get("content")), "redacts")} - {""}
    return named.pop() if len(named) == 1 else ""


class Relations:
    """Applies edits, reactions and redactions in the transaction that stores the sync."""

    def __init__(self, stores: Stores, work: Rooms) -> None:
        self._stores = stores
        self._rooms = work

    async def redact(
        self, tx: Transaction, room_id: str, events: Collection[str], *, asks: bool = False
    ) -> set[str]:
        """Erase redacted messages of a room. Returns the conversations that change.

        `asks`: somebody else than the owner redacted them, so changes of the owner's pages are
        only proposed (M-082).
        """
        if not events:
            return set()
        edits = await self._stores.edits.retract_events(tx, room_id, events)
        found = await self._stores.inbox.of_events(tx, room_id, events)
        conversations = {row.conversation_id for row in found}
        for conversation_id in sorted(conversations):
            rows = [row for row in found if row.conversation_id == conversation_id]
            log.info("redacted conversation=%s messages=%d", conversation_id, len(rows))
            conversations |= await self._erase(tx, conversation_id, rows)
        texts = [*edits.values(), *(row.body for row in found if row.body)]
        erased_ids = {*edits, *(row.event_id for row in found)}
        if erased_ids:  # the text may be erased already, but not the memories from it
            tell = await self._direct_conversation(tx, room_id)
            await enqueue_forgetting(self._stores, tx, erased_ids, texts, tell=tell, asks=asks)
        originals = {row.edits for row in found if row.edits}
        return conversations | await self._remove_quotes(tx, room_id, originals.union(events))

    async def _direct_conversation(self, tx: Transaction, room_id: str) -> str | None:
        """Return the conversation of a room if it is a direct chat."""
        held = await self._stores.conversations.of_room(tx, room_id)
        return held.id if held and held.scope.startswith(PERSON) else None

    async def erase_answers(
        self, tx: Transaction, room_id: str, events: Collection[str]
    ) -> set[str]:
        """Erase our own redacted answers. Returns the changed conversations."""
        changed, texts = set[str](), defaultdict[str, list[str]](list)
        for event_id in sorted(events):
            found = await self._stores.retractions.erase_redacted(tx, room_id, event_id)
            if found is None:
                continue
            conversation = await self._stores.conversations.of_room(tx, room_id)
            for ours in found.messages:
                texts[ours.meant_for or (conversation.scope if conversation else "")] += [ours.body]
            casts = {ours.cast_id for ours in found.messages if ours.cast_id}
            casts |= await self._stop_growing(tx, found)
            for cast_id in sorted(casts):
                await self._stores.casts.retract_answer(tx, cast_id)
            changed |= await self._ask_anew(tx, found.conversation_id, sorted(casts))
        for scope, said in texts.items():
            if said:
                await enqueue_forgetting_answers(self._stores, tx, scope, said)
        return changed

    async def _stop_growing(self, tx: Transaction, found: RedactedRows) -> set[str]:
        """Stop the answers whose drafts were redacted, without a notice. Returns their casts (F-027)."""
        rows = [await self._stores.inbox.find(tx, event_id) for event_id in found.maybe_growing]
        growing = {str(row.edits) for row in rows if row and self._rooms.shows(row)}
        ended = list[str]()
        for event_id in sorted(growing | {found.message_id} - {""}):
            ended += await self._stores.inbox.give_up_versions(tx, event_id, LAST)
        await self._rooms.retract_events(tx, found.conversation_id, ended)
        return {*await self._stores.casts.of_events(tx, ended)}

    async def _remove_quotes(
        self, tx: Transaction, room_id: str, events: Collection[str]
    ) -> set[str]:
        """Remove the text of these events from messages that quoted them. Returns the changed conversations."""
        casts, changed = self._stores.casts, dict[str, list[str]]()
        for conversation_id, cast_id, said in await casts.quoting(tx, room_id, events):
            if (left := without_quote(said)) != said:
                await casts.cut_context(tx, cast_id, left)
                changed.setdefault(conversation_id, []).append(cast_id)
        found = [await self._ask_anew(tx, where, casts) for where, casts in changed.items()]
        return set().union(*found)

    async def _erase(
        self, tx: Transaction, conversation_id: str, rows: Sequence[InboxRow]
    ) -> set[str]:
        stores = self._stores
        events = await with_reports(stores, tx, {row.event_id for row in rows})
        await self._rooms.retract_events(tx, conversation_id, events)
        # Unanswered messages go with the work done for them; answered ones stay answered.
        unheard = await stores.outbox.drop_answers(tx, events)
        await stores.retractions.redact_drafts(tx, events)
        unheard += await stores.inbox.erase_events(tx, events)
        came = await stores.casts.came_of(tx, events)
        erased = await erase(tx, [INTENTS, FOLDS, SESSIONS, RECORDED], came=came)
        touched = [*came.casts] if any("casts" in row for row in erased.rows) else []
        if unheard:
            await erase(tx, LOOM, came=await stores.casts.came_of(tx, unheard))
        for row in rows:
            if not row.direct:
                touched += await self._remove_line(tx, row)
        return await self._ask_anew(tx, conversation_id, touched)

    async def _ask_anew(
        self, tx: Transaction, conversation_id: str, casts: Sequence[str]
    ) -> set[str]:
        """Erase recordings that contain these casts, and have the model asked again with less context.

        Returns the conversations of the room whose context changes.
        """
        beside = (
            await self._stores.threads.room_conversations(tx, conversation_id)
            if casts
            else set[str]()
        )
        for each in beside:
            self._rooms.ask_anew(each)
        kept = await self._stores.model_calls.of_record(tx)
        shown = await self._stores.casts.from_first(tx, conversation_id, casts, kept)
        await erase(tx, [RECORDED], came=DerivedFrom(casts=shown))
        return beside

    async def _remove_line(self, tx: Transaction, line: InboxRow) -> list[str]:
        """Remove a redacted line from the context of later messages. Returns the changed casts."""
        if line.sender_name and not line.body:  # it was redacted before
            return []
        found = await self._stores.casts.in_groups(tx, line.conversation_id, line.sender)
        after = None if line.body else await self._stores.inbox.next_message_versions(tx, line)
        changed = []
        for cast_id, event_id, said in found:
            left = without(said, line) if after is None or event_id in after else None
            if left is not None:
                await self._stores.casts.cut_context(tx, cast_id, left)
                changed.append(cast_id)
        return changed

    async def command(self, tx: Transaction, reaction: Reaction) -> Incoming | None:
        """Return the command of a reaction, if it has one; a rating is stored as a reward.

        Removing a reaction undoes nothing. A reaction to a reminder counts once (T-063); one to a
        question of the night counts while that is open (M-079).
        """
        command, mark = reaction.command, reaction.meaning
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
        """Check if an event replies to a message of ours, or edits a message that does."""
        target, edited = replied_to(event), edited_by(event)
        if edited is not None:
            found = await self._stores.inbox.find(tx, edited)
            target = found.replies_to if found else None
        if target is None:
            return False
        return await self._stores.outbox.sent_event(tx, room_id, target) is not None

    async def original(self, tx: Transaction, edit: Incoming) -> InboxRow | None:
        """Find the original of an edit, if it is for us and of the same sender.

        It may still be locked, so that its real sender is not known yet. A line of a group becomes
        a message to us if the edit addresses us (F-025).
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

    async def wording(self, tx: Transaction, original: InboxRow) -> str:
        """Return the current wording of a message, as far as its edits are known."""
        noted = await self._stores.edits.last(tx, original.event_id)
        answered = await self._stores.inbox.newest_version(tx, original.event_id)
        return noted or (answered or original).body

    async def is_redone(
        self, tx: Transaction, edit: Incoming, original: InboxRow, seq: int | None
    ) -> bool:
        """Decide if an edit replaces the effect of a command, if there was any (F-049)."""
        then = (edit.body.split(maxsplit=1) or [""])[0].lower()
        can_be = (
            original.first_word in REDONE or original.first_word not in NAMES
        )  # unknown: had no effect
        if not original.kind == edit.kind == "command" or then not in REDONE or not can_be:
            return False
        newest = await self._stores.inbox.newest_message(tx, original.conversation_id, "command")
        if newest is None or edit.edits not in (newest.event_id, newest.edits):
            return False
        return seq is None or seq > newest.seq

    async def is_newest(
        self, tx: Transaction, edit: Incoming, original: InboxRow, seq: int | None
    ) -> bool:
        """Check if an edit is to be answered: it edits the newest message and is a message itself.

        An edited line that did not address us has no answer yet, so it need not be the newest.
        `seq`: the edit's row if it waited for its key; a later edit may be stored by now.
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
            and not await self._stores.inbox.has_waiting_new(tx, conversation, original.seq)
        )
