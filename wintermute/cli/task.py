"""`wintermute task`: tasks, also beside a running daemon.

Tasks are shown as lines for a person or as JSON for a program; all commands with a due time take
the same options.
"""

import json
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from functools import wraps
from typing import Any, get_args
from zoneinfo import ZoneInfo

import click

from wintermute.changes.change_sets import Reason
from wintermute.cli.history import history_command, undo_command
from wintermute.cli.opening import Command, Report, on_stores, scope_of, scope_option
from wintermute.cli.options import LazyGroup
from wintermute.clock import SystemClock, in_words
from wintermute.commands.tasks import HELD, brief, task_line
from wintermute.db import Transaction
from wintermute.messages import Json
from wintermute.stores import Stores
from wintermute.tasks.due import upcoming
from wintermute.tasks.occurrences import LATE, Occurrence
from wintermute.tasks.schedules import KINDS, MODES, PlanRequest
from wintermute.tasks.tasks import EVERYWHERE, Target, Task, Tasks
from wintermute.text import EMPTY_AT_SHELL, counted, harmless

SHOWN_AFTER_CHANGE = 3
"""The number of due times shown after a change."""
UNFINISHED = {"claimed": "under way", "missed": "not done the last time"}
CHOICES = {"schedule_type": (*KINDS, "none"), "execution_mode": MODES}
STATUSES = ("active", "paused", "completed", "deleted", "all")
SHOWN = 10


@dataclass(frozen=True, slots=True)
class TaskView:
    """A task at a moment. `last`: its newest occurrence."""

    task: Task
    last: Occurrence | None
    now: datetime
    zone: ZoneInfo

    def coming(self, count: int) -> tuple[datetime, ...]:
        """Return the next due times by the schedule, after an overdue or snoozed one."""
        task = self.task
        if task.status != "active":
            return ()
        found: tuple[datetime, ...] = ()
        if task.plan.schedule:
            found = upcoming(task.plan.schedule, self.now, self.zone, count)
        if task.next_due and (task.next_due <= self.now or not found):
            found = (task.next_due, *found)[:count]
        return found

    def due_text(self, due: datetime) -> str:
        """Return a due time for a person."""
        return in_words(due, self.zone) + (" (overdue)" if self.now - due > LATE else "")

    def remark(self) -> str:
        """Return a remark about surprising due times."""
        schedule, coming = self.task.plan.schedule, self.coming(1)
        return schedule.remark(coming[0], self.zone) if schedule and coming else ""

    def row(self) -> str:
        """Return one line of a list, with the next due time and missed ones."""
        task = self.task
        due = [f"due {in_words(task.next_due, self.zone)}"] if task.next_due else []
        return "  ".join([task_line(task), *due, *self._misses(), task.scope])

    def changed(self) -> Iterator[str]:
        """Yield the answer to a change: the task, and its next due times."""
        yield task_line(self.task)
        coming = self.coming(SHOWN_AFTER_CHANGE)
        yield from (f"  due {self.due_text(due)}" for due in coming)
        if remark := self.remark():
            yield f"  {remark}"
        if self.task.status == "active" and self.task.plan.schedule and not coming:
            yield f"  {self.nothing()}"

    def nothing(self) -> str:
        """Return why the task has no due time."""
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
        """Yield everything about the task, line by line."""
        due = self.task.next_due
        shown = {
            **self.json(),
            "schedule_fields": None,
            "next_due": None,
            "next_due_local": None,
            "due": self.due_text(due) if due else None,
            "ai_prompt": harmless(self.task.plan.ai_prompt).replace("\n", "\n  "),
            "created_at": in_words(self.task.created_at, self.zone),
            "missed": ", ".join(self._misses()),
            "last": None,
        }
        yield from (f"{name}: {value}" for name, value in shown.items() if value)
        if occurrences:
            yield "occurrences:"
        for each in occurrences:
            late = [f"{each.missed} missed"] if each.missed else []
            said = [brief(each.result)] if each.result else []
            yield "  " + "  ".join([in_words(each.due_at, self.zone), each.state, *late, *said])

    def json(self) -> Json:
        """Return the fields that every command shows."""
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
            "next_due": task.next_due,
            "next_due_local": in_words(task.next_due, self.zone) if task.next_due else None,
            "scope": task.scope,
            "reason": task.reason,
            "created_at": task.created_at,
            "missed": self.last.missed if self.last else 0,
            "failures": task.failures,
            "held": task.held,
            "last": occurrence_json(self.last) if self.last else None,
        }

    def changed_json(self) -> Json:
        """Return the fields with the next due times and a remark."""
        return {
            **self.json(),
            "next": self.coming_json(SHOWN_AFTER_CHANGE),
            "remark": self.remark(),
        }

    def coming_json(self, count: int) -> list[Json]:
        """Return the next due times as JSON."""
        return [{"due": due, "local": in_words(due, self.zone)} for due in self.coming(count)]

    def _misses(self) -> Iterator[str]:
        """Yield the missed and late occurrences, which every list shows."""
        task, last = self.task, self.last
        if task.held:
            yield HELD
        elif task.status == "active" and task.next_due and self.now - task.next_due > LATE:
            yield "overdue"
        if task.failures:
            yield f"failed {counted(task.failures, 'time')} in a row"
        if last and last.missed:
            yield f"{last.missed} missed"
        if last and last.state in UNFINISHED:
            yield UNFINISHED[last.state]


