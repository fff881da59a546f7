"""Forgetting reaches the wiki: raw copies, conversations, what jobs kept, and lines of pages.

Each file is put in place of what it was; whatever ends this half way, it is done again (M-030).
"""

import asyncio
import json
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from wintermute.db.traces import ERASED, Wanted
from wintermute.errors import FileUnusable
from wintermute.memory.core import goes_with
from wintermute.stores import Stores
from wintermute.wiki.folder import PART, StoreFolder
from wintermute.wiki.links import CONVERSATIONS, ENDING, JOBS, RAW, is_page, links_in, name_of
from wintermute.wiki.pages import without_matter
from wintermute.wiki.store import WikiStore

CONSOLIDATE_AGAIN = "page again"
"""Jobs that nights do: a page is made anew from the conversations that it still cites."""
GONE = "[this message was erased]"
UNSOURCED = "nothing of what it was made of is left"
RECORDS = (RAW, CONVERSATIONS, JOBS)
TEXTS = (ENDING, ".json", ".txt", ".patch")
GIT = ".git"
YOUNG = 60_000_000_000
"""Nanoseconds; to write a file takes far less."""


@dataclass(frozen=True, slots=True)
class Unsaid:
    """What is forgotten: texts, the facts among them, and files that are messages of it."""

    texts: Sequence[str]
    facts: Sequence[str]
    files: Collection[str] = ()


@dataclass(frozen=True, slots=True)
class CutPages:
    """What became of it. `unsourced`: pages that cite nothing else; `again`: those to be made anew.

    `named`: what still says it and is a person's to change.
    """

    files: int = 0
    unsourced: tuple[str, ...] = ()
    again: tuple[str, ...] = ()
    named: tuple[str, ...] = ()


async def forget_in_pages(stores: Stores, unsaid: Unsaid, *, at: str) -> CutPages:
    """Erase it from the owner's wiki; pages that lost their source wait for the next night.

    `at`: tells this forgetting from others. Raises: StoreUnusable.
    """
    if not unsaid.texts and not unsaid.files:
        return CutPages()
    done = await asyncio.to_thread(_cut, stores.wiki, unsaid)
    scope = stores.owner.scope
    async with stores.database.transaction() as tx:
        for path in done.unsourced:
            await stores.proposals.offer(tx, scope, "page", "", UNSOURCED, path)
        for path in done.again:
            key = f"{path} {at}"
            await stores.jobs.enqueue(tx, CONSOLIDATE_AGAIN, key, scope, {"page": path})
    return done


def _cut(wiki: WikiStore, unsaid: Unsaid) -> CutPages:
    files, wanted = wiki.files, Wanted(unsaid.texts)
    if not wiki.exists:
        return CutPages()
    with files.writing():
        _drop_parts(wiki)
        touched = set[str]()
        for path in _records(wiki):
            if _cut_record(files, path, wanted, erased=path in unsaid.files):
                touched.add(path)
        raw = {path.rpartition("/")[0] for path in touched if path.startswith(f"{RAW}/")}
        linked = wiki.graph().linked
        changed = {path for path in linked if _cut_page(files, path, wanted, unsaid.facts)}
        sources = {path: _sources(found) for path, found in linked.items() if is_page(path)}
        losing = [path for path, found in sources.items() if path in changed or found & raw]
        speaking = {folder: _speaks(files, folder) for path in losing for folder in sources[path]}
        unsourced = [
            path for path in losing if sources[path] and not any(map(speaking.get, sources[path]))
        ]
    named = [path for path in linked if wanted.is_in(name_of(path))]
    git = [str(wiki.root / GIT)] if changed | touched and (wiki.root / GIT).exists() else []
    return CutPages(
        len(touched | changed),
        tuple(sorted(unsourced)),
        tuple(sorted(set(losing) - set(unsourced))),
        (*(str(wiki.root / path) for path in sorted(named)), *git),
    )


def _drop_parts(wiki: WikiStore) -> None:
    """Remove what a kill left half written; a young one is being written just now."""
    before = time.time_ns() - YOUNG
    for path in wiki.root.rglob(f"{PART}*"):
        with suppress(OSError):
            if path.is_file() and path.lstat().st_mtime_ns < before:
                path.unlink()


def _records(wiki: WikiStore) -> Iterator[str]:
    """The files of conversations and jobs, as paths in the store."""
    for top in RECORDS:
        for path in sorted((wiki.root / top).rglob("*")):
            if path.name.endswith(TEXTS) or top == JOBS:
                yield path.relative_to(wiki.root).as_posix()


def _cut_record(files: StoreFolder, path: str, wanted: Wanted, *, erased: bool) -> bool:
    """Whether there was anything to cut out of a file."""
    try:
        content = files.content(path)
    except FileUnusable:
        return False
    if content is None:
        return False
    if erased:
        files.put(path, f"{GONE}\n")
        return content.decode(errors="replace").strip() != GONE
    if not wanted.said_in(content):
        return False
    files.put(
        path, _without(content.decode(errors="replace"), wanted, is_json=path.endswith(".json"))
    )
    return True


def _without(text: str, wanted: Wanted, *, is_json: bool) -> str:
    if is_json:
        with suppress(ValueError, RecursionError):
            value = wanted.cut_all(json.loads(text), ERASED)
            return json.dumps(value, ensure_ascii=False, indent=1) + "\n"
    return wanted.cut(text, ERASED)


def _cut_page(files: StoreFolder, path: str, wanted: Wanted, facts: Sequence[str]) -> bool:
    """Whether a page said it, in a line that went, or over several."""
    try:
        text = files.exact(path)
    except (FileUnusable, FileNotFoundError):
        return False
    written = _written(files, path)
    left = without_lines(text, wanted, facts, written)
    if left == text:
        return False
    files.put(path, left)
    return True


def _written(files: StoreFolder, path: str) -> frozenset[str]:
    """The lines of a page that we wrote."""
    with suppress(FileUnusable, FileNotFoundError):
        return frozenset(files.exact(f"{JOBS}/written/{path}").splitlines())
    return frozenset()


def without_lines(text: str, wanted: Wanted, facts: Sequence[str], written: Collection[str]) -> str:
    """A page without the lines that say it; of one that links to pages, the links stay.

    `written`: the lines that no person wrote.
    """
    body = without_matter(text)
    head = text[: len(text) - len(body)]
    kept = []
    for line in body.splitlines(keepends=True):
        said = line.strip().lstrip("-*+>#0123456789. \t")
        if said and (
            wanted.is_in(said) or goes_with(said, facts, ours=line.rstrip("\n") in written)
        ):
            links = [f"[[{target}]]" for target in links_in(line)]
            kept += [f"- {' '.join(links)}\n"] if links else []
        else:
            kept.append(line)
    left = "".join(kept)
    return head + (wanted.cut(left, ERASED) if wanted.is_in(left) else left)


def _sources(linked: Collection[str]) -> frozenset[str]:
    """The raw conversations that a page cites."""
    return frozenset(path.rpartition("/")[0] for path in linked if path.startswith(f"{RAW}/"))


def _speaks(files: StoreFolder, folder: str) -> bool:
    """Whether a raw conversation still says anything."""
    with suppress(OSError):
        paths = (
            path.relative_to(files.root).as_posix() for path in (files.root / folder).iterdir()
        )
        return any(_says(files, path) for path in paths)
    return False


def _says(files: StoreFolder, path: str) -> bool:
    try:
        text = files.exact(path)
    except (FileUnusable, FileNotFoundError):
        return False
    return text.strip() not in ("", GONE, ERASED)
