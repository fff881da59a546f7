"""Nights of a house, one after the other: each is begun and worked at to its end, as a command does it."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from tests.world.clock import FakeClock
from tests.world.house import ANN, PROMPTS, House, open_house
from tests.world.model import ModelServer, Text
from tests.world.nights import AGAIN, SmallNight, opened, remember
from wintermute.changes.decisions import Decision, DecisionState
from wintermute.changes.nights import Night, PhaseTally
from wintermute.clock import stamp
from wintermute.config.schema import Memory
from wintermute.memory.fact import NewFact, Source
from wintermute.night.phases import night_pipeline
from wintermute.night.pipeline import NightPipeline, night_lock
from wintermute.work.data_folder import DataFolder

OWNER = f"person:{ANN}"
RANKED = Memory(backend="fts5")
DAY = 24 * 3600.0
ASKED_SCOPE = re.compile(r"in (\S+) is liked")


@dataclass
class Programmed:
    """Builds the whole night of a house, and keeps it for a test."""

    built: list[NightPipeline] = field(default_factory=list)

    def __call__(self, own: DataFolder) -> NightPipeline:
        self.built.append(night_pipeline(own))
        return self.built[-1]


@dataclass(frozen=True)
class Tidied:
    """A house with its nights."""

    house: House
    clock: FakeClock
    tidying: NightPipeline
    model: ModelServer

    async def night(self, phase: str = "", scope: str = "") -> Night:
        """A day passes, and a night is worked at; of one phase, if it is named."""
        self.clock.advance(DAY)
        day = self.clock.now().date()
        async with night_lock(self.house.stores.data_dir):
            async with self.house.database.transaction() as tx:
                begun = await self.house.stores.nights.begin(tx, day, "command", scope, phase)
            assert begun is not None
            return await self.tidying.run_night(begun)

    async def items(self, *states: DecisionState) -> list[Decision]:
        """The items of all nights, or those in these states."""
        return await self.house.stores.decisions.listed(self.house.database, states=states)

    async def yes(self, item: Decision) -> bool:
        """A person says yes to a question."""
        return await self.tidying.executors.apply(item, "command")

    async def take_back(self, item: Decision) -> None:
        """A person takes the change set of an item back."""
        found = await self.house.stores.changes.get(item.change_set or "")
        assert found is not None
        await self.house.stores.undo.apply(found, {name for _, name in item.names})

    async def remember(
        self,
        *texts: str,
        source: Source = "harvest",
        scope: str = OWNER,
        ago: timedelta = timedelta(),
        protected: bool = False,
    ) -> list[str]:
        """Facts that were stored so long ago; their ids."""
        then = self.clock.now() - ago
        new = [
            NewFact(scope, text, source, at=then, protected=protected, theirs=True)
            for text in texts
        ]
        async with self.house.database.transaction() as tx:
            taken = await self.house.stores.facts.take(tx, new)
            ids = [done.fact.id for done in taken]
            for name in ids:
                await tx.execute("UPDATE facts SET stored_at = ? WHERE id = ?", (stamp(then), name))
        return ids

    async def texts(self, scope: str = OWNER) -> list[str]:
        """What is true."""
        return [fact.text for fact in await self.house.stores.facts.live(scope)]


def tally(night: Night, phase: str, scope: str = OWNER) -> PhaseTally:
    """What became of a phase."""
    found = night.tally(scope, phase)
    assert found is not None
    return found


@asynccontextmanager
async def open_nights(
    folder: Path, model: ModelServer, clock: FakeClock | None = None, **house: Any
) -> AsyncIterator[Tidied]:
    """A house, asleep; memory is ranked unless something else is asked for."""
    clock, night = clock or FakeClock(), Programmed()
    given = {"memory": RANKED, **house}
    async with open_house(folder, model.url, clock=clock, night=night, **given) as opened:
        yield Tidied(opened, clock, night.built[0], model)


@asynccontextmanager
async def nights_of_chats(folder: Path, model: ModelServer, **house: Any) -> AsyncIterator[Tidied]:
    """Nights of a house in which people talk."""
    async with open_nights(folder, model, prompts=PROMPTS, **house) as night, night.house.working():
        yield night


def numbered_room(n: int) -> str:
    """Return the scope of the room with this number."""
    return f"room:!{n:02}:test"


async def pairs(house: House, scope: str, *numbers: int) -> None:
    """So many questions for a night."""
    said = [f"Thing {number} in {scope} is liked" for number in numbers]
    await remember(house, *(each for text in said for each in (text, text + AGAIN)), scope=scope)


def asked_scopes(model: ModelServer, since: int = 0) -> list[str]:
    """About which scopes, in this order."""
    texts = (str(seen.messages[-1]["content"]) for seen in model.requests[since:])
    return [found[1] for text in texts if (found := ASKED_SCOPE.search(text))]


async def price(folder: Path, model: ModelServer) -> int:
    """Tokens of one question, and of its answer: none is told by the server."""
    model.keyed(lambda _: Text("Yes.", usage=None))
    small = SmallNight(asks_model=True)
    async with opened(folder, model, FakeClock(), night=small) as house:
        await pairs(house, numbered_room(0), 1)
        night = await Tidied(house, FakeClock(), small.built[0], model).night()
    assert night.calls == 1
    return night.tokens
