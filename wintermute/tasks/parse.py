"""What a tool call, a command line or a chat line says about when, read strictly.

What can be misread is refused (T-018), with what to write instead.
"""

import re
from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

from wintermute.errors import ToolFailed
from wintermute.tasks.due import instant, shown

CLOCK = r"[0-9]{1,2}:[0-9]{2}(?::[0-9]{2})?"
ISO = rf"(?P<date>[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}})(?:t| )(?P<clock>{CLOCK})(?:\.[0-9]+)?(?P<offset>z|[+-][0-9]{{2}}:?[0-9]{{2}})?"
DAY = rf"(?:(?P<day>today|tomorrow) )?(?P<time>{CLOCK})"
DISTANCE = r"in (?P<number>[0-9]{1,9}) (?P<unit>minutes?|min|hours?|h|days?|weeks?)(?![0-9a-z])"
FORMS = f"{ISO}|{DAY}|{DISTANCE}"
"""What `wall_time` reads, in small letters and with single blanks."""

FURTHEST = timedelta(days=36_525)
ELAPSED = {"m": timedelta(minutes=1), "h": timedelta(hours=1)}
DAYS_OF = {"d": 1, "w": 7}


def wall_time(text: str, now: datetime, zone: ZoneInfo) -> str:
    """The `at` of a schedule `once` (T-017): a wall clock time, or with an offset an instant in UTC."""
    day, _, clock = " ".join(text.lower().split()).rpartition(" ")
    at = readable(f"{day.removesuffix(' at')} {whole_hour(clock)}" if day else text, now, zone)
    if at is None:
        raise ToolFailed(
            f"at '{shown(text)}' cannot be read; write for example "
            f"{now.astimezone(zone) + timedelta(days=1):%Y-%m-%d}T09:00 or in 30 minutes"
        )
    return checked(at, text, now, zone).isoformat()


def checked(at: datetime, text: str, now: datetime, zone: ZoneInfo) -> datetime:
    """The moment, if it is still to come (T-019)."""
    # Years first: at the ends of the calendar there are no time zones.
    past, far = at.year < now.year - 1, at.year > now.year + 101
    if not past and not far:
        when = at if at.tzinfo else instant(at, zone)
        past, far = when <= now, when > now + FURTHEST
    if past:
        local = f"{now.astimezone(zone):%a %Y-%m-%d %H:%M} {zone.key}"
        raise ToolFailed(f"at '{shown(text)}': that time has passed, it is {local} now")
    if far:
        raise ToolFailed(f"at '{shown(text)}' is more than a hundred years ahead")
    return at


def readable(text: str, now: datetime, zone: ZoneInfo) -> datetime | None:
    """The wall clock time or the instant that is meant; None if it cannot be read."""
    found = re.fullmatch(FORMS, " ".join(text.lower().split()))
    if found is None:
        return None
    if found["unit"]:
        return _ahead(int(found["number"]), found["unit"][0], now, zone)
    if found["date"]:
        return _iso(found["date"], found["clock"], found["offset"])
    clock = clock_time(found["time"])
    if clock is None:
        return None
    today = datetime.combine(now.astimezone(zone).date(), clock)
    has_passed = found["day"] is None and instant(today, zone) <= now
    return today + timedelta(days=has_passed or found["day"] == "tomorrow")


def clock_time(text: str) -> time | None:
    """`9:00`, `09:00` or `09:00:30`; None if it is no time of day."""
    text = text.strip()
    if not re.fullmatch(CLOCK, text):
        return None
    try:
        return time.fromisoformat(text if text[1] != ":" else f"0{text}")
    except ValueError:
        return None


def whole_hour(clock: str) -> str:
    """`9` as `9:00`, where nothing but a time of day can stand."""
    return f"{clock}:00" if re.fullmatch(r"[0-9]{1,2}", clock) else clock


def _iso(day: str, clock: str, offset: str | None) -> datetime | None:
    at = clock_time(clock)
    if at is None:
        return None
    try:
        wall = datetime.combine(date.fromisoformat(day), at)
        return datetime.fromisoformat(f"{wall}{offset.upper()}").astimezone(UTC) if offset else wall
    except (ValueError, OverflowError):
        return None


def _ahead(number: int, unit: str, now: datetime, zone: ZoneInfo) -> datetime:
    """Minutes and hours are elapsed time; days and weeks keep the time of day.

    More than can be counted is as good as the furthest that is too far.
    """
    most = FURTHEST.days + 366
    if unit in ELAPSED:
        ahead = min(number, most * 24 * 60) * ELAPSED[unit]
        return now.astimezone(UTC).replace(microsecond=0) + min(ahead, timedelta(days=most))
    today = now.astimezone(zone).replace(tzinfo=None, fold=0, microsecond=0)
    return today + timedelta(days=min(number * DAYS_OF[unit], most))


DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
NAMES = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")


def time_of_day(name: str, text: str) -> str:
    """`9:00`, `09:00` or `09:00:30` as it is stored."""
    clock = clock_time(text)
    if clock is None:
        raise ToolFailed(
            f"{name} '{shown(text)}' is no time of day; write for example 09:00 or 18:30"
            + ("; a date goes with schedule_type once" if name == "at" else "")
        )
    return clock.isoformat()


def weekdays(text: str) -> tuple[int, ...]:
    """English names or their first three letters, in any case, with commas between them (T-021)."""
    found = set()
    for word in text.lower().split(","):
        name = word.strip()
        if name not in DAYS and name not in NAMES:
            raise ToolFailed(
                f"day_of_week '{shown(name)}' is no day; write for example mon,thu or monday"
            )
        found.add(DAYS.index(name[:3]))
    return tuple(sorted(found))


def first_time(text: str, now: datetime, zone: ZoneInfo) -> str:
    """The wall clock time from which a rule counts: of the first day on which it is still to come."""
    start = readable(text, now, zone) if text.strip()[:1].isdigit() else None
    if start is None or start.tzinfo is not None:
        raise ToolFailed(
            f"at '{shown(text)}' cannot be read; with rrule write for example 09:00, or "
            f"{now.astimezone(zone) + timedelta(days=1):%Y-%m-%d}T09:00 without an offset"
        )
    return checked(start, text, now, zone).isoformat()
