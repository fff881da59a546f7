"""Vectors of facts: one contract for our own database and for Qdrant, and what may go wrong with each."""

import asyncio
import math
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.world.memory import ANN, ROOM, Memory, because
from tests.world.vectors import (
    IN_MEMORY,
    SIZE,
    at_qdrant,
    at_server,
    checked,
    cosine,
    embedded,
    entered,
    found,
    learnt,
    needs_sqlite_vec,
    put,
    seq,
    some,
    vector,
)
from wintermute.config.read import environment
from wintermute.db import open_database
from wintermute.errors import MemoryUnavailable
from wintermute.memory.vectors import Embedded, LocalVectors, Space, Spaces, VectorIndex, packed

SERVER = "WINTERMUTE_TEST_QDRANT"
"""The variable with the URL of a Qdrant server, which the contract is run against as well."""


@pytest.fixture(params=["local", "qdrant", *(["server"] if SERVER in environment() else [])])
async def index(memory: Memory, request: pytest.FixtureRequest) -> AsyncIterator[VectorIndex]:
    if request.param == "local":
        needs_sqlite_vec(memory.database)
        yield LocalVectors(memory.database)
        return
    if request.param == "server":
        async with at_server(memory.database, environment()[SERVER]) as index:
            yield index
        return
    async with at_qdrant(memory.database, IN_MEMORY) as index:
        yield index


# The contract


async def test_the_nearest_come_first_with_their_cosine(memory: Memory, index: VectorIndex) -> None:
    """M-014: what bytes lose is less than a hundredth."""
    space = await entered(memory)
    numbers = await learnt(memory, index, space, map(str, range(60)))
    for question in ("7", "a", "b"):
        near = await index.nearest(space, ANN, some(question), 10)
        likenesses = {
            number: cosine(some(question), some(name)) for name, number in numbers.items()
        }
        best = sorted(likenesses.values(), reverse=True)[:10]
        assert [each.likeness for each in near] == pytest.approx(best, abs=0.01)
        assert all(each.likeness == pytest.approx(likenesses[each.seq], abs=0.01) for each in near)
    assert (await index.nearest(space, ANN, some("7"), 1))[0].seq == numbers["7"]
    assert await index.nearest(space, ANN, some("7"), 0) == []
    assert (await checked(memory.database, index, space)).facts == 60


async def test_a_scope_is_searched_alone(memory: Memory, index: VectorIndex) -> None:
    """M-010: also where most that is near belongs to others."""
    space = await entered(memory)
    await learnt(memory, index, space, ["tea", *map(str, range(40))], scope=ROOM)
    mine = await learnt(memory, index, space, ["cake"])
    assert await found(index, space, "tea") == [mine["cake"]]
    assert await found(index, space, "tea", scope="person:@eve:test") == []


async def test_a_vector_has_the_scope_of_its_fact(memory: Memory, index: VectorIndex) -> None:
    """M-010: whatever the caller says."""
    space = await entered(memory)
    fact, _ = await memory.add("likes tea", scope=ROOM)
    await put(memory, index, space, [await embedded(memory, fact, some("tea"))], scope=ANN)
    assert [each.id for each in await index.missing(space, 9)] == [fact.id]
    assert (await checked(memory.database, index, space)).facts == 0


async def test_a_long_text_is_found_by_its_best_piece(memory: Memory, index: VectorIndex) -> None:
    """And has no piece too many when it has become shorter."""
    space = await entered(memory)
    numbers = await learnt(memory, index, space, ["x"])
    fact, _ = await memory.add("a long story")
    story = await embedded(memory, fact, some("a"), some("b"), some("c"))
    await put(memory, index, space, [story])
    for name in "abc":
        near = await index.nearest(space, ANN, some(name), 5)
        assert near[0].likeness == pytest.approx(1, abs=0.01)
        assert [each.seq for each in near] == [story.seq, numbers["x"]]
    await put(memory, index, space, [await embedded(memory, fact, some("a"))])
    await index.settle()
    near = await index.nearest(space, ANN, some("c"), 5)
    assert {each.seq: each.likeness for each in near}[story.seq] < 0.9
    assert (await checked(memory.database, index, space)).is_sound


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(vector(math.nan, *[0.1] * (SIZE - 1)), id="NaN"),
        pytest.param(vector(*[0.1] * (SIZE - 1), math.nan), id="NaN at last"),
        pytest.param(vector(math.inf, *[0.1] * (SIZE - 1)), id="infinite"),
        pytest.param(vector(*[0.0] * SIZE), id="zero"),
        pytest.param(vector(*[0.1] * (SIZE + 1)), id="longer"),
        pytest.param(vector(*[0.1] * SIZE)[:-1], id="cut"),
        pytest.param(b"", id="empty"),
    ],
)
async def test_a_vector_of_no_use_is_refused_before_anything_is_stored(
    memory: Memory, index: VectorIndex, wrong: bytes
) -> None:
    """M-021, M-071: neither among others nor as a question."""
    space = await entered(memory)
    await learnt(memory, index, space, ["tea"])
    good, bad = [(await memory.add(text))[0] for text in ("likes cake", "likes pie")]
    entries = [
        await embedded(memory, good, some("cake")),
        await embedded(memory, bad, some("pie"), wrong),
    ]
    with pytest.raises(MemoryUnavailable, match="model"):
        await put(memory, index, space, entries)
    with pytest.raises(MemoryUnavailable, match="model"):
        await index.nearest(space, ANN, wrong, 5)
    assert (await checked(memory.database, index, space)).facts == 1
    assert [each.id for each in await index.missing(space, 9)] == [bad.id, good.id]


