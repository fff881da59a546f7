"""The Clock that all code asks for the time, so that a test can hold it still (DESIGN A-5)."""

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
"""Seconds. The event loop's clock stops while a laptop is suspended, so no single sleep is longer."""
JUMP_SECONDS = 5.0
"""The deviation from the expected time from which a clock has jumped."""
DRIFT = 0.001
"""The deviation allowed to a clock that is being corrected, as a part of the time that has passed."""
AGREES = timedelta(minutes=1)
"""The largest difference at which the homeserver's clock confirms ours."""
DOUBTED_SECONDS = 600.0
"""The seconds for which an unconfirmed clock is doubted."""
DOUBT_PAUSE = 2.0
MONOTONIC = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""The monotonic clock that counts suspended time: CLOCK_BOOTTIME on Linux, CLOCK_MONOTONIC on macOS."""
BOOT = Path("/proc/sys/kernel/random/boot_id")

UNIVERSAL = frozenset({"UTC", "UCT", "Universal", "Zulu", "GMT", "Greenwich"})
"""Names of UTC as a machine without a place may give them."""
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


def host_zone(environment: Mapping[str, str], machine: Path = Path("/etc")) -> str:
    """Return the name of the machine's time zone; UTC if it names none that is known."""
    candidates = [environment.get("TZ", "").removeprefix(":")]
    if (localtime := machine / "localtime").is_symlink():
        candidates.append(str(localtime.readlink()))
    with suppress(OSError, UnicodeDecodeError):
        candidates.append((machine / "timezone").read_text("utf-8").strip())
    for name in (candidate.rpartition("zoneinfo/")[2] for candidate in candidates):
        with suppress(KeyError, ValueError, OSError):
            return "UTC" if ZoneInfo(name).key.rpartition("/")[2] in UNIVERSAL else name
    return "UTC"


def zone_doubt(zone: str, host: str, now: datetime) -> str:
    """Describe what may be wrong with a time zone, and what to do. A machine in UTC raises no doubt."""
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
    """The source of time for the whole program."""

    def now(self) -> datetime:
        """Return the present moment, aware, in UTC."""
        ...

    def monotonic(self) -> float:
        """Return seconds that never jump and count suspended time; only differences within a boot have a meaning."""
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
        return time.clock_gettime(MONOTONIC)

    async def sleep(self, seconds: float) -> None:
        until = self.monotonic() + seconds
        while True:
            await asyncio.sleep(min(seconds, self._longest_nap))
            seconds = until - self.monotonic()
            if seconds <= 0:
                return


@dataclass(frozen=True, slots=True)
class ClockReading:
    """The time that a wall clock showed at one reading of the monotonic clock."""

    wall: datetime
    monotonic: float

    def at(self, steady: float) -> datetime:
        """Return the time it shows at another monotonic reading, if it has run evenly."""
        return self.wall + timedelta(seconds=steady - self.monotonic)


@dataclass(frozen=True, slots=True)
class ClockDoubt:
    """The reason why the machine's clock is not trusted.

    `ahead`: its distance from the expected time; None if that is unknown. `waits`: nothing confirms
    the expected time either, so nothing can be due.
    """

    ahead: timedelta | None
    waits: bool


def is_trustworthy(
    now: ClockReading, last: ClockReading | None, server: ClockReading | None, doubted: float
) -> bool:
    """Return True if the machine's clock is trusted.

    `last_trusted`: its last trusted reading; None: none since the machine was started. `server`: the
    homeserver's clock if it is known; it can only confirm ours. `doubted`: the seconds for which
    ours has been in doubt.
    """
    if last is not None:
        allowed = JUMP_SECONDS + DRIFT * abs(now.monotonic - last.monotonic)
        if abs((now.wall - last.at(now.monotonic)).total_seconds()) <= allowed:
            return True
    return confirms(server, now) or doubted >= DOUBTED_SECONDS


def confirms(server: ClockReading | None, ours: ClockReading) -> bool:
    """Return True if the homeserver's clock agrees with ours."""
    return server is not None and abs(server.at(ours.monotonic) - ours.wall) <= AGREES


