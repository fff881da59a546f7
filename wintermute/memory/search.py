"""Finds facts by words, and by meaning where that is to be had: one function for whoever asks.

The prompt, the tool, the commands in a chat and on the command line ask here, so the same words
find the same facts everywhere.
"""

import asyncio
from collections.abc import Sequence
from datetime import datetime

from wintermute.clock import stamp
from wintermute.db import Database, Row
from wintermute.llm.tokens import estimate
from wintermute.memory.fact import Hit, fact_of
from wintermute.memory.facts import Facts
from wintermute.memory.index import scope_word
from wintermute.memory.ranking import Query, match, query_words

MOST_TOKENS = 1_500
"""Of the memories that come with one message; at most a twelfth of the window."""


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

    def __init__(self, database: Database, facts: Facts) -> None:
        self._database = database
        self._facts = facts

    async def find(
        self, scope: str, query: Query, most: int, when: datetime | None = None
    ) -> list[Hit]:
        """The facts that fit, best first; nothing where nothing does (M-071).

        `when`: also among what was true at that moment (M-074).
        """
        await self._facts.lapse()
        if most <= 0:
            return []
        terms = query_words(query.text)
        if not terms:
            return []
        rows = await self._by_words(scope, match(terms), when)
        return await asyncio.to_thread(_hits, rows[:most])

    async def past(self, scope: str, query: Query, most: int) -> list[Hit]:
        """What fits of what is no longer true, best first, by words (M-074)."""
        terms = query_words(query.text)
        if most <= 0 or not terms:
            return []
        rows = await self._matching(scope, match(terms), "f.ended")
        return await asyncio.to_thread(_hits, rows[:most])

    async def _by_words(self, scope: str, expression: str, when: datetime | None) -> list[Row]:
        true = (
            "NOT f.ended"
            if when is None
            else "f.valid_from <= :when AND (f.valid_to IS NULL OR f.valid_to > :when)"
        )
        return await self._matching(scope, expression, true, when)

    async def _matching(
        self, scope: str, expression: str, which: str, when: datetime | None = None
    ) -> list[Row]:
        return await self._database.rows(
            "SELECT f.*, -bm25(facts_fts, 0, 1) AS score FROM facts_fts"
            f" JOIN facts f ON f.seq = facts_fts.rowid WHERE facts_fts MATCH :match AND {which}"
            " ORDER BY bm25(facts_fts, 0, 1), f.seq DESC LIMIT 200",
            {
                "match": f"scope : {scope_word(scope)} AND words : ({expression})",
                "when": stamp(when) if when else None,
            },
        )


def _hits(rows: Sequence[Row]) -> list[Hit]:
    best = max((row["score"] for row in rows), default=1.0) or 1.0
    return [Hit(fact_of(row), row["score"] / best) for row in rows]
