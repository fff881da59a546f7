"""The vectors of facts, and the search for the nearest ones.

Vectors of different models have nothing in common, so each pair of model and dimension is a space of its own. A
search has two steps: the first compares only the signs of the numbers, 64 bytes of each vector, and the second
compares the nearest of those as signed bytes.
"""

import asyncio
import logging
import math
import struct
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import mul
from typing import Any, Literal, Protocol

from wintermute.db import Database, Error, Row, Transaction, is_broken
from wintermute.db.values import reader
from wintermute.errors import MemoryUnavailable
from wintermute.memory.facts import TRUE

LIVE = TRUE.replace("{}", "f")
LEAST_RESCORED = 512
MOST_RESCORED = 1_024
"""Vectors that get the second step. Measured on real questions:

1,024 of 6,000 kept .991 of the true first hundred (.999 of twenty), of 100,000 .986 (1.000). For fewer results ten
each and a hundred are enough: 430 of 10,000 kept all of the first ten.
"""
LARGEST = 8_192
"""Numbers of a vector at most."""

log = logging.getLogger(__name__)

SPACE = "SELECT id, model, dimension, same, related, floor FROM embedding_spaces"

SIGN_BITS = "vec_quantize_binary(vec_int8({}))"
FACTS_VEC = "CREATE INDEX facts_vec ON fact_vectors (space, scope, seq, bits)"
NEAREST = f"""
WITH first AS MATERIALIZED (
    SELECT id FROM fact_vectors INDEXED BY facts_vec
    WHERE space = :space AND scope = :scope AND bits IS NOT NULL
    ORDER BY vec_distance_hamming(vec_bit(bits), {SIGN_BITS.format(":vector")})
    LIMIT (SELECT min({MOST_RESCORED}, 100 + 10 * :k, max({LEAST_RESCORED}, count(*) / 10)) FROM (
        SELECT 1 FROM fact_vectors INDEXED BY facts_vec
        WHERE space = :space AND scope = :scope LIMIT {10 * MOST_RESCORED}))
)
SELECT v.seq, max(1 - vec_distance_cosine(vec_int8(v.vector), vec_int8(:vector))) AS likeness
FROM first CROSS JOIN fact_vectors v ON v.id = first.id
WHERE EXISTS (SELECT 1 FROM embedding_spaces WHERE id = :space AND local)
GROUP BY v.seq ORDER BY likeness DESC, v.seq DESC LIMIT :k
"""
HAVE_LOCAL = "SELECT 1 FROM fact_vectors v WHERE v.seq = f.seq AND v.space = :space"
NOT_LIVE = (
    f"NOT EXISTS (SELECT 1 FROM facts f WHERE f.seq = v.seq AND f.scope = v.scope AND {LIVE})"
)
WRONG = (
    "(v.vector IS NULL) <> (v.bits IS NULL) OR v.vector IS NOT NULL AND"
    f" iif(length(v.vector) <> :size, 1, v.bits IS NOT {SIGN_BITS.format('v.vector')})"
)

Place = Literal["local", "qdrant"]


@dataclass(frozen=True, slots=True)
class Space:
    """The space of one model's vectors: only these are compared with each other (M-022).

    `same`, `related`, `floor`: similarities from which texts say the same or may be on the same topic, and below
    which a similarity means nothing; None if the model cannot separate texts.
    """

    id: int
    model: str
    dimension: int
    same: float | None
    related: float | None
    floor: float | None


@dataclass(frozen=True, slots=True)
class Embedded:
    """The vectors of one fact: one for each part of its text, in order; none for a text without a word.

    `vectors`: 32-bit floats, little-endian, of any length. `digest`: of the embedded text.
    """

    seq: int
    id: str
    digest: bytes
    vectors: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Unembedded:
    """A fact that lacks its vectors."""

    seq: int
    id: str
    scope: str


@dataclass(frozen=True, slots=True)
class Near:
    """A fact and the cosine of its best part to the query, 1 for equal vectors."""

    seq: int
    likeness: float


class VectorIndex(Protocol):
    """A store of vectors that compares them. Failures raise MemoryUnavailable (M-023)."""

    async def send(self, space: Space, scope: str, entries: Sequence[Embedded]) -> None:
        """Prepare `put` outside a transaction, as it may take seconds."""
        ...

    async def put(
        self, tx: Transaction, space: Space, scope: str, entries: Sequence[Embedded]
    ) -> None:
        """Replace the vectors of facts of a scope.

        Facts that are not live are skipped; the caller skips those that changed since their texts were read. Raises:
        MemoryUnavailable for a vector of another dimension, one that is not finite, or zero; then nothing was stored
        (M-071).
        """
        ...

    async def settle(self) -> int:
        """Finish deletions outside a transaction; return how many are left."""
        ...

    async def nearest(self, space: Space, scope: str, vector: bytes, k: int) -> list[Near]:
        """Return the live facts of a scope nearest to a vector, best first.

        Raises: MemoryUnavailable, also while the vectors of a new model are incomplete; then the caller searches by
        words.
        """
        ...

    async def missing(
        self, space: Space, limit: int, before: int | None = None
    ) -> list[Unembedded]:
        """Return live facts of all scopes that lack vectors, newest first; `before`: below that number."""
        ...

    async def complete(self, tx: Transaction, space: Space) -> bool:
        """Check whether every live fact had its vectors once; then vectors of other models are deleted."""
        ...

    async def missing_counts(self, space: Space) -> dict[str, int]:
        """Count the facts of each scope that lack vectors, by our own database."""
        ...

    async def check_usable(self) -> None:
        """Check that vectors can be compared now. Raises: MemoryUnavailable."""
        ...

    async def rebuild(self, space: Space) -> None:
        """Delete wrong vectors; they are missing then."""
        ...

    async def aclose(self) -> None:
        """Close connections."""
        ...


