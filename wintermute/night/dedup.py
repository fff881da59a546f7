"""Dedup: facts that say the same become one, if the merged text keeps everything that they say.

new facts ─ similar ─▶ clusters ─▶ one question each ─▶ {text} ─ keeps all? ─▶ merged
                                                                    ╰─ no ─▶ to contradictions
"""

from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import ClassVar

from wintermute.changes.change_sets import Reason
from wintermute.changes.decisions import MERGED, Decision, digest_of
from wintermute.changes.nights import Nights
from wintermute.db import Transaction
from wintermute.errors import ToolFailed
from wintermute.forgetting.executors import DecisionKind, Kinds
from wintermute.llm.calls import QuestionSources
from wintermute.llm.json_answer import InvalidAnswer, require_keys
from wintermute.memory.fact import Fact, NewFact, entry, key, last_said
from wintermute.memory.lexical_overlap import Successors, are_made_of
from wintermute.memory.review import add_uses, has_equal, mark_compared, swap_places
from wintermute.memory.similarity import ComparedFacts, FactPair, pair_of
from wintermute.messages import Json
from wintermute.night.pipeline import ROLE, PhaseStep, PhaseWork, answer_or_step
from wintermute.stores import Stores
from wintermute.work.data_folder import DataFolder

MOST = 8
"""Facts of a cluster."""
LONGER = 3
"""Factor: a merged text is shorter than this times the facts it was made from."""


@dataclass(frozen=True, slots=True)
class Clusters:
    """Clusters of similar facts. `pending`: a model is still to be asked. `refused`: it could not merge them."""

    pending: tuple[tuple[Fact, ...], ...]
    refused: tuple[tuple[Fact, ...], ...]


def clusters(
    new: Iterable[str], pairs: Mapping[FactPair, float], least: float
) -> list[tuple[str, ...]]:
    """Group ids so that every pair in a group is similar and one is new; most similar first (M-056).

    No id is in two groups. If A is similar to B, and B to C, but A not to C, then C stays out of A's group.
    """
    similar: dict[str, dict[str, float]] = {}
    for (one, other), value in pairs.items():
        if value >= least:
            similar.setdefault(one, {})[other] = value
            similar.setdefault(other, {})[one] = value
    seeds = [name for name in new if name in similar]
    taken: set[str] = set()
    groups: list[tuple[str, ...]] = []
    for seed in sorted(seeds, key=lambda name: (-max(similar[name].values()), name)):
        if seed in taken:
            continue
        group = [seed]
        for name, _ in sorted(similar[seed].items(), key=lambda one: (-one[1], one[0])):
            is_free = name not in taken and all(name in similar[each] for each in group)
            if is_free and len(group) < MOST:
                group.append(name)
        if len(group) > 1:
            taken.update(group)
            groups.append(tuple(group))
    return groups


async def clusters_of(
    nights: Nights, compared: ComparedFacts, scope: str, least: float, gone: Collection[str]
) -> Clusters:
    """Return clusters of new facts, without those `gone` and without pairs judged before."""
    near = {
        pair: value
        for pair, value in compared.pairs.items()
        if value >= least and not {*pair} & {*gone}
    }
    digests = {pair: pair_digest(*(compared.facts[name] for name in pair)) for pair in near}
    unjudged = await nights.not_yet_asked(scope, set(digests.values()))
    pairs = {pair: value for pair, value in near.items() if digests[pair] in unjudged}
    groups = [
        [compared.facts[name] for name in group] for group in clusters(compared.new, pairs, least)
    ]
    groups = [sorted(group, key=lambda fact: (fact.created_at, fact.id)) for group in groups]
    named = {cluster_digest(group) for group in groups}
    pending = (await nights.not_yet_asked(scope, named)) - compared.asked
    return Clusters(
        tuple(tuple(group) for group in groups if cluster_digest(group) in pending),
        tuple(tuple(group) for group in groups if cluster_digest(group) not in pending),
    )


def cluster_digest(facts: Sequence[Fact]) -> str:
    """Return the digest of a question about these facts together."""
    return digest_of("alike", *map(_shown, facts))


def pair_digest(one: Fact, other: Fact) -> str:
    """Return the digest of a question about these two facts."""
    return digest_of("pair", _shown(one), _shown(other))