def occurrence_json(occurrence: Occurrence) -> dict[str, Any]:
    """Return the outcome of a due time as JSON."""
    names = ("due_at", "state", "missed", "ended_at", "result")
    return {name: getattr(occurrence, name) for name in names}


def schedule_options(command: Command) -> Callable[..., Any]:
    """Add an option to the command for each part of a `request`."""
    parts = fields(PlanRequest)

    @wraps(command)
    def packed(*args: Any, **given: Any) -> Any:
        said = {part.name: given.pop(part.name) for part in parts}
        for name in ("schedule_type", "at", "day_of_week", "rrule"):
            if said[name] is not None and not said[name].strip():  # as from an unset shell variable
                raise click.UsageError(f"--{name.replace('_', '-')} is empty")
        request = PlanRequest.of(said)
        return command(*args, request=request, **given)

    for part in reversed(parts):
        kind, choices = get_args(part.type)[0], CHOICES.get(part.name)
        kind = click.Choice(choices, case_sensitive=False) if choices else kind
        option = f"--{part.name.replace('_', '-')}"
        packed = click.option(option, type=kind, help=part.metadata["help"])(packed)
    return packed


# Loaded on demand: `export` needs a library.
@click.group("task", cls=LazyGroup, lazy={"export": "wintermute.cli.task_export"})
def command() -> None:
    """Show and change tasks and reminders.

    Example: wintermute task list
    """


@command.command("list")
@click.option(
    "--status",
    type=click.Choice(STATUSES),
    default="active",
    show_default=True,
    help="Show only these; deleted tasks are kept for 30 days.",
)
@scope_option("Only those of a person or room, as in person:@ann:example.org.", EVERYWHERE)
@on_stores
async def list_(stores: Stores, status: Any, scope: str | None) -> Report:
    """Show the tasks of everybody, or of one person or room.

    Example: wintermute task list --status all
    """
    named = await scope_of(stores, scope) if scope else None
    seen = await _view(stores, await stores.tasks.listed(named, status))
    nothing = dict.fromkeys(("active", "all"), EMPTY_AT_SHELL["tasks"])
    lines = [each.row() for each in seen] or [nothing.get(status, f"No task is {status}.")]
    return Report([each.json() for each in seen], lines)


@command.command("show")
@click.argument("task_id", metavar="ID")
@on_stores
async def show(stores: Stores, task_id: str) -> Report:
    """Show one task, and what happened at its last due times.

    Example: wintermute task show task_ab12cd34
    """
    [seen] = await _view(stores, [await stores.tasks.get(task_id, None)])
    occurrences = await stores.occurrences.of_task(seen.task.id, SHOWN)
    values = {**seen.changed_json(), "occurrences": [*map(occurrence_json, occurrences)]}
    return Report(values, seen.full(occurrences))


