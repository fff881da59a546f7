"""Wiki: pages that link to each other, in a folder that people edit as well.

    meta/        Index.md, conversations.json, system-runtime.md
    semantic/    lasting knowledge       episodic/       events of a day
    sleep/       records of jobs         episodic-raw/   conversations, word for word

The files are the truth. Everything in memory is checked against them at each use, and changed files are read
again.
"""

import asyncio
import errno
import json
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path, PurePosixPath
from sys import intern

from wintermute.errors import FileUnusable, StoreMissing, StoreUnusable
from wintermute.files import folder_of
from wintermute.wiki.folder import StoreFolder, content_in, disk_errors
from wintermute.wiki.graph import LinkGraph, WikiProblem
from wintermute.wiki.links import (
    BY_PATH_ONLY,
    CONVERSATIONS,
    DEEPEST,
    ENDING,
    INDEX,
    JOBS,
    META,
    NEAREST,
    OUTSIDE,
    PAGE_FOLDERS,
    RAW,
    Names,
    Presence,
    Unresolved,
    is_name,
    is_page,
    legible,
    links_in,
    name_of,
    resolve,
    target_of,
)
from wintermute.wiki.pages import (
    FRESH_INDEX,
    MOST_INDEX_LINES,
    WikiPage,
    page_text,
    read_page,
    text_of,
    without_matter,
)
from wintermute.wiki.recall import RecalledPage, ambiguous, not_found, out_of_order
from wintermute.wiki.search import WikiHit, line_with, ranked, weights, words_of
from wintermute.wiki.verdict import shortest_link
from wintermute.wiki.withheld_lines import withheld_lines, without_withheld

FOLDERS = (*PAGE_FOLDERS, RAW, JOBS, META)
LISTED = f"{META}/conversations.json"
SNAPSHOT = f"{META}/system-runtime.md"
OLD_INDEX = "index.md"
UNTITLED = (JOBS, *BY_PATH_ONLY)
SETTLED = 100_000_000
"""Nanoseconds after which a file's time shows if it was written again, since clocks tick in steps."""

GONE = (errno.ENOENT, errno.ENOTDIR)

UNSETTLED = (-1, 0, 0)
Stamped = tuple[tuple[int, int, int], WikiPage | None]
"""Page with time, size and inode of its file when it was read; None: the file is gone."""


@dataclass(frozen=True, slots=True)
class _Listing:
    """Content of a folder at `mtime`: Markdown files, folders, and entries that are not read."""

    mtime: int
    files: tuple[str, ...]
    folders: tuple[str, ...]
    odd: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Tree:
    """Markdown files that have titles, and entries among them that are not read, with the reason.

    `pages`: names of pages and of the index, by folder.
    """

    names: Names
    odd: dict[str, str]
    pages: dict[str, tuple[str, ...]]


