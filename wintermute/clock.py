"""Time is asked of a Clock, so that a test can hold it still (DESIGN A-5)."""

import asyncio
import time
from datetime import UTC, datetime
from typing import Protocol


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