@command.command("next")
@click.argument("task_id", metavar="ID")
@click.option(
    "--count", type=click.IntRange(1, 100), default=3, show_default=True, help="How many due times."
)
@on_stores
async def next_(stores: Stores, task_id: str, count: int) -> Report:
    """Show when a task is due next.

    Example: wintermute task next task_ab12cd34 --count 5
    """
    [seen] = await _view(stores, [await stores.tasks.get(task_id, None)])
    lines = [seen.due_text(due) for due in seen.coming(count)] or [seen.nothing()]
    return Report(seen.coming_json(count), lines)


@command.command("add")
@click.argument("content")
@click.option("--priority", type=int, default=5, show_default=True, help="1 urgent to 10 low.")
@scope_option(
    "A person or room, as in person:@ann:example.org, or `global` for every room; default: the owner.",
    EVERYWHERE,
)
@schedule_options
@on_stores
async def add(
    stores: Stores, content: str, priority: int, scope: str | None, request: PlanRequest
) -> Report:
    """Add a task, and say when it is due next.

    Example: wintermute task add "Water the plants" --schedule-type daily --at 18:30
    """
    named = await scope_of(stores, scope)
    async with stores.database.transaction() as tx:
        task = await stores.tasks.add(
            tx, _why(stores), content, scope=named, priority=priority, request=request
        )
    return await _changed(stores, task)


@command.command("update")
@click.argument("task_id", metavar="ID")
@click.option("--content", help="The new wording.")
@click.option("--priority", type=int, help="1 urgent to 10 low.")
@schedule_options
@on_stores
async def update(
    stores: Stores, task_id: str, content: str | None, priority: int | None, request: PlanRequest
) -> Report:
    """Change a task: wording, priority, schedule or mode; the rest stays as it is.

    Example: wintermute task update task_ab12cd34 --at 19:00
    """
    target = Target(task_id, None, _why(stores))
    async with stores.database.transaction() as tx:
        task = await stores.tasks.change(
            tx, target, content=content, priority=priority, request=request
        )
    return await _changed(stores, task)


@command.command("complete")
@click.argument("task_id", metavar="ID")
@click.option("--reason", required=True, help='How it ended, as in "paid on Monday".')
@on_stores
async def complete(stores: Stores, task_id: str, reason: str) -> Report:
    """Mark a task as done.

    Example: wintermute task complete task_ab12cd34 --reason "paid on Monday"
    """
    async with stores.database.transaction() as tx:
        task = await stores.tasks.complete(tx, Target(task_id, None, _why(stores)), reason)
    return await _changed(stores, task)


def _simple(
    verb: str, act: Callable[[Tasks, Transaction, Target], Awaitable[Task]], text: str
) -> None:
    """Make a command that needs nothing but the id."""

    @click.argument("task_id", metavar="ID")
    @on_stores
    async def run(stores: Stores, task_id: str) -> Report:
        async with stores.database.transaction() as tx:
            task = await act(stores.tasks, tx, Target(task_id, None, _why(stores)))
        return await _changed(stores, task)

    command.command(verb, help=f"{text}\n\nExample: wintermute task {verb} task_ab12cd34")(run)


_simple("pause", Tasks.pause, "Pause a task: it is not due until you resume it.")
_simple("resume", Tasks.resume, "Make a paused or completed task active again.")
_simple("delete", Tasks.delete, "Remove a task; `restore` brings it back for 30 days.")
_simple("restore", Tasks.restore, "Bring a deleted task back.")
command.add_command(history_command("task"))
command.add_command(undo_command("task"))


def _why(stores: Stores) -> Reason:
    return Reason("command", stores.owner.scope)


async def _changed(stores: Stores, task: Task) -> Report:
    [seen] = await _view(stores, [task])
    return Report(seen.changed_json(), seen.changed())


async def _view(stores: Stores, tasks: Sequence[Task]) -> list[TaskView]:
    last = await stores.occurrences.last([task.id for task in tasks])
    now, zone = SystemClock().now(), stores.tasks.zone
    return [TaskView(task, last.get(task.id), now, zone) for task in tasks]
