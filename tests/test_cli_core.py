"""`wintermute core`: the page in every prompt, offline, and the form that it has."""

import json
from pathlib import Path

import pytest

from tests.world.house import PROMPTS, house_at_work, open_house
from tests.world.model import ModelServer
from tests.world.terminal import Terminal
from tests.world.warm import Ended
from wintermute.changes.decisions import text_proposal
from wintermute.memory.core import EMPTY_CORE, form_problem, page_problem
from wintermute.prompt.file_checks import unusable_files

PAGE = "# SOUL\n- calm\n\n# TOOLS\n\n# RULE\n\n# USER\n"
BEN = "person:@ben:example.org"


def edit_with(terminal: Terminal, script: str, *more: str) -> Ended:
    """`core edit` with an editor that does this with the file `$1`."""
    path = terminal.folder / "editor"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return terminal.run("core", "edit", *more, EDITOR=str(path), VISUAL=str(path))


def saved(done: Ended) -> str:
    assert (done.returncode, done.stderr) == (0, b"")
    return done.stdout.decode()


@pytest.mark.slow
def test_a_page_is_edited_checked_and_brought_back(terminal: Terminal) -> None:
    """M-049, M-051, M-053: with `$EDITOR`, and no daemon, model or homeserver."""
    core = terminal.data / "core.md"
    assert terminal.says("core", "show") == "data/core.md: there is none yet\n"
    assert terminal.says("core", "check") == "data/core.md: there is none yet\n"
    script = 'cp "$1" before; printf -- "- Ann is a nurse.\\n" >> "$1"'
    assert saved(edit_with(terminal, script)) == "saved  data/core.md\n"
    assert (terminal.folder / "before").read_text() == EMPTY_CORE
    mine = f"{EMPTY_CORE}- Ann is a nurse.\n"
    assert core.read_text() == mine
    assert terminal.says("core", "show") == mine
    assert terminal.json("core", "show") == {"scope": "person:@you:example.org", "text": mine}
    assert terminal.says("core", "check").startswith("ok  data/core.md: 1 bullets, ")
    assert saved(edit_with(terminal, "true")) == "unchanged  data/core.md\n"
    core.write_text(PAGE)
    assert saved(edit_with(terminal, script)) == "saved  data/core.md\n"
    assert core.read_text() == f"{PAGE}- Ann is a nurse.\n"
    one, two = terminal.json("core", "history")
    assert (one["number"], one["text"], one["cause"]) == (1, PAGE, "command")
    assert (two["number"], two["text"]) == (2, None)
    assert "1  until " in terminal.says("core", "history")
    assert terminal.says("core", "restore", "1").startswith(
        "restored  data/core.md as it was until "
    )
    assert core.read_text() == PAGE
    assert len(terminal.json("core", "history")) == 3
    assert terminal.json("core", "restore", "3") == {
        "scope": "person:@you:example.org",
        "outcome": "restored",
    }
    assert core.read_text() == EMPTY_CORE


def test_a_version_that_is_not_kept_is_told_with_those_that_are(terminal: Terminal) -> None:
    """M-051: exit 1 with the list."""
    assert terminal.refuses("core", "restore", "1").endswith(
        "no version 1 is kept; there are: none"
    )
    saved(edit_with(terminal, 'echo "- Ann" >> "$1"'))
    assert "no version 7 is kept; there are: 1 (until " in terminal.refuses("core", "restore", "7")
    assert terminal.refuses("core", "restore", "last", code=2)


def test_each_person_and_room_has_a_page_of_its_own(terminal: Terminal) -> None:
    """M-013."""
    assert saved(edit_with(terminal, 'echo "- Ben" >> "$1"', "--scope", BEN)) == (
        "saved  data/scopes/person:@ben:example.org/core.md\n"
    )
    assert not (terminal.data / "core.md").exists()
    assert "- Ben" in terminal.says("core", "show", "--scope", BEN)
    assert terminal.says("core", "history") == "Nothing was changed in the last 30 days.\n"
    assert terminal.refuses("core", "show", "--scope", "ben", code=2)


def test_a_change_of_a_page_is_undone_by_its_name(terminal: Terminal) -> None:
    """M-076: a change set is a change set."""
    (terminal.data / "core.md").write_text(PAGE)
    saved(edit_with(terminal, 'echo "- Ann is a nurse." >> "$1"'))
    [line] = [x for x in terminal.says("core", "history").splitlines() if x.startswith("1  ")]
    (terminal.data / "core.md").write_text(
        (terminal.data / "core.md").read_text().replace("- calm\n", "- calm\n- brief\n")
    )
    assert "taken back" in terminal.says("memory", "undo", line.split()[-1])
    assert (terminal.data / "core.md").read_text() == PAGE.replace("- calm\n", "- calm\n- brief\n")


def test_a_new_folder_has_an_empty_page_and_one_that_is_there_stays(terminal: Terminal) -> None:
    """M-001, M-049."""
    core = terminal.data / "core.md"
    terminal.says("init", terminal.folder)
    assert core.read_text() == "# SOUL\n\n# TOOLS\n\n# RULE\n\n# USER\n"
    core.write_text("mine\n")
    terminal.says("init", terminal.folder)
    assert core.read_text() == "mine\n"


