"""Nothing outside a store is ever read or written, however a title, a link or a path is written (W-019)."""

import json
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path

import pytest

from tests.world.wiki import made, page, wiki
from wintermute.wiki.links import Unresolved
from wintermute.wiki.store import WikiStore

CANARY = "the canary sings at dawn"
UP = (
    "..",
    "../..",
    "../../..",
    "./..",
    "semantic/..",
    "semantic/../..",
    "semantic/plants/../../..",
)
ENDINGS = ("", ".md", "/", "/.", ".md/", " ")
OTHERS = (
    # links that lead out, and what lies behind one
    *("away", "semantic/away", "semantic/away.md", "out/canary", "out/canary.md", "out/../canary"),
    *("semantic/out/canary", "semantic/out/talk/0001-user", "semantic/./out/canary.md", "out/."),
    # other ways to write a path
    *("..\\canary", "semantic\\..\\..\\canary", "%2e%2e/canary", "..%2fcanary", "%2e%2e%2fcanary"),
    *("..;/canary", "....//canary", "..././canary", "\u2025/canary", "..\u2215canary", "..\uff0fcanary"),
    *("~/canary", "$HOME/canary", "file:///etc/hostname", "//canary", "///etc/hostname", "C:\\canary"),
    *("../canary\x00.md", "\x00../canary", "..\x00/canary", "../\udcff/canary", "..\n/canary"),
    *("/etc/hostname", "/etc/passwd", "/proc/self/environ", "/dev/stdin", "/dev/zero", "/proc/1/root", "/proc/1/cwd/x"),
    *("..", ".", "/", "../", "./", "...", "../.", ".//..//canary", "semantic/../semantic/../../canary"),
    # what belongs to the store and to nobody's titles
    *(".git/config", ".git/config.md", "sleep/../../canary", "sleep/job/report", "./sleep/job/report"),
    *("conversations/../../canary", "episodic-raw/../../canary", "semantic/Garden/../../../canary"),
)  # fmt: skip
PARENTS = tuple(f"{up}/canary{ending}" for up in UP for ending in ENDINGS)
TITLES = tuple(dict.fromkeys((*PARENTS, *OTHERS)))
TAKING_TITLES = ("read", "resolve", "backlinks", "tokens")


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    """A store with links that lead out of it, beside files that nobody may see; we stand beside it."""
    for path in ("canary.md", "canary", "inner/canary.md", "talk/0001-user.md"):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(CANARY)
    root = made(
        tmp_path / "inner" / "store",
        {
            "semantic/Garden.md": page("[[Garden]]"),
            ".git/config.md": CANARY,
            ".git/config": CANARY,
            "sleep/job/report.md": CANARY,
            "semantic/plants/Roses.md": page("x"),
        },
    )
    (root / "semantic/away.md").symlink_to(tmp_path / "canary.md")
    (root / "semantic/out").symlink_to(tmp_path)
    (root / "out").symlink_to(tmp_path)
    (root / "conversations").symlink_to(tmp_path)
    (root / "episodic-raw").symlink_to(tmp_path)
    with chdir(root.parent):
        yield root


def everything(folder: Path) -> dict[str, bytes]:
    """All files of a folder."""
    found = folder.rglob("*")
    return {str(each): each.read_bytes() for each in found if each.is_file() and each.name != "conversations.json"}  # fmt: skip


def test_the_corpus_is_large_enough() -> None:
    """Issue 20: at least 60 forms."""
    assert len(TITLES) >= 90


@pytest.mark.parametrize("verb", TAKING_TITLES)
def test_no_title_leads_out_of_the_store(root: Path, verb: str) -> None:
    """W-019: by no command; each form is refused in one line."""
    for title in TITLES:
        for more in ((), ("--raw",)) if verb in ("read", "resolve") else ((),):
            done = wiki(root, verb, *more, "--", title)
            code = 2 if "\udcff" in title else 1  # no text (F-050)
            assert (done.exit_code, done.stdout) == (code, ""), (ascii(title), more)
            assert len(done.stderr.splitlines()) == 1, ascii(title)
            assert CANARY not in done.output


@pytest.mark.parametrize("title", ["../canary", "/etc/passwd", "a\x00b", "semantic/away", "out/canary", ".."])  # fmt: skip
def test_what_leads_out_is_called_so(root: Path, title: str) -> None:
    """W-019: the words, by each command."""
    for verb in TAKING_TITLES:
        shown = title.replace("\x00", "\\x00")
        assert wiki(root, verb, "--", title).stderr == f"wintermute: {shown}: outside the store\n"


def test_no_link_leads_out_of_the_store(root: Path) -> None:
    """W-019: links of every form are broken or none, and nothing behind them is read."""
    written = [title for title in TITLES if "\0" not in title]  # else it is no text at all
    links = "\n\n".join(f"[[{title}]] [[{title}|text]] [[{title}#part]]" for title in written)
    (root / "semantic/Garden.md").write_bytes(page(links).encode("utf-8", "replace"))
    graph = WikiStore(root).graph()
    targets = {each.target for each in graph.broken if each.page == "semantic/Garden.md"}
    (page_,) = (each for path, each in WikiStore(root).pages().items() if "Garden" in path)
    assert len(targets) > 80
    assert targets == {*page_.links}
    assert graph.linked["semantic/Garden.md"] == frozenset()
    for words in (["broken"], ["orphans"], ["check"], ["search", "canary sings"], ["search", "x"]):
        done = wiki(root, *words)
        assert done.exit_code in (0, 1)
        assert CANARY not in done.output
    assert "semantic/Garden: [[../canary]] (outside the store)" in wiki(root, "broken").stdout


def paths() -> Iterator[str]:
    """Titles as paths of conversations, but for what only means the working directory or nothing."""
    yield from (title for title in TITLES if title.strip(" ./"))


def test_no_path_makes_a_conversation_of_other_things(root: Path, tmp_path: Path) -> None:
    """W-038: a folder outside with anything but messages, or a link to one, is left alone."""
    before = everything(tmp_path)
    for named in (*paths(), *(str(root / title) for title in paths()), str(tmp_path), str(root)):
        done = wiki(root, "add-message", "--conversation", named, "user", given=b"new")
        code = 2 if "\udcff" in named else 1  # no text (F-050)
        assert (done.exit_code, done.stdout) == (code, ""), ascii(named)
        assert len(done.stderr.splitlines()) == 1, ascii(named)
        assert CANARY not in done.output
    assert everything(tmp_path) == before


def test_a_conversation_is_not_made_through_a_link(root: Path, tmp_path: Path) -> None:
    before = everything(tmp_path)
    done = wiki(root, "create-conversation")
    assert (done.exit_code, done.stdout) == (1, "")
    assert "cannot be written" in done.stderr
    assert everything(tmp_path) == before


def test_paths_that_are_listed_are_only_listed(root: Path) -> None:
    """W-039: whatever stands in the list."""
    (root / "meta/conversations.json").write_text(json.dumps([*TITLES]))
    done = wiki(root, "conversations")
    assert (done.exit_code, done.stderr) == (0, "")
    assert len(done.stdout.splitlines()) == len(TITLES)
    assert CANARY not in done.output


def test_no_store_is_reached_through_another(root: Path) -> None:
    """What a program asks for is held to the same."""
    store = WikiStore(root)
    for title in TITLES:
        assert isinstance(store.resolve(title), Unresolved), title
        assert isinstance(store.resolve(title, raw=True), Unresolved), title
