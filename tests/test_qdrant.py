"""Qdrant as it may be: away, slow, of somebody else, or without what it had."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.world.clock import promptly
from tests.world.memory import ANN, Memory, memory_in
from tests.world.missing import NO_QDRANT
from tests.world.sockets import Answer, refuse, served
from tests.world.vectors import (
    IN_MEMORY,
    SIZE,
    at_qdrant,
    checked,
    embedded,
    entered,
    found,
    learnt,
    needs_sqlite_vec,
    put,
    some,
)
from wintermute.config.schema import Secret
from wintermute.errors import MemoryUnavailable
from wintermute.ids import new_id
from wintermute.memory.qdrant import COLLECTION, LONGEST, QdrantVectors
from wintermute.memory.vectors import Embedded, LocalVectors


def saying(status: str, body: str) -> Answer:
    """A server that says the same to everybody."""

    async def say(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        text = body.encode()
        head = f"HTTP/1.1 {status}\r\nContent-Length: {len(text)}\r\nConnection: close\r\n\r\n"
        writer.write(head.encode() + text)
        await writer.drain()
        writer.close()

    return say


async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()
    writer.close()


@pytest.mark.quick("refuses", "another shape", "500", "HTML")
@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(hang, id="hangs"),
        pytest.param(refuse, id="refuses"),
        pytest.param(saying("500 No", "{}"), id="500"),
        pytest.param(saying("200 OK", "<html>"), id="HTML"),
        pytest.param(saying("200 OK", '{"result": 7}'), id="another shape"),
    ],
)
async def test_a_useless_server_costs_only_seconds(memory: Memory, answer: Answer) -> None:
    """M-023: what was lost meanwhile is still to leave it, what was learnt to be sent."""
    space = await entered(memory)
    async with at_qdrant(memory.database, IN_MEMORY) as index:
        await learnt(memory, index, space, ["a", "b"])
    await memory.retire("fact a")
    fact, _ = await memory.add("fact c")
    entries = [await embedded(memory, fact, some("c"))]
    async with served(answer) as url, at_qdrant(memory.database, url) as index:
        calls: list[Callable[[], Awaitable[object]]] = [
            lambda: index.nearest(space, ANN, some("b"), 5),
            lambda: index.settle(),
            lambda: index.send(space, ANN, entries),
        ]
        for call in calls[:1] if answer is hang else calls:
            async with promptly(LONGEST + 2):
                with pytest.raises(MemoryUnavailable, match=f"{url} gives no answer"):
                    await call()
    assert await memory.database.scalars("SELECT count(*) FROM qdrant_gone") == [1]
    assert [each.id for each in await index.missing(space, 9)] == [fact.id]


async def test_a_key_is_sent_and_never_shown(memory: Memory) -> None:
    """To the server alone."""
    heard: list[bytes] = []

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.readuntil(b"\r\n\r\n"))
        await refuse(reader, writer)

    space = await entered(memory)
    pytest.importorskip("qdrant_client", reason=NO_QDRANT)
    async with served(listen) as url:
        index = QdrantVectors(memory.database, new_id, url, Secret("hush-hush"))
        with pytest.raises(MemoryUnavailable) as refused:
            await index.send(space, ANN, [])
        await index.aclose()
    assert b"api-key: hush-hush" in heard[0]
    assert "hush" not in str(refused.value) + repr(vars(index))


async def collection(folder: Path, size: int, *, points: int) -> None:
    """A collection of somebody else."""
    library = pytest.importorskip("qdrant_client", reason=NO_QDRANT)
    client = library.AsyncQdrantClient(path=str(folder))
    models = library.models
    shape = models.VectorParams(size=size, distance=models.Distance.COSINE)
    await client.create_collection(COLLECTION, vectors_config=shape)
    payload = {"scope": ANN, "seq": 1}
    theirs = [models.PointStruct(id=n, vector=[1.0] * size, payload=payload) for n in range(points)]
    if theirs:
        await client.upsert(COLLECTION, theirs)
    await client.close()


@pytest.mark.parametrize(("size", "points"), [(SIZE, 3), (2 * SIZE, 3), (2 * SIZE, 0)])
async def test_others_data_are_left(memory: Memory, tmp_path: Path, size: int, points: int) -> None:
    """M-021: of another dimension, or of the same without our mark."""
    space = await entered(memory)
    await collection(tmp_path / "theirs", size, points=points)
    fact, _ = await memory.add("fact a")
    entries = [await embedded(memory, fact, some("a"))]
    async with at_qdrant(memory.database, str(tmp_path / "theirs")) as index:
        for _ in range(2):
            with pytest.raises(MemoryUnavailable, match="nothing is written there"):
                await index.send(space, ANN, entries)
        with pytest.raises(MemoryUnavailable, match="nothing is written there"):
            await index.rebuild(space)
    library = pytest.importorskip("qdrant_client", reason=NO_QDRANT)
    client = library.AsyncQdrantClient(path=str(tmp_path / "theirs"))
    assert (await client.count(COLLECTION)).count == points
    info = await client.get_collection(COLLECTION)
    assert info.config.params.vectors.size == size
    await client.close()


async def test_another_installations_collection_is_left(memory: Memory, tmp_path: Path) -> None:
    """M-010: two of them at one server would read each other's rooms."""
    where = str(tmp_path / "server")
    space = await entered(memory)
    async with at_qdrant(memory.database, where) as index:
        await learnt(memory, index, space, ["a"])
    (tmp_path / "other").mkdir()
    async with memory_in(tmp_path / "other") as other:
        theirs = await entered(other)
        fact, _ = await other.add("fact b")
        entries = [await embedded(other, fact, some("b"))]
        async with at_qdrant(other.database, where) as index:
            with pytest.raises(MemoryUnavailable, match="holds what is not ours"):
                await index.send(theirs, ANN, entries)


