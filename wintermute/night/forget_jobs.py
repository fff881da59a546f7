"""What is to be forgotten is owed as a job: it goes on until it is done, whatever comes between.

deleted message, /forget ─▶ forget: every record, then the facts ─▶ scrub: the file is rewritten
                              ▲                    │
                              ╰── something of it is still being answered or sent
"""

import hashlib
from collections.abc import Collection, Sequence
from datetime import timedelta
from functools import partial

from wintermute.clock import Clock
from wintermute.conversation.state import Speaker
from wintermute.db import Transaction
from wintermute.jobs import FORGET, Job
from wintermute.night.forgetting import forget, forget_messages
from wintermute.night.harvest import Harvests
from wintermute.stores import Stores
from wintermute.work.jobs import JobDone, JobKind, JobPolicy, JobPutOff

SCRUB = "scrub"
SOON = timedelta(seconds=2)
LATEST = timedelta(minutes=5)
"""Until all is looked through once more: twice as long each time, for it may wait for days."""
QUIET = timedelta(minutes=1)
"""Without a word of anybody, before the file is rewritten, which answers would wait for."""
SILENCE = "somebody wrote a moment ago"


async def owe_forgetting(
    stores: Stores,
    tx: Transaction,
    events: Collection[str],
    texts: Sequence[str] = (),
    facts: Sequence[str] = (),
) -> None:
    """Have these messages and facts forgotten; `texts`: what the messages said until now."""
    args = {"events": sorted(events), "texts": list(texts), "facts": list(facts)}
    named = "\n".join([*args["events"], "", *args["texts"], "", *args["facts"]])
    key = hashlib.sha256(named.encode()).hexdigest()
    if not await stores.jobs.enqueue(tx, FORGET, key, "", args):
        await stores.jobs.renew(tx, FORGET, key, args)


def forgetting(
    stores: Stores, harvests: Harvests | None, speaker: Speaker, clock: Clock
) -> list[JobKind]:
    """Both kinds of work. Without `harvests` nothing is derived again from what is left."""
    policy = JobPolicy(persists=True)  # it holds what must not stay
    return [
        JobKind(stores, FORGET, partial(_forget, stores, harvests, clock), policy, speaker, clock),
        JobKind(stores, SCRUB, partial(_scrub, stores, clock), policy, speaker, clock),
    ]


async def _forget(
    stores: Stores, harvests: Harvests | None, clock: Clock, job: Job
) -> JobDone | JobPutOff:
    named = [await stores.facts.get(fact_id) for fact_id in job.args.get("facts", ())]
    facts, unfinished = [fact for fact in named if fact], 0
    known, pauses = set(job.progress.get("known", ())), int(job.progress.get("pauses", 0))

    async def note(telling: Sequence[str], pauses: int = pauses) -> None:
        known.update(telling)
        progress = {"known": sorted(known), "pauses": pauses}
        async with stores.database.transaction() as tx:
            await stores.jobs.went_on(tx, job.id, progress)

    if facts:
        unfinished += (await forget(stores, facts, scrub=False, note=note)).unfinished
    events, texts = job.args.get("events", ()), job.args.get("texts", ())
    if events or texts or known:
        done = await forget_messages(stores, harvests, events, texts, sorted(known), note)
        unfinished += done.unfinished
    await stores.database.cut_log()
    if unfinished:
        await note((), pauses + 1)
        pause = min(SOON * 2 ** min(pauses, 10), LATEST)
        return JobPutOff(clock.now() + pause, "something of it is still being answered or sent")

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
