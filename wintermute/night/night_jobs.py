"""When a night runs, and when the morning tells of it: two kinds of owed work.

A night is owed once per local date, from its hour on; one that was missed is caught up when nobody
speaks. Whoever works at a night holds the lock of the data folder, and first ends what a kill left.
"""

from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from functools import partial
from zoneinfo import ZoneInfo

from wintermute.changes.nights import Night, Occasion
from wintermute.clock import CheckedClock
from wintermute.config.schema import Dreaming
from wintermute.db import Transaction
from wintermute.errors import StoreBusy
from wintermute.jobs import Job
from wintermute.mailbox.inbox import Waiting
from wintermute.night.morning import Morning
from wintermute.night.tidying import Progress, Tidying, alone, is_at_work, unwatched
from wintermute.stores import Stores
from wintermute.tasks.due import instant
from wintermute.work.jobs import JobDone, JobPutOff

NIGHT = "night"
ON_TIME = timedelta(minutes=10)
"""So long after its hour a night is not late."""
SILENCE = timedelta(minutes=10)
"""Without a word of anybody before a night is caught up."""
DAY = timedelta(days=1)
BUSY = timedelta(seconds=30)
"""Until it is tried again, while another process is at work."""


@dataclass(frozen=True, slots=True)
class NightTime:
    """The night of a local date, and when it begins."""

    day: date
    at: datetime


def newest_night(now: datetime, begins: time, zone: ZoneInfo) -> NightTime:
    """The last night whose hour has come by `now`, by the clock of `zone`.

    An hour that the clock leaves out is the first instant after it; of one that comes twice it is
    the first (T-029, T-030).
    """
    today = now.astimezone(zone).date()
    nights = (
        NightTime(day, _at(day, begins, zone)) for day in (today, today - DAY, today - 2 * DAY)
    )
    return next(night for night in nights if night.at <= now)


def next_night(night: NightTime, begins: time, zone: ZoneInfo) -> NightTime:
    """The one after it."""
    day = night.day + DAY
    return NightTime(day, _at(day, begins, zone))


def _at(day: date, begins: time, zone: ZoneInfo) -> datetime:
    return instant(datetime.combine(day, begins), zone)


async def finish_left(
    stores: Stores, tidying: Tidying, but: str = "", progress: Progress = unwatched
) -> list[Night]:
    """Work at what a kill left of nights until their ends, within `alone`: all of them `but` one."""
    await stores.placing.finish()
    running = await stores.nights.running(stores.database)
    return [await tidying.tidy(left, progress) for left in running if left.id != but]


class NightWatch:
    """Owes nights in time, and works at them."""

    def __init__(
        self,
        stores: Stores,
        tidying: Tidying,
        morning: Morning,
        dreaming: Dreaming,
        clock: CheckedClock,
    ) -> None:
        self._stores = stores
        self._tidying = tidying
        self._morning = morning
        self._enabled = dreaming.enabled
        self._begins = time(dreaming.hour, dreaming.minute)
        self._clock = clock
        self._missed: tuple[date, datetime] | None = None  # and when that was noticed

    async def owe(self, tx: Transaction) -> datetime | None:
        """Owe what was left half, and the newest night, if it was not begun; when to look again."""
        again = await self._owe_left(tx)
        return min(filter(None, (again, await self._owe_newest(tx))), default=None)

    async def _owe_newest(self, tx: Transaction) -> datetime | None:
        doubt = self._clock.doubt
        if not self._enabled or (doubt is not None and doubt.waits):
            return None
        now, zone = self._clock.now(), self._stores.tasks.zone
        night = newest_night(now, self._begins, zone)
        tomorrow = next_night(night, self._begins, zone).at
        if await self._stores.nights.has_been(night.day, tx):
            return tomorrow
        if now - night.at <= ON_TIME:
            await self._owe(tx, night.day, "schedule")
            return tomorrow
        return await self._catch_up(tx, night, now) or tomorrow

    async def _owe_left(self, tx: Transaction) -> datetime | None:
        """A command was killed as well, perhaps, and nobody else goes on with it.

        When to look again while somebody is at work.
        """
        if not await self._stores.nights.running(tx):
            return None
        if is_at_work(self._stores.data_dir):
            return self._clock.now() + BUSY
        await self._stores.jobs.owe(tx, NIGHT)
        return None

    async def _catch_up(self, tx: Transaction, night: NightTime, now: datetime) -> datetime | None:
        """Owe a missed night, or when to look again; None: there was nothing to tidy then."""
        spoken = await self._stores.conversations.first(tx)
        changed = await self._stores.changes.first(tx)  # an import, where nobody has spoken yet
        if min(filter(None, (spoken, changed)), default=now) > night.at:
            return None
        if self._missed is None or self._missed[0] != night.day or self._missed[1] > now:
            self._missed = (night.day, now)
        last = await self._stores.inbox.last_said()
        quiet = max(self._missed[1], last or self._missed[1]) + SILENCE
        if quiet > now:
            return quiet
        await self._owe(tx, night.day, "late")
        return None

    async def _owe(self, tx: Transaction, day: date, why: Occasion) -> None:
        args = {"date": day.isoformat(), "why": why}
        await self._stores.jobs.enqueue(tx, NIGHT, day.isoformat(), "", args)

    async def work(self, job: Job) -> JobDone | JobPutOff:
        """Begin the night that is owed, or go on with it; without a reason only with what was left."""
        why: Occasion | None = job.args.get("why")
        async with AsyncExitStack() as stack:
            try:
                await stack.enter_async_context(alone(self._stores.data_dir))
            except StoreBusy as busy:
                return JobPutOff(self._clock.now() + BUSY, str(busy))
            await finish_left(self._stores, self._tidying, job.progress.get("night", ""))
            if why is None or not (self._enabled or why == "asked" or "night" in job.progress):
                return JobDone()  # perhaps it was owed before it was turned off
            night = await self._begun(job, why)
            if night is not None and night.state == "running":  # else another process ended it
                night = await self._tidying.tidy(night)
        if night is None or "conversation" not in job.args:
            return JobDone()
        return JobDone(
            partial(self._morning.report_to, night=night, conversation_id=job.args["conversation"])
        )

    async def _begun(self, job: Job, why: Occasion) -> Night | None:
        """The night of a job; None: that of its date was begun by another."""
        if name := job.progress.get("night"):
            return await self._stores.nights.named(name)
        async with self._stores.database.transaction() as tx:
            night = await self._stores.nights.begin(tx, date.fromisoformat(job.args["date"]), why)
            if night is not None:
                await self._stores.jobs.went_on(tx, job.id, {"night": night.id})
        return night


async def owe_asked(stores: Stores, tx: Transaction, row: Waiting, now: datetime) -> bool:
    """Owe a night because somebody asks for it, who is told there how it went; False: one is owed."""
    if await stores.jobs.is_owed(tx, NIGHT, ""):
        return False
    day = now.astimezone(stores.tasks.zone).date()
    args = {"date": day.isoformat(), "why": "asked", "conversation": row.conversation_id}
    return await stores.jobs.enqueue(tx, NIGHT, row.event_id, "", args)
