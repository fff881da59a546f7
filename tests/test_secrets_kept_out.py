"""Secrets that were told: no text that is made of talk holds one, by whichever door it comes in."""

import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from tests.world.agents import consolidate_by_agent, with_agent
from tests.world.clock import HeldClock
from tests.world.core_pages import PAGE, at_work, batch, wish
from tests.world.folding import FEW, Summariser
from tests.world.harvested import Picker, harvested, talking
from tests.world.house import house_at_work, open_house
from tests.world.memory import ANN as ANNS
from tests.world.memory import because, memory_in
from tests.world.model import ModelServer, Text
from tests.world.shelf import GARDEN, INDEX, Shelf
from tests.world.terminal import Terminal
from tests.world.tidied import open_nights
from tests.world.toolbox import ANN, OWNER, SKILL, Desk, open_desk
from wintermute.changes.decisions import Decision
from wintermute.config.secrets import HIDDEN, Redaction
from wintermute.errors import ToolFailed
from wintermute.memory.fact import NewFact
from wintermute.tools.memory import AddSkill

PROGRAM = Path(__file__).parents[1] / "wintermute"
KEPT = re.compile(r'\bSearchableText\(\s*(?:\*\()?"(\w+)"')
STORED = re.compile(
    r"\bput_in_place\(|pages\.replace\(|def _replace\(self, why"
    r'|(?:INSERT INTO |insert(?:_many)?\(\s*"|insert_many, ")(?:facts|folds|tasks|decisions)\b'
)
AS_SAID = "casts turns observations edits inbox outbox sub_sessions jobs occurrences model_calls edited_files"
COPIES = "changes change_sets night_phases prompt_parts"
OTHERS = {
    "files.py": "puts any file in place",
    "wiki/page_jobs.py": "the journal: consolidation.py asks before its diff and reports are made",
    "wiki/job_undo.py": "takes lines away",
    "cli/core.py": "a person's own page",
}
SECRET, THEIRS = "hunter2xyz", "PIN: 4711"
LINE = f"The wifi password is {SECRET}"
SAFE = "The wifi password is [secret]"
pytestmark = [
    pytest.mark.breaks("edited core", perhaps=True),
    pytest.mark.breaks("fold", perhaps=True),
]
CANARY = "hunter2-canary"


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    async with open_desk(tmp_path) as opened:
        yield opened


async def harvest(folder: Path, model: ModelServer) -> str:
    """Facts that a model picks of a chat: refused."""
    picker, clock = Picker(model), HeldClock()
    picker.picks(LINE, "Ann likes tea.")
    async with talking(folder, model, clock) as house:
        await house.say(f"I like tea, my wifi password is {SECRET}", *map(str, range(19)))
        await harvested(house)
        return json.dumps(await house.rows("SELECT text, key FROM facts"))


async def rewritten(folder: Path, model: ModelServer) -> str:
    """Texts that would replace facts (reconstruction, a merge, a list) are refused, and the facts stay."""
    async with memory_in(folder) as memory:
        old, kept = [(await memory.add(text))[0] for text in ("Ann likes tea.", "Bo likes jam.")]
        async with memory.database.transaction() as tx:
            new = [
                NewFact(ANNS, LINE, "harvest"),
                NewFact(ANNS, "Bo likes jam, red one", "harvest"),
            ]
            await memory.facts.supersede(
                tx, because("reconstruction"), new, {old.id: 0, kept.id: 1}
            )
        assert await memory.texts() == ["Ann likes tea.", "Bo likes jam, red one"]
        return json.dumps(
            [dict(row) for row in await memory.database.rows("SELECT after FROM changes")]
        )


async def core(folder: Path, model: ModelServer) -> str:
    """Bullets that a model writes; what a person wrote there stays."""
    (folder / "core.md").write_text(f"{PAGE}- {THEIRS}\n")
    async with at_work(folder, model, wish(f"{PAGE}- {THEIRS}\n- {LINE}\n")) as house:
        await batch(house, "Ann likes tea.")
        rows = await house.rows("SELECT after FROM changes WHERE kind = 'core'")
    text = (folder / "core.md").read_text()
    assert THEIRS in text
    return text + json.dumps(rows)


