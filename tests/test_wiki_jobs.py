"""Jobs on pages: what stands against a change, what is put in place, and the way back."""

import asyncio
import json
import os
import resource
import shutil
from collections.abc import Callable, Iterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, date, datetime
from pathlib import Path

import pytest

from tests.world.clock import FakeClock, promptly
from tests.world.memory import ANN, Memory, memory_in
from tests.world.shelf import DAY, GARDEN, INDEX, ROSES, TALK, Shelf, change, page
from wintermute.changes.change_sets import Change, ItemKind, Reason
from wintermute.changes.placing import FileItems, Placing
from wintermute.changes.texts import state_of
from wintermute.changes.undo import Undo
from wintermute.errors import StoreBusy, StoreChanged, StoreUnusable, WintermuteError
from wintermute.files import locked
from wintermute.wiki.folder import FileChange, StoreFolder
from wintermute.wiki.job_undo import page_items, undo_job
from wintermute.wiki.page_jobs import (
    SeenPages,
    WikiJob,
    begin,
    drop_raw,
    is_being_applied,
    job_lock,
    keep_raw,
    listed_jobs,
    numbered,
    patch,
    put_in_place,
    raw_name,
    raw_path,
    recorded,
    sweep,
    untrusted_paths,
    written_change,
    written_lines,
)
from wintermute.wiki.store import WikiStore
from wintermute.wiki.verdict import (
    lost_content,
)
from wintermute.wiki.wiki_status import wiki_status

NOW = datetime(2026, 5, 4, 10, 15, tzinfo=UTC)
TODAY = NOW.date()
POND = "semantic/Pond.md"


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    return Shelf.make(tmp_path)


def begun(shelf: Shelf) -> WikiJob:
    return begin(shelf.files, WikiJob("", "builtin", "talk"), NOW)


def test_every_job_has_a_folder_of_its_own(shelf: Shelf) -> None:
    """W-059, W-060: two in one second have two, and each says at once that it was interrupted."""
    jobs = [begun(shelf) for _ in range(3)]
    names = ["20260504-101500", "20260504-101500-2", "20260504-101500-3"]
    assert [job.name for job in jobs] == names
    assert [job.name for job in listed_jobs(shelf.files)] == names[::-1]
    told = json.loads(shelf.read("sleep/20260504-101500/job.json"))
    assert (told["status"], told["reason"], told["agent"]) == ("failed", "interrupted", "builtin")
    assert told["start"] == "2026-05-04T10:15:00+00:00"


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[]", '{"name": 1}', '{"agent": []}', "null", "[" * 100_000),
        '{"name": "x", "agent": "codex", "status": "applied"}',
        '{"agent": "codex", "start": 12, "status": "applied"}',
        '{"agent": "codex", "start": "yesterday", "status": "failed"}',
        '{"agent": "codex", "start": "2026-05-04T10:15:00", "status": "failed"}',
        '{"agent": "codex", "start": "2026-05-04T10:15:00+00:00", "status": "fine"}',
    ],
    ids=range(12),
)
def test_a_job_that_cannot_be_read_is_passed_over(shelf: Shelf, text: str) -> None:
    """Nor does a status break on it."""
    shelf.write("sleep/20260504-235959/job.json", text)
    assert wiki_status(WikiStore(shelf.root), UTC).state == "ok"
    job = begin(shelf.files, WikiJob("", "builtin"), NOW)
    shelf.write("sleep/20260504-101501/job.json", text)
    (shelf.root / "sleep/20260504-101502").mkdir()
    (shelf.root / "sleep/notes").mkdir()
    assert job in listed_jobs(shelf.files)


async def test_one_job_at_a_time_works_on_a_store(tmp_path: Path) -> None:
    """W-068: another one says who is at work, or waits."""
    shelf, clock = Shelf.make(tmp_path), FakeClock()
    (tmp_path / "sleep").rmdir()
    async with job_lock(shelf.files, clock, wait=False):
        begin(shelf.files, WikiJob("", "codex"), NOW)
        with pytest.raises(StoreBusy, match=r"sleep/20260504-101500 \(codex, since .* --wait"):
            async with job_lock(shelf.files, clock, wait=False):
                pass
    async with job_lock(shelf.files, clock, wait=True):
        pass


