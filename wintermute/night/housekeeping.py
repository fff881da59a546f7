"""Housekeeping, once a night: remove what has expired, so that the store does not grow (M-065, T-061).

If nothing has expired, nothing is written.
"""

from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from typing import ClassVar

from wintermute.changes.change_sets import KEPT
from wintermute.clock import stamp
from wintermute.files import run_uncancelled
from wintermute.forgetting.executors import Kinds
from wintermute.night.expiry import purge_expired
from wintermute.night.pipeline import PhaseStep, PhaseWork
from wintermute.tasks.occurrences import purge_completed
from wintermute.text import counted
from wintermute.wiki.folder import StoreFolder
from wintermute.wiki.links import JOBS
from wintermute.wiki.page_jobs import discard, listed_jobs, names_in
from wintermute.work.data_folder import DataFolder

LEAST_HOLES, PART_HOLES = 16_000_000, 0.25
"""Free bytes, and free part of the database, from which on it is vacuumed."""
MOST_REWRITTEN = 1_000_000_000
"""Bytes of a database that is rewritten at most; this takes some seconds."""
NEWS = timedelta(days=1)
"""Time in which facts must have come or gone for the word index to be optimized."""


class Housekeeping:
    """Removes what can no longer be undone, and optimizes the word index."""

    name: ClassVar = "housekeeping"
    use: ClassVar = "clean up old files"
    kinds: ClassVar[Kinds] = ()

    def __init__(self, own: DataFolder) -> None:
        self._stores = own.stores
        self._clock = own.clock

    async def steps(self, work: PhaseWork) -> AsyncIterator[PhaseStep]:
        """Yield one step with the number of removed job folders, tasks and questions."""
        await purge_expired(self._stores, self._clock.now())
        before = self._clock.now() - KEPT
        async with self._stores.database.transaction() as tx:
            questions = await self._stores.decisions.outdate(tx)
            await self._stores.nights.expire(tx)
            await self._stores.nights.expire_asked(tx)
            tasks = await purge_completed(tx, before)
        folders = await run_uncancelled(partial(_drop_jobs, self._stores.wiki.files, before))
        freed = await self._vacuum()
        if await self._has_news():
            async with self._stores.database.transaction() as tx:
                await self._stores.facts.words.optimize(tx)
        counts = [
            counted(n, what)
            for n, what in (
                (tasks, "completed task"),
                (folders, "job folder"),
                (questions, "question"),
            )
            if n
        ]
        notes = [f"gone: {', '.join(counts)}"] if counts else []
        notes += [f"{freed:,} bytes of the database given back"] if freed else []
        yield PhaseStep(note="; ".join(notes), counts=(tasks + folders + questions, 0))

    async def _vacuum(self) -> int:
        """Vacuum the database if much of it is empty, as after many vectors were deleted; return bytes freed.

        Writers wait meanwhile, so a very large database is left alone.
        """
        free, whole = await self._stores.database.unused_bytes()
        if free < LEAST_HOLES or free < PART_HOLES * whole or whole > MOST_REWRITTEN:
            return 0
        return free if await self._stores.database.scrub() else 0

    async def _has_news(self) -> bool:
        since = stamp(self._clock.now() - NEWS)
        return await self._stores.database.exists(
            "SELECT 1 FROM facts WHERE stored_at > :since OR retired_at > :since LIMIT 1",
            {"since": since},
        )


def _drop_jobs(files: StoreFolder, before: datetime) -> int:
    """Remove the folders of jobs that can no longer be undone; return their number."""
    old = [job for job in listed_jobs(files) if _ended(job.end or job.start, before)]
    for job in old:
        discard(files, JOBS, job.name)
    there = names_in(files, JOBS) if old else frozenset()
    return sum(job.name not in there for job in old)


def _ended(at: str, before: datetime) -> bool:
    with suppress(ValueError):
        return datetime.fromisoformat(at) < before
    return False
