"""Runner for all stored work: what was begun is finished, across crashes and restarts.

    ready ─▶ running ─▶ ended      the end and its messages are one transaction
      ▲        │  ╰─ a crash: it continues at its last stored step; the third one ends it
      ╰────────╯ put off until a time, for a temporary problem

A job type says which jobs are ready, executes one, and stores its end; the tables hold the state. Parallel
places, wakeups, bugs, and the resumption at a start are the same for all types.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from wintermute.clock import LONGEST_NAP, Clock, wait_for_event
from wintermute.conversation.dispatcher import SpawnedWork
from wintermute.conversation.rooms import is_blocked
from wintermute.conversation.state import Speaker, Stop
from wintermute.conversation.toolbox import Toolbox
from wintermute.db import Transaction
from wintermute.errors import StorageBlocked
from wintermute.stores import Stores

MOST_CRASHES = 3
"""Crashes that may interrupt a job (L-068); an orderly end of the program does not count."""

PARKING_SECONDS = 1.0

log = logging.getLogger(__name__)
T = TypeVar("T")


async def catch_bugs(work: Awaitable[T], name: str) -> T | None:
    """Await the work; after a bug log it and return None (L-031)."""
    try:
        return await work
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        log.exception("work failed, its wait was cancelled id=%s", name)
        return None
    except Exception as error:  # bulkhead: a bug in one job must not end the others
        if is_blocked(error):
            raise
        log.exception("work failed id=%s", name)
        return None


class RunnableJob(Protocol):
    """Job; its id is unique within its type."""

    @property
    def id(self) -> str: ...


P = TypeVar("P", bound=RunnableJob)


@dataclass(frozen=True, slots=True)
class PollResult(Generic[P]):
    """Result of a poll: jobs that run from now on, conversations with something new in their inbox or outbox,
    and the time of the next poll without a wakeup."""

    jobs: Sequence[P] = ()
    news: Collection[str] = ()
    next_poll: datetime | None = None


class JobType(Protocol[P]):
    """Job type. Its state is in the tables; its transactions read and change it.

    A type whose jobs a conversation can end also implements `SpawnedWork` of `conversation.casting`. `wakeup`:
    set when a job may be ready. `running_jobs`: stop switch of each running job, set before others may write.
    `is_background`: nobody waits for its jobs.
    """

    @property
    def name(self) -> str: ...

    @property
    def is_background(self) -> bool: ...

    @property
    def wakeup(self) -> asyncio.Event: ...

    @property
    def running_jobs(self) -> dict[str, Stop]: ...

    @property
    def max_parallel(self) -> int:
        """Jobs that may run in parallel."""
        ...

    async def resume(self, tx: Transaction) -> PollResult[P]:
        """Resume jobs that an earlier run of the program left; end those that crashed too often."""
        ...

    async def suspended(self, tx: Transaction, jobs: Sequence[P]) -> None:
        """Record that the program ends in order while these jobs run: this is no crash."""
        ...

    async def poll(self, tx: Transaction, free: int) -> PollResult[P]:
        """Begin at most as many jobs as there are free places."""
        ...

    async def execute(self, job: P, stop: Stop, toolbox: Toolbox) -> Any:
        """Execute a job from its last stored step on. `toolbox` is that of rooms."""
        ...

    async def store_end(self, job: P, result: Any) -> Collection[str]:
        """Store a job's end; return conversations with news. `result`: from `execute`; None: a bug."""
        ...


