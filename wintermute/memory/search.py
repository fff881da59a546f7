"""Finds facts by words, and by meaning where that is to be had: one function for whoever asks.

The prompt, the tool, the commands in a chat and on the command line ask here, so the same words
find the same facts everywhere. What is read of the index is bounded however many facts there are.
"""

import asyncio
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import islice
from typing import Protocol

from wintermute.clock import stamp
from wintermute.db import Database, Error, is_broken
from wintermute.errors import ungrouped
from wintermute.llm.tokens import estimate
from wintermute.memory.fact import Hit, facts_of
from wintermute.memory.facts import TRUE, WAS_TRUE, Facts
from wintermute.memory.index import scope_word
from wintermute.memory.ranking import (
    BEGUN,
    MOST_LEADING,
    MOST_POSTINGS,
    WEIGHTS,
    Candidate,
    Query,
    Scored,
    Terms,
    begun,
    distinct,
    fuse,
    leading,
    terms_of,
)
from wintermute.memory.words import forms, match, says_something

MOST_TOKENS = 1_500
"""Of the memories that come with one message; at most a twelfth of the window."""
FEWEST = 50
"""Facts that a scope is taken to have at least: of three, a word in each is not common yet."""
MOST_ASLEEP = 1_000
"""So many more are compared in meaning where that many are at rest, at most."""
EQUALS = 4
"""How many more hits are read than are wanted, for equal ones are dropped."""


@dataclass(frozen=True, slots=True)
class Truth:
    """Which facts are meant, as a clause of SQL about `{}` that may ask for `:when`."""

    clause: str
    when: datetime | None = None

    def about(self, table: str) -> str:
        """The clause about the rows of this table."""
        return self.clause.replace("{}", table)


@dataclass(frozen=True, slots=True)
class Alike:
    """What is alike in meaning: cosines by the numbers of facts, and under which they are chance."""

    likeness: Mapping[int, float]
    floor: float = WEIGHTS.floor


NOTHING = Alike({})


@dataclass(frozen=True, slots=True)
class ByWords:
    """The index of words for a query: for each word its facts, and those that lead in all.

    `forms`: in which its words were written.
    """

    terms: Terms
    postings: Mapping[str, Sequence[int]]
    size: int
    leading: Sequence[int]
    forms: Mapping[str, set[str]]


class Likest(Protocol):
    """Whoever knows what is alike in meaning."""

    async def likest(self, scope: str, query: Query, most: int) -> Alike:
        """The likest live facts; nothing where meanings cannot be had now."""
        ...


