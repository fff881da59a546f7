"""Facts: clean, once, in one scope, and with a way back."""

import asyncio
import tempfile
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tiers import examples
from tests.world.clock import NOON
from tests.world.memory import ANN, ROOM, Memory, because, memory_in
from wintermute.errors import ToolFailed
from wintermute.memory.core import Places, folder_name
from wintermute.memory.fact import LONGEST, MOST, Source, cleaned, entries, entry, key
from wintermute.owner import Owner


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("likes tea", "likes tea"),
        ("  likes\n\n tea\t", "likes tea"),
        ("# likes tea", "likes tea"),
        ("> - # * likes tea", "likes tea"),
        ("--- likes tea ---", "likes tea ---"),
        ("#\u200b# likes tea", "likes tea"),
        ("```likes tea", "likes tea"),
        ("likes\x00 \x1b[31mtea\u202e", "likes [31mtea"),
        ("likes\u2028tea", "likes tea"),
        ("likes \ud800tea", "likes tea"),
        ("-5 is too cold", "-5 is too cold"),
        ("+49 30 1234", "+49 30 1234"),
        ("👨‍👩‍👧 is the family", "👨‍👩‍👧 is the family"),
        ("喜欢茶", "喜欢茶"),
    ],
)
def test_a_fact_is_one_clean_line(text: str, clean: str) -> None:
    """M-006, P-016."""
    assert entry(text) == clean


@pytest.mark.parametrize("text", ["", "  ", "# -", "---", "***", "===", "...", "\n\n"])
def test_a_fact_that_says_nothing_is_refused(text: str) -> None:
    """M-006: naming the limit."""
    with pytest.raises(ToolFailed, match="at least 3 characters"):
        entry(text)
    assert entries(text) == []


@pytest.mark.parametrize("text", ["ab", "  ab ", "# - ab", "素食", "7"])
def test_a_short_fact_is_taken_only_from_a_file(text: str) -> None:
    """M-006: who writes it by hand means it."""
    with pytest.raises(ToolFailed, match="at least 3 characters"):
        entry(text)
    assert entries(text) == [cleaned(text)]


def test_a_fact_that_is_too_long_is_refused() -> None:
    """M-006: naming the limit."""
    assert entry("x" * MOST)
    with pytest.raises(ToolFailed, match="at most 2000 characters, this one has 2001"):
        entry("x" * (MOST + 1))


def test_a_very_long_line_of_a_file_becomes_several_facts() -> None:
    found = entries("word " * LONGEST)
    assert all(len(text) <= LONGEST for text in found)
    assert " ".join(found) == ("word " * LONGEST).strip()


@given(st.text())
def test_cleaning_twice_is_cleaning_once(text: str) -> None:
    """M-006, P-016: and what is left can be no heading, quote, list, divider or fence."""
    for line in entries(text):
        assert entries(line) == [line]
        assert entry(line, 1, len(line)) == line
        assert line.isprintable() or line.splitlines() == [line]
        assert not line.startswith(("#", ">", "*", "- ", "---", "```", "~~~", " "))


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        ("likes tea", "Likes  TEA", True),
        ("likes tea", "likestea", False),
        ("I am now here", "I am nowhere", False),
        ("  I am\tnow  here ", "I am now here", True),
        ("STRASSE 5", "straße 5", True),
        ("\uff54\uff45\uff41 time", "tea time", True),
        ("我 喜欢茶", "我喜欢茶", True),
        ("我有 2 只猫", "我有2只猫", True),
        ("房间 1 2", "房间 12", False),
        ("저는 차를", "저는차를", False),
        ("likes tea", "likes teas", False),
        ("room 1 2", "room 12", False),
        ("room 1  2", "room 1 2", True),
    ],
)
def test_equal_facts_have_one_key(one: str, other: str, equal: bool) -> None:
    """M-007."""
    assert (key(one) == key(other)) is equal


async def test_an_equal_fact_is_not_stored_again(memory: Memory) -> None:
    """M-007: only its source may rise; another scope is another matter."""
    first, outcome = await memory.add("likes tea", "harvest")
    assert outcome == "stored"
    assert await memory.add("Likes  Tea", "dreaming_merge") == (first, "known")
    raised, outcome = await memory.add("Likes Tea")
    assert (raised, outcome) == (replace(first, source="user_explicit", protected=True), "raised")
    assert (await memory.add("likes tea", "harvest"))[1] == "known"
    assert await memory.facts.live(ANN) == [raised]
    assert (await memory.add("likes tea", scope=ROOM))[1] == "stored"
    assert [s.cause for s in await memory.changes.history(["fact"], ANN)] == ["tool", "tool"]


