"""The table of occurrences: each due moment of a task is claimed once, before anything is done."""

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from zoneinfo import ZoneInfo

from wintermute.clock import Clock, moment, stamp
from wintermute.db import Database, Row, Transaction
from wintermute.db.traces import holds
from wintermute.messages import ROOM
from wintermute.tasks.claiming import Claim, Due
from wintermute.tasks.records import SIGNS, Sign, State
from wintermute.tasks.rows import COLUMNS, task_of
from wintermute.tasks.schedule import Mode

TOLD_AT = "iif(mode = 'reminder', claimed_at, ended_at)"
MOST_FAILURES = 3
"""In a row; then a task is paused (T-050)."""


@dataclass(frozen=True, slots=True)
class Occurrence:
    """One due moment of a task, and what came of it.

    `missed`: how many due moments it stands for when it is late; 0 when it was in time.
    """

    seq: int
    task_id: str
    due_at: datetime
    mode: Mode
    content: str
    state: State
    missed: int
    conversation_id: str
    outbox_id: str | None
    cast_id: str | None
    result: str
    ended_at: datetime | None


class Occurrences:
    """The store of occurrences. What is claimed is never claimed again (T-035).

    Its looks at the tables come every few seconds, so they name their index: without statistics
    SQLite would rather walk through all active tasks.
    """

    def __init__(self, database: Database, clock: Clock, zone: ZoneInfo) -> None:
        self._database = database
        self._clock = clock
        self._zone = zone

    async def due(self, tx: Transaction, limit: int) -> list[Due]:
        """The tasks whose time has come, in due order."""
        rows = await tx.rows(
            f"SELECT {COLUMNS}, conversation_id, rule_due FROM tasks INDEXED BY tasks_due"
            " WHERE status = 'active' AND held = 0 AND next_due <= ?"
            " ORDER BY next_due, seq LIMIT ?",
            (stamp(self._clock.now()), limit),
        )
        return [
            Due(
                task_of(row, self._zone),
                row["conversation_id"],
                _moment(row["rule_due"]),
            )
            for row in rows
        ]

    async def next_due(self, tx: Transaction) -> datetime | None:
        """The earliest moment of all tasks."""
        row = await tx.row(
            "SELECT min(next_due) AS due FROM tasks INDEXED BY tasks_due"
            " WHERE status = 'active' AND held = 0 AND next_due IS NOT NULL"
        )
        return _moment(row["due"]) if row else None

    async def hold(self, tx: Transaction, task_ids: Sequence[str]) -> None:
        """Pass over what there is no room for, until `let_go`."""
        await tx.execute_many(
            "UPDATE tasks SET held = 1 WHERE id = ?", [(task_id,) for task_id in task_ids]
        )

    async def let_go(self, tx: Transaction) -> None:
        """Look again whether there is a room by now."""
        await tx.execute("UPDATE tasks SET held = 0 WHERE held = 1")

    async def open_of(self, tx: Transaction, task_ids: Sequence[str]) -> dict[str, Occurrence]:
        """The occurrences of these tasks that are under way, by task: one of each at most (T-051)."""
        rows = await tx.rows(
            "SELECT o.* FROM occurrences o JOIN json_each(?) t ON t.value = o.task_id"
            " WHERE o.state = 'claimed'",
            (json.dumps([*task_ids]),),
        )
        return {row["task_id"]: occurrence(row) for row in rows}

    async def move(self, tx: Transaction, seq: int, conversation_id: str) -> None:
        """It is said elsewhere."""
        await tx.execute(
            "UPDATE occurrences SET conversation_id = ? WHERE seq = ?", (conversation_id, seq)
        )

    async def taken(self, tx: Transaction, claims: Sequence[Claim]) -> set[str]:
        """The tasks among these whose due moment was claimed before (T-034)."""
        asked = [[each.due.task.id, stamp(each.due_at)] for each in claims]
        rows = await tx.rows(
            "SELECT o.task_id FROM json_each(?) c JOIN occurrences o"
            " ON o.task_id = c.value ->> 0 AND o.due_at = c.value ->> 1",
            (json.dumps(asked),),
        )
        return {row["task_id"] for row in rows}

    async def take(
        self, tx: Transaction, claims: Sequence[tuple[Claim, State, str, str | None]]
    ) -> None:
        """Keep new occurrences: each with its state, conversation and message."""
        now = stamp(self._clock.now())
        await tx.execute_many(
            "INSERT INTO occurrences (task_id, due_at, mode, content, state, missed,"
            " conversation_id, outbox_id, claimed_at, ended_at)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            [
                (
                    claim.due.task.id,
                    stamp(claim.due_at),
                    claim.due.task.plan.mode,
                    claim.due.task.content,
                    state,
                    claim.missed,
                    conversation_id,
                    outbox_id,
                    now,
                    None if state == "claimed" else now,
                )
                for claim, state, conversation_id, outbox_id in claims
            ],
        )

    async def advance(self, tx: Transaction, claims: Sequence[Claim]) -> None:
        """What is next for these tasks, in the transaction that takes what is due."""
        await tx.execute_many(
            "UPDATE tasks SET rule_due = ?, snoozed = ?, zone = ? WHERE id = ?",
            [
                (
                    stamp(each.rule_due) if each.rule_due else None,
                    stamp(each.snoozed) if each.snoozed else None,
                    self._zone.key,
                    each.due.task.id,
                )
                for each in claims
            ],
        )

    async def stands_for(self, tx: Transaction, seq: int, more: int) -> None:
        """An occurrence that could not be said yet stands for later ones as well."""
        await tx.execute(
            "UPDATE occurrences SET missed = max(missed, 1) + ? WHERE seq = ?", (more, seq)
        )

    async def unsaid(self, tx: Transaction) -> list[Occurrence]:
        """Reminders whose message may be on its way still."""
        rows = await tx.rows(
            "SELECT * FROM occurrences INDEXED BY occurrences_claimed"
            " WHERE state = 'claimed' AND outbox_id IS NOT NULL"
            " ORDER BY seq"
        )
        return [occurrence(row) for row in rows]

    async def said(self, tx: Transaction, outbox_id: str) -> Sequence[str]:
        """A message is in its room: the signs to put on it, if it is a reminder.

        Only now is a task that is due no more completed (T-041, T-042).
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
        return (*SIGNS,)

    async def answer(
        self, tx: Transaction, outbox_id: str, sign: Sign, *, by_owner: bool
    ) -> str | None:
        """The task of a delivered reminder that is answered with a sign, each sign once (T-063).

        On a task of all rooms only the owner's counts (T-014).
        """
        row = await tx.row(
            "UPDATE occurrences SET answers = answers || :sign || ' ' WHERE outbox_id = :outbox"
            " AND mode = 'reminder' AND instr(answers, :sign || ' ') = 0 AND (:by_owner OR task_id"
            "  NOT IN (SELECT id FROM tasks WHERE scope = 'global')) RETURNING task_id",
            {"sign": sign, "outbox": outbox_id, "by_owner": by_owner},
        )
        return row["task_id"] if row else None

    async def last_told(self, tx: Transaction, conversation_id: str) -> str | None:
        """The task of the last reminder that was delivered in a conversation."""
        row = await tx.row(
            f"SELECT task_id FROM occurrences WHERE conversation_id = ? AND outbox_id IS NOT NULL"
            f" AND mode = 'reminder' AND state = 'done' ORDER BY {TOLD_AT} DESC LIMIT 1",
            (conversation_id,),
        )
        return row["task_id"] if row else None

    async def told_of_rooms(self, tx: Transaction, conversation_id: str) -> dict[str, str]:
        """Rooms' own tasks that a conversation has heard of, each with its scope.

        All who can read there may read them, also when there is one person left, whose own scope
        is another.
        """
        rows = await tx.rows(
            "SELECT id, scope FROM tasks WHERE scope LIKE ? || '%' AND id IN (SELECT task_id"
            " FROM occurrences WHERE conversation_id = ? AND outbox_id IS NOT NULL)",
            (ROOM, conversation_id),
        )
        return {row["id"]: row["scope"] for row in rows}

    async def last(self, task_ids: Sequence[str]) -> dict[str, Occurrence]:
        """The newest occurrence of each of these tasks that has one which was fired."""
        rows = await self._database.rows(
            "SELECT o.* FROM json_each(?) t JOIN occurrences o ON o.seq ="
            " (SELECT seq FROM occurrences WHERE task_id = t.value AND state <> 'missed'"
            "  ORDER BY due_at DESC LIMIT 1)",
            (json.dumps([*task_ids]),),
        )
        return {row["task_id"]: occurrence(row) for row in rows}

    async def of_task(self, task_id: str, limit: int) -> list[Occurrence]:
        """The history of a task, newest first."""
        rows = await self._database.rows(
            "SELECT * FROM occurrences WHERE task_id = ? ORDER BY due_at DESC LIMIT ?",
            (task_id, limit),
        )
        return [occurrence(row) for row in rows]

    async def told_in(
        self, tx: Transaction, conversation_id: str, since: datetime, limit: int
    ) -> list[Occurrence]:
        """What a room was told by its tasks since a moment, oldest first; the newest of it.

        Not what was kept back from it, or told to fewer than can read there now (F-004).
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

    async def forget(self, tx: Transaction, traces: Sequence[str]) -> int:
        """Blank what holds one of the `traces`, unless it is yet to be said; how many."""
        asked = {"traces": json.dumps(list(traces))}
        return await tx.execute(
            "UPDATE occurrences SET content = '', result = '' WHERE state <> 'claimed'"
            f" AND content || result <> '' AND {holds('content', 'result')}",
            asked,
        )


async def complete(tx: Transaction, task_ids: Collection[str], now: datetime) -> None:
    """End the tasks among these that are never due again (T-025, T-041)."""
    await tx.execute_many(
        "UPDATE tasks SET status = 'completed', reason = 'delivered', changed_at = ?"
        " WHERE id = ? AND status = 'active' AND next_due IS NULL AND schedule IS NOT NULL",
        [(stamp(now), task_id) for task_id in task_ids],
    )


def _moment(stored: str | None) -> datetime | None:
    return moment(stored) if stored else None


def occurrence(row: Row) -> Occurrence:
    """The value of a row."""
    return Occurrence(
        seq=row["seq"],
        task_id=row["task_id"],
        due_at=moment(row["due_at"]),
        mode=row["mode"],
        content=row["content"],
        state=row["state"],
        missed=row["missed"],
        conversation_id=row["conversation_id"],
        outbox_id=row["outbox_id"],
        cast_id=row["cast_id"],
        result=row["result"],
        ended_at=_moment(row["ended_at"]),
    )
