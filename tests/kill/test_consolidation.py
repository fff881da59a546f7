"""Consolidations and undos are killed at each step: pages are those of before or of after."""

import json
import random
import signal
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.tiers import EVERY
from tests.world.bot import Bot, write_settings
from tests.world.consolidated import CARP, GROWN, PAGE_CALL, POND, plan
from tests.world.copied import copied, put_back
from tests.world.homeserver import Login
from tests.world.house import ANN, ROOM, house_at_work
from tests.world.model import ModelServer, Seen, Step, Text
from tests.world.shelf import GARDEN, LOOKS, Json, Pages, Shelf, pages_of, shelf_of
from tests.world.warm import Interpreter

pytestmark = pytest.mark.asyncio(loop_scope="module")

CONSOLIDATE = ("wiki", "consolidate", "--conversation", ROOM)
UNDO = ("wiki", "undo")


def writes(seen: Seen) -> Step | None:
    """A model that writes two pages."""
    if "\n<transcript>\n" not in seen.system:
        return None
    found = PAGE_CALL.search(seen.system)
    return Text({GARDEN: GROWN, POND: CARP}[found[1]]) if found else plan(GARDEN, POND)


@dataclass
class Killed:
    """A command on a store, done again and again from the same folder, killed elsewhere each time."""

    bot: Bot
    words: Sequence[str]
    begin: Path
    before: Pages
    after: Pages
    steps: list[str]

    @classmethod
    async def of(cls, bot: Bot, *words: str) -> "Killed":
        """With the run that is not killed."""
        begin = copied(bot, "_".join(words[:2]))
        before = shelf_of(bot).pages()
        code, said = await bot.command(*words, trigger=trigger(bot))
        assert code == 0, said
        steps = bot.config.with_name("tape").read_text().splitlines()
        return cls(bot, words, begin, before, shelf_of(bot).pages(), steps)

    def points(self, every: int) -> list[int]:
        """Where to be killed: to be killed before a look is to be killed before the next change."""
        changes = [n for n, step in enumerate(self.steps, 1) if not step.startswith(LOOKS)]
        return sorted({changes[0], changes[-1], *changes[random.randrange(every) :: every]})

    def place(self, *texts: str) -> int:
        """The first step with this text; of several, each behind the one before."""
        at = 0
        for text in texts:
            at = next(n for n, step in enumerate(self.steps[at:], at + 1) if text in step)
        return at

    async def killed(self, at: int) -> bool:
        """Die there. Whether it came so far: what is done beside it varies in its order."""
        put_back(self.bot, self.begin)
        step = self.steps[at - 1]
        death = trigger(self.bot, step, self.steps[:at].count(step))
        code, _ = await self.bot.command(*self.words, trigger=death)
        return code == -signal.SIGKILL


def trigger(bot: Bot, step: str = "", at: int = 0) -> Json:
    tape = str(bot.config.with_name("tape"))
    return {"tape": tape, "folder": str(bot.data), "first": "", "step": step, "at": at}


def undated(pages: Pages) -> Pages:
    """A run over midnight is no difference."""
    return {path: text.partition(b"---\n\n")[2] for path, text in pages.items()}


async def survives(work: Killed, points: Sequence[int]) -> None:
    """Each of these kills leaves all or nothing, and the job says which; then it is done once."""
    came = 0
    for at in points:
        came += await work.killed(at)
        where = f"{at} {work.steps[at - 1]}"
        pages = pages_of(work.bot)
        done = undated(pages) == undated(work.after)
        assert done or pages == work.before, where
        newest = shelf_of(work.bot).jobs()[-1:]
        applied = [job for job in newest if job["agent"] == agent_of(work)]
        assert done is any(job["status"] == "applied" for job in applied), (where, newest)
        assert all(job["status"] in ("applied", "failed") for job in applied), (where, newest)
        code, said = await work.bot.command(*work.words)
        over = "There is nothing new" in said or "nothing is left to undo" in said
        assert over is done, (where, said)
        assert (code == 0) or done, (where, said)
        assert undated(pages_of(work.bot)) == undated(work.after), where
        assert whole(work.bot) == [], where
    assert came > len(points) // 2


def agent_of(work: Killed) -> str:
    return "undo" if work.words == UNDO else "builtin"


