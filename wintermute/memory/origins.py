"""The messages that facts came from, and the consequences for facts when messages are redacted."""

import hashlib
import json
import re
import unicodedata
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, get_args

from wintermute.changes.change_sets import BackgroundCause, Reason
from wintermute.db import Database, Transaction
from wintermute.memory.fact import Fact, NewFact, fact_of, state_of
from wintermute.memory.facts import Facts
from wintermute.memory.grounding import Grounding, Line
from wintermute.memory.lexical_overlap import Successors, beginnings, is_negated, words_in

FROM_ONE = (
    "EXISTS (SELECT 1 FROM json_each(facts.origins) o"
    " WHERE o.value IN (SELECT value FROM json_each(:events)))"
)
MEANINGFUL_MARKS = re.compile(
    r"\A/|(?<=\d)[.,:/\u2013-](?=\d)|(?<=\d)[%\u2030\u00b0]|[+\u2212<>\u2264\u2265-](?=\d)"
)
"""Marks that change the meaning: 2.5 is not 25, and /help is not help."""
SMALLEST_PART = 3
"""A message of which a fact covers less than one part in this many is on other topics."""


class OriginText(NamedTuple):
    """A message that a fact was learnt from, and its sender."""

    body: str
    name: str


def is_covered_in(text: str, others: Iterable[str]) -> bool:
    """Check whether these texts together cover a text: its words, numbers and negations (M-039)."""
    return Successors([*others]).cover(text)


def gist(fact: Fact | NewFact) -> str:
    """Return a digest that is equal for facts of a scope with the same main words (M-039)."""
    said = json.dumps([fact.scope, sorted(beginnings(fact.text)), is_negated(fact.text)])
    return hashlib.sha256(said.encode()).hexdigest()


def changes_meaning(former: str, last: str) -> bool:
    """Check whether an edit changed the meaning; changed blanks and marks do not count (M-089)."""
    return _letters(last) not in ("", _letters(former))


def _letters(text: str) -> str:
    """Return letters of all scripts, digits, currencies, and marks that change the meaning."""
    plain = unicodedata.normalize("NFKC", text)
    said = [
        mark
        for n, mark in enumerate(plain)
        if unicodedata.category(mark)[0] in "LMN"
        or unicodedata.category(mark) == "Sc"
        or MEANINGFUL_MARKS.match(plain, n)
    ]
    return "".join(said)


@dataclass(frozen=True, slots=True)
class EditedMessage:
    """An edited message. `events`: all its versions; `former`: those before the last."""

    message: str
    events: frozenset[str]
    former: tuple[Line, ...]
    last: Line

    def retracts(self, text: str, others: Sequence[str]) -> bool:
        """Check whether a fact from this message came only from text that the edit removed (M-089).

        It applies the harvest's check by words; embeddings are used when the last version is harvested. The fact
        goes if the edit changed the result of that check, or removed a word of it, and the `others` do not cover the
        former text. In another language no words are shared: then any other message keeps the fact.
        """
        now, before = (Grounding(each).ground(text) for each in ([self.last], self.former))
        says_over = Successors([f"{self.last.name} {self.last.text}"]).outdates(text, 0)
        if now.is_grounded and not says_over:
            return False
        had = words_in(text, "\n".join(each.text for each in self.former))
        if not had:
            return not others
        elsewhere = Grounding([replace(self.last, text=each) for each in others]).ground(text)
        if elsewhere.is_grounded and had <= words_in(
            text, "\n".join(others[n] for n in elsewhere.lines)
        ):
            return False
        turned = says_over or (before.is_grounded, before.reason) != (now.is_grounded, now.reason)
        return turned or bool(had - words_in(text, self.last.text))


@dataclass(frozen=True, slots=True)
class CurrentVersion:
    """The message that an event is a version of, and its present text; "" if it is blank."""

    message: str
    body: str


