"""The files of a store: seen as they are now, written whole or not at all, whoever is killed and when."""

import os
import resource
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from tests.bench_wiki import lay
from tests.world.clock import cheap
from tests.world.cut import JOB, apply, cut
from tests.world.missing import NO_MOUNT
from tests.world.wiki import made, page, wiki
from wintermute.errors import FileUnusable, StoreMissing, StoreUnusable
from wintermute.wiki.conversations import ConversationFolder
from wintermute.wiki.folder import APPLYING, FileChange, StoreFolder
from wintermute.wiki.links import DEEPEST, INDEX, Unresolved
from wintermute.wiki.store import WikiStore

PAGES = {
    "semantic/Garden.md": page("# Garden\n\nSee [[Ann]]."),
    "semantic/Ann.md": page("# Ann"),
    "episodic/2026-05-04.md": page("# A day\n\n[[Garden]]"),
    INDEX: page("# Index\n\n- [[Garden]]\n- [[2026-05-04]]"),
}
WRITERS = 3


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return made(tmp_path / "store", PAGES)


def pages_of(root: Path) -> dict[str, str]:
    """What whoever opens the store reads."""
    files = StoreFolder(root)
    with files.reading():
        return {path: files.exact_text(path) for path in WikiStore(root).pages()}


# What is seen is what is there


def test_an_edit_by_hand_counts_at_once_however_quickly_it_follows(root: Path) -> None:
    """Issue 20, section 1: as long, and in the same tick of the clock as the text before."""
    store, file = WikiStore(root), root / "semantic/Ann.md"
    same = time.time_ns() + 10**10  # as if the clock stood still meanwhile
    for n in range(100):
        file.write_text(page(f"[[Page {n % 10}]]"))
        os.utime(file, ns=(same, same))
        assert store.pages()["semantic/Ann.md"].links == (f"Page {n % 10}",)


def test_a_page_that_comes_goes_or_moves_is_noticed_at_once(root: Path) -> None:
    store = WikiStore(root)
    assert store.resolve("Ann") == "semantic/Ann.md"
    for n in range(50):
        (root / f"episodic/New {n}.md").write_text(page("[[Ann]]"))
        assert store.graph().backlinks("semantic/Ann.md") == (
            f"episodic/New {n}.md",
            "semantic/Garden.md",
        )
        (root / f"episodic/New {n}.md").unlink()
        assert store.graph().backlinks("semantic/Ann.md") == ("semantic/Garden.md",)
    (root / "semantic/people").mkdir()
    (root / "semantic/Ann.md").rename(root / "semantic/people/Ann.md")
    assert store.resolve("Ann") == "semantic/people/Ann.md"
    shutil.rmtree(root / "semantic")
    assert set(store.pages()) == {"episodic/2026-05-04.md", INDEX}
    assert [each.target for each in store.graph().broken] == ["Garden", "Garden"]


def test_what_did_not_change_is_not_read_again(root: Path) -> None:
    """A second look costs a look at each file's time, and gives what the first one gave."""
    store = WikiStore(root)
    old = time.time_ns() - 10**9
    for path in root.rglob("*"):
        os.utime(path, ns=(old, old))
    assert store.graph() is store.graph()
    assert store.pages() is store.pages()
    (root / "semantic/Ann.md").write_text(page("[[Nobody]]"))
    assert [str(each) for each in store.graph().broken] == ["semantic/Ann: [[Nobody]]"]


def test_a_link_to_a_conversation_is_judged_anew_each_time(root: Path) -> None:
    """W-018: it has no title, so nothing of it is kept."""
    store, raw = WikiStore(root), root / "episodic-raw/20260504/talk"
    (root / "semantic/Ann.md").write_text(page("[[episodic-raw/20260504/talk/0001-user]]"))
    assert len(store.graph().broken) == 1
    raw.mkdir(parents=True)
    (raw / "0001-user.md").write_text("Hello\n")
    assert store.graph().broken == ()
    (raw / "0001-user.md").unlink()
    assert len(store.graph().broken) == 1