_space = reader(Space)


class Spaces:
    """The models that have vectors, or will have some."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def former(self, model: str) -> str:
        """Return the newest other model that still has vectors; "" if there is none."""
        row = await self._database.row(
            "SELECT model FROM embedding_spaces WHERE model <> ? ORDER BY id DESC LIMIT 1", (model,)
        )
        return str(row["model"]) if row else ""

    async def latest_of(self, model: str) -> Space | None:
        """Return the newest space of a model, if it has one."""
        row = await self._database.row(
            f"{SPACE} WHERE model = ? ORDER BY id DESC LIMIT 1", (model,)
        )
        return _space(row) if row else None

    async def enter(self, tx: Transaction, model: str, dimension: int) -> Space:
        """Return the space of a model and dimension; a new one has no thresholds."""
        if not 1 <= dimension <= LARGEST:
            raise MemoryUnavailable(
                f"{model} gives vectors of {dimension} numbers; 1 to {LARGEST} can be kept"
            )
        await tx.execute(
            "INSERT INTO embedding_spaces (model, dimension) VALUES (?, ?) ON CONFLICT DO NOTHING",
            (model, dimension),
        )
        row = await tx.row(f"{SPACE} WHERE model = ? AND dimension = ?", (model, dimension))
        return _space(row)

    async def calibrate(
        self, tx: Transaction, space: Space, same: float, related: float, floor: float
    ) -> None:
        """Store the thresholds of a space."""
        await tx.execute(
            "UPDATE embedding_spaces SET same = ?, related = ?, floor = ? WHERE id = ?",
            (same, related, floor, space.id),
        )


class LocalVectors:
    """The vectors in our own database, compared there by sqlite-vec. Owns `fact_vectors`.

    Its index is one of SQLite's own, so it always agrees with the rows. Erasing needs no sqlite-vec: vectors go with
    their facts wherever the database can be opened.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    async def send(self, space: Space, scope: str, entries: Sequence[Embedded]) -> None:
        """Prepare nothing: `put` does everything."""

    async def put(
        self, tx: Transaction, space: Space, scope: str, entries: Sequence[Embedded]
    ) -> None:
        """Store the vectors in the transaction, for facts that are live in it."""
        self._prove_usable()
        rows = await asyncio.to_thread(_rows, space, scope, entries)
        await tx.execute_many(
            "DELETE FROM fact_vectors WHERE seq = ? AND space = ?",
            [(entry.seq, space.id) for entry in entries],
        )
        await tx.execute_many(
            "INSERT INTO fact_vectors (seq, space, chunk, scope, digest, vector, bits)"
            " SELECT f.seq, :space, :chunk, f.scope, :digest, :vector,"
            f" iif(:vector IS NULL, NULL, {SIGN_BITS.format(':vector')})"
            f" FROM facts f WHERE f.seq = :seq AND f.scope = :scope AND {LIVE}",
            rows,
        )

    async def settle(self) -> int:
        """Return 0: no deletion is ever left."""
        return 0

    async def aclose(self) -> None:
        """Close nothing: there is no connection."""

    async def nearest(self, space: Space, scope: str, vector: bytes, k: int) -> list[Near]:
        """Find the nearest by signs, then compare those by bytes. A broken index is rebuilt."""
        self._prove_usable()
        query = {
            "space": space.id,
            "scope": scope,
            "vector": await asyncio.to_thread(packed, vector, space),
            "k": max(0, k),
        }
        try:
            rows = await self._nearest(query)
        except Error as problem:
            if not is_broken(problem):
                raise
            log.warning("index of vectors broken, built anew reason=%s", problem)
            rows = await self._nearest_anew(space, query)
        if not rows:
            await check_complete(self._database, space, "local")
        return [Near(row["seq"], min(1.0, row["likeness"])) for row in rows]

    async def missing(
        self, space: Space, limit: int, before: int | None = None
    ) -> list[Unembedded]:
        """Return the facts without a row."""
        return await are_missing(self._database, HAVE_LOCAL, space, limit, before)

    async def complete(self, tx: Transaction, space: Space) -> bool:
        """Search for a fact without vectors, unless the space was complete before."""
        return await is_complete(tx, HAVE_LOCAL, space, "local")

    async def missing_counts(self, space: Space) -> dict[str, int]:
        """Count the facts without a row."""
        return await missing_by_scope(self._database, HAVE_LOCAL, space)

    async def check_usable(self) -> None:
        """Check that sqlite-vec is loaded."""
        self._prove_usable()

    async def rebuild(self, space: Space) -> None:
        """Rebuild in one transaction: until its end, or if the disk is full, the old index is used."""
        self._prove_usable()
        async with self._database.transaction() as tx:
            await tx.execute("DROP INDEX IF EXISTS facts_vec")
            await tx.execute(
                "DELETE FROM fact_vectors WHERE seq IN (SELECT v.seq FROM fact_vectors v"
                f" WHERE v.space = :space AND (({NOT_LIVE}) OR {WRONG}))",
                {"space": space.id, "size": _size(space)},
            )
            await tx.execute(FACTS_VEC)

    def _prove_usable(self) -> None:
        if not self._database.knows_vectors:
            raise MemoryUnavailable(
                "sqlite-vec cannot be loaded here: install it, with a Python whose SQLite loads "
                "extensions, or set memory.backend: fts5"
            )

    async def _nearest(self, query: Mapping[str, Any]) -> list[Row]:
        return await self._database.rows(NEAREST, query)

    async def _nearest_anew(self, space: Space, query: Mapping[str, Any]) -> list[Row]:
        try:
            await self.rebuild(space)
            return await self._nearest(query)
        except Error as problem:
            raise MemoryUnavailable(f"the index of vectors is broken ({problem})") from problem


