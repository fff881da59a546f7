"""A chat whose new memories a scripted model brings together with older ones."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.world.clock import HeldClock, until_so
from tests.world.house import PROMPTS, SCOPE, House, open_house
from tests.world.model import Calls, ModelServer, Seen, Step, Text, Use
from tests.world.request_rules import is_for_reconstruction
from wintermute.config.schema import Memory
from wintermute.learning.reconstruction import CORE, KIND, SILENCE
from wintermute.memory.fact import Source

LYON, ROME = "Ann lives in Lyon.", "Ann lives in Rome since May 2026."
BOTH = "Ann lived in Lyon until April 2026, in Rome since May 2026."
FTS = Memory(backend="fts5")
KEEP, AND = "remember: ", " | "
QUIET = SILENCE.total_seconds()
ASIDE, ELSEWHERE = "!aside:test", "!elsewhere:test"
VEGETARIAN, SINCE = "Ann is a vegetarian", "Ann is a vegetarian since 2020"


def reconstruction(*memories: str, coverage: str = "complete") -> Text:
    """Answer a question about memories with these."""
    return Text(json.dumps({"memories": memories, "coverage": coverage}))


@dataclass
class Chat:
    """Ann's chat: its model keeps what it is told to, and answers about memories by script."""

    house: House
    clock: HeldClock
    model: ModelServer
    answers: list[Step] = field(default_factory=list)
    asked: list[Seen] = field(default_factory=list)
    """The questions about memories."""
    source: Source = "user_explicit"

    def answer(self, seen: Seen) -> Step | None:
        if is_for_reconstruction(seen.body):
            self.asked.append(seen)
            return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if seen.messages[-1]["role"] == "tool" or not seen.last_user.startswith(KEEP):
            return None
        entries = seen.last_user.removeprefix(KEEP).split(AND)
        return Calls(
            tuple(Use("append_memory", {"entry": each, "source": self.source}) for each in entries)
        )

    async def told(
        self, *entries: str, room: str = ASIDE, source: Source = "user_explicit"
    ) -> None:
        """Ann asks to remember these."""
        self.source = source
        await self.house.say(KEEP + AND.join(entries), room=room)

    async def worked(self, *answers: Step) -> None:
        """Fifteen quiet minutes pass, and the model answers so; until nothing is at work."""
        self.answers, self.asked = [*answers], []
        await self.clock.move(QUIET)
        self.house.runner.wake(KIND)
        await until_so(self.at_rest)

    async def at_rest(self) -> bool:
        states = await self.states()
        return bool(self.asked or not self.answers) and bool(states) and "running" not in states

    async def states(self) -> list[str]:
        rows = await self.house.rows("SELECT state FROM jobs WHERE name = ?", KIND)
        return [row["state"] for row in rows]

    async def known(self, *texts: str) -> None:
        """What was learnt earlier, and brought together."""
        if texts:
            await self.told(*texts)
            await self.worked(reconstruction(*texts))
            assert await self.remembered() == sorted(texts)

    async def remembered(self) -> list[str]:
        """What is remembered and true, as `/memory` lists it."""
        return sorted(fact.text for fact in await self.house.stores.facts.live(SCOPE))

    async def says(self, line: str, room: str = ASIDE) -> str:
        """The answer to a command."""
        said = await self.house.ask(line, room=room)
        while await self.house.deliver(room):
            pass
        return said

    async def failed(self, attempts: int) -> bool:
        """Whether the job of a batch failed so often in the same way."""
        query = "SELECT 1 FROM jobs WHERE name = ? AND attempts = ? AND state <> 'running'"
        return bool(await self.house.rows(query, KIND, attempts))

    async def proposed(self, n: int) -> None:
        """Wait until so many batches were looked through for what belongs to the core."""
        query = "SELECT 1 FROM jobs WHERE name = ? AND state = 'done'"

        async def done() -> bool:
            return len(await self.house.rows(query, CORE)) == n

        self.house.runner.wake(CORE)
        await until_so(done)
        assert len(self.model.aside) == n

    async def is_worked(self) -> bool:
        return await self.queued() == 0

    async def queued(self) -> int:
        queues = await self.house.stores.facts.queues(self.house.database)
        return sum(queue.facts for queue in queues)


@asynccontextmanager
async def chat(folder: Path, memory: Memory = FTS, **more: object) -> AsyncIterator[Chat]:
    """Open a chat of Ann's with a model of its own."""
    clock = HeldClock()
    async with ModelServer() as model:
        model.reconstructs = True
        opened = open_house(
            folder,
            model.url,
            prompts=PROMPTS,
            memory=memory,
            clock=clock,
            **more,  # type: ignore[arg-type]  # of the house
        )
        async with opened as house, house.working():
            talk = Chat(house, clock, model)
            model.keyed(talk.answer)
            yield talk