def test_threads_may_ask_one_store_at_once(root: Path) -> None:
    """As the web does, while somebody edits."""
    store, problems = WikiStore(root), list[str]()
    done = threading.Event()

    def ask() -> None:
        while not done.is_set():
            links = store.graph().backlinks("semantic/Ann.md")
            if "semantic/Garden.md" not in links or store.resolve("Garden") != "semantic/Garden.md":
                problems.append(str(links))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for each in threads:
        each.start()
    for n in range(40):
        store.files.put(f"episodic/{n}.md", page("[[Ann]] [[semantic/Nobody]]"))
    done.set()
    for each in threads:
        each.join()
    assert problems == []


# Names


NAMES = st.text(
    st.one_of(st.characters(), st.sampled_from("aB. -_#|[]é世\u200d\t\n")), min_size=1, max_size=90
)


@given(NAMES)
@example("Garden")
@example("v1.2")
@example("a.md")
@example(".md.md")
@example("..")
@example("...")
@example("Ann ")
@example("\u3000x")
@example("a\nb")
@example("\x1b[2J")
@example("e\u0301")
@example("x" * 252)
@example("x" * 253)
@example("世" * 84)
@example("👩‍💻")
@example("\udcff")
@example("con|text#part]]")
def test_any_name_is_found_or_refused(tmp_path_factory: pytest.TempPathFactory, name: str) -> None:
    """W-014, W-015: whatever a file can be called."""
    assume("/" not in name)
    root = made(tmp_path_factory.mktemp("store"), {"semantic/x": ""})
    file = root / "semantic" / f"{name}.md"
    with suppress(OSError, ValueError):  # no file can be called that
        file.write_text(page("text"))
    store = WikiStore(root)
    ways = [name, f" {name} ", f"semantic/{name}", f"semantic/{name}.md"]
    found = {way: store.resolve(way) for way in ways}
    assert len({isinstance(each, Unresolved) for each in found.values()}) == 1, found
    for way, path in found.items():
        if not isinstance(path, Unresolved):
            assert path == f"semantic/{name}.md"
            assert wiki(root, "read", "--", way).stdout_bytes == file.read_bytes()
    listed_there = f"semantic/{name}.md" in store.pages()
    assert listed_there == (found[f"semantic/{name}.md"] == f"semantic/{name}.md")


# Several who write


WRITER = """
import sys, time
from pathlib import Path
from wintermute.wiki.folder import StoreFolder
files, mark = StoreFolder(Path(sys.argv[1])), sys.argv[2]
print("begun", flush=True)
while not Path(sys.argv[1], "over").exists():
    with files.writing():
        for name in ("one", "two"):
            files.put(f"semantic/{name}.md", mark * 200_000)
    time.sleep(0.005)  # a lock is not fair
"""


@pytest.mark.slow
def test_no_reader_sees_half_a_page_nor_half_of_what_belongs_together(root: Path) -> None:
    """W-007: several processes write, others read."""
    files = StoreFolder(root)
    for name in ("one", "two"):
        files.put(f"semantic/{name}.md", "-" * 200_000)
    words = [sys.executable, "-c", WRITER, str(root)]
    writers = [
        subprocess.Popen([*words, mark], stdout=subprocess.PIPE, text=True)
        for mark in "abc"[:WRITERS]
    ]
    for each in writers:
        assert each.stdout is not None
        assert each.stdout.readline() == "begun\n"
    seen = set()
    for _ in range(20):
        with files.reading():
            texts = {files.exact_text(f"semantic/{name}.md") for name in ("one", "two")}
        alone = wiki(root, "read", "one").stdout  # takes the lock for itself
        assert len(texts) == 1
        for text in (*texts, alone):
            assert (len(text), len(set(text))) == (200_000, 1)
            seen.add(text[0])
    (root / "over").touch()
    for each in writers:
        each.communicate(timeout=60)
        assert each.returncode == 0
    assert len(seen) > 1
    assert list(root.rglob(".*")) == []


def test_who_only_reads_waits_for_nobody_who_reads(root: Path) -> None:
    with StoreFolder(root).reading(), StoreFolder(root).reading():
        assert wiki(root, "read", "Ann").exit_code == 0


# Killed


LONG = "A line that is not so short.\n" * 200
CHANGES = (
    FileChange("semantic/Garden.md", PAGES["semantic/Garden.md"], page(LONG)),
    FileChange("semantic/new/Roses.md", None, page("[[Garden]]")),
    FileChange("episodic/2026-05-04.md", PAGES["episodic/2026-05-04.md"], None),
    FileChange(INDEX, PAGES[INDEX], page("- [[Garden]]\n- [[Roses]]")),
)


