"""Due moments: pure functions of a moment and a time zone (T-028).

Recurrence rules are the subset of RFC 5545 that is allowed (T-025).
"""

import re
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import chain, islice, takewhile
from typing import Protocol
from zoneinfo import ZoneInfo

from dateutil.rrule import rrulestr

from wintermute.clock import DAYS
from wintermute.errors import ToolFailed
from wintermute.text import one_line

MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
MOST_CHARACTERS = 500
SHOWN = 60
HORIZON = timedelta(days=36_525)
"""The time from its start for which a rule is followed."""
CYCLE = timedelta(days=146_097)
"""400 years: then the calendar repeats itself, with its weekdays and leap years."""
MOST_NUMBERS = 31

FREQUENCIES = ("DAILY", "WEEKLY", "MONTHLY", "YEARLY")
WEEKDAYS = "MO|TU|WE|TH|FR|SA|SU"
WEEKDAY = re.compile(f"([+-]?[1-9][0-9]?)?(?:{WEEKDAYS})")
UNTIL = re.compile("([0-9]{8})(T[0-9]{6}Z?)?")
NUMBER = re.compile("[+-]?[0-9]{1,4}")
ELSEWHERE = ("BYHOUR", "BYMINUTE", "BYSECOND", "DTSTART", "TZID")
MOST_MISSED = 1000
"""The highest number of missed due moments that is counted."""


@dataclass(frozen=True, slots=True)
class RulePart:
    """The allowed numbers of a rule part, and the values of FREQ that it goes with."""

    most: int
    signed: bool = True
    single: bool = False
    frequencies: tuple[str, ...] = FREQUENCIES


NUMBERS = {
    "INTERVAL": RulePart(1000, signed=False, single=True),
    "COUNT": RulePart(1000, signed=False, single=True),
    "BYMONTH": RulePart(12, signed=False),
    "BYMONTHDAY": RulePart(31, frequencies=("DAILY", "MONTHLY", "YEARLY")),
    "BYYEARDAY": RulePart(366, frequencies=("YEARLY",)),
    "BYWEEKNO": RulePart(53, frequencies=("YEARLY",)),
    "BYSETPOS": RulePart(366, frequencies=("WEEKLY", "MONTHLY", "YEARLY")),
}


def dates(rule: str, start: datetime, zone: ZoneInfo) -> Iterator[datetime]:
    """Yield the wall clock times of a checked rule from `start` on, COUNT of them if it has one."""
    parts = _split(rule)
    count = parts.pop("COUNT", None)
    until = parts.pop("UNTIL", None)
    end = start + HORIZON if until is None else min(start + HORIZON, _last(until, zone))
    # dateutil searches for a rule without a date up to the year 9999, whatever its UNTIL: therefore
    # the search begins in the last cycle of the calendar, and the dates are moved back.
    moved = (9899 - start.year) // 400 * CYCLE
    parts["UNTIL"] = f"{end + moved:%Y%m%dT%H%M%S}"
    text = ";".join(f"{name}={value}" for name, value in parts.items())
    found = rrulestr(text, dtstart=start + moved)
    return (moment - moved for moment in islice(found, int(count) if count else None))


def checked_rule(text: str) -> str:
    """Return the rule in capitals. Raises: ToolFailed that names the wrong part."""
    if len(text) > MOST_CHARACTERS:
        raise ToolFailed(f"rrule has {len(text)} characters; at most {MOST_CHARACTERS} are allowed")
    rule = "".join(text.upper().split()).removeprefix("RRULE:")
    if re.search("^DTSTART|;?TZID=", rule):
        raise ToolFailed("rrule takes no DTSTART and no TZID: say the time of day with at")
    parts = _split(rule)
    _check_frequency(parts)
    for name, value in parts.items():
        _check_part(name, value, parts["FREQ"])
    _check_together(parts)
    return rule


def _split(rule: str) -> dict[str, str]:
    parts: dict[str, str] = {}
    for part in rule.split(";"):
        name, equals, value = part.partition("=")
        if not equals or not value:
            raise ToolFailed(f"rrule part '{excerpt(part)}' is not NAME=VALUE, as in BYDAY=MO,WE")
        if name in parts:
            raise ToolFailed(f"rrule part {excerpt(name)} is given twice")
        parts[name] = value
    return parts


