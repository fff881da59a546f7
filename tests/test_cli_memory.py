"""`wintermute memory`: what is remembered, in the terminal."""

import json
import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.world.model import ModelServer
from tests.world.scene import NewBot, NewPerson, NewRoom
from tests.world.terminal import PASSWORD, Terminal
from tests.world.warm import Interpreter
from wintermute.clock import SystemClock
from wintermute.commands.tasks import NOTHING_TO_UNDO
from wintermute.db import open_database
from wintermute.ids import new_id
from wintermute.owner import Owner
from wintermute.stores import Stores
from wintermute.text import EMPTY_AT_SHELL

OWNER = "person:@you:example.org"
BOB = "person:@bob:example.org"


def test_what_is_added_is_listed_once_with_id_and_source(terminal: Terminal) -> None:
    """M-005, M-066, U-013."""
    for verb in (["list"], ["latest"], ["search", "Anna"]):
        assert terminal.says("memory", *verb) == EMPTY_AT_SHELL["memories"] + "\n"
    said = terminal.says("memory", "add", "Anna moved to\nLyon.")
    _, fact_id, text = said.split(maxsplit=2)
    assert said.startswith("stored  fact_")
    assert text == "Anna moved to Lyon.\n"
    again = terminal.says("memory", "add", "anna moved  to lyon.", "--source", "harvest")
    assert again.startswith(f"known already  {fact_id}")
    listed = terminal.says("memory", "list").splitlines()
    assert len(listed) == 1
    assert listed[0].startswith(fact_id)
    assert listed[0].endswith("  user_explicit  Anna moved to Lyon.")
    assert (terminal.data / "MEMORIES.txt").read_text() == "Anna moved to Lyon.\n"
    shown = terminal.says("memory", "show", f"#{fact_id}")
    assert f"scope: {OWNER}\nsource: user_explicit\n" in shown
    assert terminal.json("memory", "show", fact_id)["text"] == "Anna moved to Lyon."


def test_each_person_and_room_has_a_file_of_its_own(terminal: Terminal) -> None:
    """M-013."""
    added = terminal.json("memory", "add", "Likes tea", "--scope", BOB, "--source", "harvest")
    assert (added["outcome"], added["source"]) == ("stored", "harvest")
    terminal.says("memory", "add", "Sails on Sundays", "--scope", "room:!abc:example.org")
    assert terminal.says("memory", "list") == EMPTY_AT_SHELL["memories"] + "\n"
    assert added["id"] in terminal.says("memory", "list", "--scope", BOB)
    everyone = terminal.says("memory", "list", "--everyone")
    assert f"{BOB}:\n{added['id']}" in everyone
    assert "room:!abc:example.org:\n" in everyone
    files = sorted(path.parent.name for path in terminal.data.rglob("MEMORIES.txt"))
    assert files == [BOB, "room:!abc:example.org"]
    nobody = ("memory", "list", "--scope", "person:@nobody:example.org")
    assert terminal.says(*nobody) == EMPTY_AT_SHELL["memories"] + "\n"
    assert terminal.json(*nobody) == []


def test_a_line_in_the_file_is_a_memory(terminal: Terminal) -> None:
    """M-015: what was edited by hand counts at once, and can be undone like anything else."""
    terminal.says("memory", "add", "Likes tea")
    (terminal.data / "MEMORIES.txt").write_text("- Has a dog\n")
    (fact,) = terminal.json("memory", "list")
    assert (fact["text"], fact["source"]) == ("Has a dog", "user_explicit")
    (terminal.data / "MEMORIES.txt").write_text("")
    assert terminal.says("memory", "undo", "--last").endswith(": Has a dog\n")
    assert (terminal.data / "MEMORIES.txt").read_text() == "Has a dog\n"