async def folds(folder: Path, model: ModelServer) -> str:
    """The summary of what was said long ago."""
    Summariser(model, lambda n: Text(f"They greeted. {LINE}.", usage=None))
    async with house_at_work(folder, model.url, context=FEW) as house:
        await house.say_at_once(
            f"a long story, {LINE} " + "word " * 90, "b long story", "c", "/compact"
        )
        return json.dumps(await house.rows("SELECT summary FROM folds"))


async def night(folder: Path, model: ModelServer) -> str:
    """Plans of a night: a task and a skill go without the secret, a fact not at all."""
    async with open_nights(folder, model) as asleep:
        began = await asleep.night("tasks")
        files = [{"kind": "skill", "item": "tea", "was": THEIRS, "text": f"{THEIRS}\n{LINE}\n"}]
        wanted = [
            Decision("task", ("tea",), LINE, "clearer", {"content": LINE, "ends": ""}),
            Decision("skill", (THEIRS,), f"{THEIRS}\n{LINE}\n", "long", {"files": files}),
            Decision("merged", ("a", "b"), LINE, "alike", {"text": LINE}),
            Decision("list", ("a",), LINE, "shorter", {"lines": [LINE], "old": {}}),
        ]
        async with asleep.house.database.transaction() as tx:
            made = await asleep.house.stores.decisions.number(tx, (began.id, ANN, "tasks"), wanted)
        assert [item.kind for item in made] == ["task", "skill"]
        assert all(THEIRS in part for part in (made[1].after, made[1].plan["files"][0]["text"]))
        rows = await asleep.house.rows("SELECT before, after, reason, plan FROM answered_decisions")
        return json.dumps(rows)


DOORS: dict[str, Callable[[Path, ModelServer], Awaitable[str]]] = {
    "fact: harvest": harvest,
    "fact: reconstruction, merge, list": rewritten,
    "core: the model's page": core,
    "fold: the summary": folds,
    "task, skill, fact: what a night plans": night,
}
"""By the kind of text, the door; pages, skills, tasks and imports have a story each below."""


def test_whatever_stores_text_made_of_talk_asks_the_guard() -> None:
    """M-083: a new table or writer of text is no exception before somebody says why."""
    texts = {str(path.relative_to(PROGRAM)): path.read_text() for path in PROGRAM.rglob("*.py")}
    tables = {table for text in texts.values() for table in KEPT.findall(text)}
    assert tables == {"facts", "folds", "tasks", "decisions", *f"{AS_SAID} {COPIES}".split()}
    stores = {name for name, text in texts.items() if STORED.search(text)}
    unasked = {name for name in stores if "wintermute.secret_shapes import" not in texts[name]}
    assert len(stores) > 10
    assert unasked == {*OTHERS}


@pytest.mark.parametrize("door", DOORS.values(), ids=DOORS)
async def test_what_is_derived_from_talk_holds_no_secret(
    tmp_path: Path, model: ModelServer, door: Callable[[Path, ModelServer], Awaitable[str]]
) -> None:
    """M-083: asked where it is stored, whatever the model answered."""
    kept = await door(tmp_path, model)
    assert SECRET not in kept
    assert door in (harvest, rewritten) or SAFE in kept


