"""Jobs: background work without tables of its own, each stored once by its key.

    waiting ─▶ running ─▶ done
       ▲          ├─ postponed, or failed: it waits again
       ╰──────────╯
                  ╰─▶ failed: three times in a row with the same error, or six times with any

A job that failed so often stops its series: all jobs of its name and scope, because the next would
probably fail as well. A job that crashes the program is postponed ever longer (M-095).
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from wintermute.clock import Clock, moment, stamp
from wintermute.db import Database, Transaction
from wintermute.db.text_search import SCOPES, SearchableText
from wintermute.db.values import insert, reader
from wintermute.ids import NewId
from wintermute.messages import Json

MOST_FAILURES = 3
"""Failures in a row with the same error."""
MOST_OF_ANY = 6
"""Failures in a row with any error."""
AGAIN = timedelta(minutes=1)
"""The pause after the first failure; each further one makes it four times as long."""
KEPT = timedelta(days=30)
FORGET = "forget"
"""The name of jobs that hold a text until it is erased everywhere."""
NAMES_FACTS = "json_remove(args, '$.facts') = '{}'"
LISTED = "(SELECT value FROM json_each(:ids))"
JOB_TEXTS = SearchableText(
    *("jobs", ("args", "progress", "last_error"), "rowid"), of=f"scope = '' OR scope IN {SCOPES}"
)
FACTS_LEFT = (
    "(SELECT json_group_array(value) FROM json_each(args, '$.facts')"
    " WHERE value NOT IN (SELECT value FROM json_each(:texts)))"
)
ERASED_JOBS = (
    # A job for several facts without their texts stays for the facts that are not forgotten.
    replace(
        JOB_TEXTS,
        where=f"{NAMES_FACTS} AND state <> 'done'",
        empties=(f"args = json_object('facts', {FACTS_LEFT})",),
    ),
    replace(
        JOB_TEXTS,
        where=f"state <> 'done' AND name <> '{FORGET}'"
        f" AND NOT ({NAMES_FACTS} AND args ->> '$.facts[0]' IS NOT NULL)",
        drops=True,
    ),
    replace(
        JOB_TEXTS,
        where="state = 'done'",
        empties=("args = '{}'", "progress = '{}'", "last_error = ''"),
    ),
)
"""The changes of jobs that contain a forgotten text, in this order."""


@dataclass(frozen=True, slots=True)
class Job:
    """One job. `scope`: its owner; `progress`: the point from which it goes on after a restart.

    `failures`: failures in a row; `attempts`: those at the end of them with `last_error`.
    """

    id: str
    name: str
    key: str
    scope: str
    args: Json
    progress: Json
    attempts: int
    failures: int
    crashes: int
    last_error: str | None


_job = reader(Job)


class Jobs:
    """The store of jobs."""

    def __init__(self, clock: Clock, new_id: NewId) -> None:
        self._clock = clock
        self._new_id = new_id

    async def enqueue(
        self,
        tx: Transaction,
        name: str,
        key: str,
        scope: str,
        args: Mapping[str, Any] | None = None,
        not_before: datetime | None = None,
    ) -> bool:
        """Store a job. False if there is or was one with this key."""
        values = {
            "id": self._new_id("job"),
            "name": name,
            "key": key,
            "scope": scope,
            "state": "waiting",
            "args": dict(args or {}),
            "not_before": not_before,
            "created_at": self._clock.now(),
        }
        return await tx.execute(*insert("jobs", values, "ON CONFLICT (name, key) DO NOTHING")) == 1

    async def renew(
        self, tx: Transaction, name: str, key: str, args: Json, not_before: datetime | None = None
    ) -> None:
        """Ask again for a job: it no longer waits, and runs once more if it was done."""
        await tx.execute(
            "UPDATE jobs SET state = 'waiting', args = ?, not_before = ?, ended_at = NULL,"
            " progress = json_remove(progress, '$.pauses')"
            " WHERE name = ? AND key = ? AND state IN ('waiting', 'done')",
            (json.dumps(args), stamp(not_before) if not_before else None, name, key),
        )

    async def enqueue_due(self, tx: Transaction, name: str) -> None:
        """Enqueue a job that does all there is to do, unless one is waiting already."""
        if not await tx.exists("SELECT 1 FROM jobs WHERE name = ? AND state = 'waiting'", (name,)):
            await self.enqueue(tx, name, self._new_id("owed"), "")

    async def by_key(self, tx: Transaction, name: str, key: str) -> Job:
        """Return an existing job by its key."""
        (row,) = await tx.rows("SELECT * FROM jobs WHERE name = ? AND key = ?", (name, key))
        return _job(row)

    async def is_pending(self, tx: Transaction, name: str, scope: str) -> bool:
        """Return True if a job of this series waits, or the series is stopped."""
        return await tx.exists(
            "SELECT 1 FROM jobs WHERE name = ? AND state IN ('waiting', 'failed') AND scope = ?",
            (name, scope),
        )

    async def is_forgetting(self, source: Transaction | Database, scope: str = "") -> bool:
        """Return True while a text that people want forgotten, in one scope or any, is not erased yet."""
        return await source.exists(
            "SELECT 1 FROM jobs WHERE name = :name AND state IN ('waiting', 'running') AND"
            " (:scope = '' OR :scope IN (SELECT value FROM json_each(args, '$.scopes')))",
            {"name": FORGET, "scope": scope},
        )

    async def exists(self, tx: Transaction, job_id: str) -> bool:
        """Return True unless the job was forgotten."""
        return await tx.exists("SELECT 1 FROM jobs WHERE id = ?", (job_id,))

    async def begin(self, tx: Transaction, name: str, most: int) -> list[Job]:
        """Start ready jobs, oldest first, of series that are not stopped."""
        rows = await tx.rows(
            "UPDATE jobs SET state = 'running', waits_for = '' WHERE id IN (SELECT j.id FROM jobs j"
            " WHERE j.name = :name AND j.state = 'waiting'"
            " AND (j.not_before IS NULL OR j.not_before <= :now) AND NOT EXISTS (SELECT 1 FROM jobs f"
            "  WHERE f.name = j.name AND f.scope = j.scope AND f.state = 'failed')"
            " ORDER BY j.created_at, j.id LIMIT :most) RETURNING *",
            {"name": name, "now": stamp(self._clock.now()), "most": most},
        )
        return [_job(row) for row in rows]

    async def next_due(self, tx: Transaction, name: str) -> datetime | None:
        """Return when the next waiting job may start."""
        (due,) = await tx.scalars(
            "SELECT min(not_before) FROM jobs WHERE name = ? AND state = 'waiting'"
            " AND not_before > ?",
            (name, stamp(self._clock.now())),
        )
        return moment(due) if due else None

    async def interrupted(self, tx: Transaction, name: str) -> list[Job]:
        """Return the jobs that an earlier run left running. Failed ones wait again: the reason may be gone."""
        await tx.execute(
            "UPDATE jobs SET state = 'waiting', attempts = 0, failures = 0, not_before = NULL,"
            " ended_at = NULL WHERE name = ?"
            " AND (state = 'failed' OR (state = 'waiting' AND attempts > 0))",
            (name,),
        )
        rows = await tx.rows(
            "UPDATE jobs SET crashes = crashes + 1, attempts = 0"
            " WHERE name = ? AND state = 'running' RETURNING *",
            (name,),
        )
        return [_job(row) for row in rows]

    async def suspended(self, tx: Transaction, ids: Sequence[str]) -> None:
        """Note that these running jobs were suspended in an orderly way, which is no crash."""
        await tx.execute(
            f"UPDATE jobs SET crashes = crashes - 1 WHERE state = 'running' AND id IN {LISTED}",
            {"ids": json.dumps(ids)},
        )

    async def save_progress(self, tx: Transaction, job_id: str, progress: Json) -> None:
        """Store the progress of a job, in the transaction of the step."""
        await tx.execute(
            "UPDATE jobs SET progress = ? WHERE id = ?", (json.dumps(progress), job_id)
        )

    async def add_to(self, tx: Transaction, job_id: str, name: str, number: int) -> None:
        """Add to a number in the progress of a job, in the transaction of the step."""
        await tx.execute(
            "UPDATE jobs SET progress = json_set(progress, '$.' || :name,"
            " coalesce(progress ->> ('$.' || :name), 0) + :number) WHERE id = :id",
            {"name": name, "number": number, "id": job_id},
        )

    async def done(self, tx: Transaction, job_id: str) -> bool:
        """End a job that succeeded. False if it was forgotten meanwhile: then its result must not be used.

        Jobs that ended long ago are deleted, so that the table does not grow.
        """
        now = self._clock.now()
        done = await tx.execute(
            "UPDATE jobs SET state = 'done', ended_at = ? WHERE id = ?", (stamp(now), job_id)
        )
        await tx.execute(
            "DELETE FROM jobs WHERE state = 'done' AND ended_at < ?", (stamp(now - KEPT),)
        )
        return done == 1

    async def postpone(self, tx: Transaction, job_id: str, until: datetime, why: str) -> None:
        """Postpone a job until a cause has passed; that is no failure. `why`: the cause, in words."""
        await tx.execute(
            "UPDATE jobs SET state = 'waiting', not_before = ?, waits_for = ? WHERE id = ?",
            (stamp(until), why, job_id),
        )

    async def failed(self, tx: Transaction, job: Job, error: str, *, persists: bool = False) -> str:
        """Note a failure; the job is retried later. If the job stops now, return how often it
        failed, in words.

        A job that `persists` never stops.
        """
        attempts = job.attempts + 1 if job.last_error == error else 1
        failures = job.failures + 1
        again = self._clock.now() + AGAIN * 4 ** min(failures - 1, MOST_FAILURES)
        stops = (attempts >= MOST_FAILURES or failures >= MOST_OF_ANY) and not persists
        await tx.execute(
            "UPDATE jobs SET state = :state, attempts = :attempts, failures = :failures,"
            " last_error = :error, not_before = :again, ended_at = :ended WHERE id = :id",
            {
                "state": "failed" if stops else "waiting",
                "attempts": attempts,
                "failures": failures,
                "error": error,
                "again": stamp(again),
                "ended": stamp(self._clock.now()) if stops else None,
                "id": job.id,
            },
        )
        if attempts == MOST_FAILURES:
            return "three times"
        is_mixed = attempts < MOST_FAILURES and failures == MOST_OF_ANY
        return "six times" if is_mixed else ""

    async def clear_texts(self, tx: Transaction, job_id: str) -> None:
        """Remove all texts from a job."""
        await tx.execute("UPDATE jobs SET args = '{}', progress = '{}' WHERE id = ?", (job_id,))
