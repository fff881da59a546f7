"""A small night for tests: it joins what is said twice, and asks about what ends with a question mark.

    "Likes tea", "Likes tea, again"  ─▶  "Likes tea" stays, the other is retired
    "Sells the car?"                 ─▶  a question: shall it go?

No model is asked, unless a phase is told to.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.world.bot import Bot
from tests.world.clock import SYSTEM, HeldClock
from tests.world.house import ANN, ROOM, House, open_house
from tests.world.model import Calls, ModelServer, Seen, Step, Text, Use
from tests.world.parts import Gate
from tests.world.person import Person
from tests.world.terminal import OWNER as PERSON
from tests.world.terminal import YOU, Terminal
from tests.world.user import Message
from wintermute.changes.change_sets import Reason
from wintermute.changes.decisions import Decision, Decisions, digest_of
from wintermute.changes.nights import Nights
from wintermute.clock import Clock, SystemClock
from wintermute.config.schema import Dreaming
from wintermute.conversation.toolbox import Caller
from wintermute.db import Transaction, open_database
from wintermute.errors import ToolFailed
from wintermute.forgetting.executors import Executor, Executors, Kinds
from wintermute.memory.fact import NewFact
from wintermute.messages import Json, Request
from wintermute.night.pipeline import NightPhase, NightPipeline, PhaseStep, PhaseWork
from wintermute.stores import Stores
from wintermute.work.data_folder import DataFolder

AGAIN = ", again"
OLD = "How the fax is fed.\n\nFace down.\n"
OFF = Dreaming(enabled=False)
YES, NO = "\N{WHITE HEAVY CHECK MARK}", "\N{CROSS MARK}"
SOON = {"enabled": False, "hour": 0, "minute": 0, "report_at": "00:01"}
FIRST_TURN = pytest.mark.breaks("tools")
"""With the first message after a night there is one tool more."""
HOUR = 3600.0
BEN = "@ben:test"
BENS = f"person:{BEN}"
KNOWN = ("Likes tea", "Likes tea, again", "Has a dog", "Has a dog, again", "Sells the car?")
TOOL = "night"


@dataclass
class Twice:
    """Looks for what is said twice."""

    name: ClassVar = "twice"
    use: ClassVar = "join what is said twice"
    kinds: ClassVar[Kinds] = ()
    stores: Stores
    asks_model: bool = False

    async def size(self, scope: str) -> int:
        return await self.stores.facts.count(scope)

    async def steps(self, work: PhaseWork) -> AsyncIterator[PhaseStep]:
        facts = {fact.text: fact for fact in await self.stores.facts.live(work.scope)}
        for text, fact in facts.items():
            question = text.endswith("?")
            other = facts.get(text.removesuffix(AGAIN))
            if not question and (other is None or other is fact):
                continue
            digest = digest_of(fact.id)
            if not await self.stores.nights.not_yet_asked(work.scope, [digest]):
                continue
            if self.asks_model:
                said = {"role": "user", "content": f"Is it so?\n<entries>\n{text}\n</entries>"}
                await work.models.ask_in_background("dreaming", Request((said,)))
            item = Decision(
                kind="rest" if question else "merged",
                before=(text,) if question or other is None else (other.text, text),
                after="" if question or other is None else other.text,
                reason="is it so?" if question else "said twice",
                plan={"facts": [fact.id], "text": text},
                evidence=(fact.id,),
                loses=1,
                state="open" if question else "planned",
                digest=digest,
            )
            yield PhaseStep((item,))


async def drop(stores: Stores, tx: Transaction, item: Decision, why: Reason) -> bool:
    """Retires the facts of an item, as long as they say what they said."""
    wanted = item.plan["facts"]
    live = await stores.facts.living(tx, item.scope, wanted)
    if [fact.text for fact in live] != [item.plan["text"]]:
        return False
    await stores.facts.supersede(tx, why, (), dict.fromkeys(wanted))
    return True


@dataclass
class OldSkill:
    """Asks whether the skill `old` may go."""

    name: ClassVar = "skills"
    use: ClassVar = "review skills"
    kinds: ClassVar[Kinds] = ()

    async def size(self, scope: str) -> int:
        return 1

    async def steps(self, work: PhaseWork) -> AsyncIterator[PhaseStep]:
        files = [{"kind": "skill", "item": "old", "was": OLD, "text": None}]
        yield PhaseStep(
            (Decision("skill", (OLD,), "", "not read for 90 days", {"files": files}, state="open"),)
        )


@dataclass
class Fails:
    """A phase that fails."""

    name: ClassVar = "fails"
    use: ClassVar = "turn the disk"
    kinds: ClassVar[Kinds] = ()

    async def size(self, scope: str) -> int:
        return 0

    async def steps(self, work: PhaseWork) -> AsyncIterator[PhaseStep]:
        raise ToolFailed("the disk is upside down")
        yield PhaseStep()


@dataclass
class Waits:
    """A phase with work of its own that a test looks at meanwhile."""

    name: ClassVar = "waits"
    use: ClassVar = "wait"
    kinds: ClassVar[Kinds] = ()
    meanwhile: Callable[[], Awaitable[None]]
    done: list[str] = field(default_factory=list)

    async def steps(self, work: PhaseWork) -> AsyncIterator[PhaseStep]:
        await self.meanwhile()
        self.done.append(work.scope)
        yield PhaseStep()


@dataclass
class SmallNight:
    """Builds the night of a house, and counts how often each scope was worked at."""

    more: Sequence[NightPhase] = ()
    last: Sequence[NightPhase] = ()
    budget: int | None = None
    asks_model: bool = False
    drop: Executor = drop
    built: list[NightPipeline] = field(default_factory=list)

    def __call__(self, own: DataFolder) -> NightPipeline:
        stores = own.stores
        deeds = Executors(stores, dict.fromkeys(("merged", "rest"), self.drop))
        phases: list[NightPhase] = [Twice(stores, self.asks_model), *self.more, *self.last]
        groups = [[phase] for phase in phases]
        self.built.append(NightPipeline(own, groups, (), deeds, self.budget))
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


def house_at(
    home: Terminal, model: ModelServer, night: SmallNight, clock: Clock = SYSTEM
) -> AbstractAsyncContextManager[House]:
    """Open a house with a small night in the folder of a person at the command line."""
    return opened(home.data, model, clock, OFF, night, owner=YOU, zone="UTC")


async def night_at(
    home: Terminal, model: ModelServer, night: SmallNight, *texts: str, clock: Clock = SYSTEM
) -> str:
    """One night in the folder of a person; its id."""
    async with house_at(home, model, night, clock) as house:
        await remember(house, *texts, scope=PERSON)
        before = len(await house.spoken())
        async with house.working():
            await house.incoming("/dream", sender=YOU)
            await house.said(before + 1)
            house.runner.wake("night")
            await house.said(before + 2)
        return str((await house.one("SELECT max(id) AS id FROM nights"))["id"])


def is_morning(said: Message) -> bool:
    """Decide whether a message asks the question of that night."""
    return "The question: Remove this skill? “How the fax is fed." in said.body


async def ended_night(daemon: Bot, owner: Person) -> None:
    """A night that is over and asks whether a skill may go."""
    (daemon.data / "skills").mkdir(exist_ok=True)
    (daemon.data / "skills" / "old.md").write_text(OLD)
    files = [{"kind": "skill", "item": "old", "was": OLD, "text": None}]
    wanted = Decision("skill", (OLD,), "", "not read for 90 days", {"files": files}, state="open")
    async with open_database(daemon.data / "wintermute.db") as database:
        nights = Nights(database, SystemClock())
        async with database.transaction() as tx:
            night = await nights.begin(tx, SystemClock().now().date(), "schedule")
            assert night is not None
            where = (night.id, f"person:{owner.user_id}", "skills")
            await Decisions(database, SystemClock()).number(tx, where, [wanted])
            await nights.end(tx, night.id)


async def slept(house: House, clock: HeldClock, hours: float = 20) -> None:
    """From noon, 14:00 in Berlin, through the night at 01:00 and the morning at 08:00."""
    for _ in range(round(hours * 10)):
        clock.advance(HOUR / 10)
        await look(house)


async def live_texts(house: House, scope: str = OWNER) -> list[str]:
    """List the memories of a scope."""
    return [fact.text for fact in await house.stores.facts.live(scope)]


async def says_at_night(house: House, line: str, *, room: str = ROOM, sender: str = ANN) -> str:
    """What is answered to a line; mornings and nights have said what they say before."""
    origin = "owner" if sender == ANN else "other"
    async with house.working():
        return await house.ask(line, room=room, sender=sender, origin=origin)


def calls_night(said: str, action: str, item: str = "") -> Callable[[Seen], Step | None]:
    """A model that calls `night` when a person says this, and then says what came of it."""

    def choose(seen: Seen) -> Step | None:
        last = seen.body["messages"][-1]
        if last["role"] == "tool":
            return Text(f"It says: {last['content']}")
        if said not in str(last["content"]):
            return None
        args = {"action": action} | ({"item": item} if item else {})
        return Calls((Use(TOOL, args),))

    return choose


@dataclass(frozen=True)
class FromOutside(Gate):
    """Gives a text of somebody else."""

    name: str = "page"

    def is_untrusted(self, caller: Caller, args: Json, result: object) -> bool:
        return True