async def test_a_page_an_index_line_and_the_folder_of_a_job_hold_none(terminal: Terminal) -> None:
    """M-083, W-064: the rest of the line stays, and so does what a person wrote into the page."""
    shelf = Shelf.make(terminal.data / "my wiki")
    shelf.write(GARDEN, shelf.read(GARDEN) + f"\nThe shed: {THEIRS}\n")
    script = f"""
put("semantic/Garden.md", garden.read_text() + "\\nSee [[Wifi]]. {LINE}, ask Bo.\\n")
put("semantic/Wifi.md", page("# Wifi\\n\\n{LINE}"))
put("meta/Index.md", (store / "meta/Index.md").read_text() + "- [[Wifi]]: {LINE}\\n")
print("{LINE}"); print("{LINE}", file=sys.stderr)
(pathlib.Path(sys.argv[1]) / "report.md").write_text("{LINE}")
"""
    with_agent(terminal, script, "{sleep}")
    done = consolidate_by_agent(terminal, shelf.conversation(("user", f"Note: {LINE}")))
    assert done.returncode == 0
    assert f"{SAFE}, ask Bo." in shelf.read(GARDEN)
    assert THEIRS in shelf.read(GARDEN)
    assert f"- [[Wifi]]: {SAFE}" in shelf.read(INDEX)
    sources = ("conversations", "episodic-raw")
    files = [file for file in shelf.root.rglob("*") if file.is_file()]
    derived = [file for file in files if file.relative_to(shelf.root).parts[0] not in sources]
    assert len(derived) > 8
    assert [file for file in derived if SECRET in file.read_text()] == []


async def test_a_skill_or_an_unasked_task_hides_it_and_what_was_asked_for_stays(desk: Desk) -> None:
    """M-083: the model's skill, the task of a timer; a person's own words are theirs."""
    teach = AddSkill(desk.skills, OWNER)
    told = await teach.run(desk.caller(ANN), SKILL | {"documentation": f"Boil.\n\n{LINE}"})
    assert "[secret]" in str(told)
    assert await desk.skills.read("tea") == f"Making tea\n\nBoil.\n\n{SAFE}\n"
    await desk.skills.write(because("command"), "wifi", "Wifi", LINE)
    assert LINE in await desk.skills.read("wifi")
    add = {"action": "add", "content": LINE}
    unasked = await desk.call(desk.caller(ANN, "timer"), add)
    assert unasked["content"] == SAFE
    assert (await desk.call(desk.caller(ANN), add))["content"] == LINE
    update = {"action": "update", "id": unasked["id"], "content": f"{LINE}, says Bo"}
    assert (await desk.call(desk.caller(ANN, "timer"), update))["content"] == f"{SAFE}, says Bo"
    with pytest.raises(ToolFailed, match="password manager"):
        await desk.remember(ANN, entry=LINE)


def test_an_import_leaves_out_what_looks_like_a_secret_and_counts_it(terminal: Terminal) -> None:
    """M-098, M-067, M-075: no failure, and the rest is taken."""
    lines = [LINE, "Ann likes tea", ";)", "My card is 4111 1111 1111 1111"]
    file = terminal.folder / "facts.jsonl"
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in lines))
    said = terminal.says("memory", "import", str(file))
    assert said.splitlines()[-1] == (
        "stored 1, raised 0, known already 0, skipped without a word 1,"
        " left out as they look like secrets 2"
    )
    assert SECRET not in terminal.says("memory", "export")


async def test_a_secret_in_a_noted_edit_is_hidden(tmp_path: Path, model: ModelServer) -> None:
    """L-089: in no database row."""
    async with open_house(tmp_path, model.url, redact=Redaction([CANARY])) as house:
        event = await house.incoming("old")
        row = await house.one("SELECT conversation_id FROM inbox")
        async with house.database.transaction() as tx:
            await house.stores.edits.note(
                tx, "$edit", event, row["conversation_id"], "@ann:test", f"it is {CANARY}"
            )
        edits = await house.one("SELECT text FROM edits")
    assert edits["text"] == f"it is {HIDDEN}"


async def test_a_secret_in_a_prompt_file_is_in_no_row(tmp_path: Path, model: ModelServer) -> None:
    """L-089: the recorded prompt is the one that was sent."""
    async with house_at_work(
        tmp_path, model.url, redact=Redaction([CANARY]), prompt=lambda: f"Key: {CANARY}"
    ) as house:
        await house.say_at_once("hello")
        rows = [await house.rows(f"SELECT * FROM {table}") for table in ("prompts", "prompt_parts")]
    assert CANARY not in json.dumps(rows)
    assert CANARY not in json.dumps(model.requests[0].body)
