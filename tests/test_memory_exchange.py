"""Facts go out as lines of JSON and come in again, however often the import is killed."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tiers import examples
from tests.world.clock import NOON
from tests.world.memory import ANN, ROOM, Memory, because, memory_in
from wintermute.memory.exchange import Import, ImportResult, exported
from wintermute.messages import Json


async def take(memory: Memory, lines: Iterable[str | bytes]) -> ImportResult:
    zone = ZoneInfo("Europe/Berlin")
    reader = Import(memory.database, memory.facts, memory.changes, ANN, zone)
    return await reader.store_lines(lines, because("import"))


def line(**values: object) -> str:
    return json.dumps(values)


async def test_a_line_may_say_everything_about_a_fact(memory: Memory) -> None:
    """M-067: ids are kept, `at` is the fact's age, a time without zone is the person's."""
    done = await take(
        memory,
        [
            line(text="- likes\ntea"),
            line(
                id="f1",
                text="x" * 20_000,
                at="2020-01-02T03:04:05",
                speaker="@bob:test",
                scope=ROOM,
                source="harvest",
                origins=["$1"],
                valid_from="2019-07-01",
                colour="unknown keys are passed over",
            ),
        ],
    )
    assert (done.stored, done.problems) == (2, ())
    assert done.scopes == {ANN, ROOM}
    (mine,) = await memory.facts.live(ANN)
    assert (mine.text, mine.source, mine.created_at) == ("likes tea", "user_explicit", NOON)
    (other,) = await memory.facts.live(ROOM)
    assert (other.id, other.speaker, other.source) == ("f1", "@bob:test", "harvest")
    assert other.created_at == datetime(2020, 1, 2, 2, 4, 5, tzinfo=UTC)
    assert other.valid_from == datetime(2019, 6, 30, 22, tzinfo=UTC)
    assert other.origins == ("$1",)


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        ("no json", "JSON"),
        (b"\xff{}", "JSON"),
        ("[" * 100_000, "JSON"),
        ("[1]", "object"),
        (line(id="a"), "text"),
        (line(text=5), "text"),
        (line(text="x" * 20_001), "at most 20000"),
        (line(text="good", id=5), "id"),
        (line(text="good", id=""), "id"),
        (line(text="good", id="a\nb"), "id"),
        (line(text="good", at="yesterday"), "at"),
        (line(text="good", at="0001-01-01T00:00:00"), "at"),
        (line(text="good", at=1588593600), "at"),
        (line(text="good", scope="global"), "scope"),
        (line(text="good", scope="person:ann"), "scope"),
        (line(text="good", scope="room:!a b"), "scope"),
        (line(text="good", source="dreamt"), "source"),
        (line(text="good", speaker=["@a:b"]), "speaker"),
        (line(text="good", speaker="\ud800"), "speaker"),
        (line(text="good", origins="$1"), "origins"),
        (line(text="good", origins=[1]), "origins"),
    ],
)
async def test_a_bad_line_is_named_and_the_others_are_taken(
    memory: Memory, bad: str | bytes, problem: str
) -> None:
    """M-067."""
    done = await take(memory, [line(text="first one"), "", bad, line(text="last one")])
    assert await memory.texts() == ["first one", "last one"]
    ((number, told),) = done.problems
    assert number == 3
    assert problem in told


async def test_the_same_again_makes_no_second_row(memory: Memory) -> None:
    """M-067: by id, live or retired; without one by text."""
    lines = [line(id="f1", text="likes tea"), line(text="has a dog", source="harvest")]
    await take(memory, lines)
    await memory.retire("likes tea")
    done = await take(memory, [*lines, line(text="Has a  dog"), line(id="f2", text="has a dog")])
    assert (done.stored, done.known, done.raised) == (0, 3, 1)
    assert await memory.texts() == ["has a dog"]
    rows = await memory.database.rows("SELECT id FROM facts")
    assert len(rows) == 2


@pytest.mark.slow
async def test_an_import_of_any_length_is_one_change(memory: Memory) -> None:
    """M-065, M-067: over its many transactions."""
    done = await take(memory, (line(id=f"f{n}", text=f"fact {n}") for n in range(1_200)))
    assert done.stored == 1_200
    (change_set,) = await memory.changes.history(["fact"])
    assert (change_set.id, change_set.cause) == (done.set_id, "import")
    assert len(change_set.changes) == 1_200
    await memory.take_back()
    assert await memory.facts.count(ANN) == 0


async def test_nothing_new_leaves_no_change_set(memory: Memory) -> None:
    await take(memory, [line(text="likes tea")])
    assert (await take(memory, [line(text="likes tea")])).set_id is None
    assert len(await memory.changes.history(["fact"])) == 1


async def test_what_goes_out_comes_in_the_same(memory: Memory, tmp_path: Path) -> None:
    """M-068."""
    await memory.add("likes tea 🍵")
    memory.file.write_text("likes tea 🍵\n素食\n", "utf-8")
    await memory.flat.text(ANN)
    memory.clock.advance(5)
    async with memory.database.transaction() as tx:
        await memory.facts.add(
            tx, because(), "has a dog", "harvest", scope=ROOM, speaker="@b:c", origins=["$1"]
        )
    await memory.add("is gone")
    await memory.retire("is gone")
    lines = await exported(memory.facts, await memory.facts.scopes())
    assert [json.loads(text)["text"] for text in lines] == ["likes tea 🍵", "素食", "has a dog"]
    (tmp_path / "empty").mkdir()
    async with memory_in(tmp_path / "empty") as other:
        await take(other, lines)
        assert await exported(other.facts, await other.facts.scopes()) == lines
        for scope in (ANN, ROOM):
            assert await other.facts.live(scope) == await memory.facts.live(scope)


JSON: st.SearchStrategy[object] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=4,
)
KEYS = st.sampled_from(["text", "id", "at", "speaker", "scope", "source", "origins", "valid_from"])


@settings(max_examples=examples(40))
@given(st.lists(st.dictionaries(KEYS, JSON) | JSON, max_size=9))
def test_no_line_stops_an_import(values: list[object]) -> None:
    """M-067: each is a fact or a problem."""
    asyncio.run(_take_all([json.dumps(value) for value in values]))


async def _take_all(lines: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with memory_in(Path(folder)) as memory:
            done = await take(memory, lines)
            assert done.stored + done.raised + done.known + len(done.problems) == len(lines)


CHILD = """
import asyncio, sys
from pathlib import Path
from zoneinfo import ZoneInfo
from tests.world.memory import ANN, because, memory_in
from wintermute.memory.exchange import Import

