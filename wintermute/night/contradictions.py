"""Contradictions: if two facts cannot both be true now, the older one ends and stays as history.

similar pairs ─ the nearest 20 ─▶ one question each
                                    ├▶ keep one ─ newer, and one harmless value differs? ─▶ the other ends
                                    │                 ╰─ no ─▶ a person is asked
                                    ├▶ merge ─▶ as in dedup
                                    ╰▶ keep both ─▶ no change, and no second question
"""

from collections.abc import AsyncIterator, Sequence, Set
from dataclasses import dataclass, replace
from datetime import date, tzinfo
from typing import ClassVar, Literal, get_args

from wintermute.changes.change_sets import Reason
from wintermute.changes.decisions import Decision
from wintermute.db import Transaction
from wintermute.forgetting.executors import DecisionKind, Kinds
from wintermute.llm.json_answer import InvalidAnswer, require_keys
from wintermute.memory.fact import Fact
from wintermute.memory.lexical_overlap import Successors
from wintermute.memory.similarity import ComparedFacts, FactPair
from wintermute.memory.values import differ_in_a_value
from wintermute.messages import Json
from wintermute.night.dedup import (
    Clusters,
    checked_line,
    clusters_of,
    facts_to_remove,
    may_end,
    member_texts,
    merge_decision,
    origins_of,
    pair_digest,
    sources_of,
    unchanged_facts,
)
from wintermute.night.pipeline import ROLE, PhaseStep, PhaseWork, answer_or_step
from wintermute.stores import Stores
from wintermute.work.data_folder import DataFolder

MOST = 20
"""Pairs of a scope that one night compares (M-058)."""
MOST_ASKED = 5
"""Pairs among them that a person is asked about (M-087)."""
Action = Literal["keep_first", "keep_second", "keep_both", "merge"]
ACTIONS: tuple[Action, ...] = get_args(Action)


@dataclass(frozen=True, slots=True)
class PairAnswer:
    """Model's answer about two facts. `ended`: ids of those that a merged text says are over."""

    action: Action
    text: str = ""
    ended: tuple[str, ...] = ()


def parse_pair_answer(answer: Json, pair: Sequence[Fact], zone: tzinfo) -> PairAnswer:
    """Read a model's answer about two facts (M-058, M-072). Raises: Unfit."""
    action = answer.get("action")
    if action not in ACTIONS:
        raise InvalidAnswer(f'"action" must be one of {", ".join(ACTIONS)}')
    if action != "merge":
        require_keys(answer, "action")
        return PairAnswer(action)
    require_keys(answer, "action", "text")
    line = checked_line(
        answer["text"], [part for fact in pair for part in (fact.text, *_days(fact, zone))]
    )
    merged = Successors([line])
    ended = tuple(fact.id for fact in pair if merged.outdates(fact.text, 0))
    kept = [fact for fact in pair if merged.cover(fact.text, 0) and fact.id not in ended]
    if len(kept) + len(ended) < len(pair) or not kept:
        raise InvalidAnswer("it leaves out or changes what one of them says")
    return PairAnswer("merge", line, ended)


def _days(fact: Fact, zone: tzinfo) -> tuple[str, ...]:
    """Return the spellings of a fact's day that a merged text may contain."""
    day = day_of(fact, zone)
    return (f"{day}", f"{day.day} {day:%B %Y}")


def may_settle(loser: Fact, winner: Fact) -> bool:
    """Decide if no person is needed: only one value differs, and the newer fact wins (M-087)."""
    return may_end(loser, winner) and differ_in_a_value(loser.text, winner.text)


def day_of(fact: Fact, zone: tzinfo) -> date:
    """Return the local day on which a fact was last said."""
    return fact.last_said.astimezone(zone).date()


def fact_with_day(fact: Fact, zone: tzinfo) -> str:
    """Return a fact with its day and speaker, so that a model can see which one is newer."""
    who = fact.speaker or ("the person" if fact.protected else "somebody")
    return f"{day_of(fact, zone)}, {who}: {fact.text}"


async def end_facts(stores: Stores, tx: Transaction, item: Decision, why: Reason) -> bool:
    """End facts that are no longer true, and name the fact that is true since, if there is one (M-074).

    Returns False if one of them was changed or ended meanwhile.
    """
    facts, texts = stores.facts, member_texts(item)
    stays = {each["id"]: each["text"] for each in [item.plan["winner"]] if each}
    unchanged = await unchanged_facts(stores, tx, item, why, texts | stays, texts)
    if not unchanged:
        return False
    losers = [fact for fact in unchanged if fact.id in texts]
    winners = [fact for fact in unchanged if fact.id in stays]
    now = facts.now()
    for loser in losers:
        until, successor = next(((each.last_said, each.id) for each in winners), (now, None))
        until = until if loser.valid_from < until <= now else now
        await facts.end(tx, why, loser.id, until, successor)
    return True


END = DecisionKind(
    *("ended", "contradiction settled", "contradictions settled"),
    *("Which of these is true?", "no longer true", end_facts),
)