class CheckedClock:
    """The machine's clock; while it is not trusted, time goes on evenly from the last trusted reading.

    A clock may be wrong for seconds when it starts or is corrected. No reminder may be sent, and
    nothing deleted for its age, because of a wrong time (F-015).
    """

    def __init__(
        self, machine: Clock, last: ClockReading | None = None, *, asks: bool = False
    ) -> None:
        """`last_trusted` is the last trusted reading. `asks`: a homeserver will confirm the time. Without
        one the first reading is trusted: the person at the machine has no other clock either.
        """
        self._machine = machine
        self._last = last
        self._server: ClockReading | None = None
        self._since: float | None = None
        if last is None and not asks:
            self._last = self._reading()

    @property
    def last_trusted(self) -> ClockReading | None:
        """The last trusted reading of the machine's clock."""
        return self._last

    @property
    def doubt(self) -> ClockDoubt | None:
        """The reason why the clock is not trusted now; None: it is."""
        seen = self._checked_reading()
        if self._since is None:
            return None
        if self._last is None:
            return ClockDoubt(None, waits=True)
        due = self._last.at(seen.monotonic)
        ours = ClockReading(due, seen.monotonic)
        return ClockDoubt(seen.wall - due, waits=not confirms(self._server, ours))

    def now(self) -> datetime:
        seen = self._checked_reading()
        return seen.wall if self._last is None else self._last.at(seen.monotonic)

    def monotonic(self) -> float:
        return self._machine.monotonic()

    async def sleep(self, seconds: float) -> None:
        await self._machine.sleep(seconds)

    async def wait_until_trusted(self) -> None:
        """Wait until the clock is trusted; before that nothing is deleted for its age."""
        while self.doubt is not None:
            await self.sleep(DOUBT_PAUSE)

    def note_server_time(self, date: datetime) -> None:
        """Note the time on the homeserver's clock."""
        self._server = ClockReading(date, self.monotonic())

    def on_our_clock(self, sent_at: datetime) -> datetime:
        """Correct the time of a message if the homeserver's clock is behind ours, so that it does not look older."""
        now = ClockReading(self.now(), self.monotonic())
        if self._server is None or confirms(self._server, now):
            return sent_at
        behind = max(timedelta(), now.wall - self._server.at(now.monotonic))
        return max(sent_at, min(sent_at + behind, now.wall))

    def _reading(self) -> ClockReading:
        return ClockReading(self._machine.now(), self._machine.monotonic())

    def _checked_reading(self) -> ClockReading:
        seen = self._reading()
        doubted = 0.0 if self._since is None else seen.monotonic - self._since
        if is_trustworthy(seen, self._last, self._server, doubted):
            if self._since is not None:
                self._log("clock believed ahead_seconds=%s", seen)
            self._last, self._since = seen, None
        elif self._since is None:
            self._since = seen.monotonic
            self._log("clock doubted ahead_seconds=%s", seen)
        return seen

    def _log(self, text: str, seen: ClockReading) -> None:
        if self._last is None:  # so it is after each start of the machine
            log.info(text, "unknown")
        else:
            ahead = seen.wall - self._last.at(seen.monotonic)
            log.warning(text, round(ahead.total_seconds()))


def boot_id() -> str:
    """Return an id of this start of the machine; "" if the system has none."""
    try:
        return BOOT.read_text().strip()
    except OSError:
        return ""


def stamp(moment: datetime) -> str:
    """Return a moment as it is stored: UTC, ISO 8601, microseconds. Its text order is its time order."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds")


def moment(text: str) -> datetime:
    """Read a moment that `stamp` wrote."""
    return datetime.fromisoformat(text)


def in_words(when: datetime, zone: ZoneInfo) -> str:
    """Return day, date, time and zone, as in `Wednesday, 2025-01-15 14:32 CET` (P-007, T-017)."""
    # strftime would use the machine's language.
    local = when.astimezone(zone)
    seconds = f":{local:%S}" if local.second else ""
    return f"{DAYS[local.weekday()]}, {local:%Y-%m-%d %H:%M}{seconds} {local.tzname()}"


async def wait_for_event(event: asyncio.Event, clock: Clock, seconds: float) -> None:
    """Wait until the event is set, or until the seconds have passed."""
    async with asyncio.TaskGroup() as group:
        timeout = group.create_task(clock.sleep(max(seconds, 0)))
        waiter = group.create_task(event.wait())
        await asyncio.wait({timeout, waiter}, return_when=asyncio.FIRST_COMPLETED)
        timeout.cancel()
        waiter.cancel()
