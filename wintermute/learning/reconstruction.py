"""Reconstruction: new facts and facts related to them become one clear version.

    queued facts ─ related ─▶ one question ─▶ {memories, coverage} ─ complete? ─▶ stored, then covered
                                  ▲                                 │            facts are retired
                                  ╰────── once more ────────────────╯─ never ─▶ nothing changes

A batch is the queue of one scope, untrusted facts separately. It is stored in one transaction, and a
second run changes nothing (M-031 to M-043).
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from wintermute.changes.change_sets import Reason
from wintermute.config.schema import Memory
from wintermute.db import Transaction
from wintermute.errors import AnswerUnusable, ContextTooLarge, QuestionWithdrawn, ToolFailed
from wintermute.jobs import Job
from wintermute.llm.background import ATTEMPTS, BackgroundModels
from wintermute.llm.calls import QuestionSources
from wintermute.llm.json_answer import InvalidAnswer, require_keys, text_list
from wintermute.memory.fact import EXPLICIT, Fact, NewFact, entry, key, last_said
from wintermute.memory.lexical_overlap import DENIED, Successors, are_grounded
from wintermute.memory.related import RelatedFacts
from wintermute.messages import Json
from wintermute.stores import Stores
from wintermute.templates import Template
from wintermute.work.jobs import JobDone

ROLE = "reconstruction"
KIND = "reconstruct"
"""Name of its jobs."""
CORE = "core"
"""Name of the job that follows."""
MOST = 40
"""Facts of a batch."""
ENOUGH = 20
SILENCE = timedelta(minutes=15)
"""A batch is due with `ENOUGH` facts, or after this long without new facts or messages.

Otherwise a long conversation would make many small batches with two model calls each.
"""
LONGER = 3
ROOM = 500
"""An answer has at most `LONGER` times the characters of its input, plus these."""
NONE = "- (none)"
REFINE = (
    "An earlier answer left something out: take each related memory and each new content in turn."
)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ReconstructionAnswer:
    """The model's answer for a batch."""

    memories: tuple[str, ...]
    coverage: str

    @property
    def is_whole(self) -> bool:
        """True if it may replace its input (M-036)."""
        return self.coverage == "complete" and bool(self.memories)


@dataclass(frozen=True, slots=True)
class BatchCounts:
    """Counts of the facts of some batches."""

    batches: int = 0
    kept: int = 0
    replaced: int = 0
    failed: int = 0

    def __add__(self, other: "BatchCounts") -> "BatchCounts":
        return BatchCounts(
            self.batches + other.batches,
            self.kept + other.kept,
            self.replaced + other.replaced,
            self.failed + other.failed,
        )


@dataclass(frozen=True, slots=True)
class ReconstructionPlan:
    """The facts to store for a batch, and the facts they replace: old id → index of the new one."""

    fresh: tuple[NewFact, ...] = ()
    retired: Mapping[str, int | None] = field(default_factory=dict)
    ended: Mapping[str, int] = field(default_factory=dict)


def normalised(contents: object) -> list[str]:
    """Step 1: trim texts, drop empty ones and duplicates (M-031). Raises: ToolFailed."""
    listed = [contents] if isinstance(contents, str) else contents
    if not isinstance(listed, list | tuple) or not all(isinstance(one, str) for one in listed):
        raise ToolFailed("contents must be text or a list of texts")
    return list({key(text): text for one in reversed(listed) if (text := one.strip())}.values())[
        ::-1
    ]


def united(related: Sequence[Sequence[Fact]]) -> list[Fact]:
    """Step 4: list each related fact once, however many contents it is near (M-034)."""
    return list({fact.id: fact for near in related for fact in near}.values())


def listed(lines: Sequence[str]) -> str:
    """Format lines as the prompt shows them (M-048)."""
    return "\n".join(f"- {line}" for line in lines) or NONE


def rewritten(found: Json, inputs: Sequence[str]) -> ReconstructionAnswer:
    """Return an answer, if all of it is in the inputs (M-047). Raises: Unfit."""
    require_keys(found, "memories", "coverage")
    coverage = found["coverage"]
    if coverage not in ("complete", "incomplete"):
        raise InvalidAnswer('"coverage" must be "complete" or "incomplete"')
    try:
        # Some models repeat the placeholder line for no related memory.
        named = [text for text in text_list(found, "memories") if text.strip("- ") != NONE[2:]]
        lines = tuple(normalised([entry(text) for text in named]))
    except ToolFailed as problem:
        raise InvalidAnswer(str(problem)) from problem
    if sum(map(len, lines)) > LONGER * sum(map(len, inputs)) + ROOM:
        raise InvalidAnswer("it is much longer than what it is made from")
    if not are_grounded(lines, inputs):
        raise InvalidAnswer("a memory says what stands in none of the data, or in another language")
    return ReconstructionAnswer(lines, coverage)