@pytest.mark.slow
def test_a_change_is_taken_back_by_its_id_or_as_the_last_one(terminal: Terminal) -> None:
    """M-065."""
    assert terminal.refuses("memory", "undo", "--last") == "wintermute: nothing is left to undo"
    assert terminal.json("memory", "history") == []
    for text in ("Likes tea", "Has a dog", "Has a cat"):
        terminal.says("memory", "add", text)
    history = terminal.says("memory", "history", "--count", "2").splitlines()
    assert [line.split(": ")[-1] for line in history[1::2]] == ["Has a cat", "Has a dog"]
    batch = history[2].split()[0]
    assert history[2].endswith("  command")
    assert "Has a dog" in terminal.says("memory", "undo", batch)
    assert "Has a cat" in terminal.says("memory", "undo", "--last", "--yes")
    undone = terminal.run("memory", "undo", batch)
    assert (undone.returncode, undone.stdout.splitlines()) == (
        1,
        [NOTHING_TO_UNDO.encode()],
    )
    assert [fact["text"] for fact in terminal.json("memory", "list")] == ["Likes tea"]
    (undo, *_), first = (
        terminal.json("memory", "history"),
        terminal.json("memory", "undo", "--last", "--yes"),
    )
    assert (undo["cause"], undo["changes"][0]["after"]) == ("undo", None)
    assert first["back"][0]["before"]["text"] == "Likes tea"
    assert terminal.says("memory", "list") == EMPTY_AT_SHELL["memories"] + "\n"


@pytest.mark.slow
def test_what_is_exported_comes_in_again_the_same(terminal: Terminal, tmp_path: Path) -> None:
    """M-068: everybody's, or one's; `list --json` has the same shape."""
    assert terminal.says("memory", "export") == ""
    terminal.says("memory", "add", "Größe: 5'7\" 🍵")
    terminal.says("memory", "add", "Likes tea", "--scope", BOB)
    terminal.says("memory", "export", "all.jsonl")
    lines = (tmp_path / "all.jsonl").read_text().splitlines()
    assert terminal.json("memory", "list", "--everyone") == [json.loads(line) for line in lines]
    assert len(terminal.says("memory", "export", "--scope", BOB).splitlines()) == 1
    (tmp_path / "other").mkdir()
    other = Terminal.in_folder(tmp_path / "other", terminal.python)
    assert other.says("memory", "import", tmp_path / "all.jsonl").startswith("stored 2, ")
    assert other.says("memory", "export").splitlines() == lines
    again = other.json("memory", "import", "-", given=(tmp_path / "all.jsonl").read_bytes())
    assert again == {
        "stored": 0,
        "raised": 0,
        "known": 2,
        "ended": 0,
        "left_out": 0,
        "skipped": 0,
        "problems": [],
        "set": None,
    }
    assert (other.data / "scopes" / BOB / "MEMORIES.txt").read_text() == "Likes tea\n"


def test_bad_lines_are_told_with_their_numbers_and_the_others_taken(terminal: Terminal) -> None:
    """M-067."""
    lines = b'{"text": "first one"}\n\xff\xfe\n\n{"text": 4}\n{"text": "last one"}\n{"id": "a"}'
    done = terminal.run("memory", "import", "-", given=lines)
    assert (done.returncode, done.stdout) == (1, b"stored 2, raised 0, known already 0\n")
    told = [line.split(":")[0] for line in done.stderr.decode().splitlines()]
    assert told == ["line 2", "line 4", "line 6"]
    assert (terminal.data / "MEMORIES.txt").read_text() == "first one\nlast one\n"
    binary = terminal.run("memory", "import", "--json", "-", given=bytes(range(256)))
    assert binary.returncode == 1
    assert [each["line"] for each in json.loads(binary.stdout)["problems"]] == [1, 2]


def test_forgetting_is_for_good(terminal: Terminal) -> None:
    """M-030, M-066: without a daemon; the whole of it stands in test_forgetting.py."""
    fact_id = terminal.json("memory", "add", "The zimtkanarie sings")["id"]
    terminal.says("memory", "add", "Likes tea")
    assert terminal.says("memory", "forget", f"#{fact_id}", fact_id).startswith("forgotten: 1; ")
    files = [path for path in terminal.data.rglob("*") if path.is_file()]
    assert [path for path in files if b"zimtkanarie" in path.read_bytes()] == []
    assert "Likes tea" in terminal.says("memory", "list")
    gone = terminal.refuses("memory", "forget", fact_id)
    assert gone == f"wintermute: no memory {fact_id}: `wintermute memory list` shows ids"
    assert terminal.json("memory", "forget")["facts"] == 0


