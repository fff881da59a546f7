"""Any store: what titles and links mean, against a second reader written here without a second thought.

It reads a file a sign at a time, looks at every file of the store for each title, and keeps nothing.
"""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.world.wiki import made, page
from wintermute.wiki.links import Unresolved
from wintermute.wiki.store import WikiStore

STORES, PARTS = 500, 5
NAMES = (
    "Garden",
    "garden",
    "Ann",
    "v1.2",
    "a b",
    "Ünïcode 世界",
    "Index",
    "Foo.md",
    "x",
    "0001-user",
)
FOLDERS = (
    *("", "semantic", "episodic", "semantic/plants", "episodic/2026", "meta", "notes"),
    *("episodic-raw/20260504/talk", "conversations/20260504-090000", "sleep/20260504-010000"),
)
PLAIN = (
    "some words ",
    "\n",
    "\n\n",
    "\n- ",
    "\n## ",
    "\n> ",
    "\n1. ",
    "(",
    "|",
    "#",
    "[",
    "]",
    " [[",
    "]] ",
)
CODE = (
    "`",
    "``",
    "` ",
    "\n```\n",
    "\n~~~\n",
    "\n````\n",
    "\n- ```\n",
    "\n  ```\n",
    " \\`",
    " \\\\`",
    "\n```x `y` ",
)
MOST_FILES = 14


# The second reader


def naive_links(text: str) -> list[str]:
    """The targets of a page's links, each once."""
    found: list[str] = []
    text = naive_without_code(naive_body(text))
    at = 0
    while at < len(text):
        if text[at : at + 2] == "[[":
            end = at + 2
            while end < len(text) and text[end] not in "[]\n":
                end += 1
            if text[end : end + 2] == "]]":
                target = text[at + 2 : end].split("|")[0].split("#")[0].strip()
                if target and target not in found:
                    found.append(target)
                at = end + 2
                continue
        at += 1
    return found


def naive_body(text: str) -> str:
    lines = text.split("\n")
    if lines[0].rstrip(" \t") == "---":
        for n, line in enumerate(lines[1:], 1):
            if line.rstrip(" \t") == "---":
                return "\n".join(lines[n + 1 :])
    return text


def bare(line: str) -> tuple[str, bool]:
    """A line without what stands before its text, and whether that makes it an item of a list."""
    item = False
    while line:
        if line[0] in " \t>":
            line = line[1:]
            continue
        mark = line.split(" ")[0].split("\t")[0]
        number = mark[:-1].isdigit() and mark[-1] in ".)" and len(mark) <= 10
        if len(mark) < len(line) and (mark in ("-", "*", "+") or number):
            line, item = line[len(mark) + 1 :], True
            continue
        break
    return line, item


def fence_of(line: str) -> str:
    """The run that a line begins with, if that may be a fence."""
    for mark in "`~":
        run = line[: len(line) - len(line.lstrip(mark))]
        if len(run) >= 3:
            return run
    return ""


def naive_without_code(text: str) -> str:
    """The text with nothing in the place of code, block after block."""
    left: list[str] = []
    block: list[str] = []
    fence = ""
    for line in text.split("\n"):
        rest, item = bare(line)
        run = fence_of(rest)
        after = rest[len(run) :]
        if fence:
            if run[:1] == fence[0] and len(run) >= len(fence) and not after.strip() and not item:
                fence = ""
            left.append("")
        elif run and not (run[0] == "`" and "`" in after):
            left += [naive_without_spans("\n".join(block)), ""]
            block, fence = [], run
        else:
            starts = not rest.strip() or begins_a_block(line)
            if starts:
                left.append(naive_without_spans("\n".join(block)))
                block = []
            block.append(line)
    return "\n".join([*left, naive_without_spans("\n".join(block))])


def begins_a_block(line: str) -> bool:
    words = line.lstrip(" \t>").replace("\t", " ").split(" ")
    mark, has_more = words[0], len(words) > 1
    if not mark or not has_more:
        return False
    number = mark[:-1].isdigit() and mark[-1] in ".)" and len(mark) <= 10
    return mark in ("-", "*", "+") or number or (set(mark) == {"#"} and len(mark) <= 6)


def naive_without_spans(block: str) -> str:
    left, at = "", 0
    while at < len(block):
        if block[at] == "\\" and block[at + 1 : at + 2] in ("\\", "`"):
            left, at = left + block[at : at + 2], at + 2
            continue
        if block[at] != "`":
            left, at = left + block[at], at + 1
            continue
        run = backticks(block, at)
        end = at + run
        while end < len(block) and (block[end] != "`" or backticks(block, end) != run):
            end += backticks(block, end) or 1
        if end < len(block):
            left, at = f"{left} ", end + run
        else:
            left, at = left + block[at : at + run], at + run
    return left


