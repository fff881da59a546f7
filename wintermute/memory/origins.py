"""Which facts came from which messages, and what becomes of them when messages are taken back."""

import hashlib
import json
import re
import unicodedata
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, get_args

from wintermute.changes.change_sets import Reason, UnaskedCause
from wintermute.db import Database, Transaction
from wintermute.memory.fact import Fact, NewFact, fact_of, state_of
from wintermute.memory.facts import Facts
from wintermute.memory.grounding import Grounding, Line
from wintermute.memory.sense import Heirs, beginnings, is_negated, words_in

FROM_ONE = (
    "EXISTS (SELECT 1 FROM json_each(facts.origins) o"
    " WHERE o.value IN (SELECT value FROM json_each(:events)))"
)
SAYING_MARKS = re.compile(
    r"\A/|(?<=\d)[.,:/\u2013-](?=\d)|(?<=\d)[%\u2030\u00b0]|[+\u2212<>\u2264\u2265-](?=\d)"
)
"""Marks that say something: 2.5 is not 25, and /help no help."""
OTHERWISE = 3
"""A message of which less than this part is what a fact says, is of other things."""


class OriginText(NamedTuple):
    """A message that something was learnt from, and who said it."""

    body: str
    name: str


def is_said_in(text: str, others: Iterable[str]) -> bool:
    """Whether these others together say all of a text: its words, numbers and negations (M-039)."""
    return Heirs([*others]).keeps(text)


def gist(fact: Fact | NewFact) -> str:
    """The same for facts of a scope that say the same with the same main words (M-039); unreadable."""
    said = json.dumps([fact.scope, sorted(beginnings(fact.text)), is_negated(fact.text)])
    return hashlib.sha256(said.encode()).hexdigest()


def is_reworded(former: str, last: str) -> bool:
    """Tell whether an edit says something else; other blanks and marks, or nothing but these, do not (M-089)."""
    return _letters(last) not in ("", _letters(former))


def _letters(text: str) -> str:
    """Letters of all scripts, digits, currencies, and the marks that say something."""
    plain = unicodedata.normalize("NFKC", text)
    said = [
        mark
        for n, mark in enumerate(plain)
        if unicodedata.category(mark)[0] in "LMN"
        or unicodedata.category(mark) == "Sc"
        or SAYING_MARKS.match(plain, n)
    ]
    return "".join(said)


@dataclass(frozen=True, slots=True)
class Rewording:
    """A message that was edited. `events`: all that gave it a wording; `former`: those before the last."""

    message: str
    events: frozenset[str]
    former: tuple[Line, ...]
    last: Line

    def unsays(self, text: str, others: Sequence[str]) -> bool:
        """Tell whether a fact that came from it was learnt only from what it says no more (M-089).

        The rule is that of the harvest by words: meaning is asked where the last wording is read. The
        edit changed what the rule says of the fact, or took a word of it, and the `others` do not tell
        all that the former wording did. In another language nothing is shared: others, if any, tell it.
        """
        now, before = (Grounding(each).judged(text) for each in ([self.last], self.former))
        is_over = Heirs([f"{self.last.name} {self.last.text}"]).overtakes(text, 0)
        if now.told and not is_over:
            return False
        had = words_in(text, "\n".join(each.text for each in self.former))
        if not had:
            return not others
        told = Grounding([replace(self.last, text=each) for each in others]).judged(text)
        if told.told and had <= words_in(text, "\n".join(others[n] for n in told.lines)):
            return False
        turned = is_over or (before.told, before.reason) != (now.told, now.reason)
        return turned or bool(had - words_in(text, self.last.text))


@dataclass(frozen=True, slots=True)
class KeptWording:
    """The message that an event is a wording of, and how that reads by now; "": it is blank."""

    message: str
    body: str


@dataclass(frozen=True, slots=True)
class Unlearnt:
    """What becomes of facts when messages are taken back."""

    kept: tuple[Fact, ...]
    """What their other origins say as well."""
    gone: tuple[Fact, ...]
    back: tuple[Fact, ...]
    """In whose place one stood that goes."""
    again: frozenset[str]
    """The messages from which it is to be derived again."""


def unlearnt(
    found: Sequence[Fact],
    before: Sequence[Fact],
    events: Collection[str],
    kept: Mapping[str, KeptWording],
) -> Unlearnt:
    """Decide about all facts that came from these events.

    `before`: what they stand in the place of. `kept`: their other origins that are messages. What
    did not come from a message at all, as it was imported, is there without it. What a person took
    back does not come back, neither by itself nor by what it was made of.
    """
    ours = {fact.id: fact for fact in found}
    stay, gone = list[Fact](), list[Fact]()
    for fact in found:
        others = set(fact.origins) - set(events)
        merged = [
            each.text
            for each in before
            if each.replaced_by == fact.id and each.retired_at and each.id not in ours
        ]
        told = [kept[name].body for name in others & kept.keys() if kept[name].body] + merged
        elsewhere = not merged and not others <= kept.keys()
        stays = elsewhere or (bool(told) and is_said_in(fact.text, told))
        (stay if stays else gone).append(fact)
    heirs = {fact.id: fact for fact in gone}
    believed = {fact.id for fact in gone if _is_believed(fact, heirs)}
    again = set[str]()
    for fact in gone:
        if fact.id in believed:
            parts = {o for each in before if each.replaced_by == fact.id for o in each.origins}
            own = (set(fact.origins) - set(events) - parts) & kept.keys()
            again |= {kept[name].message for name in own if kept[name].body}
    back = [fact for fact in before if fact.replaced_by in believed and fact.id not in heirs]
    return Unlearnt(tuple(stay), tuple(gone), tuple(back), frozenset(again))


