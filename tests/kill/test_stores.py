"""The daemon is killed while a tool changes our stores: each thing is there once, with its way back."""

import json
import signal
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest
import pytest_asyncio

from tests.tiers import tiered
from tests.world.bot import Bot
from tests.world.killing import take_a_breath
from tests.world.model import Calls, ModelServer, Seen, Step, Text, Use
from tests.world.scene import NewScene
from tests.world.user import MatrixUser
from tests.world.warm import Interpreter

pytestmark = pytest.mark.asyncio(loop_scope="module")

BEFORE, AFTER = "executing", "operation"
Steps = tuple[tuple[str, str], ...]
FACT, TASK, SKILL = "INSERT INTO facts", "INSERT INTO tasks", "INSERT INTO changes"


class World:
    """One person, her direct chat, and the daemon that dies in it."""

    def __init__(self, ann: MatrixUser, room: str, bot: Bot, python: Interpreter) -> None:
        self.ann = ann
        self.room = room
        self.bot = bot
        self.python = python
        self.data = bot.data
        self.skill = self.data / "skills" / "it.md"
        self.wanted = self.data.parent / "wanted.txt"
        self._said = 0

    async def killed_while(self, what: str, steps: Steps) -> str:
        """Ask for something, die at the steps, start again, wait for the answer; its name."""
        self._said += 1
        name = f"{what}{self._said}"
        await self.bot.start({"logger": "aiosqlite", "steps": steps})
        await take_a_breath(self.ann, self.room)
        await self.ann.send(self.room, name)
        assert await self.bot.ended() == -signal.SIGKILL
        await self.bot.start()
        await self.ann.wait_for(self.room, lambda message: message.body == f"kept {name}")
        await self.bot.said_all()
        assert await self.bot.stop() == 0
        return name

    async def cut_off(self, steps: Steps, *words: str) -> int:
        """Run a verb that dies at the steps; its exit code."""
        trigger = {"logger": "aiosqlite", "steps": steps}
        words = ("--config", str(self.bot.config), *words)
        return (await self.python.command(*words, trigger=trigger)).returncode

    async def told(self, *words: str) -> None:
        """Run a verb that must not fail."""
        code, said = await self.bot.command(*words)
        assert code == 0, said

    async def taught(self) -> str:
        """Give the skill a text that it never had; the text."""
        self._said += 1
        file = self.data.parent / "taught.md"
        file.write_text(f"Do {self._said}.\n")
        await self.told("skill", "add", "it", str(file), "--summary", "Taught")
        return self.skill.read_text()

    async def restored(self) -> str:
        """Restore the skill; its text then."""
        await self.told("skill", "restore", "it")
        return self.skill.read_text()

    async def remembered(self) -> str:
        """Bring in two facts that Ann never asked to keep; the first of them."""
        self._said += 1
        texts = [f"Ann keeps {kind} number {self._said}" for kind in ("bees", "goats")]
        file = self.data.parent / "facts.jsonl"
        file.write_text(
            "".join(f"{json.dumps({'text': text, 'source': 'harvest'})}\n" for text in texts)
        )
        await self.told("memory", "import", str(file))
        return texts[0]

    def facts(self) -> dict[str, tuple[str, str]]:
        """Text and source of what is remembered now, by id."""
        rows = self.bot.rows("SELECT id, text, source FROM facts WHERE retired_at IS NULL")
        return {str(row["id"]): (str(row["text"]), str(row["source"])) for row in rows}

    def edits(self) -> list[str]:
        """What was taken for edits by hand."""
        rows = self.bot.rows("SELECT summary FROM change_sets WHERE cause = 'edit'")
        return [str(row["summary"]) for row in rows]

    def changes(self, kind: str) -> list[str]:
        """What is on record for a kind, as JSON of the states after."""
        rows = self.bot.rows("SELECT after FROM changes WHERE kind = ? AND after <> ''", kind)
        return [str(row["after"]) for row in rows]


