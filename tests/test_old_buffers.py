"""MEMORIES.txt saved from an editor that has been open since before the last memories (F-032)."""

import asyncio
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tiers import examples
from tests.world.memory import ANN, Memory, memory_in
from wintermute.memory.fact import FileLine, key
from wintermute.memory.flat_file import (
    MOST,
    FileMerge,
    FileVersions,
    FlatFile,
    LineSpan,
    nearest,
    plan,
)


@pytest.fixture
async def memory(tmp_path: Path) -> AsyncIterator[Memory]:
    """Three memories, learnt one after the other; the file had each state."""
    async with memory_in(tmp_path) as memory:
        await learn(memory, "likes tea", "has a dog", "owns a boat")
        yield memory


async def learn(memory: Memory, *texts: str) -> None:
    """The assistant learns it, and the file shows it."""
    for text in texts:
        await memory.add(text, "harvest")
        await memory.flat.text(ANN)


async def save(memory: Memory, *lines: str) -> list[str]:
    """A person saves these lines; what is remembered then."""
    memory.file.write_text("".join(f"{line}\n" for line in lines))
    text = await memory.flat.text(ANN)
    assert sorted(filter(None, text.splitlines())) == sorted(await memory.texts())
    return await memory.texts()


async def untold_texts(memory: Memory) -> list[str]:
    """The texts of what the owner is to be told of."""
    return [line.text for line in await FileVersions(memory.database).unreported()]


async def test_a_memory_learnt_since_the_buffer_was_opened_stays(memory: Memory) -> None:
    assert await save(memory, "likes tea", "has a dog", "plays chess") == [
        "likes tea",
        "has a dog",
        "owns a boat",
        "plays chess",
    ]
    assert await untold_texts(memory) == ["owns a boat"]


async def test_what_was_removed_in_the_old_buffer_goes_all_the_same(memory: Memory) -> None:
    """Three ways: removed there, added there, learnt here."""
    assert await save(memory, "has a dog", "plays chess") == [
        "has a dog",
        "owns a boat",
        "plays chess",
    ]
    assert await untold_texts(memory) == ["owns a boat"]


async def test_an_old_buffer_that_is_saved_again_and_again_removes_nothing(memory: Memory) -> None:
    """The owner hears of it once."""
    versions = FileVersions(memory.database)
    await save(memory, "likes tea", "has a dog", "plays chess")
    async with memory.database.transaction() as tx:
        await versions.mark_reported(tx, await versions.unreported())
    for more in (["plays go"], ["plays go", "reads"], ["plays go", "reads"]):
        now = await save(memory, "likes tea", "has a dog", "plays chess", *more)
        assert sorted(now) == sorted(
            ["likes tea", "has a dog", "owns a boat", "plays chess", *more]
        )
    assert await untold_texts(memory) == []


async def test_a_buffer_from_yesterday_is_found_among_the_last_versions(memory: Memory) -> None:
    await learn(memory, *[f"fact number {n}" for n in range(MOST - 2)])
    assert len(await save(memory, "likes tea", "has a dog")) == MOST + 1
    await learn(memory, "one more", "and another", "and a third", "and a fourth")
    assert "fact number 0" in await save(memory, "likes tea", "has a dog", "owns a boat")


async def test_a_buffer_that_is_older_than_all_known_versions_takes_nothing_out(
    memory: Memory,
) -> None:
    """F-066: of a daemon that learns quickly, 20 versions are less than a second."""
    await learn(memory, *[f"fact number {n}" for n in range(MOST + 3)])
    now = await save(memory, "likes tea", "has a dog", "owns a boat", "plays chess")
    assert len(now) == MOST + 7
    assert await untold_texts(memory) == [f"fact number {n}" for n in range(MOST + 3)]


async def test_a_new_line_that_is_only_like_an_unseen_memory_does_not_replace_it(
    memory: Memory,
) -> None:
    """F-066: they may well be two things."""
    await learn(memory, "Tea number 2 is green")
    now = await save(memory, "likes tea", "has a dog", "owns a boat", "Pen number 2 is blue")
    assert {"Tea number 2 is green", "Pen number 2 is blue"} <= {*now}


async def test_order_doubles_and_blank_lines_make_no_other_version(memory: Memory) -> None:
    assert await save(memory, "has a dog", "", "Likes  tea", "has a dog") == [
        "Likes tea",
        "has a dog",
        "owns a boat",
    ]


async def test_what_is_removed_from_the_newest_text_goes(memory: Memory) -> None:
    """M-015 stays: an older memory, a line of one's own, or everything."""
    assert await save(memory, "has a dog", "owns a boat") == ["has a dog", "owns a boat"]
    await save(memory, "has a dog", "owns a boat", "plays chess")
    assert await save(memory, "has a dog", "owns a boat") == ["has a dog", "owns a boat"]
    assert await save(memory) == []
    assert await untold_texts(memory) == []


async def test_the_newest_memory_reworded_by_hand_is_not_there_twice(memory: Memory) -> None:
    """Whoever reworded it has seen it."""
    assert await save(memory, "likes tea", "has a dog", "owns a small boat") == [
        "likes tea",
        "has a dog",
        "owns a small boat",
    ]


