"""When a schedule is due: pure functions of schedule, moment and zone (T-028)."""

from bisect import bisect_right
from calendar import monthrange
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from itertools import chain, count, dropwhile, islice, takewhile
from zoneinfo import ZoneInfo

from wintermute.tasks.recurrence import dates
from wintermute.tasks.schedule import Schedule

MOST_MISSED = 1000
"""More due moments than this are not counted when we were away."""

LAST_YEAR = 9998
"""Arithmetic stops here, a year before the calendar of Python does."""


@dataclass(frozen=True, slots=True)
class Missed:
    """What was due in a time when we were away: the latest moment, and how many there were."""

    latest: datetime
    count: int


def next_due(schedule: Schedule, after: datetime, zone: ZoneInfo) -> datetime | None:
    """The first due moment strictly after `after`; None when there is none any more."""
    return next(moments(schedule, after, zone), None)


def upcoming(
    schedule: Schedule, after: datetime, zone: ZoneInfo, count: int
) -> tuple[datetime, ...]:
    """The next due moments, at most so many."""
    return tuple(islice(moments(schedule, after, zone), count))


def missed(schedule: Schedule, first: datetime, now: datetime, zone: ZoneInfo) -> Missed:
    """What was due from `first`, which was a due moment, until now (T-043)."""
    due = chain([first], moments(schedule, first, zone))
    seen = list(islice(takewhile(lambda moment: moment <= now, due), MOST_MISSED))
    if len(seen) < MOST_MISSED:
        return Missed(seen[-1] if seen else first, max(len(seen), 1))
    return Missed(_latest(schedule, first, now, zone), MOST_MISSED)


def tomorrow(due: datetime, now: datetime, zone: ZoneInfo) -> datetime:
    """The local time of day of `due`, on the day after now (T-063)."""
    day = now.astimezone(zone).date() + timedelta(days=1)
    return instant(datetime.combine(day, due.astimezone(zone).time()), zone)


def moments(schedule: Schedule, after: datetime, zone: ZoneInfo) -> Iterator[datetime]:
    """All due moments after `after`, in order. Two times that are one instant are one (T-030)."""
    latest = after
    for due in _candidates(schedule, after, zone):
        if due > latest:
            latest = due
            yield due


def instant(local: datetime, zone: ZoneInfo) -> datetime:
    """The moment of a wall clock time, in UTC.

    A time that does not exist is the first valid one after the gap (T-029); of a time that comes
    twice the first is meant (T-030).
    """
    if not in_gap(local, zone):
        return local.replace(tzinfo=zone, fold=0).astimezone(UTC)
    before, after = (_offset(local, zone, fold) for fold in (0, 1))
    early, late = (
        (local - offset).replace(tzinfo=UTC, microsecond=0).timestamp()
        for offset in (after, before)
    )
    seconds = range(int(early), int(late) + 1)
    change = bisect_right(seconds, before, key=lambda second: _offset_at(second, zone))
    return datetime.fromtimestamp(seconds[change], UTC)


def in_gap(local: datetime, zone: ZoneInfo) -> bool:
    """Whether the wall clock leaves out this time."""
    return _offset(local, zone, 0) < _offset(local, zone, 1)


def comes_twice(local: datetime, zone: ZoneInfo) -> bool:
    """Whether the wall clock shows this time a second time."""
    return _offset(local, zone, 0) > _offset(local, zone, 1)


def _offset(local: datetime, zone: ZoneInfo, fold: int) -> timedelta:
    return local.replace(tzinfo=zone, fold=fold).utcoffset() or timedelta()


def _offset_at(second: int, zone: ZoneInfo) -> timedelta:
    return datetime.fromtimestamp(second, zone).utcoffset() or timedelta()


def _candidates(schedule: Schedule, after: datetime, zone: ZoneInfo) -> Iterator[datetime]:
    """In order, from somewhat before `after`; a moment may come twice."""
    local = after.astimezone(zone).replace(tzinfo=None, fold=0)
    if schedule.kind == "interval":
        return _paced(schedule, after, local.date(), zone)
    if schedule.kind == "once":
        at = datetime.fromisoformat(schedule.at)
        return iter([at.astimezone(UTC) if at.tzinfo else instant(at, zone)])
    return (instant(moment, zone) for moment in _wall_clock(schedule, local, zone))


def _wall_clock(schedule: Schedule, local: datetime, zone: ZoneInfo) -> Iterator[datetime]:
    if schedule.kind == "rrule":
        found = dates(schedule.rrule, datetime.fromisoformat(schedule.at), zone)
        return dropwhile(lambda moment: moment <= local, found)
    at = time.fromisoformat(schedule.at)
    if schedule.kind == "monthly":
        days = _monthly(schedule.day, local.date())
    else:
        days = _days(local.date())
    if schedule.kind == "weekly":
        days = (day for day in days if day.weekday() in schedule.days)
    return (datetime.combine(day, at) for day in days)


def _days(first: date) -> Iterator[date]:
    last = date(LAST_YEAR, 12, 31)
    return map(date.fromordinal, range(first.toordinal(), last.toordinal()))


def _monthly(day: int, first: date) -> Iterator[date]:
    """That day of each month, or its last (T-022)."""
    for months in count(first.year * 12 + first.month - 1):
        year, month = months // 12, months % 12 + 1
        if year > LAST_YEAR:
            return
        yield date(year, month, min(day, monthrange(year, month)[1]))


def _paced(schedule: Schedule, after: datetime, today: date, zone: ZoneInfo) -> Iterator[datetime]:
    """In elapsed time (T-031): from the beginning, or from each opening of the window (T-024)."""
    pace = timedelta(seconds=schedule.seconds)
    if schedule.window is None:
        first = datetime.fromisoformat(schedule.at).astimezone(UTC) + pace
        yield from _beats(first, datetime(LAST_YEAR, 1, 1, tzinfo=UTC), pace, after)
        return
    opens, closes = map(time.fromisoformat, schedule.window)
    overnight = timedelta(days=closes <= opens)
    for day in _days(today - timedelta(days=2)):
        first = instant(datetime.combine(day, opens), zone)
        last = instant(datetime.combine(day, closes) + overnight, zone)
        yield from _beats(first, last, pace, after)


def _beats(first: datetime, last: datetime, pace: timedelta, after: datetime) -> Iterator[datetime]:
    beat = first + max(0, (after - first) // pace + 1) * pace
    while beat <= last:
        yield beat
        beat += pace


def _latest(schedule: Schedule, first: datetime, now: datetime, zone: ZoneInfo) -> datetime:
    """The latest due moment until now: looked for not far back first, then ever further."""
    horizon = timedelta(minutes=1)
    while now - horizon > first:
        due = moments(schedule, now - horizon, zone)
        if found := deque(takewhile(lambda moment: moment <= now, due), maxlen=1):
            return found[0]
        horizon *= 8
    due = chain([first], moments(schedule, first, zone))
    return deque(takewhile(lambda moment: moment <= now, due), maxlen=1)[0]