async def test_where_an_equal_fact_was_learnt_is_kept_too(memory: Memory) -> None:
    """M-030: what had other evidence stays when one of them is forgotten."""
    for origin in ("$1", "$2", "$1"):
        async with memory.database.transaction() as tx:
            await memory.facts.add(
                tx, because(), "likes tea", "harvest", scope=ANN, speaker="@a:b", origins=[origin]
            )
    (fact,) = await memory.facts.live(ANN)
    assert (fact.origins, fact.speaker) == (("$1", "$2"), "@a:b")


async def test_the_newest_come_first(memory: Memory) -> None:
    """M-002, M-003: in strict order within one instant; no retired ones; no other scope's."""
    for n in range(1, 6):
        await memory.add(f"fact {n}")
    await memory.add("of the room", scope=ROOM)
    await memory.retire("fact 4")

    async def texts(begin: int, count: int) -> list[str]:
        return [fact.text for fact in await memory.facts.latest(ANN, begin, count)]

    assert await texts(1, 2) == ["fact 5", "fact 3"]
    assert await texts(3, 10) == ["fact 2", "fact 1"]
    assert await texts(1, 0) == await texts(1, -1) == await texts(9, 5) == []
    with pytest.raises(ToolFailed, match="begin"):
        await texts(0, 1)
    assert (await memory.facts.count(ANN), await memory.facts.scopes()) == (4, [ANN, ROOM])


async def test_a_fact_of_another_scope_is_out_of_reach(memory: Memory) -> None:
    """M-010."""
    fact, _ = await memory.add("secret", scope=ROOM)
    assert await memory.facts.get(fact.id, ANN) is None
    assert await memory.facts.get(fact.id, ROOM) == await memory.facts.get(fact.id) == fact
    async with memory.database.transaction() as tx:
        again = await memory.facts.supersede(tx, because(), (), dict.fromkeys([fact.id]))
        assert again.retired == ()
        done = await memory.facts.replace(tx, because(), ANN, [fact.id], [("new one", "harvest")])
        assert (done.retired, await memory.facts.purge(tx, ANN, [fact.id])) == ((), 0)
    assert await memory.facts.live(ROOM) == [fact]


async def test_a_line_that_a_rewritten_list_keeps_is_not_said_again_by_it(memory: Memory) -> None:
    """M-058: else the oldest word would be the newest evidence; who says it again makes it newer."""
    told, _ = await memory.add("lives in Lyon", "harvest")
    memory.clock.advance(60)
    new: list[tuple[str, Source]] = [("lives in Lyon", "harvest"), ("likes tea", "harvest")]
    async with memory.database.transaction() as tx:
        done = await memory.facts.replace(tx, because(), ANN, [told.id], new)
    assert done.facts[0] == told
    again, outcome = await memory.add("Lives in  LYON", "harvest")
    assert (again.id, outcome) == (told.id, "known")
    assert again.last_said > told.last_said == told.created_at


async def test_a_replacement_is_one_change_and_inherits_the_persons_word(memory: Memory) -> None:
    """M-042, M-065: where each went is known; equal ones stay; undo brings all back."""
    for text, source in (
        ("has a dog named Rex", "user_explicit"),
        ("has a cat named Tom", "harvest"),
        ("likes tea", "harvest"),
    ):
        await memory.add(text, source)  # type: ignore[arg-type]  # a tuple of literals is a str
    before = await memory.facts.live(ANN)
    async with memory.database.transaction() as tx:
        done = await memory.facts.replace(
            tx,
            because("night"),
            ANN,
            [fact.id for fact in before],
            [
                ("Tom is the cat", "dreaming_merge"),
                ("Rex is the dog", "dreaming_merge"),
                ("Likes tea", "dreaming_merge"),
            ],
        )
    assert done.outcomes == ("stored", "stored", "known")
    assert [fact.source for fact in done.facts] == ["dreaming_merge", "user_explicit", "harvest"]
    dog, cat = [await memory.facts.get(fact.id) for fact in before[:2]]
    assert dog is not None
    assert cat is not None
    assert (dog.replaced_by, cat.replaced_by) == (done.facts[1].id, done.facts[0].id)
    assert dog.retired_at == NOON
    newest = await memory.changes.newest(["fact"])
    assert newest is not None
    assert newest.id == done.set_id
    assert len(newest.changes) == 4
    await memory.take_back()
    assert await memory.facts.live(ANN) == before


