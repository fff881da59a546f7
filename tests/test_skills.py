"""Skills are plain files; whoever changes one by our hand can have the earlier text back."""

import os
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.world.clock import FakeClock
from wintermute.changes.records import Reason
from wintermute.changes.store import ChangeSets
from wintermute.db import Database, IntegrityError, open_database
from wintermute.errors import ToolFailed
from wintermute.ids import new_id
from wintermute.skills.records import Skill
from wintermute.skills.store import Skills

OWNER, ROOM = "person:@ann:test", "room:!kitchen:test"
WHY = Reason("tool", ROOM, evidence=("$event",))


@dataclass(frozen=True)
class Shelf:
    """The store of skills over a folder that does not exist yet."""

    folder: Path
    database: Database
    changes: ChangeSets
    skills: Skills

    async def write(self, documentation: str, name: str = "tea", summary: str = "Tea") -> bool:
        return await self.skills.write(WHY, name, summary, documentation)

    def text(self, name: str = "tea") -> str:
        return (self.folder / f"{name}.md").read_text("utf-8")

    def put(self, name: str, content: str | bytes) -> None:
        """As by hand."""
        self.folder.mkdir(exist_ok=True)
        content = content.encode() if isinstance(content, str) else content
        (self.folder / name).write_bytes(content)


@pytest.fixture
async def shelf(tmp_path: Path) -> AsyncIterator[Shelf]:
    async with open_database(tmp_path / "w.db") as database:
        changes = ChangeSets(database, FakeClock(), new_id)
        folder = tmp_path / "skills"
        yield Shelf(folder, database, changes, Skills(folder, database, changes, OWNER))


@pytest.mark.parametrize(
    ("content", "summary"),
    [
        ("Calendar events\n\nOpen it.\n", "Calendar events"),
        ("# Calendar events", "Calendar events"),
        ("##1 of all\r\nmore", "1 of all"),
        ("\ufeff# After a mark\n", "After a mark"),
        ("\n\n  # Later \n", "Later"),
        ("tab\tand \x07bell\u202e\n", "tab and bell"),
        ("x" * 201, "x" * 199 + "…"),
        ("x" * 200, "x" * 200),
        ("", None),
        (" \n\t\n", None),
        ("###\n", None),
        (b"K\xe4se\n", None),
    ],
)
async def test_the_first_line_of_a_file_is_its_summary(
    shelf: Shelf, content: str | bytes, summary: str | None
) -> None:
    """P-035, P-036."""
    shelf.put("calendar.md", content)
    shelf.put("tea.md", "Tea\n")
    expected = [Skill("calendar", summary)] if summary else []
    assert await shelf.skills.listed() == (*expected, Skill("tea", "Tea"))


async def test_only_plain_markdown_files_right_in_the_folder_are_skills(shelf: Shelf) -> None:
    """P-036."""
    assert await shelf.skills.listed() == ()
    for name in ("b.md", "a.md", "ä.md", "two words.md"):
        shelf.put(name, name)
    (shelf.folder / "deep").mkdir()
    for name in ("a.txt", ".hidden.md", "a\nb.md", "a\u202eb.md", "c.MD", ".md", "deep/d.md"):
        shelf.put(name, "x")
    (shelf.folder / "folder.md").mkdir()
    (shelf.folder / "link.md").symlink_to(shelf.folder / "a.md")
    os.mkfifo(shelf.folder / "fifo.md")
    shelf.put(os.fsdecode(b"\xff.md"), "x")
    names = [skill.name for skill in await shelf.skills.listed()]
    assert names == ["a", "b", "two words", "ä"]
    for name in ("../w", "/etc/passwd", "deep/d", "a\nb", "", "..", "\ud800", "missing"):
        with pytest.raises(ToolFailed, match="no skill"):
            await shelf.skills.read(name)
    for name in ("folder", "link", "fifo"):
        with pytest.raises(ToolFailed, match=f"data/skills/{name}.md"):
            await shelf.skills.read(name)
        with pytest.raises(ToolFailed, match=f"data/skills/{name}.md"):
            await shelf.write("text", name)
    assert shelf.text("a") == "a.md"


