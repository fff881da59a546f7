"""Time is asked of a Clock, so that a test can hold it still (DESIGN A-5)."""

import asyncio
import logging
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Protocol
from zoneinfo import ZoneInfo

log = logging.getLogger(__name__)

LONGEST_NAP = 30.0
"""The loop's own clock stands still while a laptop sleeps, so nobody sleeps on it for longer."""
JUMP_SECONDS = 5.0
"""How far a clock may be from where it should be before it has jumped."""
DRIFT = 0.001
"""How uneven a clock may run that is being put right, as a part of the time that has passed."""
AGREES = timedelta(minutes=1)
"""How far the homeserver's clock may be from one that it vouches for."""
DOUBTED_SECONDS = 600.0
"""How long a clock that nobody vouches for is doubted."""
DOUBT_PAUSE = 2.0
STEADY = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""Counts sleep: on Linux that is the time since the boot, on macOS the other one does."""
BOOT = Path("/proc/sys/kernel/random/boot_id")

UNIVERSAL = frozenset({"UTC", "UCT", "Universal", "Zulu", "GMT", "Greenwich"})
"""Names of the zone of machines that live nowhere."""
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


def host_zone(environment: Mapping[str, str], machine: Path = Path("/etc")) -> str:
    """Name the time zone of the machine; UTC where it names none that is known."""
    found = [environment.get("TZ", "").removeprefix(":")]
    if (localtime := machine / "localtime").is_symlink():
        found.append(str(localtime.readlink()))
    with suppress(OSError, UnicodeDecodeError):
        found.append((machine / "timezone").read_text("utf-8").strip())
    for name in (each.rpartition("zoneinfo/")[2] for each in found):
        with suppress(KeyError, ValueError, OSError):
            return "UTC" if ZoneInfo(name).key.rpartition("/")[2] in UNIVERSAL else name
    return "UTC"


def zone_doubt(zone: str, host: str, now: datetime) -> str:
    """Tell what may be wrong with a zone, and what to do; a machine that lives by UTC doubts none."""
    days = [now + timedelta(days=30 * month) for month in range(12)]
    there, here = (
        [day.astimezone(ZoneInfo(name)).utcoffset() for day in days] for name in (zone, host)
    )
    if len({*there}) == 1 and there[0] and (zone.isupper() or "Etc/" in zone):
        return f"; {zone} has no summer time -> set timezone to a place, such as America/New_York"
    if host == "UTC" or there == here:
        return ""
    return f"; this machine is in {host} -> set timezone to it, if you are there as well"


class Clock(Protocol):
    """What the program may know about time."""

    def now(self) -> datetime:
        """The present moment, aware, in UTC."""
        ...

    def monotonic(self) -> float:
        """Seconds that never jump and count sleep; only differences within a boot mean something."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        ...


class SystemClock:
    """The clock of the machine."""

    def __init__(self, longest_nap: float = LONGEST_NAP) -> None:
        self._longest_nap = longest_nap

    def now(self) -> datetime:
        return datetime.now(UTC)  # noqa: TID251  the one place that may ask

    def monotonic(self) -> float:
        return time.clock_gettime(STEADY)

    async def sleep(self, seconds: float) -> None:
        until = self.monotonic() + seconds
        while True:
            await asyncio.sleep(min(seconds, self._longest_nap))
            seconds = until - self.monotonic()
            if seconds <= 0:
                return


@dataclass(frozen=True, slots=True)
class ClockReading:
    """What a clock showed when the steady clock showed this."""

    wall: datetime
    steady: float

    def at(self, steady: float) -> datetime:
        """What it shows by now, if it has run evenly since."""
        return self.wall + timedelta(seconds=steady - self.steady)


@dataclass(frozen=True, slots=True)
class Doubt:
    """Why the machine's clock is not believed.

    `ahead`: of where it should be; None if nobody can tell. `waits`: nor does anybody vouch for
    where it should be, so that nothing can be said to be due.
    """

    ahead: timedelta | None
    waits: bool


def believable(
    now: ClockReading, last: ClockReading | None, server: ClockReading | None, doubted: float
) -> bool:
    """Whether what the machine's clock shows is taken for the time.

    `last`: when it was believed the last time; None: not since the machine was started. `server`:
    the homeserver's clock, if it was heard; it never vouches for anything but what ours shows.
    `doubted`: for how many seconds ours has been.
    """
    if last is not None:
        allowed = JUMP_SECONDS + DRIFT * abs(now.steady - last.steady)
        if abs((now.wall - last.at(now.steady)).total_seconds()) <= allowed:
            return True
    return vouches(server, now) or doubted >= DOUBTED_SECONDS


