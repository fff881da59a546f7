"""Memories by meaning when who computes meanings dies, hangs or lies: words go on, vectors are owed."""

import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.tiers import tiered
from tests.world.clock import FakeClock, HeldClock, promptly, until_so
from tests.world.embedder import child
from tests.world.house import ANN, PROMPTS, SCOPE, House, house_at_work, open_house
from tests.world.missing import NO_QDRANT
from tests.world.model import Calls, ModelServer, Text, Use
from tests.world.ranked import context_block, remember_fact
from tests.world.schema import lay_schema
from tests.world.sockets import refuse, served
from tests.world.vectors import needs_sqlite_vec
from wintermute.changes.change_sets import Reason
from wintermute.clock import SystemClock
from wintermute.config.schema import Memory, Qdrant
from wintermute.db import open_database
from wintermute.errors import MemoryUnavailable
from wintermute.ids import new_id
from wintermute.llm.embedded import EmbeddedEmbedder
from wintermute.llm.vector import Embedder
from wintermute.memory.embedding_search import ALONE, EMBEDDINGS_JOB, PART, EmbeddingSearch
from wintermute.memory.ranking import Query
from wintermute.owner import Owner
from wintermute.stores import Stores, prepare

TEA, CHESS = "Ann drinks green tea", "Carl plays chess"
BY_MEANING = Memory(backend="local_vector")
MOST = 10.0
"""Seconds to the request of the model: two for the vector, the rest for a busy machine."""
WAYS = {each: each for each in ("dies", "hangs", "never ready", "garbage", "nan", "zero", "short")}


class OtherModel(EmbeddedEmbedder):
    """One that calls itself something else."""

    @property
    def name(self) -> str:
        return "another model"


@asynccontextmanager
async def house_with(
    folder: Path, model: ModelServer, embedder: Embedder
) -> AsyncIterator[tuple[House, HeldClock]]:
    clock = HeldClock()
    async with house_at_work(
        folder, model.url, prompts=PROMPTS, clock=clock, memory=BY_MEANING, embedder=embedder
    ) as house:
        needs_sqlite_vec(house.database)
        yield house, clock


def meaning_of(house: House) -> EmbeddingSearch:
    assert house.stores.meaning is not None
    return house.stores.meaning


async def all_made(house: House) -> None:
    """Wait until the work that is owed has made all vectors."""

    async def done() -> bool:
        waiting = await house.rows("SELECT 1 FROM jobs WHERE state IN ('waiting', 'running')")
        return not waiting and not await meaning_of(house).missing_counts()

    await until_so(done)


async def note(house: House) -> tuple[str, str]:
    part = await house.health.part(PART)
    return (part.state, part.detail) if part else ("", "")


async def lay_memories(folder: Path, model: ModelServer) -> None:
    """Two facts with their vectors."""
    async with house_with(folder, model, child("well", folder)) as (house, _):
        for text in (TEA, CHESS):
            await remember_fact(house, text)
        house.runner.wake(EMBEDDINGS_JOB)
        await all_made(house)
        assert (await note(house))[0] == "ok"


@pytest.mark.parametrize("way", tiered(WAYS, ("dies", "garbage")))
async def test_while_the_embedder_is_of_no_use_words_find_and_all_is_stored(
    tmp_path: Path, model: ModelServer, way: str
) -> None:
    """M-008, M-022: within two seconds, noted in the status; then vectors are made by themselves."""
    await lay_memories(tmp_path, model)
    keep = Calls((Use("append_memory", {"entry": "Ann takes milk with her tea"}),))
    model.script(keep, Text("noted"))
    async with house_with(tmp_path, model, child(way, tmp_path)) as (house, _):
        async with promptly(MOST):
            await house.incoming("which tea do I like?")
            await model.request_arrived(1)
        await house.settled()
        assert f"- {TEA}\n" in context_block(model.requests[0].texts[-1])
        state, detail = await note(house)
        if way not in ("hangs", "never ready"):  # these may be at work for half a minute
            assert state == "warn"
            assert ALONE in detail or "embeddings are missing" in detail
        [hit, *_] = await house.stores.memories.search(SCOPE, Query("milk"), 5)
        assert hit.fact.text == "Ann takes milk with her tea"
        assert await meaning_of(house).missing_counts() == {SCOPE: 1}
    async with house_with(tmp_path, model, child("well", tmp_path)) as (house, clock):
        await clock.move(120)
        await all_made(house)
        await house.stores.memories.search(SCOPE, Query("tea"), 5)
        assert (await note(house))[0] == "ok"


async def test_an_embedder_that_comes_back_is_used(tmp_path: Path, model: ModelServer) -> None:
    """M-023: the work waits for it, and what was noted is over."""
    (tmp_path / "starts").touch()
    its = FakeClock()
    embedder = child("dies", tmp_path, clock=its)
    async with house_with(tmp_path, model, embedder) as (house, clock):
        await remember_fact(house, TEA)
        house.runner.wake(EMBEDDINGS_JOB)

        async def told() -> bool:
            return (await note(house))[1].startswith("embeddings are missing")

        await until_so(told)
        (tmp_path / "once").touch()
        its.advance(600)
        await clock.asleep()
        await clock.move(120)
        await all_made(house)
        assert (await note(house))[0] == "ok"


