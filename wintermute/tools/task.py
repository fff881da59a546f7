"""Tool for tasks and reminders."""

import re
from dataclasses import fields
from datetime import datetime

from wintermute.clock import in_words
from wintermute.conversation.toolbox import Caller
from wintermute.db import Transaction
from wintermute.errors import ToolFailed
from wintermute.messages import Json
from wintermute.tasks.due import upcoming
from wintermute.tasks.schedules import NOTHING, PlanRequest
from wintermute.tasks.tasks import EVERYWHERE, Target, Task, Tasks
from wintermute.text import is_blank
from wintermute.tools.definition import ASK_FIRST, OwnTool, reason

TIMES = {field.name for field in fields(PlanRequest)}
TAKES = {
    "add": {"content", "priority", "scope"} | TIMES,
    "list": {"status", "scope"},
    "complete": {"id", "reason"},
    "update": {"id", "content", "priority"} | TIMES,
    "pause": {"id"},
    "resume": {"id"},
    "delete": {"id"},
}
"""Arguments of each action. A reason is accepted everywhere, and stored by `complete`."""
REMINDER = "reminder"
IDLE = {
    "priority": (5,),
    "schedule_type": ("none",),
    "execution_mode": (REMINDER,),
    "status": ("active",),
    "scope": ("here",),
}
"""Defaults, which are ignored if an action does not take the argument."""
TASK_ID = re.compile(r"#?task_[0-9a-f]{8}")
DUE_TIMES = 3
NO_MORE = "its time has passed and it will not be due again: update it with a new `at`"
HELD_BACK = "while it is paused it is not due: resume it"
OVER = "the whole series is over; if it was done just this once, resume it"
UNVOUCHED = (
    "here only a verified session of the owner may plan what runs by itself: nothing was done."
    " A reminder is possible"
)
BY_ITSELF = (
    "a task that runs by itself makes and changes no schedules: nothing was done."
    " Say in the answer what should be scheduled or changed"
)


class TaskTool(OwnTool):
    """Tool `task(action, ...)`: all actions on tasks (T-001)."""

    name = "task"
    doing = "looking after tasks"

    def __init__(self, tasks: Tasks) -> None:
        self._tasks = tasks

    async def change(self, tx: Transaction, caller: Caller, args: Json) -> object:
        """Execute the action; return the stored task, or the list of tasks."""
        action = args.get("action")
        if action not in TAKES:
            raise ToolFailed(f"unknown action: {action}. The actions are {', '.join(TAKES)}")
        args = {
            name: value for name, value in args.items() if not _is_ignorable(action, name, value)
        }
        unexpected = sorted(args.keys() - TAKES[action] - {"action", "reason"})
        unexpected = [] if action == "list" else unexpected  # a list changes nothing
        if unexpected:
            takes = ", ".join(sorted(TAKES[action]))
            raise ToolFailed(
                f"{action} takes {takes}, not {', '.join(unexpected)}; nothing was done"
            )
        if caller.only_adds and action not in ("add", "list"):
            raise ToolFailed(ASK_FIRST)
        if action == "list":
            tasks = await self._tasks.listed(caller.scope, args.get("status", "active"))
            return [self._row(task) for task in tasks]
        if action == "add":
            return self._row(await self._add(tx, caller, args), ahead=DUE_TIMES)
        return self._row(await self._act_on(tx, caller, action, args), ahead=DUE_TIMES)

    async def _add(self, tx: Transaction, caller: Caller, args: Json) -> Task:
        request = PlanRequest.of(args)
        if caller.origin == "timer" and not request.is_empty:
            raise ToolFailed(BY_ITSELF)  # else a reminder read as a request would repeat for ever
        everywhere = args.get("scope", "here") == EVERYWHERE
        if everywhere and not self._tasks.owner.may(caller.origin, caller.scope):
            raise ToolFailed("only the owner may have a task shown in every room")
        self._check_vouched(caller, request.execution_mode)
        return await self._tasks.add(
            tx,
            reason(caller),
            args.get("content", ""),
            scope=EVERYWHERE if everywhere else caller.scope,
            priority=args.get("priority", 5),
            request=request,
            conversation_id=caller.conversation_id,
            origins=(caller.event_id,) if caller.event_id else (),
            written=caller.written,
        )

    async def _act_on(self, tx: Transaction, caller: Caller, action: str, args: Json) -> Task:
        if not args.get("id"):
            raise ToolFailed(f"{action} needs the id of a task, as in task_ab12cd34")
        by_owner = self._tasks.owner.may(caller.origin, caller.scope)
        target = Target(args["id"], caller.scope, reason(caller), by_owner)
        request = PlanRequest.of(args) if action == "update" else NOTHING
        if caller.origin == "timer":
            task = await self._tasks.find(tx, target.task_id, caller.scope)
            if task.plan.schedule is not None or not request.is_empty:  # T-053
                raise ToolFailed(BY_ITSELF)
        if action == "complete":
            return await self._tasks.complete(tx, target, args.get("reason", ""))
        if action == "update":
            before = await self._tasks.find(tx, target.task_id, caller.scope)
            self._check_vouched(caller, request.execution_mode, before.plan.mode)
            return await self._tasks.change(
                tx,
                target,
                content=args.get("content"),
                priority=args.get("priority"),
                request=request,
                written=caller.written,
            )
        moves = {
            "pause": self._tasks.pause,
            "resume": self._tasks.resume,
            "delete": self._tasks.delete,
        }
        return await moves[action](tx, target)

    def _check_vouched(self, caller: Caller, *modes: str | None) -> None:
        """Check who may plan autonomous tasks, which have the owner's rights in the owner's chat (X-034).

        Raises: ToolFailed.
        """
        by_itself = any((mode or REMINDER).strip().lower() != REMINDER for mode in modes)
        if by_itself and self._tasks.owner.is_unverified(caller.origin, caller.scope):
            raise ToolFailed(UNVOUCHED)

    def _row(self, task: Task, ahead: int = 1) -> Json:
        """Return the stored task. `ahead`: number of due times to show, for checking them."""
        zone, schedule, next_due = self._tasks.zone, task.plan.schedule, task.next_due
        later: tuple[datetime, ...] = ()
        if schedule and next_due and ahead > 1:
            later = upcoming(schedule, next_due, zone, ahead - 1)
        row: Json = {
            "id": task.id,
            "priority": task.priority,
            "status": task.status,
            "content": task.content,
            "schedule": task.schedule or None,
            "next_due": in_words(next_due, zone) if next_due else None,
            "then": [in_words(each, zone) for each in later],
            "execution_mode": task.plan.mode if schedule else None,
            "ai_prompt": task.plan.ai_prompt,
            "note": self._note(task) if ahead > 1 else "",
            "scope": task.scope,
            "reason": task.reason,
        }
        always = {"schedule", "next_due"}
        return {name: value for name, value in row.items() if value or name in always}

    def _note(self, task: Task) -> str:
        schedule = task.plan.schedule
        if schedule is None or task.status == "deleted":
            return ""
        if task.status == "paused":
            return HELD_BACK
        if task.status == "completed":
            return OVER if schedule.recurs else ""
        return schedule.remark(task.next_due, self._tasks.zone) if task.next_due else NO_MORE


def _is_ignorable(action: str, name: str, value: object) -> bool:
    if name in TAKES[action] or name == "action":
        return False
    if name == "id" and action == "add":  # an id made up by the model
        return not TASK_ID.fullmatch(str(value))
    is_empty = value is None or (isinstance(value, str) and is_blank(value))
    return is_empty or value in IDLE.get(name, ())