@pytest.mark.slow
def test_forgetting_names_copies_of_upgrades(terminal: Terminal, later_python: Interpreter) -> None:
    """M-030: an upgrade makes one, and in there nothing is ever forgotten."""
    terminal = Terminal(terminal.folder, later_python)
    fact_id = terminal.json("memory", "add", "The zimtkanarie sings")["id"]
    (copy,) = terminal.data.glob("*.before-*")
    made = datetime(2026, 3, 7, 12, tzinfo=UTC)
    os.utime(copy, (made.timestamp(), made.timestamp()))
    assert terminal.json("memory", "forget")["copies"] == [
        {"file": str(copy), "until": "2026-04-06T12:00:00.000000+00:00"}
    ]
    assert terminal.says("memory", "forget", fact_id).splitlines()[1:] == [
        "a copy from before the upgrade of 2026-03-07 may still hold it until 2026-04-06:"
        f" delete {copy} to end it now"
    ]
    assert (
        f"{copy.name} from before an upgrade may contain texts forgotten since; it is deleted on"
        " 2026-04-06, or earlier by you"
    ) in terminal.says("status", "--all")
    copy.unlink()
    assert terminal.json("memory", "forget")["copies"] == []
    assert "old copies" not in terminal.says("status", "--all")


def test_an_export_replaces_an_earlier_one_and_nothing_else(terminal: Terminal) -> None:
    """M-066: a slip of the finger costs no file."""
    config, export = terminal.folder / "config.yaml", terminal.folder / "memories.jsonl"
    before = config.read_bytes()
    said = terminal.refuses("memory", "export", config)
    assert f"{config} exists and is no export" in said
    assert config.read_bytes() == before
    terminal.says("memory", "add", "Anna likes tea")
    for _ in range(2):
        terminal.says("memory", "export", str(export))
    assert json.loads(export.read_text())["text"] == "Anna likes tea"


def test_a_list_is_read_as_the_head_of_an_exported_one_says(terminal: Terminal) -> None:
    """M-016: `use: wintermute memory import FILE`; one memory a line."""
    listed = terminal.folder / "kept.txt"
    listed.write_text(
        "# generated: edits here are ignored; use: wintermute memory import FILE\n"
        "Anna likes tea\n\n- Ben has a dog\n---\n"
    )
    assert "stored 2" in terminal.says("memory", "import", str(listed))
    texts = {fact["text"] for fact in terminal.json("memory", "list")}
    assert texts == {"Anna likes tea", "Ben has a dog"}


def test_an_export_that_fails_leaves_the_file_of_before(terminal: Terminal) -> None:
    """M-067: a backup is not worth less than an error."""
    file = terminal.data.parent / "all.jsonl"
    file.write_text("yesterday\n")
    terminal.data.rename(terminal.data.with_name("elsewhere"))
    assert terminal.run("memory", "export", file).returncode == 2
    assert file.read_text() == "yesterday\n"


