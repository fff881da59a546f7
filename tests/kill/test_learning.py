"""The daemon is killed at each step from a message to core memory: everything is learnt once."""

import json
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from tests.tiers import EVERY
from tests.world.bot import Bot
from tests.world.files import files_with
from tests.world.harvested import is_harvest, talk_at_the_door, transcript
from tests.world.killing import DONE, Work
from tests.world.model import ModelServer, Seen, Step, Text
from tests.world.request_rules import is_for_core, is_for_reconstruction
from tests.world.scene import NewScene
from wintermute.learning.reconstruction import ENOUGH

pytestmark = pytest.mark.asyncio(loop_scope="module")

LATER = 3600.0
PAGE = "# SOUL\n- calm\n\n# TOOLS\n\n# RULE\n\n# USER\n"
TOLD = re.compile(r"Bee\w+ hums\w+ here")
WAS, HOME = "Ann lives in Lyon.", "Ann lives in Rome since May 2026."
MOVED = "Ann lived in Lyon until May 2026, and lives in Rome since May 2026."
CHESS, TENNIS, GAMES = "Ann plays chess", "Ann plays tennis", "Ann plays chess and tennis"
HUMS = [f"Bee{n} hums{n} here" for n in range(ENOUGH - 2)]  # no two of them have a word in common
OPEN = "SELECT 1 FROM jobs WHERE state IN ('waiting', 'running')"


def learns(seen: Seen) -> Step | None:
    """A model that picks out all of it, says what is over, joins two, and has one bullet more."""
    if is_harvest(seen):
        return Text(json.dumps({"contents": [HOME, TENNIS, *TOLD.findall(transcript(seen))]}))
    if is_for_reconstruction(seen.body):
        new, known = (
            [line[2:] for line in seen.block(block).splitlines()]
            for block in ("new_contents", "related_memories")
        )
        memories = new
        if TENNIS in new:
            assert {WAS, CHESS} <= set(known)
            memories = [MOVED, GAMES, *new[2:]]
        return Text(json.dumps({"memories": memories, "coverage": "complete"}))
    if is_for_core(seen.body):
        page = seen.block("current_core_markdown")
        wanted = GAMES in seen.block("candidate_new_memories") and GAMES not in page
        return Text(
            json.dumps(
                {
                    "should_update": wanted,
                    "core_markdown": f"{page}\n- {GAMES}\n" if wanted else None,
                }
            )
        )
    return None


@dataclass(frozen=True, slots=True)
class Learning:
    """What is learnt at a start of a daemon, and the model it asks."""

    bot: Bot
    model: ModelServer
    work: Work

    def asked_for_core(self) -> int:
        """How often the model was asked what goes on the page."""
        return sum(is_for_core(seen.body) for seen in self.model.requests)


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def learning(
    new_scene: NewScene, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Learning]:
    """All of it is owed at the next start: what was said is to be read, and brought together."""
    folder: Path = tmp_path_factory.mktemp("learning")
    async with ModelServer() as model, new_scene(folder, model.url) as scene:
        model.reconstructs = model.updates_core = True
        model.keyed(learns)
        ann = await scene.person("ann")
        bot = await scene.bot(
            ann, start=False, memory_harvest={"enabled": True}, memory={"backend": "fts5"}
        )
        bot.set_clocks()
        for words in (("add", WAS), ("add", CHESS), ("reconstruct",)):
            code, said = await bot.command("memory", *words)
            assert code == 0, said
        (bot.data / "core.md").write_text(PAGE)
        await bot.start()
        room = await scene.room(ann, bot)
        await talk_at_the_door(
            ann,
            room,
            "hello",
            "I live in Rome since May 2026",
            ". ".join(HUMS),
            "I play tennis too",
            "bye",
        )
        await bot.said_all()
        await bot.until(lambda: not bot.rows(OPEN))
        assert await bot.stop() == 0
        bot.set_clocks(LATER, LATER)

        def over() -> bool:
            done = "SELECT 1 FROM jobs WHERE name = 'core' AND state = 'done'"
            return len(bot.rows(done)) == 2 and not bot.rows(OPEN)

        work = await Work.of_daemon(bot, "UPDATE jobs SET state = 'running'", over)
        yield Learning(bot, model, work)


STEPS = {
    "cursor-moved": ("INSERT INTO harvests", "COMMIT"),
    "before-commit": ("INSERT INTO unowned_bullets", "COMMIT"),
    "after-commit": ("INSERT INTO unowned_bullets", "os.rename .core.md"),
    "after-file": ("os.rename .core.md", DONE),
}


@pytest.mark.quick("before-commit")
@pytest.mark.parametrize("name", STEPS)
async def test_all_is_learnt_once_and_core_memory_is_whole(learning: Learning, name: str) -> None:
    """M-028, M-040, M-051, M-052: and once the page is on record no model is asked again."""
    asked = learning.asked_for_core()
    await learning.work.survives([[learning.work.place(*STEPS[name])]])
    assert learning.asked_for_core() - asked == (2 if name == "before-commit" else 1)


@pytest.mark.slow
async def test_what_was_said_is_learnt_once_whenever_the_daemon_dies(
    learning: Learning, request: pytest.FixtureRequest
) -> None:
    """M-028, M-039, M-043, M-052, M-070: no gap, no double; `--every 1` dies at each step."""
    every = int(request.config.getoption("every"))
    await learning.work.survives([at] for at in learning.work.points(every))


@pytest.mark.slow
async def test_a_second_kill_while_it_goes_on_changes_nothing(
    learning: Learning, request: pytest.FixtureRequest
) -> None:
    """M-028, M-039, M-052: somewhere between the start and the end of that run."""
    every = int(request.config.getoption("every"))
    if every == EVERY:
        pytest.skip("takes minutes: `make torture`")
    await learning.work.survives(learning.work.pairs(every))


@pytest.mark.slow
async def test_a_page_that_a_kill_left_unplaced_is_forgotten_as_well(learning: Learning) -> None:
    """M-030: it lies beside core.md, for the run after that wrote its own."""
    bot, work = learning.bot, learning.work
    assert await work.killed(work.place("os.rename .core.md"))
    [fact] = bot.rows("SELECT id FROM facts WHERE text = ?", GAMES)
    code, said = await bot.command("memory", "forget", fact["id"])
    assert code == 0, said
    assert files_with(bot.data, "tennis") == []
