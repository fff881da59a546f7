"""The daemon is killed in the middle of workflows and batches: all of it is done, and told once."""

import json
import signal
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.tiers import tiered
from tests.world.bot import Bot
from tests.world.delegating import batch, done, objective, results, spawn
from tests.world.killing import take_a_breath
from tests.world.model import Calls, ModelServer, Seen, Step, Text
from tests.world.scene import NewScene
from tests.world.user import MatrixUser

pytestmark = pytest.mark.asyncio(loop_scope="module")

BEFORE, AFTER = "executing", "operation"
Steps = tuple[tuple[str, str], ...]
NEW = "INSERT INTO sub_sessions"
START = "state = 'running', cast_id"
CLOSE = "UPDATE sub_sessions SET state = ?"
RELEASE = "SET missing = missing - 1"
COMMIT = (AFTER, "COMMIT")


class World:
    """One person, her direct chat, and the daemon that dies in it."""

    def __init__(self, ann: MatrixUser, room: str, bot: Bot) -> None:
        self.ann = ann
        self.room = room
        self.bot = bot
        self._said = 0

    async def killed_while(self, what: str, steps: Steps) -> str:
        """Ask for something, die at the steps, start again, wait for all of it; its name."""
        self._said += 1
        name = f"{what}{self._said}"
        await self.bot.start({"logger": "aiosqlite", "steps": steps})
        await take_a_breath(self.ann, self.room)
        await self.ann.send(self.room, name)
        assert await self.bot.ended() == -signal.SIGKILL
        await self.bot.start()
        await self.ann.wait_for(self.room, lambda m: m.body.startswith(f"told {name}"))
        await self.bot.said_all()
        assert await self.bot.stop() == 0
        return name

    def told(self, name: str) -> list[str]:
        """What was told about a thing."""
        rows = self.bot.rows("SELECT body FROM outbox WHERE body LIKE ?", f"told {name}%")
        return [str(row["body"]) for row in rows]

    def nodes(self, name: str) -> list[tuple[str, str, int]]:
        """Objective, state and number of recorded turns of all that was handed out for it."""
        rows = self.bot.rows(
            "SELECT s.objective, s.state, (SELECT count(*) FROM turns t WHERE t.cast_id = s.cast_id)"
            " AS turns FROM sub_sessions s WHERE s.objective LIKE ? ORDER BY s.seq",
            f"{name} %",
        )
        return [(str(r["objective"]), str(r["state"]), int(r["turns"])) for r in rows]


def behave(seen: Seen) -> Step:
    asked = objective(seen)
    if asked:
        return done(f"did {asked}")
    said = seen.last_user
    if said.startswith("<event"):
        return Text(f"told {said.partition('Objective: ')[2].split()[0]} as one: {said}")
    if seen.messages[-1]["role"] == "tool":
        return Text(f"told {said}: {results(seen)[-1]}" if said.startswith("batch") else "begun")
    if said.startswith("batch"):
        return Calls((batch(*(f"{said} {n}" for n in range(3))),))
    return Calls((spawn(f"{said} a", name="a"), spawn(f"{said} b", name="b", depends_on=["a"])))


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def world(
    new_scene: NewScene, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[World]:
    async with ModelServer() as model:
        model.keyed(behave)
        async with new_scene(tmp_path_factory.mktemp("killed"), model.url) as scene:
            ann = await scene.person("ann")
            bot = await scene.bot(ann)
            room = await scene.room(ann, bot)
            await bot.stop()
            yield World(ann, room, bot)


WORKFLOW: dict[str, Steps] = {
    "before-row": ((BEFORE, NEW),),
    "before-commit": ((AFTER, NEW), (BEFORE, "COMMIT")),
    "between-spawns": ((AFTER, NEW), COMMIT),
    "after-spawns": ((AFTER, NEW), (AFTER, NEW), COMMIT),
    "before-start": ((BEFORE, START),),
    "after-start": ((AFTER, START), COMMIT),
    "before-end": ((BEFORE, RELEASE),),
    "after-end": ((AFTER, RELEASE), COMMIT),
    "in-second": ((AFTER, RELEASE), (AFTER, START), COMMIT, (BEFORE, "INSERT INTO turns")),
    "before-report": ((AFTER, RELEASE), (AFTER, RELEASE), (BEFORE, "INSERT INTO inbox")),
    "after-report": ((AFTER, RELEASE), (AFTER, RELEASE), COMMIT),
}
BATCH: dict[str, Steps] = {
    "after-first": ((AFTER, NEW), COMMIT),
    "after-one": ((AFTER, CLOSE), COMMIT),
    "after-two": ((AFTER, CLOSE), (AFTER, CLOSE), COMMIT),
    "before-results": (*((AFTER, CLOSE),) * 3, (BEFORE, "UPDATE observations")),
}


@pytest.mark.parametrize("steps", tiered(WORKFLOW, ("after-end",)))
async def test_a_workflow_is_done_and_told_once(world: World, steps: Steps) -> None:
    """L-068, L-067, L-051."""
    name = await world.killed_while("flow", steps)
    assert world.nodes(name) == [(f"{name} a", "done", 1), (f"{name} b", "done", 1)]
    (told,) = world.told(name)
    assert f"did {name} a" in told
    assert f"did {name} b" in told


@pytest.mark.parametrize("steps", tiered(BATCH, ("before-results",)))
async def test_a_batch_is_gone_on_with_and_keeps_its_order(world: World, steps: Steps) -> None:
    """L-051, L-057: each child has one recorded turn, whenever the kill came."""
    name = await world.killed_while("batch", steps)
    # They are kept in the order in which they begin, which a restart does not change.
    assert sorted(world.nodes(name)) == [(f"{name} {n}", "done", 1) for n in range(3)]
    (told,) = world.told(name)
    outcomes = json.loads(told.partition(": ")[2])
    assert [each["result"] for each in outcomes] == [f"did {name} {n}" for n in range(3)]
