"""Switching how memories are kept, in every order, and what is killed over it: nothing is lost or doubled."""

import itertools
import json
import os
import shutil
import signal
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.world.clock import FakeClock
from tests.world.house import ANN, SCOPE
from tests.world.memory import words_are_sound
from tests.world.schema import open_migrated
from tests.world.terminal import PASSWORD, Terminal, keep_by
from wintermute.changes.change_sets import Reason
from wintermute.config.schema import Memory
from wintermute.db import open_database
from wintermute.ids import new_id
from wintermute.memory.flat_file import GENERATED
from wintermute.memory.ranking import Query
from wintermute.owner import Owner
from wintermute.stores import Stores

WHY = Reason("command", SCOPE)
WAYS = ("flat_file", "fts5", "local_vector", "qdrant")


@asynccontextmanager
async def kept(folder: Path, way: str, clock: FakeClock) -> AsyncIterator[Stores]:
    """The memories of a folder in one of the ways; meanings are nobody's matter here."""
    memory = Memory(backend=way)  # type: ignore[arg-type]  # one of them
    async with open_migrated(folder / "wintermute.db") as database:
        shared = (database, folder, Owner(ANN), clock, new_id)
        yield Stores.of(*shared, timezone="UTC", memory=memory)


async def is_sound(stores: Stores) -> bool:
    async with stores.database.transaction() as tx:
        return await words_are_sound(tx)


def edit_file(file: Path, line: str) -> str:
    """Write a line below and take the first one out, by hand; what was taken out."""
    first, *others = file.read_text().splitlines()
    file.write_text("\n".join([*others, line]) + "\n")
    return first


@pytest.mark.quick("flat_file", "fts5")
@pytest.mark.parametrize("first", WAYS)
async def test_in_every_order_each_edit_counts_once(tmp_path: Path, first: str) -> None:
    """M-077, M-018: where edits count; where they do not, they change nothing."""
    for order in itertools.permutations(WAYS):
        if order[0] == first:
            folder = tmp_path / "-".join(order)
            folder.mkdir()
            await switched(folder, [*order, order[0], "flat_file"])


async def switched(folder: Path, order: Sequence[str]) -> None:
    """Each way in turn: what was written by hand before it, what is stored, what is found."""
    file, clock, expected = folder / "MEMORIES.txt", FakeClock(), {"there before anything"}
    file.write_text("there before anything\n")
    for n, way in enumerate(order):
        clock.advance(60)
        async with kept(folder, way, clock) as stores:
            await stores.memories.text(SCOPE)
            async with stores.database.transaction() as tx:
                await stores.facts.add(tx, WHY, f"stored {n} by {way}", "harvest", scope=SCOPE)
            expected.add(f"stored {n} by {way}")
            text = await stores.memories.text(SCOPE)
            live = [fact.text for fact in await stores.facts.live(SCOPE)]
            assert Counter(live) == Counter(expected), (order, n)
            assert set(text.splitlines()) == expected
            assert set(file.read_text().splitlines()) - {GENERATED} == expected
            [hit] = await stores.memories.search(SCOPE, Query(f"stored {n}"), 1)
            assert hit.fact.text == f"stored {n} by {way}"
            assert await is_sound(stores)
        clock.advance(60)
        gone = edit_file(file, f"by hand {n}")
        if way == "flat_file":
            expected = expected - {gone} | {f"by hand {n}"}


async def test_a_file_says_that_it_is_generated_right_after_a_switch(tmp_path: Path) -> None:
    """M-092, M-016: of everybody, also of a room of which nothing is remembered; but what cannot be
    read is left as it is.
    """
    clock, room, other = FakeClock(), "room:!abc:test", "room:!def:test"
    async with kept(tmp_path, "flat_file", clock) as stores:
        for scope in (SCOPE, room, other):
            async with stores.database.transaction() as tx:
                why = Reason("command", scope)
                fact, _ = await stores.facts.add(tx, why, "likes tea", "harvest", scope=scope)
            await stores.memories.text(scope)
            if scope == room:
                await stores.memories.remove(room, [fact.id])
        stores.places.memories(other).write_bytes(b"caf\xe9\n")
    async with kept(tmp_path, "fts5", clock) as stores:
        await stores.memories.refresh()
        files = [stores.places.memories(scope).read_bytes() for scope in (SCOPE, room, other)]
    first = f"{GENERATED}\n".encode()
    assert files == [first + b"likes tea\n", first, b"caf\xe9\n"]


async def test_a_fact_keeps_id_age_and_source_through_all_of_them(tmp_path: Path) -> None:
    """M-077: the rows are the truth, no way of keeping them is."""
    clock = FakeClock()
    async with kept(tmp_path, "flat_file", clock) as stores:
        async with stores.database.transaction() as tx:
            fact, _ = await stores.facts.add(tx, WHY, "Ann likes tea", "harvest", scope=SCOPE)
        await stores.memories.text(SCOPE)
    for way in (*WAYS, *reversed(WAYS)):
        clock.advance(3600)
        async with kept(tmp_path, way, clock) as stores:
            await stores.memories.text(SCOPE)
            assert await stores.facts.live(SCOPE) == [fact]