def edits() -> Iterator[tuple[str, str | None]]:
    """What somebody does to a store meanwhile: a path and its new text, None: it goes."""
    yield GARDEN, page("# Garden\n\nChanged.")
    yield GARDEN, page("# Garden\n\nBehind the house since 2024. Anna waters me.\n\nSee [[Roses]].")
    yield "semantic/New.md", page("# New")
    yield "episodic/deep/New.md", page("# New")
    yield INDEX, page("# Index")
    yield ROSES, None


@pytest.mark.parametrize(("path", "text"), [*edits()])
def test_pages_that_somebody_changed_are_noticed(shelf: Shelf, path: str, text: str | None) -> None:
    """W-066: of the same length, in the same moment, with the time of before."""
    seen = SeenPages(shelf.files)
    assert seen.changed() == ()
    known = (shelf.root / path).stat() if (shelf.root / path).exists() else None
    if text is None:
        (shelf.root / path).unlink()
    else:
        shelf.write(path, text)
        if known:
            os.utime(shelf.root / path, ns=(known.st_atime_ns, known.st_mtime_ns))
    assert seen.changed() == (path,)


def test_what_is_no_page_may_change_meanwhile(shelf: Shelf) -> None:
    seen = SeenPages(shelf.files)
    shelf.conversation()
    shelf.write("semantic/.Garden.md.swp", "an editor's")
    shelf.write("notes.md", "a person's")
    assert seen.changed() == ()


def test_a_conversation_is_copied_word_for_word_and_listed(shelf: Shelf) -> None:
    """W-059: with the first name that is free."""
    for n in ("", "-1", "-2"):
        path = raw_path(shelf.files, "talk", TODAY)
        assert path == f"episodic-raw/20260504/talk{n}"
        with shelf.files.writing():
            keep_raw(shelf.files, path, numbered(TALK), "conversations/talk")
    assert shelf.raw()["episodic-raw/20260504/talk-1/0002-assistant.md"] == f"{TALK[1][1]}\n"
    listed = json.loads(shelf.read("meta/conversations.json"))
    assert listed[:2] == ["conversations/talk", "episodic-raw/20260504/talk"]
    assert len(listed) == 4
    with shelf.files.writing():
        drop_raw(shelf.files, "episodic-raw/20260504/talk-1")
        drop_raw(shelf.files, "semantic")
        drop_raw(shelf.files, "")
    assert not (shelf.root / "episodic-raw/20260504/talk-1").exists()
    assert len(shelf.raw()) == 4
    assert "episodic-raw/20260504/talk-1" not in json.loads(shelf.read("meta/conversations.json"))


def test_a_raw_copy_has_a_name_that_links_can_hold() -> None:
    names = {"talk": "talk", "a[b]|c#d": "a-b--c-d", "a\nb": "a-b"}
    assert {name: raw_name(name) for name in names} == names
    assert [raw_name(none) for none in ("..", " ")] == ["conversation"] * 2


def test_what_kills_left_is_swept_away(shelf: Shelf) -> None:
    """A copy that never came to its name, and what an undo had prepared."""
    shelf.write("episodic-raw/20260504/.part_raw_1/0001-user.md", "half")
    shelf.write("sleep/.undo_page_1/changes.json", "[]")
    shelf.write("sleep/.undo_page_2/changes.json", "[]")
    os.utime(shelf.root / "sleep/.undo_page_1", (0, 0))
    shelf.write("sleep/20260504-101500/job.json", "{}")
    shelf.write("semantic/.part_wiki_1", "half a page")
    os.utime(shelf.root / "semantic/.part_wiki_1", (0, 0))
    sweep(shelf.files)
    assert [path.name for path in (shelf.root / "semantic").glob(".*")] == []
    assert [path.name for path in (shelf.root / "episodic-raw/20260504").iterdir()] == []
    names = [".undo_page_2", "20260504-101500"]
    assert sorted(path.name for path in (shelf.root / "sleep").iterdir()) == names


@pytest.mark.parametrize(
    "text",
    ['[{"path": 1, "before": null, "after": "x"}]', "[" * 100_000, "[1]", '["x"]'],
    ids=range(4),
)
def test_a_list_of_changes_that_is_none_is_told(shelf: Shelf, text: str) -> None:
    """W-007: by whoever finds that it is being put in place."""
    shelf.write("sleep/x/changes.json", text)
    shelf.write("sleep/applying", "x")
    told = pytest.raises(StoreUnusable, match=r"which has no usable changes\.json: delete it")
    with told, shelf.files.reading():
        pytest.fail("it cannot be finished")


