"""The four ways to keep memories: one contract, whatever is configured, with what really computes meanings."""

from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC
from pathlib import Path

import pytest
import pytest_asyncio

from tests.world.clock import FakeClock
from tests.world.memory import ANN, ROOM, Memory, because, memory_in, words_are_sound
from tests.world.missing import NO_MEANING
from tests.world.vectors import IN_MEMORY, IndexCheck, at_qdrant, checked, needs_sqlite_vec
from wintermute.clock import SystemClock
from wintermute.health.health import Health
from wintermute.llm.embedded import EmbeddedEmbedder, is_installed
from wintermute.memory.backend import FileMemory, MemoryBackend, RankedMemory
from wintermute.memory.embedding_search import EmbeddingSearch
from wintermute.memory.exchange import Import, exported
from wintermute.memory.fact import Fact
from wintermute.memory.ranking import Query
from wintermute.memory.search import Search
from wintermute.memory.vectors import LocalVectors, Spaces, VectorIndex

pytestmark = pytest.mark.asyncio(loop_scope="module")

WAYS = ("flat_file", "fts5", "local_vector", "qdrant")
TEA, BICYCLE = "Ann drinks green tea in the morning", "Ann rides a red bicycle to work"


@dataclass(frozen=True, slots=True)
class Kept:
    """A memory that is kept in one of the ways."""

    memory: Memory
    backend: MemoryBackend
    meaning: EmbeddingSearch | None
    index: VectorIndex | None

    async def found(self, text: str, scope: str = ANN, before: str = "") -> list[str]:
        """The texts that fit, best first."""
        hits = await self.backend.search(scope, Query(text, before), 10)
        assert all(hit.fact.scope == scope for hit in hits)
        return [hit.fact.text for hit in hits]

    async def settle(self) -> None:
        """The work that is owed is done."""
        if self.meaning is not None:
            await self.meaning.make()

    async def is_sound(self) -> bool:
        """Whether the indexes are what the rows say, once nothing is owed."""
        await self.settle()
        if self.meaning is not None and self.index is not None:
            assert await self.meaning.missing_counts() == {}
            space = await Spaces(self.memory.database).latest_of(NAME)
            if space is not None:
                found_in = await checked(self.memory.database, self.index, space)
                live = await self.memory.database.scalars(
                    "SELECT count(*) FROM facts WHERE retired_at IS NULL AND NOT ended"
                )
                assert found_in == IndexCheck(live[0], owed=0, stale=0, wrong=0)
        async with self.memory.database.transaction() as tx:
            return await words_are_sound(tx)

    async def replace(self, old: Fact, text: str) -> None:
        """Another text stands for a fact, as after a night."""
        async with self.memory.database.transaction() as tx:
            why = because("night")
            await self.memory.facts.replace(tx, why, ANN, [old.id], [(text, "harvest")])

    async def reword(self, old: Fact, text: str) -> None:
        """The same in another case or spacing."""
        async with self.memory.database.transaction() as tx:
            assert await self.memory.facts.reword(tx, ANN, [(old.id, text)])


NAME = EmbeddedEmbedder(SystemClock()).name


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def embedder() -> AsyncIterator[EmbeddedEmbedder]:
    """The real one, once for all of them."""
    async with aclosing(EmbeddedEmbedder(SystemClock())) as embedder:
        yield embedder


@asynccontextmanager
async def indexed(way: str, memory: Memory) -> AsyncIterator[VectorIndex | None]:
    if way not in ("local_vector", "qdrant"):
        yield None
        return
    if not is_installed():
        pytest.skip(NO_MEANING)
    if way == "local_vector":
        needs_sqlite_vec(memory.database)
        yield LocalVectors(memory.database)
        return
    async with at_qdrant(memory.database, IN_MEMORY) as index:
        yield index


@asynccontextmanager
async def kept_in(
    folder: Path, way: str, embedder: EmbeddedEmbedder, clock: FakeClock | None = None
) -> AsyncIterator[Kept]:
    async with memory_in(folder, clock) as memory, indexed(way, memory) as index:
        database, health, meaning = memory.database, Health(memory.database, memory.clock), None
        await memory.facts.words.ensure_complete(
            database
        )  # else the first search may mend what is wrong
        if index is not None:
            meaning = EmbeddingSearch(database, index, embedder, health)
        search = Search(database, memory.facts, meaning)
        backend: MemoryBackend = FileMemory(memory.database, memory.flat, search)
        if way != "flat_file":
            parts = (database, memory.facts, memory.places, memory.flat, search)
            backend = RankedMemory(*parts, 50)
        yield Kept(memory, backend, meaning, index)
        if index is not None:  # else words alone would have passed for it
            assert not [part for part in await health.parts() if part.state != "ok"]


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest_asyncio.fixture(loop_scope="module")
async def kept(way: str, tmp_path: Path, embedder: EmbeddedEmbedder) -> AsyncIterator[Kept]:
    async with kept_in(tmp_path, way, embedder) as kept:
        yield kept


