"""Facts with vectors that mean what their names say, for our own database and for Qdrant."""

import math
import random
import struct
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest

from tests.world.memory import ANN, Memory
from tests.world.missing import NO_QDRANT, NO_VECTORS
from wintermute.db import Database
from wintermute.ids import new_id
from wintermute.memory.fact import Fact
from wintermute.memory.qdrant import COLLECTION, QdrantVectors
from wintermute.memory.vectors import NOT_LIVE, WRONG, Embedded, Space, Spaces, VectorIndex

SIZE = 20  # no multiple of eight
IN_MEMORY = ":memory:"


def vector(*numbers: float) -> bytes:
    return struct.pack(f"<{len(numbers)}f", *numbers)


def some(seed: object, size: int = SIZE) -> bytes:
    """A vector of length 1, the same for the same seed."""
    chance = random.Random(str(seed))
    numbers = [chance.gauss(0, 1) for _ in range(size)]
    length = math.hypot(*numbers)
    return vector(*(number / length for number in numbers))


def cosine(one: bytes, other: bytes) -> float:
    a, b = (struct.unpack(f"<{len(each) // 4}f", each) for each in (one, other))
    product = math.fsum(x * y for x, y in zip(a, b, strict=True))
    return product / (math.hypot(*a) * math.hypot(*b))


@dataclass(frozen=True)
class IndexCheck:
    """How an index stands to the facts. Facts that lack vectors are owed, the rest is wrong.

    `stale`: vectors of facts that are not live. `wrong`: what is not as it was stored.
    """

    facts: int
    owed: int
    stale: int
    wrong: int

    @property
    def is_sound(self) -> bool:
        return not (self.stale or self.wrong)


class CountedQdrant(QdrantVectors):
    """One that says how many points the server has."""

    async def points(self, space: Space) -> int:
        server = await self._ready(space)
        return int((await server.ask(server.client.count(COLLECTION, exact=True))).count)


async def checked(database: Database, index: VectorIndex, space: Space) -> IndexCheck:
    """All of an index compared with the facts."""
    numbers = {"space": space.id, "size": -(-space.dimension // 8) * 8}

    async def count(rows: str) -> int:
        (found,) = await database.scalars(f"SELECT count(*) FROM {rows}", numbers)
        return int(found)

    owed, points = (
        sum((await index.missing_counts(space)).values()),
        "qdrant_points WHERE space = :space",
    )
    if isinstance(index, CountedQdrant):
        there, known = await index.points(space), await count(f"{points} AND sent = 1")
        stale, facts = (
            await count("qdrant_gone"),
            await count(f"{points} AND chunk = 0 AND sent > 0"),
        )
        return IndexCheck(facts, owed, stale, 0 if stale or owed else abs(there - 1 - known))
    problems = await database.scalars("PRAGMA integrity_check('fact_vectors')")
    rows = "fact_vectors v WHERE v.space = :space AND"
    wrong = await count(f"{rows} ({WRONG})") + sum(each != "ok" for each in problems)
    stale = await count(f"{rows} {NOT_LIVE}")
    return IndexCheck(await count(f"{rows} v.chunk = 0"), owed, stale, wrong)


@asynccontextmanager
async def at_qdrant(database: Database, where: str) -> AsyncIterator[QdrantVectors]:
    pytest.importorskip("qdrant_client", reason=NO_QDRANT)
    index = CountedQdrant(database, new_id, where)
    try:
        yield index
    finally:
        await index.aclose()


@asynccontextmanager
async def at_server(database: Database, url: str) -> AsyncIterator[QdrantVectors]:
    """At a real one, of which nothing was used before; nothing is left there."""
    library = pytest.importorskip("qdrant_client", reason=NO_QDRANT)
    client = library.AsyncQdrantClient(url=url, check_compatibility=False, trust_env=False)
    assert not await client.collection_exists(COLLECTION), f"{url} is used by somebody"
    try:
        async with at_qdrant(database, url) as index:
            yield index
    finally:
        await client.delete_collection(COLLECTION)
        await client.close()


def needs_sqlite_vec(database: Database) -> None:
    if not database.knows_vectors:
        pytest.skip(NO_VECTORS)


async def entered(memory: Memory, model: str = "model", size: int = SIZE) -> Space:
    async with memory.database.transaction() as tx:
        return await Spaces(memory.database).enter(tx, model, size)


async def seq(memory: Memory, fact: Fact) -> int:
    (found,) = await memory.database.scalars("SELECT seq FROM facts WHERE id = ?", (fact.id,))
    return int(found)


async def embedded(memory: Memory, fact: Fact, *vectors: bytes, digest: bytes = b"d") -> Embedded:
    return Embedded(await seq(memory, fact), fact.id, digest, vectors)


async def put(
    memory: Memory, index: VectorIndex, space: Space, entries: Sequence[Embedded], scope: str = ANN
) -> None:
    """As the work does it that embeds: sent, stored, and looked whether that was all."""
    await index.send(space, scope, entries)
    async with memory.database.transaction() as tx:
        await index.put(tx, space, scope, entries)
        await index.complete(tx, space)


async def learnt(
    memory: Memory, index: VectorIndex, space: Space, names: Iterable[str], scope: str = ANN
) -> dict[str, int]:
    """Facts with the vectors of their names; their numbers by name."""
    facts = {name: (await memory.add(f"fact {name}", scope=scope))[0] for name in names}
    size = space.dimension
    entries = [await embedded(memory, fact, some(name, size)) for name, fact in facts.items()]
    await put(memory, index, space, entries, scope)
    return {name: entry.seq for name, entry in zip(facts, entries, strict=True)}


async def found(
    index: VectorIndex, space: Space, name: object, scope: str = ANN, k: int = 10
) -> list[int]:
    return [near.seq for near in await index.nearest(space, scope, some(name, space.dimension), k)]
