"""Wakes us when something is due. It knows no tasks: the tables are the truth (DESIGN A-5)."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

from apscheduler.schedulers.asyncio import AsyncIOScheduler

HEARTBEAT_SECONDS = 30
DUE = "due"
HEARTBEAT = "heartbeat"


class Alarm:
    """One job for the next due moment, and a heartbeat in case that was wrong.

    APScheduler keeps them in memory. It asks the machine's own clock, which may not be believed:
    so it is told how long to wait, and after a jump to look again: `reset`.
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
            due = datetime.now(UTC) + timedelta(seconds=seconds)  # noqa: TID251  its own clock
            self._scheduler.add_job(
                self._rings, "date", run_date=due, id=DUE, replace_existing=True
            )
        elif self._scheduler.get_job(DUE):
            self._scheduler.remove_job(DUE)

    async def _rings(self) -> None:
        """As a coroutine, so that it runs in the loop and in no thread of APScheduler's."""
        self._ring()