async def test_what_leaves_the_facts_leaves_the_index(memory: Memory, index: VectorIndex) -> None:
    """M-020, M-074: retired, ended, reworded and purged, without a word to the index."""
    space = await entered(memory)
    numbers = await learnt(memory, index, space, ["a", "b", "c", "d", "e"])
    await memory.retire("fact a")
    fact = next(each for each in await memory.facts.live(ANN) if each.text == "fact c")
    async with memory.database.transaction() as tx:
        await tx.execute("UPDATE facts SET ended = 1, valid_to = '' WHERE seq = ?", (numbers["b"],))
        await memory.facts.reword(tx, ANN, [(fact.id, "Fact C")])
        await tx.execute("DELETE FROM facts WHERE seq = ?", (numbers["d"],))
    assert await found(index, space, "a") == [numbers["e"]]
    await index.settle()
    assert await found(index, space, "a") == [numbers["e"]]
    assert [each.seq for each in await index.missing(space, 9)] == [numbers["c"]]
    found_in = await checked(memory.database, index, space)
    assert (found_in.facts, found_in.owed, found_in.is_sound) == (1, 1, True)


async def test_what_comes_back_is_embedded_again(memory: Memory, index: VectorIndex) -> None:
    """M-065: and is found as before."""
    space = await entered(memory)
    numbers = await learnt(memory, index, space, ["a", "b"])
    await memory.retire("fact a")
    await index.settle()
    await memory.take_back()
    (back,) = await index.missing(space, 9)
    assert (back.seq, back.scope) == (numbers["a"], ANN)
    await put(memory, index, space, [Embedded(back.seq, back.id, b"d", (some("a"),))])
    await index.settle()
    assert (await found(index, space, "a"))[0] == numbers["a"]


async def test_what_was_said_right_after_what_is_removed_for_good_is_embedded_anew(
    memory: Memory, index: VectorIndex
) -> None:
    """M-030: its vector has the end of that text in it, and not the one after next."""
    space = await entered(memory)
    async with memory.database.transaction() as tx:
        told = [
            (
                await memory.facts.add(
                    tx, because(), f"fact {n}", "harvest", scope=ANN, speaker="Ann"
                )
            )[0]
            for n in "123"
        ]
    entries = [await embedded(memory, fact, some(fact.text)) for fact in told]
    await put(memory, index, space, entries)
    async with memory.database.transaction() as tx:
        await memory.facts.purge(tx, ANN, [told[0].id])
    assert await found(index, space, "fact 2") == [entries[2].seq]
    assert await index.settle() == 0
    assert [each.id for each in await index.missing(space, 9)] == [told[1].id]


async def test_what_was_retired_meanwhile_is_not_stored(memory: Memory, index: VectorIndex) -> None:
    """Nor does it stay where it was sent."""
    space = await entered(memory)
    numbers = await learnt(memory, index, space, ["b"])
    fact, _ = await memory.add("fact a")
    entries = [await embedded(memory, fact, some("a"), some("a2"))]
    await index.send(space, ANN, entries)
    await memory.retire("fact a")
    await index.settle()
    async with memory.database.transaction() as tx:
        await index.put(tx, space, ANN, entries)
    assert await found(index, space, "a") == [numbers["b"]]
    await index.settle()
    found_in = await checked(memory.database, index, space)
    assert (found_in.facts, found_in.is_sound) == (1, True)


