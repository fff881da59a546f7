"""When a task is due, as a calendar application can read it: a beginning, and what recurs. Pure."""

from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from itertools import count, product, takewhile
from zoneinfo import ZoneInfo

from icalendar import vRecur

from wintermute.tasks.due import instant, moments, next_due, upcoming
from wintermute.tasks.records import Task
from wintermute.tasks.recurrence import dates
from wintermute.tasks.schedule import Schedule

WEEKDAYS = ("MO", "TU", "WE", "TH", "FR", "SA", "SU")
MOST_POSITIONS = 366
"""The highest BYSETPOS that RFC 5545 knows."""
MOST_DATES = 100
"""How many due moments stand for a schedule that no rule can say."""
UNITS = (("DAILY", 86_400), ("HOURLY", 3_600), ("MINUTELY", 60), ("SECONDLY", 1))
NEUTRAL = date(2001, 1, 1)
JUST = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Times:
    """`start` is in the zone, or in UTC what does not follow the wall clock. `more`: other moments."""

    start: datetime
    rule: vRecur | None = None
    more: tuple[datetime, ...] = ()


def times(task: Task, zone: ZoneInfo) -> Times | None:
    """From the next due moment of its schedule on; None for a task without one."""
    schedule = task.plan.schedule
    if schedule is None:
        return None
    if schedule.kind == "once":
        return _single(schedule, task.next_due, zone)
    if schedule.kind == "rrule":
        return _ruled(schedule, zone)
    since = (task.next_due or task.created_at) - JUST
    if schedule.kind != "interval":
        return _by_the_clock(schedule, since, zone)
    if schedule.window is None:
        return _paced(schedule, since, zone)
    return _between(schedule, since, zone)


def _single(schedule: Schedule, due: datetime | None, zone: ZoneInfo) -> Times:
    """Once. A local time cannot name the second of two equal ones: that is told in UTC."""
    if due is None:
        at = datetime.fromisoformat(schedule.at)
        due = at if at.tzinfo else instant(at, zone)
    local = due.astimezone(zone)
    return Times(due.astimezone(UTC) if local.fold else local)


def _by_the_clock(schedule: Schedule, since: datetime, zone: ZoneInfo) -> Times:
    """Daily, weekly or monthly."""
    due = next_due(schedule, since, zone) or since
    # On a day on which this time does not exist it is due later; the days after, it is not.
    wall = datetime.combine(due.astimezone(zone).date(), time.fromisoformat(schedule.at))
    rule = vRecur({"FREQ": schedule.kind.upper()})
    if schedule.kind == "weekly":
        rule["BYDAY"] = [WEEKDAYS[day] for day in schedule.days]
    elif schedule.kind == "monthly":
        # The last of these days that a month has is the day itself, or the end of the month (T-022).
        rule["BYMONTHDAY"] = [*range(min(schedule.day, 28), schedule.day + 1)]
        if schedule.day > 28:
            rule["BYSETPOS"] = -1
    return Times(wall.replace(tzinfo=zone), rule)


def _ruled(schedule: Schedule, zone: ZoneInfo) -> Times:
    """A rule as it is, from its own first date, so that its COUNT stays right."""
    at = datetime.fromisoformat(schedule.at)
    first = next(dates(schedule.rrule, at, zone), at)
    rule = vRecur.from_ical(schedule.rrule)
    if "UNTIL" in rule:
        rule["UNTIL"] = _until(rule["UNTIL"][0], zone)
    return Times(first.replace(tzinfo=zone), rule)


def _until(last: date | datetime, zone: ZoneInfo) -> datetime:
    """With a beginning in a zone it must be in UTC; a date alone means that whole day."""
    if not isinstance(last, datetime):
        last = datetime.combine(last, time(23, 59, 59))
    return last if last.tzinfo else instant(last, zone)


def _paced(schedule: Schedule, since: datetime, zone: ZoneInfo) -> Times:
    """An interval, in UTC, where the clock is never changed (T-031)."""
    unit, seconds = next(unit for unit in UNITS if schedule.seconds % unit[1] == 0)
    rule = vRecur({"FREQ": unit, "INTERVAL": schedule.seconds // seconds})
    return Times(next_due(schedule, since, zone) or since, rule)


def _between(schedule: Schedule, since: datetime, zone: ZoneInfo) -> Times:
    """An interval within a window: as a rule of all its times of day, or as single moments.

    In a night in which the clock is changed the rule keeps to the wall clock, and we do not.
    """
    beats = _times_of_day(schedule)
    rule = _daily(beats)
    if rule is None:
        first, *more = upcoming(schedule, since, zone, MOST_DATES)
        return Times(first, more=tuple(more))
    due = (moment.astimezone(zone) for moment in moments(schedule, since, zone))
    return Times(next(at for at in due if at.time() in beats and not at.fold), rule)


def _times_of_day(schedule: Schedule) -> set[time]:
    opens, closes = map(time.fromisoformat, schedule.window or ())
    first = datetime.combine(NEUTRAL, opens)
    last = datetime.combine(NEUTRAL, closes) + timedelta(days=closes <= opens)
    beats = (first + number * timedelta(seconds=schedule.seconds) for number in count())
    return {beat.time() for beat in takewhile(lambda beat: beat <= last, beats)}


def _daily(beats: set[time]) -> vRecur | None:
    """The rule for these times of every day: some of all that their hours, minutes, seconds make."""
    hours, minutes, seconds = (
        sorted({getattr(beat, unit) for beat in beats}) for unit in ("hour", "minute", "second")
    )
    made = [time(*parts) for parts in product(hours, minutes, seconds)]
    positions = [number for number, at in enumerate(made, 1) if at in beats]
    rule = vRecur({"FREQ": "DAILY", "BYHOUR": hours, "BYMINUTE": minutes, "BYSECOND": seconds})
    if len(positions) < len(made):
        rule["BYSETPOS"] = positions
    return rule if positions[-1] <= MOST_POSITIONS or len(positions) == len(made) else None