async def placed(shelf: Shelf, *changes: FileChange, at: datetime = NOW) -> WikiJob:
    """A job that makes these changes."""
    job = begin(shelf.files, WikiJob("", "builtin", "talk"), at)
    seen = SeenPages(shelf.files)

    def beside() -> list[FileChange]:
        return [written_change(shelf.files, each) for each in changes]

    return await put_in_place(shelf.files, job, changes, beside, seen)


MORE = "# Garden\n\nBehind the house since 2024. Anna waters it.\n\nSee [[Roses]] and [[Pond]]."


def two(shelf: Shelf) -> list[FileChange]:
    return [
        change(shelf, GARDEN, page(MORE, DAY, TODAY)),
        change(shelf, POND, page("# Pond\n\nCarp.", TODAY, TODAY)),
    ]


async def test_all_pages_of_a_job_are_in_place_and_it_says_so(shelf: Shelf) -> None:
    """W-060, W-064: and which of their lines are ours from then on."""
    job = await placed(shelf, *two(shelf))
    assert (job.status, job.changed_files) == ("applied", (GARDEN, POND))
    assert json.loads(shelf.read(job.file))["status"] == "applied"
    assert shelf.read(POND) == page("# Pond\n\nCarp.", TODAY, TODAY)
    assert written_lines(shelf.files, GARDEN) == {"See [[Roses]] and [[Pond]]."}
    assert written_lines(shelf.files, POND) == {"# Pond", "Carp."}


async def test_a_line_that_a_person_edits_is_theirs_and_stays_theirs(shelf: Shelf) -> None:
    """W-064: also when a job wrote the page again, with that line in it."""
    await placed(shelf, *two(shelf))
    shelf.write(POND, page("# Pond\n\nThree carp.", TODAY, TODAY))
    await placed(shelf, change(shelf, POND, page("# Pond\n\nThree carp.\nOurs.", TODAY, TODAY)))
    ours = written_lines(shelf.files, POND)
    assert ours == {"# Pond", "Ours."}
    told = lost_content(shelf.read(POND), page("# The pond\n\nThree\nOurs, anew."), ours)
    assert 'the line "Three carp."' in told
    assert 'the line "Ours."' not in told


async def test_nothing_is_put_in_place_once_somebody_changed_a_page(tmp_path: Path) -> None:
    """W-066."""
    for n, (path, text) in enumerate(edits()):
        shelf = Shelf.make(tmp_path / str(n))
        job = begun(shelf)
        changes, seen = two(shelf), SeenPages(shelf.files)
        if text is None:
            (shelf.root / path).unlink()
        else:
            shelf.write(path, text)
        before = shelf.pages()
        with pytest.raises(StoreChanged, match="store changed meanwhile"):
            await put_in_place(shelf.files, job, changes, list, seen)
        assert shelf.pages() == before
        assert not (shelf.root / job.folder / "changes.json").exists()


async def test_an_edit_in_the_very_moment_wins(shelf: Shelf) -> None:
    """W-066: saved after the last look, by somebody who waits for no lock."""
    job = begun(shelf)
    changes, theirs = two(shelf), page("# Garden\n\nTheirs.")

    def beside() -> list[FileChange]:
        shelf.write(GARDEN, theirs)
        return []

    done = await put_in_place(shelf.files, job, changes, beside, SeenPages(shelf.files))
    assert shelf.read(GARDEN) == theirs
    assert done.changed_files == (POND,)
    told = json.loads(shelf.read(job.file))
    assert told["status"] == "applied"
    assert "semantic/Garden.md" in told["reason"]


async def test_what_a_record_refuses_is_not_put_in_place(shelf: Shelf) -> None:
    job = begun(shelf)
    before = shelf.pages()

    @asynccontextmanager
    async def refusing():  # type: ignore[no-untyped-def]  # one of a Recording
        yield "set_1"
        raise WintermuteError("the commit failed")

    with pytest.raises(WintermuteError, match="the commit failed"):
        await put_in_place(shelf.files, job, two(shelf), list, SeenPages(shelf.files), refusing)
    with shelf.files.reading():
        assert shelf.pages() == before
    assert json.loads(shelf.read(job.file))["status"] == "failed"


