"""Due tasks: each is claimed, and its message enqueued, in one transaction (DESIGN §3, T-035).

due ─▶ claimed ─▶ outbox ─▶ sent ─▶ done           a reminder
             └──▶ a run of its own (runs.py)       an autonomous task
"""

import logging
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from wintermute.clock import Clock, ClockDoubt
from wintermute.conversation.state import Speaker
from wintermute.db import Transaction
from wintermute.loom.conversations import Conversation
from wintermute.mailbox.outbox import ANYBODY, TERMINAL, LateNote
from wintermute.stores import Stores
from wintermute.tasks.occurrences import LATE, Claim, Due, Occurrence, cause, claim, late_note
from wintermute.tasks.tasks import EVERYWHERE, OccurrenceState, complete
from wintermute.text import span
from wintermute.work.routing import TargetRooms
from wintermute.work.runner import catch_bugs

REMINDER = "\N{ALARM CLOCK} "
"""Beginning of every reminder (T-046)."""

DOUBTED = (
    "{waits}the clock of this machine is {by} where it should be; I trust it when the"
    " homeserver's clock agrees, or after ten minutes"
)
UNKNOWN = (
    "waits: the clock of this machine may be wrong; I trust it when the homeserver's clock"
    " agrees, or after ten minutes"
)
log = logging.getLogger(__name__)
BATCH = 500
"""Tasks per transaction: other writers need their turn."""
RELEASE_EVERY = timedelta(seconds=30)
"""Time between attempts to deliver reminders that had no room."""


def doubted(doubt: ClockDoubt) -> str:
    """Return why the schedule does not trust the machine's clock (F-015)."""
    if doubt.ahead is None:
        return UNKNOWN
    waits = "waits: " if doubt.waits else ""
    direction = "ahead of" if doubt.ahead > timedelta() else "behind"
    return DOUBTED.format(waits=waits, by=f"{span(abs(doubt.ahead))} {direction}")


class FiringResult(NamedTuple):
    """The conversations with something to send now, and the seconds until the next due task."""

    conversations: frozenset[str]
    seconds: float | None
    """From now; None: nothing is due."""


class StoredClaim(NamedTuple):
    """A claim as it is stored, with the conversation and the outbox row of its message."""

    claim: Claim
    state: OccurrenceState
    conversation_id: str
    outbox_id: str | None


