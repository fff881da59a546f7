"""What is due is claimed, and its message promised, in one transaction (DESIGN §3, T-035).

due ─▶ claimed ─▶ outbox ─▶ sent ─▶ done           a reminder
             └──▶ a run of its own (runs.py)       an autonomous task

What rooms are told about tasks, without a model.
"""

import logging
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from wintermute.clock import Clock, Doubt
from wintermute.conversation.state import Speaker
from wintermute.db import Transaction
from wintermute.loom.conversations import Conversation
from wintermute.mailbox.outbox import ANYBODY, TERMINAL, Late
from wintermute.stores import Stores
from wintermute.tasks.occurrences import LATE, Claim, Due, Occurrence, cause, claim, mark
from wintermute.tasks.tasks import EVERYWHERE, OccurrenceState, complete
from wintermute.text import span
from wintermute.work.deliveries import Deliveries
from wintermute.work.runner import guarded

REMINDER = "\N{ALARM CLOCK} "
"""What a reminder begins with (T-046)."""

DOUBTED = (
    "{waits}the clock of this machine is {by} where it should be; I trust it when the"
    " homeserver's clock agrees, or after ten minutes"
)
UNKNOWN = (
    "waits: the clock of this machine may be wrong; I trust it when the homeserver's clock"
    " agrees, or after ten minutes"
)


def doubted(doubt: Doubt) -> str:
    """Why the schedule does not go by the machine's clock (F-015)."""
    if doubt.ahead is None:
        return UNKNOWN
    waits = "waits: " if doubt.waits else ""
    way = "ahead of" if doubt.ahead > timedelta() else "behind"
    return DOUBTED.format(waits=waits, by=f"{span(abs(doubt.ahead))} {way}")


log = logging.getLogger(__name__)

BATCH = 500
"""Tasks of one transaction: others want to write too."""
RELEASE_EVERY = timedelta(seconds=30)
"""How often it is looked whether there is a room by now."""


class Fired(NamedTuple):
    """What a look at the tables led to: who has something to say now, and when to look again."""

    conversations: frozenset[str]
    seconds: float | None
    """From now; None: nothing is due."""


class KeptClaim(NamedTuple):
    """A claim as it is kept."""

    claim: Claim
    state: OccurrenceState
    conversation_id: str
    outbox_id: str | None


