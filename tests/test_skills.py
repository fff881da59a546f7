"""Skills are plain files; whoever changes one by our hand can have the earlier text back."""

import asyncio
import os
import tempfile
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tiers import examples
from tests.world.clock import FakeClock, cheap
from tests.world.schema import open_migrated
from wintermute.changes.change_sets import Change, ChangeSets, Reason
from wintermute.changes.placing import Placing
from wintermute.db import Database, IntegrityError
from wintermute.errors import ToolFailed
from wintermute.ids import new_id
from wintermute.skills.skills import Skill, Skills, skill_items, summary_in

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

    async def died(self, before: str | None, after: str | None, undoes: str | None = None) -> None:
        """As when we are killed with a change on record and the file not replaced yet."""
        was, new = (None if text is None else {"text": text} for text in (before, after))
        why = Reason("undo" if undoes else "tool", OWNER)
        async with self.database.transaction() as tx:
            await self.changes.record(tx, why, [Change("skill", "tea", was, new)], undoes)

    def put(self, name: str, content: str | bytes) -> None:
        """As by hand."""
        self.folder.mkdir(exist_ok=True)
        content = content.encode() if isinstance(content, str) else content
        (self.folder / name).write_bytes(content)


@pytest.fixture
async def shelf(tmp_path: Path) -> AsyncIterator[Shelf]:
    async with _shelf(tmp_path) as opened:
        yield opened


@asynccontextmanager
async def _shelf(path: Path) -> AsyncIterator[Shelf]:
    async with open_migrated(path / "w.db") as database:
        changes = ChangeSets(database, FakeClock(), new_id)
        folder = path / "skills"
        placing = Placing(database, changes, {"skill": skill_items(folder)}, path)
        yield Shelf(folder, database, changes, Skills(folder, database, changes, placing, OWNER))


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


LAUGHS = "a: &a [x, x]\n" + "".join(
    f"{name}: &{name} {{<<: [*{last}, *{last}, *{last}]}}\n"
    for last, name in zip("abcdefghij", "bcdefghijk", strict=True)
)


@pytest.mark.parametrize(
    ("text", "summary"),
    [
        ("---\nname: tea\ndescription: How tea is made\n---\n# Tea\n", "How tea is made"),
        ("\n---\r\ndescription: 'Tea: how'\r\n...\r\nBoil.\n", "Tea: how"),
        ("---\ndescription: >\n  How tea\n  is made\n---\nBoil.\n", "How tea is made"),
        ("---\ndescription: |\n  How tea\n\n  is made\n---\n", "How tea is made"),
        ("---\nname: tea\n---\n\n# Making tea\n", "Making tea"),
        ("---\n---\nMaking tea\n", "Making tea"),
        *[
            (f"---\ndescription: {value}\n---\nMaking tea\n", "Making tea")
            for value in ("[a, b]", "{a: b}", "5", "true", "~", "2026-05-04", "", "''", "!!int x")
        ],
        # F-056: what YAML cannot read is plain text
        ("---\ndescription: Use it: when asked\n---\n", "Use it: when asked"),
        ("---\nname:\tx\ndescription:\tBoil\n\tand pour\nlicense:\tMIT\n---\n", "Boil and pour"),
        ("---\ndescription: @boil\n---\n", "@boil"),
        ("---\ndescription: [draft] boil\n---\n", "[draft] boil"),
        ("---\ndescription: %s of tea\n---\n", "%s of tea"),
        ("---\nname: a: b\ndescription: >\n  Boil\n  it.\n---\n", "Boil it."),
        ("---\nname: a: b\ndescription: " + "word " * 30 + "\n---\n", "word " * 15 + "word…"),
        # no front matter: the first line with text
        ("---\nname: tea\ndescription: Never ends\n", "name: tea"),
        ("---\n- a list\n---\nBoil.\n", "- a list"),
        ("---\nno mapping\n---\nBoil.\n", "no mapping"),
        ("---\na: [\n---\nBoil.\n", "a: ["),
        ("---\ndescription: *nobody\n---\nBoil.\n", "*nobody"),
        ("---\na: " + "[" * 8_000 + "\n---\nBoil.\n", "a: " + "[" * 196 + "…"),
        ("---\n" + "x: y\n" * 800_000 + "---\nBoil.\n", "x: y"),
        ("Tea\n---\ndescription: too late\n---\n", "Tea"),
        ("---\n" + LAUGHS + "description: Tea\n---\n", "Tea"),
        ("---\ndescription: a\x1b[31mb\u202ec\n---\n", "a[31mbc"),
        ('---\ndescription: "a\\e[31mb"\n---\n', "a[31mb"),
        ("---\n---\n", None),
    ],
)
async def test_a_skill_with_front_matter_is_summed_up_by_its_description(
    shelf: Shelf, text: str, summary: str | None
) -> None:
    """F-033: whatever stands there; the skill itself is read whole."""
    shelf.put("tea.md", text)
    with cheap(5):
        listed = await shelf.skills.listed()
    assert listed == ((Skill("tea", summary),) if summary else ())
    if len(text) < 1_000_000:
        assert await shelf.skills.read("tea") == text