def fitting(hits: Sequence[Hit], window: int) -> list[Hit]:
    """The best of the hits that one message may bring; one at least. `window`: tokens, or 0."""
    most = min(MOST_TOKENS, window // 12) if window else MOST_TOKENS
    kept: list[Hit] = []
    for hit in hits:
        most -= estimate(f"- {hit.fact.text}")
        if kept and most < 0:
            break
        kept.append(hit)
    return kept


class Search:
    """Over the facts of one scope at a time; the scope is filtered where the index is read."""

    def __init__(self, database: Database, facts: Facts, meaning: Likest | None = None) -> None:
        self._database = database
        self._facts = facts
        self._meaning = meaning
        self._sizes: dict[str, tuple[int, int]] = {}

    async def find(
        self,
        scope: str,
        query: Query,
        most: int,
        when: datetime | None = None,
        *,
        awake: bool = False,
    ) -> list[Hit]:
        """The facts that fit, best first; nothing where nothing does (M-071).

        `when`: also among what was true at that moment, by words (M-074). `awake`: without those
        that are at rest (M-060).
        """
        if most <= 0:
            return []
        await self._facts.lapse()
        alike = NOTHING
        asleep = await self._asleep(scope) if awake else 0
        with ungrouped():
            async with asyncio.TaskGroup() as group:
                looked_up = group.create_task(self._by_words(scope, query))
                asks = says_something(query.text) or query.before
                if (
                    self._meaning is not None and asks
                ):  # whose vector another process makes meanwhile
                    most_alike = MOST_LEADING + min(asleep, MOST_ASLEEP)
                    alike = await self._meaning.likest(scope, query, most_alike)
        words = await self._without_asleep(looked_up.result()) if asleep else looked_up.result()
        truth = Truth(TRUE) if when is None else Truth(WAS_TRUE, when)
        truth = replace(truth, clause=f"{truth.clause} AND NOT {{}}.archived") if awake else truth
        return await self._found(scope, words, most, alike, truth)

    async def past(self, scope: str, query: Query, most: int) -> list[Hit]:
        """What fits of what is no longer true, best first, by words (M-074)."""
        ended = Truth("{}.retired_at IS NULL AND {}.ended")
        return await self._found(scope, await self._by_words(scope, query), most, NOTHING, ended)

    async def sharing(self, scope: str, texts: Sequence[str], most: int) -> list[list[int]]:
        """For each text the numbers of the facts that share most of its words; some may be over.

        The index is read once for all of them.
        """
        terms = [terms_of(Query(text)) for text in texts]
        words = list(dict.fromkeys(word for each in terms for word in each.all))
        postings, size = await self._postings(scope, words), await self._size(scope)
        return await asyncio.to_thread(
            lambda: [leading(each, postings, size, most) for each in terms]
        )

    async def _by_words(self, scope: str, query: Query) -> ByWords:
        terms = terms_of(query)
        postings = await self._postings(scope, terms.all)
        size = await self._size(scope)
        order = leading(terms, postings, size)
        return ByWords(terms, postings, size, order, forms(query.text))

    async def _asleep(self, scope: str) -> int:
        """How many facts are at rest."""
        query = "SELECT count(*) FROM facts WHERE scope = ? AND archived"
        return int((await self._database.scalars(query, (scope,)))[0])

    async def _without_asleep(self, words: ByWords) -> ByWords:
        """The same without what is at rest, which may be more than all that is awake."""
        seqs = sorted({seq for found in words.postings.values() for seq in found})
        query = "SELECT value FROM json_each(?) JOIN facts f ON f.seq = value WHERE f.archived"
        asleep = set(await self._database.scalars(query, (json.dumps(seqs),)))
        postings = {
            word: [seq for seq in found if seq not in asleep]
            for word, found in words.postings.items()
        }
        return replace(words, postings=postings, leading=leading(words.terms, postings, words.size))

    async def _found(
        self, scope: str, words: ByWords, most: int, alike: Alike, truth: Truth
    ) -> list[Hit]:
        beside = await self._beside(scope, {*words.leading, *alike.likeness}, truth)
        weights = replace(WEIGHTS, floor=alike.floor)
        scored = await asyncio.to_thread(
            fuse, words.terms, words.postings, words.size, alike.likeness, beside, weights
        )
        return await self._read(scored[: most * EQUALS], most, words.forms)

    async def _size(self, scope: str) -> int:
        """About how many facts there are; counted anew when there are a twentieth more."""
        (newest,) = await self._database.scalars("SELECT coalesce(max(seq), 0) FROM facts")
        known = self._sizes.get(scope)
        if known is None or newest - known[0] > known[1] // 20:
            known = self._sizes[scope] = newest, max(FEWEST, await self._facts.count(scope))
        return known[1]

    async def _postings(self, scope: str, words: Sequence[str]) -> dict[str, list[int]]:
        """For each word the newest facts of the scope that have it."""
        wanted = json.dumps({word: match(scope_word(scope), word) for word in words})
        asked = {"terms": wanted, "most": MOST_POSTINGS}
        await self._facts.words.prove(self._database)
        try:
            rows = await self._database.rows(POSTINGS, asked)
        except Error as problem:
            if not is_broken(problem):
                raise
            async with self._database.transaction() as tx:
                await self._facts.words.mend(tx, problem)
            rows = await self._database.rows(POSTINGS, asked)
        return {row["word"]: json.loads(row["seqs"]) for row in rows}

    async def _beside(self, scope: str, seqs: Iterable[int], truth: Truth) -> list[Candidate]:
        """These facts, and those that were learnt right before and after each of them."""
        asked = {
            "scope": scope,
            "found": json.dumps(sorted(seqs)),
            "near": len(WEIGHTS.near),
            "when": stamp(truth.when) if truth.when else None,
        }
        query = BESIDE.format(hit=truth.about("hit"), true=truth.about("f"))
        rows = await self._database.rows(query, asked)
        return [Candidate(row["seq"], row["place"], row["speaker"], row["length"]) for row in rows]

    async def _read(
        self, scored: Sequence[Scored], most: int, asked: Mapping[str, set[str]]
    ) -> list[Hit]:
        rows = await self._database.rows(
            "SELECT f.* FROM json_each(?) j JOIN facts f ON f.seq = j.value ORDER BY j.key",
            (json.dumps([each.seq for each in scored]),),
        )
        facts = await asyncio.to_thread(facts_of, rows)
        found = {each.seq: each for each in scored}
        hits = list[Hit]()
        for row, fact in zip(rows, facts, strict=True):
            each = found[row["seq"]]
            less = BEGUN * each.words * begun(asked, fact.text)
            hits.append(Hit(fact, each.score - less, each.beside))
        hits.sort(key=lambda hit: -(hit.score or 0.0))
        apart = distinct(hits, lambda hit: (hit.fact.speaker, hit.fact.text))
        return list(islice(apart, most))


POSTINGS = """
SELECT key AS word, (SELECT json_group_array(rowid) FROM (
    SELECT rowid FROM facts_fts WHERE facts_fts MATCH value ORDER BY rowid DESC LIMIT :most)) AS seqs
FROM json_each(:terms)
"""
BESIDE = """
SELECT DISTINCT f.seq, f.place, f.speaker, length(f.text) AS length
FROM json_each(:found) CROSS JOIN facts hit ON hit.seq = value
CROSS JOIN facts f ON f.scope = hit.scope AND f.place BETWEEN hit.place - :near AND hit.place + :near
WHERE hit.scope = :scope AND {hit} AND {true}
"""