def after() -> dict[str, str]:
    """The pages once all is in place."""
    found = dict(PAGES)
    for change in CHANGES:
        found.pop(change.path, None)
        if change.after is not None:
            found[change.path] = change.after
    return found


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Copies of a store in which a job was killed at each of its steps."""
    folder = tmp_path_factory.mktemp("killed")
    return cut("apply", made(folder / "store", PAGES), folder / "cut", CHANGES)


def copied(path: Path, to: Path) -> Path:
    shutil.copytree(path, to)
    return to


def test_a_job_killed_anywhere_was_done_or_not(killed: list[Path], tmp_path: Path) -> None:
    """W-007, W-064: whoever reads next finds all of before or all of after."""
    found = [pages_of(copied(each, tmp_path / each.name)) for each in killed]
    assert all(each in (PAGES, after()) for each in found)
    done = [each == after() for each in found]
    assert done == sorted(done)  # once it is done, it stays so
    assert done[0] is False
    assert done[-1] is True
    assert len(killed) > 30


def test_who_finishes_it_may_be_killed_as_well(killed: list[Path], tmp_path: Path) -> None:
    begun = [each for each in killed if (each / APPLYING).exists()]
    assert len(begun) > 8
    for each in (begun[0], begun[len(begun) // 2], begun[-1]):
        again = cut("finish", each, tmp_path / each.name)
        assert len(again) > 1
        assert [pages_of(copy) for copy in again] == [after()] * len(again)


@pytest.mark.parametrize("path", [change.path for change in CHANGES])
def test_what_is_edited_meanwhile_stays(killed: list[Path], tmp_path: Path, path: str) -> None:
    """Issue 20: hand edits win, and the rest of the job is not lost."""
    for each in killed:
        if not (each / APPLYING).exists():
            continue
        root = copied(each, tmp_path / each.name)
        (root / path).parent.mkdir(exist_ok=True)
        (root / path).write_text("mine")
        assert pages_of(root) == {**after(), path: "mine"}
        assert not (root / APPLYING).exists()


@pytest.mark.parametrize("harm", [os.mkfifo, os.mkdir, lambda path: path.symlink_to("/etc/passwd")])
def test_what_stands_in_the_way_is_left_alone(root: Path, harm: Callable[[Path], None]) -> None:
    """W-077: it is no page that we have written."""
    (root / "semantic/new").mkdir()
    harm(root / "semantic/new/Roses.md")
    apply(root, [replace(each, before=each.before or "") for each in CHANGES])
    assert pages_of(root) == {k: v for k, v in after().items() if k != "semantic/new/Roses.md"}


def test_a_page_keeps_who_may_read_it(root: Path) -> None:
    (root / "semantic/Garden.md").chmod(0o600)
    apply(root, CHANGES)
    assert (root / "semantic/Garden.md").stat().st_mode & 0o777 == 0o600
    WikiStore(root).files.put("semantic/Garden.md", "x")
    assert (root / "semantic/Garden.md").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("job", ["nothing", "../../outside", "", "a\nb"])
def test_a_job_that_cannot_be_finished_is_named(root: Path, job: str) -> None:
    """Nobody reads what may be half; nothing outside is touched."""
    (root / APPLYING).parent.mkdir()
    (root / APPLYING).write_text(job)
    with pytest.raises(StoreUnusable, match=r"applying names .*: delete it"):
        pages_of(root)
    (root / APPLYING).unlink()
    assert pages_of(root) == PAGES


@pytest.mark.parametrize("path", ["../out.md", "semantic/../../out.md", "/out.md", "a//b.md"])
def test_no_job_writes_outside_its_store(root: Path, path: str) -> None:
    """W-019."""
    with pytest.raises((OSError, StoreUnusable)):
        apply(root, [FileChange(path, None, "out")])
    assert sorted(each.name for each in root.parent.iterdir()) == ["store"]


# A disk that is full, or can only be read


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A store on a disk of its own with 400 KB, where we may."""
    folder = tmp_path / "disk"
    folder.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=400k,nr_inodes=200", "tmpfs", str(folder)]
    if subprocess.run(words, capture_output=True, check=False).returncode:
        pytest.skip(NO_MOUNT)
    yield made(folder / "store", PAGES)
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(folder: Path) -> Path:
    """Until there is room for neither a byte nor another file; what has to go for some."""
    filler = folder / "filler"
    filler.mkdir()
    with suppress(OSError), (filler / "bytes").open("wb", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)
    with suppress(OSError):
        for n in range(1000):
            (filler / str(n)).touch()
    return filler


