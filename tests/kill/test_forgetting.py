"""Forgetting is killed at each step: the run after that ends as one that was not killed."""

import json
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.tiers import EVERY
from tests.world.bot import Bot, Json
from tests.world.files import files_with
from tests.world.forgetting import OPEN_JOBS, SCRUBBED
from tests.world.killing import Work
from tests.world.model import Calls, ModelServer, Seen, Step, Text, Use
from tests.world.person import Person
from tests.world.request_rules import is_for_core, is_for_reconstruction
from tests.world.scene import NewScene, Scene

pytestmark = pytest.mark.asyncio(loop_scope="module")

WORD = "zimtkanarie"
SAID, FACT = f"My bird is a {WORD} called Hugo", f"Ann's bird is a {WORD}"
OTHER, SINGS = "It sings at night", "Ann's bird sings at night"
BOTH = f"Ann's bird is a {WORD} and sings at night"
BULLET = f"Lives with a singing {WORD}"
PAGE = "# SOUL\n\n# TOOLS\n\n# RULE\n\n# USER\n- Likes tea\n"
LATER = 3600.0
MATTER = "---\ncreated: 2026-05-04\nupdated: 2026-05-04\n---\n\n"
RAW, OTHER_RAW = "episodic-raw/20260504/chat", "episodic-raw/20260505/chat"
WIKI = {
    "meta/Index.md": f"{MATTER}# Index\n\n- [[Bird]]: {FACT}\n- [[House]]\n",
    "semantic/Bird.md": f"{MATTER}# Bird\n\n{SAID}\n\nSource: [[{RAW}/0001-user]]\n",
    "semantic/House.md": f"{MATTER}# House\n\n- {FACT}\n- It has a roof\n\nSource: [[{RAW}/0001-user]]"
    f"\nSource: [[{OTHER_RAW}/0001-user]]\n",
    f"{RAW}/0001-user.md": f"{SAID}\n",
    f"{OTHER_RAW}/0001-user.md": "The house has a roof\n",
    "sleep/20260504-010000/diff.patch": f"+{FACT}\n",
}
"""What became of it in the wiki; the first page cites nothing else."""
LONG = "takes minutes: `make torture`"


def learns(seen: Seen) -> Step | None:
    """Both are remembered when they are said, made one, and put on the page."""
    if is_for_reconstruction(seen.body):
        return Text(json.dumps({"memories": [BOTH], "coverage": "complete"}))
    if is_for_core(seen.body):
        known = BULLET if WORD in seen.block("candidate_new_memories") else SINGS
        page = f"{seen.block('current_core_markdown')}\n- {known}\n"
        return Text(json.dumps({"should_update": True, "core_markdown": page}))
    entry = {SAID: FACT, OTHER: SINGS}.get(seen.last_user)
    if entry is None:
        return None
    if seen.messages[-1]["role"] == "tool":
        return Text(f"I keep that: {entry}")
    return Calls((Use("append_memory", {"entry": entry, "source": "user_explicit"}),))


async def told_and_stopped(scene: Scene, backend: str) -> tuple[Person, Bot, str, list[str]]:
    """Ann said both, and one page and one memory is made of it; the daemon is down; the events."""
    ann = await scene.person("ann")
    bot = await scene.bot(ann, start=False, memory={"backend": backend}, llm={"record": True})
    bot.set_clocks()
    (bot.data / "core.md").write_text(PAGE)
    await bot.start()
    room = await scene.room(ann, bot)
    said = await ann.send(room, SAID)
    answer = await ann.wait_for(room, lambda m: FACT in m.body)
    await ann.send(room, OTHER)
    await ann.wait_for(room, lambda m: SINGS in m.body)
    code, done = await bot.command("memory", "reconstruct")
    assert code == 0, done
    await bot.until(lambda: WORD in (bot.data / "core.md").read_text())
    await ann.send(room, "And now?")
    await ann.wait_for(room, lambda m: m.body == "echo: And now?")
    await bot.said_all()
    await bot.until(lambda: not bot.rows(OPEN_JOBS))
    assert await bot.stop() == 0
    bot.set_clocks(LATER, LATER)
    for name, text in WIKI.items():
        (bot.data / "wiki" / name).parent.mkdir(parents=True, exist_ok=True)
        (bot.data / "wiki" / name).write_text(text)
    assert {"wintermute.db", "core.md", "Bird.md", "House.md"} <= set(files_with(bot.data))
    return ann, bot, room, [said, answer.event_id]