@pytest.mark.parametrize("later", ["an equal one", "raised", "nothing"])
async def test_a_later_edit_is_never_lost_by_undo(memory: Memory, later: str) -> None:
    """M-065."""
    fact, _ = await memory.add("likes tea", "harvest")
    if later == "raised":
        wanted = await memory.changes.newest(["fact"])
        await memory.add("likes tea")
    else:
        await memory.retire("likes tea")
        wanted = await memory.changes.newest(["fact"])
        if later == "an equal one":
            await memory.add("Likes tea")
    before = await memory.facts.live(ANN)
    assert wanted
    undone = await memory.undo.apply(wanted)
    if later == "nothing":
        assert await memory.facts.live(ANN) == [fact]
    else:
        assert [change.item for change in undone.kept] == [fact.id]
        assert await memory.facts.live(ANN) == before


async def test_what_was_retired_long_ago_is_removed(memory: Memory) -> None:
    """M-065: but not while the file has its line, which would be learnt again."""
    for text in ("in the file", "not in the file", "live"):
        if text == "not in the file":
            await memory.flat.text(ANN)
        await memory.add(text)
    await memory.retire("in the file", "not in the file")
    async with memory.database.transaction() as tx:
        assert await memory.facts.expire(tx, NOON) == 0
        assert await memory.facts.expire(tx, NOON + timedelta(days=1)) == 1
    await memory.flat.text(ANN)
    async with memory.database.transaction() as tx:
        assert await memory.facts.expire(tx, NOON + timedelta(days=1)) == 1
    assert await memory.texts() == ["live"]


WORDS = st.sampled_from(["tea time", "Tea Time", "teatime", "coffee", "rex 1", "rex 2"])
SOURCES: st.SearchStrategy[Source] = st.sampled_from(["user_explicit", "harvest", "dreaming_merge"])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), WORDS, SOURCES),
        st.tuples(st.just("retire"), WORDS),
        st.tuples(st.just("replace"), st.lists(WORDS, max_size=3), st.lists(WORDS, max_size=3)),
    ),
    max_size=8,
)


@settings(max_examples=examples(60))
@given(STEPS)
def test_undoing_all_changes_backwards_leads_back(steps: list[tuple[str, ...]]) -> None:
    """M-065: after each undo the live facts are what they were before the change."""
    asyncio.run(_there_and_back(steps))


async def _there_and_back(steps: list[tuple[str, ...]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with memory_in(Path(folder)) as memory:
            past = []
            for step in steps:
                before = await memory.facts.live(ANN)
                await _do(memory, step)
                if await memory.facts.live(ANN) != before:
                    past.append(before)
            for before in reversed(past):
                await memory.take_back()
                assert await memory.facts.live(ANN) == before
            assert await memory.changes.newest(["fact"]) is None


async def _do(memory: Memory, step: tuple[str, ...]) -> None:
    match step:
        case ("add", str(text), source):
            await memory.add(text, source)  # type: ignore[arg-type]  # from SOURCES
        case ("retire", str(text)):
            await memory.retire(text)
        case (_, old, new):
            live = await memory.facts.live(ANN)
            ids = [fact.id for fact in live if fact.text in old]
            async with memory.database.transaction() as tx:
                await memory.facts.replace(
                    tx, because(), ANN, ids, [(text, "dreaming_merge") for text in new]
                )


def test_the_owners_files_lie_at_the_top_and_others_apart(tmp_path: Path) -> None:
    """M-013: and are named as in the prompt, wherever the data folder is."""
    places = Places(tmp_path, Owner("@ann:test"))
    assert places.memories(ANN) == tmp_path / "MEMORIES.txt"
    assert places.core(ANN) == tmp_path / "core.md"
    assert places.shown_memories(ANN) == "data/MEMORIES.txt"
    assert places.core(ROOM) == tmp_path / "scopes/room:!abc:test/core.md"
    assert places.shown_memories(ROOM) == "data/scopes/room:!abc:test/MEMORIES.txt"


@given(st.text(min_size=1), st.text(min_size=1))
def test_each_scope_has_a_folder_name_of_its_own(one: str, other: str) -> None:
    """M-010, M-013: whatever a server calls its rooms."""
    try:
        names = [folder_name(one), folder_name(other)]
    except UnicodeEncodeError:
        return  # lone surrogates never get this far
    assert (names[0] == names[1]) is (one == other)
    assert all(0 < len(name) <= 200 and "/" not in name for name in names)
    assert all(name.strip(".") and name.isascii() and name.isprintable() for name in names)


@pytest.mark.parametrize("scope", [".", "..", "room:!../../x", "room:!" + "a/" * 300, "room:!é\0"])
def test_no_scope_leads_out_of_its_folder(scope: str, tmp_path: Path) -> None:
    """M-011."""
    path = Places(tmp_path, Owner("@ann:test")).memories(scope)
    assert path.resolve().parent.parent == (tmp_path / "scopes").resolve()
    assert len(path.parent.name) <= 200
    assert folder_name(scope + "x") != path.parent.name