def behave(wanted: Path, seen: Seen) -> Step:
    name = seen.last_user
    if seen.messages[-1]["role"] == "tool":
        return Text(f"kept {name}")
    if name.startswith("fact"):
        return Calls((Use("append_memory", {"entry": f"Ann said {name}."}),))
    if name.startswith("task"):
        return Calls((Use("task", {"action": "add", "content": name}),))
    if name.startswith("file"):
        file = {"path": "data/MEMORIES.txt", "content": wanted.read_text()}
        return Calls((Use("write_file", file),))
    skill = {"skill_name": "it", "summary": name, "documentation": f"Do {name}."}
    return Calls((Use("add_skill", skill),))


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def world(
    new_scene: NewScene, python: Interpreter, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[World]:
    folder = tmp_path_factory.mktemp("killed")
    async with ModelServer() as model, new_scene(folder, model.url) as scene:
        ann = await scene.person("ann")
        bot = await scene.bot(ann)
        here = World(ann, await scene.room(ann, bot), bot, python)
        model.keyed(partial(behave, here.wanted))
        await bot.stop()
        yield here


ENDS: dict[str, Steps] = {
    "before-row": ((BEFORE, ""),),
    "before-completion": ((AFTER, ""), (BEFORE, "UPDATE observations")),
    "before-commit": ((AFTER, ""), (BEFORE, "COMMIT")),
    "after-commit": ((AFTER, ""), (AFTER, "COMMIT")),
    "before-next-turn": ((AFTER, ""), (AFTER, "COMMIT"), (BEFORE, "INSERT INTO turns")),
}
REPLACED: dict[str, Steps] = {
    "before-record": ((BEFORE, SKILL),),
    "before-commit": ((BEFORE, SKILL), (BEFORE, "COMMIT")),
    "after-commit": ((BEFORE, SKILL), (AFTER, "COMMIT")),
    "after-file": ((BEFORE, SKILL), (AFTER, "COMMIT"), (BEFORE, "UPDATE observations")),
}
REWRITTEN: dict[str, Steps] = {
    "before-row": ((BEFORE, FACT),),
    "before-commit": ((AFTER, FACT), (BEFORE, "COMMIT")),
    "after-commit": ((AFTER, FACT), (AFTER, "COMMIT")),
    "after-file": ((AFTER, FACT), (AFTER, "COMMIT"), (BEFORE, "UPDATE observations")),
}
MATTER_MOST = ("before-commit", "after-commit")


@pytest.mark.quick("before-commit-INSERT INTO tasks")
@pytest.mark.parametrize("table", [FACT, TASK])
@pytest.mark.parametrize("end", tiered(ENDS, ("before-completion", *MATTER_MOST)))
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


@pytest.mark.parametrize("steps", tiered(REPLACED, ("after-file", *MATTER_MOST)))
async def test_a_skill_is_replaced_and_its_old_texts_are_never_lost(
    world: World, steps: Steps
) -> None:
    """P-039, L-051: the old text is on record before the file is replaced."""
    oldest, old = await world.taught(), await world.taught()
    name = await world.killed_while("skill", steps)
    assert world.skill.read_text() == f"{name}\n\nDo {name}.\n"
    for text in (old, oldest):
        assert await world.restored() == text


@pytest.mark.parametrize(
    "steps",
    [
        ((BEFORE, SKILL),),
        ((BEFORE, SKILL), (BEFORE, "COMMIT")),
        ((BEFORE, SKILL), (AFTER, "COMMIT")),
    ],
    ids=["before-record", "before-commit", "after-commit"],
)
async def test_a_restoration_that_was_killed_is_done_again(world: World, steps: Steps) -> None:
    """P-039: a record without its effect hides no text."""
    texts = [await world.taught() for _ in range(3)]
    assert await world.cut_off(steps, "skill", "restore", "it") == -signal.SIGKILL
    now = world.skill.read_text()
    # The file may be replaced in the moment between the end of the statement and the kill.
    assert now in (texts[1:] if (AFTER, "COMMIT") in steps else texts[2:])
    for text in reversed(texts[: texts.index(now)]):
        assert await world.restored() == text


async def test_an_undo_that_was_killed_before_its_answer_says_what_it_did(world: World) -> None:
    """M-091, P-039: the command finds the change set that it has made."""
    texts = [await world.taught() for _ in range(2)]
    (newest,) = world.bot.rows("SELECT id FROM change_sets ORDER BY seq DESC LIMIT 1")
    await world.bot.start(
        {"logger": "aiosqlite", "steps": ((AFTER, "UPDATE changes SET placed"), (AFTER, "COMMIT"))}
    )
    await world.ann.send(world.room, f"/undo {newest['id']}")
    assert await world.bot.ended() == -signal.SIGKILL
    assert world.skill.read_text() == texts[0]
    await world.bot.start()
    await world.ann.wait_for(world.room, lambda message: "as it was before" in message.body)
    await world.bot.said_all()
    assert await world.bot.stop() == 0
    assert world.skill.read_text() == texts[0]
    undone = "SELECT 1 FROM change_sets WHERE undoes = ?"
    assert len(world.bot.rows(undone, newest["id"])) == 1


@pytest.mark.parametrize("steps", tiered(REWRITTEN, ("after-file", *MATTER_MOST)))
async def test_a_memories_file_is_rewritten_whole_or_not_at_all(world: World, steps: Steps) -> None:
    """P-049, M-015: what did not change keeps id and source, and nothing counts as a hand edit."""
    said, done = await world.remembered(), (AFTER, "COMMIT") in steps
    before, edits = world.facts(), world.edits()
    longer = f"{said} in the garden"
    wanted = [longer if text == said else text for text, _ in before.values()]
    world.wanted.write_text("".join(f"{text}\n" for text in wanted))
    await world.killed_while("file", steps)
    now = world.facts()
    assert sorted(text for text, _ in now.values()) == sorted(
        wanted if done else [text for text, _ in before.values()]
    )
    assert {fact: now[fact] for fact in now if fact in before}.items() <= before.items()
    assert [now[fact] for fact in now if fact not in before] == (
        [(longer, "dreaming_merge")] if done else []
    )
    assert world.edits() == edits
    lines = (world.data / "MEMORIES.txt").read_text().splitlines()
    assert sorted(lines) == sorted(text for text, _ in now.values())