@settings(max_examples=examples(200))
@given(st.text(st.sampled_from("ab:-\n &*[]{}>|'\"!?#~,.\t"), max_size=60))
def test_no_front_matter_breaks_the_list(matter: str) -> None:
    """F-033."""
    assert "\n" not in summary_in(f"---\n{matter}\n---\ntext\n")


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
        ("a", "###", "d", "summary must be one line of text, not of # marks"),
        ("a", " # ", "d", "summary must be one line of text, not of # marks"),
        ("a", "s\nt", "d", "summary must be one line"),
        ("a", "s\n", "d", "summary must be one line"),
        ("a", "s\u2028t", "d", "summary must be one line"),
        ("a", "s" * 81, "d", "81 characters; at most 80"),
        ("a", "\u200b", "d", "summary must be one line"),
        ("a", "s", " \n\u200b", "documentation must not be blank"),
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
    with pytest.raises(ToolFailed, match="because of a later edit"):
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


async def test_a_folder_that_cannot_be_read_is_left_out_and_told_once(
    shelf: Shelf, caplog: pytest.LogCaptureFixture
) -> None:
    """Issue: no room may break for it; once it is mended, a new problem is told anew."""
    await shelf.write("one")
    aside = shelf.folder.with_name("aside")
    for _ in range(2):
        shelf.folder.rename(aside)
        shelf.folder.write_text("in the way")
        for _ in range(3):
            assert await shelf.skills.listed() == ()
        shelf.folder.unlink()
        aside.rename(shelf.folder)
        assert await shelf.skills.listed() == (Skill("tea", "Tea"),)
    told = [record.getMessage() for record in caplog.records]
    assert told == [f"skills left out folder={shelf.folder} reason=Not a directory"] * 2


async def test_what_a_person_saves_in_the_last_moment_stays(shelf: Shelf) -> None:
    """P-039: also where nothing but a rename is left to do."""
    shelf.put("tea.md", "old")
    change = Change("skill", "tea", {"text": "old"}, {"text": "ours"})
    async with skill_items(shelf.folder).prepared([change]) as place:
        shelf.put("tea.md", "theirs")
        with pytest.raises(ToolFailed, match="was saved meanwhile: try again"):
            await place()
    assert {path.name: path.read_text() for path in shelf.folder.iterdir()} == {"tea.md": "theirs"}


async def test_what_a_kill_left_half_written_is_removed_by_a_later_write(shelf: Shelf) -> None:
    """P-039: a young part may be the work of another process."""
    shelf.put(".part_old", "half")
    shelf.put(".part_young", "half")
    shelf.put(".mine", "kept")
    for name in (".part_old", ".mine"):
        os.utime(shelf.folder / name, (0, 0))
    await shelf.write("one")
    assert {path.name for path in shelf.folder.iterdir()} == {"tea.md", ".part_young", ".mine"}


class Slow(ThreadPoolExecutor):
    """Threads of which one call waits at a gate."""

    def __init__(self, call: int) -> None:
        super().__init__(4)
        self._left = call
        self._loop = asyncio.get_running_loop()
        self.reached = asyncio.Event()
        self.gate = threading.Event()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **named: Any) -> Future[Any]:
        self._left -= 1
        return super().submit(self._held if self._left == 0 else self._now, fn, *args, **named)

    def _now(self, fn: Callable[..., Any], *args: Any, **named: Any) -> Any:
        return fn(*args, **named)

    def _held(self, fn: Callable[..., Any], *args: Any, **named: Any) -> Any:
        self._loop.call_soon_threadsafe(self.reached.set)
        self.gate.wait()
        return fn(*args, **named)