async def test_a_disk_that_is_full_right_after_the_record_leaves_the_pages(shelf: Shelf) -> None:
    """W-065: nothing is under way then, so that nobody finishes it later."""
    job = begun(shelf)
    before, changes, seen = shelf.pages(), two(shelf), SeenPages(shelf.files)

    @asynccontextmanager
    async def recording():  # type: ignore[no-untyped-def]  # one of a Recording
        yield None
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))

    try:
        with pytest.raises(WintermuteError, match="cannot be written"):
            await put_in_place(shelf.files, job, changes, list, seen, recording)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert not is_being_applied(shelf.files, job)
    with shelf.files.reading():
        assert shelf.pages() == before
    assert json.loads(shelf.read(job.file))["reason"] == "interrupted"


async def test_an_undo_restores_the_pages_byte_for_byte(shelf: Shelf) -> None:
    """W-067: and what it took back can be had again."""
    shelf.write(GARDEN, shelf.read(GARDEN).replace("\n", "\r\n") + "  \r\n")
    before = shelf.pages()
    job = await placed(shelf, *two(shelf))
    after = shelf.pages()
    done = await undo_job(shelf.files, None, NOW)
    assert shelf.pages() == before
    assert (done.job.agent, done.job.undoes, done.kept) == ("undo", job.name, ())
    assert (shelf.root / done.job.folder / "diff.patch").exists()
    assert written_lines(shelf.files, POND) == frozenset()
    with pytest.raises(WintermuteError, match="nothing is left to undo"):
        await undo_job(shelf.files, None, NOW)
    again = await undo_job(shelf.files, done.job.name, NOW)
    assert again.job.undoes == done.job.name
    assert shelf.pages() == after


async def test_an_undo_takes_its_lines_out_of_an_index_edited_since(shelf: Shelf) -> None:
    """W-067: what a person wrote stays, and no link leads nowhere."""
    new = change(shelf, POND, page("# Pond\n\nCarp.", TODAY, TODAY))
    index = change(shelf, INDEX, shelf.read(INDEX).rstrip() + "\n- [[Pond]]: Carp.\n")
    await placed(shelf, new, index)
    shelf.write(INDEX, shelf.read(INDEX) + "- my own line: [[Garden]] [[Pond]]\n- mine\n")
    done = await undo_job(shelf.files, None, NOW)
    assert POND not in shelf.pages()
    assert "- [[Pond]]: Carp." not in shelf.read(INDEX)
    assert shelf.read(INDEX).endswith("- my own line: [[Garden]] [[Pond]]\n- mine\n")
    assert done.kept == (INDEX,)


async def test_an_undo_keeps_what_was_edited_since(shelf: Shelf) -> None:
    """W-067: three ways: other lines stay, a whole page that we made and somebody edited stays."""
    await placed(shelf, *two(shelf))
    shelf.write(GARDEN, shelf.read(GARDEN).replace("Anna waters it.", "Bob waters it."))
    shelf.write(POND, page("# Pond\n\nCarp and frogs."))
    done = await undo_job(shelf.files, None, NOW)
    assert done.kept == (POND,)
    assert shelf.read(POND) == page("# Pond\n\nCarp and frogs.")
    body = "# Garden\n\nBehind the house since 2024. Bob waters it.\n\nSee [[Roses]]."
    assert shelf.read(GARDEN) == page(body)


async def test_an_undo_of_what_was_edited_in_the_same_lines_says_so(shelf: Shelf) -> None:
    """W-067: nothing goes back then, and no job is left."""
    [garden, _] = two(shelf)
    job = await placed(shelf, garden)
    theirs = page("# Garden\n\nAll is new.", DAY, date(2026, 5, 6))
    shelf.write(GARDEN, theirs)
    with pytest.raises(WintermuteError, match=f"{job.folder}: .*stay: semantic/Garden.md"):
        await undo_job(shelf.files, job.name, NOW)
    assert shelf.read(GARDEN) == theirs
    assert len(shelf.jobs()) == 1


async def test_an_older_job_can_be_taken_back_from_under_a_newer_one(shelf: Shelf) -> None:
    first = await placed(shelf, *two(shelf))
    text = page("# Pond\n\nCarp.\n\nFrogs.", TODAY, TODAY)
    await placed(shelf, change(shelf, POND, text), at=NOW.replace(minute=16))
    done = await undo_job(shelf.files, first.name, NOW.replace(minute=17))
    assert done.kept == (POND,)
    assert shelf.read(POND) == text
    assert "[[Pond]]" not in shelf.read(GARDEN)


