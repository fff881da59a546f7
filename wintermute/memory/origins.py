"""Which facts came from which messages, and what becomes of them when messages are taken back."""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from wintermute.changes.change_sets import Reason
from wintermute.db import Database, Transaction
from wintermute.memory.fact import Fact, fact_of, main_words, state_of
from wintermute.memory.facts import Facts

ENOUGH = 5
"""Letters by which a word is the same one (M-039)."""


OTHERWISE = 3
"""A message of which less than this part is what a fact says, is of other things."""


class OriginText(NamedTuple):
    """A message that something was learnt from, and who said it."""

    body: str
    name: str


def is_said_in(text: str, others: Iterable[str]) -> bool:
    """Whether all that a text is about stands in these others."""
    known = {word[:ENOUGH] for other in others for word in main_words(other)}
    return {word[:ENOUGH] for word in main_words(text)} <= known


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


def beginnings(text: str) -> set[str]:
    """Its main words, by which they are compared."""
    return {word[:ENOUGH] for word in main_words(text)}


def _threes(text: str) -> set[str]:
    folded = text.casefold()
    return {folded[n : n + 3] for n in range(len(folded) - 2)}


class Origins:
    """Facts by what they were learnt from. The rows are those of `Facts`."""

    def __init__(self, database: Database, facts: Facts) -> None:
        self._database = database
        self._facts = facts

    async def of_events(self, events: Collection[str]) -> list[Fact]:
        """The facts, live or retired, that came from one of these, or of something else as well."""
        rows = await self._database.rows(
            "SELECT * FROM facts WHERE EXISTS (SELECT 1 FROM json_each(facts.origins) o"
            " WHERE o.value IN (SELECT value FROM json_each(?))) ORDER BY seq",
            (json.dumps(sorted(events)),),
        )
        return [fact_of(row) for row in rows]

    async def words_in(
        self, words: Collection[str], scopes: Collection[str], but: Collection[str]
    ) -> set[str]:
        """Those of these words, in lower case, that other live facts of these scopes have."""
        rows = await self._database.rows(
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

    async def replaced_by(self, ids: Collection[str]) -> list[Fact]:
        """The facts in whose place these stand."""
        rows = await self._database.rows(
            "SELECT * FROM facts WHERE retired_at IS NOT NULL"
            " AND replaced_by IN (SELECT value FROM json_each(?)) ORDER BY seq",
            (json.dumps(sorted(ids)),),
        )
        return [fact_of(row) for row in rows]

    async def lose(self, tx: Transaction, ids: Sequence[str], events: Collection[str]) -> None:
        """These facts are known from their other origins only."""
        await tx.execute(
            "UPDATE facts SET origins = (SELECT json_group_array(o.value) FROM json_each(facts.origins) o"
            "  WHERE o.value NOT IN (SELECT value FROM json_each(:events)))"
            " WHERE id IN (SELECT value FROM json_each(:ids))",
            {"ids": json.dumps(list(ids)), "events": json.dumps(sorted(events))},
        )

    async def revive(self, tx: Transaction, facts: Sequence[Fact]) -> None:
        """What was merged with something that is gone is there again, to be brought together anew."""
        for fact in facts:
            state = state_of(fact) | {"replaced_by": None}
            await self._facts.put(tx, fact.id, state, Reason("command", fact.scope))
        await tx.execute(
            "UPDATE facts SET queued = 1 WHERE retired_at IS NULL"
            " AND id IN (SELECT value FROM json_each(?))",
            (json.dumps([fact.id for fact in facts]),),
        )
