"""Which due moment a task is claimed for, and what is next. Pure.

However long we were away, a task is claimed once: for the latest moment that was due (T-043).
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from wintermute.clock import stamp
from wintermute.tasks.due import missed, next_due
from wintermute.tasks.records import Task
from wintermute.tasks.schedule import clock

LATE = timedelta(minutes=5)
"""From this on a message says when it was due (T-038)."""


@dataclass(frozen=True, slots=True)
class Due:
    """A task whose time has come. `made_in`: the conversation it comes from, if any."""

    task: Task
    made_in: str | None
    rule_due: datetime | None


@dataclass(frozen=True, slots=True)
class Claim:
    """A due moment that is taken, and what is next for its task.

    `missed`: how many due moments it stands for, 0 when none was missed.
    """

    due: Due
    due_at: datetime
    missed: int
    rule_due: datetime | None
    snoozed: datetime | None

    def is_unreal(self, now: datetime) -> bool:
        """Whether a series was due before its task was made: the clock had been set back (F-015)."""
        task = self.due.task
        schedule = task.plan.schedule
        is_series = schedule is not None and schedule.kind != "once"
        return is_series and self.due_at < task.created_at <= now


def claim(due: Due, now: datetime, since: datetime, zone: ZoneInfo) -> Claim:
    """The claim for a task that is due. `since`: before that we were away (T-042)."""
    schedule, rule, snoozed = due.task.plan.schedule, due.rule_due, due.task.snoozed
    moments, count = [], 0
    if snoozed and snoozed <= now:
        moments, count, snoozed = [snoozed], 1, None
    if schedule and rule and rule <= now:
        found = missed(schedule, rule, now, zone)
        moments.append(found.latest)
        count, rule = found.count, next_due(schedule, now, zone)
    due_at = max(moments)
    asked_late = due_at < due.task.created_at <= now  # it was written earlier (F-029)
    late = asked_late or due_at < since or now - due_at > LATE or count > 1
    return Claim(due, due_at, count if late else 0, rule, snoozed)


def cause(task_id: str, due_at: datetime) -> str:
    """The name of a due moment, the same in every copy of the database."""
    return f"{task_id} {stamp(due_at)}"


def mark(due_at: datetime, count: int, zone: ZoneInfo) -> str:
    """What a late message ends with (T-042, T-043)."""
    local = due_at.astimezone(zone)
    when = f"{local:%Y-%m-%d} {clock(local.time().isoformat())}"
    more = f", {count} missed" if count > 1 else ""
    return f" (was due {when}{more})"
