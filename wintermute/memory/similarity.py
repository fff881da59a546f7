"""Similarity of the facts of a scope, in pairs: by embeddings, or by words where there are none.

Only new facts are compared, each with its nearest neighbours, so that a night's cost grows with what is new. Facts
of two scopes are never compared, nor are untrusted facts with trusted ones.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import combinations

from wintermute.db import Database
from wintermute.errors import MemoryUnavailable
from wintermute.memory.embedding_search import EmbeddingSearch
from wintermute.memory.fact import Fact
from wintermute.memory.facts import Facts
from wintermute.memory.lexical_overlap import similar_in_words
from wintermute.memory.related import WARMING
from wintermute.memory.review import comparable, uncompared
from wintermute.memory.search import Search
from wintermute.memory.values import says_change

STEP = 40
"""New facts compared in one batch."""
NEAREST = 10
"""Nearest neighbours compared with each new fact."""
BESIDE = 10
"""Extra neighbours to read, as some are archived or differ in taint."""

UNAVAILABLE = "embeddings are unavailable now"
NO_VECTORS = "memories have no vectors yet, and a dry run makes none: a night may find more alike"

FactPair = tuple[str, str]
log = logging.getLogger(__name__)

Neighbourhood = tuple[Fact, ...]
"""A new fact, followed by its neighbours, the nearest first."""


@dataclass(frozen=True, slots=True)
class ComparedFacts:
    """The new facts, oldest first, with their neighbours and the similarity of each pair.

    `pairs`: from the least similarity that counts; two old facts are a pair only as neighbours of the same new one.
    `note`: a remark for the report. `more`: new facts left for the next night. `by_words`: new facts to be compared
    again once embeddings are available.
    """

    facts: Mapping[str, Fact]
    new: tuple[str, ...]
    pairs: Mapping[FactPair, float]
    note: str = ""
    more: int = 0
    by_words: frozenset[str] = frozenset()
    asked: set[str] = field(default_factory=set)
    """Digests of the questions asked about these facts, whether or not the answer was used."""

    def ranked(self) -> list[FactPair]:
        """Return all pairs, the most similar first."""
        return sorted(self.pairs, key=lambda pair: (-self.pairs[pair], pair))


def pair_of(one: str, other: str) -> FactPair:
    """Return two ids as a pair that does not depend on their order."""
    return (one, other) if one < other else (other, one)


class FactSimilarity:
    """Compares the new facts of a scope once a night, for all steps that need the result."""

    def __init__(
        self,
        database: Database,
        facts: Facts,
        meaning: EmbeddingSearch | None,
        least: float,
        same: float,
    ) -> None:
        """`least`: similarity from which two facts count as a pair; `same`: similarity of equal statements."""
        self._database = database
        self._facts = facts
        self._meaning = meaning
        self._words = Search(database, facts)
        self._least = least
        self._same = same
        self._known: ComparedFacts | None = None

    async def compared(self, scope: str, began: datetime, *, dry: bool = False) -> ComparedFacts:
        """Return the facts to compare in this scope, computed at the first call. `dry`: nothing is written."""
        if self._known is None:
            self._known = await self._compare(scope, began, dry)
        return self._known

    async def _compare(self, scope: str, began: datetime, dry: bool) -> ComparedFacts:
        if not dry:
            await self._facts.lapse()
        found = await uncompared(self._database, scope, began)
        missing = (await self._meaning.missing_counts()).get(scope, 0) if self._meaning else 0
        if not found.facts and (missing or not found.by_words):
            return ComparedFacts({}, (), {})  # the job that makes the missing vectors tries again
        why = await self._why_by_words(dry)
        facts: dict[str, Fact] = {}
        pairs: dict[FactPair, float] = {}
        new, worded = list[str](), list[str]()
        known = {fact.id for fact in found.by_words}
        wanted = [*found.facts, *found.by_words]
        for n in range(0, len(wanted), STEP):
            part: Sequence[Fact] = wanted[n : n + STEP]
            stars = [] if why else await self._by_meaning(scope, part, began)
            if not stars:
                why = why or UNAVAILABLE
                part = [fact for fact in part if fact.id not in known]
                stars = await self._by_words(scope, part, began)
                worded += [fact.id for fact in part]
            new += [fact.id for fact in part]
            for star, alike in stars:
                facts |= {fact.id: fact for fact in star}
                pairs |= alike
        if self._meaning is None:
            worded = []
        notes = [f"compared by words alone: {why}"] if worded else []
        if dry and missing and not why:
            notes.append(f"{missing} {NO_VECTORS}")
        if found.more:
            notes.append(f"{found.more} new memories wait for the next night")
        return ComparedFacts(
            facts, tuple(new), pairs, "; ".join(notes), found.more, frozenset(worded)
        )

    async def _why_by_words(self, dry: bool) -> str:
        """Return why embeddings cannot be used now, or "". Missing vectors are computed, unless `dry`."""
        if self._meaning is None:
            return "there is no embedder"
        try:
            await self._meaning.ready(WARMING)
            if not dry:
                await self._meaning.make()
        except MemoryUnavailable as problem:
            log.warning("compared by words alone reason=%s", problem)
            return str(problem)
        return ""

    async def _by_meaning(
        self, scope: str, new: Sequence[Fact], began: datetime
    ) -> list[tuple[Neighbourhood, dict[FactPair, float]]]:
        """Return each new fact with its neighbours, or nothing while embeddings are unavailable."""
        if self._meaning is None:
            return []
        try:
            texts = [fact.text for fact in new]
            found = await self._meaning.near(scope, texts, NEAREST + BESIDE, 1 - self._least)
            if found is None:
                return []
            stars = await self._stars(scope, new, found, began)
            by_words = await self._words.sharing(scope, texts, NEAREST + BESIDE)
            more = await self._stars(scope, new, by_words, began)
            stars = [_with_handed_over(*each) for each in zip(stars, more, strict=True)]
            shown = list({fact.id: fact for star in stars for fact in star}.values())
            likeness = await self._meaning.comparison([fact.text for fact in shown])
        except MemoryUnavailable as problem:
            log.warning("compared by words alone reason=%s", problem)
            return []
        if likeness is None:
            return []
        place = {fact.id: n for n, fact in enumerate(shown)}

        def like(one: Fact, other: Fact) -> float:
            return max(likeness(place[one.id], place[other.id]), self._changed(one, other))

        return await asyncio.to_thread(self._compared_in, stars, like)

    async def _by_words(
        self, scope: str, new: Sequence[Fact], began: datetime
    ) -> list[tuple[Neighbourhood, dict[FactPair, float]]]:
        texts = [fact.text for fact in new]
        found = await self._words.sharing(scope, texts, NEAREST + BESIDE)
        stars = await self._stars(scope, new, found, began)
        return await asyncio.to_thread(self._compared_in, stars, self._shared)

    def _shared(self, one: Fact, other: Fact) -> float:
        return max(similar_in_words(one.text, other.text), self._changed(one, other))

    def _changed(self, one: Fact, other: Fact) -> float:
        """Return the least similarity if one text says that the content of the other changes (F-065)."""
        return self._least if says_change(one.text, other.text) else 0.0

    def _compared_in(
        self, stars: Sequence[Neighbourhood], like: Callable[[Fact, Fact], float]
    ) -> list[tuple[Neighbourhood, dict[FactPair, float]]]:
        return [(star, similar_pairs(star, like, self._least, self._same)) for star in stars]

    async def _stars(
        self, scope: str, new: Sequence[Fact], found: Sequence[Iterable[int]], began: datetime
    ) -> list[Neighbourhood]:
        seqs = {seq for near in found for seq in near}
        known = await comparable(self._database, scope, seqs, began)
        return [
            (fact, *_others(fact, [known[seq] for seq in near if seq in known]))
            for fact, near in zip(new, found, strict=True)
        ]


def similar_pairs(
    star: Neighbourhood, like: Callable[[Fact, Fact], float], least: float, same: float
) -> dict[FactPair, float]:
    """Return the similarity of the new fact to its neighbours, and among those that say the same as it."""
    new, *others = star
    near = {fact.id: like(new, fact) for fact in others}
    pairs = {pair_of(new.id, name): value for name, value in near.items() if value >= least}
    for one, other in combinations([fact for fact in others if near[fact.id] >= same], 2):
        if (value := like(one, other)) >= least:
            pairs[pair_of(one.id, other.id)] = value
    return pairs


def _others(new: Fact, near: Sequence[Fact]) -> list[Fact]:
    return [fact for fact in near if fact.id != new.id and fact.taint == new.taint][:NEAREST]


def _with_handed_over(star: Neighbourhood, more: Neighbourhood) -> Neighbourhood:
    """Add neighbours that share a word, if one of the two says that something changes."""
    new, *near = star
    known = {fact.id for fact in near}
    return (*star, *(f for f in more[1:] if f.id not in known and says_change(new.text, f.text)))