def _is_believed(fact: Fact, heirs: Mapping[str, Fact]) -> bool:
    """Whether it was true until now, or had become part of what was."""
    for _ in heirs:
        heir = heirs.get(fact.replaced_by or "")
        if fact.retired_at is None or heir is None:
            break
        fact = heir
    return fact.retired_at is None


async def taken_back(tx: Transaction, events: Collection[str]) -> list[Fact]:
    """The facts that came from one of these and that a person retired or undid."""
    rows = await tx.rows(
        f"SELECT * FROM facts WHERE retired_at IS NOT NULL AND {FROM_ONE} AND retired_by NOT IN"
        " (SELECT value FROM json_each(:unasked)) ORDER BY seq",
        {"events": json.dumps(sorted(events)), "unasked": json.dumps(get_args(UnaskedCause))},
    )
    return [fact_of(row) for row in rows]


def tellings(text: str, messages: Mapping[str, OriginText]) -> set[str]:
    """The messages that go with a fact: those that say it, and are not mainly of other things.

    Where none says it alone, as few as say most of it together: it may have been told over several
    messages, or is kept in another language than it was told in. One goes in any case.
    """
    if not messages:
        return set()
    names = beginnings(" ".join(each.name for each in messages.values()))
    told = beginnings(text) - names or beginnings(text)
    said = {event: beginnings(each.body) - names for event, each in messages.items()}

    def likest(event: str) -> tuple[int, int, int]:
        alike = len(_threes(text) & _threes(messages[event].body))
        return len(told & said[event]), alike if not told & said[event] else 0, -len(said[event])

    best, found = max(said, key=likest), set[str]()
    saying = {
        event
        for event, each in messages.items()
        if is_said_in(text, [each.body, each.name])
        and len(told & said[event]) * OTHERWISE >= len(said[event])
    }
    if saying or is_said_in(text, [messages[best].body, messages[best].name]):
        return {best} | saying
    while best not in found:
        found.add(best)
        told -= said[best]
        best = max(said, key=likest) if any(told & each for each in said.values()) else best
    return found


def _threes(text: str) -> set[str]:
    folded = text.casefold()
    return {folded[n : n + 3] for n in range(len(folded) - 2)}


class Origins:
    """Facts by what they were learnt from. The rows are those of `Facts`."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts

    async def of_events(self, tx: Transaction, events: Collection[str]) -> list[Fact]:
        """The facts, live or retired, that came from one of these, or of something else as well."""
        rows = await tx.rows(
            f"SELECT * FROM facts WHERE {FROM_ONE} ORDER BY seq",
            {"events": json.dumps(sorted(events))},
        )
        return [fact_of(row) for row in rows]

    async def scopes(self, tx: Transaction, ids: Collection[str]) -> list[str]:
        """Whose these facts are."""
        query = "SELECT DISTINCT scope FROM facts WHERE id IN (SELECT value FROM json_each(?))"
        return await tx.scalars(f"{query} ORDER BY scope", (json.dumps([*ids]),))

    async def words_in(
        self,
        source: Transaction | Database,
        words: Collection[str],
        scopes: Collection[str],
        but: Collection[str],
    ) -> set[str]:
        """Those of these words, in lower case, that other live facts of these scopes have."""
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
        """The facts in whose place these stand, or for which they ended."""
        rows = await tx.rows(
            "SELECT * FROM facts WHERE (retired_at IS NOT NULL OR ended)"
            " AND replaced_by IN (SELECT value FROM json_each(?)) ORDER BY seq",
            (json.dumps(sorted(ids)),),
        )
        return [fact_of(row) for row in rows]

    async def unlearn(self, tx: Transaction, done: Unlearnt, events: Collection[str]) -> None:
        """Do it: what goes is in no prompt from now on, and is purged with all that repeats it.

        It has no other origins left, so that whoever looks again decides the same.
        """
        await self.lose(tx, [fact.id for fact in done.kept], events)
        others = {name for fact in done.gone for name in fact.origins} - set(events)
        await self.lose(tx, [fact.id for fact in done.gone], others)
        for scope in sorted({fact.scope for fact in done.gone}):
            ids = [fact.id for fact in done.gone if fact.scope == scope]
            await self._facts.retire_unrecorded(tx, scope, ids, "command")
        await self.revive(tx, done.back)

    async def lose(self, tx: Transaction, ids: Sequence[str], events: Collection[str]) -> None:
        """These facts are known from their other origins only."""
        await tx.execute(
            "UPDATE facts SET origins = (SELECT json_group_array(o.value) FROM json_each(facts.origins) o"
            "  WHERE o.value NOT IN (SELECT value FROM json_each(:events)))"
            " WHERE id IN (SELECT value FROM json_each(:ids))",
            {"ids": json.dumps(list(ids)), "events": json.dumps(sorted(events))},
        )

    async def revive(self, tx: Transaction, facts: Sequence[Fact]) -> None:
        """What was merged with something that is gone is there again, to be brought together anew.

        So is what ended for it.
        """
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
