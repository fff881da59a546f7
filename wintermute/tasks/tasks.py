"""Tasks: their rules and their table. Every change of a task is recorded, so that it can be undone.

A broken rule raises ToolFailed with a text for the person or the model.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from typing import Any, Literal
from zoneinfo import ZoneInfo

from wintermute.changes.change_sets import KEPT, Change, ChangeSets, Reason
from wintermute.clock import Clock, moment, stamp
from wintermute.db import Database, Row, Transaction
from wintermute.db.text_search import OF_CONVERSATIONS, SCOPES, SearchableText
from wintermute.db.values import columns, insert, reader, stored
from wintermute.errors import ToolFailed
from wintermute.ids import NewId
from wintermute.messages import Json
from wintermute.owner import Owner
from wintermute.secret_shapes import without_secrets
from wintermute.tasks.due import next_due
from wintermute.tasks.schedules import (
    NOTHING,
    UNPLANNED,
    Once,
    Plan,
    PlanRequest,
    apply_request,
    read,
)
from wintermute.text import is_blank, one_line

Status = Literal["active", "paused", "completed", "deleted"]
OccurrenceState = Literal["claimed", "done", "failed", "missed"]
ReminderAnswer = Literal["done", "snooze", "tomorrow", "cancel"]
"""The answers a person can give to a delivered reminder (T-063)."""
REMINDER_REACTIONS: Mapping[str, ReminderAnswer] = {
    "\N{WHITE HEAVY CHECK MARK}": "done",
    "\N{SLEEPING SYMBOL}": "snooze",
    "\N{ALARM CLOCK}": "tomorrow",
    "\N{CROSS MARK}": "cancel",
}
"""The reaction for each answer, in the order in which they are offered."""

EVERYWHERE = "global"
"""The scope of a task that the owner wants to see in every room (T-014)."""
MOST_CHARACTERS = 2_000
MOVES: dict[str, tuple[frozenset[Status], Status]] = {
    "complete": (frozenset({"active", "paused"}), "completed"),
    "pause": (frozenset({"active"}), "paused"),
    "resume": (frozenset({"paused", "completed"}), "active"),
    "delete": (frozenset({"active", "paused", "completed"}), "deleted"),
}
"""For each action, the statuses it may start from and the one it leads to. A completed task can be resumed."""
COLUMNS = (
    "id, scope, content, priority, status, created_at, reason,"
    " schedule, mode, ai_prompt, snoozed, next_due, failures, held, made_by, seq AS number"
)
VISIBLE = "(scope IN (:scope, 'global') OR :scope IS NULL)"
"""The only rule of which tasks a scope can see (T-013..T-015). NULL: a person at the command line,
who sees all.
"""
TASKS = SearchableText(
    *("tasks", ("content", "reason", "ai_prompt")),
    where="status = 'deleted'",
    of=f"scope IN {SCOPES} OR {OF_CONVERSATIONS}",
    cuts="text",
)
"""Only deleted tasks are searched when something is forgotten; the others are for a person to change."""
ORDER = "ORDER BY priority, seq"
ID_LENGTH = len("task_") + 8
"""Short enough to type. An id is never given twice."""
CLOSE = 0.7
"""The similarity from which an unknown id is taken for a misspelt one."""


@dataclass(frozen=True, slots=True)
class Task:
    """A goal or a promise. `priority` 1 is urgent, 10 is low.

    `scope` is the owner of the task: `person:@ann:example.org`, `room:!abc` or `global`.
    """

    id: str
    scope: str
    content: str
    priority: int
    status: Status
    created_at: datetime
    reason: str = ""
    """The reason why it was completed."""
    schedule: str = ""
    """The schedule in words, as in the brackets of a list (T-027): `daily at 09:00`. Empty: unscheduled."""
    plan: Plan = UNPLANNED
    snoozed: datetime | None = None
    """An extra due moment, beside a series or without a schedule (T-063)."""
    next_due: datetime | None = None
    """None: never due, or not any more."""
    failures: int = 0
    """The number of runs in a row that failed."""
    held: bool = False
    """True if it is due but has no room in which it may be posted (T-013)."""
    made_by: str = ""
    """The cause of the change that created it: `tool` for the assistant; "" if unknown."""
    number: int = field(default=0, compare=False)
    """A short number for people, as stored; never given twice."""


def checked_text(text: object, what: str) -> str:
    """Return the content or the reason as one clean line (T-003, T-005)."""
    line = one_line(text) if isinstance(text, str) else ""
    if is_blank(line):
        raise ToolFailed(f"{what} must be a text that is not blank")
    if len(line) > MOST_CHARACTERS:
        raise ToolFailed(
            f"{what} has {len(line)} characters; at most {MOST_CHARACTERS} are allowed"
        )
    return line


def checked_priority(value: object) -> int:
    """Return a valid priority: an integer from 1 to 10, and no bool (T-003)."""
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 10:
        raise ToolFailed("priority must be an integer from 1 (urgent) to 10 (low)")
    return value


def _hidden(request: PlanRequest, theirs: str = "") -> PlanRequest:
    """Remove secrets from a plan that no person asked for (M-083)."""
    prompt = request.ai_prompt
    return replace(request, ai_prompt=without_secrets(prompt, theirs)) if prompt else request


_task = reader(Task, "schedule", "plan")


def task_of(row: Row, zone: ZoneInfo) -> Task:
    """Read a task from a row with `COLUMNS`; its schedule is described in this time zone."""
    schedule = read(row["schedule"]) if row["schedule"] else None
    return _task(
        row,
        schedule=schedule.describe(zone) if schedule else "",
        plan=Plan(schedule=schedule, mode=row["mode"], ai_prompt=row["ai_prompt"]),
    )


def state_of(task: Task) -> Json | None:
    """Return the state of a task as a change set stores it; None for a deleted one."""
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
    """Return the fields of a task from a state of `state_of`. An older state may lack some of them."""
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


@dataclass(frozen=True, slots=True)
class Target:
    """A task to change, the reason, and the scope that asks.

    A task that `scope` cannot see is reported as unknown. A global task is seen everywhere, but
    only the owner can change it: with `by_owner`, or without a scope.
    """

    task_id: str
    scope: str | None
    why: Reason
    by_owner: bool = False


class Tasks:
    """The store of tasks."""

    def __init__(
        self,
        database: Database,
        changes: ChangeSets,
        clock: Clock,
        new_id: NewId,
        owner: Owner,
        timezone: str,
    ) -> None:
        """`timezone` is the time zone in which schedules are meant."""
        self._database = database
        self._changes = changes
        self._clock = clock
        self._new_id = new_id
        self.zone = ZoneInfo(timezone)
        self.owner = owner

    async def add(
        self,
        tx: Transaction,
        why: Reason,
        content: str,
        *,
        scope: str,
        priority: int = 5,
        request: PlanRequest = NOTHING,
        conversation_id: str | None = None,
        origins: Sequence[str] = (),
        written: datetime | None = None,
    ) -> Task:
        """Add an active task (T-002). The caller decides who may make a global one.

        Nothing is stored if any argument is invalid (T-010). `written` is when the person wrote the
        request: a single time counts from then (F-029) and may have passed by now.
        """
        if why.is_background:
            content, request = without_secrets(content), _hidden(request)
        now = self._clock.now()
        since = _since(request, UNPLANNED, written) or now
        task = Task(
            id=await self._fresh_id(tx),
            scope=scope,
            content=checked_text(content, "content"),
            priority=checked_priority(priority),
            status="active",
            created_at=now,
            plan=await apply_request(request, since, self.zone),
            made_by=why.cause,
        )
        values = columns(task, "schedule", "plan", "next_due", "number")
        values |= {"conversation_id": conversation_id, "origins": origins, "changed_at": now}
        await tx.execute(*insert("tasks", values))
        task = await self._write(tx, task, now, since, starts=True)
        await self._record(tx, why, task, None)
        return task

    async def change(
        self,
        tx: Transaction,
        target: Target,
        *,
        content: str | None = None,
        priority: int | None = None,
        request: PlanRequest = NOTHING,
        written: datetime | None = None,
    ) -> Task:
        """Change the content, priority, schedule or mode, each alone or together (T-004).

        A new schedule counts from now, or from `written`, and replaces the next due moment.
        """
        if content is None and priority is None and request.is_empty:
            raise ToolFailed("an update needs a new content, priority, schedule or execution_mode")
        task = await self._changeable(tx, target)
        if task.status not in ("active", "paused"):
            first = "; resume it first" if task.status == "completed" else ""
            raise ToolFailed(f"{task.id} is {task.status}; nothing was changed{first}")
        if target.why.is_background:
            content = content and without_secrets(content, task.content)
            request = _hidden(request, task.plan.ai_prompt or "")
        now = self._clock.now()
        since = _since(request, task.plan, written) or now
        changed = replace(
            task,
            content=task.content if content is None else checked_text(content, "content"),
            priority=task.priority if priority is None else checked_priority(priority),
            snoozed=None if request.has_schedule else task.snoozed,
            plan=await apply_request(request, since, self.zone, task.plan),
        )
        return await self._become(
            tx, target.why, task, changed, now, since, starts=request.has_schedule
        )

    async def complete(self, tx: Transaction, target: Target, reason: str) -> Task:
        """Complete a task; the reason says if it is done or no longer needed (T-005)."""
        words = checked_text(reason, "the reason of a completed task")
        return await self._move(tx, target, "complete", words)

    async def pause(self, tx: Transaction, target: Target) -> Task:
        """Pause a task: it leaves the prompt until it is resumed (T-006)."""
        return await self._move(tx, target, "pause")

    async def resume(self, tx: Transaction, target: Target) -> Task:
        """Resume a task after a pause or a premature completion (T-006)."""
        return await self._move(tx, target, "resume")

    async def delete(self, tx: Transaction, target: Target) -> Task:
        """Delete a task from prompt and list; the row stays, so that it can be restored (T-007)."""
        return await self._move(tx, target, "delete")

    async def restore(self, tx: Transaction, target: Target) -> Task:
        """Restore a deleted task within 30 days. It is completed if its last due moment was
        delivered (T-007).
        """
        task = await self._changeable(tx, target)
        if task.status != "deleted":
            raise ToolFailed(f"{task.id} is {task.status}, not deleted; nothing was changed")
        row = await tx.row("SELECT status_before, changed_at FROM tasks WHERE id = ?", (task.id,))
        if row is None or moment(row["changed_at"]) <= self._clock.now() - KEPT:
            raise ToolFailed(f"{task.id} was deleted more than {KEPT.days} days ago")
        back = replace(task, status=row["status_before"])
        return await self._ended(tx, await self._become(tx, target.why, task, back))

    async def snooze(self, tx: Transaction, target: Target, until: datetime) -> Task:
        """Make a task active and due at `until` (T-063): a single task only then; of a series one
        occurrence moves.
        """
        task = await self._changeable(tx, target)
        if task.status not in ("active", "completed"):
            raise ToolFailed(f"{task.id} is {task.status}; nothing was changed")
        awake = replace(task, status="active", reason="", snoozed=until)
        if task.plan.schedule and not task.plan.recurs:
            at = Once(at=until.astimezone(UTC).isoformat())
            awake = replace(awake, snoozed=None, plan=replace(task.plan, schedule=at))
        left, due = (
            await self._become(tx, target.why, task, awake),
            await self._next_undelivered(tx, task),
        )
        if due and due.astimezone(self.zone).date() <= until.astimezone(self.zone).date():
            await self._set_rule_due(tx, left, max(due, self._clock.now()))
        return await self.find(tx, task.id, None)

    async def _next_undelivered(self, tx: Transaction, task: Task) -> datetime | None:
        """Return the next due moment of a series, unless the last delivered one is nearer to now."""
        due, now = task.next_due, self._clock.now()
        if due is None or task.snoozed or not task.plan.recurs:
            return None
        query = "SELECT due_at FROM occurrences WHERE task_id = ? ORDER BY due_at DESC LIMIT 1"
        last = await tx.scalars(query, (task.id,))
        return None if last and now - moment(last[0]) <= due - now else due

    async def acknowledge(self, tx: Transaction, target: Target) -> Task:
        """Mark a delivered reminder as done (T-063). A series only until it is due again."""
        task = await self._changeable(tx, target)
        if task.status not in ("active", "completed"):
            raise ToolFailed(f"{task.id} is {task.status}; nothing was changed")
        if task.status == "active" and not task.plan.recurs:
            return await self.complete(tx, target, "done")
        left = await self._become(tx, target.why, task, replace(task, snoozed=None))
        if left.status == "active" and left.next_due is None:
            return await self.complete(tx, target, "done")
        return left

    async def listed(
        self, scope: str | None, status: Status | Literal["all"] = "active"
    ) -> tuple[Task, ...]:
        """List the tasks with a status; `all` includes deleted ones (T-008).

        Sorted by priority, then creation, as in the prompt (P-019, P-020).
        """
        only = "" if status == "all" else " AND status = :status"
        rows = await self._database.rows(
            f"SELECT {COLUMNS} FROM tasks WHERE {VISIBLE}{only} {ORDER}",
            {"scope": scope, "status": status},
        )
        return tuple(self._task(row) for row in rows)

    async def scopes(self) -> list[str]:
        """List the persons and rooms that have active tasks, each once."""
        return await self._database.scalars(
            "SELECT DISTINCT scope FROM tasks WHERE status = 'active' AND scope <> ? ORDER BY scope",
            (EVERYWHERE,),
        )

    async def get(self, task_id: str, scope: str | None) -> Task:
        """Return one task, whatever its status.

        Raises: ToolFailed for an id that this scope does not see (T-009, T-015).
        """
        return await self.find(self._database, task_id, scope)

    async def rezone(self, tx: Transaction) -> int:
        """Let all coming occurrences keep their local time in a new time zone (T-033). Return their number.

        A day on which a task was due by the old clock does not count again by the new one. An
        occurrence that fell due under the old zone and is not claimed stays due, and so does one
        without a moment to come by the new clock: nothing is lost.
        """
        rows = await tx.rows(
            f"SELECT {COLUMNS}, zone, rule_due, (SELECT max(due_at) FROM occurrences o WHERE o.task_id ="
            " tasks.id) AS last FROM tasks WHERE status = 'active' AND schedule IS NOT NULL"
            " AND zone <> ? AND rule_due > ?",
            (self.zone.key, stamp(self._clock.now())),
        )
        for row in rows:
            task, after = self._task(row), self._clock.now()
            schedule = task.plan.schedule
            if row["last"] and row["zone"] and schedule and schedule.once_a_day:
                local = moment(row["last"]).astimezone(ZoneInfo(row["zone"]))
                after = max(after, local.replace(tzinfo=self.zone))
            await self._set_rule_due(tx, task, after, moment(row["rule_due"]))
        return len(rows)

    async def recount(self, tx: Transaction) -> int:
        """Let series go on from the real time after the clock was set back (F-015). Return their number.

        Anything begun or claimed later than now was dated by a wrong clock. A series that ended by
        it goes on too. Delivered reminders are not repeated (T-034).
        """
        now = self._clock.now()
        rows = await tx.rows(
            f"SELECT {COLUMNS}, rule_due FROM tasks WHERE schedule IS NOT NULL"
            " AND (status = 'active' OR status = 'completed' AND reason = 'delivered')"
            " AND (changed_at > :now OR id IN (SELECT task_id FROM occurrences WHERE claimed_at > :now))",
            {"now": stamp(now)},
        )
        counted = 0
        for row in rows:
            task = self._task(row)
            schedule = task.plan.schedule
            due = next_due(schedule, now, self.zone) if schedule else None
            if not task.plan.recurs or due is None:
                continue
            if row["rule_due"] is None or stamp(due) < row["rule_due"]:
                await tx.execute(
                    "UPDATE tasks SET rule_due = ?, zone = ?, status = 'active', reason = ''"
                    " WHERE id = ?",
                    (stamp(due), self.zone.key, task.id),
                )
                counted += 1
        return counted

    async def state(self, tx: Transaction, item: str) -> Json | None:
        """Return the state of a task as a change set stores it; None for a deleted one."""
        row = await tx.row(f"SELECT {COLUMNS} FROM tasks WHERE id = ?", (item,))
        return state_of(self._task(row)) if row else None

    async def successors(self, tx: Transaction, items: Collection[str]) -> Mapping[str, str]:
        """Return nothing: a task never replaces another."""
        return {}

    async def put(self, tx: Transaction, item: str, state: Json | None, why: Reason) -> bool:
        """Write an earlier state of a task back, for an undo. False if the task was purged."""
        row = await tx.row(f"SELECT {COLUMNS} FROM tasks WHERE id = ?", (item,))
        if row is None:
            return False
        before = self._task(row)
        fields = {"status": "deleted"} if state is None else fields_of(state)
        after = replace(before, **fields)
        now = self._clock.now()
        left = await self._write(tx, after, now, starts=_starts(before, after))
        if before.snoozed and not after.snoozed and not (left.next_due and left.next_due <= now):
            await self._set_rule_due(tx, left, now)  # the snoozed occurrence goes back as well
        await self._ended(tx, await self.find(tx, item, None))
        return True

    async def _ended(self, tx: Transaction, task: Task) -> Task:
        """Return a restored task, completed if the last moment of its schedule was delivered already."""
        schedule = task.plan.schedule
        if schedule is None or task.next_due is not None:
            return task
        delivered = await tx.scalars(
            "SELECT due_at FROM occurrences WHERE task_id = ? AND state <> 'claimed'"
            " ORDER BY due_at DESC",
            (task.id,),
        )
        for at in map(moment, delivered):  # a snoozed moment is not one of the schedule
            before = at - timedelta(seconds=1)
            if (next_due(schedule, before, self.zone), next_due(schedule, at, self.zone)) == (
                at,
                None,
            ):
                await complete(tx, [task.id], self._clock.now())
                return await self.find(tx, task.id, None)
        return task

    async def rename(self, tx: Transaction, was: str, scope: str) -> None:
        """Move the tasks of a scope to its new name."""
        await tx.execute("UPDATE tasks SET scope = ? WHERE scope = ?", (scope, was))

    async def move_conversation(self, tx: Transaction, was: str, conversation_id: str) -> None:
        """Move the tasks that were asked for in one conversation to another, which gets their reminders."""
        query = "UPDATE tasks SET conversation_id = ? WHERE conversation_id = ?"
        await tx.execute(query, (conversation_id, was))

    async def _move(self, tx: Transaction, target: Target, action: str, reason: str = "") -> Task:
        task = await self._changeable(tx, target)
        starts, status = MOVES[action]
        if task.status not in starts:
            already = " already" if task.status == status else ""
            raise ToolFailed(f"{task.id} is {task.status}{already}; nothing was changed")
        reason = task.reason if status == "deleted" else reason
        moved = replace(task, status=status, reason=reason)
        return await self._become(tx, target.why, task, moved)

    async def _changeable(self, tx: Transaction, target: Target) -> Task:
        task = await self.find(tx, target.task_id, target.scope)
        if task.scope == EVERYWHERE and not target.by_owner and target.scope is not None:
            raise ToolFailed(f"{task.id} is shown in every room; only the owner may change it")
        return task

    async def find(self, source: Transaction | Database, task_id: str, scope: str | None) -> Task:
        """Find one task, as `get`, also within a transaction.

        A `#` before the id is ignored, because the prompt shows ids with one.
        """
        wanted = one_line(task_id).removeprefix("#")
        row = await source.row(
            f"SELECT {COLUMNS} FROM tasks WHERE id = :id AND {VISIBLE}",
            {"id": wanted, "scope": scope},
        )
        if row is not None:
            return self._task(row)
        rows = await source.rows(f"SELECT id FROM tasks WHERE {VISIBLE}", {"scope": scope})
        numbers = [str(row["id"]).removeprefix("task_") for row in rows]
        near = get_close_matches(wanted.removeprefix("task_")[:100], numbers, 1, CLOSE)
        hint = f"; did you mean task_{near[0]}?" if near else ""
        raise ToolFailed(f"no task {wanted[:100]}{hint}")

    async def _fresh_id(self, tx: Transaction) -> str:
        while True:
            task_id = self._new_id("task")[:ID_LENGTH]
            if await tx.row("SELECT 1 FROM tasks WHERE id = ?", (task_id,)) is None:
                return task_id

    async def _become(
        self,
        tx: Transaction,
        why: Reason,
        before: Task,
        after: Task,
        now: datetime | None = None,
        since: datetime | None = None,
        *,
        starts: bool = False,
    ) -> Task:
        if after == before and not starts:
            return before
        now, starts = now or self._clock.now(), starts or _starts(before, after)
        stored = await self._write(tx, after, now, since, starts=starts)
        await self._record(tx, why, stored, state_of(before))
        return stored

    async def _write(
        self,
        tx: Transaction,
        task: Task,
        now: datetime,
        since: datetime | None = None,
        *,
        starts: bool,
    ) -> Task:
        """Write a task and return it as stored.

        `starts`: its due moments count anew, from now or `since` (T-004, T-006, F-029). `now` is
        the time by which its times were checked: a moment that comes meanwhile is due, not past.
        """
        starts = starts or task.status != "active"
        snoozed = task.snoozed if task.status == "active" else None
        values = columns(task, "plan") | columns(task.plan) | {"snoozed": snoozed}
        values["schedule"] = task.plan.schedule.stored() if task.plan.schedule else None
        values |= {"starts": starts, "now": now}
        await tx.execute(
            "UPDATE tasks SET content = :content, priority = :priority, reason = :reason,"
            " status_before = CASE WHEN :status = 'deleted'"
            " THEN coalesce(status_before, status) END, status = :status,"
            " schedule = :schedule, mode = :mode, ai_prompt = :ai_prompt,"
            " snoozed = :snoozed, failures = iif(:starts, 0, failures),"
            " changed_at = :now WHERE id = :id",
            stored(values),
        )
        if starts:
            await self._set_rule_due(tx, task, since or now)
        return await self.find(tx, task.id, None)

    async def _set_rule_due(
        self, tx: Transaction, task: Task, after: datetime, otherwise: datetime | None = None
    ) -> None:
        """Set the next due moment of an active task after a moment; of any other, none."""
        schedule = task.plan.schedule if task.status == "active" else None
        due = next_due(schedule, after, self.zone) or otherwise if schedule else None
        await tx.execute(
            "UPDATE tasks SET rule_due = ?, zone = ?, held = 0 WHERE id = ?",
            (stamp(due) if due else None, self.zone.key, task.id),
        )

    async def _record(self, tx: Transaction, why: Reason, task: Task, before: Json | None) -> None:
        """Record a change. That of a global task goes to the owner's history: nobody else can undo it."""
        if task.scope == EVERYWHERE:
            why = replace(why, scope=self.owner.scope)
        change = Change("task", task.id, before, state_of(task), why.evidence)
        await self._changes.record(tx, why, [change])

    def _task(self, row: Row) -> Task:
        return task_of(row, self.zone)


def _since(request: PlanRequest, before: Plan, written: datetime | None) -> datetime | None:
    """Return the time from which a single time counts. None: from now, as for a series."""
    kind = request.schedule_type or (before.schedule.kind if before.schedule else Once.kind)
    return written if kind.strip().lower() == Once.kind else None


def _starts(before: Task, after: Task) -> bool:
    """Return True if the schedule begins to count anew."""
    woken = before.status != "active" and after.status == "active"
    return woken or before.plan.schedule != after.plan.schedule


async def complete(tx: Transaction, task_ids: Collection[str], now: datetime) -> None:
    """Complete those of the tasks that are never due again (T-025, T-041)."""
    await tx.execute_many(
        "UPDATE tasks SET status = 'completed', reason = 'delivered', changed_at = ?"
        " WHERE id = ? AND status = 'active' AND next_due IS NULL AND schedule IS NOT NULL",
        [(stamp(now), task_id) for task_id in task_ids],
    )