def excerpt(text: str) -> str:
    """Return a quotation of a text, short and safe to show."""
    return one_line(text)[:SHOWN]


def _check_frequency(parts: dict[str, str]) -> None:
    frequency = parts.get("FREQ")
    if frequency not in FREQUENCIES:
        given = f"FREQ={excerpt(frequency)} is not allowed" if frequency else "FREQ is missing"
        raise ToolFailed(f"rrule: {given}; it must be DAILY, WEEKLY, MONTHLY or YEARLY")


def _check_part(name: str, value: str, frequency: str) -> None:
    if name in ELSEWHERE:
        raise ToolFailed(f"rrule takes no {name}: say the time of day with at")
    if name in NUMBERS:
        _check_numbers(name, value, frequency)
    elif name == "BYDAY":
        _check_weekdays(value, frequency)
    elif name == "WKST":
        _require(re.fullmatch(WEEKDAYS, value) is not None, name, value, "a day such as MO")
    elif name == "UNTIL":
        _require(_is_until(value), name, value, "a time such as 20260301T090000Z")
    elif name != "FREQ":
        raise ToolFailed(f"rrule part {excerpt(name)} is unknown")


def _check_numbers(name: str, value: str, frequency: str) -> None:
    part = NUMBERS[name]
    if frequency not in part.frequencies:
        raise ToolFailed(f"rrule: {name} has no meaning with FREQ={frequency}")
    numbers = value.split(",")
    lowest = -part.most if part.signed else 1
    fits = all(
        NUMBER.fullmatch(number) and int(number) and lowest <= int(number) <= part.most
        for number in numbers
    )
    most = 1 if part.single else MOST_NUMBERS
    known = f"{'one number' if part.single else f'at most {most} numbers'} from 1 to {part.most}"
    known += f", or from -1 to -{part.most}" if part.signed else ""
    _require(fits and len(numbers) <= most, name, value, known)


def _check_weekdays(value: str, frequency: str) -> None:
    days = [WEEKDAY.fullmatch(day) for day in value.split(",")]
    _require(all(days), "BYDAY", value, "days such as MO,WE, or 1MO and -1FR")
    if frequency in {"DAILY", "WEEKLY"} and any(day and day[1] for day in days):
        raise ToolFailed(f"rrule: BYDAY={excerpt(value)} has no meaning with FREQ={frequency}")


def _check_together(parts: dict[str, str]) -> None:
    if "COUNT" in parts and "UNTIL" in parts:
        raise ToolFailed("rrule takes COUNT or UNTIL, not both")
    if "BYWEEKNO" in parts and "BYDAY" not in parts:
        raise ToolFailed("rrule: BYWEEKNO needs BYDAY, as in BYWEEKNO=20;BYDAY=MO")
    if "BYSETPOS" in parts and not any(name.startswith("BY") for name in {*parts} - {"BYSETPOS"}):
        raise ToolFailed("rrule: BYSETPOS needs another part, as in BYDAY=MO,TU;BYSETPOS=-1")


def _require(fits: bool, name: str, value: str, known: str) -> None:
    if not fits:
        raise ToolFailed(f"rrule: {name}={excerpt(value)} cannot be read; it must be {known}")


def _is_until(value: str) -> bool:
    if not UNTIL.fullmatch(value):
        return False
    try:
        return 1 < _read_until(value).year < 9999
    except ValueError:
        return False


def _read_until(value: str) -> datetime:
    """Read an UNTIL. A date alone means the whole day."""
    return datetime.fromisoformat(value if "T" in value else f"{value}T235959")


def _last(until: str, zone: ZoneInfo) -> datetime:
    """Return the wall clock time of an UNTIL in the zone."""
    last = _read_until(until)
    return last.astimezone(zone).replace(tzinfo=None, fold=0) if last.tzinfo == UTC else last


class DueTimes(Protocol):
    """Anything with due moments, such as a schedule."""

    def due_times(self, after: datetime, zone: ZoneInfo) -> Iterator[datetime]:
        """Yield the due moments in order, from somewhat before `after`. A moment may come twice."""
        ...


@dataclass(frozen=True, slots=True)
class Missed:
    """The due moments during an absence: the latest, and their number."""

    latest: datetime
    count: int


def next_due(schedule: DueTimes, after: datetime, zone: ZoneInfo) -> datetime | None:
    """Return the first due moment strictly after `after`; None if there is none."""
    return next(moments(schedule, after, zone), None)


