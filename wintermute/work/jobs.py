"""Stored jobs for the runner: each name has a function and a policy (harvest, nights, downloads ...)."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from wintermute.clock import Clock
from wintermute.conversation.dispatcher import AGAIN
from wintermute.conversation.state import Speaker, Stop
from wintermute.conversation.toolbox import Toolbox
from wintermute.db import Transaction
from wintermute.errors import (
    BudgetSpent,
    HomeserverUnavailable,
    ModelUnavailable,
    NotQuiet,
    QuestionWithdrawn,
    StorageBlocked,
    WintermuteError,
)
from wintermute.jobs import Job
from wintermute.messages import PERSON, ROOM
from wintermute.stores import Stores
from wintermute.work.routing import TargetRooms
from wintermute.work.runner import MOST_CRASHES, PollResult

STOPPED = "it failed {often}. I'll try again after the next restart; `/status` has details."
CRASHED = "it made me crash three times. I'll try again in an hour, then in a day, then every week."
GOES_ON = "it failed {often}. I'll keep trying; `/status` has details."
INTERRUPTED = "it made me crash three times. I'll try again every hour."
LATER = (timedelta(hours=1), timedelta(days=1), timedelta(weeks=1))
"""Pauses after three, four and more crashes (M-095); a persistent job waits an hour each time."""
AFTER_CRASHES = "a crash interrupted it each time"
BUG = "internal error, see the log"
CHANGED = "its subject has changed meanwhile"
AWAY: Mapping[type[WintermuteError], str] = {
    ModelUnavailable: "no model answers",
    BudgetSpent: "the budget of the day is spent",
    HomeserverUnavailable: "the homeserver is away",
}

log = logging.getLogger(__name__)

EnqueueDue = Callable[[Transaction], Awaitable[datetime | None]]
"""Function that enqueues due jobs, and returns when to call it again."""


@dataclass(frozen=True, slots=True)
class JobDone:
    """Successful result. `store` runs in the transaction that ends the job.

    It returns the conversations that have a new message then.
    """

    store: Callable[[Transaction], Awaitable[Collection[str] | None]] | None = None


@dataclass(frozen=True, slots=True)
class JobPutOff:
    """Result of a job that waits for something temporary. `why`: the reason; this is no failure."""

    until: datetime
    why: str


@dataclass(frozen=True, slots=True)
class JobFailed:
    """Result of a failed job."""

    error: str


@dataclass(frozen=True, slots=True)
class JobPolicy:
    """Policy for jobs of one name. `persists`: they are retried whatever happens.

    `use`: their purpose, in words for people after "I couldn't".
    """

    at_once: int = 1
    max_seconds: float = 3600.0
    persists: bool = False
    use: str = "finish some work in the background"


Function = Callable[[Job], Awaitable[JobDone | JobPutOff | JobFailed]]
"""Function that executes one job."""


class StoredJobs:
    """Job type: all jobs of one name. To add one, call `enqueue` of the store, then wake the runner."""

    is_background = True

    def __init__(
        self,
        stores: Stores,
        name: str,
        function: Function,
        policy: JobPolicy,
        speaker: Speaker,
        clock: Clock,
        enqueue_due: EnqueueDue | None = None,
    ) -> None:
        """`enqueue_due`: enqueues due jobs at each poll, and returns when to call it again, if known."""
        self.name = name
        self.max_parallel = policy.at_once
        self.wakeup = asyncio.Event()
        self.running_jobs: dict[str, Stop] = {}
        self._stores = stores
        self._function = function
        self.policy = policy
        self._speaker = speaker
        self._clock = clock
        self._enqueue_due = enqueue_due

    async def resume(self, tx: Transaction) -> PollResult[Job]:
        """Resume interrupted jobs, and put off those with too many crashes."""
        jobs, news = self._stores.jobs, set[str]()
        interrupted = await jobs.interrupted(tx, self.name)
        for job in interrupted:
            if job.crashes < MOST_CRASHES:
                continue
            pauses = LATER[:1] if self.policy.persists else LATER
            pause = pauses[min(job.crashes - MOST_CRASHES, len(pauses) - 1)]
            await jobs.postpone(tx, job.id, self._clock.now() + pause, AFTER_CRASHES)
            if job.crashes == MOST_CRASHES:
                text = INTERRUPTED if self.policy.persists else CRASHED
                news |= {*await self._tell_owner(tx, job, text)}
        return PollResult([job for job in interrupted if job.crashes < MOST_CRASHES], news)

    async def suspended(self, tx: Transaction, jobs: Sequence[Job]) -> None:
        """Record an orderly stop, so that the next start is no crash."""
        await self._stores.jobs.suspended(tx, [job.id for job in jobs])

    async def poll(self, tx: Transaction, free: int) -> PollResult[Job]:
        """Begin the oldest jobs."""
        due = None if self._enqueue_due is None else await self._enqueue_due(tx)
        again = await self._stores.jobs.next_due(tx, self.name)  # before `begin`: time goes on
        again = min(filter(None, (due, again)), default=None)
        return PollResult(await self._stores.jobs.begin(tx, self.name, free), next_poll=again)

    async def execute(
        self, job: Job, stop: Stop, toolbox: Toolbox
    ) -> JobDone | JobPutOff | JobFailed:
        """Execute a job within its time limit."""
        try:
            async with stop.within(self.policy.max_seconds) as limit:
                return await self._function(job)
        except TimeoutError:
            if not limit.expired():
                raise
            return JobFailed(f"it took longer than {self.policy.max_seconds:.0f} seconds")
        except (ModelUnavailable, BudgetSpent, HomeserverUnavailable) as error:
            until = error.until if isinstance(error, BudgetSpent) else None
            why = next(why for kind, why in AWAY.items() if isinstance(error, kind))
            return JobPutOff(until or self._clock.now() + AGAIN, why)
        except NotQuiet as problem:
            return JobPutOff(problem.until, str(problem))
        except QuestionWithdrawn:  # tried again with the remaining sources
            return JobPutOff(self._clock.now(), CHANGED)
        except StorageBlocked:
            raise
        except WintermuteError as error:
            return JobFailed(str(error))

    async def store_end(
        self, job: Job, result: JobDone | JobPutOff | JobFailed | None
    ) -> Collection[str]:
        """Store a job's result and messages in one transaction."""
        jobs = self._stores.jobs
        news: Collection[str] = ()
        async with self._stores.database.transaction() as tx:
            if isinstance(result, JobPutOff):
                await jobs.postpone(tx, job.id, result.until, result.why)
            elif isinstance(result, JobDone):
                if not await jobs.done(tx, job.id):
                    return ()
                news = (await result.store(tx) if result.store else None) or ()
            else:
                error = result.error if result else BUG
                log.warning("job failed name=%s id=%s error=%s", self.name, job.id, error)
                persists = self.policy.persists
                if often := await jobs.failed(tx, job, error, persists=persists):
                    text = GOES_ON if persists else STOPPED
                    news = await self._tell_owner(tx, job, text, often)
        return news

    async def _tell_owner(
        self, tx: Transaction, job: Job, text: str, often: str = ""
    ) -> Collection[str]:
        owner = self._stores.owner.scope
        person = "a group" if job.scope.startswith(ROOM) else job.scope.removeprefix(PERSON)
        you, your = ("you", "your") if job.scope in ("", owner) else (person, f"{person}'s")
        work = self.policy.use.format(you=you, your=your)
        message = f"I couldn't {work}: {text.format(often=often)}"
        room = await (await TargetRooms.current(tx, self._stores, self._speaker)).target_room(
            tx, owner, None
        )
        if room is None:
            return ()
        await self._stores.outbox.enqueue(
            *(tx, room.id, message), kind="notice", meant_for=owner, unasked=True
        )
        return (room.id,)
