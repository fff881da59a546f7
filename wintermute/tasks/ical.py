"""Tasks as an iCalendar file (T-064) for any calendar application. Pure.

A schedule becomes a start and a recurrence; a time zone becomes a list of its clock changes.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

from icalendar import Calendar, Event, Timezone, TimezoneDaylight, TimezoneStandard, Todo, vRecur

from wintermute.tasks.due import instant
from wintermute.tasks.schedules import Recurrence
from wintermute.tasks.tasks import Task
from wintermute.text import harmless, one_line

DAY, SECOND = timedelta(days=1), timedelta(seconds=1)
JUST = timedelta(microseconds=1)
YEARS = 20
"""The years after the last start for which the clock changes of the zone are listed."""


def described(zone: ZoneInfo, first: int, last: int) -> Timezone:
    """Return the VTIMEZONE of a zone with its clock changes in these years.

    The time of a change is given in the offset that was valid before it (RFC 5545, 3.6.5).
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
    for (before, offset, name, summer), starts in onsets.items():
        part = TimezoneDaylight() if summer else TimezoneStandard()
        part.add("DTSTART", starts[0])
        if starts[1:]:
            part.add("RDATE", starts[1:])
        part.add("TZNAME", name)
        part.add("TZOFFSETFROM", before)
        part.add("TZOFFSETTO", offset)
        component.add_component(part)
    return component


def _changes(zone: ZoneInfo, begins: datetime, ends: datetime) -> Iterator[datetime]:
    """Yield the clock changes, to the second; there is at most one a day."""
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


def calendar(tasks: Sequence[Task], zone: ZoneInfo) -> bytes:
    """Return the calendar: an event for each active task with a schedule, a to-do for each without.

    The same tasks give the same bytes. A snoozed task keeps its scheduled place.
    """
    entries = [(task, recurrence(task, zone)) for task in tasks if task.status == "active"]
    years = [when.start.year for _, when in entries if when and when.start.tzinfo is zone]
    whole = Calendar()
    whole.add("VERSION", "2.0")
    whole.add("PRODID", "-//Wintermute//EN")
    if years and zone.key != "UTC":
        whole.add_component(described(zone, min(years) - 1, max(years) + YEARS))
    for task, when in entries:
        whole.add_component(_entry(task, when, zone))
    return bytes(whole.to_ical())


def recurrence(task: Task, zone: ZoneInfo) -> Recurrence | None:
    """Return the recurrence from the next due moment on; None for a task without a schedule."""
    schedule, since = task.plan.schedule, (task.next_due or task.created_at) - JUST
    return schedule.recurrence(task.next_due, since, zone) if schedule else None


def _until(last: date | datetime, zone: ZoneInfo) -> datetime:
    """Return an UNTIL in UTC, as a start with a time zone requires; a date alone means the whole day."""
    if not isinstance(last, datetime):
        last = datetime.combine(last, time(23, 59, 59))
    return last if last.tzinfo else instant(last, zone)


def _entry(task: Task, when: Recurrence | None, zone: ZoneInfo) -> Event | Todo:
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
        rule = vRecur.from_ical(when.rule)
        if "UNTIL" in rule:
            rule["UNTIL"] = _until(rule["UNTIL"][0], zone)
        entry.add("RRULE", rule)
    if when.more:
        entry.add("RDATE", list(when.more))
    # A reminder does not make anybody busy.
    entry.add("TRANSP", "TRANSPARENT")
    return entry
