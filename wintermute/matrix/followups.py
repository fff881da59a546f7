"""What a reaction, an edit or a redaction does, by what we know of its event (X-026, L-054, F-027)."""

from dataclasses import dataclass, replace

from wintermute.db import Transaction
from wintermute.loom.edits import Edits
from wintermute.loom.rewards import Reward, Rewards
from wintermute.mailbox.inbox import Inbox, Waiting
from wintermute.mailbox.outbox import Outbox, Spoken
from wintermute.matrix.redactions import Redactions
from wintermute.matrix.relations import Reaction
from wintermute.messages import Incoming
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

    async def original(self, tx: Transaction, edit: Incoming) -> Waiting | None:
        """What an edit changes, when it is for us and its sender's own to change.

        It may still be locked, and whose it is be known only later.
        """
        found = await self.inbox.find(tx, edit.edits or "")
        if found is None or (found.room_id, found.sender) != (edit.room_id, edit.sender):
            return None
        if found.state in ("locked", "untrusted"):
            return found
        ours = found.state != "ignored" and found.edits is None
        return found if ours and found.kind in ("message", "command") else None

    async def is_newest(
        self, tx: Transaction, edit: Incoming, original: Waiting, seq: int | None
    ) -> bool:
        """Whether an edit is answered: of the newest message (no command is), and a message itself.

        `seq` is its place if it has been waiting for its key; a later edit may be there by now.
        """
        conversation = original.conversation_id
        newest = await self.inbox.newest_message(tx, conversation)
        return (
            edit.kind == "message"
            and newest is not None
            and edit.edits in (newest.event_id, newest.edits)
            and (seq is None or seq > newest.seq)
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