def told(lines):
    for n, line in enumerate(lines, 1):
        if n % 100 == 0:
            print(n, flush=True)
        yield line

async def main():
    async with memory_in(Path(sys.argv[1])) as memory:
        reader = Import(memory.database, memory.facts, memory.changes, ANN, ZoneInfo("UTC"))
        with open(sys.argv[2], "rb") as file:
            done = await reader.store_lines(told(file), because("import"))
        print("done", done.stored, done.known)

asyncio.run(main())
"""


@pytest.mark.quick("600")
@pytest.mark.parametrize("killed_at", [400, 600, 1500, 1600])
async def test_a_killed_import_leaves_no_gap_and_no_double(tmp_path: Path, killed_at: int) -> None:
    """M-067: killed while it reads or stores, and run again; lines without an id too."""
    source = tmp_path / "facts.jsonl"
    named: list[Json] = [{"text": f"fact {n}", "id": f"f{n}"} for n in range(1_000)]
    source.write_text(
        "\n".join(json.dumps(v) for v in [*named, *({"text": f"bare {n}"} for n in range(1_000))])
    )
    command = [sys.executable, "-c", CHILD, str(tmp_path), str(source)]
    assert _killed(command, killed_at) == -signal.SIGKILL
    async with memory_in(tmp_path) as memory:
        stored = await memory.facts.count(ANN)
        assert stored % 500 == 0
        assert stored >= killed_at // 500 * 500 - 500
        with source.open("rb") as file:
            done = await take(memory, file)
        assert (done.known, done.stored) == (stored, 2_000 - stored)
        assert sorted(await memory.texts()) == sorted(
            f"{word} {n}" for word in ("fact", "bare") for n in range(1_000)
        )
        sets = await memory.changes.history(["fact"])
        assert sum(len(found.changes) for found in sets) == 2_000


def _killed(command: list[str], killed_at: int) -> int:
    """Kill the import as soon as it has read so many lines; how it ended."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        for told in child.stdout:
            if told == f"{killed_at}\n":
                os.kill(child.pid, signal.SIGKILL)
    return child.returncode