async def test_an_edit_by_hand_is_in_the_next_list(shelf: Shelf) -> None:
    """P-035: also one that keeps the length, and a file that is replaced or removed."""
    shelf.put("a.md", "one")
    assert await shelf.skills.listed() == (Skill("a", "one"),)
    shelf.put("a.md", "two")
    os.utime(shelf.folder / "a.md", ns=(1, 1))
    assert await shelf.skills.listed() == (Skill("a", "two"),)
    shelf.put("new", "six")
    os.utime(shelf.folder / "new", ns=(1, 1))
    (shelf.folder / "new").replace(shelf.folder / "a.md")
    assert await shelf.skills.listed() == (Skill("a", "six"),)
    (shelf.folder / "a.md").unlink()
    assert await shelf.skills.listed() == ()


async def test_files_that_did_not_change_are_not_read_again(shelf: Shelf) -> None:
    """So that two hundred skills cost little in every prompt."""
    for n in range(200):
        shelf.put(f"skill-{n:03}.md", f"Skill {n}\n\n{'text ' * 500}")
    first, second = await shelf.skills.listed(), await shelf.skills.listed()
    assert [skill.summary for skill in first] == [f"Skill {n}" for n in range(200)]
    assert all(one is other for one, other in zip(first, second, strict=True))


async def test_a_skill_is_written_with_its_summary_first_and_listed_at_once(shelf: Shelf) -> None:
    """P-037."""
    assert await shelf.write("1. Boil.\r\n2. Wait.\x07\n\n") is True
    assert shelf.text() == "Tea\n\n1. Boil.\n2. Wait.\ufffd\n"
    assert await shelf.skills.listed() == (Skill("tea", "Tea"),)
    assert await shelf.skills.read("tea") == shelf.text()
    assert [path.name for path in shelf.folder.iterdir()] == ["tea.md"]


@pytest.mark.parametrize(
    ("name", "summary", "documentation", "rule"),
    [
        ("", "s", "d", "skill_name must have 1 to 64"),
        ("-a", "s", "d", "skill_name must have 1 to 64"),
        ("../a", "s", "d", "skill_name must have 1 to 64"),
        ("a.md", "s", "d", "skill_name must have 1 to 64"),
        ("ä", "s", "d", "skill_name must have 1 to 64"),
        ("a\n", "s", "d", "skill_name must have 1 to 64"),
        ("a" * 65, "s", "d", "skill_name must have 1 to 64"),
        ("a", "", "d", "summary must be one line"),
        ("a", " ", "d", "summary must be one line"),
        ("a", "s\nt", "d", "summary must be one line"),
        ("a", "s\n", "d", "summary must be one line"),
        ("a", "s\u2028t", "d", "summary must be one line"),
        ("a", "s" * 81, "d", "81 characters; at most 80"),
        ("a", "s", " \n", "documentation must not be blank"),
        ("a", "s", "d" * 20_001, "20001 characters; at most 20000"),
    ],
)
async def test_a_skill_that_breaks_a_rule_is_not_written(
    shelf: Shelf, name: str, summary: str, documentation: str, rule: str
) -> None:
    """P-038."""
    with pytest.raises(ToolFailed, match=rule):
        await shelf.write(documentation, name, summary)
    assert not shelf.folder.exists()
    assert await shelf.changes.history(("skill",)) == ()


async def test_the_longest_allowed_skill_is_written(shelf: Shelf) -> None:
    """P-038."""
    assert await shelf.write("ä" * 20_000, "A" + "-" * 63, "s" * 80)


