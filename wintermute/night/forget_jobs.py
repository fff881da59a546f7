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
from wintermute.night.forgetting import forget, forget_answers, forget_messages
from wintermute.night.harvest import Harvests
from wintermute.stores import Stores
from wintermute.work.jobs import JobDone, JobKind, JobPolicy, JobPutOff

SCRUB = "scrub"
SOON = timedelta(seconds=2)
QUIET = timedelta(minutes=1)
"""Without a word of anybody, before the file is rewritten, which answers would wait for."""
SILENCE = "somebody wrote a moment ago"


async def owe_unsaying(stores: Stores, tx: Transaction, scope: str, texts: Sequence[str]) -> None:
    """Have what repeats these answers of ours to a scope forgotten."""
    args = {"scope": scope, "answers": list(texts)}
    named = "\n".join([scope, "", *texts])
    await stores.jobs.enqueue(tx, FORGET, hashlib.sha256(named.encode()).hexdigest(), "", args)


async def owe_forgetting(
    stores: Stores,
    tx: Transaction,
    events: Collection[str],
    texts: Sequence[str] = (),
    facts: Sequence[str] = (),
    by: str | None = None,
) -> None:
    """Have these messages and facts forgotten; `texts`: what the messages said until now.

    `by`: in a room of several people, who wants these facts forgotten (`forget`).
    """
    args = {"events": sorted(events), "texts": list(texts), "facts": list(facts), "by": by}
    named = "\n".join([*sorted(events), "", *texts, "", *facts])
    await stores.jobs.enqueue(tx, FORGET, hashlib.sha256(named.encode()).hexdigest(), "", args)


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
        by = job.args.get("by")
        unfinished += (await forget(stores, facts, by=by, scrub=False, note=note)).unfinished
    if answers := job.args.get("answers", ()):
        scope = job.args["scope"]
        done = await forget_answers(stores, scope, answers, sorted(known), note)
        unfinished += done.unfinished
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
