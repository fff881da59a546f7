"""Similarity by embeddings: finds facts similar to a question, and gives each fact its vectors.

A fact is stored without vectors; the job `embeddings` makes them. Whatever fails here, the search by words goes on
(M-008, M-022, M-023), and the status says so.
"""

import asyncio
import hashlib
import json
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from wintermute.db import Database, Row, Transaction
from wintermute.errors import EmbedderNotReady, EmbeddingsUnavailable, MemoryUnavailable
from wintermute.health.health import Health
from wintermute.llm.calibration import calibrated, to_embedded_scale
from wintermute.llm.embedded import MODEL
from wintermute.llm.vector import Embedder, Vector, cosine_similarity, vector
from wintermute.memory.ranking import WEIGHTS, Query, blended, embedded_text
from wintermute.memory.search import NOTHING, SimilarFacts
from wintermute.memory.vectors import Embedded, Space, Spaces, VectorIndex

PART = "meaning"
"""Name of this part in the status."""
ALONE = "found by words alone"
BATCH = 128
"""Facts whose vectors are made in one step."""
MOST_CACHED = 16
"""Query vectors that are cached: the texts of a message are the same in all its turns."""
CANDIDATES = 0.4
"""Cosine distance up to which texts of the embedded model may be on the same topic (M-033)."""
EMBEDDINGS_JOB = "embeddings"
"""Name of the job that makes vectors."""

log = logging.getLogger(__name__)

BEFORE = """
SELECT f.seq, f.id, f.scope, f.text, f.speaker, (
    SELECT p.seq FROM facts p WHERE p.scope = f.scope AND p.place = f.place - 1
    AND p.retired_at IS NULL AND NOT p.ended) AS before,
    (SELECT n.speaker FROM facts n WHERE n.scope = f.scope AND n.place = f.place + 1) AS next
FROM facts f WHERE f.seq IN {}
"""


@dataclass(frozen=True, slots=True)
class _FactTexts:
    """The texts to embed for a fact."""

    seq: int
    id: str
    scope: str
    texts: tuple[str, ...]

    @property
    def digest(self) -> bytes:
        return hashlib.blake2b("\0".join(self.texts).encode(), digest_size=16).digest()