async def test_forgetting_waits_for_what_is_still_to_be_sent(terminal: Terminal) -> None:
    """M-030: exit 1 and what to do; the memory can be named again."""
    fact_id = terminal.json("memory", "add", "The zimtkanarie sings")["id"]
    async with open_database(terminal.data / "wintermute.db") as database:
        stores = Stores.of(
            database,
            terminal.data,
            Owner(OWNER.removeprefix("person:")),
            SystemClock(),
            new_id,
            timezone="UTC",
        )
        async with database.transaction() as tx:
            room = await stores.conversations.in_room(tx, "!room:test", OWNER)
            await stores.outbox.enqueue(tx, room, "Yes, the zimtkanarie sings", meant_for="")
    done = terminal.run("memory", "forget", fact_id)
    assert (done.returncode, done.stdout.split(b";")[0]) == (1, b"forgotten: 0")
    assert done.stderr.startswith(b"wintermute: not finished: 1 messages about it")
    assert terminal.json("memory", "show", fact_id)["text"] == "The zimtkanarie sings"


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (("add", ""), 1, "at least 3 characters"),
        (("add", "x" * 2001), 1, "at most 2000 characters"),
        (("add", "Likes tea", "--scope", "bob"), 2, "write person:@name:server or room:!id"),
        (("add", "Likes tea", "--source", "rumour"), 2, "harvest"),
        (("list", "--scope", "global"), 2, "write person:@name:server or room:!id"),
        (("show", "#nope"), 1, "no memory nope: `wintermute memory list` shows ids"),
        (("undo", "nope"), 1, "no change set nope: `history` lists"),
        (("undo",), 2, "or --last"),
        (("undo", "nope", "--last"), 2, "or --last"),
        (("import", "nope.jsonl"), 2, "No such file"),
        (("export", "/nope/all.jsonl"), 1, "No such file"),
        (("list", "--scope", f"{BOB} and more"), 2, "write person:@name:server or room:!id"),
        (("add", os.fsdecode(b"Likes Gr\xfcn")), 2, r"Likes Gr\udcfcn is not UTF-8 text: set LANG"),
    ],
)
def test_a_mistake_is_told_in_one_line(
    terminal: Terminal, words: tuple[str, ...], code: int, told: str
) -> None:
    """L-082, F-050."""
    assert told in terminal.refuses("memory", *words, code=code)


def test_without_a_data_folder_a_command_says_what_makes_one(terminal: Terminal) -> None:
    """L-082."""
    terminal.data.rename(terminal.folder / "elsewhere")
    assert "wintermute init DIR" in terminal.refuses("memory", "list", code=2)
    assert not terminal.data.exists()


def test_a_secret_is_not_printed_but_exported_as_it_is(terminal: Terminal) -> None:
    """L-050: an export is the person's own copy, it has to come in again the same."""
    assert PASSWORD not in terminal.says("memory", "add", f"It is {PASSWORD}, I think")
    assert PASSWORD not in terminal.says("memory", "list")
    assert PASSWORD in terminal.says("memory", "export")


@pytest.mark.breaks("forgetting")
async def test_a_running_daemon_notices_what_is_done_beside_it(
    person: NewPerson, bot: NewBot, room: NewRoom, model: ModelServer
) -> None:
    """M-015, M-066, T-011: commands and edits by hand are in the very next request."""
    ann = await person("ann")
    daemon = await bot(ann)
    chat = await room(ann, daemon)

    async def ask(text: str) -> str:
        """The system prompt of the request that answers this."""
        await ann.send(chat, text)
        await ann.wait_for(chat, lambda message: message.body == f"echo: {text}")
        await daemon.said_all()
        return model.requests[-1].prompt

    async def run(*words: str) -> str:
        code, said = await daemon.command(*words)
        assert code == 0, said
        return said

    added = await run("memory", "add", "The zimtkanarie sings")
    await run("task", "add", "Renew the passport")
    prompt = await ask("two")
    assert "The zimtkanarie sings" in prompt.split("# Active Tasks")[0]
    assert "Renew the passport" in prompt.split("# Active Tasks")[1]
    memories = daemon.data / "MEMORIES.txt"
    memories.write_text(memories.read_text() + "Likes tea\n")
    assert "Likes tea" in await ask("three")
    assert "Likes tea" in await run("memory", "list")
    await run("memory", "forget", added.split()[1])
    files = [path for path in daemon.data.rglob("*") if path.is_file()]
    assert [path for path in files if b"zimtkanarie" in path.read_bytes()] == []
    last = await ask("four")
    assert ("zimtkanarie" in last, "Likes tea" in last) == (False, True)