class Firing:
    """Claims what is due and promises its messages."""

    def __init__(self, stores: Stores, speaker: Speaker, clock: Clock) -> None:
        self._stores = stores
        self._speaker = speaker
        self._clock = clock
        self._released: float | None = None

    async def fire(self, since: datetime) -> Fired:
        """Claim all that is due, and find another room for what one does not take.

        `since`: when this program began; what was due before was missed.
        """
        told: set[str] = set()
        while True:
            async with self._stores.database.transaction() as tx:
                await self._look_again(tx)
                told |= await self._move_refused(tx)
                found = await self._stores.occurrences.due(tx, BATCH)
                if found:
                    told |= await self._claim(tx, found, since)
                due = await self._stores.occurrences.next_due(tx)
                seconds = (due - self._clock.now()).total_seconds() if due else None
            if len(found) < BATCH:
                return Fired(frozenset(told), seconds)

    async def _look_again(self, tx: Transaction) -> None:
        now = self._clock.monotonic()
        if self._released is None or now - self._released >= RELEASE_EVERY.total_seconds():
            self._released = now
            await self._stores.occurrences.release(tx)

    async def _homes(self, tx: Transaction) -> Deliveries:
        return await Deliveries.now(tx, self._stores, self._speaker)

    async def _move_refused(self, tx: Transaction) -> set[str]:
        """What one room has refused is said in another; conversations with something more to say."""
        waiting = await self._stores.occurrences.undelivered(tx)
        if not waiting:
            return set()
        ids = [str(each.outbox_id) for each in waiting]
        unserved = None if self._speaker.serves(TERMINAL) else TERMINAL
        refused = await self._stores.outbox.refused(tx, ids, unserved)
        lost = [each for each in waiting if each.outbox_id in refused]
        if not lost:
            return set()
        homes, told = await self._homes(tx), set()
        for each in lost:
            task = await self._stores.tasks.find(tx, each.task_id, None)
            home = await homes.home(tx, task.scope, each.conversation_id)
            outbox_id = str(each.outbox_id)
            if home is not None and home.room_id != refused[outbox_id]:
                await self._stores.outbox.move(tx, outbox_id, home.id)
                await self._stores.occurrences.move(tx, each.seq, home.id)
                told.add(home.id)
        return told

    async def _claim(self, tx: Transaction, found: Sequence[Due], since: datetime) -> set[str]:
        homes = await self._homes(tx)
        claims = [each for due in found if (each := await self._judged(tx, due, since))]
        before = await self._stores.occurrences.claimed(tx, claims)
        before |= {each.due.task.id for each in claims if each.is_unreal(self._clock.now())}
        open_ = await self._stores.occurrences.open_of(tx, [each.due.task.id for each in claims])
        kept: list[KeptClaim] = []
        told: set[str] = set()
        held: list[str] = []
        for each in claims:
            task = each.due.task
            home = await homes.home(tx, task.scope, each.due.made_in)
            if home is None:
                held.append(task.id)
            elif task.id in before:
                continue
            elif task.id in open_:
                kept.append(await self._coalesced(tx, each, open_[task.id]))
            else:
                kept.append(await self._promised(tx, each, home))
                told.add(home.id)
        await self._stores.occurrences.hold(tx, held)
        await self._stores.occurrences.take(tx, kept)
        await self._stores.occurrences.advance(tx, [e for e in claims if e.due.task.id not in held])
        await complete(tx, before - open_.keys(), self._clock.now())
        if held:
            log.debug("no room for what is due tasks=%s", ",".join(held))
        return told

    async def _judged(self, tx: Transaction, due: Due, since: datetime) -> Claim | None:
        """The claim for a task; one that meets a bug is passed over, and the others are not."""

        async def judged() -> Claim:
            return claim(due, self._clock.now(), since, self._stores.tasks.zone)

        found = await guarded(judged(), due.task.id)
        if found is None:
            await self._stores.occurrences.hold(tx, [due.task.id])
        return found

    async def _promised(self, tx: Transaction, each: Claim, home: Conversation) -> KeptClaim:
        task, zone = each.due.task, self._stores.tasks.zone
        log.info("due task=%s at=%s missed=%s", task.id, each.due_at.isoformat(), each.missed)
        if task.plan.mode != "reminder":
            return KeptClaim(each, "claimed", home.id, None)
        text, grace = REMINDER + task.content, timedelta(0) if each.missed else LATE
        now = self._clock.now() if each.missed else None
        late = Late(each.due_at + grace, mark(each.due_at, each.missed, zone, now))
        outbox_id = await self._stores.outbox.enqueue(
            tx,
            home.id,
            text,
            kind="event",
            late=late,
            meant_for=ANYBODY if task.scope == EVERYWHERE else task.scope,
            cause=cause(task.id, each.due_at),
        )
        return KeptClaim(each, "claimed", home.id, outbox_id)

    async def _coalesced(self, tx: Transaction, each: Claim, open_: Occurrence) -> KeptClaim:
        """One message, or one run, for all that fell due meanwhile (T-043, T-051)."""
        more = max(each.missed, 1)
        await self._stores.occurrences.stands_for(tx, open_.seq, more)
        if open_.outbox_id is not None:
            text = mark(each.due_at, max(open_.missed, 1) + more, self._stores.tasks.zone)
            late = Late(open_.due_at, text)
            named = cause(each.due.task.id, each.due_at)
            await self._stores.outbox.relabel(tx, open_.outbox_id, late, named)
        return KeptClaim(each, "missed", open_.conversation_id, None)