def upcoming(
    schedule: DueTimes, after: datetime, zone: ZoneInfo, count: int
) -> tuple[datetime, ...]:
    """Return the next due moments, at most `count`."""
    return tuple(islice(moments(schedule, after, zone), count))


def missed(schedule: DueTimes, first: datetime, now: datetime, zone: ZoneInfo) -> Missed:
    """Count the due moments from `first`, which is one, until now (T-043)."""
    due = chain([first], moments(schedule, first, zone))
    seen = list(islice(takewhile(lambda moment: moment <= now, due), MOST_MISSED))
    if len(seen) < MOST_MISSED:
        return Missed(seen[-1] if seen else first, max(len(seen), 1))
    return Missed(_latest(schedule, first, now, zone), MOST_MISSED)


def short_time(time: str) -> str:
    """Return a time of day without seconds if they are zero."""
    return time[:8].removesuffix(":00") if len(time) > 5 else time


def relative_time(due: datetime, now: datetime, zone: ZoneInfo) -> str:
    """Describe a moment: `today at 18:30`, `tomorrow at 09:00`, `on Friday at 09:00`, `on 14 March
    at 09:00`.
    """
    local, today = due.astimezone(zone), now.astimezone(zone).date()
    days = (local.date() - today).days
    if days in (0, 1):
        day = "tomorrow" if days else "today"
    elif 0 < days < 7:
        day = f"on {DAYS[local.weekday()]}"
    else:
        year = f" {local.year}" if local.year != today.year else ""
        day = f"on {local.day} {MONTHS[local.month - 1]}{year}"
    return f"{day} at {local:%H:%M}"


def tomorrow(due: datetime, now: datetime, zone: ZoneInfo) -> datetime:
    """Return the moment at the local time of day of `due` on the day after `now` (T-063)."""
    day = now.astimezone(zone).date() + timedelta(days=1)
    return instant(datetime.combine(day, due.astimezone(zone).time()), zone)


def moments(schedule: DueTimes, after: datetime, zone: ZoneInfo) -> Iterator[datetime]:
    """Yield all due moments after `after` in order. Two local times that are one instant count once
    (T-030).
    """
    latest = after
    for due in schedule.due_times(after, zone):
        if due > latest:
            latest = due
            yield due


def instant(local: datetime, zone: ZoneInfo) -> datetime:
    """Return the moment of a wall clock time, in UTC.

    A time that does not exist becomes the first valid one after the gap (T-029). Of a time that
    comes twice the first is taken (T-030).
    """
    if not in_gap(local, zone):
        return local.replace(tzinfo=zone, fold=0).astimezone(UTC)
    before, after = (_offset(local, zone, fold) for fold in (0, 1))
    early, late = (
        (local - offset).replace(tzinfo=UTC, microsecond=0).timestamp()
        for offset in (after, before)
    )
    seconds = range(int(early), int(late) + 1)
    at = partial(datetime.fromtimestamp, tz=zone)
    change = bisect_right(seconds, before, key=lambda second: at(second).utcoffset() or timedelta())
    return datetime.fromtimestamp(seconds[change], UTC)


def in_gap(local: datetime, zone: ZoneInfo) -> bool:
    """Return True if the wall clock skips this time."""
    return _offset(local, zone, 0) < _offset(local, zone, 1)


def comes_twice(local: datetime, zone: ZoneInfo) -> bool:
    """Return True if the wall clock shows this time twice."""
    return _offset(local, zone, 0) > _offset(local, zone, 1)


def _offset(local: datetime, zone: ZoneInfo, fold: int) -> timedelta:
    return local.replace(tzinfo=zone, fold=fold).utcoffset() or timedelta()


def _latest(schedule: DueTimes, first: datetime, now: datetime, zone: ZoneInfo) -> datetime:
    """Return the latest due moment until now, searching backwards in ever longer steps."""
    horizon = timedelta(minutes=1)
    while now - horizon > first:
        due = moments(schedule, now - horizon, zone)
        if found := deque(takewhile(lambda moment: moment <= now, due), maxlen=1):
            return found[0]
        horizon *= 8
    due = chain([first], moments(schedule, first, zone))
    return deque(takewhile(lambda moment: moment <= now, due), maxlen=1)[0]
