"""Facts that may be on the same topic as some texts: by embeddings if there are any, else by words."""

import asyncio
import logging
from collections.abc import Collection, Iterable, Sequence

from wintermute.config.schema import Memory
from wintermute.db import Database
from wintermute.errors import MemoryUnavailable
from wintermute.memory.embedding_search import EmbeddingSearch
from wintermute.memory.fact import Fact
from wintermute.memory.facts import Facts
from wintermute.memory.lexical_overlap import shared_words
from wintermute.memory.search import Search

SHARED = 0.5
"""Share of common words from which two texts are near, without embeddings (M-041)."""
BESIDE = 10
"""Extra facts to read, as some are of the batch itself or differ in taint."""
WARMING = 30.0
"""Seconds to wait for an embedder that had stopped."""

log = logging.getLogger(__name__)


class RelatedFacts:
    """Finds related facts in one scope, untrusted and trusted ones separately."""

    def __init__(
        self, database: Database, facts: Facts, meaning: EmbeddingSearch | None, memory: Memory
    ) -> None:
        self._facts = facts
        self._meaning = meaning
        self._words = Search(database, facts)
        self._most = memory.merge_top_k
        self._distance = memory.merge_distance_cutoff

    async def find(
        self, scope: str, texts: Sequence[str], beside: Collection[str], *, taint: bool
    ) -> list[list[Fact]]:
        """Return for each text the facts near it, except the ids `beside` (M-033).

        Facts with an end are left out: a merged text would say that all of it lasts.
        """
        reach = self._most + len(beside) + BESIDE
        found = await self._by_meaning(scope, texts, reach)
        if found is None:
            found = await self._by_words(scope, texts, reach)
        return [
            [
                fact
                for fact in near
                if fact.id not in beside and fact.taint == taint and fact.valid_to is None
            ][: self._most]
            for near in found
        ]

    async def near(self, texts: Sequence[str], others: Sequence[str]) -> list[list[bool]]:
        """Return for each text which of the `others` are near it."""
        if self._meaning is not None and texts and others:
            try:
                found = await self._meaning.alike(texts, others, self._distance)
            except MemoryUnavailable as problem:
                log.warning("compared by words alone reason=%s", problem)
                found = None
            if found is not None:
                return found
        shared = await asyncio.to_thread(shared_words, texts, others)
        return [[part >= SHARED for part in parts] for parts in shared]

    async def _by_meaning(
        self, scope: str, texts: Sequence[str], most: int
    ) -> list[list[Fact]] | None:
        if self._meaning is None:
            return None
        await self._meaning.ready(WARMING)
        try:
            found = await self._meaning.near(scope, texts, most, self._distance)
        except MemoryUnavailable as problem:
            log.warning("related by words alone reason=%s", problem)
            return None
        if found is None:
            return None
        return await self._numbered(scope, found)

    async def _by_words(self, scope: str, texts: Sequence[str], most: int) -> list[list[Fact]]:
        await self._facts.lapse()
        found = await self._numbered(scope, await self._words.sharing(scope, texts, most))
        return await asyncio.to_thread(
            lambda: [_alike(text, facts) for text, facts in zip(texts, found, strict=True)]
        )

    async def _numbered(self, scope: str, found: Sequence[Iterable[int]]) -> list[list[Fact]]:
        known = await self._facts.numbered(scope, {seq for near in found for seq in near})
        return [[known[seq] for seq in near if seq in known] for near in found]


def _alike(text: str, facts: Sequence[Fact]) -> list[Fact]:
    [shared] = shared_words([text], [fact.text for fact in facts])
    return [fact for fact, part in zip(facts, shared, strict=True) if part >= SHARED]