async def test_what_a_newer_job_wrote_again_stays(shelf: Shelf) -> None:
    """W-067: three jobs, of which the third says what the first did."""
    shelf.write(POND, page("# Pond\n\nCarp.\n\n[[Garden]]"))
    jobs = []
    for minute, fish in enumerate(("Koi.", "Carp.", "Koi.")):
        text = page(f"# Pond\n\n{fish}\n\n[[Garden]]")
        jobs.append(await placed(shelf, change(shelf, POND, text), at=NOW.replace(minute=minute)))
    with pytest.raises(WintermuteError, match="its pages were changed since and stay"):
        await undo_job(shelf.files, jobs[0].name, NOW.replace(minute=30))
    await undo_job(shelf.files, jobs[2].name, NOW.replace(minute=31))
    assert "Carp." in shelf.read(POND)


async def test_what_is_no_job_or_changed_nothing_is_not_taken_back(shelf: Shelf) -> None:
    for name in ("20260504-999999", "../../etc", "written", "", "x/y"):
        with pytest.raises(WintermuteError, match="no job"):
            await undo_job(shelf.files, name, NOW)
    with pytest.raises(WintermuteError, match="changed nothing: interrupted"):
        await undo_job(shelf.files, begun(shelf).name, NOW)


def undo_of(memory: Memory, shelf: Shelf) -> Undo:
    files: dict[ItemKind, FileItems] = {"page": page_items(shelf.files)}
    placing = Placing(memory.database, memory.changes, files, shelf.root.parent)
    return Undo(memory.database, memory.changes, {}, placing)


async def test_pages_are_items_of_the_one_undo(tmp_path: Path) -> None:
    """M-076: a change set of pages goes back, and the undo can be undone."""
    shelf = Shelf.make(tmp_path / "wiki")
    before, changes = shelf.pages(), two(shelf)
    await placed(shelf, *changes)
    after = shelf.pages()
    async with memory_in(tmp_path) as memory:
        undo = undo_of(memory, shelf)
        async with memory.database.transaction() as tx:
            why = Reason("consolidation", ANN)
            set_id = await memory.changes.record(tx, why, recorded(changes))
        found = await memory.changes.get(set_id)
        assert found is not None
        done = await undo.apply(found)
        assert shelf.pages() == before
        assert done.kept == ()
        back = await memory.changes.get(done.set_id or "")
        assert back is not None
        await undo.apply(back)
        assert shelf.pages() == after
    assert [path.name for path in (shelf.root / "sleep").glob(".*")] == []


@pytest.mark.parametrize("when", ["before it is prepared", "before it is in place"])
async def test_an_undo_of_pages_takes_all_back_or_none(tmp_path: Path, when: str) -> None:
    """W-067: a page that somebody saves in that moment keeps what they wrote, and its store."""
    shelf = Shelf.make(tmp_path / "wiki")
    pages, changes = page_items(shelf.files), two(shelf)
    await placed(shelf, *changes)
    back = [Change("page", c.path, state_of(c.after), state_of(c.before)) for c in changes]
    saved = shelf.read(GARDEN) + "\nMine.\n"
    if when == "before it is prepared":
        shelf.write(GARDEN, saved)

    async def saved_and_put() -> None:
        async with pages.prepared(back[::-1]) as put:
            shelf.write(GARDEN, saved)
            await put()

    with pytest.raises(StoreChanged, match="saved meanwhile: try again"):
        await saved_and_put()
    assert shelf.read(GARDEN) == saved
    assert shelf.read(POND) == changes[1].after
    with shelf.files.reading():
        assert [path.name for path in (shelf.root / "sleep").glob(".*")] == []


async def test_what_an_undo_has_prepared_may_get_lost_and_nothing_else(tmp_path: Path) -> None:
    shelf = Shelf.make(tmp_path / "wiki")
    before = shelf.pages()
    change = Change("page", GARDEN, state_of(shelf.read(GARDEN)), {"text": "x"})

    async def lost_and_put() -> None:
        async with page_items(shelf.files).prepared([change]) as put:
            for left in (shelf.root / "sleep").glob(".undo_*"):
                shutil.rmtree(left)
            await put()

    with pytest.raises(StoreUnusable, match="so nothing was changed"):
        await lost_and_put()
    with shelf.files.reading():
        assert shelf.pages() == before


def as_nobody(root: Path, work: Callable[[StoreFolder], object]) -> int:
    """How it ends in a process that may not write everywhere: 0, or 1 for a disk that refuses."""
    child = os.fork()
    if child == 0:
        try:
            os.chdir(root)
            if os.getuid() == 0:
                os.setuid(65534)
            work(StoreFolder(Path()))
            os._exit(0)
        except (OSError, StoreUnusable):
            os._exit(1)
        finally:
            os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def given_to_nobody(root: Path) -> None:
    """All of it is whose that process is."""
    for path in (root, *root.rglob("*")):
        path.chmod(0o777)
        if os.getuid() == 0:
            os.chown(path, 65534, 65534)


