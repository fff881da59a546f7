"""The vectors on a Qdrant server: for more of them than one file should hold.

The database records what the server holds, as ids without texts, before it is sent. So after a crash at any point
unconfirmed points are sent again, and deletions are repeated until they succeed. A hit counts only for facts that
are on record.
"""

import asyncio
import json
import struct
from collections.abc import Awaitable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any, TypeVar
from uuid import NAMESPACE_URL, uuid5

from wintermute.config.schema import Secret
from wintermute.db import Database, Transaction, put_single, single
from wintermute.errors import MemoryUnavailable
from wintermute.ids import NewId
from wintermute.memory.vectors import (
    LIVE,
    Embedded,
    Near,
    Space,
    Unembedded,
    are_missing,
    check_complete,
    is_complete,
    missing_by_scope,
    packed,
)

COLLECTION = "memory"
LONGEST = 5.0
"""Seconds for one answer of the server."""
BATCH = 256
MARK = str(uuid5(NAMESPACE_URL, "wintermute:mark"))
"""The point that records the owner of a collection and the model of its vectors."""
MARKED = "qdrant mark"

T = TypeVar("T")

IN_LIST = "IN (SELECT value FROM json_each(?))"
HAVE = "SELECT 1 FROM qdrant_points v WHERE v.seq = f.seq AND v.space = :space AND v.sent > 0"
COUNT = "SELECT count(*) FROM qdrant_points WHERE space = ?"


@dataclass(frozen=True, slots=True)
class _Point:
    """One part of a fact as the server has it."""

    id: str
    fact: Embedded
    piece: int
    numbers: list[float]

    def recorded(self, space: Space, scope: str) -> dict[str, Any]:
        return {
            "point": self.id,
            "space": space.id,
            "seq": self.fact.seq,
            "scope": scope,
            "chunk": self.piece,
            "digest": self.fact.digest,
            "sent": 1 if self.numbers else 2,
        }

    def payload(self, scope: str) -> dict[str, Any]:
        return {"scope": scope, "id": self.fact.id, "seq": self.fact.seq, "piece": self.piece}


