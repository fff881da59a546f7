"""What is to be done, as a list for people (T-011). Pure."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import groupby
from zoneinfo import ZoneInfo

from wintermute.clock import DAYS
from wintermute.commands.listing import MOST_LINES, brief, plain
from wintermute.tasks.claiming import LATE
from wintermute.tasks.occurrences import Occurrence
from wintermute.tasks.records import EVERYWHERE, Task
from wintermute.tasks.schedule import clock

GROUPS = ("Today", "This week", "Later", "Any time", "Paused")
WEEK = 7
"""Days, today among them, so that each is named once by its weekday."""
HELD = "due, but there is no room to say it in"


def task_list(
    tasks: Sequence[Task], last: Mapping[str, Occurrence], now: datetime, zone: ZoneInfo
) -> str:
    """The tasks under headings, by when they are due; empty if there are none.

    `last`: the newest occurrence of each task that has one.
    """
    moments = {task.id: _moment(task, last.get(task.id)) for task in tasks}

    def group(task: Task) -> int:
        return _group(task, moments[task.id], now, zone)

    in_order = sorted(tasks, key=lambda task: (group(task), moments[task.id] or now))
    parts = []
    for heading, found in groupby(in_order[:MOST_LINES], group):
        lines = [_line(task, moments[task.id], last.get(task.id), now, zone) for task in found]
        parts.append("\n".join([f"**{GROUPS[heading]}**", *lines]))
    more = len(tasks) - MOST_LINES
    return "\n\n".join([*parts, *([f"and {more} more"] if more > 0 else [])])


def _moment(task: Task, last: Occurrence | None) -> datetime | None:
    """When it is due; until it is said, when it was."""
    if task.status == "paused":
        return None
    if task.next_due is None and last is not None and last.state == "claimed":
        return last.due_at
    return task.next_due


def _group(task: Task, due: datetime | None, now: datetime, zone: ZoneInfo) -> int:
    if due is None:
        return GROUPS.index("Paused" if task.status == "paused" else "Any time")
    days = _days(due, now, zone)
    return GROUPS.index("Today" if days < 1 else "This week" if days < WEEK else "Later")


def _days(when: datetime, now: datetime, zone: ZoneInfo) -> int:
    return (when.astimezone(zone).date() - now.astimezone(zone).date()).days


def _shown(when: datetime, now: datetime, zone: ZoneInfo) -> str:
    """`18:30` today, `Thu 09:00` in the week to come, else with the date."""
    local, days = when.astimezone(zone), _days(when, now, zone)
    time = clock(local.time().isoformat())
    if days == 0:
        return time
    return f"{DAYS[local.weekday()][:3]} {time}" if 0 < days < WEEK else f"{local.date()} {time}"


def _line(
    task: Task, due: datetime | None, last: Occurrence | None, now: datetime, zone: ZoneInfo
) -> str:
    schedule = task.plan.schedule
    details = [f"`{task.id}`", f"P{task.priority}"]
    if schedule and (schedule.kind != "once" or due is None):
        details.append(task.schedule)
    if task.plan.mode != "reminder":
        details.append("runs by itself")
    notes = [note for note in (_own(task, due, now), _lately(task, last, now, zone)) if note]
    when = f"{_shown(due, now, zone)} " if due else ""
    return f"- {when}{plain(brief(task.content))} ({'; '.join([', '.join(details), *notes])})"


def _own(task: Task, due: datetime | None, now: datetime) -> str:
    """What a person should know about its time."""
    if task.held:
        return HELD
    if task.status == "active" and due is None and task.plan.schedule:
        return "its time has passed"
    return "overdue" if task.next_due and due and now - task.next_due > LATE else ""


def _lately(task: Task, last: Occurrence | None, now: datetime, zone: ZoneInfo) -> str:
    """What came of it the last time, unless all went well."""
    if last is None:
        return ""
    reminds = last.mode == "reminder"
    missed = f"{last.missed} missed, " if last.missed > 1 else ""
    if last.state == "claimed":
        return missed + ("being delivered" if reminds else "its run is not finished")
    if last.state == "failed":
        # What a run says is as private as the room it ran for.
        why = f": {plain(brief(last.result))}" if task.scope != EVERYWHERE else ""
        return f"last run failed{why}"
    ended = (last.ended_at or last.due_at).replace(second=0, microsecond=0)
    if not last.missed and not (reminds and ended - last.due_at > LATE):
        return ""
    return f"{missed}last {'said' if reminds else 'run'} late at {_shown(ended, now, zone)}"