class WikiStore:
    """Wiki in one folder. Its methods block, at most for the time to read every page."""

    def __init__(self, root: Path) -> None:
        self.files = StoreFolder(root)
        self._listings: dict[str, _Listing] = {}
        self._tree = _tree({})
        self._stamped: dict[str, dict[str, Stamped]] = {}
        self._pages: Mapping[str, WikiPage] = {}
        self._graph = LinkGraph(self._pages, self._tree.names, self.files.presence)
        self._lock = threading.RLock()

    @property
    def root(self) -> Path:
        """Folder of the wiki."""
        return self.files.root

    @property
    def exists(self) -> bool:
        """True if there is a store, which means an index (W-005)."""
        return self.files.presence(INDEX) == "file"

    @property
    def has_two_indexes(self) -> bool:
        """True if an old index exists beside the one in use (W-006)."""
        return self.files.presence(OLD_INDEX) == "file" and self.exists

    def init(self, today: date, runtime_prompt: str) -> dict[str, bool]:
        """Create missing files and folders; return each path, True if it is new (W-001 to W-004).

        Raises: StoreUnusable if it cannot be written.
        """
        files = {
            LISTED: "[]",
            SNAPSHOT: runtime_prompt,
            INDEX: page_text(today, today, f"# Index\n\n{FRESH_INDEX}"),
        }
        with disk_errors(self.root):
            self.root.mkdir(parents=True, exist_ok=True)
            made = {f"{name}/": self.files.make_folder(name) for name in FOLDERS}
        with self.files.writing():
            moved = self._move_old_index()
            for path, text in files.items():
                made[path] = moved and path == INDEX
                if self.files.presence(path) == "none":
                    self.files.put(path, text)
                    made[path] = True
        return made

    def _move_old_index(self) -> bool:
        """Move the index of an old store to its new place (W-006)."""
        if self.files.presence(OLD_INDEX) != "file" or self.files.presence(INDEX) != "none":
            return False
        with folder_of(self.root, ("",)) as top, folder_of(self.root, (META, "")) as meta:
            os.rename(OLD_INDEX, "Index.md", src_dir_fd=top, dst_dir_fd=meta)
            os.fsync(meta)
        return True

    def resolve(self, title: str, *, raw: bool = False) -> str | Unresolved:
        """Return the path that a title refers to. `raw`: raw conversations have titles, too (W-018)."""
        tree = _tree(self._walk((JOBS, CONVERSATIONS))) if raw else self.tree()
        return resolve(title, tree.names, self.files.presence)

    def tree(self) -> Tree:
        """Return all files with titles now. Only folders that changed are read again."""
        with self._lock:
            listings = self._walk(UNTITLED)
            if listings != self._listings:
                self._tree = _tree(listings)
            self._listings = listings
            return self._tree

    def _walk(self, without: Sequence[str] = (), *, top: str = "") -> dict[str, _Listing]:
        listings: dict[str, _Listing] = {}
        remaining = [top]
        while remaining:
            folder = remaining.pop()
            listings[folder] = self._list_folder(folder)
            inner = (_joined(folder, name) for name in listings[folder].folders)
            remaining += [each for each in inner if each not in without]
        return listings

    def _list_folder(self, folder: str) -> _Listing:
        """Return the entries of a folder, from the cache if it did not change."""
        now = time.time_ns()
        try:
            with folder_of(self.root, [*_parts(folder), ""]) as opened:
                mtime = os.fstat(opened).st_mtime_ns
                known = self._listings.get(folder)
                if known is not None and known.mtime == mtime:
                    return known
                with os.scandir(opened) as entries:
                    found = _listing(mtime if now - mtime > SETTLED else -1, entries)
        except OSError as error:
            why = () if error.errno in GONE else (("", f"cannot be read: {error.strerror}"),)
            return _Listing(-1, (), (), why)
        if len(_parts(folder)) + 1 < DEEPEST:
            return found
        deep = tuple((name, f"is the {DEEPEST}th folder in another") for name in found.folders)
        return replace(found, folders=(), odd=(*found.odd, *deep))

    def pages(self) -> Mapping[str, WikiPage]:
        """Return every page and the index as they are now. Only changed files are read again."""
        with self._lock:
            wanted = self.tree().pages
            stamped = {folder: self._pages_in(folder, names) for folder, names in wanted.items()}
            if stamped != self._stamped:
                self._stamped = stamped
                self._pages = {
                    intern(f"{folder}/{name}"): page
                    for folder, pages in stamped.items()
                    for name, (_, page) in pages.items()
                    if page is not None
                }
            return self._pages

    def _pages_in(self, folder: str, names: Sequence[str]) -> dict[str, Stamped]:
        known = self._stamped.get(folder, {})
        try:
            with folder_of(self.root, [*_parts(folder), ""]) as opened:
                return {name: _page(opened, name, known.get(name)) for name in names}
        except OSError:  # the folder was removed meanwhile
            return {}

    def graph(self) -> LinkGraph:
        """Return the current graph of links."""
        with self._lock:
            pages, names = self.pages(), self._tree.names
            if not self._graph.is_of(pages, names):
                self._graph = LinkGraph(pages, names, self.files.presence)
            return self._graph

    def search(self, question: str, most: int) -> tuple[WikiHit, ...]:
        """Return pages with these words, and pages linked with them; the best first."""
        words, linked = words_of(question), self.graph().linked
        found = {path: each for path, text in self._texts() if (each := weights(words, path, text))}
        hits = ranked(found, len(linked), linked, most)
        return tuple(replace(hit, line=line_with(words, self._page_text(hit.path))) for hit in hits)

    def _page_text(self, path: str) -> str:
        with suppress(FileUnusable):
            return _text(self.files.content(path) or b"")
        return ""

    def _texts(self) -> Iterator[tuple[str, str]]:
        for folder, names in self.tree().pages.items():
            with suppress(OSError), folder_of(self.root, [*_parts(folder), ""]) as opened:
                pages = (name for name in names if is_page(f"{folder}/{name}"))
                yield from ((f"{folder}/{name}", _text_in(opened, name)) for name in pages)

    def problems(self) -> tuple[WikiProblem, ...]:
        """Return the problems of pages, and entries that are not read (W-051, W-077)."""
        problems = self.graph().problems(self.tree().odd | self._odd_records())
        if not self.has_two_indexes:
            return problems
        note = f"{OLD_INDEX} is not used beside {INDEX}: take over what you need, and delete it"
        return (*problems, WikiProblem("two indexes", OLD_INDEX, "", note))

    def _odd_records(self) -> dict[str, str]:
        """Return entries among conversations and jobs that are no plain files."""
        odd: dict[str, str] = {}
        for top in UNTITLED:
            for at, listing in self._walk(top=top).items():
                odd |= {_joined(at, name): why for name, why in listing.odd}
        return odd

    async def recalled(self, title: str) -> RecalledPage | str:
        """Return the page for a title, or the notice for the model (W-028, W-029)."""
        return await asyncio.to_thread(self._recall, title)

    def _recall(self, title: str) -> RecalledPage | str:
        try:
            with self.files.reading():
                return self._look_up(title)
        except StoreMissing:
            return not_found(title, ())
        except StoreUnusable:  # an interrupted write cannot be finished: `wiki check` says why
            return out_of_order()

    def _look_up(self, title: str) -> RecalledPage | str:
        names = self.tree().names
        found = resolve(title, names, _hidden, near=False)
        if isinstance(found, Unresolved):
            found = resolve(target_of(title.strip().strip("[]")), names, _hidden, near=False)
        try:
            if isinstance(found, str):
                text = self.shown(text_of(self.files.content(found) or b""))
                return RecalledPage(found, text, self.is_outside(found, text))
        except FileUnusable:
            found = Unresolved("missing", title)
        if found.reason == "ambiguous":
            return ambiguous(title, found.paths)
        nearest = names.like(name_of(title.strip()))
        if sum(map(is_page, names.paths)) > MOST_INDEX_LINES:  # more than the index shows (W-080)
            hits = (shortest_link(names, hit.path) for hit in self.search(title, NEAREST))
            nearest = tuple(dict.fromkeys((*names.near(title), *hits, *nearest)))[:NEAREST]
        return not_found(title, nearest)

    def is_outside(self, path: str, text: str = "") -> bool:
        """Check if a page was made of a conversation with untrusted text, or cites one.

        `path` may also be the raw copy of a conversation.
        """
        plain = (str(PurePosixPath(link)) for link in links_in(text))
        cited = {link.rpartition("/")[0] for link in plain if link.startswith(f"{RAW}/")}
        try:
            listed = json.loads(self.files.exact_text(OUTSIDE))
        except FileNotFoundError:
            return False
        except (FileUnusable, ValueError, RecursionError):
            return True  # unknown counts as untrusted
        return not isinstance(listed, list) or not {path, *cited}.isdisjoint(map(str, listed))

    def shown(self, text: str) -> str:
        """Return a page as a model may see it: without lines that have an open question (M-082)."""
        return without_withheld(text, withheld_lines(self.files))

    async def has_pages(self) -> bool:
        """Check if there is a page besides the index (W-022)."""
        return await asyncio.to_thread(lambda: self.exists and self.tree().names.has_pages)

    async def index_text(self) -> str | None:
        """Return the current index; None if there is none that can be read."""
        return await asyncio.to_thread(self._index_text)

    def _index_text(self) -> str | None:
        try:
            with self.files.reading():
                return self.shown(text_of(self.files.content(INDEX) or b""))
        except (FileUnusable, StoreMissing, StoreUnusable):
            return None