def test_a_full_disk_leaves_the_pages_as_they_were(small_disk: Path) -> None:
    """Issue 20: a job that cannot be kept is not begun; later it can be done again."""
    filler = fill(small_disk.parent)
    with pytest.raises(StoreUnusable, match="cannot be written: No space left"):
        apply(small_disk, CHANGES)
    assert pages_of(small_disk) == PAGES
    assert not (small_disk / APPLYING).exists()
    shutil.rmtree(filler)
    apply(small_disk, CHANGES)
    assert pages_of(small_disk) == after()


def test_what_is_staged_is_put_in_place_although_the_disk_is_full(small_disk: Path) -> None:
    """Not even a folder has to be made then."""
    files = StoreFolder(small_disk)
    with files.writing():
        files.stage(JOB, [CHANGES[1], CHANGES[0], *CHANGES[2:]])
        files.put(APPLYING, JOB)
    fill(small_disk.parent)
    assert pages_of(small_disk) == after()


def test_a_disk_that_is_full_anywhere_in_a_job_changes_no_page(root: Path) -> None:
    """A limit of the process stands for the disk: what is longer cannot be written."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2_000, hard))
    try:
        with pytest.raises(StoreUnusable, match="cannot be written: File too large"):
            apply(root, CHANGES)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert pages_of(root) == PAGES


def test_a_store_that_can_only_be_read_is_read(small_disk: Path) -> None:
    """Issue 20: reading works, writing exits 1."""
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk.parent)], check=True)
    assert pages_of(small_disk) == PAGES
    for words in (["read", "Ann"], ["broken"], ["orphans"], ["search", "day"], ["conversations"]):
        assert wiki(small_disk, *words).exit_code == 0
    for words in (["create-conversation"], ["init"]):
        done = wiki(small_disk, *words)
        assert (done.exit_code, done.stdout) == (1, "")
        assert "cannot be written: Read-only file system" in done.stderr


# What is no page


def test_what_is_no_plain_file_is_never_opened(root: Path) -> None:
    """W-077."""
    os.mkfifo(root / "semantic/Pipe.md")
    (root / "semantic/Away.md").symlink_to("/etc/hostname")
    (root / "semantic/folder").symlink_to("/etc")
    (root / "semantic/Folder.md").mkdir()
    store = WikiStore(root)
    assert set(store.pages()) == set(PAGES)
    odd = {each.page: each.note for each in store.problems() if each.kind == "not read"}
    assert odd == {
        "semantic/Pipe.md": "is no plain file: not opened",
        "semantic/Away.md": "is a link: not followed",
        "semantic/folder": "is a link: not followed",
    }
    with pytest.raises(FileUnusable, match="no plain file"):
        store.files.content("semantic/Pipe.md")


def test_files_that_cannot_be_read_are_named_and_the_others_are_read(root: Path) -> None:
    """Issue 20: 50 MB, no UTF-8, names that nobody can type, folders in folders."""
    (root / "semantic/Latin.md").write_bytes("Käse".encode("latin-1"))
    with (root / "semantic/Large.md").open("wb") as file:
        file.truncate(50_000_000)
    Path(os.fsdecode(bytes(root / "semantic") + b"/\xff.md")).write_text("x")
    (root / "semantic/a\nb.md").write_text("x")
    deep = root / "semantic"
    for _ in range(200):
        deep /= "d"
    deep.mkdir(parents=True)
    (deep / "Deep.md").write_text("x")
    store = WikiStore(root)
    assert set(store.pages()) == {*PAGES, "semantic/Latin.md", "semantic/Large.md"}
    odd = {each.page: each.note for each in store.problems() if each.kind == "not read"}
    assert odd == {
        "semantic/Latin.md": "is not UTF-8 at byte 1: save it as UTF-8",
        "semantic/Large.md": "has over 5,000,000 bytes: not read",
        "semantic/\\udcff.md": "has a name that cannot be typed: not read",
        "semantic/a\\nb.md": "has a name that cannot be typed: not read",
        "/".join(["semantic", *"d" * (DEEPEST - 1)]): f"is the {DEEPEST}th folder in another",
    }
    for title in ("Deep", str(deep.relative_to(root) / "Deep")):
        assert isinstance(store.resolve(title), Unresolved)


def test_no_title_takes_long_to_look_for(root: Path) -> None:
    store, began = WikiStore(root), time.process_time()
    for title in ("a/" * 500_000, "x" * 1_000_000, "../" * 100_000, "a" * 300 + "/b"):
        assert isinstance(store.resolve(title), Unresolved)
    assert time.process_time() - began < 5


@pytest.mark.slow
def test_ten_thousand_pages_are_asked_in_time(tmp_path: Path) -> None:
    """W-052: by who has seen nothing of them yet."""
    root = lay(tmp_path)
    questions: list[Callable[[WikiStore], object]] = [
        lambda store: store.resolve("Garden 4711"),
        lambda store: store.graph().backlinks("semantic/Garden 4711.md"),
        lambda store: store.graph().orphans,
        lambda store: store.graph().broken,
        WikiStore.problems,
    ]
    for ask in questions:
        with cheap(5), StoreFolder(root).reading():
            assert ask(WikiStore(root)) is not None


# What is missing


def test_what_is_no_store_is_not_made_one_by_looking(tmp_path: Path) -> None:
    """W-005."""
    for root in (tmp_path / "none", tmp_path, made(tmp_path / "file", {}) / INDEX):
        with pytest.raises(StoreMissing, match="wintermute wiki init --store"):
            pages_of(root)
    assert not (tmp_path / "none").exists()


def test_a_store_is_made_by_several_at_once(tmp_path: Path) -> None:
    """W-004: each sees a whole one, and nothing is written twice."""
    root, made_by = tmp_path / "store", list[dict[str, bool]]()

    def make() -> None:
        made_by.append(WikiStore(root).init(date(2026, 5, 4), "Prompt"))

    threads = [threading.Thread(target=make) for _ in range(6)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert all(sum(each[path] for each in made_by) == 1 for path in made_by[0])


# Conversations


def test_messages_are_in_the_order_of_their_numbers_and_new_ones_come_last(tmp_path: Path) -> None:
    """W-036, W-038."""
    folder = ConversationFolder(made(tmp_path, {}), "conversations/talk")
    path = tmp_path / "conversations/talk"
    path.mkdir(parents=True)
    for name in ("b-assistant", "a-user", "10-user", "9-assistant", "0002-user"):
        (path / f"{name}.md").write_text(f"{name}\n")
    (path / "notes.txt").write_text("no message")
    (path / ".hidden-user.md").write_text("no message")
    assert [folder.append("user", "u"), folder.append("system", "s")] == [
        "0011-user.md",
        "0000-system.md",
    ]
    assert [each.name for each in folder.messages()] == [
        "0000-system.md",
        *("a-user.md", "b-assistant.md", "0002-user.md", "9-assistant.md", "10-user.md"),
        "0011-user.md",
    ]
    assert folder.strangers() == ("notes.txt",)
    assert folder.append("system", "again") == "0012-system.md"
    assert (path / "0000-system.md").read_text() == "s\n"
    (path / "99999-user.md").write_text("x")
    assert folder.append("assistant", "y") == "100000-assistant.md"
    assert folder.messages()[-1].text == "y"


def test_a_raw_conversation_is_kept_word_for_word(root: Path) -> None:
    (root / "episodic-raw/20260504/talk").mkdir(parents=True)
    with pytest.raises(Exception, match="kept word for word"):
        ConversationFolder(root, "episodic-raw/20260504/talk").append("user", "more")


def test_several_add_messages_and_each_has_a_number_of_its_own(root: Path) -> None:
    (root / "conversations/talk").mkdir(parents=True)
    folder = ConversationFolder(root, "conversations/talk")

    def add(mark: str) -> None:
        for n in range(20):
            with folder.held():
                folder.append("user", f"{mark}{n}")

    threads = [threading.Thread(target=add, args=[mark]) for mark in "abc"]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    texts = [each.text for each in folder.messages()]
    assert sorted(texts) == sorted(f"{mark}{n}" for mark in "abc" for n in range(20))
    assert [text for text in texts if text[0] == "a"] == [f"a{n}" for n in range(20)]
