"""Jobs: owed work without tables of its own, each once by its key.

    waiting ─▶ running ─▶ done
       ▲          ├─ put off, or failed: it waits again
       ╰──────────╯
                  ╰─▶ failed: three times in a row in the same way, or six times in whatever way

A job that failed so often stops its series, which is all jobs of its name and scope: what is
wrong with one is wrong with the next. One that crashes is put off ever longer (M-095).
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from wintermute.clock import Clock, moment, stamp
from wintermute.db import Database, Transaction
from wintermute.db.text_search import SCOPES, Kept
from wintermute.db.values import insert, reader
from wintermute.ids import NewId
from wintermute.messages import Json

MOST_FAILURES = 3
"""In a row, in the same way."""
MOST_OF_ANY = 6
"""In a row, in whatever way."""
AGAIN = timedelta(minutes=1)
"""After the first failure; four times as long after each one more."""
KEPT = timedelta(days=30)
FORGET = "forget"
"""Jobs that hold what they are to erase until they have."""
NAMES_FACTS = "json_remove(args, '$.facts') = '{}'"
LISTED = "(SELECT value FROM json_each(:ids))"
OWED = Kept(
    *("jobs", ("args", "progress", "last_error"), "rowid"), of=f"scope = '' OR scope IN {SCOPES}"
)
FACTS_LEFT = (
    "(SELECT json_group_array(value) FROM json_each(args, '$.facts')"
    " WHERE value NOT IN (SELECT value FROM json_each(:texts)))"
)
ERASED_JOBS = (
    # What is owed for several facts and tells none of them is owed for the others.
    replace(
        OWED,
        where=f"{NAMES_FACTS} AND state <> 'done'",
        empties=(f"args = json_object('facts', {FACTS_LEFT})",),
    ),
    replace(
        OWED,
        where=f"state <> 'done' AND name <> '{FORGET}'"
        f" AND NOT ({NAMES_FACTS} AND args ->> '$.facts[0]' IS NOT NULL)",
        drops=True,
    ),
    replace(
        OWED, where="state = 'done'", empties=("args = '{}'", "progress = '{}'", "last_error = ''")
    ),
)
"""What becomes of those that are found, in this order."""


@dataclass(frozen=True, slots=True)
class Job:
    """One piece. `scope`: whose it is; `progress`: where it goes on after a restart.

    `failures`: how often in a row it failed; `attempts`: the last of them with `last_error`.
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
        """Owe a job; False when there was one with this key, whatever became of it."""
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
        """The same is asked again: it waits no longer, and is done once more if it was done."""
        await tx.execute(
            "UPDATE jobs SET state = 'waiting', args = ?, not_before = ?, ended_at = NULL,"
            " progress = json_remove(progress, '$.pauses')"
            " WHERE name = ? AND key = ? AND state IN ('waiting', 'done')",
            (json.dumps(args), stamp(not_before) if not_before else None, name, key),
        )

    async def owe(self, tx: Transaction, name: str) -> None:
        """Owe a job that does whatever there is to do, unless one waits already."""
        if not await tx.exists("SELECT 1 FROM jobs WHERE name = ? AND state = 'waiting'", (name,)):
            await self.enqueue(tx, name, self._new_id("owed"), "")

    async def known_by(self, tx: Transaction, name: str, key: str) -> Job:
        """One that was enqueued."""
        (found,) = await tx.rows("SELECT * FROM jobs WHERE name = ? AND key = ?", (name, key))
        return _job(found)

    async def is_owed(self, tx: Transaction, name: str, scope: str) -> bool:
        """Whether one of this series waits, or the series is stopped."""
        return await tx.exists(
            "SELECT 1 FROM jobs WHERE name = ? AND state IN ('waiting', 'failed') AND scope = ?",
            (name, scope),
        )

    async def is_forgetting(self, source: Transaction | Database, scope: str = "") -> bool:
        """Decide if something that people want forgotten, in one scope or any, is not gone yet."""
        return await source.exists(
            "SELECT 1 FROM jobs WHERE name = :name AND state IN ('waiting', 'running') AND"
            " (:scope = '' OR :scope IN (SELECT value FROM json_each(args, '$.scopes')))",
            {"name": FORGET, "scope": scope},
        )

    async def is_there(self, tx: Transaction, job_id: str) -> bool:
        """Whether it was not forgotten."""
        return await tx.exists("SELECT 1 FROM jobs WHERE id = ?", (job_id,))

    async def begin(self, tx: Transaction, name: str, most: int) -> list[Job]:
        """Begin what is ready, oldest first, of series that are not stopped."""
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
        """When the next one's time comes."""
        (due,) = await tx.scalars(
            "SELECT min(not_before) FROM jobs WHERE name = ? AND state = 'waiting'"
            " AND not_before > ?",
            (name, stamp(self._clock.now())),
        )
        return moment(due) if due else None

    async def interrupted(self, tx: Transaction, name: str) -> list[Job]:
        """What an earlier run left at work. What failed is tried anew: the reason may be gone."""
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

    async def parked(self, tx: Transaction, ids: Sequence[str]) -> None:
        """These are left at work in order: to find them so is no crash."""
        await tx.execute(
            f"UPDATE jobs SET crashes = crashes - 1 WHERE state = 'running' AND id IN {LISTED}",
            {"ids": json.dumps(ids)},
        )

    async def went_on(self, tx: Transaction, job_id: str, progress: Json) -> None:
        """A step of it is done, in the transaction of that step."""
        await tx.execute(
            "UPDATE jobs SET progress = ? WHERE id = ?", (json.dumps(progress), job_id)
        )

    async def add_to(self, tx: Transaction, job_id: str, name: str, number: int) -> None:
        """Count on, in the transaction of a step, what the steps of a job have brought."""
        await tx.execute(
            "UPDATE jobs SET progress = json_set(progress, '$.' || :name,"
            " coalesce(progress ->> ('$.' || :name), 0) + :number) WHERE id = :id",
            {"name": name, "number": number, "id": job_id},
        )

    async def done(self, tx: Transaction, job_id: str) -> bool:
        """It went well; False: it was forgotten meanwhile, and nothing may follow from it.

        What was done long ago goes, so that the table does not grow.
        """
        now = self._clock.now()
        done = await tx.execute(
            "UPDATE jobs SET state = 'done', ended_at = ? WHERE id = ?", (stamp(now), job_id)
        )
        await tx.execute(
            "DELETE FROM jobs WHERE state = 'done' AND ended_at < ?", (stamp(now - KEPT),)
        )
        return done == 1

    async def put_off(self, tx: Transaction, job_id: str, until: datetime, why: str) -> None:
        """It waits for what passes by itself; that is no failure. `why`: what that is, in words."""
        await tx.execute(
            "UPDATE jobs SET state = 'waiting', not_before = ?, waits_for = ? WHERE id = ?",
            (stamp(until), why, job_id),
        )

    async def failed(self, tx: Transaction, job: Job, error: str, *, persists: bool = False) -> str:
        """It failed, and is tried again later; how often, in words, if that was once too often.

        One that `persists` goes on all the same.
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

    async def emptied(self, tx: Transaction, job_id: str) -> None:
        """Nothing is kept of what it was to do."""
        await tx.execute("UPDATE jobs SET args = '{}', progress = '{}' WHERE id = ?", (job_id,))