class EmbeddingSearch:
    """Uses the embedder and the vector index."""

    def __init__(
        self, database: Database, index: VectorIndex, embedder: Embedder, health: Health
    ) -> None:
        self._database = database
        self._index = index
        self._embedder = embedder
        self._health = health
        self._spaces = Spaces(database)
        self._asked: dict[str, Vector | None] = {}
        self._making = asyncio.Lock()
        self._failed_before = True
        """True while the status may hold a note of a failed search, also from an earlier run."""

    async def ready(self, seconds: float) -> None:
        """Wait for the embedder, for at most that long; for callers that ask once and then exit."""
        if await self._spaces.latest_of(self._embedder.name) is not None:
            await self._embedder.warm(seconds)

    async def most_similar(self, scope: str, query: Query, most: int) -> SimilarFacts:
        """Return the most similar facts; none, and a note in the status, if embeddings are unavailable."""
        try:
            found = await self._likest(scope, query, most)
        except EmbedderNotReady as problem:
            log.info("found by words alone reason=%s", problem)
            return NOTHING
        except MemoryUnavailable as problem:
            log.warning("found by words alone reason=%s", problem)
            self._failed_before = True
            await self._health.note(PART, "warn", f"{ALONE}: {problem}")
            return NOTHING
        await self._clear_note()
        return found

    async def _clear_note(self) -> None:
        """Clear the note of a failed search; a note of missing vectors stays."""
        if not self._failed_before:
            return
        self._failed_before = False
        part = await self._health.part(PART)
        if part is not None and part.detail.startswith(ALONE):
            await self._health.note(PART, "ok", f"by {self._embedder.name}")

    async def _likest(self, scope: str, query: Query, most: int) -> SimilarFacts:
        space = await self._spaces.latest_of(self._embedder.name)
        if space is None and await self._database.exists("SELECT 1 FROM embedding_spaces"):
            raise MemoryUnavailable(f"the vectors are not of {self._embedder.name} yet")
        if space is None or space.floor is None:
            return NOTHING  # nothing has been embedded yet, or all texts are alike to this model
        asked = await self._vector(query)
        if asked is None:
            return NOTHING
        near = await self._index.nearest(space, scope, asked.values, most)
        floor = WEIGHTS.floor if self._embedder.name == MODEL else space.floor
        return SimilarFacts({each.seq: each.likeness for each in near}, floor)

    async def _vector(self, query: Query) -> Vector | None:
        """Return the vector of a query: the message and, with less weight, the reply before it."""
        missing = [
            text for text in (query.text, query.before) if text.strip() and text not in self._asked
        ]
        if missing:
            made = await self._embedder.embed_query(missing)
            for text, each in zip(missing, made, strict=True):
                self._asked[text] = each
            while len(self._asked) > MOST_CACHED:
                del self._asked[next(iter(self._asked))]
        said, before = self._asked.get(query.text), self._asked.get(query.before)
        if said is None or before is None or said.dimension != before.dimension:
            return said
        return vector(blended(said.numbers, before.numbers))

    async def near(
        self, scope: str, texts: Sequence[str], most: int, distance: float
    ) -> list[dict[int, float]] | None:
        """Return for each text its `most` nearest live facts, as `seq` → cosine.

        Only facts within the distance count; all texts are embedded in one call (M-032). None: this model cannot
        separate texts. Raises: MemoryUnavailable.
        """
        space = await self._spaces.latest_of(self._embedder.name)
        least = self._least(space, distance)
        if space is None or least is None:
            return None
        vectors = await self._embedder.embed_query(texts)
        found = [
            await self._index.nearest(space, scope, each.values, most) if each else []
            for each in vectors
        ]
        return [{one.seq: one.likeness for one in near if one.likeness >= least} for near in found]

    async def alike(
        self, texts: Sequence[str], others: Sequence[str], distance: float
    ) -> list[list[bool]] | None:
        """Return for each text which of the `others` lie within the distance, in one call (M-038).

        None: this model cannot separate texts. Raises: MemoryUnavailable.
        """
        least = self._least(await self._spaces.latest_of(self._embedder.name), distance)
        if least is None:
            return None
        vectors = await self._embedder.embed_document([*texts, *others])
        mine, theirs = vectors[: len(texts)], vectors[len(texts) :]
        return await asyncio.to_thread(
            lambda: [
                [
                    one is not None and each is not None and cosine_similarity(one, each) >= least
                    for each in theirs
                ]
                for one in mine
            ]
        )

    async def comparison(self, texts: Sequence[str]) -> Callable[[int, int], float] | None:
        """Return a function for the similarity of two texts, by index, on the embedded model's scale.

        All are embedded in one call. None: this model cannot separate texts. Raises: MemoryUnavailable.
        """
        space = await self._spaces.latest_of(self._embedder.name)
        ours = self._embedder.name == MODEL
        if not ours and (space is None or space.same is None or space.related is None):
            return None
        vectors = await self._embedder.embed_document(texts)

        def like(one: int, other: int) -> float:
            mine, theirs = vectors[one], vectors[other]
            if mine is None or theirs is None:
                return 0.0
            found = cosine_similarity(mine, theirs)
            if ours or space is None or space.same is None or space.related is None:
                return found
            return to_embedded_scale(found, space.same, space.related)

        return like

    def _least(self, space: Space | None, distance: float) -> float | None:
        """Return the similarity of texts that may be on the same topic; calibrated for foreign models."""
        if self._embedder.name == MODEL:
            return 1 - max(distance, CANDIDATES)
        if space is None or space.related is None:
            return None
        return min(space.related, 1 - distance)

    async def aclose(self) -> None:
        """Close processes and connections."""
        await self._embedder.aclose()
        await self._index.aclose()

    async def make(self, *, until: Callable[[int], None] = lambda _: None) -> int:
        """Make all missing vectors; return the number of facts. `until` is called with the number so far.

        Raises: MemoryUnavailable; vectors made so far are kept.
        """
        async with self._making:
            if (
                await self._spaces.latest_of(self._embedder.name) is None
                and not await self.missing_counts()
            ):
                return 0  # without facts the embedder need not start
            space, made = await self._space(), 0
            before: int | None = None
            while lacking := await self._index.missing(space, BATCH, before):
                before = min(fact.seq for fact in lacking)
                made += await self._step(space, [fact.seq for fact in lacking])
                until(made)
            async with self._database.transaction() as tx:
                complete = await self._index.complete(tx, space)
            await self._index.settle()
            if complete:
                await self._health.note(PART, "ok", f"by {self._embedder.name}")
            return made

    async def rebuild(self, until: Callable[[int], None]) -> int:
        """Drop wrong vectors, and make missing ones."""
        await self._index.rebuild(await self._space())
        return await self.make(until=until)

    async def missing_counts(self) -> dict[str, int]:
        """Count the facts of each scope that lack vectors; for a new model all of them."""
        space = await self._spaces.latest_of(self._embedder.name)
        if space is not None:
            return await self._index.missing_counts(space)
        rows = await self._database.rows(
            "SELECT scope, count(*) AS n FROM facts WHERE retired_at IS NULL AND NOT ended"
            " GROUP BY scope"
        )
        return {row["scope"]: int(row["n"]) for row in rows}

    async def former(self) -> str:
        """Return the model whose vectors are being replaced; "" if it did not change (M-022)."""
        return await self._spaces.former(self._embedder.name)

    async def probe(self) -> str:
        """Test the index and the embedder once; return what answered. Raises: MemoryUnavailable."""
        await self._index.check_usable()
        (made,) = await self._embedder.embed_document(["hello"])
        if made is None:
            raise EmbeddingsUnavailable(f"{self._embedder.name} gives no vector")
        return f"{self._embedder.name}, {made.dimension} numbers each"

    async def _space(self) -> Space:
        """Return the vector space of the embedder; a new one is created after a first embedding."""
        known = await self._spaces.latest_of(self._embedder.name)
        if known is not None:
            return known
        [first] = await self._embedder.embed_document(["hello"])
        if first is None:
            raise EmbeddingsUnavailable(f"{self._embedder.name} gives no vector")
        means = await calibrated(self._embedder)
        async with self._database.transaction() as tx:
            space = await self._spaces.enter(tx, self._embedder.name, first.dimension)
            if means is None:
                log.warning(
                    "model cannot separate texts, searching by words alone model=%s", space.model
                )
                return space
            await self._spaces.calibrate(tx, space, means.same, means.related, means.floor)
        return replace(space, same=means.same, related=means.related, floor=means.floor)

    async def _step(self, space: Space, seqs: Sequence[int]) -> int:
        """Embed some facts, and store the vectors of those that did not change meanwhile."""
        facts = await self._fact_texts(seqs)
        texts = [text for each in facts for text in each.texts]
        vectors = iter(await self._embedder.embed_document(texts) if texts else [])
        ready = [(each, [next(vectors) for _ in each.texts]) for each in facts]
        by_scope: dict[str, list[Embedded]] = {}
        for each, made in ready:
            values = tuple(one.values for one in made if one is not None)
            by_scope.setdefault(each.scope, []).append(
                Embedded(each.seq, each.id, each.digest, values)
            )
        for scope, entries in by_scope.items():
            await self._index.send(space, scope, entries)
            async with self._database.transaction() as tx:
                now = {each.seq: each.digest for each in await self._fact_texts(seqs, tx)}
                same = [entry for entry in entries if now.get(entry.seq) == entry.digest]
                await self._index.put(tx, space, scope, same)
        return len(facts)

    async def _fact_texts(
        self, seqs: Iterable[int], tx: Transaction | None = None
    ) -> list[_FactTexts]:
        """Return the texts to embed for these facts: with their speakers and the messages before."""
        source, listed = tx or self._database, "(SELECT value FROM json_each(?))"
        rows = await source.rows(BEFORE.format(listed), (json.dumps(list(seqs)),))
        before = [row["before"] for row in rows if row["before"] is not None]
        found = await source.rows(
            f"SELECT seq, text, speaker FROM facts WHERE seq IN {listed}",
            (json.dumps(before),),
        )
        earlier = {row["seq"]: row for row in found}
        return await asyncio.to_thread(
            lambda: [_fact_texts(row, earlier.get(row["before"])) for row in rows]
        )


def _fact_texts(row: Row, earlier: Row | None) -> _FactTexts:
    before = ""
    if earlier is not None:
        before = f"{earlier['speaker']}: {earlier['text']}"
    texts = embedded_text(row["text"], row["speaker"] or "", before, row["next"] or "")
    return _FactTexts(int(row["seq"]), row["id"], row["scope"], texts)
