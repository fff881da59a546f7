"""Jobs that forget: each is retried until it has finished, whatever interrupts it.

deleted message, /forget ─▶ forget: every record, then the facts ─▶ scrub: the file is rewritten
                              ▲                    │
                              ╰── something of it is still being answered or sent
"""

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from wintermute.changes.change_sets import KEPT, Reason
from wintermute.changes.decisions import Decision
from wintermute.changes.undo import FORGETTING
from wintermute.clock import Clock
from wintermute.db import Transaction
from wintermute.errors import WintermuteError
from wintermute.forgetting.forgetting import (
    Forgotten,
    copy_notice,
    forget,
    forget_answers,
    forget_messages,
    leftover,
)
from wintermute.jobs import FORGET, Job
from wintermute.learning.harvest import Harvests
from wintermute.memory.fact import Fact
from wintermute.memory.origins import Origins
from wintermute.messages import PERSON, Json
from wintermute.stores import Stores
from wintermute.work.jobs import JobDone, JobPutOff

SCRUB = "scrub"
SOON = timedelta(seconds=2)
LATEST = timedelta(minutes=5)
"""Longest pause before the next try; pauses double each time, as it may wait for days."""
QUIET = timedelta(minutes=1)
"""Time without a message before the file is rewritten, which would delay answers."""
SILENCE = "somebody wrote a moment ago"


async def enqueue_forgetting_answers(
    stores: Stores, tx: Transaction, scope: str, texts: Sequence[str]
) -> None:
    """Enqueue forgetting whatever repeats these retracted answers to a scope."""
    args = {"scope": scope, "answers": list(texts)}
    named = "\n".join([scope, "", *texts])
    await _enqueue(stores, tx, named, args)


async def enqueue_forgetting(
    stores: Stores,
    tx: Transaction,
    events: Collection[str],
    texts: Sequence[str] = (),
    facts: Sequence[str] = (),
    by: str | None = None,
    tell: str | None = None,
    not_before: datetime | None = None,
    words: str = "",
    lines: Sequence[str] = (),
    scope: str = "",
    *,
    asks: bool = False,
) -> Job:
    """Enqueue forgetting these messages and facts, and return the job. `texts`: former texts of the messages.

    `by`: in a room of several people, the person who wants these facts forgotten (`forget`). `tell`: the direct chat
    that gets a report of what still contains it. `words`: see `forget_messages`. `lines`: digests of lines of the
    owner's pages. `scope`: the scope of the words. `asks`: lines of pages are only asked about, as somebody else
    deleted the message.
    """
    scopes = await Origins(stores.facts).scopes(tx, facts)
    for each in scopes:  # no answer contains it from now on
        await stores.facts.retire_unrecorded(tx, each, facts, "command")
    args: Json = {"events": sorted(events), "texts": list(texts), "facts": list(facts), "by": by}
    scopes = sorted(
        {*scopes, *([scope] if scope else []), *([stores.owner.scope] if lines else [])}
    )
    args |= {"scopes": scopes, "tell": tell, "words": words, "lines": list(lines), "asks": asks}
    named = "\n".join([*sorted(events), "", *texts, "", *facts, *lines, by or ""])
    return await _enqueue(stores, tx, named, args, not_before)


async def forget_at_once(stores: Stores, facts: Sequence[Fact], clock: Clock) -> Forgotten:
    """Forget facts while somebody waits; after an interruption the daemon's job goes on.

    Raises: MemoryFileUnusable.
    """
    if not facts:
        return await forget(stores, facts)
    ids, until = [fact.id for fact in facts], clock.now() + QUIET
    async with stores.database.transaction() as tx:
        job = await enqueue_forgetting(stores, tx, (), (), ids, not_before=until)
    worked = await _run(stores, None, clock, job)
    done = worked[0] if worked else await forget(stores, (), scrub=False)  # gone meanwhile
    # The daemon finishes an unfinished job, and rewrites the file as well.
    if done.unfinished:
        return done
    async with stores.database.transaction() as tx:
        await stores.jobs.clear_texts(tx, job.id)
    if await stores.database.scrub():
        async with stores.database.transaction() as tx:
            await stores.jobs.done(tx, job.id)
        done = replace(done, scrubbed=True)
    return done


async def refuse_meanwhile(stores: Stores) -> None:
    """Refuse changes that may bring something back while it is being forgotten. Raises: WintermuteError."""
    if await stores.jobs.is_forgetting(stores.database):
        raise WintermuteError(FORGETTING)