async def test_the_missing_come_newest_first_in_parts(memory: Memory, index: VectorIndex) -> None:
    """M-008."""
    space = await entered(memory)
    facts = [
        (await memory.add(f"fact {n}", scope=scope))[0] for n in "123" for scope in (ANN, ROOM)
    ]
    numbers = [await seq(memory, fact) for fact in facts][::-1]
    first = await index.missing(space, 4)
    assert [each.seq for each in first] == numbers[:4]
    assert {each.scope for each in first} == {ANN, ROOM}
    assert [each.seq for each in await index.missing(space, 4, first[-1].seq)] == numbers[4:]


async def test_a_text_without_a_word_is_never_found(memory: Memory, index: VectorIndex) -> None:
    """Else it would be owed for ever."""
    space = await entered(memory)
    fact, _ = await memory.add("1234567")
    await put(memory, index, space, [await embedded(memory, fact)])
    assert await index.missing(space, 9) == []
    assert await found(index, space, "a") == []
    found_in = await checked(memory.database, index, space)
    assert (found_in.facts, found_in.owed, found_in.is_sound) == (1, 0, True)


async def test_another_model_is_another_space(memory: Memory, index: VectorIndex) -> None:
    """M-022: words until its last vector is there; then nothing of the old one is left."""
    old = await entered(memory)
    numbers = await learnt(memory, index, old, ["a", "b"])
    new = await entered(memory, "other", 2 * SIZE)
    assert await entered(memory, "other", 2 * SIZE) == new
    assert len(await index.missing(new, 9)) == 2
    for name in "ab":
        with pytest.raises(MemoryUnavailable, match="still being made"):
            await found(index, new, "a")
        (owed,) = [each for each in await index.missing(new, 9) if each.seq == numbers[name]]
        entry = Embedded(owed.seq, owed.id, b"d", (some(name, 2 * SIZE),))
        await put(memory, index, new, [entry])
    assert await found(index, new, "a") == [numbers["a"], numbers["b"]]
    assert await Spaces(memory.database).latest_of("model") is None
    with pytest.raises(MemoryUnavailable, match="still being made"):
        await found(index, old, "a")
    assert (await checked(memory.database, index, new)).is_sound


async def test_what_likenesses_mean_stands_with_the_model(memory: Memory) -> None:
    """M-022."""
    space = await entered(memory)
    assert (space.same, space.floor) == (None, None)
    async with memory.database.transaction() as tx:
        await Spaces(memory.database).calibrate(tx, space, 0.85, 0.5, 0.25)
    kept = await Spaces(memory.database).latest_of("model")
    assert kept == Space(space.id, "model", SIZE, 0.85, 0.5, 0.25)
    with pytest.raises(MemoryUnavailable, match="model gives vectors of 9000 numbers"):
        await entered(memory, "model", 9000)


async def test_a_rebuilt_index_says_what_it_lacks(memory: Memory, index: VectorIndex) -> None:
    """M-017."""
    space = await entered(memory)
    names = [str(n) for n in range(30)]
    numbers = await learnt(memory, index, space, names)
    await index.rebuild(space)
    assert (await checked(memory.database, index, space)).is_sound
    owed = {each.seq: each.id for each in await index.missing(space, 99)}
    entries = [
        Embedded(numbers[name], owed[numbers[name]], b"d", (some(name),))
        for name in names
        if numbers[name] in owed
    ]
    await put(memory, index, space, entries)
    assert (await found(index, space, "7"))[0] == numbers["7"]
    assert (await checked(memory.database, index, space)).facts == 30


# In our own database


@pytest.fixture
def local(memory: Memory) -> LocalVectors:
    needs_sqlite_vec(memory.database)
    return LocalVectors(memory.database)


async def test_no_other_extension_can_be_loaded(memory: Memory) -> None:
    """What a statement says must not run code of its own."""
    needs_sqlite_vec(memory.database)
    with pytest.raises(Exception, match="not authorized"):
        await memory.database.rows("SELECT load_extension('vec0')")


async def test_a_database_is_opened_without_numpy(tmp_path: Path) -> None:
    """DESIGN A-8: sqlite-vec's own module would import it, 30 MB."""
    code = (
        "import asyncio, sys, pathlib\nfrom wintermute.db import open_database\n"
        "async def main():\n    async with open_database(pathlib.Path(sys.argv[1])): pass\n"
        "asyncio.run(main())\nsys.exit('numpy' in sys.modules)"
    )
    file = str(tmp_path / "test.db")
    child = await asyncio.create_subprocess_exec(sys.executable, "-c", code, file)
    assert await child.wait() == 0


