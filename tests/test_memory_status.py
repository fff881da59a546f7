"""How memory stands: what a first start chooses, what status and check say, what follows by itself."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from tests.world.clock import FakeClock
from tests.world.house import SCOPE, open_house
from tests.world.memory import words_are_sound
from tests.world.model import ModelServer
from tests.world.ranked import FTS5, open_ranked, remember_fact
from tests.world.schema import open_migrated
from wintermute.changes.change_sets import Reason
from wintermute.config.schema import Embeddings
from wintermute.config.schema import Memory as Settings
from wintermute.errors import EmbedderNotReady, EmbeddingsUnavailable
from wintermute.ids import new_id
from wintermute.llm.vector import Vector, vector
from wintermute.memory.flat_file import GENERATED
from wintermute.memory.ranking import Query
from wintermute.memory.status import Machine, MemoryStatus, first_backend
from wintermute.owner import Owner
from wintermute.stores import Stores, prepare

BY_SERVER = Settings(
    backend="local_vector", embeddings=Embeddings(provider="endpoint", backend="local")
)
EMBEDDED = Settings(backend="local_vector")


@pytest.mark.parametrize(
    ("machine", "backend", "why"),
    [
        (Machine(embedder=True, vectors=True, memory=1_900_000_000), "local_vector", ""),
        (Machine(embedder=True, vectors=True, memory=None), "local_vector", ""),
        (
            Machine(embedder=False, vectors=True, memory=8_000_000_000),
            "fts5",
            "the embedder is not installed -> pip install 'wintermute[meaning]', then set",
        ),
        (
            Machine(embedder=True, vectors=False, memory=8_000_000_000),
            "fts5",
            "sqlite-vec cannot be loaded -> use a Python",
        ),
        (
            Machine(embedder=True, vectors=True, memory=930_000_000),
            "fts5",
            "this machine has 0.9 GB of memory -> set memory.backend: local_vector if",
        ),
    ],
)
def test_a_first_start_uses_meaning_if_it_can(machine: Machine, backend: str, why: str) -> None:
    """M-014, M-018: else by words, with one line that says why and what to do."""
    first = first_backend(machine)
    assert first.backend == backend
    assert first.why.startswith(why)
    assert bool(first.why) == (backend == "fts5")
    assert "\n" not in first.why


def test_this_machine_is_known() -> None:
    machine = Machine.here()
    assert machine.memory is None or machine.memory > 100_000_000
    assert first_backend(machine).backend in {"fts5", "local_vector"}


@dataclass
class VowelCounter:
    """Counts vowels; may fail. Another name is another model."""

    name: str = "vowels"
    fails: EmbeddingsUnavailable | None = None
    asked: list[str] = field(default_factory=list)

    async def warm(self, seconds: float = 0.0) -> None:
        """Nothing to be started."""

    async def embed_query(self, texts: Sequence[str]) -> list[Vector | None]:
        if self.fails:
            raise self.fails
        self.asked += texts
        return [vector([text.count(sign) + 0.5 for sign in "aeiouy t"]) for text in texts]

    async def embed_document(self, texts: Sequence[str]) -> list[Vector | None]:
        return await self.embed_query(texts)

    async def aclose(self) -> None:
        """Nothing was started."""


@asynccontextmanager
async def kept(
    folder: Path, embedder: VowelCounter | None, settings: Settings = BY_SERVER
) -> AsyncIterator[Stores]:
    async with open_migrated(folder / "wintermute.db") as database:
        shared = (database, folder, Owner("@ann:test"), FakeClock(), new_id)
        yield Stores.of(*shared, timezone="Europe/Berlin", memory=settings, embedder=embedder)


async def learn(stores: Stores, *texts: str) -> None:
    async with stores.database.transaction() as tx:
        for text in texts:
            await stores.facts.add(tx, Reason("command", SCOPE), text, "harvest", scope=SCOPE)


async def status_of(stores: Stores) -> tuple[str, str]:
    found = await stores.memory_status.finding()
    return found.state, found.text


async def test_status_counts_memories_and_the_vectors_that_are_owed(tmp_path: Path) -> None:
    """M-008, M-022: of another model all of them, by words meanwhile."""
    async with kept(tmp_path, VowelCounter()) as stores:
        assert await status_of(stores) == ("ok", "local_vector, 0 memories")
        await learn(stores, "Ann drinks green tea", "Ann has a sister")
        assert await status_of(stores) == ("ok", "local_vector, 2 memories; 2 embeddings missing")
        assert stores.meaning is not None
        await stores.meaning.make()
        assert await status_of(stores) == ("ok", "local_vector, 2 memories")
    async with kept(tmp_path, VowelCounter("consonants")) as stores:
        state, text = await status_of(stores)
        assert state == "warn"
        assert text == (
            "local_vector, 2 memories; 2 embeddings missing;"
            " another model than vowels: all are embedded again, and found by words meanwhile"
        )
        assert stores.meaning is not None
        assert await stores.meaning.missing_counts() == {SCOPE: 2}
        await stores.meaning.make()
        assert await status_of(stores) == ("ok", "local_vector, 2 memories")


async def test_status_says_what_is_wrong_until_it_is_over(tmp_path: Path) -> None:
    """M-023: that an embedder has just been started is nothing wrong."""
    embedder = VowelCounter()
    async with kept(tmp_path, embedder) as stores:
        assert stores.meaning is not None
        await learn(stores, "Ann drinks green tea")
        await stores.meaning.make()
        embedder.fails = EmbedderNotReady("it starts")
        await stores.memories.search(SCOPE, Query("tea?"), 3)
        assert (await status_of(stores))[0] == "ok"
        embedder.fails = EmbeddingsUnavailable("the server is away")
        await stores.memories.search(SCOPE, Query("coffee?"), 3)
        state, text = await status_of(stores)
        assert (state, text) == (
            "warn",
            "local_vector, 1 memory; found by words alone: the server is away",
        )
        embedder.fails = None
        await stores.memories.search(SCOPE, Query("milk?"), 3)
        assert (await status_of(stores))[0] == "ok"


async def test_status_says_what_is_not_installed(tmp_path: Path) -> None:
    """M-008: with what to do."""
    async with kept(tmp_path, VowelCounter(), EMBEDDED) as stores:
        shared = (stores.database, stores.meaning, stores.health)
        lacking = MemoryStatus(EMBEDDED, *shared, installed=lambda: False)
        for found in (await lacking.finding(), await lacking.probe()):
            assert found.state == "warn"
            assert found.text.endswith("not installed -> pip install 'wintermute[meaning]'")


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (Settings(), "flat_file, which needs nothing else"),
        (FTS5, "fts5, which needs nothing else"),
        (
            replace(EMBEDDED, embeddings=Embeddings(provider="none")),
            "local_vector without embeddings: found by words alone",
        ),
    ],
)
async def test_a_check_asks_no_one_in_vain(tmp_path: Path, settings: Settings, text: str) -> None:
    """M-014."""
    async with kept(tmp_path, None, settings) as stores:
        found = await stores.memory_status.probe()
    assert (found.state, found.text) == ("ok", text)


async def test_a_check_asks_what_finds_by_meaning_once(tmp_path: Path) -> None:
    """M-021, M-023."""
    embedder = VowelCounter()
    async with kept(tmp_path, embedder) as stores:
        found = await stores.memory_status.probe()
        assert (found.state, found.text) == (
            "ok",
            "local_vector, by meaning with vowels, 8 numbers each",
        )
        assert len(embedder.asked) == 1
        embedder.fails = EmbeddingsUnavailable("the server is away")
        found = await stores.memory_status.probe()
    assert (found.state, found.text) == (
        "warn",
        "local_vector; found by words alone: the server is away",
    )


async def test_an_index_that_lost_its_words_is_filled_by_the_first_search(tmp_path: Path) -> None:
    """M-017, M-020: a broken one is emptied when it is opened; the status says so."""
    async with kept(tmp_path, None, FTS5) as stores:
        await learn(stores, "Ann drinks green tea")
        async with stores.database.transaction() as tx:
            await tx.execute("DELETE FROM facts_fts")
    async with kept(tmp_path, None, FTS5) as stores:
        assert await stores.health.part("memory index") is None
        [hit] = await stores.memories.search(SCOPE, Query("tea"), 3)
        assert hit.fact.text == "Ann drinks green tea"
        part = await stores.health.part("memory index")
        assert part is not None
        assert (part.state, part.detail.split(":")[0]) == ("ok", "built anew from 1 memories")
        async with stores.database.transaction() as tx:
            assert await words_are_sound(tx)


async def test_the_export_follows_the_facts_by_itself(tmp_path: Path, model: ModelServer) -> None:
    """M-016, M-018: what stood in the file before is taken in at the start."""
    file = tmp_path / "MEMORIES.txt"
    file.write_text("Ann drinks green tea\n")
    async with open_ranked(tmp_path, model, memory=FTS5) as house:
        refresh = house.stores.memories.refresh
        await refresh()
        assert [fact.text for fact in await house.stores.facts.live(SCOPE)] == [
            "Ann drinks green tea"
        ]
        named = await remember_fact(house, "Carl plays chess")
        owed = "SELECT count(*) AS n FROM jobs WHERE name = 'embeddings'"
        before = (await house.one(owed))["n"]
        assert before > 0
        await house.settled()
        await refresh()
        assert file.read_text() == f"{GENERATED}\nCarl plays chess\nAnn drinks green tea\n"
        written = file.stat().st_mtime_ns
        await refresh()
        assert file.stat().st_mtime_ns == written
        async with house.database.transaction() as tx:
            await tx.execute("UPDATE jobs SET state = 'done'")
            await house.stores.facts.supersede(
                tx, Reason("command", SCOPE), (), dict.fromkeys([named])
            )
        assert (await house.one(owed))["n"] == before + 1
        await refresh()
        assert file.read_text() == f"{GENERATED}\nAnn drinks green tea\n"


async def test_words_follow_what_becomes_of_a_memory(tmp_path: Path) -> None:
    """M-020: raised, reworded, retired, ended and undone; the index is in order after each."""
    async with kept(tmp_path, None, FTS5) as stores:
        await learn(stores, "Ann drinks green tea", "Carl plays chess")
        why = Reason("command", SCOPE)
        tea, chess = await stores.facts.live(SCOPE)

        async def found(words: str) -> list[str]:
            async with stores.database.transaction() as tx:
                assert await words_are_sound(tx)
            return [hit.fact.id for hit in await stores.memories.search(SCOPE, Query(words), 3)]

        async with stores.database.transaction() as tx:
            await stores.facts.supersede(tx, why, (), dict.fromkeys([tea.id]))
        assert (await found("tea"), await found("chess")) == ([], [chess.id])
        last = await stores.changes.newest(("fact",), SCOPE, asked=True)
        assert last is not None
        async with stores.database.transaction() as tx:
            await stores.undo.within(tx, last)
            await stores.facts.purge(tx, SCOPE, [chess.id])
        assert (await found("tea"), await found("chess")) == ([tea.id], [])


async def test_a_start_owes_what_a_switch_wants_done(tmp_path: Path, model: ModelServer) -> None:
    """M-022, M-077: once, and only where something follows the facts."""
    owed = "SELECT count(*) AS n FROM jobs WHERE name = 'embeddings' AND state = 'waiting'"
    for memory, expected in ((FTS5, 1), (Settings(), 0)):
        folder = tmp_path / memory.backend
        folder.mkdir()
        async with open_house(folder, model.url, memory=memory) as house:
            for _ in range(2):
                await prepare(house.stores)
            assert (await house.one(owed))["n"] == expected