@dataclass(frozen=True, slots=True)
class RetractionPlan:
    """The consequences for facts when messages are redacted."""

    kept: tuple[Fact, ...]
    """Facts that their other origins cover as well."""
    gone: tuple[Fact, ...]
    back: tuple[Fact, ...]
    """Facts that one of the lost facts had replaced."""
    again: frozenset[str]
    """Messages to harvest again, as lost facts came from them too."""


def plan_retraction(
    facts: Sequence[Fact],
    before: Sequence[Fact],
    events: Collection[str],
    kept: Mapping[str, CurrentVersion],
) -> RetractionPlan:
    """Decide on all facts that came from these events.

    `before`: facts that they replaced. `kept`: their other origins that are messages. An imported fact did not come
    from a message and stays. A fact that a person had retracted does not come back, nor do its parts.
    """
    ours = {fact.id: fact for fact in facts}
    stay, gone = list[Fact](), list[Fact]()
    for fact in facts:
        others = set(fact.origins) - set(events)
        merged = [
            each.text
            for each in before
            if each.replaced_by == fact.id and each.retired_at and each.id not in ours
        ]
        texts = [kept[name].body for name in others & kept.keys() if kept[name].body] + merged
        elsewhere = not merged and not others <= kept.keys()
        stays = elsewhere or (bool(texts) and is_covered_in(fact.text, texts))
        (stay if stays else gone).append(fact)
    gone_by_id = {fact.id: fact for fact in gone}
    believed = {fact.id for fact in gone if _is_believed(fact, gone_by_id)}
    again = set[str]()
    for fact in gone:
        if fact.id in believed:
            parts = {o for each in before if each.replaced_by == fact.id for o in each.origins}
            own = (set(fact.origins) - set(events) - parts) & kept.keys()
            again |= {kept[name].message for name in own if kept[name].body}
    back = [fact for fact in before if fact.replaced_by in believed and fact.id not in gone_by_id]
    return RetractionPlan(tuple(stay), tuple(gone), tuple(back), frozenset(again))


def _is_believed(fact: Fact, gone_by_id: Mapping[str, Fact]) -> bool:
    """Check whether a fact was true until now, or was merged into one that was."""
    for _ in gone_by_id:
        successor = gone_by_id.get(fact.replaced_by or "")
        if fact.retired_at is None or successor is None:
            break
        fact = successor
    return fact.retired_at is None


async def retracted_facts(tx: Transaction, events: Collection[str]) -> list[Fact]:
    """Return the facts from these events that a person retired or undid."""
    rows = await tx.rows(
        f"SELECT * FROM facts WHERE retired_at IS NOT NULL AND {FROM_ONE} AND retired_by NOT IN"
        " (SELECT value FROM json_each(:unasked)) ORDER BY seq",
        {"events": json.dumps(sorted(events)), "unasked": json.dumps(get_args(BackgroundCause))},
    )
    return [fact_of(row) for row in rows]


def source_messages(text: str, messages: Mapping[str, OriginText]) -> set[str]:
    """Return the messages that go with a fact: those that contain it and are mainly about it.

    If none contains it alone, the fewest that cover most of it together are returned: it may have been told in
    several messages, or is stored in another language. At least one is returned.
    """
    if not messages:
        return set()
    names = beginnings(" ".join(each.name for each in messages.values()))
    words = beginnings(text) - names or beginnings(text)
    said = {event: beginnings(each.body) - names for event, each in messages.items()}

    def coverage(event: str) -> tuple[int, int, int]:
        alike = len(_threes(text) & _threes(messages[event].body))
        return len(words & said[event]), alike if not words & said[event] else 0, -len(said[event])

    best, chosen = max(said, key=coverage), set[str]()
    saying = {
        event
        for event, each in messages.items()
        if is_covered_in(text, [each.body, each.name])
        and len(words & said[event]) * SMALLEST_PART >= len(said[event])
    }
    if saying or is_covered_in(text, [messages[best].body, messages[best].name]):
        return {best} | saying
    while best not in chosen:
        chosen.add(best)
        words -= said[best]
        best = max(said, key=coverage) if any(words & each for each in said.values()) else best
    return chosen


def _threes(text: str) -> set[str]:
    folded = text.casefold()
    return {folded[n : n + 3] for n in range(len(folded) - 2)}