async def test_a_killed_embedder_is_not_missed(tmp_path: Path, model: ModelServer) -> None:
    """Issue 18: it is started again."""
    await lay_memories(tmp_path, model)
    embedder = child("well", tmp_path)
    async with house_with(tmp_path, model, embedder) as (house, _):
        await house.say("which tea?")
        killed = embedder.pid
        assert killed is not None
        os.kill(killed, signal.SIGKILL)
        await house.say("and which chess?")
        assert embedder.pid not in (None, killed)
        assert (await note(house))[0] == "ok"
    assert CHESS in str(model.requests[1].messages)


async def test_with_another_model_all_is_embedded_anew(tmp_path: Path, model: ModelServer) -> None:
    """M-022: words meanwhile, and vectors of two models are never compared."""
    await lay_memories(tmp_path, model)
    other = child("hangs", tmp_path, OtherModel)
    async with house_with(tmp_path, model, other) as (house, _):
        await house.say("which tea?")
        assert await note(house) == ("warn", f"{ALONE}: the vectors are not of another model yet")
    assert f"- {TEA}\n" in context_block(model.requests[0].texts[-1])
    async with house_with(tmp_path, model, child("well", tmp_path, OtherModel)) as (house, clock):
        await clock.move(120)
        await all_made(house)
        left = await house.rows(
            "SELECT DISTINCT s.model FROM fact_vectors v JOIN embedding_spaces s ON s.id = v.space"
        )
        assert left == [{"model": "another model"}]
        await house.stores.memories.search(SCOPE, Query("tea"), 5)
        assert (await note(house))[0] == "ok"


async def test_while_qdrant_is_away_words_find_and_it_gets_all_when_it_is_back(
    tmp_path: Path, model: ModelServer
) -> None:
    """M-023: what is stored meanwhile is in our database, and its vectors are owed."""
    pytest.importorskip("qdrant_client", reason=NO_QDRANT)

    @asynccontextmanager
    async def at(where: str) -> AsyncIterator[tuple[House, HeldClock]]:
        clock, memory = HeldClock(), Memory(backend="qdrant", qdrant=Qdrant(url=where))
        well = child("well", tmp_path)
        async with house_at_work(
            tmp_path, model.url, prompts=PROMPTS, clock=clock, memory=memory, embedder=well
        ) as house:
            yield house, clock

    server = str(tmp_path / "server")
    async with at(server) as (house, clock):
        await remember_fact(house, TEA)
        await clock.move(120)
        await all_made(house)
    async with served(refuse) as url, at(url) as (house, clock):
        await remember_fact(house, CHESS)
        await house.say("which tea?", "and chess?")
        state, detail = await note(house)
        assert (state, url in detail) == ("warn", True)
        assert await meaning_of(house).missing_counts() == {SCOPE: 1}
    async with at(server) as (house, clock):
        await clock.move(120)
        await all_made(house)
        assert (await note(house))[0] == "ok"
    assert TEA in str(model.requests[0].messages)
    assert CHESS in str(model.requests[1].messages)


async def test_facts_from_before_meanings_were_kept_get_their_vectors_by_themselves(
    tmp_path: Path, model: ModelServer
) -> None:
    """M-077, M-014: a switch of the backend; nobody has to ask for it."""
    fts5 = Memory(backend="fts5")
    async with open_house(tmp_path, model.url, prompts=PROMPTS, memory=fts5) as house:
        await remember_fact(house, TEA)
    async with house_with(tmp_path, model, child("well", tmp_path)) as (house, _):
        await all_made(house)
        assert len(await house.rows("SELECT 1 FROM fact_vectors")) == 1


async def test_where_sqlite_vec_cannot_be_loaded_words_find(tmp_path: Path) -> None:
    """M-023, issue 18: a Python without loadable extensions."""
    path = tmp_path / "wintermute.db"
    lay_schema(path)
    async with open_database(path, extensions=False) as database:
        stores = Stores.of(
            *(database, tmp_path, Owner(ANN), SystemClock(), new_id),
            timezone="UTC",
            memory=BY_MEANING,
            embedder=child("well", tmp_path),
        )
        await prepare(stores)
        async with database.transaction() as tx:
            why = Reason("command", SCOPE)
            await stores.facts.add(tx, why, TEA, "user_explicit", scope=SCOPE)
        [hit] = await stores.memories.search(SCOPE, Query("tea"), 5)
        assert hit.fact.text == TEA
        assert stores.meaning is not None
        with pytest.raises(MemoryUnavailable, match="sqlite-vec cannot be loaded here"):
            await stores.meaning.make()
        [hit] = await stores.memories.search(SCOPE, Query("tea"), 5)
        part = await stores.health.part(PART)
        assert part is not None
        assert (part.state, part.detail.partition(":")[0]) == ("warn", ALONE)
        assert "fts5" in part.detail
        assert stores.meaning is not None
        await stores.meaning.aclose()
