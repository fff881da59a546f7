"""Meaning: which facts are alike to a question, and that each fact gets its vectors in time.

A fact is stored without them; they are owed and made by the work `embeddings`. Whatever fails here,
words go on finding (M-008, M-022, M-023), and the status says so.
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
from wintermute.llm.calibration import calibrated, on_our_scale
from wintermute.llm.embedded import MODEL
from wintermute.llm.vector import Embedder, Vector, likeness, vector
from wintermute.memory.ranking import WEIGHTS, Query, blended, embedded_text
from wintermute.memory.search import NOTHING, Alike
from wintermute.memory.vectors import Embedded, Space, Spaces, VectorIndex

PART = "meaning"
"""What the status calls it."""
ALONE = "found by words alone"
BATCH = 128
"""Facts whose vectors are made in one step."""
ASKED = 16
"""Questions whose vectors are kept: those of a message are the same however many turns it takes."""
CANDIDATES = 0.4
"""The cosine distance within which the embedded model finds what may be about the same (M-033)."""
OWED = "embeddings"
"""The name of the work that makes vectors."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Told:
    """A fact with what is embedded of it."""

    seq: int
    id: str
    scope: str
    texts: tuple[str, ...]

    @property
    def digest(self) -> bytes:
        return hashlib.blake2b("\0".join(self.texts).encode(), digest_size=16).digest()


