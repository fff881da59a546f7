"""A clock that jumps: whoever sleeps on it has slept at once."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta

from wintermute.clock import SystemClock

WITHIN = 60.0
"""Seconds of real time after which a test gives up waiting, wherever it waits: a busy machine needs
more than one would think, and what comes ends the wait at once.
"""
SYSTEM = SystemClock()
NOON = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)

TICK = 0.05


@contextmanager
def cheap(seconds: float) -> Iterator[None]:
    """A block that costs at most so many seconds of the processor: a busy machine changes nothing."""
    began = time.process_time()
    yield
    cost = time.process_time() - began
    assert cost < seconds, f"{cost:.2f} s of the processor"


@asynccontextmanager
async def promptly(seconds: float) -> AsyncIterator[Callable[[], float]]:
    """A block that has so many seconds, else TimeoutError, and is given what has passed of them.

    They are counted in short sleeps beside it: where the machine is busy, those come late as well.
    """
    ticks = 0

    async def count() -> None:
        nonlocal ticks
        while ticks * TICK < seconds:
            await asyncio.sleep(TICK)
            ticks += 1
        bound.reschedule(loop.time())

    loop = asyncio.get_running_loop()
    async with asyncio.timeout(None) as bound:
        counting = loop.create_task(count())
        try:
            yield lambda: ticks * TICK
        finally:
            counting.cancel()


class FakeClock:
    """Implements `wintermute.clock.Clock` without waiting."""

    def __init__(self, start: datetime = NOON) -> None:
        self._start = start
        self._passed = 0.0
        self.ahead = timedelta(0)
        """How far somebody has set what it shows from how it has run."""
        self.slept: list[float] = []
        """Every wait that was asked for, in order."""

    def now(self) -> datetime:
        return self._start + timedelta(seconds=self._passed) + self.ahead

    def monotonic(self) -> float:
        return self._passed

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.advance(max(0.0, seconds))
        await asyncio.sleep(0)

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self._passed += seconds


class QuickClock:
    """The clock of the machine, but who sleeps on it sleeps a twentieth of that."""

    def now(self) -> datetime:
        return SYSTEM.now()

    def monotonic(self) -> float:
        return SYSTEM.monotonic()

    async def sleep(self, seconds: float) -> None:
        await SYSTEM.sleep(seconds / 20)


class HeldClock(FakeClock):
    """A clock that stands still until a test moves it; sleepers wait for that."""

    def __init__(self, start: datetime = NOON) -> None:
        super().__init__(start)
        self._moved = asyncio.Condition()
        self._asleep: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        until = self.monotonic() + seconds
        async with self._moved:
            self._asleep.append(until)
            self._moved.notify_all()
            try:
                await self._moved.wait_for(lambda: self.monotonic() >= until)
            finally:
                self._asleep.remove(until)

    async def move(self, seconds: float) -> None:
        """Let time pass and wake whose time has come."""
        async with self._moved:
            self.advance(seconds)
            self._moved.notify_all()

    async def asleep(self, count: int = 1) -> None:
        """Wait until so many sleep whose time has not come: who is only about to wake does not."""
        async with asyncio.timeout(WITHIN), self._moved:
            await self._moved.wait_for(
                lambda: sum(until > self.monotonic() for until in self._asleep) >= count
            )


async def until(true: Callable[[], bool]) -> None:
    """Wait for what neither a client nor the log tells of."""
    for _ in range(int(WITHIN / 0.02)):
        if true():
            return
        await asyncio.sleep(0.02)
    raise AssertionError("waited in vain")


async def until_so(true: Callable[[], Awaitable[bool]]) -> None:
    """Look until something became true that nobody tells of."""
    async with asyncio.timeout(WITHIN):
        while not await true():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


def utc(text: str) -> datetime:
    """Read a moment in UTC."""
    return datetime.fromisoformat(text).replace(tzinfo=UTC)