async def test_what_is_ours_is_known_again_after_a_restart(memory: Memory, tmp_path: Path) -> None:
    """M-001, M-023: nothing is sent twice; another model empties the one collection."""
    where = str(tmp_path / "server")
    space = await entered(memory)
    async with at_qdrant(memory.database, where) as index:
        numbers = await learnt(memory, index, space, ["a", "b"])
    async with at_qdrant(memory.database, where) as index:
        assert await found(index, space, "b") == [numbers["b"], numbers["a"]]
        assert await index.missing(space, 9) == []
    new = await entered(memory, "other", 2 * SIZE)
    async with at_qdrant(memory.database, where) as index:
        await index.send(new, ANN, [])
        assert len(await index.missing(new, 9)) == 2
        assert (await checked(memory.database, index, new)).is_sound
    client = pytest.importorskip("qdrant_client", reason=NO_QDRANT).AsyncQdrantClient(path=where)
    assert [each.name for each in (await client.get_collections()).collections] == ["memory"]
    await client.close()


async def test_what_was_sent_before_a_kill_is_sent_again_or_leaves(memory: Memory) -> None:
    """M-063: between the server's answer and our commit."""
    space = await entered(memory)
    async with at_qdrant(memory.database, IN_MEMORY) as index:
        numbers = await learnt(memory, index, space, ["x"])
        facts = [(await memory.add(f"fact {name}"))[0] for name in "ab"]
        entries = [await embedded(memory, fact, some(fact.text[-1])) for fact in facts]
        await index.send(space, ANN, entries)  # and no put
        assert await found(index, space, "a") == [numbers["x"]]
        assert len(await index.missing(space, 9)) == 2
        await memory.retire("fact a")
        await index.settle()
        await put(memory, index, space, entries[1:])
        assert await found(index, space, "b") == [entries[1].seq, numbers["x"]]
        await index.send(space, ANN, entries[:1])  # retired before it was sent, and no put either
        found_in = await checked(memory.database, index, space)
        assert (found_in.facts, found_in.owed, found_in.is_sound) == (2, 0, True)


async def test_a_server_that_lost_everything_gets_it_again(memory: Memory) -> None:
    """M-023: words until then."""
    space = await entered(memory)
    async with at_qdrant(memory.database, IN_MEMORY) as index:
        await learnt(memory, index, space, ["a", "b"])
    async with at_qdrant(memory.database, IN_MEMORY) as index:
        assert await found(index, space, "a") == []
        assert len(await index.missing(space, 9)) == 2
        with pytest.raises(MemoryUnavailable, match="still being made"):
            await found(index, space, "a")


async def test_a_switch_of_the_index_leaves_nothing_behind(memory: Memory) -> None:
    """M-077: what is retired while the other one is used is gone from both."""
    needs_sqlite_vec(memory.database)
    local = LocalVectors(memory.database)
    space = await entered(memory)
    async with at_qdrant(memory.database, IN_MEMORY) as remote:
        numbers = await learnt(memory, remote, space, ["a", "b"])
        with pytest.raises(MemoryUnavailable, match="still being made"):
            await found(local, space, "a")
        owed = {each.seq: each.id for each in await local.missing(space, 9)}
        entries = [Embedded(numbers[n], owed[numbers[n]], b"d", (some(n),)) for n in "ab"]
        await put(memory, local, space, entries)
        await memory.retire("fact a")
        assert await found(local, space, "a") == [numbers["b"]]
        assert await found(remote, space, "a") == [numbers["b"]]
        await remote.settle()
        assert (await checked(memory.database, remote, space)).is_sound