def planned(
    batch: Sequence[Fact],
    related: Sequence[Fact],
    memories: Sequence[str],
    near: Sequence[Sequence[bool]],
) -> ReconstructionPlan:
    """Step 9: plan the facts to store, and retire the old facts that they cover (M-039).

    `near`: for each memory, which of the old facts, batch first, lie near it.
    """
    old, accepted = [*batch, *related], Successors(memories)
    same = {key(text) for text in memories}
    retired: dict[str, int | None] = {}
    ended: dict[str, int] = {}
    parents: list[list[int]] = [[] for _ in memories]
    for n, fact in enumerate(old):
        close = [m for m in range(len(memories)) if near[m][n]]
        parents[accepted.most_similar(fact.text, close)].append(n)
        if key(fact.text) in same:
            continue
        outdating = [m for m in close if accepted.outdates(fact.text, m)]
        covering = [m for m in close if accepted.cover(fact.text, m)]
        if outdating:
            ended[fact.id] = outdating[0]
        elif covering:
            retired[fact.id] = accepted.most_similar(fact.text, covering)
    gone = retired.keys() | ended.keys()
    words, fresh = Successors([fact.text for fact in old]), []
    for text, numbers in zip(memories, parents, strict=True):
        parents_of_text = [old[n] for n in numbers]
        wide = [old[n] for n in _sources(words.shared(text), numbers)]
        if any(key(fact.text) == key(text) for fact in parents_of_text):
            wide = []  # it was known already, from these facts
        fresh.append(_new_fact(text, parents_of_text or batch, wide, gone))
    return ReconstructionPlan(tuple(fresh), retired, ended)


def _sources(shared: Sequence[set[str]], parents: Sequence[int]) -> list[int]:
    """Return the old facts that a memory may partly come from, and must be forgotten with (M-030).

    `shared`: its words in common with each old fact. Words count that at most half of the old facts have, and words
    that none of its `parents` has.
    """
    known = {word for n in parents for word in shared[n]}
    often = Counter(word for words in shared for word in words)
    rare = {word for word, n in often.items() if word != DENIED and 2 * n <= len(shared)}
    decisive = rare | (often.keys() - known)
    return [n for n, words in enumerate(shared) if words & decisive]


def _new_fact(
    text: str, parents: Sequence[Fact], others: Sequence[Fact], gone: Collection[str]
) -> NewFact:
    """Return a new fact with the origins of its parents; a person's own words stay protected."""
    speakers = {fact.speaker for fact in parents}
    own = any(fact.protected and fact.id in gone for fact in parents)
    return NewFact(
        parents[0].scope,
        text,
        EXPLICIT if own else "harvest",
        speakers.pop() if len(speakers) == 1 else None,
        tuple(dict.fromkeys(name for fact in (*parents, *others) for name in fact.origins)),
        at=max(fact.created_at for fact in parents),
        valid_from=min(fact.valid_from for fact in parents),
        taint=parents[0].taint,
        said_at=last_said(parents, own=own),
    )


