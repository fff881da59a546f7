"""A clock that jumps: whoever sleeps on it has slept at once."""

import asyncio
from datetime import UTC, datetime, timedelta

NOON = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)


class FakeClock:
    """Implements `wintermute.clock.Clock` without waiting."""

    def __init__(self, start: datetime = NOON) -> None:
        self._start = start
        self._passed = 0.0
        self.slept: list[float] = []
        """Every wait that was asked for, in order."""

    def now(self) -> datetime:
        return self._start + timedelta(seconds=self._passed)

    def monotonic(self) -> float:
        return self._passed

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.advance(max(0.0, seconds))
        await asyncio.sleep(0)

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self._passed += seconds