def _shown(fact: Fact) -> str:
    """Return a fact's id and text. A fact that is said again has a new id; an undone one has its old id."""
    return f"{fact.id} {fact.text}"


def facts_to_remove(items: Iterable[Decision]) -> set[str]:
    """Return the ids of facts that these decisions would remove."""
    return {each["id"] for item in items for each in item.plan.get("members", ())}


def checked_line(text: object, inputs: Sequence[str]) -> str:
    """Return a text as one clean line if it is made of the inputs only (M-039, M-047). Raises: Unfit."""
    if not isinstance(text, str):
        raise InvalidAnswer('"text" must be text')
    try:
        line = entry(text)
    except ToolFailed as problem:
        raise InvalidAnswer(str(problem)) from problem
    if len(line) >= LONGER * sum(map(len, inputs)):
        raise InvalidAnswer("it is much longer than what it is made from")
    if not are_made_of(line, inputs):
        raise InvalidAnswer("it says something that is not in the data, or uses another language")
    return line


def merged_text(answer: Json, members: Sequence[Fact]) -> str:
    """Return the merged text of an answer if it keeps all that its members say (M-056). Raises: Unfit."""
    require_keys(answer, "text")
    line = checked_line(answer["text"], [fact.text for fact in members])
    merged = Successors([line])
    if any(merged.outdates(fact.text, 0) or not merged.cover(fact.text, 0) for fact in members):
        raise InvalidAnswer("it leaves out or changes what one of them says")
    return line


def merge_decision(
    members: Sequence[Fact], text: str, reason: str, digest: str, ended: Sequence[str] = ()
) -> Decision:
    """Return the decision to replace facts by one text. `ended`: ids of those that the text says are over."""
    return Decision(
        *(MERGED, tuple(fact.text for fact in members), text, reason),
        plan={
            "members": [{"id": fact.id, "text": fact.text} for fact in members],
            "text": text,
            "ended": [*ended],
            "outside": any(fact.taint for fact in members),
        },
        evidence=origins_of(members),
        loses=len(members) - 1,
        digest=digest,
    )


def origins_of(facts: Sequence[Fact]) -> tuple[str, ...]:
    """Return the origins of all these facts, each once."""
    return tuple(dict.fromkeys(name for fact in facts for name in fact.origins))


def sources_of(stores: Stores, facts: Sequence[Fact]) -> QuestionSources:
    """Return the sources of a question about facts; it is withdrawn if one of them changes first."""

    async def are_unchanged(tx: Transaction) -> bool:
        return await facts_are_unchanged(stores, tx, facts[0].scope, {f.id: f.text for f in facts})

    return QuestionSources(tuple(fact.id for fact in facts), are_unchanged)


async def facts_are_unchanged(
    stores: Stores, tx: Transaction, scope: str, texts: Mapping[str, str]
) -> bool:
    """Check that all of these facts are live and have these texts."""
    there = await stores.facts.living(tx, scope, list(texts))
    return {fact.id: fact.text for fact in there} == texts


def merged_fact(members: Sequence[Fact], text: str) -> NewFact:
    """Return the fact that replaces its members; one of the person's own words stays protected.

    A text that equals one of them adds no origins.
    """
    speakers = {fact.speaker for fact in members}
    known = any(key(fact.text) == key(text) for fact in members)
    own = any(fact.protected for fact in members)
    return NewFact(
        members[0].scope,
        text,
        "dreaming_merge",
        speakers.pop() if len(speakers) == 1 else None,
        () if known else origins_of(members),
        at=max(fact.created_at for fact in members),
        valid_from=min(fact.valid_from for fact in members),
        taint=members[0].taint,
        protected=own,
        said_at=last_said(members, own=own),
    )