async def forget_lines(stores: Stores, tx: Transaction, item: Decision, _why: Reason) -> bool:
    """Enqueue erasing people's lines of pages for good, after they said yes; there is no undo (M-082)."""
    await enqueue_forgetting(stores, tx, (), lines=item.plan["lines"])
    return True


async def _enqueue(
    stores: Stores, tx: Transaction, named: str, args: Json, not_before: datetime | None = None
) -> Job:
    key = hashlib.sha256(named.encode()).hexdigest()
    if not await stores.jobs.enqueue(tx, FORGET, key, "", args, not_before):
        await stores.jobs.renew(tx, FORGET, key, args, not_before)
    return await stores.jobs.by_key(tx, FORGET, key)


async def _run(
    stores: Stores, harvests: Harvests | None, clock: Clock, job: Job
) -> list[Forgotten]:
    """Run the job once, and return the results. The texts it searched for are kept with the job."""
    named = [await stores.facts.get(fact_id) for fact_id in job.args.get("facts", ())]
    facts, done = [fact for fact in named if fact], list[Forgotten]()
    known = set(job.progress.get("known", ()))

    async def note(searched: Sequence[str]) -> None:
        known.update(searched)
        async with stores.database.transaction() as tx:
            await stores.jobs.save_progress(tx, job.id, job.progress | {"known": sorted(known)})

    async with stores.placing.settled():  # a half-placed change may contain the forgotten text
        if facts:
            by, before = job.args.get("by"), sorted(known)
            done.append(await forget(stores, facts, by=by, scrub=False, known=before, note=note))
        if answers := job.args.get("answers", ()):
            scope = job.args["scope"]
            done.append(await forget_answers(stores, scope, answers, sorted(known), note))
        events, texts = job.args.get("events", ()), job.args.get("texts", ())
        lines, asks = job.args.get("lines", ()), bool(job.args.get("asks"))
        if events or texts or lines or (known and not done):
            rest = job.args.get("scopes", ()), sorted(known), note, job.args.get("words", ""), lines
            done.append(await forget_messages(stores, harvests, events, texts, *rest, asks=asks))
    return done


async def run_forgetting(
    stores: Stores, harvests: Harvests | None, clock: Clock, job: Job
) -> JobDone | JobPutOff:
    """Run a job; it is put off while something of it is still being answered or sent."""
    done = await _run(stores, harvests, clock, job)
    await stores.database.cut_log()
    if any(each.unfinished for each in done):
        pauses = int(job.progress.get("pauses", 0))
        async with stores.database.transaction() as tx:
            await stores.jobs.add_to(tx, job.id, "pauses", 1)
        pause = min(SOON * 2 ** min(pauses, 10), LATEST)
        return JobPutOff(clock.now() + pause, "something of it is still being answered or sent")

    async def over(tx: Transaction) -> None:
        await _report(stores, tx, job.args.get("tell"), done)
        await stores.jobs.clear_texts(tx, job.id)
        await stores.jobs.enqueue_due(tx, SCRUB)

    return JobDone(over)


async def _report(
    stores: Stores, tx: Transaction, tell: str | None, done: Sequence[Forgotten]
) -> None:
    """Report once what still contains it to the person who asked, if the chat is still private."""
    held = await stores.conversations.get(tell) if tell else None
    if held is None or not held.scope.startswith(PERSON):
        return
    zone = stores.tasks.zone
    is_owner = held.scope == stores.owner.scope
    left = [each if is_owner else replace(each, copies=()) for each in done]
    if any(each.quoted or each.short for each in left):
        body = leftover(left, zone)
        await stores.outbox.enqueue(tx, held.id, body, kind="notice", meant_for=held.scope)
        return
    for copy in {copy.path: copy for each in left for copy in each.copies}.values():
        name, body = f"copy:{copy.path.name}", copy_notice(copy, zone)
        await stores.notices.notice_once(tx, name, KEPT, held.id, body, meant_for=held.scope)


async def scrub(stores: Stores, clock: Clock, _: Job) -> JobDone | JobPutOff:
    """Rewrite the file of the database, after a while without messages."""
    last = await stores.inbox.last_said()
    if last is not None and last + QUIET > clock.now():
        return JobPutOff(last + QUIET, SILENCE)
    if await stores.inbox.open_conversations() or not await stores.database.scrub():
        return JobPutOff(clock.now() + QUIET, SILENCE)
    return JobDone()