async def test_a_change_of_a_skill_is_the_owners_wherever_it_was_made(shelf: Shelf) -> None:
    """P-039: the whole text from before is on record; the same text again is no change."""
    assert await shelf.write("one") is True
    assert await shelf.write("two") is False
    assert await shelf.write("two") is False
    newest, oldest = await shelf.changes.history(("skill",), OWNER)
    assert [change.before for change in newest.changes] == [{"text": "Tea\n\none\n"}]
    assert [change.after for change in newest.changes] == [{"text": "Tea\n\ntwo\n"}]
    assert oldest.changes[0].before is None
    assert oldest.changes[0].evidence == ("$event",)


async def test_the_previous_texts_come_back_one_by_one(shelf: Shelf) -> None:
    """P-039."""
    for text in ("one", "two"):
        await shelf.write(text)
    await shelf.skills.remove(WHY, "tea")
    assert await shelf.skills.listed() == ()
    at = "2026-05-04 12:00 UTC"
    back = f"data/skills/tea.md is back: the change of {at} is undone"
    assert await shelf.skills.restore("tea") == back
    assert shelf.text() == "Tea\n\ntwo\n"
    assert await shelf.skills.restore("tea") == back
    assert shelf.text() == "Tea\n\none\n"
    gone = f"data/skills/tea.md is gone: the change of {at} is undone"
    assert await shelf.skills.restore("tea") == gone
    assert await shelf.skills.listed() == ()
    with pytest.raises(ToolFailed, match="no earlier text of tea is kept"):
        await shelf.skills.restore("tea")
    for name in ("never", "\ud800", ""):
        with pytest.raises(ToolFailed, match="no earlier text"):
            await shelf.skills.restore(name)
    with pytest.raises(ToolFailed, match="no skill tea"):
        await shelf.skills.remove(WHY, "tea")


@pytest.mark.parametrize(
    ("by_hand", "left"),
    [
        (
            "Tea\n\n1. Boil.\n2. Wait.\n3. Drink.\n4. Wash.\n",
            "Tea\n\n1. Heat.\n2. Wait.\n3. Drink.\n4. Wash.\n",
        ),
        ("Tea\n\n1. Cook.\n2. Wait.\n3. Drink.\n", None),
    ],
)
async def test_a_line_edited_by_hand_since_is_never_lost(
    shelf: Shelf, by_hand: str, left: str | None
) -> None:
    """P-039: three-way; where both touched one line the later edit stays, and that is told."""
    await shelf.write("1. Heat.\n2. Wait.\n3. Drink.")
    await shelf.write("1. Boil.\n2. Wait.\n3. Drink.")
    shelf.put("tea.md", by_hand)
    if left:
        await shelf.skills.restore("tea")
        assert shelf.text() == left
        return
    with pytest.raises(ToolFailed, match="a later edit of it stays"):
        await shelf.skills.restore("tea")
    assert shelf.text() == by_hand


async def test_a_change_that_cannot_reach_the_disk_is_not_recorded(shelf: Shelf) -> None:
    shelf.folder.write_text("in the way")
    with pytest.raises(ToolFailed, match=r"data/skills/tea\.md cannot be"):
        await shelf.write("one")
    assert await shelf.changes.history(("skill",)) == ()


async def test_the_record_is_durable_before_the_file_changes(shelf: Shelf) -> None:
    """P-039: without its record the change is not made, and no half file stays behind."""
    await shelf.write("one")
    broken = Reason("tool", OWNER, cast_id="cast_that_never_was")
    with pytest.raises(IntegrityError, match="FOREIGN KEY"):
        await shelf.skills.write(broken, "tea", "Tea", "two")
    assert shelf.text() == "Tea\n\none\n"
    assert [path.name for path in shelf.folder.iterdir()] == ["tea.md"]


async def test_an_old_reader_keeps_its_text_and_the_mode_is_kept(shelf: Shelf) -> None:
    """P-039: the file is replaced, not rewritten."""
    await shelf.write("one")
    path = shelf.folder / "tea.md"
    path.chmod(0o640)
    with path.open() as opened_before:
        await shelf.write("two")
        assert opened_before.read() == "Tea\n\none\n"
    assert path.stat().st_mode & 0o777 == 0o640
