"""`/tasks`: the list, and lines that act on one task, as reactions on reminders do (T-011, T-063)."""

from collections.abc import Awaitable, Callable, Collection
from datetime import timedelta
from typing import NamedTuple

from wintermute.changes.records import Reason
from wintermute.clock import Clock, spoken
from wintermute.commands.listing import brief, plain
from wintermute.commands.stores import Stores
from wintermute.commands.task_list import task_list
from wintermute.db import Transaction
from wintermute.errors import ToolFailed
from wintermute.mailbox.inbox import Waiting
from wintermute.tasks.due import tomorrow
from wintermute.tasks.records import EVERYWHERE, Task

SNOOZE = timedelta(minutes=10)
AROUND = "`#()[].,:;"
"""What people copy with an id."""
VERBS = "\n".join(
    (
        "- `/tasks`: what is to be done here",
        "- `/tasks done ID`: it is done; what comes again is done until then",
        "- `/tasks snooze ID`: again in 10 minutes",
        "- `/tasks tomorrow ID`: again tomorrow at the same time",
        "- `/tasks cancel ID`: delete it",
        "- `/tasks pause ID`, `/tasks resume ID`: nothing comes of it in between",
        "",
        "Without an ID the first four mean the last reminder here.",
    )
)


class Wish(NamedTuple):
    """Which task is meant, and on whose behalf it is to be changed."""

    tx: Transaction
    why: Reason
    task_id: str
    scope: str
    by_owner: bool


class TaskVerbs:
    """Answers `/tasks` and what follows it."""

    def __init__(self, stores: Stores, clock: Clock) -> None:
        self._tasks = stores.tasks
        self._occurrences = stores.occurrences
        self._clock = clock
        self._verbs: dict[str, Callable[[Wish], Awaitable[str]]] = {
            "done": self._done,
            "snooze": self._snooze,
            "tomorrow": self._tomorrow,
            "cancel": self._cancel,
            "pause": self._pause,
            "resume": self._resume,
        }

    async def answer(self, tx: Transaction, row: Waiting, scope: str) -> str:
        """The list of a scope, or what became of one task of it."""
        words = row.body.split()[1:]
        told = await self._occurrences.told_of_rooms(tx, row.conversation_id)
        if not words:
            return await self._listed({scope, *told.values()})
        verb = self._verbs.get(words[0].lower())
        if len(words) == 1 and words[0].lower() in ("done", "snooze", "tomorrow", "cancel"):
            last = await self._occurrences.last_told(tx, row.conversation_id)
            words += [last] if last else []
        if verb is None or len(words) != 2:
            return VERBS
        by_owner, task_id = row.origin == "owner", words[1].strip(AROUND).lower()
        why = Reason("command", scope, evidence=(row.event_id,))  # `/undo` here takes it back
        try:
            return await verb(Wish(tx, why, task_id, told.get(task_id, scope), by_owner))
        except ToolFailed as problem:
            return str(problem)

    async def _listed(self, scopes: Collection[str]) -> str:
        found = [
            task
            for scope in sorted(scopes)
            for status in ("active", "paused")
            for task in await self._tasks.listed(scope, status)
        ]
        tasks = list({task.id: task for task in found}.values())  # those of all rooms come twice
        last = await self._occurrences.last([task.id for task in tasks])
        listed = task_list(tasks, last, self._clock.now(), self._tasks.zone)
        return listed or "There is nothing to be done here."

    async def _done(self, wish: Wish) -> str:
        tx, why, task_id, scope, by_owner = wish
        before = await self._tasks.get(task_id, scope)
        again = before.plan.schedule is not None and before.plan.schedule.kind != "once"
        if before.status == "paused" and not again:
            await self._tasks.complete(tx, why, task_id, scope, "done", by_owner=by_owner)
            return f"Done: {_named(before)}"
        task = await self._tasks.acknowledge(tx, why, task_id, scope, by_owner=by_owner)
        until = f" until {self._spoken(task)}" if task.next_due else ""
        return f"Done{until}: {_named(task)}"

    async def _snooze(self, wish: Wish) -> str:
        tx, why, task_id, scope, by_owner = wish
        until = self._clock.now().replace(microsecond=0) + SNOOZE
        task = await self._tasks.snooze(tx, why, task_id, scope, until, by_owner=by_owner)
        return f"Again at {until.astimezone(self._tasks.zone):%H:%M}: {_named(task)}"

    async def _tomorrow(self, wish: Wish) -> str:
        tx, why, task_id, scope, by_owner = wish
        now, zone = self._clock.now(), self._tasks.zone
        before = await self._tasks.get(task_id, scope)
        last = (await self._occurrences.last([before.id])).get(before.id)
        due = last.due_at if last else before.next_due or now.replace(second=0, microsecond=0)
        until = tomorrow(due, now, zone)
        task = await self._tasks.snooze(tx, why, task_id, scope, until, by_owner=by_owner)
        return f"Again tomorrow ({spoken(until, zone)}): {_named(task)}"

    async def _cancel(self, wish: Wish) -> str:
        tx, why, task_id, scope, by_owner = wish
        task = await self._tasks.delete(tx, why, task_id, scope, by_owner=by_owner)
        elsewhere = task.scope == EVERYWHERE and scope != self._tasks.owner_scope
        where = " in the owner's own chat" if elsewhere else ""
        return f"Cancelled: {_named(task)} (`/undo`{where} brings it back)"

    async def _pause(self, wish: Wish) -> str:
        tx, why, task_id, scope, by_owner = wish
        task = await self._tasks.pause(tx, why, task_id, scope, by_owner=by_owner)
        return f"Paused until `/tasks resume {task.id}`: {_named(task)}"

    async def _resume(self, wish: Wish) -> str:
        tx, why, task_id, scope, by_owner = wish
        task = await self._tasks.resume(tx, why, task_id, scope, by_owner=by_owner)
        if task.next_due:
            return f"Active again, next on {self._spoken(task)}: {_named(task)}"
        if task.plan.schedule is None:
            return f"Active again: {_named(task)}"
        return (
            "Active again, but its time has passed and it will not come by itself;"
            f" `/tasks tomorrow {task.id}` lets it come tomorrow: {_named(task)}"
        )

    def _spoken(self, task: Task) -> str:
        return spoken(task.next_due, self._tasks.zone) if task.next_due else ""


def _named(task: Task) -> str:
    return plain(brief(task.content))
