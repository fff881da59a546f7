"""Reconstruction: what was just learnt and what is related to it become one clear version.

    queued facts ─ related ─▶ one question ─▶ {memories, coverage} ─ complete? ─▶ stored, then what
                                  ▲                                 │            they cover retired
                                  ╰────── once more ────────────────╯─ never ─▶ all stays as it is

A batch is what is queued of one scope, that which may come from outside apart. It is one
transaction, so it is there whole or not at all, and run twice it is as run once (M-031 to M-043).
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
from wintermute.llm.calls import QuestionSources
from wintermute.llm.json_answer import Unfit, only, texts
from wintermute.llm.unasked import ATTEMPTS, UnaskedModels
from wintermute.memory.fact import EXPLICIT, Fact, NewFact, entry, key, last_said
from wintermute.memory.related import RelatedFacts
from wintermute.memory.sense import DENIED, Heirs, are_grounded
from wintermute.messages import Json
from wintermute.stores import Stores
from wintermute.templates import Template
from wintermute.work.jobs import JobDone

ROLE = "reconstruction"
KIND = "reconstruct"
"""The name of its jobs."""
CORE = "core"
"""The name of the job that follows."""
MOST = 40
"""Facts of a batch."""
ENOUGH = 20
SILENCE = timedelta(minutes=15)
"""A batch is due with so many facts, or when none came, and nothing was said there, for so long: else
a long talk would be many small batches, each of which asks a model twice."""
LONGER = 3
ROOM = 500
"""An answer has at most three times the characters of what it was made from, and these."""
NONE = "- (none)"
REFINE = (
    "An earlier answer left something out: take each related memory and each new content in turn."
)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Rewritten:
    """What a model made of a batch."""

    memories: tuple[str, ...]
    coverage: str

    @property
    def is_whole(self) -> bool:
        """Whether it may stand for what it was made from (M-036)."""
        return self.coverage == "complete" and bool(self.memories)


@dataclass(frozen=True, slots=True)
class BatchTally:
    """What became of the facts of some batches."""

    batches: int = 0
    kept: int = 0
    replaced: int = 0
    failed: int = 0

    def __add__(self, other: "BatchTally") -> "BatchTally":
        return BatchTally(
            self.batches + other.batches,
            self.kept + other.kept,
            self.replaced + other.replaced,
            self.failed + other.failed,
        )


@dataclass(frozen=True, slots=True)
class Rewriting:
    """What is stored for a batch, and in the place of which facts: the numbers of their heirs."""

    fresh: tuple[NewFact, ...] = ()
    retired: Mapping[str, int | None] = field(default_factory=dict)
    ended: Mapping[str, int] = field(default_factory=dict)


def normalised(contents: object) -> list[str]:
    """Step 1: trimmed, without empty ones, each once (M-031). Raises: ToolFailed."""
    listed = [contents] if isinstance(contents, str) else contents
    if not isinstance(listed, list | tuple) or not all(isinstance(one, str) for one in listed):
        raise ToolFailed("contents must be text or a list of texts")
    return list({key(text): text for one in reversed(listed) if (text := one.strip())}.values())[
        ::-1
    ]


def united(related: Sequence[Sequence[Fact]]) -> list[Fact]:
    """Step 4: each related fact once, however many contents it is near (M-034)."""
    return list({fact.id: fact for near in related for fact in near}.values())


def listed(lines: Sequence[str]) -> str:
    """Lines as a block shows them (M-048)."""
    return "\n".join(f"- {line}" for line in lines) or NONE


def rewritten(found: Json, inputs: Sequence[str]) -> Rewritten:
    """What an answer says, if it says only what stands in the inputs (M-047). Raises: Unfit."""
    only(found, "memories", "coverage")
    coverage = found["coverage"]
    if coverage not in ("complete", "incomplete"):
        raise Unfit('"coverage" must be "complete" or "incomplete"')
    try:
        # Some repeat the line that stands for no related memory.
        named = [text for text in texts(found, "memories") if text.strip("- ") != NONE[2:]]
        lines = tuple(normalised([entry(text) for text in named]))
    except ToolFailed as problem:
        raise Unfit(str(problem)) from problem
    if sum(map(len, lines)) > LONGER * sum(map(len, inputs)) + ROOM:
        raise Unfit("it is much longer than what it is made from")
    if not are_grounded(lines, inputs):
        raise Unfit("a memory says what stands in none of the data, or in another language")
    return Rewritten(lines, coverage)


def planned(
    batch: Sequence[Fact],
    related: Sequence[Fact],
    memories: Sequence[str],
    near: Sequence[Sequence[bool]],
) -> Rewriting:
    """Step 9: what is stored, and which of the old facts that covers, so that they go (M-039).

    `near`: for each memory, which of the old facts, batch first, lie near it.
    """
    old, accepted = [*batch, *related], Heirs(memories)
    same = {key(text) for text in memories}
    retired: dict[str, int | None] = {}
    ended: dict[str, int] = {}
    parents: list[list[int]] = [[] for _ in memories]
    for n, fact in enumerate(old):
        close = [m for m in range(len(memories)) if near[m][n]]
        parents[accepted.likest(fact.text, close)].append(n)
        if key(fact.text) in same:
            continue
        over = [m for m in close if accepted.overtakes(fact.text, m)]
        heirs = [m for m in close if accepted.keeps(fact.text, m)]
        if over:
            ended[fact.id] = over[0]
        elif heirs:
            retired[fact.id] = accepted.likest(fact.text, heirs)
    gone = retired.keys() | ended.keys()
    words, fresh = Heirs([fact.text for fact in old]), []
    for text, numbers in zip(memories, parents, strict=True):
        born = [old[n] for n in numbers]
        wide = [old[n] for n in _sources(words.shared(text), numbers)]
        if any(key(fact.text) == key(text) for fact in born):
            wide = []  # all of it was known already, from there
        fresh.append(_heir(text, born or batch, wide, gone))
    return Rewriting(tuple(fresh), retired, ended)


def _sources(shared: Sequence[set[str]], born: Sequence[int]) -> list[int]:
    """Which old facts something of a memory may be from, that it has to go with (M-030).

    `shared`: the words it has in common with each. Those count that most of the others lack, and
    those that all lack that it was `born` of.
    """
    known = {word for n in born for word in shared[n]}
    often = Counter(word for words in shared for word in words)
    rare = {word for word, n in often.items() if word != DENIED and 2 * n <= len(shared)}
    telling = rare | (often.keys() - known)
    return [n for n, words in enumerate(shared) if words & telling]


def _heir(
    text: str, parents: Sequence[Fact], others: Sequence[Fact], gone: Collection[str]
) -> NewFact:
    """A new fact, with the origins of what it was made from; a person's own words stay theirs."""
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
    """Works the queue of a scope, a batch at a time."""

    def __init__(
        self, stores: Stores, models: UnaskedModels, template: Template, memory: Memory
    ) -> None:
        self._stores = stores
        self._models = models
        self._template = template
        self._listed = memory.backend == "flat_file"
        self._related = RelatedFacts(stores.database, stores.facts, stores.meaning, memory)

    @property
    def only_adds(self) -> bool:
        """Without a question: a list is read whole, and a small model may lose what it rewrites."""
        return self._listed or "small" in self._models.sizes(ROLE)

    async def owe(self, tx: Transaction) -> datetime | None:
        """Enqueue what is due; when the next will be."""
        now, later = self._stores.facts.now(), []
        queues = await self._stores.facts.queues(tx)
        for queue in queues:
            said = await self._stores.inbox.last_said_in(tx, queue.scope)
            due = max(queue.newest, said or queue.newest) + SILENCE
            if queue.facts < ENOUGH and due > now:
                later.append(due)
            elif not await self._stores.jobs.is_owed(tx, KIND, queue.scope):
                name = f"{queue.scope} {int(queue.taint)} {queue.newest.isoformat()}"
                args = {"taint": queue.taint}
                await self._stores.jobs.enqueue(tx, KIND, name, queue.scope, args)
        return min(later, default=None)

    async def reconstruct(self, job: Job) -> JobDone:
        """Work the queue of a scope until nothing waits. Raises: ModelError."""
        await self.work(job.scope, taint=bool(job.args.get("taint")))
        return JobDone()

    async def work(self, scope: str, *, taint: bool) -> BatchTally:
        """All batches of a queue. Raises: ModelError; what is not done stays queued.

        What is too large for the window is halved; what is so alone is kept as it is.
        """
        if not self.only_adds:
            await self._models.require_quiet(ROLE)
        done, most = BatchTally(), MOST
        while batch := await self._stores.facts.queued(scope, most, taint=taint):
            try:
                done += await self._batch(batch)
            except ContextTooLarge:
                if len(batch) > 1:
                    most = len(batch) // 2
                    continue
                done += await self._keep(batch, failed=1)
            most = MOST
        return done

    async def _batch(self, batch: Sequence[Fact]) -> BatchTally:
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
            return BatchTally()
        if answer is None:
            return await self._keep(batch, failed=1)
        old = [fact.text for fact in (*batch, *related)]
        near = await self._related.near(answer.memories, old)
        plan = await asyncio.to_thread(planned, batch, related, answer.memories, near)
        return await self._store(batch, related, plan)

    async def _asked(
        self, contents: Sequence[str], related: Sequence[str], sources: QuestionSources
    ) -> Rewritten | None:
        """Steps 5 and 6: one call, with its retry, then one refinement at most; None: all stays.

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

    async def _keep(self, batch: Sequence[Fact], failed: int = 0) -> BatchTally:
        """Step 7: the contents stay as they are, and everything else too (M-037)."""
        async with self._stores.database.transaction() as tx:
            if not await self._is_unchanged(tx, batch, ()):
                return BatchTally()
            await self._stores.facts.unqueue(tx, [fact.id for fact in batch])
            await self._follow(tx, batch, "", [fact.id for fact in batch])
        return BatchTally(batches=1, kept=len(batch), failed=failed)

    async def _store(
        self, batch: Sequence[Fact], related: Sequence[Fact], plan: Rewriting
    ) -> BatchTally:
        """Steps 8 to 10, unless somebody changed one of these facts meanwhile: then it is asked anew."""
        ids = [fact.id for fact in batch]
        origins = dict.fromkeys(name for fact in batch for name in fact.origins)
        why = Reason("reconstruction", batch[0].scope, evidence=tuple(origins))
        async with self._stores.database.transaction() as tx:
            if not await self._is_unchanged(tx, batch, related):
                return BatchTally()
            done = await self._stores.facts.supersede(tx, why, plan.fresh, plan.retired, plan.ended)
            await self._stores.facts.unqueue(tx, ids)
            gone = {*done.ended, *(fact.id for fact in done.retired)}
            before = {fact.id for fact in related}
            new = dict.fromkeys(fact.id for fact in done.facts if fact.id not in before)
            stayed = [each for each in ids if each not in gone]
            await self._follow(tx, batch, done.set_id or "", [*dict.fromkeys([*new, *stayed])])
        return BatchTally(batches=1, kept=len(stayed), replaced=len(gone))

    async def _is_unchanged(
        self, tx: Transaction, batch: Sequence[Fact], related: Sequence[Fact]
    ) -> bool:
        """Whether what was read is still so: nothing was forgotten, and nobody else was faster."""
        scope, facts = batch[0].scope, self._stores.facts
        waiting = await facts.queued(scope, len(batch), taint=batch[0].taint, tx=tx)
        if [_said(fact) for fact in waiting] != [_said(fact) for fact in batch]:
            return False
        there = await facts.living(tx, scope, [fact.id for fact in related])
        return {_said(fact) for fact in there} == {_said(fact) for fact in related}

    async def _follow(
        self, tx: Transaction, batch: Sequence[Fact], set_id: str, ids: Sequence[str]
    ) -> None:
        """Step 10: what is new may belong to the core, but never what came from outside (M-040)."""
        if batch[0].taint or not ids:
            return
        name = set_id or f"kept {batch[0].id} {batch[-1].id}"
        await self._stores.jobs.enqueue(tx, CORE, name, batch[0].scope, {"facts": [*ids]})


def _said(fact: Fact) -> tuple[str, str]:
    return fact.id, fact.text