class Firing:
    """Claims due tasks and enqueues their messages."""

    def __init__(self, stores: Stores, speaker: Speaker, clock: Clock) -> None:
        self._stores = stores
        self._speaker = speaker
        self._clock = clock
        self._released: float | None = None

    async def fire(self, since: datetime) -> FiringResult:
        """Claim all due tasks, and move refused messages to another room.

        `since`: the start of this program; a task that was due before it counts as missed.
        """
        conversations: set[str] = set()
        while True:
            async with self._stores.database.transaction() as tx:
                await self._retry_roomless(tx)
                conversations |= await self._move_refused(tx)
                found = await self._stores.occurrences.due(tx, BATCH)
                if found:
                    conversations |= await self._claim(tx, found, since)
                due = await self._stores.occurrences.next_due(tx)
                seconds = (due - self._clock.now()).total_seconds() if due else None
            if len(found) < BATCH:
                return FiringResult(frozenset(conversations), seconds)

    async def _retry_roomless(self, tx: Transaction) -> None:
        now = self._clock.monotonic()
        if self._released is None or now - self._released >= RELEASE_EVERY.total_seconds():
            self._released = now
            await self._stores.occurrences.release(tx)

    async def _deliveries(self, tx: Transaction) -> TargetRooms:
        return await TargetRooms.current(tx, self._stores, self._speaker)

    async def _move_refused(self, tx: Transaction) -> set[str]:
        """Move messages that one room refused to another. Returns the conversations to send in."""
        waiting = await self._stores.occurrences.undelivered(tx)
        if not waiting:
            return set()
        ids = [str(each.outbox_id) for each in waiting]
        unserved = None if self._speaker.serves(TERMINAL) else TERMINAL
        refused = await self._stores.outbox.undeliverable(tx, ids, unserved)
        undeliverable = [each for each in waiting if each.outbox_id in refused]
        if not undeliverable:
            return set()
        deliveries, conversations = await self._deliveries(tx), set()
        for each in undeliverable:
            task = await self._stores.tasks.find(tx, each.task_id, None)
            target = await deliveries.target_room(tx, task.scope, each.conversation_id)
            outbox_id = str(each.outbox_id)
            if target is not None and target.room_id != refused[outbox_id]:
                await self._stores.outbox.move(tx, outbox_id, target.id)
                await self._stores.occurrences.move(tx, each.seq, target.id)
                conversations.add(target.id)
        return conversations

    async def _claim(self, tx: Transaction, found: Sequence[Due], since: datetime) -> set[str]:
        deliveries = await self._deliveries(tx)
        claims = [each for due in found if (each := await self._claim_of(tx, due, since))]
        before = await self._stores.occurrences.claimed(tx, claims)
        before |= {each.due.task.id for each in claims if each.is_unreal(self._clock.now())}
        open_ = await self._stores.occurrences.open_of(tx, [each.due.task.id for each in claims])
        stored: list[StoredClaim] = []
        conversations: set[str] = set()
        held: list[str] = []
        for each in claims:
            task = each.due.task
            target = await deliveries.target_room(tx, task.scope, each.due.made_in)
            if target is None:
                held.append(task.id)
            elif task.id in before:
                continue
            elif task.id in open_:
                stored.append(await self._merge(tx, each, open_[task.id]))
            else:
                stored.append(await self._enqueue(tx, each, target))
                conversations.add(target.id)
        await self._stores.occurrences.hold(tx, held)
        await self._stores.occurrences.take(tx, stored)
        await self._stores.occurrences.advance(tx, [e for e in claims if e.due.task.id not in held])
        await complete(tx, before - open_.keys(), self._clock.now())
        if held:
            log.debug("no room for what is due tasks=%s", ",".join(held))
        return conversations

    async def _claim_of(self, tx: Transaction, due: Due, since: datetime) -> Claim | None:
        """Return the claim for a task. A task that runs into a bug is held, and the others go on."""

        async def compute() -> Claim:
            return claim(due, self._clock.now(), since, self._stores.tasks.zone)

        found = await catch_bugs(compute(), due.task.id)
        if found is None:
            await self._stores.occurrences.hold(tx, [due.task.id])
        return found

    async def _enqueue(self, tx: Transaction, each: Claim, target: Conversation) -> StoredClaim:
        task, zone = each.due.task, self._stores.tasks.zone
        log.info("due task=%s at=%s missed=%s", task.id, each.due_at.isoformat(), each.missed)
        if task.plan.mode != "reminder":
            return StoredClaim(each, "claimed", target.id, None)
        text, grace = REMINDER + task.content, timedelta(0) if each.missed else LATE
        now = self._clock.now() if each.missed else None
        late = LateNote(each.due_at + grace, late_note(each.due_at, each.missed, zone, now))
        outbox_id = await self._stores.outbox.enqueue(
            tx,
            target.id,
            text,
            kind="event",
            late=late,
            meant_for=ANYBODY if task.scope == EVERYWHERE else task.scope,
            cause=cause(task.id, each.due_at),
        )
        return StoredClaim(each, "claimed", target.id, outbox_id)

    async def _merge(self, tx: Transaction, each: Claim, open_: Occurrence) -> StoredClaim:
        """Let one message, or one run, count for all due moments until now (T-043, T-051)."""
        more = max(each.missed, 1)
        await self._stores.occurrences.add_missed(tx, open_.seq, more)
        if open_.outbox_id is not None:
            text = late_note(each.due_at, max(open_.missed, 1) + more, self._stores.tasks.zone)
            late = LateNote(open_.due_at, text)
            named = cause(each.due.task.id, each.due_at)
            await self._stores.outbox.relabel(tx, open_.outbox_id, late, named)
        return StoredClaim(each, "missed", open_.conversation_id, None)