class QdrantVectors:
    """A `VectorIndex` in the collection `memory` of a server. Owns `qdrant_points`.

    `where`: its URL (default port 6333); otherwise the client stores the vectors itself, in that folder or in
    ":memory:".
    """

    def __init__(
        self, database: Database, new_id: NewId, where: str, api_key: Secret | None = None
    ) -> None:
        self._database = database
        self._new_id = new_id
        self._where = where
        self._api_key = api_key
        self._lock = asyncio.Lock()
        self._opened: _Qdrant | None = None
        self._space: int | None = None

    async def aclose(self) -> None:
        """Close the connections."""
        server, self._opened = self._opened, None
        if server is not None:
            await server.client.close()

    async def send(self, space: Space, scope: str, entries: Sequence[Embedded]) -> None:
        """Record the points, then send them to the server."""
        points = await asyncio.to_thread(_points, space, entries)
        async with self._lock:
            server = await self._ready(space)
            async with self._database.transaction() as tx:
                known = await _announce(tx, space, scope, points)
            vectors = [
                server.models.PointStruct(
                    id=point.id, vector=point.numbers, payload=point.payload(scope)
                )
                for point in points
                if point.numbers and point.id in known
            ]
            with self._rechecked_on_failure():
                for start in range(0, len(vectors), BATCH):
                    part = vectors[start : start + BATCH]
                    await server.ask(server.client.upsert(COLLECTION, part, wait=True))

    async def put(
        self, tx: Transaction, space: Space, scope: str, entries: Sequence[Embedded]
    ) -> None:
        """Confirm the points. A point whose fact was deleted meanwhile is queued for deletion."""
        points = await asyncio.to_thread(_points, space, entries)
        rows = [point.recorded(space, scope) for point in points]
        await tx.execute_many(
            "UPDATE qdrant_points SET sent = :sent"
            " WHERE point = :point AND space = :space AND digest = :digest",
            rows,
        )
        await tx.execute_many(
            "INSERT INTO qdrant_gone SELECT :point WHERE NOT EXISTS"
            " (SELECT 1 FROM qdrant_points WHERE point = :point) ON CONFLICT DO NOTHING",
            rows,
        )

    async def settle(self) -> int:
        """Delete points from the server whose facts are gone."""
        async with self._lock:
            if not (gone := await self._database.scalars("SELECT point FROM qdrant_gone")):
                return 0
            server = await self._server()
            if await self._marked(server):
                for start in range(0, len(gone), BATCH):
                    part = gone[start : start + BATCH]
                    await server.ask(server.client.delete(COLLECTION, part, wait=True))
            async with self._database.transaction() as tx:
                named = (json.dumps(gone),)
                await tx.execute(f"DELETE FROM qdrant_gone WHERE point {IN_LIST}", named)
                # Another process may have sent one again meanwhile.
                await tx.execute(f"UPDATE qdrant_points SET sent = 0 WHERE point {IN_LIST}", named)
                return len(await tx.scalars("SELECT point FROM qdrant_gone"))

    async def nearest(self, space: Space, scope: str, vector: bytes, k: int) -> list[Near]:
        """Return the best point of each fact that is on record."""
        await asyncio.to_thread(packed, vector, space)
        await check_complete(self._database, space, "qdrant")
        if k < 1:
            return []
        server = self._opened
        # Otherwise a search need not wait for a running upload.
        if server is None or self._space != space.id:
            async with self._lock:
                server = await self._ready(space)
        with self._rechecked_on_failure():
            found = await server.ask(
                server.client.query_points_groups(
                    COLLECTION,
                    group_by="seq",
                    query=list(struct.unpack(f"<{space.dimension}f", vector)),
                    query_filter=server.only("scope", scope),
                    limit=k,
                    group_size=1,
                    with_payload=False,
                )
            )
        near = [Near(int(group.id), min(1.0, group.hits[0].score)) for group in found.groups]
        there = await self._on_record(space, [each.seq for each in near])
        return sorted(
            (each for each in near if each.seq in there),
            key=lambda each: (-each.likeness, -each.seq),
        )

    async def missing(
        self, space: Space, limit: int, before: int | None = None
    ) -> list[Unembedded]:
        """Return the facts without confirmed points."""
        return await are_missing(self._database, HAVE, space, limit, before)

    async def complete(self, tx: Transaction, space: Space) -> bool:
        """Decide by the record."""
        return await is_complete(tx, HAVE, space, "qdrant")

    async def missing_counts(self, space: Space) -> dict[str, int]:
        """Count the facts without confirmed points."""
        return await missing_by_scope(self._database, HAVE, space)

    async def check_usable(self) -> None:
        """Check that the server answers; the collection is not checked."""
        server = await self._server()
        await server.ask(server.client.collection_exists(COLLECTION))

    async def rebuild(self, space: Space) -> None:
        """Empty the collection: its content cannot be verified otherwise."""
        async with self._lock:
            server = await self._ready(space)
            self._space = None
            await server.ask(server.client.delete_collection(COLLECTION))
            await self._ready(space)

    async def _on_record(self, space: Space, seqs: Sequence[int]) -> set[int]:
        return set(
            await self._database.scalars(
                f"SELECT seq FROM qdrant_points WHERE space = ? AND seq {IN_LIST} AND sent = 1",
                (space.id, json.dumps(seqs)),
            )
        )

    @contextmanager
    def _rechecked_on_failure(self) -> Iterator[None]:
        """After a failure check the collection again, as it may be another one."""
        try:
            yield
        except MemoryUnavailable:
            self._space = None
            raise

    async def _server(self) -> "_Qdrant":
        if self._opened is None:
            self._opened = await asyncio.to_thread(_open, self._where, self._api_key)
        return self._opened

    async def _ready(self, space: Space) -> "_Qdrant":
        """Return the server, with a collection that is ours and of this space."""
        server = await self._server()
        if self._space == space.id:
            return server
        marked = await self._marked(server)
        if marked and (marked.get("model"), marked.get("dimension")) != _named(space):
            await server.ask(server.client.delete_collection(COLLECTION))
            marked = None
        if not marked:
            await self._make(server, space)
        self._space = space.id
        return server

    async def _marked(self, server: "_Qdrant") -> Mapping[str, Any] | None:
        """Return our mark in the collection; None: there is no collection, or an empty one.

        Raises: MemoryUnavailable for a collection of somebody else.
        """
        client = server.client
        if not await server.ask(client.collection_exists(COLLECTION)):
            return None
        found = await server.ask(client.retrieve(COLLECTION, [MARK], with_payload=True))
        ours = await single(self._database, MARKED)
        if ours and found and (found[0].payload or {}).get("wintermute") == ours:
            payload: Mapping[str, Any] = found[0].payload
            return payload
        if (await server.ask(client.count(COLLECTION, exact=True))).count:
            raise server.foreign("holds what is not ours")
        return None

    async def _make(self, server: "_Qdrant", space: Space) -> None:
        """Create a collection of this space with our mark; all points on record are dropped."""
        client, models = server.client, server.models
        async with self._database.transaction() as tx:
            mark = await single(tx, MARKED) or self._new_id("qdrant")
            await put_single(tx, MARKED, mark)
            await tx.execute("UPDATE embedding_spaces SET qdrant = 0")
            await tx.execute("DELETE FROM qdrant_points")
            await tx.execute("DELETE FROM qdrant_gone")
        if not await server.ask(client.collection_exists(COLLECTION)):
            shape = models.VectorParams(size=space.dimension, distance=models.Distance.COSINE)
            await server.ask(client.create_collection(COLLECTION, vectors_config=shape))
        info = await server.ask(client.get_collection(COLLECTION))
        if getattr(info.config.params.vectors, "size", None) != space.dimension:
            raise server.foreign(f"is not for {space.dimension} numbers")
        if server.is_remote:
            for field in (("scope", "keyword"), ("seq", "integer")):
                await server.ask(client.create_payload_index(COLLECTION, *field, wait=True))
        payload = dict(zip(("model", "dimension"), _named(space), strict=True))
        payload["wintermute"] = mark
        vector = [1.0] + [0.0] * (space.dimension - 1)
        point = models.PointStruct(id=MARK, vector=vector, payload=payload)
        await server.ask(client.upsert(COLLECTION, [point], wait=True))


