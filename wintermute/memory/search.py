"""Search for facts by words, and by embeddings if there are any: one function for all callers.

Prompt, tool, chat commands and command line use it, so the same words find the same facts everywhere. The work on
the index is bounded, however many facts there are.
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
    ENDING_PENALTY,
    MOST_LEADING,
    MOST_POSTINGS,
    WEIGHTS,
    Candidate,
    Query,
    Scored,
    Terms,
    distinct,
    ending_mismatch,
    fuse,
    leading,
    terms_of,
)
from wintermute.memory.words import forms, match, says_something

MOST_TOKENS = 1_500
"""Tokens of the memories that come with one message; at most a twelfth of the window."""
FEWEST = 50
"""Least assumed size of a scope: among three facts a shared word is not common yet."""
MOST_ARCHIVED = 1_000
"""Further facts compared by embeddings to make up for archived ones, at most."""
EQUALS = 4
"""Factor of hits to read, as equal ones are dropped."""

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


@dataclass(frozen=True, slots=True)
class FactFilter:
    """A filter on facts, as a clause of SQL about `{}` that may use `:when`."""

    clause: str
    when: datetime | None = None

    def about(self, table: str) -> str:
        """Return the clause for a table."""
        return self.clause.replace("{}", table)


@dataclass(frozen=True, slots=True)
class SimilarFacts:
    """Similar facts: their cosines by `seq`, and the floor below which a cosine is chance."""

    likeness: Mapping[int, float]
    floor: float = WEIGHTS.floor


NOTHING = SimilarFacts({})


@dataclass(frozen=True, slots=True)
class WordHits:
    """The word index for a query: the facts of each word, and the facts that lead by their sum.

    `forms`: spellings of the query's words.
    """

    terms: Terms
    postings: Mapping[str, Sequence[int]]
    size: int
    leading: Sequence[int]
    forms: Mapping[str, set[str]]


class SimilaritySource(Protocol):
    """A source of facts that are similar by embeddings."""

    async def most_similar(self, scope: str, query: Query, most: int) -> SimilarFacts:
        """Return the most similar live facts; none if embeddings are unavailable."""
        ...


def fitting(hits: Sequence[Hit], window: int) -> list[Hit]:
    """Return the best hits that fit into one message, at least one. `window`: tokens, or 0."""
    most = min(MOST_TOKENS, window // 12) if window else MOST_TOKENS
    kept: list[Hit] = []
    for hit in hits:
        most -= estimate(f"- {hit.fact.text}")
        if kept and most < 0:
            break
        kept.append(hit)
    return kept


class Search:
    """Searches the facts of one scope at a time; the scope is filtered when the index is read."""

    def __init__(
        self, database: Database, facts: Facts, meaning: SimilaritySource | None = None
    ) -> None:
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
        """Return the matching facts, best first; none if nothing matches (M-071).

        `when`: include facts that were true at that moment, by words (M-074). `awake`: without archived facts
        (M-060).
        """
        if most <= 0:
            return []
        await self._facts.lapse()
        alike = NOTHING
        archived = await self._archived_count(scope) if awake else 0
        with ungrouped():
            async with asyncio.TaskGroup() as group:
                looked_up = group.create_task(self._by_words(scope, query))
                asks = says_something(query.text) or query.before
                if self._meaning is not None and asks:  # another process embeds it meanwhile
                    most_alike = MOST_LEADING + min(archived, MOST_ARCHIVED)
                    alike = await self._meaning.most_similar(scope, query, most_alike)
        words = await self._without_archived(looked_up.result()) if archived else looked_up.result()
        truth = FactFilter(TRUE) if when is None else FactFilter(WAS_TRUE, when)
        truth = replace(truth, clause=f"{truth.clause} AND NOT {{}}.archived") if awake else truth
        return await self._found(scope, words, most, alike, truth)

    async def past(self, scope: str, query: Query, most: int) -> list[Hit]:
        """Return matching facts that are no longer true, best first, by words (M-074)."""
        ended = FactFilter("{}.retired_at IS NULL AND {}.ended")
        return await self._found(scope, await self._by_words(scope, query), most, NOTHING, ended)

    async def sharing(self, scope: str, texts: Sequence[str], most: int) -> list[list[int]]:
        """Return for each text the facts (`seq`) that share most of its words; some may have ended.

        The index is read once for all texts.
        """
        terms = [terms_of(Query(text)) for text in texts]
        words = list(dict.fromkeys(word for each in terms for word in each.all))
        postings, size = await self._postings(scope, words), await self._size(scope)
        return await asyncio.to_thread(
            lambda: [leading(each, postings, size, most) for each in terms]
        )

    async def _by_words(self, scope: str, query: Query) -> WordHits:
        terms = terms_of(query)
        postings = await self._postings(scope, terms.all)
        size = await self._size(scope)
        order = leading(terms, postings, size)
        return WordHits(terms, postings, size, order, forms(query.text))

    async def _archived_count(self, scope: str) -> int:
        """Count the archived facts of a scope."""
        query = "SELECT count(*) FROM facts WHERE scope = ? AND archived"
        return int((await self._database.scalars(query, (scope,)))[0])

    async def _without_archived(self, words: WordHits) -> WordHits:
        """Drop archived facts, which may outnumber the active ones."""
        seqs = sorted({seq for found in words.postings.values() for seq in found})
        query = "SELECT value FROM json_each(?) JOIN facts f ON f.seq = value WHERE f.archived"
        archived = set(await self._database.scalars(query, (json.dumps(seqs),)))
        postings = {
            word: [seq for seq in found if seq not in archived]
            for word, found in words.postings.items()
        }
        return replace(words, postings=postings, leading=leading(words.terms, postings, words.size))

    async def _found(
        self, scope: str, words: WordHits, most: int, alike: SimilarFacts, truth: FactFilter
    ) -> list[Hit]:
        beside = await self._beside(scope, {*words.leading, *alike.likeness}, truth)
        weights = replace(WEIGHTS, floor=alike.floor)
        scored = await asyncio.to_thread(
            fuse, words.terms, words.postings, words.size, alike.likeness, beside, weights
        )
        return await self._read(scored[: most * EQUALS], most, words.forms)

    async def _size(self, scope: str) -> int:
        """Return the approximate number of facts; counted again when it has grown by a twentieth."""
        (newest,) = await self._database.scalars("SELECT coalesce(max(seq), 0) FROM facts")
        known = self._sizes.get(scope)
        if known is None or newest - known[0] > known[1] // 20:
            known = self._sizes[scope] = newest, max(FEWEST, await self._facts.count(scope))
        return known[1]

    async def _postings(self, scope: str, words: Sequence[str]) -> dict[str, list[int]]:
        """Return for each word the newest facts of the scope that have it."""
        wanted = json.dumps({word: match(scope_word(scope), word) for word in words})
        asked = {"terms": wanted, "most": MOST_POSTINGS}
        await self._facts.words.ensure_complete(self._database)
        try:
            rows = await self._database.rows(POSTINGS, asked)
        except Error as problem:
            if not is_broken(problem):
                raise
            async with self._database.transaction() as tx:
                await self._facts.words.repair(tx, problem)
            rows = await self._database.rows(POSTINGS, asked)
        return {row["word"]: json.loads(row["seqs"]) for row in rows}

    async def _beside(self, scope: str, seqs: Iterable[int], truth: FactFilter) -> list[Candidate]:
        """Return these facts, and the ones learnt right before and after each of them."""
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
            less = ENDING_PENALTY * each.words * ending_mismatch(asked, fact.text)
            hits.append(Hit(fact, each.score - less, each.beside))
        hits.sort(key=lambda hit: -(hit.score or 0.0))
        apart = distinct(hits, lambda hit: (hit.fact.speaker, hit.fact.text))
        return list(islice(apart, most))