@pytest_asyncio.fixture(loop_scope="module", scope="module", params=["fts5", "flat_file"])
async def redaction(
    request: pytest.FixtureRequest, new_scene: NewScene, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Work]:
    """Ann deleted her message and the answer while the daemon was down."""
    if request.param == "flat_file" and request.config.getoption("every") == EVERY:
        pytest.skip(LONG)
    folder = tmp_path_factory.mktemp("redacted")
    async with ModelServer() as model, new_scene(folder, model.url) as scene:
        scripted(model)
        ann, bot, room, events = await told_and_stopped(scene, request.param)
        for event_id in events:
            await ann.redact(room, event_id)

        def over() -> bool:
            return bool(bot.rows(SCRUBBED)) and not bot.rows(OPEN_JOBS)

        yield await Work.of_daemon(bot, "INSERT INTO jobs", over, WORD)


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def command(
    new_scene: NewScene, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Work]:
    """`memory forget`, which is a process of its own; who finds it killed starts the daemon."""
    folder = tmp_path_factory.mktemp("forgotten")
    async with ModelServer() as model, new_scene(folder, model.url) as scene:
        scripted(model)
        _, bot, _, _ = await told_and_stopped(scene, "fts5")
        ids = [row["id"] for row in bot.rows("SELECT id FROM facts WHERE text = ?", BOTH)]

        async def go_on(trigger: Json | None) -> int:
            code, _ = await bot.command("memory", "forget", *ids, trigger=trigger)
            if code < 0:
                return code
            await bot.start()
            await bot.until(lambda: not bot.rows(OPEN_JOBS))
            return await bot.stop()

        yield await Work.of_command(bot, "BEGIN", ["memory", "forget", *ids], go_on, WORD)


def scripted(model: ModelServer) -> None:
    model.reconstructs = model.updates_core = True
    model.allow("forgetting", "redaction", "edited core", perhaps=True)
    model.keyed(learns)


QUICK = {
    "some-records-gone": "UPDATE outbox SET body",
    "all-but-the-files": "UPDATE edited_files",
    "before-the-file": "VACUUM",
}


@pytest.mark.quick("fts5-before-the-file")
@pytest.mark.parametrize("step", QUICK.values(), ids=QUICK)
async def test_a_killed_forgetting_ends_as_one_that_was_not(redaction: Work, step: str) -> None:
    """M-030: with some records gone, with the facts gone, and before the file is rewritten."""
    await redaction.survives([[redaction.place(step)]])


@pytest.mark.slow
async def test_a_redaction_may_be_killed_at_any_step(
    redaction: Work, request: pytest.FixtureRequest
) -> None:
    """M-030: before each step of it and of the rewriting: same state, no word in any file."""
    every = int(request.config.getoption("every"))
    await redaction.survives([at] for at in redaction.points(every))


@pytest.mark.slow
async def test_a_forgetting_by_command_may_be_killed_at_any_step(
    command: Work, request: pytest.FixtureRequest
) -> None:
    """M-030: who asks again, or starts the daemon, has it done."""
    every = int(request.config.getoption("every"))
    await command.survives([at] for at in command.points(every))


@pytest.mark.slow
async def test_a_redaction_that_is_killed_twice_ends_as_one_that_was_not(
    redaction: Work, request: pytest.FixtureRequest
) -> None:
    """M-030: somewhere in the run after the first kill."""
    every = int(request.config.getoption("every"))
    if every == EVERY:
        pytest.skip(LONG)
    await redaction.survives(redaction.pairs(every))
