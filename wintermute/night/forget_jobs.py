"""What is to be forgotten is owed as a job: it goes on until it is done, whatever comes between.

deleted message, /forget ─▶ forget: every record, then the facts ─▶ scrub: the file is rewritten
                              ▲                    │
                              ╰── something of it is still being answered or sent
"""

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial

from wintermute.clock import Clock
from wintermute.conversation.state import Speaker
from wintermute.db import Transaction
from wintermute.jobs import FORGET, Job
from wintermute.memory.fact import Fact
from wintermute.night.forgetting import Forgotten, forget, forget_messages
from wintermute.night.harvest import Harvests
from wintermute.stores import Stores
from wintermute.work.jobs import JobDone, JobKind, JobPolicy, JobPutOff

SCRUB = "scrub"
SOON = timedelta(seconds=2)
QUIET = timedelta(minutes=1)
"""Without a word of anybody, before the file is rewritten, which answers would wait for."""
SILENCE = "somebody wrote a moment ago"


async def owe_forgetting(
    stores: Stores,
    tx: Transaction,
    events: Collection[str],
    texts: Sequence[str] = (),
    facts: Sequence[str] = (),
    not_before: datetime | None = None,
) -> str:
    """Have these messages and facts forgotten; `texts`: what the messages said until now. The job."""
    args = {"events": sorted(events), "texts": list(texts), "facts": list(facts)}
    named = "\n".join([*args["events"], "", *args["texts"], "", *args["facts"]])
    key = hashlib.sha256(named.encode()).hexdigest()
    await stores.jobs.enqueue(tx, FORGET, key, "", args, not_before)
    return await stores.jobs.id_of(tx, FORGET, key)


async def forget_at_once(stores: Stores, facts: Sequence[Fact], clock: Clock) -> Forgotten:
    """Forget facts while somebody waits; what ends this half way leaves it owed to the daemon.

    Raises: MemoryFileUnusable.
    """
    if not facts:
        return await forget(stores, facts)
    ids = [fact.id for fact in facts]
    async with stores.database.transaction() as tx:
        job = await owe_forgetting(stores, tx, (), (), ids, clock.now() + QUIET)

    async def note(telling: Sequence[str]) -> None:
        async with stores.database.transaction() as tx:
            await stores.jobs.went_on(tx, job, {"known": sorted(telling)})

    done = await forget(stores, facts, scrub=False, note=note)
    # Whatever is still owed is the daemon's, which rewrites the file as well.
    if done.unfinished:
        return done
    async with stores.database.transaction() as tx:
        await stores.jobs.emptied(tx, job)
    if await stores.database.scrub():
        async with stores.database.transaction() as tx:
            await stores.jobs.done(tx, job)
        done = replace(done, scrubbed=True)
    return done


def forgetting(stores: Stores, speaker: Speaker, clock: Clock) -> list[JobKind]:
    """Both kinds of work."""
    policy = JobPolicy(persists=True)  # it holds what must not stay
    return [
        JobKind(stores, FORGET, partial(_forget, stores, clock), policy, speaker, clock),
        JobKind(stores, SCRUB, partial(_scrub, stores, clock), policy, speaker, clock),
    ]


async def _forget(stores: Stores, clock: Clock, job: Job) -> JobDone | JobPutOff:
    named = [await stores.facts.get(fact_id) for fact_id in job.args.get("facts", ())]
    facts, unfinished = [fact for fact in named if fact], 0
    known = set(job.progress.get("known", ()))

    async def note(telling: Sequence[str]) -> None:
        known.update(telling)
        async with stores.database.transaction() as tx:
            await stores.jobs.went_on(tx, job.id, {"known": sorted(known)})

    if facts:
        unfinished += (await forget(stores, facts, scrub=False, note=note)).unfinished
    events, texts = job.args.get("events", ()), job.args.get("texts", ())
    if events or texts or known:
        harvests = Harvests(stores.database, clock)
        done = await forget_messages(stores, harvests, events, texts, sorted(known), note)
        unfinished += done.unfinished
    await stores.database.cut_log()
    if unfinished:
        return JobPutOff(clock.now() + SOON, "something of it is still being answered or sent")

    async def over(tx: Transaction) -> None:
        await stores.jobs.emptied(tx, job.id)
        await stores.jobs.owe(tx, SCRUB)

    return JobDone(over)


async def _scrub(stores: Stores, clock: Clock, _: Job) -> JobDone | JobPutOff:
    last = await stores.inbox.last_said()
    if last is not None and last + QUIET > clock.now():
        return JobPutOff(last + QUIET, SILENCE)
    if await stores.inbox.open_conversations() or not await stores.database.scrub():
        return JobPutOff(clock.now() + QUIET, SILENCE)
    return JobDone()
