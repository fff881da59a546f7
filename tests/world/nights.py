"""A small night for tests: it joins what is said twice, and asks about what ends with a question mark.

    "Likes tea", "Likes tea, again"  ─▶  "Likes tea" stays, the other is retired
    "Sells the car?"                 ─▶  a question: shall it go?

No model is asked, unless a phase is told to.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.world.house import ANN, House, open_house
from tests.world.model import ModelServer
from wintermute.changes.change_sets import Reason
from wintermute.changes.decisions import Decision, Planned, digest_of
from wintermute.clock import Clock
from wintermute.config.schema import Dreaming
from wintermute.db import Transaction
from wintermute.errors import ToolFailed
from wintermute.forgetting.deeds import Deed, Deeds
from wintermute.memory.fact import NewFact
from wintermute.messages import Request
from wintermute.night.tidying import (
    Chore,
    ChoreDone,
    NightPhase,
    PhaseWork,
    Programme,
    Tidying,
    TidyStep,
)
from wintermute.stores import Stores
from wintermute.work.data_folder import DataFolder

AGAIN = ", again"
OLD = "How the fax is fed.\n\nFace down.\n"


@dataclass
class Twice:
    """Looks for what is said twice."""

    stores: Stores
    name: str = "twice"
    asks: bool = False
    asks_model: bool = False

    async def size(self, scope: str) -> int:
        return await self.stores.facts.count(scope)

    async def steps(self, work: PhaseWork) -> AsyncIterator[TidyStep]:
        facts = {fact.text: fact for fact in await self.stores.facts.live(work.scope)}
        for text, fact in facts.items():
            question = text.endswith("?")
            other = facts.get(text.removesuffix(AGAIN))
            if not question and (other is None or other is fact):
                continue
            digest = digest_of(fact.id)
            if not await self.stores.nights.unjudged(work.scope, [digest]):
                continue
            if self.asks_model:
                said = {"role": "user", "content": f"Is it so?\n<entries>\n{text}\n</entries>"}
                await work.models.ask_unasked("dreaming", Request((said,)))
            item = Planned(
                kind="rest" if question else "merged",
                before=(text,) if question or other is None else (other.text, text),
                after="" if question or other is None else other.text,
                reason="is it so?" if question else "said twice",
                plan={"do": "drop", "facts": [fact.id], "text": text},
                evidence=(fact.id,),
                loses=1,
                question=question,
                digest=digest,
            )
            yield TidyStep((item,))


@dataclass
class Drop:
    """Retires the facts of an item, as long as they say what they said."""

    stores: Stores

    async def do(self, tx: Transaction, item: Decision, why: Reason) -> bool:
        wanted = item.plan["facts"]
        live = await self.stores.facts.living(tx, item.scope, wanted)
        if [fact.text for fact in live] != [item.plan["text"]]:
            return False
        await self.stores.facts.supersede(tx, why, (), dict.fromkeys(wanted))
        return True


@dataclass
class OldSkill:
    """Asks whether the skill `old` may go."""

    name: str = "skills"
    asks: bool = False

    async def size(self, scope: str) -> int:
        return 1

    async def steps(self, work: PhaseWork) -> AsyncIterator[TidyStep]:
        files = [{"kind": "skill", "item": "old", "was": OLD, "text": None}]
        yield TidyStep(
            (Planned("skill", (OLD,), "", "not read for 90 days", {"files": files}, question=True),)
        )


@dataclass
class Fails:
    """A phase that fails."""

    name: str = "fails"
    asks: bool = False

    async def size(self, scope: str) -> int:
        return 0

    async def steps(self, work: PhaseWork) -> AsyncIterator[TidyStep]:
        raise ToolFailed("the disk is upside down")
        yield TidyStep()


@dataclass
class Waits:
    """A chore that a test looks at while it is at work."""

    meanwhile: Callable[[], Awaitable[None]]
    name: str = "waits"
    done: list[str] = field(default_factory=list)

    async def do(self, work: PhaseWork) -> ChoreDone:
        await self.meanwhile()
        self.done.append(work.scope)
        return ChoreDone()


@dataclass
class SmallNight:
    """Builds the night of a house, and counts how often each scope was worked at."""

    more: Sequence[NightPhase] = ()
    last: Sequence[Chore] = ()
    budget: int | None = None
    asks_model: bool = False
    drop: Callable[[Stores], Deed] = Drop
    built: list[Tidying] = field(default_factory=list)

    def __call__(self, own: DataFolder) -> Tidying:
        stores = own.stores
        deeds = Deeds(stores, {"drop": self.drop(stores)})
        twice = Twice(stores, asks_model=self.asks_model)
        programme = Programme(facts=[twice], more=self.more, last=self.last)
        self.built.append(Tidying(stores, programme, deeds, own.models, self.budget))
        return self.built[-1]


OWNER = f"person:{ANN}"
DREAMING = Dreaming()


def opened(
    folder: Path,
    model: ModelServer,
    clock: Clock,
    dreaming: Dreaming = DREAMING,
    night: SmallNight | None = None,
    **more: Any,
) -> AbstractAsyncContextManager[House]:
    """A house with a small night."""
    night = night or SmallNight()
    return open_house(folder, model.url, clock=clock, dreaming=dreaming, night=night, **more)


async def remember(house: House, *texts: str, scope: str = OWNER) -> None:
    """What is known, long before the night."""
    async with house.database.transaction() as tx:
        await house.stores.facts.take(tx, [NewFact(scope, text, "harvest") for text in texts])


async def look(house: House, *names: str) -> None:
    """Let the runner do what is owed by now, of nights and mornings."""
    for name in names or ("night", "morning"):
        await house.runner.finish(name, house.rooms.wake)


async def nights(house: House) -> list[tuple[str, str, str]]:
    rows = await house.rows("SELECT date, why, state FROM nights ORDER BY seq")
    return [(row["date"], row["why"], row["state"]) for row in rows]


async def begin(house: House, *texts: str) -> None:
    """Somebody has spoken, long ago, and something is known."""
    async with house.working():
        await house.incoming("hello")
        await house.said(1)
    await remember(house, *texts)