async def unchanged_facts(
    stores: Stores,
    tx: Transaction,
    item: Decision,
    why: Reason,
    texts: Mapping[str, str],
    over: Collection[str],
) -> list[Fact]:
    """Return a decision's facts if they have these texts, the same taint and no end; else none.

    If a fact that would be `over` was said again since the answer, the model is asked anew. A person's yes
    skips this check, for it is their newest word.
    """
    facts = await stores.facts.living(tx, item.scope, list(texts))
    differ = len({fact.taint for fact in facts}) > 1 or any(fact.valid_to for fact in facts)
    if differ or {fact.id: fact.text for fact in facts} != texts:
        return []
    losers = [fact for fact in facts if fact.id in over]
    winners = [fact for fact in facts if fact.id not in over]
    if why.cause != "night" or all(may_end(one, other) for one in losers for other in winners):
        return facts
    await stores.nights.close_unapplied(tx, stores.decisions, item)
    await mark_compared(tx, (), list(texts))
    return []


def may_end(loser: Fact, winner: Fact) -> bool:
    """Decide if the newer evidence wins: a person's own words yield only to their later words."""
    if loser.protected:
        return winner.protected and winner.last_said > loser.last_said
    return winner.last_said >= loser.last_said


async def merge_facts(stores: Stores, tx: Transaction, item: Decision, why: Reason) -> bool:
    """Replace several facts by one text: store it, then retire or end the others (M-057).

    Returns False if one of them changed meanwhile, or another fact has the same text.
    """
    facts, texts = stores.facts, member_texts(item)
    text, ended = item.plan["text"], item.plan["ended"]
    members = await unchanged_facts(stores, tx, item, why, texts, ended)
    if not members or await has_equal(tx, item.scope, key(text), list(texts)):
        return False
    ends = dict.fromkeys(ended, 0)
    retired = dict.fromkeys([name for name in texts if name not in ends], 0)
    done = await facts.supersede(tx, why, [merged_fact(members, text)], retired, ends)
    [merged] = done.facts
    gone = [*(fact.id for fact in done.retired), *done.ended]
    await add_uses(tx, merged.id, gone)
    is_new = done.outcomes[0] != "known"
    await swap_places(tx, merged.id, gone if is_new else [merged.id, *gone])
    return True


def member_texts(item: Decision) -> dict[str, str]:
    """Return the texts of a decision's facts by id, as they were when it was made."""
    return {each["id"]: each["text"] for each in item.plan["members"]}


MERGE = DecisionKind(
    *(MERGED, "memory merged", "memories merged", "Merge these?", "merged", merge_facts),
    counts_members=True,
)


class Dedup:
    """First comparison of a scope's new facts."""

    name: ClassVar = "dedup"
    use: ClassVar = "merge similar memories"
    kinds: ClassVar[Kinds] = (MERGE,)

    def __init__(self, own: DataFolder) -> None:
        self._stores = own.stores
        self._template = own.texts.dream_dedup
        self._similarity = own.config.dreaming.dedup_similarity

    async def size(self, scope: str) -> int:
        """Count facts."""
        return await self._stores.facts.count(scope)

    async def steps(self, work: PhaseWork) -> AsyncIterator[PhaseStep]:
        """Yield a step for each cluster. Raises: ModelError."""
        compared = await work.compared()
        if compared.note:
            yield PhaseStep(note=compared.note, unfinished=compared.more > 0)
        removed = facts_to_remove(work.so_far)
        groups = await clusters_of(
            self._stores.nights, compared, work.scope, self._similarity, removed
        )
        for group in groups.pending:
            yield await self._merge(work, compared, group)

    async def _merge(
        self, work: PhaseWork, compared: ComparedFacts, members: Sequence[Fact]
    ) -> PhaseStep:
        digest = cluster_digest(members)
        values = {"content": "\n".join(f"- {fact.text}" for fact in members)}
        asked = work.models.answer_in_json(
            *(ROLE, self._template.text(), values, lambda answer: merged_text(answer, members)),
            sources=sources_of(self._stores, members),
        )
        text = await answer_or_step(
            asked, (digest,), lambda problem: f"some were not merged: {problem}"
        )
        if isinstance(text, PhaseStep):
            compared.asked.update(text.judged)
            return text
        compared.asked.add(digest)
        names = [fact.id for fact in members]
        similarity = min(compared.pairs[pair_of(*two)] for two in combinations(names, 2))
        planned = merge_decision(
            members, text, f"they say the same (likeness {similarity:.2f})", digest
        )
        # After an undo, no question about two of these facts follows.
        pairs = tuple(pair_digest(*two) for two in combinations(members, 2))
        return PhaseStep((planned,), judged=pairs)