BAD = {
    "Windows": (PAGE.replace("\n", "\r\n").encode(), "line 1 ends as on Windows"),
    "a mark": (PAGE.encode("utf-8-sig"), "line 1 begins with a byte order mark"),
    "five headers": (f"{PAGE}# MORE\n- x\n".encode(), "line 9 has the header `# MORE`"),
    "twice": (f"{PAGE}# USER\n".encode(), "line 9: each of `# SOUL`"),
    "deeper": (PAGE.replace("- calm", "## calm").encode(), "line 2 has the header `## calm`"),
    "five megabytes": (b"x" * 5_000_000, "has over 1000000 bytes"),
    "latin-1": ("# SOUL\n- Käse\n".encode("latin-1"), "is not UTF-8 at byte 10"),
}


@pytest.mark.parametrize(("content", "told"), BAD.values(), ids=BAD)
def test_a_bad_page_is_named_with_its_line(terminal: Terminal, content: bytes, told: str) -> None:
    """M-053: exit 1, and it stays as it is."""
    core = terminal.data / "core.md"
    core.write_bytes(content)
    before = core.stat()
    assert f"data/core.md {told}" in terminal.refuses("core", "check")
    done = terminal.run("core", "check", "--json")
    assert (done.returncode, told in json.loads(done.stdout)["problem"]) == (1, True)
    assert core.read_bytes() == content
    assert core.stat().st_mtime_ns == before.st_mtime_ns


def test_a_link_is_no_page(terminal: Terminal) -> None:
    (terminal.folder / "elsewhere").write_text(PAGE)
    (terminal.data / "core.md").symlink_to(terminal.folder / "elsewhere")
    assert "data/core.md is a link" in terminal.refuses("core", "check")
    assert "data/core.md is a link" in terminal.refuses("core", "show")
    edited = edit_with(terminal, 'echo "- x" >> "$1"')
    assert edited.returncode == 1
    assert (terminal.folder / "elsewhere").read_text() == PAGE


def test_what_was_saved_in_another_form_is_kept_and_named(terminal: Terminal) -> None:
    """M-053: it is the person's file."""
    done = edit_with(terminal, 'echo "# MORE" >> "$1"')
    assert done.returncode == 1
    assert done.stderr.decode().startswith(
        "wintermute: data/core.md was saved, but cannot be used: line 8 has the header `# MORE`"
    )
    assert (terminal.data / "core.md").read_text() == f"{EMPTY_CORE}# MORE\n"


@pytest.mark.parametrize(("content", "told"), BAD.values(), ids=BAD)
async def test_a_page_that_cannot_be_used_is_out_of_the_prompt_with_one_warning(
    tmp_path: Path, model: ModelServer, content: bytes, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    """M-053, F-031: what it last held stays in use, and a status names it."""
    core = tmp_path / "core.md"
    core.write_text(PAGE)
    async with house_at_work(tmp_path, model.url, prompts=PROMPTS) as house:
        await house.say("one")
        core.write_bytes(content)
        for text in ("two", "three"):
            await house.say(text)
        (named,) = unusable_files(house.stores.places)
        assert told in named.text
    systems = {seen.system for seen in model.requests}
    assert [text.endswith(f"# Core Memory\n{PAGE.strip()}") for text in systems] == [True]
    assert caplog.text.count("core memory not read") == 1


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (EMPTY_CORE, None),
        (PAGE, None),
        ("", "is missing"),
        ("# USER\n- Ann\n", "`# SOUL` is missing"),
        ("# SOUL\n# TOOLS\n# RULE\n# USER", None),
        (f"{PAGE}- #hashtags are no headers\n  nor is this\n", None),
        (f"{PAGE} # USER\n", "line 9"),
        (f"{PAGE}#USER\n", "line 9 is no bullet"),
        (f"{PAGE}~~~\n# x\n~~~\n", "line 10"),
        (f"- first\n{PAGE}", "line 1 is before the first header"),
        (PAGE + "- " + "x" * 4_000, "at most 4000"),
    ],
)
def test_a_page_has_four_headers_once_and_in_order(text: str, problem: str | None) -> None:
    """M-049, M-052."""
    found = page_problem(text)
    assert (found is None) == (problem is None)
    assert (problem or "") in (found or "")


def test_a_person_may_leave_headers_out() -> None:
    """P-009: what stands below the others is in the prompt."""
    assert form_problem("# USER\n- Ann\n") is None
    assert form_problem("- Ann\n") is None


async def test_what_is_proposed_is_shown_until_outdated(tmp_path: Path, terminal: Terminal) -> None:
    """M-052, M-079: offered once."""
    scope = "person:@you:example.org"
    terminal.says("core", "check")
    async with open_house(terminal.data, None, owner="@you:example.org") as house:
        decisions = house.stores.decisions
        async with house.database.transaction() as tx:
            for _ in range(2):
                await decisions.propose(tx, scope, text_proposal("core", scope, PAGE, "because"))
    (shown,) = terminal.json("core", "check")["proposals"]
    assert (shown["text"], shown["reason"]) == (PAGE, "because")
    said = terminal.says("core", "check")
    assert "proposed: because. The page would be:\n  # SOUL\n  - calm\n" in said


async def test_the_chat_shows_the_page_of_its_scope(tmp_path: Path, model: ModelServer) -> None:
    """M-010: a room's is the room's."""
    (tmp_path / "core.md").write_text(PAGE.replace("calm", "*calm*"))
    async with house_at_work(tmp_path, model.url, prompts=PROMPTS) as house:
        await house.incoming("/memory core")
        await house.say("/memory core", room="!club:test", scope="room:!club:test")
        (said,) = await house.spoken()
        assert said == "**SOUL**\n- \\*calm\\*\n\n**TOOLS**\n\n**RULE**\n\n**USER**"
        (said,) = await house.spoken("!club:test")
        assert said == "I have nothing here that I always keep in mind."
