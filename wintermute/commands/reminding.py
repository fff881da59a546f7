"""`/remind`: a promise made without a model (T-062)."""

from datetime import datetime

from wintermute.changes.records import Reason
from wintermute.clock import Clock, spoken
from wintermute.commands.listing import plain
from wintermute.conversation.intent import written
from wintermute.db import Transaction
from wintermute.errors import ToolFailed
from wintermute.mailbox.inbox import Waiting
from wintermute.tasks.asked import chat_line, remarks
from wintermute.tasks.records import Task
from wintermute.tasks.store import Tasks

FORMS = (
    "18:30 Call Anna",
    "today 18:00 Call Anna",
    "tomorrow 09:00 Call Anna",
    "in 20 minutes Call Anna",
    "in 2 hours Call Anna",
    "in 3 days Call Anna",
    "2026-03-01 09:00 Call Anna",
    "daily 08:00 Call Anna",
    "mon,thu 08:00 Call Anna",
)


class Reminding:
    """Reads when and what, and makes a task of it."""

    def __init__(self, tasks: Tasks, clock: Clock) -> None:
        self._tasks = tasks
        self._clock = clock

    async def answer(self, tx: Transaction, row: Waiting, scope: str) -> str:
        """The reminder, when it is due next, and what must be pointed out about that."""
        said = "".join(row.body.split(maxsplit=1)[1:])
        now = self._clock.now()
        read = chat_line(said, now, self._tasks.zone)
        if read is None:
            return self._forms()
        asked, content = read
        try:
            task = await self._tasks.add(
                tx,
                Reason("command", scope, evidence=(row.event_id,)),
                content,
                scope=scope,
                asked=asked,
                conversation_id=row.conversation_id,
                origins=(row.event_id,),
                written=written(row, now),
            )
        except ToolFailed as problem:
            return str(problem)
        return self._promise(task, now)

    def _promise(self, task: Task, now: datetime) -> str:
        schedule, due, zone = task.plan.schedule, task.next_due, self._tasks.zone
        whom = "this room" if task.scope.startswith("room:") else "you"
        when = spoken(due, zone) if due else task.schedule
        again = f", {task.schedule}" if schedule and schedule.kind != "once" else ""
        if due and due <= now:
            return f"That was due on {when}, before I read it, so I remind {whom} now (`{task.id}`)"
        remark = remarks(schedule, due, zone)
        return (
            f"I will remind {whom} on {when}: {plain(task.content)} (`{task.id}`{again})"
            f"{f'; {remark}' if remark else ''}"
        )

    def _forms(self) -> str:
        lines = [f"- `/remind {form}`" for form in FORMS]
        return "\n".join(
            [f"Write when and what, in the time of {self._tasks.zone.key}, as in:", *lines]
        )
