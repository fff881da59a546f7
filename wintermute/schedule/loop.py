"""The loop that fires due tasks: it reads the tables whenever something may be due.

APScheduler only wakes it and knows no tasks; the tables are the truth (DESIGN A-5).
"""

import asyncio
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

from apscheduler.schedulers.asyncio import AsyncIOScheduler
from apscheduler.triggers.base import BaseTrigger

from wintermute.clock import JUMP_SECONDS, CheckedClock, wait_for_event
from wintermute.conversation.state import Speaker
from wintermute.schedule.firing import Firing, FiringResult, doubted
from wintermute.stores import Stores
from wintermute.work.runner import catch_bugs

HEARTBEAT_SECONDS = 30
DUE = "due"
HEARTBEAT = "heartbeat"
log = logging.getLogger(__name__)
LOOK_SECONDS = 2.0
"""Longest time until a change of the tables by another process is noticed (T-040)."""
KEEP_SECONDS = 3600.0
"""Time between records of the trusted clock; a wait counted from the last one is exact enough."""


class Delay(BaseTrigger):  # type: ignore[misc]  # APScheduler has no types
    """A trigger that fires once, after the given seconds on the clock that APScheduler itself uses."""

    def __init__(self, seconds: float) -> None:
        self._pause = timedelta(seconds=seconds)

    def get_next_fire_time(self, previous: datetime | None, now: datetime) -> datetime | None:
        """Return the time to fire, and None after that."""
        return None if previous else now + self._pause


class Alarm:
    """One APScheduler job for the next due moment, and a heartbeat in case that was computed wrongly.

    APScheduler keeps them in memory. It uses the machine's clock, which may be wrong. So it gets
    seconds to wait, not times, and `reset` starts the heartbeat anew after a jump.
    """

    def __init__(self, notify: Callable[[], None]) -> None:
        self._notify = notify
        self._scheduler = AsyncIOScheduler(
            timezone=UTC,
            job_defaults={"misfire_grace_time": None, "coalesce": True, "max_instances": 1},
        )

    @contextmanager
    def ticking(self) -> Iterator[None]:
        """Run the scheduler until the block is left."""
        self._scheduler.start()
        try:
            self.reset()
            yield
        finally:
            self._scheduler.shutdown(wait=False)

    def reset(self) -> None:
        """Start the heartbeat anew from the current time of the clock."""
        self._scheduler.add_job(
            self._wake, "interval", seconds=HEARTBEAT_SECONDS, id=HEARTBEAT, replace_existing=True
        )
        self._scheduler.wakeup()

    def after(self, seconds: float | None) -> None:
        """Wake up after this many seconds; None: nothing is due."""
        if seconds is not None:
            self._scheduler.add_job(self._wake, Delay(seconds), id=DUE, replace_existing=True)
        elif self._scheduler.get_job(DUE):
            self._scheduler.remove_job(DUE)

    async def _wake(self) -> None:
        """Wake up. A coroutine, so that APScheduler runs it in the event loop, not in a thread."""
        self._notify()


class ScheduleLoop:
    """The one task that fires due tasks; all other code only changes rows."""

    def __init__(
        self,
        stores: Stores,
        firing: Firing,
        rung: Sequence[asyncio.Event],
        speaker: Speaker,
        clock: CheckedClock,
    ) -> None:
        """`rung`: events to set when something has changed and there may be work to begin."""
        self._stores = stores
        self._firing = firing
        self._wakeups = rung
        self._speaker = speaker
        self._clock = clock
        self._wakeup = asyncio.Event()
        self._since = clock.now()
        self._ahead = self._offset()
        self._recounted = False
        self._recorded_at = -math.inf

    async def run(self) -> None:
        """Fire due tasks until cancelled, beginning with missed ones."""
        async with self._stores.database.transaction() as tx:
            moved = await self._stores.tasks.rezone(tx)
        if moved:
            log.info("schedules moved to zone=%s tasks=%s", self._stores.tasks.zone.key, moved)
        alarm = Alarm(self._wakeup.set)
        with alarm.ticking():
            while True:
                self._wakeup.clear()
                version = await self._stores.database.version()
                fired = await catch_bugs(self.fire(), "schedule")
                await self._note(fired)
                await self._record_clock()
                alarm.after(fired.seconds if fired else None)
                for wakeup in self._wakeups:
                    wakeup.set()
                await self._wait_for_change(version, alarm, fired)

    async def fire(self) -> FiringResult:
        """Claim due tasks and have their messages sent; do nothing while the clock is in doubt."""
        doubt = self._clock.doubt
        if doubt is not None and doubt.waits:
            return FiringResult(frozenset(), None)
        self._since = min(self._since, self._clock.now())  # the clock may have been set back
        if self._has_jumped or not self._recounted:
            await self._recount()
        fired = await self._firing.fire(self._since)
        for conversation_id in sorted(fired.conversations):
            self._speaker.speak(conversation_id)
        return fired

    async def _note(self, fired: FiringResult | None) -> None:
        if fired is None:
            await self._stores.health.note("schedule", "fail", "internal error, see the log")
        elif (doubt := self._clock.doubt) is not None:
            await self._stores.health.note("schedule", "warn", doubted(doubt))
        else:
            await self._stores.health.note("schedule", "ok", "wakes up for due tasks")

    async def _recount(self) -> None:
        """Recompute the schedules after a jump of the clock, and once after the start."""
        if self._has_jumped:
            log.warning("clock jumped seconds=%.0f", self._offset() - self._ahead)
        async with self._stores.database.transaction() as tx:
            counted = await self._stores.tasks.recount(tx)
        if counted:
            log.info("schedules recomputed tasks=%s", counted)
        self._ahead, self._recounted, self._recorded_at = self._offset(), True, -math.inf

    async def _record_clock(self) -> None:
        """Record the trusted clock, for a start at which the clock may be wrong."""
        mark = self._clock.last_trusted
        if (
            mark is None
            or self._clock.doubt is not None
            or mark.monotonic < self._recorded_at + KEEP_SECONDS
        ):
            return
        await self._stores.trusted_readings.keep(mark)
        self._recorded_at = mark.monotonic

    async def _wait_for_change(
        self, version: int, alarm: Alarm, fired: FiringResult | None
    ) -> None:
        """Wait until something is due, the tables have changed, or the clock has jumped."""
        doubts, seconds = self._clock.doubt is not None, fired.seconds if fired else None
        due = math.inf if seconds is None else self._clock.monotonic() + seconds
        while not self._wakeup.is_set():
            await wait_for_event(self._wakeup, self._clock, LOOK_SECONDS)
            if self._has_jumped:
                alarm.reset()
                return
            if (self._clock.doubt is not None) != doubts or self._clock.monotonic() >= due:
                return
            if await self._stores.database.version() != version:
                return

    @property
    def _has_jumped(self) -> bool:
        return abs(self._offset() - self._ahead) > JUMP_SECONDS

    def _offset(self) -> float:
        """Return the seconds between the clock and one that never jumps."""
        return self._clock.now().timestamp() - self._clock.monotonic()
