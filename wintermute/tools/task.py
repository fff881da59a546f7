"""The tool for goals and promises."""

from wintermute.conversation.toolbox import Caller
from wintermute.db import Transaction
from wintermute.errors import ToolFailed
from wintermute.messages import Json
from wintermute.tasks.records import EVERYWHERE, Task
from wintermute.tasks.store import Tasks
from wintermute.tools.definition import definition
from wintermute.tools.reason import for_owner, reason

TAKES = {
    "add": {"content", "priority", "scope"},
    "list": {"status"},
    "complete": {"id", "reason"},
    "update": {"id", "content", "priority"},
    "pause": {"id"},
    "resume": {"id"},
    "delete": {"id"},
}
"""The arguments of each action. A reason is listened to everywhere, and kept by `complete`."""


class TaskTool:
    """`task(action, ...)`: one tool for all that can be done with tasks (T-001)."""

    name = "task"

    def __init__(self, tasks: Tasks) -> None:
        self.description, self.parameters = definition(self.name)
        self._tasks = tasks

    async def change(self, tx: Transaction, caller: Caller, args: Json) -> object:
        """The task as it is stored now, or the list of tasks."""
        action = args.get("action")
        if action not in TAKES:
            raise ToolFailed(f"unknown action: {action}. The actions are {', '.join(TAKES)}")
        strange = sorted(args.keys() - TAKES[action] - {"action", "reason"})
        if strange:
            takes = ", ".join(sorted(TAKES[action]))
            raise ToolFailed(f"{action} takes {takes}, not {', '.join(strange)}; nothing was done")
        if action == "list":
            found = await self._tasks.listed(caller.scope, args.get("status", "active"))
            return [_row(task) for task in found]
        if action == "add":
            return _row(await self._add(tx, caller, args))
        return _row(await self._act(tx, caller, action, args))

    async def _add(self, tx: Transaction, caller: Caller, args: Json) -> Task:
        everywhere = args.get("scope", "here") == EVERYWHERE
        if everywhere and not for_owner(caller, self._tasks.owner_scope):
            raise ToolFailed("only the owner may have a task shown in every room")
        return await self._tasks.add(
            tx,
            reason(caller),
            args.get("content", ""),
            scope=EVERYWHERE if everywhere else caller.scope,
            priority=args.get("priority", 5),
            conversation_id=caller.conversation_id,
            origins=(caller.event_id,) if caller.event_id else (),
        )

    async def _act(self, tx: Transaction, caller: Caller, action: str, args: Json) -> Task:
        if not args.get("id"):
            raise ToolFailed(f"{action} needs the id of a task, as in task_ab12cd34")
        why, task_id, scope = reason(caller), args["id"], caller.scope
        by_owner = for_owner(caller, self._tasks.owner_scope)
        if action == "complete":
            words = args.get("reason", "")
            return await self._tasks.complete(tx, why, task_id, scope, words, by_owner=by_owner)
        if action == "update":
            content, priority = args.get("content"), args.get("priority")
            return await self._tasks.change(
                tx, why, task_id, scope, content=content, priority=priority, by_owner=by_owner
            )
        moves = {
            "pause": self._tasks.pause,
            "resume": self._tasks.resume,
            "delete": self._tasks.delete,
        }
        return await moves[action](tx, why, task_id, scope, by_owner=by_owner)


def _row(task: Task) -> Json:
    row: Json = {
        "id": task.id,
        "priority": task.priority,
        "status": task.status,
        "content": task.content,
        "schedule": task.schedule or None,
        "next_due": None,
        "scope": task.scope,
    }
    return {**row, "reason": task.reason} if task.reason else row