async def test_a_lost_index_is_made_by_a_search(memory: Memory, local: LocalVectors) -> None:
    """M-017: nobody has to notice."""
    space = await entered(memory)
    numbers = await learnt(memory, local, space, ["a", "b"])
    async with memory.database.transaction() as tx:
        await tx.execute("DROP INDEX facts_vec")
    assert await found(local, space, "a") == [numbers["a"], numbers["b"]]
    assert await memory.database.exists("SELECT 1 FROM sqlite_schema WHERE name = 'facts_vec'")


@pytest.mark.parametrize(
    "damage",
    ["vector = substr(vector, 2)", "bits = zeroblob(3)", "bits = NULL", "scope = 'room:!x'"],
)
async def test_a_damaged_row_is_made_anew(memory: Memory, local: LocalVectors, damage: str) -> None:
    """M-017: the others stay as they are."""
    space = await entered(memory)
    numbers = await learnt(memory, local, space, ["a", "b"])
    async with memory.database.transaction() as tx:
        await tx.execute(f"UPDATE fact_vectors SET {damage} WHERE seq = ?", (numbers["a"],))
    assert not (await checked(memory.database, local, space)).is_sound
    await local.rebuild(space)
    assert (await checked(memory.database, local, space)).is_sound
    assert [each.seq for each in await local.missing(space, 9)] == [numbers["a"]]
    assert await found(local, space, "b") == [numbers["b"]]


async def test_without_sqlite_vec_all_but_the_search_goes_on(
    memory: Memory, local: LocalVectors, tmp_path: Path
) -> None:
    """And what is forgotten there leaves no vector behind: M-030."""
    space = await entered(memory)
    numbers = await learnt(memory, local, space, ["a", "b"])
    trace = packed(some("a"), space)
    file = tmp_path / "test.db"
    assert trace in b"".join(each.read_bytes() for each in files_of(file))
    async with open_database(file, extensions=False) as database:
        plain = LocalVectors(database)
        assert not database.knows_vectors
        for call in (plain.rebuild(space), plain.nearest(space, ANN, some("a"), 5)):
            with pytest.raises(MemoryUnavailable, match="sqlite-vec cannot be loaded"):
                await call
        async with database.transaction() as tx:
            await tx.execute("DELETE FROM facts WHERE seq = ?", (numbers["a"],))
    assert await memory.database.scrub()
    assert trace not in b"".join(each.read_bytes() for each in files_of(file))
    assert await found(local, space, "a") == [numbers["b"]]
    assert (await checked(memory.database, local, space)).is_sound


def files_of(file: Path) -> list[Path]:
    return sorted(file.parent.glob(f"{file.name}*"))


PUTTING = """
import asyncio, sys
from pathlib import Path
from tests.world.memory import ANN
from tests.world.vectors import some
from wintermute.db import open_database
from wintermute.memory.vectors import Embedded, LocalVectors, Space

async def main():
    async with open_database(Path(sys.argv[1])) as database:
        index, space = LocalVectors(database), Space(1, "model", 20, None, None, None)
        for turn in range(10_000):
            async with database.transaction() as tx:
                ids = await tx.rows("SELECT seq, id FROM facts")
                entries = [
                    Embedded(row["seq"], row["id"], str(turn).encode(), (some(turn), some(-turn)))
                    for row in ids
                ]
                await index.put(tx, space, ANN, entries)
                await index.complete(tx, space)
            print(turn, flush=True)

asyncio.run(main())
"""


@pytest.mark.quick("3")
@pytest.mark.parametrize("turns", [1, 3, 6])
async def test_a_kill_in_the_middle_leaves_all_vectors_of_a_time_or_none(
    memory: Memory, local: LocalVectors, tmp_path: Path, turns: int
) -> None:
    """M-063: the index is what the rows say, and no fact has pieces of two texts."""
    space = await entered(memory)
    for n in range(40):
        await memory.add(f"fact {n}")
    file = tmp_path / "test.db"
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PUTTING, str(file), stdout=subprocess.PIPE
    )
    assert child.stdout is not None
    for _ in range(turns):
        assert await child.stdout.readline()
    await asyncio.sleep(0.003 * turns)  # somewhere in the next one
    child.send_signal(signal.SIGKILL)
    await child.wait()
    async with open_database(file) as database:
        found_in = await checked(database, LocalVectors(database), space)
        assert (found_in.facts, found_in.owed, found_in.is_sound) == (40, 0, True)
        assert len(await database.scalars("SELECT DISTINCT digest FROM fact_vectors")) == 1
        (rows,) = await database.scalars("SELECT count(*) FROM fact_vectors")
        assert rows == 80