@dataclass(frozen=True, slots=True)
class _Qdrant:
    """The client of a server, and the classes of its library."""

    where: str
    client: Any
    models: Any
    failures: tuple[type[Exception], ...]

    @property
    def is_remote(self) -> bool:
        """True if there is a server at all."""
        return self.where.startswith(("http://", "https://"))

    async def ask(self, question: Awaitable[T]) -> T:
        """Return its answer. Raises: MemoryUnavailable if there is none in time, or none of use."""
        try:
            async with asyncio.timeout(LONGEST):
                return await question
        except self.failures as problem:
            said = " ".join(str(problem).split())[:200] or type(problem).__name__
            raise MemoryUnavailable(f"Qdrant at {self.where} gives no answer ({said})") from problem

    def only(self, name: str, value: str) -> Any:
        """Return a filter for points whose payload has exactly this value."""
        match = self.models.MatchValue(value=value)
        return self.models.Filter(must=[self.models.FieldCondition(key=name, match=match)])

    def foreign(self, why: str) -> MemoryUnavailable:
        """Return the error for a foreign collection, which stays untouched."""
        return MemoryUnavailable(
            f"the collection {COLLECTION} at {self.where} {why}: nothing is written there; "
            "give Wintermute a server of its own"
        )


def _open(where: str, api_key: Secret | None) -> _Qdrant:
    try:
        library = import_module("qdrant_client")  # numpy and grpc: for who uses it alone
        failing = import_module("qdrant_client.http.exceptions").ApiException
        refusing = import_module("qdrant_client.common.client_exceptions").QdrantException
    except ImportError as problem:
        raise MemoryUnavailable(
            f"memory.backend: qdrant needs its client: pip install 'wintermute[qdrant]' ({problem})"
        ) from problem
    failures = (failing, refusing, TimeoutError, OSError, ValueError)
    make = partial(library.AsyncQdrantClient, check_compatibility=False)
    if where == ":memory:":
        client = make(location=where)
    elif not where.startswith(("http://", "https://")):
        client = make(path=where)
    else:
        # As a header, for the client prints a warning beside a key over plain http.
        headers = {"api-key": api_key.reveal()} if api_key else {}
        client = make(url=where, headers=headers, timeout=int(LONGEST), trust_env=False)
    return _Qdrant(where, client, library.models, failures)


def _named(space: Space) -> tuple[str, int]:
    return space.model, space.dimension


def _points(space: Space, entries: Iterable[Embedded]) -> list[_Point]:
    """Return the points of these facts, with stable ids; a text without a word has no numbers."""
    points = []
    for entry in entries:
        for piece, vector in enumerate(entry.vectors or (b"",)):
            if vector or entry.vectors:
                packed(vector, space)  # refuses what must not be stored
            numbers = list(struct.unpack(f"<{len(vector) // 4}f", vector))
            point = str(uuid5(NAMESPACE_URL, f"wintermute:{entry.id}/{piece}"))
            points.append(_Point(point, entry, piece, numbers))
    return points


async def _announce(
    tx: Transaction, space: Space, scope: str, points: Sequence[_Point]
) -> set[str]:
    """Record that the server may have these points soon, and no other parts of their facts.

    Return the ids of the points whose facts are live.
    """
    rows = [point.recorded(space, scope) for point in points]
    await tx.execute_many("DELETE FROM qdrant_points WHERE seq = :seq", rows)
    await tx.execute_many(
        "INSERT INTO qdrant_points (point, seq, space, chunk, digest)"
        " SELECT :point, f.seq, :space, :chunk, :digest"
        f" FROM facts f WHERE f.seq = :seq AND f.scope = :scope AND {LIVE}",
        rows,
    )
    await tx.execute_many(
        "DELETE FROM qdrant_gone WHERE point = :point"
        " AND point IN (SELECT point FROM qdrant_points)",
        rows,
    )
    named = json.dumps([point.id for point in points])
    known = await tx.scalars(f"SELECT point FROM qdrant_points WHERE point {IN_LIST}", (named,))
    return set(known)
