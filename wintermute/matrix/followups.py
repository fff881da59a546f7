"""What a reaction, an edit, a reply or a redaction is to us, by what we know of the event it is about.

X-026, L-054, F-025, F-027.
"""

from dataclasses import dataclass, replace

from wintermute.db import Transaction
from wintermute.loom.edits import Edits
from wintermute.loom.rewards import Reward, Rewards
from wintermute.mailbox.inbox import Inbox, Waiting
from wintermute.mailbox.outbox import Outbox, Spoken
from wintermute.matrix.inbox import replied_to
from wintermute.matrix.redactions import Redactions
from wintermute.matrix.relations import Reaction, edited_by
from wintermute.messages import Incoming, Json
from wintermute.tasks.occurrences import Occurrences


@dataclass(frozen=True, slots=True)
class FollowUps:
    """Judges what is about earlier events within the transaction that stores what a sync brought."""

    inbox: Inbox
    outbox: Outbox
    rewards: Rewards
    edits: Edits
    occurrences: Occurrences
    redactions: Redactions

    async def command(self, tx: Transaction, reaction: Reaction) -> Incoming | None:
        """The command that a reaction is to be taken as, if any; a reward is stored on the way.

        Taking a reaction back undoes nothing. A sign counts once on a reminder (T-063).
        """
        command, mark = reaction.command, reaction.mark
        ours = await self.outbox.spoken(tx, command.room_id, reaction.target)
        if mark == "stop":
            waits = await self.inbox.is_open(tx, command.room_id, reaction.target)
            return command if ours is not None or waits else None
        if ours is None:
            return None
        if mark == "good" or mark == "bad":
            await self._reward(tx, ours, 1 if mark == "good" else -1, command)
            return None
        by_owner = command.origin == "owner"
        task_id = await self.occurrences.answer(tx, ours.id, mark, by_owner=by_owner)
        return replace(command, body=f"/tasks {mark} {task_id}") if task_id else None

    async def _reward(self, tx: Transaction, ours: Spoken, value: Reward, given: Incoming) -> None:
        if ours.cast_id is not None:
            await self.rewards.add(tx, ours.cast_id, value, given.sender, given.event_id)

    async def answers_us(self, tx: Transaction, room_id: str, event: Json) -> bool:
        """Whether an event replies to something that we said, or edits a message that does."""
        target, edited = replied_to(event), edited_by(event)
        if edited is not None:
            found = await self.inbox.find(tx, edited)
            target = found.replies_to if found else None
        return target is not None and await self.outbox.spoken(tx, room_id, target) is not None

    async def original(self, tx: Transaction, edit: Incoming) -> Waiting | None:
        """What an edit changes, when it is for us and its sender's own to change.

        It may still be locked, and whose it is be known only later. A line of a group is for us
        with the edit that addresses us (F-025).
        """
        found = await self.inbox.find(tx, edit.edits or "")
        if found is None or (found.room_id, found.sender) != (edit.room_id, edit.sender):
            return None
        if found.state in ("locked", "untrusted"):
            return found
        if found.kind == "context":
            return found if edit.kind == "message" else None
        ours = found.state != "ignored" and found.edits is None
        return found if ours and found.kind in ("message", "command") else None

    async def is_newest(
        self, tx: Transaction, edit: Incoming, original: Waiting, seq: int | None
    ) -> bool:
        """Whether an edit is answered: of the newest message (no command is), and a message itself.

        A line that did not address us has no answer that could be out of date: any may be.
        `seq` is its place if it has been waiting for its key; a later edit may be there by now.
        """
        conversation = original.conversation_id
        newest = await self.inbox.newest_message(tx, conversation)
        is_newest = (
            newest is not None
            and edit.edits in (newest.event_id, newest.edits)
            and (seq is None or seq > newest.seq)
        )
        return (
            edit.kind == "message"
            and (is_newest or original.kind == "context")
            and original.received_at >= await self.edits.since(tx, conversation)
            and not await self.inbox.new_waits(tx, conversation, original.seq)
        )

    async def note(self, tx: Transaction, edit: Incoming, original: Waiting) -> None:
        """Keep an edit that is not answered."""
        await self.edits.note(
            tx,
            edit.event_id,
            original.event_id,
            original.conversation_id,
            edit.sender,
            edit.body,
        )
