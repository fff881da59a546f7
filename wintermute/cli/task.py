"""`wintermute task`: what is to be done, also beside a running daemon."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import click

from wintermute.changes.records import Reason
from wintermute.cli.history import history_command, undo_command
from wintermute.cli.options import config_option, json_option
from wintermute.cli.stores import scope_option, tell, with_stores
from wintermute.clock import stamp
from wintermute.commands.listing import task_line
from wintermute.commands.stores import Stores
from wintermute.config.schema import Config
from wintermute.db import Transaction
from wintermute.tasks.records import EVERYWHERE, Task

STATUSES = ("active", "paused", "completed", "deleted", "all")
Step = Callable[[Stores, Transaction, Reason], Awaitable[Task]]


@click.group("task")
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

    async def work(stores: Stores, _: Config) -> tuple[Task, ...]:
        return await stores.tasks.listed(scope, status)

    tasks = with_stores(ctx, work)
    nothing = {"active": "There is nothing to be done.", "all": "There is no task."}
    lines = [f"{task_line(task)}  {task.scope}" for task in tasks]
    lines = lines or [nothing.get(status, f"No task is {status}.")]
    tell(ctx, [_json(task) for task in tasks], *lines, as_json=as_json)


@command.command("show")
@click.argument("task_id", metavar="ID")
@config_option
@json_option
@click.pass_context
def show(ctx: click.Context, task_id: str, as_json: bool) -> None:
    """Show one task.

    Example: wintermute task show task_ab12cd34
    """

    async def work(stores: Stores, _: Config) -> Task:
        return await stores.tasks.get(task_id, None)

    task = with_stores(ctx, work)
    lines = (f"{name}: {value}" for name, value in _json(task).items() if value)
    tell(ctx, _json(task), *lines, as_json=as_json)


@command.command("add")
@click.argument("content")
@click.option("--priority", type=int, default=5, show_default=True, help="1 urgent to 10 low.")
@scope_option("Whose task it is; default: the owner's. `global`: every room's.", EVERYWHERE)
@config_option
@json_option
@click.pass_context
def add(ctx: click.Context, content: str, priority: int, scope: str | None, as_json: bool) -> None:
    """Add a task.

    Example: wintermute task add "Renew the passport" --priority 3
    """

    async def step(stores: Stores, tx: Transaction, why: Reason) -> Task:
        return await stores.tasks.add(
            tx, why, content, scope=scope or stores.owner_scope, priority=priority
        )

    _change(ctx, step, as_json)


@command.command("update")
@click.argument("task_id", metavar="ID")
@click.option("--content", help="The new wording.")
@click.option("--priority", type=int, help="1 urgent to 10 low.")
@config_option
@json_option
@click.pass_context
def update(
    ctx: click.Context, task_id: str, content: str | None, priority: int | None, as_json: bool
) -> None:
    """Change wording or priority.

    Example: wintermute task update task_ab12cd34 --priority 1
    """

    async def step(stores: Stores, tx: Transaction, why: Reason) -> Task:
        return await stores.tasks.change(tx, why, task_id, None, content=content, priority=priority)

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
    task = with_stores(ctx, partial(_apply, step))
    tell(ctx, _json(task), task_line(task), as_json=as_json)


async def _apply(step: Step, stores: Stores, _: Config) -> Task:
    async with stores.database.transaction() as tx:
        return await step(stores, tx, Reason("command", stores.owner_scope))


def _json(task: Task) -> dict[str, Any]:
    return {
        "id": task.id,
        "priority": task.priority,
        "status": task.status,
        "content": task.content,
        "schedule": task.schedule or None,
        "scope": task.scope,
        "reason": task.reason,
        "created_at": stamp(task.created_at),
    }
