"""`wintermute skill`: procedures, in the terminal."""

import pytest

from tests.world.terminal import Terminal
from wintermute.clock import SystemClock
from wintermute.db import open_database
from wintermute.ids import new_id
from wintermute.jobs import FORGET, Jobs
from wintermute.text import EMPTY_AT_SHELL


def test_a_skill_is_added_replaced_removed_and_restored(terminal: Terminal) -> None:
    """P-039: without a daemon, from standard input or a file."""
    assert terminal.says("skill", "list") == EMPTY_AT_SHELL["skills"] + "\n"
    added = terminal.says("skill", "add", "calendar", "--summary", "Events", given=b"Open it.\n")
    assert added == "added  data/skills/calendar.md\n"
    (terminal.folder / "new.md").write_text("Close it. 🍵\n")
    replaced = terminal.json("skill", "add", "calendar", "new.md", "--summary", "Dates")
    assert replaced == {"name": "calendar", "outcome": "replaced"}
    assert terminal.says("skill", "list") == "calendar: Dates\n"
    assert terminal.json("skill", "list") == [{"name": "calendar", "summary": "Dates"}]
    assert terminal.says("skill", "show", "calendar") == "Dates\n\nClose it. 🍵\n"
    assert "is back" in terminal.says("skill", "restore", "calendar")
    assert terminal.json("skill", "show", "calendar")["text"] == "Events\n\nOpen it.\n"
    assert terminal.says("skill", "remove", "calendar") == "removed  data/skills/calendar.md\n"
    assert not (terminal.data / "skills" / "calendar.md").exists()
    assert "is back" in terminal.says("skill", "restore", "calendar")
    assert (terminal.data / "skills" / "calendar.md").read_text() == "Events\n\nOpen it.\n"


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (("show", "nope"), 1, "no skill nope: `wintermute skill list` shows the names"),
        (("show", "../config"), 1, "no skill ../config"),
        (("remove", "nope"), 1, "no skill nope"),
        (("restore", "nope"), 1, "no earlier text of nope is kept"),
        (("add", "../up", "--summary", "Up"), 1, "1 to 64 letters"),
        (("add", "up", "--summary", ""), 1, "summary must be one line"),
        (("add", "up", "--summary", "##"), 1, "summary must be one line"),
        (("add", "up", "--summary", "x" * 81), 1, "at most 80"),
        (("add", "up"), 2, "--summary"),
        (("add", "up", "nope.md", "--summary", "Up"), 2, "No such file"),
    ],
)
def test_a_mistake_is_told_in_one_line(
    terminal: Terminal, words: tuple[str, ...], code: int, told: str
) -> None:
    """L-082, P-038."""
    assert told in terminal.refuses("skill", *words, given=b"text", code=code)


async def test_nothing_comes_back_while_something_is_being_forgotten(terminal: Terminal) -> None:
    """M-082: by whatever way."""
    terminal.says("skill", "add", "tea", "--summary", "Making tea", given=b"Boil water.\n")
    terminal.says("memory", "add", "Ann likes tea.")
    clock = SystemClock()
    path = terminal.data / "wintermute.db"
    async with open_database(path) as database, database.transaction() as tx:
        await Jobs(clock, new_id).enqueue(tx, FORGET, "key", "", {})
    for words in (
        ("skill", "restore", "tea"),
        ("core", "restore", "1"),
        ("memory", "undo", "--last"),
    ):
        assert "something is being forgotten" in terminal.refuses(*words)


@pytest.mark.parametrize(
    ("given", "told"), [(b"\xc0\xff\x00", "not text in UTF-8"), (b" \n", "must not be blank")]
)
def test_a_text_that_is_none_is_refused(terminal: Terminal, given: bytes, told: str) -> None:
    """L-082."""
    assert told in terminal.refuses("skill", "add", "up", "--summary", "Up", given=given)
    assert list((terminal.data / "skills").iterdir()) == []


def test_folders_are_listed_and_what_cannot_be_read_is_named(terminal: Terminal) -> None:
    """F-056."""
    skills = terminal.data / "skills"
    for name, text in (("pdf", b"---\ndescription: Reads: PDFs\n---\n"), ("broken", b"\xff\xfe")):
        (skills / name).mkdir(parents=True)
        (skills / name / "SKILL.md").write_bytes(text)
    told = "data/skills/broken/SKILL.md is not a text file in UTF-8: save it as text in UTF-8"
    assert terminal.says("skill", "list") == f"pdf: Reads: PDFs\n{told}, or move it away\n"
    assert terminal.says("skill", "show", "pdf") == "---\ndescription: Reads: PDFs\n---\n"
