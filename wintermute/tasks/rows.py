"""A row of the table of tasks as a value, and as what a change set holds of it. Pure."""

from typing import Any
from zoneinfo import ZoneInfo

from wintermute.clock import moment, stamp
from wintermute.db import Row
from wintermute.messages import Json
from wintermute.tasks.records import Task
from wintermute.tasks.schedule import Plan, bracket, read

COLUMNS = (
    "id, scope, content, priority, status, created_at, reason,"
    " schedule, mode, ai_prompt, snoozed, next_due, failures, held"
)


def task_of(row: Row, zone: ZoneInfo) -> Task:
    """The task of a row with `COLUMNS`, its schedule in the words of this zone."""
    schedule = read(row["schedule"]) if row["schedule"] else None
    return Task(
        id=row["id"],
        scope=row["scope"],
        content=row["content"],
        priority=row["priority"],
        status=row["status"],
        created_at=moment(row["created_at"]),
        reason=row["reason"],
        schedule=bracket(schedule, zone) if schedule else "",
        plan=Plan(schedule=schedule, mode=row["mode"], ai_prompt=row["ai_prompt"]),
        snoozed=moment(row["snoozed"]) if row["snoozed"] else None,
        next_due=moment(row["next_due"]) if row["next_due"] else None,
        failures=row["failures"],
        held=bool(row["held"]),
    )


def state_of(task: Task) -> Json | None:
    """What a change set holds of a task; a deleted one is as none."""
    if task.status == "deleted":
        return None
    return {
        "content": task.content,
        "priority": task.priority,
        "status": task.status,
        "reason": task.reason,
        "scope": task.scope,
        "schedule": task.plan.schedule.stored() if task.plan.schedule else "",
        "mode": task.plan.mode,
        "ai_prompt": task.plan.ai_prompt,
        "snoozed": stamp(task.snoozed) if task.snoozed else None,
    }


def fields_of(state: Json) -> dict[str, Any]:
    """The fields of a task that `state_of` gave; of an older state those that it had."""
    fields = {name: state[name] for name in ("content", "priority", "status", "reason", "scope")}
    if "mode" in state:
        stored = state["schedule"]
        fields["plan"] = Plan(
            schedule=read(stored) if stored else None,
            mode=state["mode"],
            ai_prompt=state["ai_prompt"],
        )
        fields["snoozed"] = moment(state["snoozed"]) if state["snoozed"] else None
    return fields
