"""Keeps what is promised: looks at the tables whenever something may be due.

APScheduler only wakes us: it knows no tasks, the tables are the truth (DESIGN A-5).
"""

import asyncio
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

from apscheduler.schedulers.asyncio import AsyncIOScheduler
from apscheduler.triggers.base import BaseTrigger

from wintermute.clock import JUMP_SECONDS, CheckedClock, until_set
from wintermute.conversation.state import Speaker
from wintermute.schedule.firing import Fired, Firing, doubted
from wintermute.stores import Stores
from wintermute.work.runner import guarded

HEARTBEAT_SECONDS = 30
DUE = "due"
HEARTBEAT = "heartbeat"


class Delay(BaseTrigger):  # type: ignore[misc]  # APScheduler has no types
    """Fires once, so many seconds from when APScheduler first asks, by the clock it asks itself."""

    def __init__(self, seconds: float) -> None:
        self._pause = timedelta(seconds=seconds)

    def get_next_fire_time(self, previous: datetime | None, now: datetime) -> datetime | None:
        """The first moment to ring, and None after that."""
        return None if previous else now + self._pause


class Alarm:
    """One job for the next due moment, and a heartbeat in case that was wrong.

    APScheduler keeps them in memory. It asks the machine's own clock, which may not be believed:
    so it gets the seconds to wait, and looks again after a jump: `reset`.
    """

    def __init__(self, ring: Callable[[], None]) -> None:
        self._ring = ring
        self._scheduler = AsyncIOScheduler(
            timezone=UTC,
            job_defaults={"misfire_grace_time": None, "coalesce": True, "max_instances": 1},
        )

    @contextmanager
    def ticking(self) -> Iterator[None]:
        """At work until the block is left."""
        self._scheduler.start()
        try:
            self.reset()
            yield
        finally:
            self._scheduler.shutdown(wait=False)

    def reset(self) -> None:
        """Count the heartbeat from now, by whatever the clock says now."""
        self._scheduler.add_job(
            self._rings, "interval", seconds=HEARTBEAT_SECONDS, id=HEARTBEAT, replace_existing=True
        )
        self._scheduler.wakeup()

    def after(self, seconds: float | None) -> None:
        """Ring when so many have passed; None: nothing is due."""
        if seconds is not None:
            self._scheduler.add_job(self._rings, Delay(seconds), id=DUE, replace_existing=True)
        elif self._scheduler.get_job(DUE):
            self._scheduler.remove_job(DUE)

    async def _rings(self) -> None:
        """As a coroutine, so that it runs in the loop and in no thread of APScheduler's."""
        self._ring()


log = logging.getLogger(__name__)

LOOK_SECONDS = 2.0
"""How soon a change of the tables is noticed, whoever made it (T-040)."""
KEEP_SECONDS = 3600.0
"""How often it is noted that the clock was believed: a wait counted from there is exact enough."""


class Promises:
    """The one task that fires what is due; everything else only changes rows."""

    def __init__(
        self,
        stores: Stores,
        firing: Firing,
        rung: Sequence[asyncio.Event],
        speaker: Speaker,
        clock: CheckedClock,
    ) -> None:
        """`rung`: whenever something has changed, and there may be work to begin."""
        self._stores = stores
        self._firing = firing
        self._rung = rung
        self._speaker = speaker
        self._clock = clock
        self._bell = asyncio.Event()
        self._since = clock.now()
        self._ahead = self._offset()
        self._recounted = False
        self._kept = -math.inf

    async def run(self) -> None:
        """Fire until cancelled, beginning with what was missed."""
        async with self._stores.database.transaction() as tx:
            moved = await self._stores.tasks.rezone(tx)
        if moved:
            log.info("schedules moved to zone=%s tasks=%s", self._stores.tasks.zone.key, moved)
        alarm = Alarm(self._bell.set)
        with alarm.ticking():
            while True:
                self._bell.clear()
                version = await self._stores.database.version()
                fired = await guarded(self.fire(), "schedule")
                await self._note(fired)
                await self._keep_mark()
                alarm.after(fired.seconds if fired else None)
                for bell in self._rung:
                    bell.set()
                await self._changed(version, alarm, fired)

    async def fire(self) -> Fired:
        """Look once at what is due, and let it be said; nothing while the time is not known."""
        doubt = self._clock.doubt
        if doubt is not None and doubt.waits:
            return Fired(frozenset(), None)
        self._since = min(self._since, self._clock.now())  # else a clock that was set back is late
        if self._has_jumped or not self._recounted:
            await self._recount()
        fired = await self._firing.fire(self._since)
        for conversation_id in sorted(fired.conversations):
            self._speaker.speak(conversation_id)
        return fired

    async def _note(self, fired: Fired | None) -> None:
        if fired is None:
            await self._stores.health.note("schedule", "fail", "internal error, see the log")
        elif (doubt := self._clock.doubt) is not None:
            await self._stores.health.note("schedule", "warn", doubted(doubt))
        else:
            await self._stores.health.note("schedule", "ok", "wakes up for due tasks")

    async def _recount(self) -> None:
        """The clock has jumped, or nobody has looked since the start whether it had."""
        if self._has_jumped:
            log.warning("clock jumped seconds=%.0f", self._offset() - self._ahead)
        async with self._stores.database.transaction() as tx:
            counted = await self._stores.tasks.recount(tx)
        if counted:
            log.info("schedules counted anew tasks=%s", counted)
        self._ahead, self._recounted, self._kept = self._offset(), True, -math.inf

    async def _keep_mark(self) -> None:
        """For a start in which the clock may be wrong."""
        mark = self._clock.last
        if mark is None or self._clock.doubt is not None or mark.steady < self._kept + KEEP_SECONDS:
            return
        await self._stores.clock_marks.keep(mark)
        self._kept = mark.steady

    async def _changed(self, version: int, alarm: Alarm, fired: Fired | None) -> None:
        """Wait until something is due, the tables have changed, or the clock has jumped."""
        doubts, seconds = self._clock.doubt is not None, fired.seconds if fired else None
        due = math.inf if seconds is None else self._clock.monotonic() + seconds
        while not self._bell.is_set():
            await until_set(self._bell, self._clock, LOOK_SECONDS)
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
        """Where the clock is beside one that never jumps, in seconds."""
        return self._clock.now().timestamp() - self._clock.monotonic()