@pytest.mark.parametrize(("call", "before"), [(3, "one"), (4, "two")], ids=["prepare", "place"])
async def test_a_write_that_is_stopped_has_ended_before_the_next_one_begins(
    shelf: Shelf, call: int, before: str
) -> None:
    """P-039: no thread left behind replaces a later text, and nothing half written stays."""
    await shelf.write("one")
    slow = Slow(call)
    asyncio.get_running_loop().set_default_executor(slow)
    async with asyncio.TaskGroup() as tasks:
        stopped = tasks.create_task(shelf.write("two"))
        await slow.reached.wait()
        stopped.cancel()
        later = tasks.create_task(shelf.write("three"))
        for _ in range(5):
            await asyncio.sleep(0)
        early = stopped.done()
        slow.gate.set()
    assert (early, stopped.cancelled(), later.result()) == (False, True, False)
    assert shelf.text() == "Tea\n\nthree\n"
    newest = (await shelf.changes.history(("skill",)))[0]
    assert newest.changes[0].before == {"text": f"Tea\n\n{before}\n"}
    assert [path.name for path in shelf.folder.iterdir()] == ["tea.md"]


async def test_an_undo_that_did_not_reach_the_file_is_done_again(shelf: Shelf) -> None:
    """P-039: the earlier text stays within reach."""
    for text in ("one", "two"):
        await shelf.write(text)
    wanted = (await shelf.changes.history(("skill",)))[0]
    await shelf.died("Tea\n\ntwo\n", "Tea\n\none\n", wanted.id)
    await shelf.skills.restore("tea")
    assert shelf.text() == "Tea\n\none\n"
    await shelf.skills.restore("tea")
    assert await shelf.skills.listed() == ()


deeds = st.one_of(
    st.tuples(st.sampled_from(["write", "write killed"]), st.sampled_from(["a", "b", "c"])),
    st.tuples(st.sampled_from(["remove", "remove killed", "restore", "restore killed"])),
)


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(deeds, max_size=12))
def test_restore_always_leads_back_through_every_text_that_was_there(
    done: list[tuple[str, ...]],
) -> None:
    """P-039: also past changes and undos that are on record and never reached the file."""
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(_there_and_back(Path(folder), done))


@dataclass(frozen=True)
class Version:
    """A text of the file, and the change set that led to it."""

    text: str | None
    set_id: str


async def _there_and_back(path: Path, done: list[tuple[str, ...]]) -> None:
    pile = [Version(None, "")]
    async with _shelf(path) as shelf:
        for what, *words in [*done, *[("restore",)] * len(done)]:
            await _do(shelf, pile, what, *words)
            there = shelf.folder / "tea.md"
            assert (there.read_text() if there.exists() else None) == pile[-1].text
        assert len(pile) == 1


async def _do(shelf: Shelf, pile: list[Version], what: str, word: str = "") -> None:
    """The same to the shelf and to the pile of its versions."""
    now, new = pile[-1], f"Tea\n\n{word}\n" if word else None
    match what:
        case "write" | "remove" if now.text != new:
            await (shelf.write(word) if word else shelf.skills.remove(WHY, "tea"))
            pile.append(Version(new, (await shelf.changes.history(("skill",)))[0].id))
        case "write killed" | "remove killed" if now.text != new:
            await shelf.died(now.text, new)
        case "restore" if len(pile) > 1:
            pile.pop()
            await shelf.skills.restore("tea")
        case "restore killed" if len(pile) > 1:
            await shelf.died(now.text, pile[-2].text, now.set_id)


async def test_a_folder_is_a_skill_that_nobody_here_changes(shelf: Shelf) -> None:
    """F-056: as agentskills.io has them; a link in its place is none."""
    (shelf.folder / "pdf" / "scripts").mkdir(parents=True)
    shelf.put("pdf/SKILL.md", "---\ndescription: Reads PDFs: all of them\n---\nRun it.\n")
    (shelf.folder / "linked").symlink_to(shelf.folder / "pdf")
    assert await shelf.skills.listed() == (Skill("pdf/SKILL", "Reads PDFs: all of them"),)
    for name in ("pdf", "pdf/SKILL"):
        assert (await shelf.skills.read(name)).endswith("Run it.\n")
        with pytest.raises(ToolFailed, match="remove it by hand"):
            await shelf.skills.remove(WHY, name)
    for name in ("linked", "linked/SKILL", "pdf/scripts"):
        with pytest.raises(ToolFailed, match="no skill"):
            await shelf.skills.read(name)
