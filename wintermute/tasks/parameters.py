"""The parameters of a schedule one by one: what each may be, and what to write instead. Pure."""

from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from wintermute.errors import ToolFailed
from wintermute.tasks.moments import checked, clock_time, coming, readable, shown
from wintermute.tasks.schedule import DAYS

NAMES = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
LEAST_SECONDS = 60
MOST_SECONDS = 366 * 24 * 60 * 60


def time_of_day(name: str, text: str) -> str:
    """`9:00`, `09:00` or `09:00:30` as it is stored."""
    clock = clock_time(text)
    if clock is None:
        raise ToolFailed(
            f"{name} '{shown(text)}' is no time of day; write for example 09:00 or 18:30"
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


def day_of_month(day: int) -> int:
    """From 1 to 31; in shorter months it is the last day (T-022)."""
    if not 1 <= day <= 31:
        raise ToolFailed("day_of_month must be from 1 to 31; 31 is the last day of every month")
    return day


def pace(seconds: int) -> int:
    """How many seconds lie between two due moments (T-023)."""
    if not LEAST_SECONDS <= seconds <= MOST_SECONDS:
        raise ToolFailed(
            f"interval_seconds must be from {LEAST_SECONDS} to {MOST_SECONDS} (366 days)"
        )
    return seconds


def window(start: str | None, end: str | None, seconds: int) -> tuple[str, str] | None:
    """The times of day between which an interval is due (T-024); `none` twice takes them away."""
    if start is None and end is None:
        return None
    if start is None or end is None:
        raise ToolFailed("window_start and window_end are given together, as in 22:00 and 06:00")
    if start.strip().lower() == end.strip().lower() == "none":
        return None
    opens, closes = time_of_day("window_start", start), time_of_day("window_end", end)
    if opens == closes:
        raise ToolFailed("window_start and window_end are equal; leave out both for the whole day")
    length = datetime.fromisoformat(f"2000-01-01T{closes}") - datetime.fromisoformat(
        f"2000-01-01T{opens}"
    )
    if length % timedelta(days=1) < timedelta(seconds=seconds):
        raise ToolFailed(
            f"the window from window_start to window_end is shorter than interval_seconds {seconds};"
            " for once a day use schedule_type daily"
        )
    return opens, closes


def first_time(text: str, now: datetime, zone: ZoneInfo) -> str:
    """The wall clock time from which a rule counts: of the first day on which it is still to come."""
    clock = clock_time(text)
    if clock is not None:
        return coming(clock, now, zone).isoformat()
    start = readable(text, now, zone) if text.strip()[:1].isdigit() else None
    if start is None or start.tzinfo is not None:
        raise ToolFailed(
            f"at '{shown(text)}' cannot be read; with rrule write for example 09:00, or "
            f"{now.astimezone(zone) + timedelta(days=1):%Y-%m-%d}T09:00 without an offset"
        )
    return checked(start, text, now, zone).isoformat()