class Meaning:
    """Asks the embedder, and the index of vectors."""

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
        self._doubted = True
        """Whether a note of a search that failed may stand; one of an earlier run as well."""

    async def ready(self, seconds: float) -> None:
        """Wait until it can be asked, or for so long: for whoever asks once and then leaves."""
        if await self._spaces.latest_of(self._embedder.name) is not None:
            await self._embedder.warm(seconds)

    async def likest(self, scope: str, query: Query, most: int) -> Alike:
        """The likest facts; nothing, and a note of it, where they cannot be had now."""
        try:
            found = await self._likest(scope, query, most)
        except EmbedderNotReady as problem:
            log.info("found by words alone reason=%s", problem)
            return NOTHING
        except MemoryUnavailable as problem:
            log.warning("found by words alone reason=%s", problem)
            self._doubted = True
            await self._health.note(PART, "warn", f"{ALONE}: {problem}")
            return NOTHING
        await self._over()
        return found

    async def _over(self) -> None:
        """What was noted of a search is not so any more; what is owed may be."""
        if not self._doubted:
            return
        self._doubted = False
        part = await self._health.part(PART)
        if part is not None and part.detail.startswith(ALONE):
            await self._health.note(PART, "ok", f"by {self._embedder.name}")

    async def _likest(self, scope: str, query: Query, most: int) -> Alike:
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
        return Alike({each.seq: each.likeness for each in near}, floor)

    async def _vector(self, query: Query) -> Vector | None:
        """What is looked for, the message and, weighing less, the reply before it."""
        missing = [
            text for text in (query.text, query.before) if text.strip() and text not in self._asked
        ]
        if missing:
            made = await self._embedder.embed_query(missing)
            for text, each in zip(missing, made, strict=True):
                self._asked[text] = each
            while len(self._asked) > ASKED:
                del self._asked[next(iter(self._asked))]
        said, before = self._asked.get(query.text), self._asked.get(query.before)
        if said is None or before is None or said.dimension != before.dimension:
            return said
        return vector(blended(said.numbers, before.numbers))

    async def near(
        self, scope: str, texts: Sequence[str], most: int, distance: float
    ) -> list[dict[int, float]] | None:
        """For each text the numbers of the likest live facts, `most` of them, and how like they are.

        Only those within the distance; all texts are embedded in one call (M-032). None: this
        model tells no texts apart. Raises: MemoryUnavailable.
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
        """Which of the `others` lie within the distance of each text, in one call (M-038).

        None: this model tells no texts apart. Raises: MemoryUnavailable.
        """
        least = self._least(await self._spaces.latest_of(self._embedder.name), distance)
        if least is None:
            return None
        vectors = await self._embedder.embed_document([*texts, *others])
        mine, theirs = vectors[: len(texts)], vectors[len(texts) :]
        return await asyncio.to_thread(
            lambda: [
                [
                    one is not None and each is not None and likeness(one, each) >= least
                    for each in theirs
                ]
                for one in mine
            ]
        )

    async def comparison(self, texts: Sequence[str]) -> Callable[[int, int], float] | None:
        """How alike two of the texts are, by their places, as the embedded model would say it.

        All are embedded in one call. None: this model tells no texts apart. Raises:
        MemoryUnavailable.
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
            found = likeness(mine, theirs)
            if ours or space is None or space.same is None or space.related is None:
                return found
            return on_our_scale(found, space.same, space.related)

        return like

    def _least(self, space: Space | None, distance: float) -> float | None:
        """The likeness from which texts may be about the same; of a model that is not ours as learnt."""
        if self._embedder.name == MODEL:
            return 1 - max(distance, CANDIDATES)
        if space is None or space.related is None:
            return None
        return min(space.related, 1 - distance)

    async def aclose(self) -> None:
        """Let go of processes and connections."""
        await self._embedder.aclose()
        await self._index.aclose()

    async def make(self, *, until: Callable[[int], None] = lambda _: None) -> int:
        """Make all vectors that are owed; how many facts. `until` is told how many so far.

        Raises: MemoryUnavailable; what was made stays.
        """
        async with self._making:
            if await self._spaces.latest_of(self._embedder.name) is None and not await self.owed():
                return 0  # there is nothing, so nobody needs to be started
            space, made = await self._space(), 0
            before: int | None = None
            while owed := await self._index.missing(space, BATCH, before):
                before = min(fact.seq for fact in owed)
                made += await self._step(space, [fact.seq for fact in owed])
                until(made)
            async with self._database.transaction() as tx:
                complete = await self._index.complete(tx, space)
            await self._index.settle()
            if complete:
                await self._health.note(PART, "ok", f"by {self._embedder.name}")
            return made

    async def rebuild(self, until: Callable[[int], None]) -> int:
        """Drop what is wrong, and make what is missing."""
        await self._index.rebuild(await self._space())
        return await self.make(until=until)

    async def owed(self) -> dict[str, int]:
        """How many facts of each scope lack vectors; of a model that was never asked all."""
        space = await self._spaces.latest_of(self._embedder.name)
        if space is not None:
            return await self._index.owed(space)
        rows = await self._database.rows(
            "SELECT scope, count(*) AS n FROM facts WHERE retired_at IS NULL AND NOT ended"
            " GROUP BY scope"
        )
        return {row["scope"]: int(row["n"]) for row in rows}

    async def former(self) -> str:
        """The model whose vectors are being replaced; "": it is the same as before (M-022)."""
        return await self._spaces.former(self._embedder.name)

    async def probe(self) -> str:
        """Ask the index and the embedder once; what answered. Raises: MemoryUnavailable."""
        await self._index.prove_usable()
        (made,) = await self._embedder.embed_document(["hello"])
        if made is None:
            raise EmbeddingsUnavailable(f"{self._embedder.name} gives no vector")
        return f"{self._embedder.name}, {made.dimension} numbers each"

    async def _space(self) -> Space:
        """That of the embedder; its dimension is known once it has embedded something."""
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
                log.warning("model tells no texts apart, words alone model=%s", space.model)
                return space
            await self._spaces.calibrate(tx, space, means.same, means.related, means.floor)
        return replace(space, same=means.same, related=means.related, floor=means.floor)

    async def _step(self, space: Space, seqs: Sequence[int]) -> int:
        """Embed some facts, and store that for those that are still the same."""
        told = await self._told(seqs)
        texts = [text for each in told for text in each.texts]
        vectors = iter(await self._embedder.embed_document(texts) if texts else [])
        ready = [(each, [next(vectors) for _ in each.texts]) for each in told]
        by_scope: dict[str, list[Embedded]] = {}
        for each, made in ready:
            values = tuple(one.values for one in made if one is not None)
            by_scope.setdefault(each.scope, []).append(
                Embedded(each.seq, each.id, each.digest, values)
            )
        for scope, entries in by_scope.items():
            await self._index.send(space, scope, entries)
            async with self._database.transaction() as tx:
                now = {each.seq: each.digest for each in await self._told(seqs, tx)}
                same = [entry for entry in entries if now.get(entry.seq) == entry.digest]
                await self._index.put(tx, space, scope, same)
        return len(told)

    async def _told(self, seqs: Iterable[int], tx: Transaction | None = None) -> list[_Told]:
        """What is embedded of these facts: who said them, and what stood before."""
        source, listed = tx or self._database, "(SELECT value FROM json_each(?))"
        rows = await source.rows(BEFORE.format(listed), (json.dumps(list(seqs)),))
        before = [row["before"] for row in rows if row["before"] is not None]
        found = await source.rows(
            f"SELECT seq, text, speaker FROM facts WHERE seq IN {listed}",
            (json.dumps(before),),
        )
        earlier = {row["seq"]: row for row in found}
        return await asyncio.to_thread(
            lambda: [_told(row, earlier.get(row["before"])) for row in rows]
        )


def _told(row: Row, earlier: Row | None) -> _Told:
    before = ""
    if earlier is not None:
        before = f"{earlier['speaker']}: {earlier['text']}"
    texts = embedded_text(row["text"], row["speaker"] or "", before, row["next"] or "")
    return _Told(int(row["seq"]), row["id"], row["scope"], texts)


BEFORE = """
SELECT f.seq, f.id, f.scope, f.text, f.speaker, (
    SELECT p.seq FROM facts p WHERE p.scope = f.scope AND p.place = f.place - 1
    AND p.retired_at IS NULL AND NOT p.ended) AS before,
    (SELECT n.speaker FROM facts n WHERE n.scope = f.scope AND n.place = f.place + 1) AS next
FROM facts f WHERE f.seq IN {}
"""
