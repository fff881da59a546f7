"""A conversation from which a scripted model picks memories."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

from tests.world.bot import Bot
from tests.world.clock import HeldClock, until_so
from tests.world.house import ANN, PROMPTS, ROOM, House, open_house
from tests.world.model import ModelServer, Seen, Step, Text
from tests.world.user import MatrixUser, Message
from wintermute.config.schema import Memory, MemoryHarvest
from wintermute.messages import Incoming

BEN = "@ben:test"
CLUB = "room:!club:test"
RANKED = Memory(backend="fts5")
EARLY = {"enabled": True, "message_threshold": 3, "min_messages": 3}


def is_harvest(seen: Seen) -> bool:
    """Decide whether a request looks for memories."""
    return "\n<transcript>\n" in seen.system


def transcript(seen: Seen) -> str:
    return seen.system.partition("\n<transcript>\n")[2]


class Picker:
    """A model that picks what it is told to, and answers everything else; `talking` opens its house."""

    def __init__(self, model: ModelServer, folder: Path = Path()) -> None:
        self.model = model
        self.folder = folder
        self.clock = HeldClock()
        self.steps: list[Step] = []
        self.answers: dict[str, Step] = {}
        self.usual: Callable[[], Step] = lambda: Text('{"contents": []}')
        model.keyed(self.choose)

    def talking(self, **settings: Any) -> AbstractAsyncContextManager[House]:
        """Open the house at work, in its folder and by its clock unless the settings say others."""
        where: dict[str, Any] = {"folder": self.folder, "clock": self.clock} | settings
        return talking(model=self.model, **where)

    def choose(self, seen: Seen) -> Step | None:
        if is_harvest(seen):
            return self.steps.pop(0) if self.steps else self.usual()
        return self.answers.get(seen.last_user)

    def picks(self, *texts: str) -> None:
        self.steps.append(Text(json.dumps({"contents": texts})))

    @property
    def transcripts(self) -> list[str]:
        return [transcript(seen) for seen in self.model.requests if is_harvest(seen)]


@asynccontextmanager
async def talking(
    folder: Path, model: ModelServer, clock: HeldClock, **settings: Any
) -> AsyncIterator[House]:
    settings.setdefault("harvest", MemoryHarvest())
    opened = open_house(folder, model.url, prompts=PROMPTS, clock=clock, memory=RANKED, **settings)
    async with opened as house, house.working():
        yield house


async def harvested(house: House, times: int = 1) -> None:
    """Wait until so many harvests have ended."""

    async def done() -> bool:
        house.runner.wake("harvest")
        rows = await house.rows("SELECT 1 FROM jobs WHERE name = 'harvest' AND state = 'done'")
        return len(rows) >= times

    await until_so(done)


async def harvested_facts(house: House) -> list[dict[str, Any]]:
    """List the memories that harvests have found, oldest first."""
    return await house.rows(
        "SELECT text, scope, source, speaker, origins, taint, queued, created_at FROM facts"
        " WHERE source = 'harvest' AND retired_at IS NULL ORDER BY seq"
    )


def is_echo(text: str) -> Callable[[Message], bool]:
    """Return a check for the echo of a text."""
    return lambda said: said.body == f"echo: {text}"


def learnt_by(daemon: Bot) -> list[dict[str, Any]]:
    """List the memories that a daemon has, oldest first."""
    found = daemon.rows(
        "SELECT text, scope, source, origins FROM facts WHERE retired_at IS NULL ORDER BY seq"
    )
    return [dict(row) for row in found]


async def harvested_by(daemon: Bot, n: int = 1) -> None:
    """Wait until a harvest has ended, by what the daemon has on record."""

    def done() -> bool:
        return len(daemon.rows("SELECT 1 FROM jobs WHERE name = 'harvest' AND state = 'done'")) >= n

    await daemon.until(done)


async def status_line(house: House, name: str, **about: str) -> str:
    """What `/status` says of one thing; "" where it says nothing."""
    told = (await house.ask("/status all", **about)).splitlines()
    return next((each for each in told if each.startswith(f"- **{name}**")), "")


async def unlocked(house: House, text: str) -> None:
    """The key for the first undecrypted event comes, and it is answered."""
    (locked,) = await house.inbox.locked()
    event = Incoming(
        *("$locked", ROOM, ANN, "Ann", "owner", "message", text),
        sent_at=house.clock.now(),
        direct=True,
    )
    async with house.database.transaction() as tx:
        await house.inbox.unlock(tx, locked.seq, event, "waiting")
    house.rooms.wake(locked.conversation_id)
    await house.settled()


async def talk_at_the_door(ann: MatrixUser, chat: str, *texts: str) -> None:
    """Say these at the Matrix door, each answered before the next."""
    for text in texts:

        def is_answer(said: Message, text: str = text) -> bool:
            return said.body == f"echo: {text}"

        await ann.send(chat, text)
        await ann.wait_for(chat, is_answer)
