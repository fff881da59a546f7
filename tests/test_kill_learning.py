"""The daemon is killed at each database statement from a message to core memory: everything is learnt once."""

import json
import random
import re
import signal
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
import pytest_asyncio

from tests.test_harvest import is_harvest, transcript
from tests.world.bot import Bot
from tests.world.model import ModelServer, Seen, Step, Text
from tests.world.request_rules import is_for_core, is_for_reconstruction
from tests.world.scene import NewScene
from tests.world.user import MatrixUser
from wintermute.night.reconstruction import ENOUGH

pytestmark = pytest.mark.asyncio(loop_scope="module")

EARLY = {"enabled": True, "message_threshold": 3, "min_messages": 3}
PAGE = "# SOUL\n- calm\n\n# TOOLS\n\n# RULE\n\n# USER\n"
ANSWERED = ("executing", "INSERT INTO outbox_parts")
ANY = ("executing", "")
TOLD = re.compile(r"Bee\w+ hums\w+ here")
KINDS = ("harvest", "reconstruct", "core")


def told(n: int) -> list[str]:
    """What is said in a round; no two of them have a word in common."""
    return [f"Bee{n}x{m} hums{n}x{m} here" for m in range(ENOUGH)]


def one_version(texts: Sequence[str]) -> list[str]:
    """What is made of it: the first two become one."""
    return [f"{texts[0]} and {texts[1]}", *texts[2:]]


def learns(seen: Seen) -> Step | None:
    """A model that picks out all of it, joins two of them, and has one bullet more for the core."""
    shown = str(seen.messages[0]["content"])
    if is_harvest(seen):
        return Text(json.dumps({"contents": TOLD.findall(transcript(seen))}))
    if is_for_reconstruction(seen.body):
        new = TOLD.findall(shown.partition("\n<new_contents>\n")[2])
        return Text(json.dumps({"memories": one_version(new), "coverage": "complete"}))
    if is_for_core(seen.body):
        page = shown.partition("\n<current_core_markdown>\n")[2].partition("\n</")[0]
        bullet = f"- {TOLD.findall(shown.partition('<candidate_new_memories>')[2])[-1]}"
        wanted = f"{page}\n{bullet}\n"
        return Text(json.dumps({"should_update": bullet not in page, "core_markdown": wanted}))
    return None


class Learning:
    """One person, her chat, and a daemon that dies while it learns what she says."""

    def __init__(self, ann: MatrixUser, room: str, bot: Bot) -> None:
        self.ann = ann
        self.room = room
        self.bot = bot
        self._n = 0

    async def round(self, at: int) -> bool:
        """Say things, die at that statement after the answer, go on; whether it came so far."""
        self._n += 1
        core = self.bot.data / "core.md"
        core.write_text(PAGE)
        steps = [*[ANSWERED] * 3, *[ANY] * at]
        await self.bot.start({"logger": "aiosqlite", "steps": steps})
        for text in (f"hello {self._n}", f"how are you {self._n}"):
            await self.ann.send(self.room, text)
            await self.ann.wait_for(self.room, lambda said, text=text: said.body == f"echo: {text}")  # type: ignore[misc]  # bound now
        await self.ann.send(self.room, ". ".join(told(self._n)))
        await self.bot.until(lambda: not self.bot.running or self._has_learnt())
        died = not self._has_learnt()
        if died:
            assert await self.bot.ended() == -signal.SIGKILL
            await self.bot.start()
            await self.bot.until(self._has_learnt)
        if self.bot.running:
            await self.bot.stop()
        rows = self.bot.rows("SELECT text FROM facts WHERE retired_at IS NULL AND NOT ended")
        mine = [str(row["text"]) for row in rows if f"Bee{self._n}x" in str(row["text"])]
        assert sorted(mine) == sorted(one_version(told(self._n)))
        assert core.read_text() == f"{PAGE}- {told(self._n)[-1]}\n"
        return died

    def _has_learnt(self) -> bool:
        """Whether all that follows from what was said is over."""
        rows = self.bot.rows(
            "SELECT 1 FROM facts WHERE NOT queued AND retired_at IS NULL AND text LIKE ?",
            f"Bee{self._n}x0 % and %",
        )
        open_jobs = self.bot.rows(
            "SELECT 1 FROM jobs WHERE state IN ('waiting', 'running')"
            " AND name IN (SELECT value FROM json_each(?))",
            json.dumps(KINDS),
        )
        return bool(rows) and not open_jobs


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def learning(
    new_scene: NewScene, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Learning]:
    folder: Path = tmp_path_factory.mktemp("learning")
    async with ModelServer() as model, new_scene(folder, model.url) as scene:
        model.reconstructs = model.updates_core = True
        model.keyed(learns)
        ann = await scene.person("ann")
        bot = await scene.bot(ann, memory_harvest=EARLY, memory={"backend": "fts5"})
        room = await scene.room(ann, bot)
        await bot.stop()
        yield Learning(ann, room, bot)


@pytest.mark.slow
async def test_what_was_said_is_learnt_once_whenever_the_daemon_dies(
    learning: Learning, request: pytest.FixtureRequest
) -> None:
    """M-028, M-039, M-043, M-052, M-070: no gap, no double, and core memory is whole.

    Begins somewhere else in each run; `--every 1` dies at each statement.
    """
    every = int(request.config.getoption("every"))
    at = random.randint(1, every)
    while await learning.round(at):
        at += every
    assert at > every