def whole(bot: Bot) -> list[Any]:
    """What must not be left over, whatever happened."""
    shelf = shelf_of(bot)
    sets = bot.rows("SELECT id, cause FROM change_sets WHERE cause = 'consolidation'")
    jobs = [job for job in shelf.jobs() if job["status"] == "applied" and job["agent"] == "builtin"]
    raw = {path.rpartition("/")[0] for path in shelf.raw()}
    listed = json.loads(shelf.read("meta/conversations.json"))
    told: list[Any] = []
    told += [sets] if [each["id"] for each in sets] != [job["change_set"] for job in jobs] else []
    told += [raw] if raw != {job["raw_copy"] for job in jobs} or sorted(raw) != listed else []
    told += bot.rows("SELECT * FROM consolidations WHERE NOT settled")
    files = [
        row["path"] for row in bot.rows("SELECT DISTINCT path FROM raw_messages ORDER BY path")
    ]
    told += [files] if files != sorted(shelf.raw()) else []
    told += [path for path in shelf.root.rglob(".*") if not path.is_file()]
    told += list((shelf.root / "sleep").glob("applying"))
    return told


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def owed(python: Interpreter, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Bot]:
    """A folder in which something was said that is to become pages."""
    folder: Path = tmp_path_factory.mktemp("consolidation")
    async with ModelServer() as model:
        model.keyed(writes)
        login = Login("@bot:test", "", "", "hunter2hunter2")
        write_settings(folder, "http://localhost", login, model.url, ANN)
        bot = Bot(folder / "config.yaml", python)
        shelf = Shelf.make(bot.data / "wiki")
        async with house_at_work(bot.data, model.url) as house:
            await house.say("I planted 12 tulips", "by the pond")
        assert shelf.pages()
        yield bot


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def consolidation(owed: Bot) -> Killed:
    """The making of two pages."""
    return await Killed.of(owed, *CONSOLIDATE)


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def undo(consolidation: Killed) -> Killed:
    """And taking them back."""
    bot = consolidation.bot
    put_back(bot, consolidation.begin)
    code, said = await bot.command(*CONSOLIDATE)
    assert code == 0, said
    return await Killed.of(bot, *UNDO)


RECORD = "UPDATE consolidations SET upto"
STEPS = {
    "before anything": ("os.mkdir job",),
    "before the copy": ("INSERT INTO raw_messages", "COMMIT"),
    "before it is recorded": (RECORD,),
    "recorded": (RECORD, "COMMIT"),
    "before the step that counts": (RECORD, "COMMIT", "os.rename"),
    "in the middle of it": (RECORD, "COMMIT", "os.rename", "os.rename", "os.rename"),
    "before it is known": ("UPDATE consolidations SET settled",),
}


@pytest.mark.quick(every=4)
@pytest.mark.parametrize("name", STEPS)
async def test_pages_are_made_whole_or_not_at_all(consolidation: Killed, name: str) -> None:
    """W-007, W-064, W-065."""
    await survives(consolidation, [consolidation.place(*STEPS[name])])


@pytest.mark.slow
async def test_pages_are_those_of_before_or_of_after_whenever_a_consolidation_dies(
    consolidation: Killed, request: pytest.FixtureRequest
) -> None:
    """W-007, W-064, W-065: `--every 1` dies at each step."""
    every = int(request.config.getoption("every"))
    await survives(consolidation, consolidation.points(max(1, every // 8)))


UNDO_STEPS = {
    "recorded": ("INSERT INTO changes", "COMMIT"),
    "in the middle of it": ("INSERT INTO changes", "COMMIT", "os.rename", "os.rename"),
}


@pytest.mark.parametrize("name", UNDO_STEPS)
async def test_pages_are_taken_back_whole_or_not_at_all(undo: Killed, name: str) -> None:
    """W-067."""
    await survives(undo, [undo.place(*UNDO_STEPS[name])])


@pytest.mark.slow
async def test_pages_are_those_of_before_or_of_after_whenever_an_undo_dies(
    undo: Killed, request: pytest.FixtureRequest
) -> None:
    """W-007, W-067: `--every 1` dies at each step."""
    every = int(request.config.getoption("every"))
    assert every <= EVERY
    await survives(undo, undo.points(max(1, every // 8)))


@pytest.mark.parametrize("path", [GARDEN, POND])
async def test_an_edit_after_a_kill_stays_when_the_rest_is_finished(
    consolidation: Killed, path: str
) -> None:
    """W-066: in the middle of the step that counts, before or after that page was in place."""
    renames = ["os.rename"] * (2 if path == GARDEN else 3)
    await consolidation.killed(consolidation.place(RECORD, "COMMIT", *renames))
    shelf = shelf_of(consolidation.bot)
    assert (shelf.root / "sleep/applying").exists()
    shelf.write(path, "Mine, and mine alone.\n")
    pages = pages_of(consolidation.bot)
    assert pages[path] == b"Mine, and mine alone.\n"
    [other] = {GARDEN, POND} - {path}
    assert undated(pages)[other] == undated(consolidation.after)[other]