def _hidden(_path: str) -> Presence:
    """Hide paths without a title from models: raw copies, jobs, special files (W-018)."""
    return "none"


def _parts(folder: str) -> list[str]:
    return folder.split("/") if folder else []


def _joined(folder: str, name: str) -> str:
    return intern(f"{folder}/{name}" if folder else name)


def _tree(listings: Mapping[str, _Listing]) -> Tree:
    pages = {at: each.files for at, each in listings.items() if at.split("/")[0] in PAGE_FOLDERS}
    names = Names(_joined(at, name) for at, each in listings.items() for name in each.files)
    if INDEX in names.paths:
        pages[META] = (INDEX.removeprefix(f"{META}/"),)
    odd = {_joined(at, name): why for at, each in listings.items() for name, why in each.odd}
    return Tree(names, odd, pages)


def _listing(mtime: int, entries: "Iterator[os.DirEntry[str]]") -> _Listing:
    files: list[str] = []
    folders: list[str] = []
    odd: list[tuple[str, str]] = []
    for entry in entries:
        if entry.name.startswith("."):
            continue
        if not is_name(entry.name):
            odd.append((legible(entry.name), "has a name that cannot be typed: not read"))
        elif entry.is_symlink():
            odd.append((entry.name, "is a link: not followed"))
        elif entry.is_dir(follow_symlinks=False):
            folders.append(entry.name)
        elif not entry.is_file(follow_symlinks=False):
            odd.append((entry.name, "is no plain file: not opened"))
        elif entry.name.endswith(ENDING):
            files.append(entry.name)
        elif entry.name.lower().endswith(ENDING):
            odd.append((entry.name, f"does not end in {ENDING}: rename it"))
    return _Listing(mtime, tuple(files), tuple(folders), tuple(odd))


def _page(folder: int, name: str, known: Stamped | None) -> Stamped:
    """Read a page, or return the known one if its file did not change."""
    try:
        seen = os.stat(name, dir_fd=folder, follow_symlinks=False)
        stamp = (seen.st_mtime_ns, seen.st_size, seen.st_ino)
        if known is not None and known[0] == stamp:
            return known
        settled = time.time_ns() - seen.st_mtime_ns > SETTLED  # computed before the file is read
        return (stamp if settled else UNSETTLED, read_page(content_in(folder, name)))
    except FileNotFoundError:
        return (UNSETTLED, None)
    except OSError as error:
        return (UNSETTLED, WikiPage(unusable=f"cannot be read: {error.strerror}"))
    except FileUnusable as problem:
        return (UNSETTLED, WikiPage(unusable=str(problem)))


def _text_in(folder: int, name: str) -> str:
    with suppress(OSError, FileUnusable):
        return _text(content_in(folder, name))
    return ""


def _text(content: bytes) -> str:
    return without_matter(text_of(content))