@pytest.mark.parametrize("ours", [False, True], ids=["a person removed it", "we retired it"])
async def test_lines_that_are_back_in_the_file_come_back(memory: Memory, *, ours: bool) -> None:
    """M-090: also where the file equals a former version; what is newer than that stays, and is
    told by its text.
    """
    if ours:
        await memory.retire("likes tea")
    else:
        await save(memory, "has a dog", "owns a boat")
    await learn(memory, "plays chess")
    assert sorted(await save(memory, "likes tea", "has a dog", "owns a boat")) == sorted(
        ["likes tea", "has a dog", "owns a boat", "plays chess"]
    )
    assert await untold_texts(memory) == ["plays chess"]
    [tea] = [fact for fact in await memory.facts.live(ANN) if fact.text == "likes tea"]
    assert tea.protected  # no night takes it out again


async def test_an_undo_holds_against_the_buffer_it_took_back(memory: Memory) -> None:
    await save(memory, "has a dog", "owns a boat")
    await memory.take_back()
    await memory.flat.text(ANN)
    assert await save(memory, "has a dog", "owns a boat") == [
        "likes tea",
        "has a dog",
        "owns a boat",
    ]
    assert await untold_texts(memory) == ["likes tea"]


async def test_another_program_knows_the_versions_too(memory: Memory, tmp_path: Path) -> None:
    """Also after a restart; and a file that an editor replaced by renaming is no other file."""
    part = tmp_path / "4913"
    part.write_text("likes tea\n")
    part.replace(memory.file)
    restarted = FlatFile(
        memory.database, memory.facts, memory.places, memory.changes, memory.decisions
    )
    assert await restarted.text(ANN) == "likes tea\nhas a dog\nowns a boat\n"


async def test_what_is_forgotten_is_in_no_version(memory: Memory) -> None:
    """F-034: no byte of it, and an old buffer teaches it as anything else."""
    fact = (await memory.facts.live(ANN))[-1]
    await save(memory, "likes tea", "has a dog")
    assert await memory.flat.remove(ANN, [fact.id]) == 1
    assert 3 not in await memory.database.scalars("SELECT fact FROM file_lines")
    assert await save(memory, "likes tea", "has a dog") == ["likes tea", "has a dog"]


async def test_only_the_last_versions_are_kept(memory: Memory) -> None:
    """However often the file changes."""
    for n in range(3 * MOST):
        await learn(memory, f"fact number {n}")
        await memory.retire(f"fact number {n}")
        await memory.flat.text(ANN)
    rows = await memory.database.rows("SELECT * FROM file_lines")
    assert len(rows) <= 3 + MOST // 2
    assert len(await save(memory, "likes tea", "has a dog")) == 2


def span(text: str, since: int, until: int | None = None, *, ours: bool = True) -> LineSpan:
    return LineSpan(key(text), since, until, ours)


@pytest.mark.parametrize(
    ("names", "found"),
    [
        ({"a", "b"}, {"a", "b"}),
        ({"a", "b", "c"}, {"a", "b", "c"}),
        ({"a", "x"}, {"a"}),
        ({"a", "c", "x"}, {"a", "c"}),
        (set(), {"a", "c"}),
        ({"x", "y", "z"}, {"a", "c"}),
    ],
)
def test_the_version_that_differs_least_is_found(names: set[str], found: set[str]) -> None:
    """The versions are a, ab, abc, ac; what is like none of them is measured by the newest."""
    spans = [span("a", 1), span("b", 2, 4), span("c", 3)]
    assert nearest(spans, names) == found


def test_without_versions_a_missing_line_is_a_removed_one() -> None:
    """As of data from before there were any."""
    row = FileLine("id", "a", "a", True, True)
    assert plan(["b"], [row], []) == FileMerge(("b",), added=("b",), removed=("id",))


BUFFERS = st.lists(
    st.tuples(
        st.sampled_from(["open", "save", "add line", "drop line", "learn", "retire", "sync"]),
        st.integers(0, 9),
    ),
    max_size=16,
)


@settings(max_examples=examples(20))
@given(BUFFERS)
def test_whatever_is_saved_from_whatever_buffer_nothing_unseen_is_lost(
    steps: list[tuple[str, int]],
) -> None:
    """What the buffer never showed stays, and what was typed into it is there."""
    asyncio.run(_edit(steps))


async def _edit(steps: list[tuple[str, int]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with memory_in(Path(folder)) as memory:
            buffer, opened, shown = list[str](), set[str](), set[str]()
            for n, (what, place) in enumerate(steps):
                match what:
                    case "open":
                        buffer = (await memory.flat.text(ANN)).splitlines()
                        opened = shown = set(buffer)
                    case "save" if opened & set(buffer):  # else it was written anew
                        await memory.flat.text(ANN)
                        unseen = set(await memory.texts()) - shown
                        now = set(await save(memory, *buffer))
                        assert unseen <= now
                    case "add line":
                        buffer.insert(place, f"typed number{n} word{n} thing{n}")
                        shown = shown | {buffer[min(place, len(buffer) - 1)]}
                    case "drop line" if place < len(buffer):
                        del buffer[place]
                    case "learn":
                        await memory.add(f"learnt fact{n} about{n} that{n}")
                    case "retire" if await memory.texts():
                        await memory.retire(
                            (await memory.texts())[place % len(await memory.texts())]
                        )
                    case _:
                        await memory.flat.text(ANN)