async def test_what_is_stored_is_found_by_its_words_at_once(kept: Kept) -> None:
    """M-004, M-008: before any vector of it is made, and after."""
    await kept.memory.add(TEA)
    await kept.memory.add(BICYCLE)
    assert await kept.found("which bicycle?") == [BICYCLE]
    await kept.settle()
    assert (await kept.found("which bicycle?"))[0] == BICYCLE
    assert await kept.is_sound()


async def test_what_means_the_same_is_found_where_meanings_are_known(kept: Kept) -> None:
    """M-014: by words alone nothing, for no word is shared; best first in both."""
    for text in (TEA, BICYCLE, "Carl has two cats"):
        await kept.memory.add(text)
    await kept.settle()
    found = await kept.found("Which hot beverage does she prefer for breakfast?")
    assert found[:1] == ([TEA] if kept.meaning else [])


async def test_a_fact_that_is_told_again_is_raised_and_there_once(kept: Kept) -> None:
    """M-007: whatever its case and spacing."""
    await kept.memory.add(TEA, "harvest")
    await kept.settle()
    fact, outcome = await kept.memory.add(TEA.upper().replace(" ", "  "))
    assert outcome == "raised"
    [hit] = await kept.backend.search(ANN, Query("green tea"), 10)
    assert (hit.fact.id, hit.fact.source) == (fact.id, "user_explicit")
    assert await kept.is_sound()


async def test_what_was_reworded_is_found_as_it_stands_now(kept: Kept) -> None:
    """M-015, M-020."""
    fact, _ = await kept.memory.add(TEA)
    await kept.settle()
    shouted = TEA.replace("green", "GREEN")
    await kept.reword(fact, shouted)
    assert await kept.found("green") == [shouted]
    assert await kept.is_sound()


async def test_the_words_of_what_was_replaced_find_it_no_more(kept: Kept) -> None:
    """M-020, M-057: and those of what stands for it do at once."""
    fact, _ = await kept.memory.add(BICYCLE)
    await kept.memory.add(TEA)
    await kept.settle()
    await kept.replace(fact, "Ann takes the tram to work")
    assert BICYCLE not in await kept.found("red bicycle")
    assert (await kept.found("the tram"))[0] == "Ann takes the tram to work"
    assert await kept.is_sound()


async def test_what_is_retired_is_not_found_until_it_is_taken_back(kept: Kept) -> None:
    """M-020, M-065: nor in its file or list, and then under its old id."""
    await kept.memory.add(TEA)
    fact, _ = await kept.memory.add(BICYCLE)
    await kept.settle()
    await kept.memory.retire(BICYCLE)
    for _ in range(2):
        assert BICYCLE not in await kept.found("red bicycle")
        assert BICYCLE not in await kept.backend.text(ANN)
        assert await kept.is_sound()
    await kept.memory.take_back()
    [hit, *_] = await kept.backend.search(ANN, Query("red bicycle"), 10)
    assert (hit.fact.id, hit.fact.text) == (fact.id, BICYCLE)
    assert BICYCLE in await kept.backend.text(ANN)
    assert await kept.is_sound()


async def test_what_was_added_and_is_taken_back_is_gone(kept: Kept) -> None:
    """M-065."""
    await kept.memory.add(TEA)
    await kept.settle()
    await kept.memory.take_back()
    assert await kept.found("green tea") == []
    assert await kept.backend.text(ANN) == ""
    assert await kept.is_sound()


async def test_a_line_that_is_written_again_is_found_again(kept: Kept) -> None:
    """M-015: what was removed by hand and comes back."""
    fact, _ = await kept.memory.add(TEA)
    await kept.settle()
    facts = kept.memory.facts
    async with kept.memory.database.transaction() as tx:
        await facts.retire_unrecorded(tx, ANN, [fact.id], "edit")
    assert await kept.found("green tea") == []
    async with kept.memory.database.transaction() as tx:
        await facts.revive(tx, ANN, [TEA])
    assert await kept.found("green tea") == [TEA]
    assert await kept.is_sound()


async def test_what_is_removed_for_good_is_in_no_index(kept: Kept) -> None:
    """M-030: the change set that brought it is gone as well."""
    fact, _ = await kept.memory.add(BICYCLE)
    await kept.memory.add(TEA)
    await kept.settle()
    await kept.backend.text(ANN)
    assert await kept.backend.remove(ANN, [fact.id]) == 1
    assert BICYCLE not in await kept.found("red bicycle")
    assert "bicycle" not in (await kept.backend.text(ANN)) + kept.memory.file.read_text()
    changes = await kept.memory.database.rows("SELECT before, after FROM changes")
    assert "bicycle" not in str([(row["before"], row["after"]) for row in changes])
    assert await kept.is_sound()


