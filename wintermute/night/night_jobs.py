"""Jobs of the night and of its report: scheduling, catching up and running.

A night is enqueued once per local date, at its hour. A missed one is caught up when nobody speaks. The process
that runs a night holds the lock of the data folder, and first finishes interrupted nights.
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
from wintermute.mailbox.inbox import InboxRow
from wintermute.night.daily_report import DailyReport
from wintermute.night.pipeline import (
    NightPipeline,
    Progress,
    ignore_progress,
    is_night_running,
    night_lock,
)
from wintermute.stores import Stores
from wintermute.tasks.due import instant
from wintermute.work.jobs import JobDone, JobPutOff

NIGHT = "night"
ON_TIME = timedelta(minutes=10)
"""Delay after its hour up to which a night is not late."""
SILENCE = timedelta(minutes=10)
"""Time without a message before a missed night is caught up."""
DAY = timedelta(days=1)
BUSY = timedelta(seconds=30)
"""Delay of the next try while another process runs a night."""


@dataclass(frozen=True, slots=True)
class NightTime:
    """Local date of a night, and the moment when it begins."""

    day: date
    at: datetime


def newest_night(now: datetime, begins: time, zone: ZoneInfo) -> NightTime:
    """Return the last night that has begun by `now`, by the clock of `zone`.

    An hour that the clock skips means the first instant after it; of a repeated hour the first one counts
    (T-029, T-030).
    """
    today = now.astimezone(zone).date()
    nights = (
        NightTime(day, _at(day, begins, zone)) for day in (today, today - DAY, today - 2 * DAY)
    )
    return next(night for night in nights if night.at <= now)


def next_night(night: NightTime, begins: time, zone: ZoneInfo) -> NightTime:
    """Return the night after this one."""
    day = night.day + DAY
    return NightTime(day, _at(day, begins, zone))


def _at(day: date, begins: time, zone: ZoneInfo) -> datetime:
    return instant(datetime.combine(day, begins), zone)


async def finish_interrupted(
    stores: Stores, pipeline: NightPipeline, but: str = "", progress: Progress = ignore_progress
) -> list[Night]:
    """Finish all interrupted nights `but` one. The caller holds `alone`."""
    await stores.placing.finish()
    running = await stores.nights.running(stores.database)
    return [await pipeline.run_night(left, progress) for left in running if left.id != but]


class NightScheduler:
    """Enqueues nights in time, and runs them."""

    def __init__(
        self,
        stores: Stores,
        pipeline: NightPipeline,
        report: DailyReport,
        dreaming: Dreaming,
        clock: CheckedClock,
    ) -> None:
        self._stores = stores
        self._pipeline = pipeline
        self._report = report
        self._enabled = dreaming.enabled
        self._start_time = time(dreaming.hour, dreaming.minute)
        self._clock = clock
        self._missed: tuple[date, datetime] | None = None  # the date, and the time it was noticed

    async def enqueue_due(self, tx: Transaction) -> datetime | None:
        """Enqueue interrupted nights and the newest one, if it has not begun; return the time of the next look."""
        again = await self._enqueue_interrupted(tx)
        return min(filter(None, (again, await self._enqueue_newest(tx))), default=None)

    async def _enqueue_newest(self, tx: Transaction) -> datetime | None:
        doubt = self._clock.doubt
        if not self._enabled or (doubt is not None and doubt.waits):
            return None
        now, zone = self._clock.now(), self._stores.tasks.zone
        night = newest_night(now, self._start_time, zone)
        tomorrow = next_night(night, self._start_time, zone).at
        if await self._stores.nights.was_started(night.day, tx):
            return tomorrow
        if now - night.at <= ON_TIME:
            await self._enqueue(tx, night.day, "schedule")
            return tomorrow
        return await self._catch_up(tx, night, now) or tomorrow

    async def _enqueue_interrupted(self, tx: Transaction) -> datetime | None:
        """Enqueue a job for an interrupted night, for its command may have been killed as well.

        Returns the time of the next look while another process runs a night.
        """
        if not await self._stores.nights.running(tx):
            return None
        if is_night_running(self._stores.data_dir):
            return self._clock.now() + BUSY
        await self._stores.jobs.enqueue_due(tx, NIGHT)
        return None

    async def _catch_up(self, tx: Transaction, night: NightTime, now: datetime) -> datetime | None:
        """Enqueue a missed night or return when to look again; None if there was nothing to tidy."""
        spoken = await self._stores.conversations.first(tx)
        changed = await self._stores.changes.first(tx)  # such as an import before anybody spoke
        if min(filter(None, (spoken, changed)), default=now) > night.at:
            return None
        if self._missed is None or self._missed[0] != night.day or self._missed[1] > now:
            self._missed = (night.day, now)
        last = await self._stores.inbox.last_said()
        next_idle = max(self._missed[1], last or self._missed[1]) + SILENCE
        if next_idle > now:
            return next_idle
        await self._enqueue(tx, night.day, "late")
        return None

    async def _enqueue(self, tx: Transaction, day: date, why: Occasion) -> None:
        args = {"date": day.isoformat(), "why": why}
        await self._stores.jobs.enqueue(tx, NIGHT, day.isoformat(), "", args)

    async def run_job(self, job: Job) -> JobDone | JobPutOff:
        """Run the night of a job to its end; a job without a reason only finishes interrupted nights."""
        why: Occasion | None = job.args.get("why")
        async with AsyncExitStack() as stack:
            try:
                await stack.enter_async_context(night_lock(self._stores.data_dir))
            except StoreBusy as busy:
                return JobPutOff(self._clock.now() + BUSY, str(busy))
            await finish_interrupted(self._stores, self._pipeline, job.progress.get("night", ""))
            if why is None or not (self._enabled or why == "asked" or "night" in job.progress):
                return JobDone()  # nights were turned off after it was enqueued
            night = await self._begin(job, why)
            if night is not None and night.state == "running":  # otherwise another process ended it
                night = await self._pipeline.run_night(night)
        if night is None or "conversation" not in job.args:
            return JobDone()
        return JobDone(
            partial(self._report.report_to, night=night, conversation_id=job.args["conversation"])
        )

    async def _begin(self, job: Job, why: Occasion) -> Night | None:
        """Begin or resume the night of a job; None if another process has begun that date's."""
        if name := job.progress.get("night"):
            return await self._stores.nights.named(name)
        async with self._stores.database.transaction() as tx:
            night = await self._stores.nights.begin(tx, date.fromisoformat(job.args["date"]), why)
            if night is not None:
                await self._stores.jobs.save_progress(tx, job.id, {"night": night.id})
        return night


async def enqueue_requested_night(
    stores: Stores, tx: Transaction, row: InboxRow, now: datetime
) -> bool:
    """Enqueue a night that a person asked for, with a report to them; False if one is enqueued already."""
    if await stores.jobs.is_pending(tx, NIGHT, ""):
        return False
    day = now.astimezone(stores.tasks.zone).date()
    args = {"date": day.isoformat(), "why": "asked", "conversation": row.conversation_id}
    return await stores.jobs.enqueue(tx, NIGHT, row.event_id, "", args)
