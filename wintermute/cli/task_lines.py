"""Tasks for the terminal: as lines for a person, as JSON for a program. Pure."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from wintermute.clock import spoken, stamp
from wintermute.commands.listing import brief, task_line
from wintermute.messages import Json
from wintermute.tasks.asked import remarks
from wintermute.tasks.claiming import LATE
from wintermute.tasks.due import upcoming
from wintermute.tasks.occurrences import Occurrence
from wintermute.tasks.records import Task
from wintermute.text import counted, harmless

TOLD = 3
"""How many due times a change is answered with."""
UNFINISHED = {"claimed": "under way", "missed": "not done the last time"}


@dataclass(frozen=True, slots=True)
class Seen:
    """A task as it is seen now. `last`: its newest occurrence."""

    task: Task
    last: Occurrence | None
    now: datetime
    zone: ZoneInfo

    def coming(self, count: int) -> tuple[datetime, ...]:
        """The next due times: by its schedule, after what is overdue or was put off."""
        task = self.task
        if task.status != "active":
            return ()
        found: tuple[datetime, ...] = ()
        if task.plan.schedule:
            found = upcoming(task.plan.schedule, self.now, self.zone, count)
        if task.next_due and (task.next_due <= self.now or not found):
            found = (task.next_due, *found)[:count]
        return found

    def said(self, due: datetime) -> str:
        """A due time as a person reads it."""
        return spoken(due, self.zone) + (" (overdue)" if self.now - due > LATE else "")

    def remark(self) -> str:
        """What is to be known about its due times."""
        coming = self.coming(1)
        return remarks(self.task.plan.schedule, coming[0], self.zone) if coming else ""

    def row(self) -> str:
        """One line of a list: also when it is due next, and what did not happen in time."""
        task = self.task
        due = [f"due {spoken(task.next_due, self.zone)}"] if task.next_due else []
        return "  ".join([task_line(task), *due, *self._misses(), task.scope])

    def changed(self) -> Iterator[str]:
        """What a change is answered with: the task, and when it is due from now on."""
        yield task_line(self.task)
        coming = self.coming(TOLD)
        yield from (f"  due {self.said(due)}" for due in coming)
        if remark := self.remark():
            yield f"  {remark}"
        if self.task.status == "active" and self.task.plan.schedule and not coming:
            yield f"  {self.nothing()}"

    def nothing(self) -> str:
        """Why it has no due time."""
        task = self.task
        if task.status != "active":
            return f"{task.id} is {task.status}: it is not due."
        if task.plan.schedule is None:
            return f"{task.id} has no schedule: it is never due."
        return (
            f"{task.id} has no due time left; another one:"
            f" wintermute task update {task.id} --at TIME"
        )

    def full(self, occurrences: Sequence[Occurrence]) -> Iterator[str]:
        """Everything about the task, line by line."""
        due = self.task.next_due
        shown = {
            **self.json(),
            "schedule_fields": None,
            "next_due": None,
            "next_due_local": None,
            "due": self.said(due) if due else None,
            "ai_prompt": harmless(self.task.plan.ai_prompt).replace("\n", "\n  "),
            "created_at": spoken(self.task.created_at, self.zone),
            "missed": ", ".join(self._misses()),
            "last": None,
        }
        yield from (f"{name}: {value}" for name, value in shown.items() if value)
        if occurrences:
            yield "occurrences:"
        for each in occurrences:
            late = [f"{each.missed} missed"] if each.missed else []
            said = [brief(each.result)] if each.result else []
            yield "  " + "  ".join([spoken(each.due_at, self.zone), each.state, *late, *said])

    def json(self) -> Json:
        """The fields that every command shows."""
        task, plan = self.task, self.task.plan
        return {
            "id": task.id,
            "priority": task.priority,
            "status": task.status,
            "content": task.content,
            "schedule": task.schedule or None,
            "schedule_fields": json.loads(plan.schedule.stored()) if plan.schedule else None,
            "execution_mode": plan.mode,
            "ai_prompt": plan.ai_prompt,
            "next_due": stamp(task.next_due) if task.next_due else None,
            "next_due_local": spoken(task.next_due, self.zone) if task.next_due else None,
            "scope": task.scope,
            "reason": task.reason,
            "created_at": stamp(task.created_at),
            "missed": self.last.missed if self.last else 0,
            "failures": task.failures,
            "held": task.held,
            "last": occurrence_json(self.last) if self.last else None,
        }

    def changed_json(self) -> Json:
        """The fields, with the next due times and what is to be known about them."""
        return {**self.json(), "next": self.coming_json(TOLD), "remark": self.remark()}

    def coming_json(self, count: int) -> list[dict[str, str]]:
        """The next due times."""
        return [{"due": stamp(due), "local": spoken(due, self.zone)} for due in self.coming(count)]

    def _misses(self) -> Iterator[str]:
        """What did not happen, or not in time: it is to be seen where tasks are listed."""
        task, last = self.task, self.last
        if task.held:
            yield "due, but there is no room to say it in"
        elif task.status == "active" and task.next_due and self.now - task.next_due > LATE:
            yield "overdue"
        if task.failures:
            yield f"failed {counted(task.failures, 'time')} in a row"
        if last and last.missed:
            yield f"{last.missed} missed"
        if last and last.state in UNFINISHED:
            yield UNFINISHED[last.state]


def occurrence_json(occurrence: Occurrence) -> dict[str, Any]:
    """What came of a due time."""
    return {
        "due_at": stamp(occurrence.due_at),
        "state": occurrence.state,
        "missed": occurrence.missed,
        "ended_at": stamp(occurrence.ended_at) if occurrence.ended_at else None,
        "result": occurrence.result,
    }
