"""Tasks as an iCalendar file (T-064), for any calendar application. Pure.

When a task is due becomes a beginning and what recurs; a time zone becomes when its clock is put
forward and back.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from itertools import count, product, takewhile
from zoneinfo import ZoneInfo

from icalendar import Calendar, Event, Timezone, TimezoneDaylight, TimezoneStandard, Todo, vRecur

from wintermute.tasks.due import Schedule, dates, instant, moments, next_due, upcoming
from wintermute.tasks.tasks import Task
from wintermute.text import harmless, one_line

DAY, SECOND = timedelta(days=1), timedelta(seconds=1)


def described(zone: ZoneInfo, first: int, last: int) -> Timezone:
    """The VTIMEZONE of a zone, with its clock changes in these years.

    When a change happens is told by the clock as it was before (RFC 5545, 3.6.5).
    """
    begins, ends = datetime(first, 1, 1, tzinfo=UTC), datetime(last + 1, 1, 1, tzinfo=UTC)
    before = _offset(begins, zone)
    onsets: dict[tuple[timedelta, timedelta, str, bool], list[datetime]] = defaultdict(list)
    for change in (begins, *_changes(zone, begins, ends)):
        local, offset = change.astimezone(zone), _offset(change, zone)
        onset = (change + before).replace(tzinfo=None)
        onsets[before, offset, local.tzname() or "", bool(local.dst())].append(onset)
        before = offset
    component = Timezone()
    component.add("TZID", zone.key)
    for (before, offset, name, summer), found in onsets.items():
        part = TimezoneDaylight() if summer else TimezoneStandard()
        part.add("DTSTART", found[0])
        if found[1:]:
            part.add("RDATE", found[1:])
        part.add("TZNAME", name)
        part.add("TZOFFSETFROM", before)
        part.add("TZOFFSETTO", offset)
        component.add_component(part)
    return component


def _changes(zone: ZoneInfo, begins: datetime, ends: datetime) -> Iterator[datetime]:
    """To the second; a clock is not changed twice a day."""
    day = begins
    while day < ends:
        before = _offset(day, zone)
        if _offset(day + DAY, zone) != before:
            yield _change(zone, day, before)
        day += DAY


def _change(zone: ZoneInfo, day: datetime, before: timedelta) -> datetime:
    def changed(second: int) -> bool:
        return _offset(day + timedelta(seconds=second), zone) != before

    return day + timedelta(seconds=bisect_right(range(DAY // SECOND), False, key=changed))


def _offset(moment: datetime, zone: ZoneInfo) -> timedelta:
    return moment.astimezone(zone).utcoffset() or timedelta()


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


YEARS = 20
"""How far ahead of the last beginning the clock changes of the zone are told."""


def calendar(tasks: Sequence[Task], zone: ZoneInfo) -> bytes:
    """What is to come: an event for each active task with a schedule, a to-do for each without.

    The same tasks give the same bytes. What only was put off keeps its place in the calendar.
    """
    told = [(task, times(task, zone)) for task in tasks if task.status == "active"]
    years = [when.start.year for _, when in told if when and when.start.tzinfo is zone]
    whole = Calendar()
    whole.add("VERSION", "2.0")
    whole.add("PRODID", "-//Wintermute//EN")
    if years and zone.key != "UTC":
        whole.add_component(described(zone, min(years) - 1, max(years) + YEARS))
    for task, when in told:
        whole.add_component(_entry(task, when))
    return bytes(whole.to_ical())


def _entry(task: Task, when: Times | None) -> Event | Todo:
    entry = Event() if when else Todo()
    entry.add("UID", f"{task.id}@wintermute")
    entry.add("DTSTAMP", task.created_at)
    entry.add("CREATED", task.created_at)
    entry.add("SUMMARY", one_line(task.content))
    entry.add("PRIORITY", min(task.priority, 9))
    if task.plan.ai_prompt:
        entry.add("DESCRIPTION", harmless(task.plan.ai_prompt))
    if when is None:
        entry.add("STATUS", "NEEDS-ACTION")
        return entry
    entry.add("DTSTART", when.start)
    if when.rule:
        entry.add("RRULE", when.rule)
    if when.more:
        entry.add("RDATE", list(when.more))
    # Nobody is busy because of a reminder.
    entry.add("TRANSP", "TRANSPARENT")
    return entry