class Contradictions:
    """Phase that compares new facts for contradictions, after dedup."""

    name: ClassVar = "contradictions"
    use: ClassVar = "settle contradictions"
    kinds: ClassVar[Kinds] = (END,)

    def __init__(self, own: DataFolder) -> None:
        self._stores = own.stores
        self._template = own.texts.dream_contradiction
        self._similarity = own.config.dreaming.dedup_similarity

    async def size(self, scope: str) -> int:
        """Count facts."""
        return await self._stores.facts.count(scope)

    async def steps(self, work: PhaseWork) -> AsyncIterator[PhaseStep]:
        """Yield a step for each pair, then one with the facts that are finished. Raises: ModelError."""
        compared = await work.compared()
        removed = facts_to_remove(work.so_far)
        groups = await clusters_of(
            self._stores.nights, compared, work.scope, self._similarity, removed
        )
        pending = {fact.id for group in groups.pending for fact in group}
        open_pairs = await self._open_pairs(compared, work.scope, groups)
        named = {name for pair in open_pairs for name in pair}
        new = {*compared.new} - pending
        yield _finished(compared, new - named)
        own = [item for item in work.so_far if item.phase == self.name]
        room, questions = MOST - len(own), sum(item.state == "open" for item in own)
        asked: set[FactPair] = set()
        for pair in open_pairs:
            facts = older, newer = oldest_first([compared.facts[name] for name in pair])
            settles = may_settle(older, newer) and not work.asks_small_model
            if room and not removed & {*pair} and (settles or questions < MOST_ASKED):
                room -= 1
                step = await self._compare(work, facts)
                asks = any(map(work.needs_approval, step.items))
                if asks and questions >= MOST_ASKED:
                    continue  # it waits, and the model is asked again
                questions += asks
                asked.add(pair)
                removed |= {each["id"] for item in step.items for each in item.plan["members"]}
                yield step
        rest = [pair for pair in open_pairs if pair not in asked]
        later = sum(not removed & {*pair} for pair in rest)
        waiting = new & {name for pair in rest for name in pair}
        yield replace(
            _finished(compared, (new & named) - waiting),
            waiting=tuple(sorted(waiting)),
            note=f"{later} pairs wait for the next nights" if later else "",
            unfinished=later > 0,
        )

    async def _open_pairs(
        self, compared: ComparedFacts, scope: str, groups: Clusters
    ) -> list[FactPair]:
        """Return pairs not asked about before, most similar first, without those that dedup still asks about."""
        pending = [{fact.id for fact in group} for group in groups.pending]
        refused = [{fact.id for fact in group} for group in groups.refused]
        new = {*compared.new}
        pairs = [
            pair
            for pair in compared.ranked()
            if (new & {*pair} or any({*pair} <= group for group in refused))
            and not any({*pair} <= group for group in pending)
        ]
        digests = {pair: pair_digest(*(compared.facts[name] for name in pair)) for pair in pairs}
        unjudged = await self._stores.nights.not_yet_asked(scope, set(digests.values()))
        return [pair for pair in pairs if digests[pair] in unjudged]

    async def _compare(self, work: PhaseWork, pair: tuple[Fact, Fact]) -> PhaseStep:
        older, newer = pair
        zone = self._stores.tasks.zone
        values = {"entry_1": fact_with_day(older, zone), "entry_2": fact_with_day(newer, zone)}
        digest = pair_digest(older, newer)
        asked = work.models.answer_in_json(
            *(
                ROLE,
                self._template.text(),
                values,
                lambda found: parse_pair_answer(found, pair, zone),
            ),
            sources=sources_of(self._stores, pair),
        )
        answer = await answer_or_step(
            asked, (digest,), lambda problem: f"some were not compared: {problem}"
        )
        if isinstance(answer, PhaseStep):
            return answer
        if answer.action == "keep_both":
            return PhaseStep(judged=(digest,))
        if answer.action == "merge":
            return PhaseStep((self._merge_decision(older, newer, answer, digest),))
        free = answer.action == "keep_second" and may_settle(older, newer)
        return PhaseStep((self._end_decision(older, newer, digest, free=free),))

    def _merge_decision(
        self, older: Fact, newer: Fact, answer: PairAnswer, digest: str
    ) -> Decision:
        over = answer.ended
        if over and not (over == (older.id,) and may_settle(older, newer)):
            return self._end_decision(older, newer, digest, free=False)
        reason = "what one of them says is over" if over else "they add to each other"
        return merge_decision((older, newer), answer.text, reason, digest, over)

    def _end_decision(self, loser: Fact, winner: Fact, digest: str, *, free: bool) -> Decision:
        days = _in_turn(loser, winner, self._stores.tasks.zone)
        member = {"id": loser.id, "text": loser.text}
        return Decision(
            *("ended", (loser.text,), winner.text),
            f"they contradict each other: {days}" if free else f"said {days}",
            plan={
                "members": [member],
                "winner": {"id": winner.id, "text": winner.text},
                "outside": loser.taint or winner.taint,
            },
            evidence=origins_of((loser, winner)),
            loses=1,
            state="planned" if free else "open",
            digest=digest,
        )


def _finished(compared: ComparedFacts, names: Set[str]) -> PhaseStep:
    later = names & compared.by_words
    return PhaseStep(looked_at=tuple(sorted(names)), by_words=tuple(sorted(later)))


def oldest_first(pair: Sequence[Fact]) -> tuple[Fact, Fact]:
    """Return the older fact, then the newer."""
    older, newer = sorted(pair, key=lambda fact: (fact.last_said, fact.id))
    return older, newer


def _in_turn(older: Fact, newer: Fact, zone: tzinfo) -> str:
    """Return the days on which two facts were said; for the same day, with their times."""
    first, then = older.last_said.astimezone(zone), newer.last_said.astimezone(zone)
    if first.date() != then.date():
        return f"{first:%Y-%m-%d}, then {then:%Y-%m-%d}"
    times = f"{first:%H:%M}", f"{then:%H:%M}"
    return f"{first:%Y-%m-%d}, {', then '.join(dict.fromkeys(times))}"
