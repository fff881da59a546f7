"""Random lives of memories in every way to keep them, against a model: nothing lost, doubled, or shown elsewhere."""

import asyncio
import json
import tempfile
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tiers import examples
from tests.world.clock import FakeClock
from tests.world.house import ANN, PROMPTS, House, open_house
from tests.world.memory import words_are_sound
from wintermute.changes.change_sets import Reason
from wintermute.config.schema import Memory
from wintermute.conversation.toolbox import Caller
from wintermute.memory.exchange import exported
from wintermute.memory.ranking import Query
from wintermute.prompt.context_builder import MemoryQuery
from wintermute.tools.memory import SearchMemory

SCOPES = (f"person:{ANN}", "person:@bob:test", "room:!club:test")
CANARIES = dict(zip(SCOPES, ("yellowbird", "bluefish", "redfox"), strict=True))
WAYS = ("flat_file", "fts5", "local_vector", "qdrant")
THINGS = ("tea", "chess", "boats", "cats", "Lyon", "bicycles")

scopes = st.sampled_from(SCOPES)
things = st.sampled_from(THINGS)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), scopes, things),
        st.tuples(st.just("retire"), scopes, things),
        st.tuples(st.just("replace"), scopes, st.tuples(things, things)),
        st.tuples(st.just("write"), scopes, things),
        st.tuples(st.just("cross out"), scopes, things),
        st.tuples(st.just("undo"), scopes, st.none()),
        st.tuples(st.just("purge"), scopes, things),
        st.tuples(st.just("switch"), st.sampled_from(WAYS), st.none()),
    ),
    min_size=1,
    max_size=12,
)


def text_of(scope: str, thing: str) -> str:
    return f"The {CANARIES[scope]} likes {thing}"


@asynccontextmanager
async def at_home(folder: Path, way: str, clock: FakeClock) -> AsyncIterator[House]:
    memory = Memory(backend=way)  # type: ignore[arg-type]  # one of them
    async with open_house(folder, None, prompts=PROMPTS, clock=clock, memory=memory) as house:
        yield house


@dataclass
class Life:
    """What should be remembered of each scope, beside the house in which it is."""

    folder: Path
    clock: FakeClock = field(default_factory=FakeClock)
    way: str = "flat_file"
    live: dict[str, frozenset[str]] = field(
        default_factory=lambda: dict.fromkeys(SCOPES, frozenset[str]())
    )
    before: dict[str, frozenset[str]] = field(default_factory=dict)
    """How it was before the last change of a scope, if that can be taken back."""

    def now(self, scope: str, live: frozenset[str]) -> None:
        """So it is from now on."""
        if live != self.live[scope]:
            self.before[scope], self.live[scope] = self.live[scope], live

    async def step(self, house: House, what: str, scope: str, thing: Any) -> None:
        """Do one thing to the house and to the model of it."""
        self.clock.advance(60)
        if what == "purge":
            await self._purge(house, scope, text_of(scope, thing))
        elif what == "undo":
            await self._undo(house, scope)
        elif what == "write":
            await self._edit(house, scope, text_of(scope, thing), crossed=False)
        elif what == "cross out":
            await self._cross_out(house, scope, text_of(scope, thing))
        else:
            await self._change(house, what, scope, thing)
        await house.stores.memories.text(scope)

    async def _cross_out(self, house: House, scope: str, text: str) -> None:
        """A file that is then as it was once may come from an old editor: the line stays (F-032)."""
        live, before = self.live[scope], dict(self.before)
        await self._edit(house, scope, text, crossed=True)
        await house.stores.memories.text(scope)
        kept = "SELECT text FROM facts WHERE retained"
        rows = await house.rows(f"{kept} AND scope = ? AND retired_at IS NULL", scope)
        if text in {row["text"] for row in rows}:
            self.live[scope], self.before = live, before

    async def _change(self, house: House, what: str, scope: str, thing: Any) -> None:
        stores, why = house.stores, Reason("tool", scope)
        old, new = thing if what == "replace" else (thing, thing)
        old, new = text_of(scope, old), text_of(scope, new)
        ids = [fact.id for fact in await stores.facts.live(scope) if fact.text == old]
        async with stores.database.transaction() as tx:
            if what == "add":
                await stores.facts.add(tx, why, new, "harvest", scope=scope)
                self.now(scope, self.live[scope] | {new})
            elif what == "retire":
                await stores.facts.supersede(tx, why, (), dict.fromkeys(ids))
                self.now(scope, self.live[scope] - {old})
            elif ids:
                await stores.facts.replace(tx, why, scope, ids, [(new, "harvest")])
                self.now(scope, self.live[scope] - {old} | {new})

    async def _edit(self, house: House, scope: str, text: str, *, crossed: bool) -> None:
        file = house.stores.places.memories(scope)
        file.parent.mkdir(parents=True, exist_ok=True)
        lines = file.read_text().splitlines() if file.exists() else []
        left = [line for line in lines if line != text]
        file.write_text("".join(f"{line}\n" for line in (left if crossed else [*left, text])))
        if self.way == "flat_file":
            live = self.live[scope]
            self.now(scope, live - {text} if crossed else live | {text})

    async def _purge(self, house: House, scope: str, text: str) -> None:
        stores = house.stores
        ids = [fact.id for fact in await stores.facts.live(scope) if fact.text == text]
        await stores.memories.remove(scope, ids)
        self.live[scope] -= {text}
        self.before.pop(scope, None)

    async def _undo(self, house: House, scope: str) -> None:
        newest = await house.stores.changes.newest(["fact"], scope)
        if newest is not None and scope in self.before:
            await house.stores.undo.apply(newest)
            self.live[scope] = self.before.pop(scope)

    async def holds(self, house: House) -> None:
        """The rows, the index and the files are what they should be."""
        stores = house.stores
        async with stores.database.transaction() as tx:
            assert await words_are_sound(tx)
        for scope in SCOPES:
            live = [fact.text for fact in await stores.facts.live(scope)]
            assert Counter(live) == Counter(self.live[scope])

    async def keeps_secrets(self, house: House) -> None:
        """Each scope finds its own, and of the others nothing anywhere."""
        for scope in SCOPES:
            shown = await everything_shown(house, scope)
            for other, canary in CANARIES.items():
                assert (canary in shown) == (other == scope and bool(self.live[scope]))
            for thing in THINGS:
                hits = await house.stores.memories.search(scope, Query(thing), 9)
                wanted = {text_of(scope, thing)} & self.live[scope]
                assert {hit.fact.text for hit in hits} == wanted


