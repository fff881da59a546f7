"""What a reaction or an edit does, by what we know of the event it is about (X-026, L-054)."""

from dataclasses import dataclass

from wintermute.db import Transaction
from wintermute.loom.edits import Edits
from wintermute.loom.rewards import Reward, Rewards
from wintermute.mailbox.inbox import Inbox, Waiting
from wintermute.mailbox.outbox import Outbox
from wintermute.matrix.relations import Mark, Reaction
from wintermute.messages import Incoming

REWARDS: dict[Mark, Reward] = {"good": 1, "bad": -1}


@dataclass(frozen=True, slots=True)
class FollowUps:
    """Judges reactions and edits within the transaction that stores what a sync brought."""

    inbox: Inbox
    outbox: Outbox
    rewards: Rewards
    edits: Edits

    async def stops(self, tx: Transaction, reaction: Reaction) -> bool:
        """Whether a reaction is to be taken as `/stop`; a reward is stored on the way.

        Taking a reaction back undoes neither.
        """
        room_id, event_id = reaction.stop.room_id, reaction.stop.event_id
        ours = await self.outbox.spoken(tx, room_id, reaction.target)
        if reaction.mark == "stop":
            return ours is not None or await self.inbox.is_open(tx, room_id, reaction.target)
        if ours is not None and ours.cast_id is not None:
            value, sender = REWARDS[reaction.mark], reaction.stop.sender
            await self.rewards.add(tx, ours.cast_id, value, sender, event_id)
        return False

    async def original(self, tx: Transaction, edit: Incoming) -> Waiting | None:
        """What an edit changes, when it is for us and its sender's own to change.

        It may still be locked, and whose it is be known only later.
        """
        found = await self.inbox.find(tx, edit.edits or "")
        if found is None or (found.room_id, found.sender) != (edit.room_id, edit.sender):
            return None
        if found.state == "locked":
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