async def test_what_is_no_longer_true_is_found_as_that_alone(kept: Kept) -> None:
    """M-074, M-009: with the day on which it was true."""
    rome, _ = await kept.memory.add("Ann lives in Rome")
    await kept.settle()
    then = kept.memory.clock.now()
    kept.memory.clock.advance(3600)
    async with kept.memory.database.transaction() as tx:
        now = kept.memory.clock.now()
        await kept.memory.facts.end(tx, because("night"), rome.id, now)
    kept.memory.clock.advance(1)
    asked = Query("where in Rome does Ann live?")
    assert await kept.backend.search(ANN, asked, 5) == []
    assert [hit.fact.id for hit in await kept.backend.search(ANN, asked, 5, then)] == [rome.id]
    assert [hit.fact.id for hit in await kept.backend.past(ANN, asked, 5)] == [rome.id]
    assert await kept.is_sound()


async def test_a_scope_finds_its_own_alone(kept: Kept) -> None:
    """M-010: also the very same text, and whatever is asked for."""
    for scope in (ANN, ROOM):
        await kept.memory.add(TEA, scope=scope)
    await kept.memory.add("The canary of the room is yellow", scope=ROOM)
    await kept.settle()
    assert "yellow" not in str(await kept.found("which canary is yellow?"))
    assert "yellow" in str(await kept.found("which canary is yellow?", scope=ROOM))
    assert await kept.found("green tea") == [TEA]
    assert await kept.found("green tea", scope="person:@eve:test") == []
    assert "yellow" not in await kept.backend.text(ANN)


QUERIES = {
    "quote": '5" screen',
    "plus": "C++",
    "operators": "a AND (",
    "star": "*",
    "column": "scope:* OR words:x",
    "near": 'NEAR("zebra" "',
    "long": "x" * 20_000,
    "many words": "zebra " * 3_333,
    "control": "\x00\x07\x1b[2J\x7f",
    "emoji": "🦓👩‍👩‍👧",
    "surrogates": "\ud800 \udfff",
    "chinese": "斑马",
    "blank": " \n\t",
    "nothing": "",
}


async def test_any_text_is_a_query_and_what_does_not_fit_is_not_found(kept: Kept) -> None:
    """M-019, M-071: no error, no arbitrary fact; also as the reply before."""
    await kept.memory.add(TEA)
    await kept.settle()
    for name, query in QUERIES.items():
        assert (name, await kept.found(query)) == (name, [])
        assert (name, await kept.found("green tea", before=query)) == (name, [TEA])


WRITTEN = {
    '5" screen': 'The 5" screen is broken',
    "C++": "Writes C++ at work",
    "绿茶": "喜欢喝绿茶",
    "zoe": "Zoë trinkt Kaffee",
    "bells": "likes a 🍵 a day with \x07 bells",
}


async def test_any_text_is_found_by_its_words(kept: Kept) -> None:
    """M-019: whatever signs it has."""
    facts = {query: (await kept.memory.add(text))[0].text for query, text in WRITTEN.items()}
    await kept.settle()
    for query, text in facts.items():
        assert (await kept.found(query))[:1] == [text]
    assert await kept.is_sound()


async def test_where_nothing_fits_nothing_is_found(kept: Kept) -> None:
    """M-019, M-071: neither the oldest nor what is least unlike."""
    for text in (TEA, BICYCLE, "Carl has two cats"):
        await kept.memory.add(text)
    await kept.settle()
    assert await kept.found("quarterly depreciation of semiconductor patents") == []


async def test_equal_ones_are_found_once(kept: Kept) -> None:
    """Issue 18, point 3: but not those that only sound alike."""
    for text in ("Ann likes tea.", "Ann likes tea!", "Ann likes no tea", "Ann likes 2 teas"):
        await kept.memory.add(text)
    await kept.settle()
    found = await kept.found("does Ann like tea?")
    assert len(found) == 3
    assert len({text.rstrip(".!") for text in found}) == 3


async def test_what_is_exported_is_the_same_where_it_is_imported(
    kept: Kept, way: str, embedder: EmbeddedEmbedder, tmp_path: Path
) -> None:
    """M-068, M-017: ids, dates and what is no longer true; found there by the same questions."""
    for text in (TEA, BICYCLE, "Ann lives in Rome"):
        await kept.memory.add(text)
        kept.memory.clock.advance(60)
    [*_, rome] = await kept.memory.facts.live(ANN)
    async with kept.memory.database.transaction() as tx:
        now = kept.memory.clock.now()
        await kept.memory.facts.end(tx, because("night"), rome.id, now)
    await kept.settle()
    lines = await exported(kept.memory.facts, [ANN])
    (tmp_path / "there").mkdir()
    clock = kept.memory.clock
    async with kept_in(tmp_path / "there", way, embedder, clock) as there:
        memory = there.memory
        reading = Import(memory.database, memory.facts, memory.changes, ANN, UTC)
        for stored in (3, 0):
            done = await reading.store_lines(lines, because("import"))
            assert (done.stored, done.bad) == (stored, 0)
        await there.settle()
        assert await exported(memory.facts, [ANN]) == lines
        for question in ("green tea", "a red bicycle", "Rome"):
            asked = Query(question)
            ids = [
                [hit.fact.id for hit in await each.backend.search(ANN, asked, 10)]
                for each in (kept, there)
            ]
            assert ids[0] == ids[1]
        assert await there.is_sound()
