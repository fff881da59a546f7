"""Occurrences: each due moment of a task is claimed once, before anything is done.

After an absence, however long, a task is claimed once: for the latest due moment (T-043). The
occurrences that a model works on are queued, started and ended here too.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from wintermute.clock import Clock, moment, stamp
from wintermute.db import Database, Transaction
from wintermute.db.text_search import OF_CONVERSATIONS, SearchableText
from wintermute.db.values import insert_many, reader, stored
from wintermute.messages import ROOM
from wintermute.tasks.due import missed, next_due
from wintermute.tasks.schedules import FiringMode
from wintermute.tasks.tasks import (
    COLUMNS,
    REMINDER_REACTIONS,
    OccurrenceState,
    ReminderAnswer,
    Task,
    complete,
    task_of,
)

LATE = timedelta(minutes=5)
"""A message that is later than this names its due time (T-038)."""
TOLD_AT = "iif(mode = 'reminder', claimed_at, ended_at)"
MOST_FAILURES = 3
"""Failures in a row after which a task is paused (T-050)."""
OCCURRENCES = SearchableText(
    "occurrences",
    ("content", "result"),
    of=OF_CONVERSATIONS,
    ours="mode <> 'reminder' AND claimed_at >= :since",
    # An occurrence whose message is stuck may never end.
    waits="iif(state = 'claimed' AND NOT EXISTS (SELECT 1 FROM outbox o WHERE o.id = outbox_id"
    "  AND o.state <> 'waiting'), coalesce(outbox_id, cast_id, task_id), NULL)",
)
NO_ACTION = "[NO_ACTION]"
"""The whole result of a run that has nothing to report (T-049)."""
AT_WORK = "state = 'claimed' AND mode <> 'reminder'"
_NOT_BEFORE = "CAST(not_before AS REAL)"
_ROOMS = "conversation_id IN (SELECT value FROM json_each(:rooms))"


@dataclass(frozen=True, slots=True)
class Due:
    """A due task. `made_in`: the conversation in which it was asked for, if any."""

    task: Task
    made_in: str | None
    rule_due: datetime | None


@dataclass(frozen=True, slots=True)
class Claim:
    """A claimed due moment, and the next ones of its task.

    `missed`: the number of due moments it covers, 0 if it is in time.
    """

    due: Due
    due_at: datetime
    missed: int
    rule_due: datetime | None
    snoozed: datetime | None

    def is_unreal(self, now: datetime) -> bool:
        """Return True if a series was due before its task was made: the clock had been set back (F-015)."""
        task = self.due.task
        return task.plan.recurs and self.due_at < task.created_at <= now


def claim(due: Due, now: datetime, since: datetime, zone: ZoneInfo) -> Claim:
    """Return the claim for a due task. `since`: the program was not running before (T-042)."""
    schedule, rule, snoozed = due.task.plan.schedule, due.rule_due, due.task.snoozed
    moments, count = [], 0
    if snoozed and snoozed <= now:
        moments, count, snoozed = [snoozed], 1, None
    if schedule and rule and rule <= now:
        missed_times = missed(schedule, rule, now, zone)
        moments.append(missed_times.latest)
        count, rule = missed_times.count, next_due(schedule, now, zone)
    due_at = max(moments)
    asked_late = due_at < due.task.created_at <= now  # it was written earlier (F-029)
    late = asked_late or due_at < since or now - due_at > LATE or count > 1
    return Claim(due, due_at, count if late else 0, rule, snoozed)


def cause(task_id: str, due_at: datetime) -> str:
    """Return the name of a due moment; it is the same in every copy of the database."""
    return f"{task_id} {stamp(due_at)}"


def late_note(due_at: datetime, count: int, zone: ZoneInfo, now: datetime | None = None) -> str:
    """Return the end of a late message (T-042, T-043); without the date if `now` is on the same day."""
    local = due_at.astimezone(zone)
    is_today = now is not None and now.astimezone(zone).date() == local.date()
    more = f", {count} missed" if count > 1 else ""
    return f" (was due {'at' if is_today else local.date()} {local:%H:%M}{more})"


@dataclass(frozen=True, slots=True)
class Occurrence:
    """One due moment of a task and its outcome.

    `missed`: the number of due moments it covers if it is late; 0 if it was in time.
    """

    seq: int
    task_id: str
    due_at: datetime
    mode: FiringMode
    content: str
    state: OccurrenceState
    missed: int
    conversation_id: str
    outbox_id: str | None
    cast_id: str | None
    result: str
    ended_at: datetime | None


occurrence = reader(Occurrence)
_due = reader(Due, "task")


class Occurrences:
    """The store of occurrences. A claimed occurrence is never claimed again (T-035).

    Its queries run every few seconds, so they name their index: without statistics SQLite would
    scan all active tasks.
    """

    def __init__(self, database: Database, clock: Clock, zone: ZoneInfo) -> None:
        self._database = database
        self._clock = clock
        self._zone = zone

    async def due(self, tx: Transaction, limit: int) -> list[Due]:
        """List the due tasks in the order of their due moments."""
        rows = await tx.rows(
            f"SELECT {COLUMNS}, conversation_id AS made_in, rule_due FROM tasks INDEXED BY tasks_due"
            " WHERE status = 'active' AND held = 0 AND next_due <= ?"
            " ORDER BY next_due, seq LIMIT ?",
            (stamp(self._clock.now()), limit),
        )
        return [_due(row, task=task_of(row, self._zone)) for row in rows]

    async def next_due(self, tx: Transaction) -> datetime | None:
        """Return the earliest due moment of all tasks."""
        row = await tx.row(
            "SELECT min(next_due) AS due FROM tasks INDEXED BY tasks_due"
            " WHERE status = 'active' AND held = 0 AND next_due IS NOT NULL"
        )
        return moment(row["due"]) if row and row["due"] else None

    async def hold(self, tx: Transaction, task_ids: Sequence[str]) -> None:
        """Skip due tasks without a room until `release`."""
        await tx.execute_many(
            "UPDATE tasks SET held = 1 WHERE id = ?", [(task_id,) for task_id in task_ids]
        )

    async def release(self, tx: Transaction) -> None:
        """Let skipped tasks be tried again: there may be a room by now."""
        await tx.execute("UPDATE tasks SET held = 0 WHERE held = 1")

    async def open_of(self, tx: Transaction, task_ids: Sequence[str]) -> dict[str, Occurrence]:
        """Return the running occurrences of these tasks by task; each has one at most (T-051)."""
        rows = await tx.rows(
            "SELECT o.* FROM occurrences o JOIN json_each(?) t ON t.value = o.task_id"
            " WHERE o.state = 'claimed'",
            (json.dumps([*task_ids]),),
        )
        return {row["task_id"]: occurrence(row) for row in rows}

    async def move(self, tx: Transaction, seq: int, conversation_id: str) -> None:
        """Move an occurrence to another conversation."""
        await tx.execute(
            "UPDATE occurrences SET conversation_id = ? WHERE seq = ?", (conversation_id, seq)
        )

    async def claimed(self, tx: Transaction, claims: Sequence[Claim]) -> set[str]:
        """Return the tasks whose due moment was claimed before (T-034)."""
        asked = [[item.due.task.id, stamp(item.due_at)] for item in claims]
        rows = await tx.rows(
            "SELECT o.task_id FROM json_each(?) c JOIN occurrences o"
            " ON o.task_id = c.value ->> 0 AND o.due_at = c.value ->> 1",
            (json.dumps(asked),),
        )
        return {row["task_id"] for row in rows}

    async def take(
        self, tx: Transaction, claims: Sequence[tuple[Claim, OccurrenceState, str, str | None]]
    ) -> None:
        """Store new occurrences, each with its state, conversation and message."""
        now = self._clock.now()
        rows = [
            {
                "task_id": claim.due.task.id,
                "due_at": claim.due_at,
                "mode": claim.due.task.plan.mode,
                "content": claim.due.task.content,
                "state": state,
                "missed": claim.missed,
                "conversation_id": conversation_id,
                "outbox_id": outbox_id,
                "claimed_at": now,
                "ended_at": None if state == "claimed" else now,
            }
            for claim, state, conversation_id, outbox_id in claims
        ]
        await tx.execute_many(*insert_many("occurrences", rows))

    async def advance(self, tx: Transaction, claims: Sequence[Claim]) -> None:
        """Store the next due moments of these tasks, in the transaction of `take`."""
        await tx.execute_many(
            "UPDATE tasks SET rule_due = :rule_due, snoozed = :snoozed, zone = :zone WHERE id = :id",
            [
                stored({"rule_due": item.rule_due, "snoozed": item.snoozed})
                | {"zone": self._zone.key, "id": item.due.task.id}
                for item in claims
            ],
        )

    async def add_missed(self, tx: Transaction, seq: int, more: int) -> None:
        """Let an undelivered occurrence cover later due moments as well."""
        await tx.execute(
            "UPDATE occurrences SET missed = max(missed, 1) + ? WHERE seq = ?", (more, seq)
        )

    async def undelivered(self, tx: Transaction) -> list[Occurrence]:
        """List the reminders whose message may not be delivered yet."""
        rows = await tx.rows(
            "SELECT * FROM occurrences INDEXED BY occurrences_claimed"
            " WHERE state = 'claimed' AND outbox_id IS NOT NULL"
            " ORDER BY seq"
        )
        return [occurrence(row) for row in rows]

    async def delivered(self, tx: Transaction, outbox_id: str) -> Sequence[str]:
        """Mark a reminder as delivered when its message arrives. Return the reactions to add to it.

        Only now is a task that is never due again completed (T-041, T-042).
        """
        now = self._clock.now()
        row = await tx.row(
            "UPDATE occurrences SET state = 'done', ended_at = ? WHERE outbox_id = ?"
            " AND state = 'claimed' RETURNING task_id",
            (stamp(now), outbox_id),
        )
        if row is None:
            return ()
        await complete(tx, [row["task_id"]], now)
        return (*REMINDER_REACTIONS,)

    async def answer(
        self, tx: Transaction, outbox_id: str, sign: ReminderAnswer, *, by_owner: bool
    ) -> str | None:
        """Record an answer to a delivered reminder and return its task; each answer counts once (T-063).

        On a global task only the owner's answer counts (T-014).
        """
        row = await tx.row(
            "UPDATE occurrences SET answers = answers || :sign || ' ' WHERE outbox_id = :outbox"
            " AND mode = 'reminder' AND instr(answers, :sign || ' ') = 0 AND (:by_owner OR task_id"
            "  NOT IN (SELECT id FROM tasks WHERE scope = 'global')) RETURNING task_id",
            {"sign": sign, "outbox": outbox_id, "by_owner": by_owner},
        )
        return row["task_id"] if row else None

    async def last_delivered(self, tx: Transaction, conversation_id: str) -> str | None:
        """Return the task of the last reminder that was delivered in a conversation."""
        row = await tx.row(
            f"SELECT task_id FROM occurrences WHERE conversation_id = ? AND outbox_id IS NOT NULL"
            f" AND mode = 'reminder' AND state = 'done' ORDER BY {TOLD_AT} DESC LIMIT 1",
            (conversation_id,),
        )
        return row["task_id"] if row else None

    async def room_tasks_shown_in(self, tx: Transaction, conversation_id: str) -> dict[str, str]:
        """Return tasks of rooms that were posted in a conversation, each with its scope.

        Everybody who can read the conversation may read them, also if only one person is left,
        whose scope is another.
        """
        rows = await tx.rows(
            "SELECT id, scope FROM tasks WHERE scope LIKE ? || '%' AND id IN (SELECT task_id"
            " FROM occurrences WHERE conversation_id = ? AND outbox_id IS NOT NULL)",
            (ROOM, conversation_id),
        )
        return {row["id"]: row["scope"] for row in rows}

    async def last(self, task_ids: Sequence[str]) -> dict[str, Occurrence]:
        """Return the newest occurrence of each of these tasks, except missed ones."""
        rows = await self._database.rows(
            "SELECT o.* FROM json_each(?) t JOIN occurrences o ON o.seq ="
            " (SELECT seq FROM occurrences WHERE task_id = t.value AND state <> 'missed'"
            "  ORDER BY due_at DESC LIMIT 1)",
            (json.dumps([*task_ids]),),
        )
        return {row["task_id"]: occurrence(row) for row in rows}

    async def of_task(self, task_id: str, limit: int) -> list[Occurrence]:
        """List the occurrences of a task, newest first."""
        rows = await self._database.rows(
            "SELECT * FROM occurrences WHERE task_id = ? ORDER BY due_at DESC LIMIT ?",
            (task_id, limit),
        )
        return [occurrence(row) for row in rows]

    async def delivered_in(
        self, tx: Transaction, conversation_id: str, since: datetime, limit: int
    ) -> list[Occurrence]:
        """List the newest task messages of a room since a moment, oldest first.

        Messages that were held back, or that fewer people got than can read the room now, are left
        out (F-004).
        """
        rows = await tx.rows(
            f"SELECT * FROM (SELECT *, {TOLD_AT} AS told_at FROM occurrences"
            f" WHERE conversation_id = ? AND {TOLD_AT} > ? AND EXISTS (SELECT 1 FROM outbox o"
            "   JOIN conversations c ON c.id = o.conversation_id WHERE o.id = outbox_id"
            "   AND o.conversation_id = occurrences.conversation_id AND o.state <> 'stuck'"
            "   AND o.meant_for IN ('', c.scope))"
            f" ORDER BY {TOLD_AT} DESC LIMIT ?) ORDER BY told_at, seq",
            (conversation_id, stamp(since), limit),
        )
        return [occurrence(row) for row in rows]


class TaskRuns:
    """The store of autonomous runs: the occurrences that are not reminders."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def rooms(self, tx: Transaction) -> list[str]:
        """List the conversations with running or waiting runs."""
        rows = await tx.rows(f"SELECT DISTINCT conversation_id FROM occurrences WHERE {AT_WORK}")
        return [row["conversation_id"] for row in rows]

    async def open_in(self, tx: Transaction, conversation_id: str) -> list[Occurrence]:
        """List the running and waiting runs of a conversation."""
        rows = await tx.rows(
            f"SELECT * FROM occurrences WHERE {AT_WORK} AND conversation_id = ? ORDER BY seq",
            (conversation_id,),
        )
        return [occurrence(row) for row in rows]

    async def ready(self, tx: Transaction, rooms: Sequence[str], limit: int) -> list[Occurrence]:
        """List the runs that may start now, oldest first: new ones, and postponed ones whose time has come."""
        rows = await tx.rows(
            f"SELECT * FROM occurrences WHERE {AT_WORK} AND {_ROOMS}"
            f" AND (cast_id IS NULL AND not_before IS NULL OR {_NOT_BEFORE} <= :now)"
            " ORDER BY seq LIMIT :limit",
            {"rooms": json.dumps([*rooms]), "now": self._clock.monotonic(), "limit": limit},
        )
        return [occurrence(row) for row in rows]

    async def interrupted(
        self, tx: Transaction, rooms: Sequence[str]
    ) -> list[tuple[Occurrence, int]]:
        """Return the runs that were running when the program ended, each with its number of interruptions."""
        rows = await tx.rows(
            "UPDATE occurrences SET interruptions = interruptions + 1"
            f" WHERE {AT_WORK} AND {_ROOMS} AND cast_id IS NOT NULL AND not_before IS NULL"
            " RETURNING *",
            {"rooms": json.dumps([*rooms])},
        )
        return [(occurrence(row), row["interruptions"]) for row in rows]

    async def suspended(self, tx: Transaction, runs: Sequence[int]) -> None:
        """Note that the running ones of these were suspended in an orderly way, which is no interruption."""
        await tx.execute(
            f"UPDATE occurrences SET interruptions = interruptions - 1 WHERE {AT_WORK}"
            " AND cast_id IS NOT NULL AND not_before IS NULL"
            " AND seq IN (SELECT value FROM json_each(?))",
            (json.dumps([*runs]),),
        )

    async def retry_now(self, tx: Transaction) -> None:
        """Retry postponed runs now: after a start the reason may be gone."""
        await tx.execute(
            "UPDATE occurrences SET not_before = '0' WHERE state = 'claimed'"
            " AND not_before IS NOT NULL"
        )

    async def next_try(self, tx: Transaction) -> float | None:
        """Return when the next postponed run may be tried again, by the monotonic clock.

        One whose time has come is not among them: it starts as soon as there is a free place.
        """
        row = await tx.row(
            f"SELECT min({_NOT_BEFORE}) AS due FROM occurrences WHERE {AT_WORK}"
            f" AND {_NOT_BEFORE} > ?",
            (self._clock.monotonic(),),
        )
        return row["due"] if row else None

    async def begin(self, tx: Transaction, seq: int, cast_id: str) -> None:
        """Note the cast that works on a run."""
        await tx.execute(
            "UPDATE occurrences SET cast_id = ?, not_before = NULL WHERE seq = ?", (cast_id, seq)
        )

    async def postpone(self, tx: Transaction, seq: int, until: float) -> None:
        """Postpone a run, by the monotonic clock (F-015)."""
        await tx.execute("UPDATE occurrences SET not_before = ? WHERE seq = ?", (until, seq))

    async def cancel_run(self, tx: Transaction, seq: int, why: str) -> None:
        """End a run that is no longer wanted. A task that is not due again is paused."""
        await self._end(tx, seq, "missed", why, None)
        await tx.execute(
            "UPDATE tasks SET status = 'paused' WHERE status = 'active' AND next_due IS NULL"
            " AND id = (SELECT task_id FROM occurrences WHERE seq = ?)",
            (seq,),
        )

    async def done(
        self, tx: Transaction, run: Occurrence, result: str, outbox_id: str | None
    ) -> None:
        """End a run that succeeded. `outbox_id`: the message with its result, if any."""
        await self._end(tx, run.seq, "done", result, outbox_id)
        await tx.execute("UPDATE tasks SET failures = 0 WHERE id = ?", (run.task_id,))
        await complete(tx, [run.task_id], self._clock.now())

    async def failed(
        self, tx: Transaction, run: Occurrence, why: str, outbox_id: str | None, *, pauses: bool
    ) -> None:
        """End a run that failed and was reported. `pauses`: its task does not run again by itself (T-050)."""
        await self._end(tx, run.seq, "failed", why, outbox_id)
        await tx.execute(
            "UPDATE tasks SET failures = failures + 1, changed_at = :now,"
            " status = iif(:pauses AND status = 'active', 'paused', status) WHERE id = :id",
            {"id": run.task_id, "pauses": pauses, "now": stamp(self._clock.now())},
        )

    async def _end(
        self, tx: Transaction, seq: int, state: str, result: str, outbox_id: str | None
    ) -> None:
        await tx.execute(
            "UPDATE occurrences SET state = ?, result = ?, outbox_id = ?, ended_at = ?"
            " WHERE seq = ?",
            (state, result, outbox_id, stamp(self._clock.now()), seq),
        )

    async def before(self, tx: Transaction, run: Occurrence) -> tuple[int, str]:
        """Return the number of earlier runs of the task, and the last result that reported anything."""
        row = await tx.row(
            "SELECT count(*) AS n, (SELECT result FROM occurrences WHERE task_id = :task"
            "  AND due_at < :due AND state = 'done' AND mode <> 'reminder'"
            "  AND result <> :nothing ORDER BY due_at DESC LIMIT 1) AS last FROM occurrences WHERE task_id = :task"
            " AND due_at < :due AND state IN ('done', 'failed') AND mode <> 'reminder'",
            {"task": run.task_id, "due": stamp(run.due_at), "nothing": NO_ACTION},
        )
        return (int(row["n"]), row["last"] or "") if row else (0, "")


async def purge_completed(tx: Transaction, before: datetime) -> int:
    """Remove tasks that were completed or deleted before a moment, with their occurrences. Return
    their number.

    The loom still has the casts that made them (T-061).
    """
    over = (
        "SELECT id FROM tasks t WHERE status IN ('completed', 'deleted') AND changed_at < ?"
        " AND NOT EXISTS (SELECT 1 FROM occurrences o WHERE o.task_id = t.id AND o.state = 'claimed')"
    )
    await tx.execute(f"DELETE FROM occurrences WHERE task_id IN ({over})", (stamp(before),))
    return await tx.execute(f"DELETE FROM tasks WHERE id IN ({over})", (stamp(before),))
