"""Time is asked of a Clock, so that a test can hold it still (DESIGN A-5)."""

import asyncio
import time
from datetime import UTC, datetime
from typing import Protocol
from zoneinfo import ZoneInfo

DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


class Clock(Protocol):
    """What the program may know about time."""

    def now(self) -> datetime:
        """The present moment, aware, in UTC."""
        ...

    def monotonic(self) -> float:
        """Seconds that never go back; only differences mean something."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        ...


class SystemClock:
    """The clock of the machine."""

    def now(self) -> datetime:
        return datetime.now(UTC)  # noqa: TID251  the one place that may ask

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def stamp(moment: datetime) -> str:
    """How a moment is stored: UTC, ISO 8601, microseconds, so that text order is time order."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds")


def moment(text: str) -> datetime:
    """The moment that `stamp` stored."""
    return datetime.fromisoformat(text)


def spoken(when: datetime, zone: ZoneInfo) -> str:
    """Day, date, time and zone, as in `Wednesday, 2025-01-15 14:32 CET` (P-007, T-017)."""
    # strftime would name the day in the language of the machine.
    local = when.astimezone(zone)
    seconds = f":{local:%S}" if local.second else ""
    return f"{DAYS[local.weekday()]}, {local:%Y-%m-%d %H:%M}{seconds} {local.tzname()}"


async def until_rung(bell: asyncio.Event, clock: Clock, seconds: float) -> None:
    """Wait until the bell rings, or for so many seconds if nobody rings it."""
    async with asyncio.TaskGroup() as group:
        nap = group.create_task(clock.sleep(max(seconds, 0)))
        ring = group.create_task(bell.wait())
        await asyncio.wait({nap, ring}, return_when=asyncio.FIRST_COMPLETED)
        nap.cancel()
        ring.cancel()