async def everything_shown(house: House, scope: str) -> str:
    """Prompt, file, export and what the tool finds, when all the canaries are asked for."""
    stores = house.stores
    asked = f"{' '.join(CANARIES.values())} likes {' '.join(THINGS)}"
    tool = SearchMemory(stores.memories, stores.facts, stores.tasks.zone, 10)
    caller = Caller("conv", scope, "cast", "owner", None, house.clock.now())
    found = [await tool.run(caller, {"query": asked}), await tool.run(caller, {})]
    recall = MemoryQuery(Query(asked))
    parts = await house.gather.all_parts(scope, ("search_memory",), recall)
    text = await stores.memories.text(scope)
    lines = await exported(stores.facts, [scope])
    file = stores.places.memories(scope)
    written = file.read_text() if file.exists() else ""
    return "\n".join([json.dumps(found), str(parts.memories), text, *lines, written])


async def lived(steps: list[tuple[str, str, Any]]) -> None:
    with tempfile.TemporaryDirectory() as name:
        life = Life(Path(name))
        chapters: list[list[tuple[str, str, Any]]] = [[]]
        for step in steps:
            if step[0] == "switch":
                chapters.append([])
            chapters[-1].append(step)
        for chapter in chapters:
            if chapter and chapter[0][0] == "switch":
                life.way = chapter[0][1]
            async with at_home(life.folder, life.way, life.clock) as house:
                for scope in SCOPES:
                    await house.stores.memories.text(scope)
                await life.holds(house)
                for step in chapter:
                    if step[0] != "switch":
                        await life.step(house, *step)
                        await life.holds(house)
                await life.keeps_secrets(house)


@settings(max_examples=examples(25))
@given(STEPS)
def test_nothing_is_ever_lost_doubled_or_shown(steps: list[tuple[str, str, Any]]) -> None:
    """M-010, M-020, M-065, M-077: prompt, search, tool, export and file of each scope."""
    asyncio.run(lived(steps))


@pytest.mark.slow
@settings(max_examples=examples(60))
@given(STEPS)
def test_whatever_happens_for_long_nothing_is_lost_doubled_or_shown_to_others(
    steps: list[tuple[str, str, Any]],
) -> None:
    """M-010, M-020, M-065, M-077: the same, many more lives."""
    asyncio.run(lived(steps))