class Origins:
    """Facts by their origins. The rows are those of `Facts`."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts

    async def of_events(self, tx: Transaction, events: Collection[str]) -> list[Fact]:
        """Return the facts, live or retired, that have one of these events among their origins."""
        rows = await tx.rows(
            f"SELECT * FROM facts WHERE {FROM_ONE} ORDER BY seq",
            {"events": json.dumps(sorted(events))},
        )
        return [fact_of(row) for row in rows]

    async def scopes(self, tx: Transaction, ids: Collection[str]) -> list[str]:
        """Return the scopes of these facts."""
        query = "SELECT DISTINCT scope FROM facts WHERE id IN (SELECT value FROM json_each(?))"
        return await tx.scalars(f"{query} ORDER BY scope", (json.dumps([*ids]),))

    async def words_in(
        self,
        source: Transaction | Database,
        words: Collection[str],
        scopes: Collection[str],
        but: Collection[str],
    ) -> set[str]:
        """Return those of these words, in lower case, that other live facts of these scopes have."""
        rows = await source.rows(
            "SELECT w.value AS word FROM json_each(:words) w WHERE EXISTS (SELECT 1 FROM facts f"
            " WHERE f.scope IN (SELECT value FROM json_each(:scopes)) AND f.retired_at IS NULL"
            " AND f.id NOT IN (SELECT value FROM json_each(:but)) AND instr(f.key, w.value))",
            {
                "words": json.dumps(sorted(words)),
                "scopes": json.dumps(sorted(scopes)),
                "but": json.dumps(sorted(but)),
            },
        )
        return {row["word"] for row in rows}

    async def replaced_by(self, tx: Transaction, ids: Collection[str]) -> list[Fact]:
        """Return the facts that these replaced, or for which they ended."""
        rows = await tx.rows(
            "SELECT * FROM facts WHERE (retired_at IS NOT NULL OR ended)"
            " AND replaced_by IN (SELECT value FROM json_each(?)) ORDER BY seq",
            (json.dumps(sorted(ids)),),
        )
        return [fact_of(row) for row in rows]

    async def apply_retraction(
        self, tx: Transaction, done: RetractionPlan, events: Collection[str]
    ) -> None:
        """Apply the decision: lost facts leave all prompts now; a job purges them and their copies.

        Their other origins are removed, so that a second run decides the same.
        """
        await self.drop_origins(tx, [fact.id for fact in done.kept], events)
        others = {name for fact in done.gone for name in fact.origins} - set(events)
        await self.drop_origins(tx, [fact.id for fact in done.gone], others)
        for scope in sorted({fact.scope for fact in done.gone}):
            ids = [fact.id for fact in done.gone if fact.scope == scope]
            await self._facts.retire_unrecorded(tx, scope, ids, "command")
        await self.revive(tx, done.back)

    async def drop_origins(
        self, tx: Transaction, ids: Sequence[str], events: Collection[str]
    ) -> None:
        """Remove events from the origins of facts."""
        await tx.execute(
            "UPDATE facts SET origins = (SELECT json_group_array(o.value) FROM json_each(facts.origins) o"
            "  WHERE o.value NOT IN (SELECT value FROM json_each(:events)))"
            " WHERE id IN (SELECT value FROM json_each(:ids))",
            {"ids": json.dumps(list(ids)), "events": json.dumps(sorted(events))},
        )

    async def revive(self, tx: Transaction, facts: Sequence[Fact]) -> None:
        """Restore facts that were merged into, or ended for, a lost one, and queue them again."""
        for fact in facts:
            state = state_of(fact) | {"replaced_by": None}
            if fact.retired_at is None:
                state["valid_to"] = None
            await self._facts.put(tx, fact.id, state, Reason("command", fact.scope))
        await tx.execute(
            "UPDATE facts SET queued = 1 WHERE retired_at IS NULL"
            " AND id IN (SELECT value FROM json_each(?))",
            (json.dumps([fact.id for fact in facts]),),
        )