def test_a_folder_that_may_not_be_written_is_noticed_in_time(shelf: Shelf) -> None:
    """W-064: also where a page is to go from it."""
    shelf.write("semantic/locked/Old.md", page("# Old"))
    given_to_nobody(shelf.root)
    (shelf.root / "semantic/locked").chmod(0o555)
    garden = change(shelf, GARDEN, page("# Garden"))
    new = FileChange("semantic/locked/New.md", None, page("# New"))
    old = FileChange("semantic/locked/Old.md", page("# Old"), None)
    assert as_nobody(shelf.root, lambda files: files.stage("job", [garden, new])) == 1
    assert as_nobody(shelf.root, lambda files: files.stage("job", [garden, old])) == 1
    assert as_nobody(shelf.root, lambda files: files.stage("job", [garden])) == 0


def test_where_the_second_page_cannot_be_put_in_place_the_first_goes_back(shelf: Shelf) -> None:
    """W-064: and the store can be read."""
    new = FileChange("semantic/locked/New.md", None, page("# New"))
    shelf.files.stage("job", [change(shelf, GARDEN, page("# Garden")), new])
    before = shelf.pages()
    given_to_nobody(shelf.root)
    (shelf.root / "semantic/locked").chmod(0o555)

    def apply(files: StoreFolder) -> None:
        with files.writing():
            files.apply("job")

    assert as_nobody(shelf.root, apply) == 1
    with shelf.files.reading():
        assert shelf.pages() == before
    (shelf.root / "semantic/locked").chmod(0o777)
    shelf.files.stage("job", [change(shelf, GARDEN, page("# Garden")), new])
    given_to_nobody(shelf.root)
    assert as_nobody(shelf.root, apply) == 0
    assert {*shelf.pages()} == {*before, new.path}


async def test_a_store_that_is_held_for_ever_is_told(tmp_path: Path) -> None:
    """W-007: a program that was stopped in the middle holds up no answer."""
    Shelf.make(tmp_path)

    def read() -> None:
        with StoreFolder(tmp_path, patience=0.1).reading():
            pytest.fail("somebody writes")

    with locked(tmp_path), pytest.raises(StoreUnusable, match="is held by another program"):
        async with promptly(10):
            await asyncio.to_thread(read)


async def test_no_undo_writes_outside_the_pages(tmp_path: Path) -> None:
    """A record is only as good as who wrote it."""
    shelf = Shelf.make(tmp_path / "wiki")
    async with memory_in(tmp_path) as memory:
        undo = undo_of(memory, shelf)
        for path in ("../evil.md", "meta/conversations.json"):
            now = (await page_items(shelf.files).state(path)) if "meta" in path else {"text": "x"}
            async with memory.database.transaction() as tx:
                bad = Change("page", path, {"text": "evil"}, now)
                set_id = await memory.changes.record(tx, Reason("consolidation", ANN), [bad])
            found = await memory.changes.get(set_id)
            assert found is not None
            with suppress(WintermuteError):
                await undo.apply(found)
    assert not (tmp_path / "evil.md").exists()
    assert shelf.read("meta/conversations.json") == "[]"


def test_a_diff_is_what_patch_reads() -> None:
    changed = FileChange("semantic/A.md", "one\ntwo\n", "one\n2\n")
    new = FileChange("semantic/B.md", None, "new")
    text = patch([changed, new, FileChange("semantic/C.md", "old\n", None)])
    assert "--- a/semantic/A.md\n+++ b/semantic/A.md\n@@ -1,2 +1,2 @@\n one\n-two\n+2\n" in text
    assert "--- /dev/null\n+++ b/semantic/B.md\n" in text
    assert "+new\n\\ No newline at end of file\n" in text
    assert "--- a/semantic/C.md\n+++ /dev/null\n" in text


def test_a_list_of_what_is_outside_that_is_damaged_is_not_overwritten(shelf: Shelf) -> None:
    assert untrusted_paths(shelf.files) == ()
    shelf.write("meta/outside.json", '{"a": 1}')
    with pytest.raises(WintermuteError, match=r"outside.json: is no list of paths"):
        untrusted_paths(shelf.files)