class Runner:
    """Runs all job types. Implements `SpawnedWork` of `conversation.casting` for all of them."""

    def __init__(
        self,
        stores: Stores,
        toolbox: Toolbox,
        speaker: Speaker,
        clock: Clock,
        kinds: Sequence[JobType[Any]],
    ) -> None:
        """`toolbox`: the toolbox of rooms."""
        self.job_types = kinds
        self._stores = stores
        self._speaker = speaker
        self._clock = clock
        self.toolbox = toolbox

    def wake(self, name: str) -> None:
        """Wake a job type: a job of it may be ready."""
        next(job_type for job_type in self.job_types if job_type.name == name).wakeup.set()

    async def run(
        self, wake: Callable[[str], None], *, unasked: bool = False, only: Collection[str] = ()
    ) -> None:
        """Run until cancelled the types with this value of `is_background`; `only`: these types of them."""
        async with asyncio.TaskGroup() as group:
            for job_type in self.job_types:
                if job_type.is_background == unasked and (not only or job_type.name in only):
                    group.create_task(self._serve(job_type, wake))

    async def finish(self, name: str, wake: Callable[[str], None]) -> None:
        """Run all ready jobs of a type and wait for running ones, before the program exits."""
        job_type = next(job_type for job_type in self.job_types if job_type.name == name)
        running: dict[str, Any] = {}
        try:
            while True:
                job_type.wakeup.clear()
                poll = await self._begin(
                    job_type, partial(job_type.poll, free=job_type.max_parallel), running
                )
                for job in poll.jobs:
                    await self._execute(job_type, job, running, wake)
                if not poll.jobs and not job_type.running_jobs:
                    return
                if not poll.jobs:
                    await job_type.wakeup.wait()
        except asyncio.CancelledError:
            if running:
                await self._suspend(job_type, [*running.values()])
            raise

    async def _serve(self, job_type: JobType[P], wake: Callable[[str], None]) -> None:
        running: dict[str, P] = {}

        async def ready(tx: Transaction) -> PollResult[P]:
            return await job_type.poll(tx, max(job_type.max_parallel - len(running), 0))

        def start(poll: PollResult[P]) -> None:
            for job in poll.jobs:
                group.create_task(self._execute(job_type, job, running, wake))

        try:
            async with asyncio.TaskGroup() as group:
                poll = await self._begin(job_type, job_type.resume, running)
                start(poll)
                self._notify(poll.news, wake)
                while True:
                    job_type.wakeup.clear()
                    poll = await self._begin(job_type, ready, running)
                    start(poll)
                    self._notify(poll.news, wake)
                    await self._pause(job_type.wakeup, poll.next_poll)
        except asyncio.CancelledError:
            if running:
                await self._suspend(job_type, [*running.values()])
            raise

    async def _suspend(self, job_type: JobType[P], jobs: Sequence[P]) -> None:
        """Record an orderly stop. If this cannot be done at once, it counts as a crash."""
        with suppress(TimeoutError, StorageBlocked):
            async with asyncio.timeout(PARKING_SECONDS), self._stores.database.transaction() as tx:
                await job_type.suspended(tx, jobs)

    async def _begin(
        self,
        job_type: JobType[P],
        poll: Callable[[Transaction], Awaitable[PollResult[P]]],
        running: dict[str, P],
    ) -> PollResult[P]:
        async with self._stores.database.transaction() as tx:
            result = await poll(tx)
            for job in result.jobs:
                job_type.running_jobs[job.id] = Stop()
                running[job.id] = job
        return result

    async def _execute(
        self, job_type: JobType[P], job: P, running: dict[str, P], wake: Callable[[str], None]
    ) -> None:
        try:
            result = await catch_bugs(
                job_type.execute(job, job_type.running_jobs[job.id], self.toolbox), job.id
            )
            news = (
                await catch_bugs(job_type.store_end(job, result), job.id)
                if result is not None
                else None
            )
            if news is None:
                await self._stores.health.note("casts", "fail", "internal error, see the log")
                news = await job_type.store_end(job, None)
            del running[job.id]
        finally:
            del job_type.running_jobs[job.id]
            job_type.wakeup.set()
        self._notify(news, wake)

    def _notify(self, news: Collection[str], wake: Callable[[str], None]) -> None:
        for conversation_id in news:
            wake(conversation_id)
            self._speaker.speak(conversation_id)

    async def _pause(self, bell: asyncio.Event, until: datetime | None) -> None:
        if until is None:
            await bell.wait()
            return
        left = (until - self._clock.now()).total_seconds()
        await wait_for_event(bell, self._clock, min(left, LONGEST_NAP))  # the clock may be set

    async def end(
        self, tx: Transaction, conversation_id: str, *, only: str | None = None, after: int = 0
    ) -> list[str]:
        """End all work of a conversation."""
        return [
            ended
            for job_type in self.job_types
            if isinstance(job_type, SpawnedWork)
            for ended in await job_type.end(tx, conversation_id, only=only, after=after)
        ]

    async def retract_events(
        self, tx: Transaction, conversation_id: str, events: Collection[str]
    ) -> None:
        """End the work that was handed out for these events."""
        for job_type in self.job_types:
            if isinstance(job_type, SpawnedWork):
                await job_type.retract_events(tx, conversation_id, events)
