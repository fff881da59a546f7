"""`wintermute task`: what is to be done, also beside a running daemon."""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from importlib import import_module
from typing import Any

import click

from wintermute.changes.records import Reason
from wintermute.cli.history import history_command, undo_command
from wintermute.cli.options import config_option, json_option
from wintermute.cli.stores import scope_of, scope_option, tell, with_stores
from wintermute.cli.task_lines import Seen, occurrence_json
from wintermute.cli.task_options import schedule_options
from wintermute.clock import SystemClock
from wintermute.commands.stores import Stores
from wintermute.config.schema import Config
from wintermute.db import Transaction
from wintermute.tasks.asked import Asked
from wintermute.tasks.occurrences import Occurrence
from wintermute.tasks.records import EVERYWHERE, Task

STATUSES = ("active", "paused", "completed", "deleted", "all")
SHOWN = 10
EXPORT = "export"
Step = Callable[[Stores, Transaction, Reason], Awaitable[Task]]


class Verbs(click.Group):
    """`export` needs a library, which the others need not load."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*super().list_commands(ctx), EXPORT]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name != EXPORT:
            return super().get_command(ctx, cmd_name)
        command: click.Command = import_module("wintermute.cli.task_export").command
        return command


@click.group("task", cls=Verbs)
def command() -> None:
    """What is to be done: show and change it.

    Example: wintermute task list
    """


@command.command("list")
@click.option(
    "--status",
    type=click.Choice(STATUSES),
    default="active",
    show_default=True,
    help="Which ones; what was deleted is kept for 30 days.",
)
@scope_option("Only those of a person or room, as in person:@ann:example.org.", EVERYWHERE)
@config_option
@json_option
@click.pass_context
def list_(ctx: click.Context, status: Any, scope: str | None, as_json: bool) -> None:
    """Show the tasks of everybody, or of one scope.

    Example: wintermute task list --status all
    """

    async def work(stores: Stores, _: Config) -> list[Seen]:
        named = await scope_of(stores, scope) if scope else None
        return await _seen(stores, await stores.tasks.listed(named, status))

    seen = with_stores(ctx, work)
    nothing = {"active": "There is nothing to be done.", "all": "There is no task."}
    lines = [each.row() for each in seen] or [nothing.get(status, f"No task is {status}.")]
    tell(ctx, [each.json() for each in seen], *lines, as_json=as_json)


@command.command("show")
@click.argument("task_id", metavar="ID")
@config_option
@json_option
@click.pass_context
def show(ctx: click.Context, task_id: str, as_json: bool) -> None:
    """Show one task and what came of its last due times.

    Example: wintermute task show task_ab12cd34
    """

    async def work(stores: Stores, _: Config) -> tuple[Seen, list[Occurrence]]:
        task = await stores.tasks.get(task_id, None)
        [seen] = await _seen(stores, [task])
        return seen, await stores.occurrences.of_task(task.id, SHOWN)

    seen, occurrences = with_stores(ctx, work)
    values = {**seen.changed_json(), "occurrences": [*map(occurrence_json, occurrences)]}
    tell(ctx, values, *seen.full(occurrences), as_json=as_json)


@command.command("next")
@click.argument("task_id", metavar="ID")
@click.option(
    "--count", type=click.IntRange(1, 100), default=3, show_default=True, help="How many."
)
@config_option
@json_option
@click.pass_context
def next_(ctx: click.Context, task_id: str, count: int, as_json: bool) -> None:
    """Show when a task is due next.

    Example: wintermute task next task_ab12cd34 --count 5
    """

    async def work(stores: Stores, _: Config) -> Seen:
        [seen] = await _seen(stores, [await stores.tasks.get(task_id, None)])
        return seen

    seen = with_stores(ctx, work)
    lines = [seen.said(due) for due in seen.coming(count)] or [seen.nothing()]
    tell(ctx, seen.coming_json(count), *lines, as_json=as_json)


@command.command("add")
@click.argument("content")
@click.option("--priority", type=int, default=5, show_default=True, help="1 urgent to 10 low.")
@scope_option("Whose task it is; default: the owner's. `global`: every room's.", EVERYWHERE)
@schedule_options
@config_option
@json_option
@click.pass_context
def add(
    ctx: click.Context,
    content: str,
    priority: int,
    scope: str | None,
    asked: Asked,
    as_json: bool,
) -> None:
    """Add a task, and say when it is due next.

    Example: wintermute task add "Water the plants" --schedule-type daily --at 18:30
    """

    async def step(stores: Stores, tx: Transaction, why: Reason) -> Task:
        return await stores.tasks.add(
            tx,
            why,
            content,
            scope=await scope_of(stores, scope or stores.owner_scope),
            priority=priority,
            asked=asked,
        )

    _change(ctx, step, as_json)


@command.command("update")
@click.argument("task_id", metavar="ID")
@click.option("--content", help="The new wording.")
@click.option("--priority", type=int, help="1 urgent to 10 low.")
@schedule_options
@config_option
@json_option
@click.pass_context
def update(
    ctx: click.Context,
    task_id: str,
    content: str | None,
    priority: int | None,
    asked: Asked,
    as_json: bool,
) -> None:
    """Change wording, priority, schedule or mode; what is not given stays as it is.

    Example: wintermute task update task_ab12cd34 --at 19:00
    """

    async def step(stores: Stores, tx: Transaction, why: Reason) -> Task:
        return await stores.tasks.change(
            tx, why, task_id, None, content=content, priority=priority, asked=asked
        )

    _change(ctx, step, as_json)


@command.command("complete")
@click.argument("task_id", metavar="ID")
@click.option("--reason", required=True, help="What came of it.")
@config_option
@json_option
@click.pass_context
def complete(ctx: click.Context, task_id: str, reason: str, as_json: bool) -> None:
    """Mark a task as done.

    Example: wintermute task complete task_ab12cd34 --reason "paid on Monday"
    """

    async def step(stores: Stores, tx: Transaction, why: Reason) -> Task:
        return await stores.tasks.complete(tx, why, task_id, None, reason)

    _change(ctx, step, as_json)


def _simple(verb: str, text: str) -> None:
    """A verb that needs nothing but the id."""

    @click.argument("task_id", metavar="ID")
    @config_option
    @json_option
    @click.pass_context
    def run(ctx: click.Context, task_id: str, as_json: bool) -> None:
        async def step(stores: Stores, tx: Transaction, why: Reason) -> Task:
            act = {
                "pause": stores.tasks.pause,
                "resume": stores.tasks.resume,
                "delete": stores.tasks.delete,
                "restore": stores.tasks.restore,
            }[verb]
            return await act(tx, why, task_id, None)

        _change(ctx, step, as_json)

    run.__doc__ = f"{text}\n\nExample: wintermute task {verb} task_ab12cd34"
    command.command(verb)(run)


_simple("pause", "Take a task out of the prompt until it is resumed.")
_simple("resume", "Make a paused or completed task active again.")
_simple("delete", "Remove a task; `restore` brings it back for 30 days.")
_simple("restore", "Bring a deleted task back.")
command.add_command(history_command("task"))
command.add_command(undo_command("task"))


def _change(ctx: click.Context, step: Step, as_json: bool) -> None:
    seen = with_stores(ctx, partial(_apply, step))
    tell(ctx, seen.changed_json(), *seen.changed(), as_json=as_json)


async def _apply(step: Step, stores: Stores, _: Config) -> Seen:
    async with stores.database.transaction() as tx:
        task = await step(stores, tx, Reason("command", stores.owner_scope))
    [seen] = await _seen(stores, [task])
    return seen


async def _seen(stores: Stores, tasks: Sequence[Task]) -> list[Seen]:
    last = await stores.occurrences.last([task.id for task in tasks])
    now, zone = SystemClock().now(), stores.tasks.zone
    return [Seen(task, last.get(task.id), now, zone) for task in tasks]