class Reconstruction:
    """Processes the queue of a scope, a batch at a time."""

    def __init__(
        self, stores: Stores, models: BackgroundModels, template: Template, memory: Memory
    ) -> None:
        self._stores = stores
        self._models = models
        self._template = template
        self._listed = memory.backend == "flat_file"
        self._related = RelatedFacts(stores.database, stores.facts, stores.meaning, memory)

    @property
    def only_adds(self) -> bool:
        """True if no model is asked: a list is read whole anyway, or the model is too small to rewrite it."""
        return self._listed or "small" in self._models.sizes(ROLE)

    async def enqueue_due(self, tx: Transaction) -> datetime | None:
        """Enqueue due batches; return when the next one will be due."""
        now, later = self._stores.facts.now(), []
        queues = await self._stores.facts.queues(tx)
        for queue in queues:
            said = await self._stores.inbox.last_said_in(tx, queue.scope)
            due = max(queue.newest, said or queue.newest) + SILENCE
            if queue.facts < ENOUGH and due > now:
                later.append(due)
            elif not await self._stores.jobs.is_pending(tx, KIND, queue.scope):
                name = f"{queue.scope} {int(queue.taint)} {queue.newest.isoformat()}"
                args = {"taint": queue.taint}
                await self._stores.jobs.enqueue(tx, KIND, name, queue.scope, args)
        return min(later, default=None)

    async def reconstruct(self, job: Job) -> JobDone:
        """Process the queue of a scope until it is empty. Raises: ModelError."""
        await self.empty_queue(job.scope, taint=bool(job.args.get("taint")))
        return JobDone()

    async def empty_queue(self, scope: str, *, taint: bool) -> BatchCounts:
        """Process all batches of a queue. Raises: ModelError; unfinished batches stay queued.

        A batch that exceeds the window is halved; a single fact that does is kept as it is.
        """
        if not self.only_adds:
            await self._models.require_idle(ROLE)
        done, most = BatchCounts(), MOST
        while batch := await self._stores.facts.queued_facts(scope, most, taint=taint):
            try:
                done += await self._batch(batch)
            except ContextTooLarge:
                if len(batch) > 1:
                    most = len(batch) // 2
                    continue
                done += await self._keep(batch, failed=1)
            most = MOST
        return done

    async def _batch(self, batch: Sequence[Fact]) -> BatchCounts:
        if self.only_adds:
            return await self._keep(batch)
        contents = normalised([fact.text for fact in batch])
        ids = {fact.id for fact in batch}
        scope, taint = batch[0].scope, batch[0].taint
        found = await self._related.find(scope, contents, ids, taint=taint)
        related = united(found)
        sources = QuestionSources(
            tuple(fact.id for fact in (*batch, *related)),
            lambda tx: self._is_unchanged(tx, batch, related),
        )
        try:
            answer = await self._asked(contents, [fact.text for fact in related], sources)
        except QuestionWithdrawn:
            return BatchCounts()
        if answer is None:
            return await self._keep(batch, failed=1)
        old = [fact.text for fact in (*batch, *related)]
        near = await self._related.near(answer.memories, old)
        plan = await asyncio.to_thread(planned, batch, related, answer.memories, near)
        return await self._store(batch, related, plan)

    async def _asked(
        self, contents: Sequence[str], related: Sequence[str], sources: QuestionSources
    ) -> ReconstructionAnswer | None:
        """Steps 5 and 6: ask with a retry, then refine at most once; None: nothing changes.

        Raises: ModelError; QuestionWithdrawn.
        """
        inputs = [*contents, *related]
        values = {"related_memories": listed(related), "new_contents": listed(contents)}
        template = self._template.text()
        refined = f"{template.rstrip()}\n\n{REFINE}\n"
        for question, attempts in ((template, ATTEMPTS), (refined, 1)):
            try:
                answer = await self._models.answer_in_json(
                    *(ROLE, question, values),
                    lambda found: rewritten(found, inputs),
                    attempts=attempts,
                    sources=sources,
                )
            except AnswerUnusable as problem:
                log.warning("reconstruction refused reason=%s", problem)
                continue
            if answer.is_whole:
                return answer
        return None

    async def _keep(self, batch: Sequence[Fact], failed: int = 0) -> BatchCounts:
        """Step 7: keep the contents and everything else as it is (M-037)."""
        async with self._stores.database.transaction() as tx:
            if not await self._is_unchanged(tx, batch, ()):
                return BatchCounts()
            await self._stores.facts.unqueue(tx, [fact.id for fact in batch])
            await self._follow(tx, batch, "", [fact.id for fact in batch])
        return BatchCounts(batches=1, kept=len(batch), failed=failed)

    async def _store(
        self, batch: Sequence[Fact], related: Sequence[Fact], plan: ReconstructionPlan
    ) -> BatchCounts:
        """Steps 8 to 10: store the plan, unless one of these facts changed meanwhile: then ask again."""
        ids = [fact.id for fact in batch]
        origins = dict.fromkeys(name for fact in batch for name in fact.origins)
        why = Reason("reconstruction", batch[0].scope, evidence=tuple(origins))
        async with self._stores.database.transaction() as tx:
            if not await self._is_unchanged(tx, batch, related):
                return BatchCounts()
            done = await self._stores.facts.supersede(tx, why, plan.fresh, plan.retired, plan.ended)
            await self._stores.facts.unqueue(tx, ids)
            gone = {*done.ended, *(fact.id for fact in done.retired)}
            before = {fact.id for fact in related}
            new = dict.fromkeys(fact.id for fact in done.facts if fact.id not in before)
            stayed = [each for each in ids if each not in gone]
            await self._follow(tx, batch, done.set_id or "", [*dict.fromkeys([*new, *stayed])])
        return BatchCounts(batches=1, kept=len(stayed), replaced=len(gone))

    async def _is_unchanged(
        self, tx: Transaction, batch: Sequence[Fact], related: Sequence[Fact]
    ) -> bool:
        """Check whether no fact changed since it was read, and nobody else processed the batch."""
        scope, facts = batch[0].scope, self._stores.facts
        waiting = await facts.queued_facts(scope, len(batch), taint=batch[0].taint, tx=tx)
        if [_id_and_text(fact) for fact in waiting] != [_id_and_text(fact) for fact in batch]:
            return False
        there = await facts.living(tx, scope, [fact.id for fact in related])
        return {_id_and_text(fact) for fact in there} == {_id_and_text(fact) for fact in related}

    async def _follow(
        self, tx: Transaction, batch: Sequence[Fact], set_id: str, ids: Sequence[str]
    ) -> None:
        """Step 10: enqueue a core update for the new facts, but never for untrusted ones (M-040)."""
        if batch[0].taint or not ids:
            return
        name = set_id or f"kept {batch[0].id} {batch[-1].id}"
        await self._stores.jobs.enqueue(tx, CORE, name, batch[0].scope, {"facts": [*ids]})


def _id_and_text(fact: Fact) -> tuple[str, str]:
    return fact.id, fact.text
