"""Tasks as an iCalendar file (T-064), for any calendar application. Pure."""

from collections.abc import Sequence
from zoneinfo import ZoneInfo

from icalendar import Calendar, Event, Todo

from wintermute.tasks.calendar_times import Times, times
from wintermute.tasks.records import Task
from wintermute.tasks.zones import described
from wintermute.text import harmless, one_line

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