def backticks(text: str, at: int) -> int:
    n = 0
    while text[at + n : at + n + 1] == "`":
        n += 1
    return n


def naive_files(root: Path) -> list[str]:
    return sorted(str(each.relative_to(root)) for each in root.rglob("*.md"))


def naive_resolve(
    files: list[str], title: str, *, raw: bool = False
) -> tuple[str, tuple[str, ...]]:
    """What becomes of a title, and the paths."""
    title = title.strip()
    if not title:
        return "empty", ()
    if title.startswith("/") or ".." in title.split("/"):
        return "outside", ()
    if "/" in title or title.endswith(".md"):
        reachable = [each for each in files if not each.startswith("sleep/")]
        for ending in ("", ".md"):
            if title + ending in reachable:
                return "found", (title + ending,)
        if "/" in title:
            return "missing", ()
    away = ["sleep", "conversations"] + ([] if raw else ["episodic-raw"])
    titled = [each for each in files if each.split("/")[0] not in away]
    for name in (title.removesuffix(".md"), title):
        paths = [each for each in titled if each.split("/")[-1] == f"{name}.md"]
        if paths:
            return ("found" if len(paths) == 1 else "ambiguous"), tuple(paths)
    return "missing", ()


def naive_pages(files: list[str]) -> list[str]:
    return [each for each in files if each.split("/")[0] in ("semantic", "episodic")]


def naive_linking(root: Path, files: list[str]) -> Iterator[tuple[str, str, str, tuple[str, ...]]]:
    """Each link of a page or the index: where, to what, and what that means."""
    for path in sorted([*naive_pages(files), "meta/Index.md"]):
        for target in naive_links((root / path).read_text()):
            yield path, target, *naive_resolve(files, target)


# Any store


def some_text(draw: random.Random) -> str:
    """What might stand in a page; code is in every second one."""
    atoms = PLAIN + CODE * (draw.random() < 0.5)
    parts = range(draw.randrange(14))
    return "".join(some_link(draw) if draw.random() < 0.5 else draw.choice(atoms) for _ in parts)


def some_link(draw: random.Random) -> str:
    return f"[[{some_title(draw)}{draw.choice(('', '', '|text', '#part', '#part|text'))}]]"


def some_title(draw: random.Random) -> str:
    name, folder = draw.choice((*NAMES, "Nobody")), draw.choice(FOLDERS)
    path = f"{folder}/{name}" if folder and draw.random() < 0.6 else name
    before = draw.choice(("", "", "", "", " ", "../", "/"))
    return f"{before}{path}{draw.choice(('', '', '.md', ' '))}"


def some_store(draw: random.Random, root: Path) -> None:
    files: dict[str, str | bytes] = {"meta/Index.md": page(some_text(draw))}
    for _ in range(draw.randrange(MOST_FILES)):
        folder, name = draw.choice(FOLDERS), draw.choice(NAMES)
        text = some_text(draw)
        files[f"{folder}/{name}.md".lstrip("/")] = page(text) if draw.random() < 0.8 else text
    made(root, files)


def outcome(found: str | Unresolved) -> tuple[str, tuple[str, ...]]:
    return ("found", (found,)) if isinstance(found, str) else (found.reason, found.paths)


@pytest.mark.quick("0")
@pytest.mark.parametrize("part", range(PARTS))
def test_any_store_means_what_a_second_reader_says(tmp_path: Path, part: int) -> None:
    """W-011 to W-018, W-043 to W-045: by 500 random stores, for all titles in each and some that are not."""
    for n in range(part, STORES, PARTS):
        draw, root = random.Random(n), tmp_path / str(n)
        some_store(draw, root)
        store = WikiStore(root)
        files, graph = naive_files(root), store.graph()
        pages = naive_pages(files)
        assert set(store.pages()) == {*pages, "meta/Index.md"}, n
        for path, each in store.pages().items():
            assert list(each.links) == naive_links((root / path).read_text()), (n, path)
        links = [*naive_linking(root, files)]
        titles = {each for path in files for each in (path, path[:-3], Path(path).stem)}
        for title in sorted(titles | {some_title(draw) for _ in range(20)}):
            for raw in (False, True):
                found = outcome(store.resolve(title, raw=raw))
                assert found == naive_resolve(files, title, raw=raw), (n, title, raw)
        for path in files:
            linking = sorted({page for page, _, _, paths in links if paths == (path,)})
            assert list(graph.backlinks(path)) == linking, (n, path)
        known = {paths for page, _, what, paths in links if what == "found" and (page,) != paths}
        assert list(graph.orphans) == [path for path in pages if (path,) not in known], n
        assert [(each.page, each.target, each.why.reason) for each in graph.broken] == [
            (page, target, what) for page, target, what, _ in links if what != "found"
        ], n