# kill -9

TEAS = {f"Tea number {n} is green" for n in range(6)}
MILKS = {f"Milk number {n} is white" for n in range(8)}
BY_HAND = "Coffee is black"


@dataclass(frozen=True, slots=True)
class Kill:
    """A command that is killed, on memories that were kept in one way and are now in another."""

    before: str
    now: str
    words: tuple[str, ...]
    expected: frozenset[str]


LIST, IMPORT = ("memory", "list"), ("memory", "import", "more.jsonl")
REBUILD = ("memory", "rebuild-index")
KILLS = {
    "import into a list": Kill("flat_file", "flat_file", IMPORT, frozenset(TEAS | MILKS)),
    "import": Kill("fts5", "fts5", IMPORT, frozenset(TEAS | MILKS)),
    "rebuild": Kill("fts5", "fts5", REBUILD, frozenset(TEAS)),
    "switch to ranked": Kill("flat_file", "fts5", LIST, frozenset({*TEAS, BY_HAND})),
    "switch to a list": Kill("fts5", "flat_file", LIST, frozenset(TEAS)),
}


def as_lines(texts: Iterable[str]) -> str:
    return "".join(f"{json.dumps({'id': each, 'text': each})}\n" for each in sorted(texts))


def prepare(terminal: Terminal, kill: Kill) -> None:
    """Six memories, and a line that was written by hand before a switch."""
    keep_by(terminal, kill.before)
    terminal.says("memory", "import", "-", given=as_lines(TEAS).encode())
    (terminal.folder / "more.jsonl").write_text(as_lines(MILKS) + as_lines(TEAS))
    terminal.says("memory", "list")
    if kill.before != kill.now:
        with (terminal.data / "MEMORIES.txt").open("a") as file:
            file.write(f"{BY_HAND}\n")
    keep_by(terminal, kill.now)
    shutil.copytree(terminal.data, terminal.folder / "prepared")


def killed(terminal: Terminal, words: Sequence[str], at: int) -> bool:
    """Run it on the prepared folder until its statement of this number; whether it had so many."""
    shutil.rmtree(terminal.data)
    shutil.copytree(terminal.folder / "prepared", terminal.data)
    done = terminal.python.run(
        *words,
        cwd=terminal.folder,
        env={"PATH": os.defpath, "WINTERMUTE_PASSWORD": PASSWORD},
        trigger={"logger": "aiosqlite", "steps": [("executing", "")] * at},
    )
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode != 0


async def remembered(terminal: Terminal) -> Counter[str]:
    """What is live, once it is known that the index is what the rows say."""
    async with (
        open_database(terminal.data / "wintermute.db") as database,
        database.transaction() as tx,
    ):
        assert await words_are_sound(tx)
        return Counter(await tx.scalars("SELECT text FROM facts WHERE retired_at IS NULL"))


async def survives(terminal: Terminal, kill: Kill, points: Iterable[int]) -> None:
    """Kill it at each of these statements, look, and run it to its end."""
    at = 0
    for at in points:
        was_killed = killed(terminal, kill.words, at)
        left = await remembered(terminal)
        assert left.keys() >= kill.expected & TEAS
        assert left <= Counter(kill.expected), (at, left)
        terminal.says(*kill.words)
        assert await remembered(terminal) == Counter(kill.expected), at
        hits = terminal.json("memory", "search", "green tea", "--k", "20")["hits"]
        assert {hit["text"] for hit in hits} == TEAS, at
        terminal.says("memory", "list")  # an export that was not written yet is now
        lines = (terminal.data / "MEMORIES.txt").read_text().splitlines()
        assert Counter(lines) - Counter({GENERATED: 1}) == Counter(kill.expected), at
        assert (lines[0] == GENERATED) == (kill.now != "flat_file")
        if not was_killed:
            return
    assert at < MOST, "a command of more statements than are looked at"


MOST = 400


@pytest.mark.quick(every=5)
@pytest.mark.parametrize("kill", KILLS.values(), ids=list(KILLS))
async def test_what_is_killed_is_done_at_the_next_run(terminal: Terminal, kill: Kill) -> None:
    """M-067, M-063, M-077: no fact is lost or doubled; a few statements of the whole command."""
    prepare(terminal, kill)
    await survives(terminal, kill, (9, 18))


@pytest.mark.slow
@pytest.mark.parametrize("kill", KILLS.values(), ids=list(KILLS))
async def test_what_is_killed_at_any_statement_is_done_at_the_next_run(
    terminal: Terminal, kill: Kill, request: pytest.FixtureRequest
) -> None:
    """M-067, M-063, M-077: at every third statement until it goes through, at each with `--every 1`."""
    prepare(terminal, kill)
    step = 1 if int(request.config.getoption("every")) == 1 else 3
    await survives(terminal, kill, range(1, MOST + 1, step))