def vouches(server: ClockReading | None, ours: ClockReading) -> bool:
    """Whether the homeserver's clock agrees with that."""
    return server is not None and abs(server.at(ours.steady) - ours.wall) <= AGREES


class CheckedClock:
    """The clock of the machine; while it is not believed, time goes on as evenly as it did before.

    A clock may be set wrong for seconds, when it starts or is corrected. Nothing may be said, nor
    thrown away for its age, because of a time that never was (F-015).
    """

    def __init__(
        self, machine: Clock, last: ClockReading | None = None, *, asks: bool = False
    ) -> None:
        """`last`: when it was believed before. `asks`: a homeserver can tell; else the beginning is
        believed, for who sits at the machine has no other clock either.
        """
        self._machine = machine
        self._last = last
        self._server: ClockReading | None = None
        self._since: float | None = None
        if last is None and not asks:
            self._last = self._seen()

    @property
    def last(self) -> ClockReading | None:
        """When the machine's clock was believed the last time."""
        return self._last

    @property
    def doubt(self) -> Doubt | None:
        """Why it is not believed now; None: it is."""
        seen = self._judged()
        if self._since is None:
            return None
        if self._last is None:
            return Doubt(None, waits=True)
        due = self._last.at(seen.steady)
        ours = ClockReading(due, seen.steady)
        return Doubt(seen.wall - due, waits=not vouches(self._server, ours))

    def now(self) -> datetime:
        seen = self._judged()
        return seen.wall if self._last is None else self._last.at(seen.steady)

    def monotonic(self) -> float:
        return self._machine.monotonic()

    async def sleep(self, seconds: float) -> None:
        await self._machine.sleep(seconds)

    async def believed(self) -> None:
        """Wait until it is: before, nothing is thrown away for its age."""
        while self.doubt is not None:
            await self.sleep(DOUBT_PAUSE)

    def heard(self, date: datetime) -> None:
        """What the homeserver's clock shows."""
        self._server = ClockReading(date, self.monotonic())

    def by_ours(self, sent_at: datetime) -> datetime:
        """When something was sent, if the homeserver's clock is behind: it is no older for that."""
        now = ClockReading(self.now(), self.monotonic())
        if self._server is None or vouches(self._server, now):
            return sent_at
        behind = max(timedelta(), now.wall - self._server.at(now.steady))
        return max(sent_at, min(sent_at + behind, now.wall))

    def _seen(self) -> ClockReading:
        return ClockReading(self._machine.now(), self._machine.monotonic())

    def _judged(self) -> ClockReading:
        seen = self._seen()
        doubted = 0.0 if self._since is None else seen.steady - self._since
        if believable(seen, self._last, self._server, doubted):
            if self._since is not None:
                self._log("clock believed ahead_seconds=%s", seen)
            self._last, self._since = seen, None
        elif self._since is None:
            self._since = seen.steady
            self._log("clock doubted ahead_seconds=%s", seen)
        return seen

    def _log(self, text: str, seen: ClockReading) -> None:
        if self._last is None:  # as after each start of the machine
            log.info(text, "unknown")
        else:
            ahead = seen.wall - self._last.at(seen.steady)
            log.warning(text, round(ahead.total_seconds()))


def boot_id() -> str:
    """Which start of the machine this is; "" where it does not say."""
    try:
        return BOOT.read_text().strip()
    except OSError:
        return ""


def stamp(moment: datetime) -> str:
    """How a moment is stored: UTC, ISO 8601, microseconds, so that text order is time order."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds")


def moment(text: str) -> datetime:
    """The moment that `stamp` stored."""
    return datetime.fromisoformat(text)


def in_words(when: datetime, zone: ZoneInfo) -> str:
    """Day, date, time and zone, as in `Wednesday, 2025-01-15 14:32 CET` (P-007, T-017)."""
    # strftime would name the day in the language of the machine.
    local = when.astimezone(zone)
    seconds = f":{local:%S}" if local.second else ""
    return f"{DAYS[local.weekday()]}, {local:%Y-%m-%d %H:%M}{seconds} {local.tzname()}"


async def until_set(bell: asyncio.Event, clock: Clock, seconds: float) -> None:
    """Wait until the bell rings, or for so many seconds if nobody rings it."""
    async with asyncio.TaskGroup() as group:
        nap = group.create_task(clock.sleep(max(seconds, 0)))
        ring = group.create_task(bell.wait())
        await asyncio.wait({nap, ring}, return_when=asyncio.FIRST_COMPLETED)
        nap.cancel()
        ring.cancel()
