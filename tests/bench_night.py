"""What finding the facts that a night asks about costs, beside the model: `python -m tests.bench_night`.

    python -m tests.bench_night [--facts 1000 10000 100000] [--backend fts5]

One scope has all facts, taken in as `memory import` does and looked at before; 200 more are new, half
of them another's words with one more. Told are the seconds until all pairs and clusters are known,
and how many there are; at 1,000 facts also what comparing all of them with each other takes. Meanings
are told by a stand-in, for the embedder runs in a process of its own: words at random directions,
512 numbers. What it takes is told apart.
"""

import asyncio
import math
import random
import tempfile
import time
from collections.abc import Sequence
from functools import cache
from itertools import combinations
from pathlib import Path

from tests.bench_runner import BACKENDS, Backend, options, show, take_in
from tests.bench_search import lines, sentence
from tests.world.house import PROMPTS, SCOPE, House, open_house
from wintermute.config.schema import Memory
from wintermute.llm.embedded import MODEL
from wintermute.llm.vector import Vector, vector
from wintermute.memory.fact import NewFact
from wintermute.memory.lexical_overlap import shared_words
from wintermute.memory.similarity import FactSimilarity
from wintermute.night.dedup import clusters

NEW, NUMBERS = 200, 512
LEAST, SAME = 0.5, 0.85
SMALL = 1_000


@cache
def direction(word: str) -> list[float]:
    """Where a word points."""
    draw = random.Random(word)
    return [draw.gauss(0, 1) for _ in range(NUMBERS)]


class StandIn:
    """Says at once what texts mean: the sum of their words."""

    name = MODEL
    seconds = 0.0
    texts = 0

    async def warm(self, seconds: float = 0.0) -> None:
        """It is always ready."""

    async def embed_query(self, texts: Sequence[str]) -> list[Vector | None]:
        return await self.embed_document(texts)

    async def embed_document(self, texts: Sequence[str]) -> list[Vector | None]:
        began = time.perf_counter()
        made = await asyncio.to_thread(lambda: [self._vector(text) for text in texts])
        self.seconds += time.perf_counter() - began
        self.texts += len(texts)
        return made

    @staticmethod
    def _vector(text: str) -> Vector | None:
        words = [direction(word) for word in text.casefold().split()]
        total = list(map(sum, zip(*words, strict=True)))
        length = math.hypot(*total)
        return vector(number / length for number in total)

    async def aclose(self) -> None:
        """Nothing was opened."""


async def filled(house: House, count: int) -> None:
    """So many facts that were looked at, and the new ones."""
    stores = house.stores
    await take_in(stores, lines(count))
    draw = random.Random("new")
    known = await house.rows("SELECT text FROM facts ORDER BY seq LIMIT ?", NEW)
    texts = [f"{row['text']} today" for row in known[::2]]
    texts += [sentence(draw) for _ in range(NEW - len(texts))]
    async with house.database.transaction() as tx:
        await tx.execute("UPDATE facts SET examined = 1")
        await stores.facts.take(tx, [NewFact(SCOPE, text, "harvest", "Ann") for text in texts])
    if stores.meaning is not None:
        await stores.meaning.make()


async def measured(backend: Backend, count: int) -> str:
    """A row of the table."""
    embedder = StandIn()
    with tempfile.TemporaryDirectory() as folder:
        async with open_house(
            *(Path(folder), None),
            prompts=PROMPTS,
            memory=Memory(backend=backend),
            embedder=embedder if backend == "local_vector" else None,
        ) as house:
            await filled(house, count)
            made, texts = embedder.seconds, embedder.texts
            likeness = FactSimilarity(
                house.database, house.stores.facts, house.stores.meaning, LEAST, SAME
            )
            began = time.perf_counter()
            now = house.clock.now()
            found = await likeness.compared(SCOPE, now)
            groups = clusters(found.new, found.pairs, SAME)
            whole, made = time.perf_counter() - began, embedder.seconds - made
            every = f"{await all_pairs(house):.1f} s" if count <= SMALL else "-"
    return (
        f"| {backend}, {count:,} facts | {whole - made:.1f} s | {made:.1f} s of"
        f" {embedder.texts - texts:,} texts | {len(found.new)} | {len(found.pairs):,} |"
        f" {len(groups)} | {every} |"
    )


async def all_pairs(house: House) -> float:
    """Seconds to compare each with each."""
    texts = [fact.text for fact in await house.stores.facts.live(SCOPE)]
    meaning = house.stores.meaning
    if meaning is None:
        began = time.perf_counter()
        shared_words(texts, texts)
        return time.perf_counter() - began
    like = await meaning.comparison(texts)
    assert like is not None
    began = time.perf_counter()
    for one, other in combinations(range(len(texts)), 2):
        like(one, other)
    return time.perf_counter() - began


def main() -> None:
    """Print the rows."""
    parser = options(__doc__)
    parser.add_argument("--facts", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    parser.add_argument("--backend", choices=BACKENDS, action="append")
    given = parser.parse_args()
    for backend in given.backend or BACKENDS:
        for count in given.facts:
            show([asyncio.run(measured(backend, count))])


if __name__ == "__main__":
    main()
