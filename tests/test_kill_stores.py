"""The daemon is killed while a tool changes our stores: each thing is there once, with its way back."""

import json
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import pytest_asyncio

from tests.world.bot import Bot, meet, write_settings
from tests.world.homeserver import Homeserver
from tests.world.model import Calls, ModelServer, Seen, Step, Text, Use
from tests.world.user import MatrixUser

pytestmark = pytest.mark.asyncio(loop_scope="module")

BEFORE, AFTER = "executing", "operation"
Steps = tuple[tuple[str, str], ...]
FACT, TASK, SKILL = "INSERT INTO facts", "INSERT INTO tasks", "INSERT INTO changes"


class World:
    """One person, her direct chat, and the daemon that dies in it."""

    def __init__(self, ann: MatrixUser, room: str, bot: Bot, data: Path) -> None:
        self.ann = ann
        self.room = room
        self.bot = bot
        self.data = data
        self._said = 0

    async def killed_while(self, what: str, steps: Steps) -> str:
        """Ask for something, die at the steps, start again, wait for the answer; its name."""
        self._said += 1
        name = f"{what}{self._said}"
        await self.bot.start({"logger": "aiosqlite", "steps": steps})
        await self.ann.send(self.room, name)
        assert await self.bot.ended() == -signal.SIGKILL
        await self.bot.start()
        await self.ann.wait_for(self.room, lambda message: message.body == f"kept {name}")
        await self.bot.said_all()
        assert await self.bot.stop() == 0
        return name

    def changes(self, kind: str) -> list[str]:
        """What is on record for a kind, as JSON of the states after."""
        rows = self.bot.rows("SELECT after FROM changes WHERE kind = ?", kind)
        return [str(row["after"]) for row in rows]


def behave(seen: Seen) -> Step:
    name = seen.last_user
    if seen.messages[-1]["role"] == "tool":
        return Text(f"kept {name}")
    if name.startswith("fact"):
        return Calls((Use("append_memory", {"entry": f"Ann said {name}."}),))
    if name.startswith("task"):
        return Calls((Use("task", {"action": "add", "content": name}),))
    skill = {"skill_name": "it", "summary": name, "documentation": f"Do {name}."}
    return Calls((Use("add_skill", skill),))


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def world(
    homeserver: Homeserver,
    fresh: Callable[[str], str],
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[World]:
    folder: Path = tmp_path_factory.mktemp("killed")
    login, ann_login = homeserver.user(fresh("bot")), homeserver.user(fresh("ann"))
    async with AsyncExitStack() as stack:
        ann = MatrixUser(homeserver.url, ann_login, folder / "ann")
        await stack.enter_async_context(ann)
        model = await stack.enter_async_context(ModelServer())
        model.keyed(behave)
        config = write_settings(folder / "bot", homeserver.url, login, model.url, ann.user_id)
        bot = await stack.enter_async_context(Bot(config))
        room = await meet(ann, login.user_id)
        await bot.stop()
        yield World(ann, room, bot, folder / "bot" / "data")


@pytest.mark.parametrize("table", [FACT, TASK])
@pytest.mark.parametrize(
    "end",
    [
        ((BEFORE, ""),),
        ((AFTER, ""), (BEFORE, "UPDATE observations")),
        ((AFTER, ""), (BEFORE, "COMMIT")),
        ((AFTER, ""), (AFTER, "COMMIT")),
        ((AFTER, ""), (AFTER, "COMMIT"), (BEFORE, "INSERT INTO turns")),
    ],
    ids=["before-row", "before-completion", "before-commit", "after-commit", "before-next-turn"],
)
async def test_a_change_is_stored_once_with_its_observation(
    world: World, table: str, end: Steps
) -> None:
    """L-051, DESIGN §3: row, change set and observation are one transaction."""
    what = "fact" if table == FACT else "task"
    name = await world.killed_while(what, tuple((phase, text or table) for phase, text in end))
    column, tables = ("text", "facts") if what == "fact" else ("content", "tasks")
    rows = world.bot.rows(f"SELECT {column} AS said FROM {tables}")
    assert [str(row["said"]) for row in rows].count(_stored(what, name)) == 1
    recorded = [json.loads(state) for state in world.changes(what)]
    assert [state[column] for state in recorded].count(_stored(what, name)) == 1


def _stored(what: str, name: str) -> str:
    return f"Ann said {name}." if what == "fact" else name


@pytest.mark.parametrize(
    "steps",
    [
        ((BEFORE, SKILL),),
        ((BEFORE, SKILL), (BEFORE, "COMMIT")),
        ((BEFORE, SKILL), (AFTER, "COMMIT")),
        ((BEFORE, SKILL), (AFTER, "COMMIT"), (BEFORE, "UPDATE observations")),
    ],
    ids=["before-record", "before-commit", "after-commit", "after-file"],
)
async def test_a_skill_is_replaced_and_its_old_text_is_never_lost(
    world: World, steps: Steps
) -> None:
    """P-039, L-051: the old text is on record before the file is replaced."""
    file = world.data / "skills" / "it.md"
    old = file.read_text() if file.exists() else ""
    name = await world.killed_while("skill", steps)
    assert file.read_text() == f"{name}\n\nDo {name}.\n"
    if old:
        code, said = await world.bot.command("skill", "restore", "it")
        assert code == 0, said
        assert file.read_text() == old