def packed(vector: bytes, space: Space) -> bytes:
    """Return a vector as signed bytes, the largest 127 or -127: only its direction counts.

    Its length is a multiple of eight, so that the signs fill whole bytes. Raises: MemoryUnavailable for a vector
    that does not fit the space or has no direction.
    """
    if len(vector) != 4 * space.dimension:
        raise MemoryUnavailable(
            f"a vector of {space.model} has {len(vector) / 4:g} numbers instead of "
            f"{space.dimension}: is it another model? `wintermute memory rebuild-index` embeds all again"
        )
    numbers = struct.unpack(f"<{space.dimension}f", vector)
    if not 0 < sum(map(mul, numbers, numbers)) < math.inf:  # nor NaN
        raise MemoryUnavailable(f"a vector of {space.model} is zero or not finite")
    scale = 127 / max(map(abs, numbers))
    whole = array("b", [round(number * scale) for number in numbers])
    return whole.tobytes() + bytes(_size(space) - space.dimension)


def _size(space: Space) -> int:
    return -(-space.dimension // 8) * 8


def _rows(space: Space, scope: str, entries: Iterable[Embedded]) -> list[dict[str, Any]]:
    """Return the rows to store; a text without a word has a row too, else it would stay missing."""
    return [
        {
            "seq": entry.seq,
            "space": space.id,
            "chunk": chunk,
            "scope": scope,
            "digest": entry.digest,
            "vector": None if vector is None else packed(vector, space),
        }
        for entry in entries
        for chunk, vector in enumerate(entry.vectors or (None,))
    ]


async def check_complete(database: Database, space: Space, place: Place) -> None:
    query = f"SELECT 1 FROM embedding_spaces WHERE id = ? AND {place}"
    if not await database.exists(query, (space.id,)):
        raise MemoryUnavailable(f"the vectors of {space.model} are still being made")


async def are_missing(
    database: Database, have: str, space: Space, limit: int, before: int | None
) -> list[Unembedded]:
    rows = await database.rows(
        f"SELECT f.seq, f.id, f.scope FROM facts f WHERE {LIVE} AND NOT EXISTS ({have})"
        " AND (:before IS NULL OR f.seq < :before) ORDER BY f.seq DESC LIMIT :limit",
        {"space": space.id, "before": before, "limit": limit},
    )
    return [Unembedded(row["seq"], row["id"], row["scope"]) for row in rows]


async def missing_by_scope(database: Database, have: str, space: Space) -> dict[str, int]:
    rows = await database.rows(
        f"SELECT f.scope, count(*) AS n FROM facts f WHERE {LIVE} AND NOT EXISTS ({have})"
        " GROUP BY f.scope",
        {"space": space.id},
    )
    return {row["scope"]: int(row["n"]) for row in rows}


async def is_complete(tx: Transaction, have: str, space: Space, place: Place) -> bool:
    here = {"space": space.id}
    if not await tx.exists(f"SELECT 1 FROM embedding_spaces WHERE id = :space AND {place}", here):
        lacking = f"SELECT 1 FROM facts f WHERE {LIVE} AND NOT EXISTS ({have}) LIMIT 1"
        if await tx.exists(lacking, here):
            return False
        await tx.execute(f"UPDATE embedding_spaces SET {place} = 1 WHERE id = :space", here)
    await tx.execute("DELETE FROM embedding_spaces WHERE id <> :space", here)
    return True
