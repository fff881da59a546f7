"""The daemon is killed while it replaces core.md: it is whole at each point, and changed once."""

import json
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.tiers import tiered
from tests.world.bot import Bot
from tests.world.model import ModelServer, Seen, Step, Text
from tests.world.scene import NewScene
from wintermute.clock import SystemClock
from wintermute.db import open_database
from wintermute.ids import new_id
from wintermute.jobs import Jobs

pytestmark = pytest.mark.asyncio(loop_scope="module")

BEFORE, AFTER = "executing", "operation"
Steps = tuple[tuple[str, str], ...]
RECORD, BULLETS, DONE = "INSERT INTO changes", "INSERT INTO free_bullets", "SET state = 'done'"
PAGE = "# SOUL\n- calm\n\n# TOOLS\n\n# RULE\n\n# USER\n"
ENDS: dict[str, Steps] = {
    "before-begin": ((BEFORE, "UPDATE jobs SET state = 'running'"),),
    "before-record": ((BEFORE, RECORD),),
    "after-record": ((AFTER, RECORD),),
    "after-bullets": ((AFTER, BULLETS),),
    "before-commit": ((AFTER, BULLETS), (BEFORE, "COMMIT")),
    "after-commit": ((AFTER, BULLETS), (AFTER, "COMMIT")),
    "after-file": ((AFTER, BULLETS), (AFTER, "COMMIT"), (BEFORE, DONE)),
    "before-done": ((AFTER, BULLETS), (AFTER, "COMMIT"), (AFTER, DONE)),
    "after-done": ((AFTER, BULLETS), (AFTER, "COMMIT"), (AFTER, DONE), (AFTER, "COMMIT")),
}
ASKED_ONCE = ("after-commit", "after-file", "before-done", "after-done")


class Page:
    """A daemon whose model wants one bullet more each time."""

    def __init__(self, model: ModelServer, bot: Bot) -> None:
        self.bot = bot
        self.file = bot.data / "core.md"
        self.asked = 0
        self.wanted = PAGE
        self._n = 0
        model.updates_core = True
        model.keyed(self._answer)

    def _answer(self, seen: Seen) -> Step | None:
        if "<current_core_markdown>" not in str(seen.messages[0]["content"]):
            return None
        self.asked += 1
        return Text(json.dumps({"should_update": True, "core_markdown": self.wanted}))

    async def killed(self, steps: Steps) -> str:
        """Owe an update, die at the steps; what the page was then."""
        self._n += 1
        self.asked = 0
        self.file.write_text(PAGE)
        self.wanted = f"{PAGE}- Ann keeps bees number {self._n}.\n"
        code, said = await self.bot.command(
            "memory", "add", f"Ann keeps bees number {self._n}.", "--source", "harvest", "--json"
        )
        assert code == 0, said
        async with (
            open_database(self.bot.data / "wintermute.db") as database,
            database.transaction() as tx,
        ):
            (scope,) = await tx.scalars("SELECT scope FROM facts LIMIT 1")
            (fact,) = await tx.scalars("SELECT id FROM facts ORDER BY seq DESC LIMIT 1")
            jobs = Jobs(SystemClock(), new_id)
            await jobs.enqueue(tx, "core", f"set_{self._n}", scope, {"facts": [fact]})
        await self.bot.start({"logger": "aiosqlite", "steps": steps}, ready=False)
        assert await self.bot.ended() == -signal.SIGKILL
        return self.file.read_text()

    async def ended(self) -> None:
        """Start again, and wait for the end of what is owed."""
        query = "SELECT 1 FROM jobs WHERE name = 'core' AND state <> 'done'"

        await self.bot.start()
        await self.bot.until(lambda: not self.bot.rows(query))
        assert await self.bot.stop() == 0


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def page(
    new_scene: NewScene, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Page]:
    folder: Path = tmp_path_factory.mktemp("killed")
    async with ModelServer() as model, new_scene(folder, model.url) as scene:
        bot = await scene.bot(await scene.person("ann"))
        await bot.stop()
        yield Page(model, bot)


@pytest.mark.parametrize(
    "name", tiered({name: name for name in ENDS}, ("before-commit", "after-commit", "after-file"))
)
async def test_the_page_is_whole_at_each_point_and_changed_once(page: Page, name: str) -> None:
    """M-040, M-051, M-052: and what it was is kept; once it is on record no model is asked again."""
    found = await page.killed(ENDS[name])
    assert found in (PAGE, page.wanted)
    await page.ended()
    assert page.file.read_text() == page.wanted
    if name in ASKED_ONCE:
        assert page.asked == 1
    rows = page.bot.rows(
        "SELECT before FROM changes WHERE kind = 'core' AND after LIKE ?", f"%{page.wanted[-8:-2]}%"
    )
    assert [json.loads(str(row["before"])) for row in rows] == [{"text": PAGE}]
    code, _ = await page.bot.command("core", "restore", "1")
    assert (code, page.file.read_text()) == (0, PAGE)
    assert not page.bot.rows("SELECT 1 FROM facts WHERE retired_at IS NOT NULL")
