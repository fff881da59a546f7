"""Occurrences that are worked on: what waits, what is at work, what came of it."""

import json
from collections.abc import Sequence

from wintermute.clock import Clock, stamp
from wintermute.db import Database, Transaction
from wintermute.tasks.occurrences import Occurrence, complete, occurrence

NO_ACTION = "[NO_ACTION]"
"""The whole result of a run that found nothing to tell (T-049)."""
AT_WORK = "state = 'claimed' AND mode <> 'reminder'"
_NOT_BEFORE = "CAST(not_before AS REAL)"
_ROOMS = "conversation_id IN (SELECT value FROM json_each(:rooms))"


class TaskRuns:
    """The store of autonomous runs: the occurrences that are no reminders."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def rooms(self, tx: Transaction) -> list[str]:
        """The conversations for which something is at work or waits."""
        rows = await tx.rows(f"SELECT DISTINCT conversation_id FROM occurrences WHERE {AT_WORK}")
        return [row["conversation_id"] for row in rows]

    async def open_in(self, tx: Transaction, conversation_id: str) -> list[Occurrence]:
        """What is at work or waits for a conversation."""
        rows = await tx.rows(
            f"SELECT * FROM occurrences WHERE {AT_WORK} AND conversation_id = ? ORDER BY seq",
            (conversation_id,),
        )
        return [occurrence(row) for row in rows]

    async def ready(self, tx: Transaction, rooms: Sequence[str], limit: int) -> list[Occurrence]:
        """What may start now, oldest first: not begun yet, or put off until now."""
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
        """What was at work when the program ended, and how often that has happened to it."""
        rows = await tx.rows(
            "UPDATE occurrences SET interruptions = interruptions + 1"
            f" WHERE {AT_WORK} AND {_ROOMS} AND cast_id IS NOT NULL AND not_before IS NULL"
            " RETURNING *",
            {"rooms": json.dumps([*rooms])},
        )
        return [(occurrence(row), row["interruptions"]) for row in rows]

    async def hurry(self, tx: Transaction) -> None:
        """Try again now what was put off: after a start the reason may be gone."""
        await tx.execute(
            "UPDATE occurrences SET not_before = '0' WHERE state = 'claimed'"
            " AND not_before IS NOT NULL"
        )

    async def next_try(self, tx: Transaction) -> float | None:
        """When the next of those that were put off may be tried again, by the steady clock.

        One whose time has come waits for a free place, and is begun when there is one.
        """
        row = await tx.row(
            f"SELECT min({_NOT_BEFORE}) AS due FROM occurrences WHERE {AT_WORK}"
            f" AND {_NOT_BEFORE} > ?",
            (self._clock.monotonic(),),
        )
        return row["due"] if row else None

    async def begin(self, tx: Transaction, seq: int, cast_id: str) -> None:
        """A cast works on it from now on."""
        await tx.execute(
            "UPDATE occurrences SET cast_id = ?, not_before = NULL WHERE seq = ?", (cast_id, seq)
        )

    async def put_off(self, tx: Transaction, seq: int, until: float) -> None:
        """Try it again then, by the steady clock (F-015)."""
        await tx.execute("UPDATE occurrences SET not_before = ? WHERE seq = ?", (until, seq))

    async def dropped(self, tx: Transaction, seq: int, why: str) -> None:
        """It is no longer wanted. A task that is not due again waits to be resumed."""
        await self._end(tx, seq, "missed", why, None)
        await tx.execute(
            "UPDATE tasks SET status = 'paused' WHERE status = 'active' AND next_due IS NULL"
            " AND id = (SELECT task_id FROM occurrences WHERE seq = ?)",
            (seq,),
        )

    async def done(
        self, tx: Transaction, run: Occurrence, result: str, outbox_id: str | None
    ) -> None:
        """It went well. `outbox_id`: the message that tells of it, if any."""
        await self._end(tx, run.seq, "done", result, outbox_id)
        await tx.execute("UPDATE tasks SET failures = 0 WHERE id = ?", (run.task_id,))
        await complete(tx, [run.task_id], self._clock.now())

    async def failed(
        self, tx: Transaction, run: Occurrence, why: str, outbox_id: str | None, *, pauses: bool
    ) -> None:
        """It failed, and was told; `pauses`: its task does not run again by itself (T-050)."""
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
        """How many runs of its task there were before, and the last result there was to tell."""
        row = await tx.row(
            "SELECT count(*) AS n, (SELECT result FROM occurrences WHERE task_id = :task"
            "  AND due_at < :due AND state = 'done' AND mode <> 'reminder'"
            "  AND result <> :nothing ORDER BY due_at DESC LIMIT 1) AS last FROM occurrences WHERE task_id = :task"
            " AND due_at < :due AND state IN ('done', 'failed') AND mode <> 'reminder'",
            {"task": run.task_id, "due": stamp(run.due_at), "nothing": NO_ACTION},
        )
        return (int(row["n"]), row["last"] or "") if row else (0, "")
