"""Forgetting in the wiki: raw copies, conversations, job files, and lines of pages.

    search ─▶ jobs and questions about pages are stored ─▶ files are replaced

After an interruption it starts again (M-030).
"""

import asyncio
import json
import os
import re
import unicodedata
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path

from wintermute.changes.decisions import text_proposal
from wintermute.db.text_match import ERASED, AllWordsMatcher, TextMatcher
from wintermute.errors import FileUnusable, StoreUnusable
from wintermute.files import restore_saves
from wintermute.memory.core import is_forgotten_with
from wintermute.memory.lexical_overlap import beginnings, says_something
from wintermute.pages.agents import REPORT, sweep_copies
from wintermute.pages.page_lines import NOTHING_LOST, LostLines, pages_of, remaining_links
from wintermute.stores import Stores
from wintermute.wiki.conversations import listed
from wintermute.wiki.folder import StoreFolder
from wintermute.wiki.links import CONVERSATIONS, JOBS, LINK, RAW, is_page, name_of
from wintermute.wiki.page_jobs import written_lines
from wintermute.wiki.pages import without_matter
from wintermute.wiki.store import WikiStore
from wintermute.wiki.withheld_lines import digest, update_withheld

CONSOLIDATE_AGAIN = "page again"
"""Jobs of a night: a page is made anew from the conversations that it still cites."""
GONE = "[this message was erased]"
UNSOURCED = "all its sources were erased"
RECORDS = (RAW, CONVERSATIONS, JOBS)
SAYS = "\n## What "
"""Heading before an agent's words in a report of its work."""
GIT = ".git"
LEADING_LINK = re.compile(r"^\[\[[^\[\]\n]*\]\]:?\s*")
SETTLED_AFTER = 60.0
"""Seconds; writing a file takes far less."""
AT_ONCE = 500
"""Files that are searched together: most need no closer look."""

Edit = Callable[[str], str]
"""Returns the new text of a file."""
Contents = Iterator[tuple[str, bytes]]


@dataclass(frozen=True, slots=True)
class ErasedTexts:
    """The texts to erase, the facts among them, and files that are copies of the messages."""

    texts: Sequence[str]
    facts: Sequence[str]
    files: Collection[str] = ()
    lost: LostLines = NOTHING_LOST


@dataclass(frozen=True, slots=True)
class CutPages:
    """The cuts. `edits`: by path. `unsourced`: pages that cite nothing else; `again`: pages to be made anew.

    `named`: files that still contain it and that a person must change.
    """

    edits: dict[str, Edit] = field(default_factory=dict)
    unsourced: tuple[str, ...] = ()
    again: tuple[str, ...] = ()
    named: tuple[str, ...] = ()


async def lines_in_pages(stores: Stores, facts: Sequence[str] = (), words: str = "") -> list[str]:
    """Return page lines that have all of these words, and lines of ours that a fact covers.

    Lines of links alone do not count.
    """
    wanted = AllWordsMatcher(words)
    if not facts and not wanted.words:
        return []
    return await asyncio.to_thread(_lines_that_say, stores.wiki, facts, wanted)


async def forget_in_pages(stores: Stores, unsaid: ErasedTexts, *, at: str) -> CutPages:
    """Erase it from the owner's wiki; pages that lost their source wait for the next night.

    `at`: an id of this forgetting. Raises: StoreUnusable.
    """
    if not unsaid.texts and not unsaid.files and unsaid.lost == NOTHING_LOST:
        return CutPages()
    found = await asyncio.to_thread(_plan, stores.wiki, unsaid)
    await asyncio.to_thread(sweep_copies)
    scope = stores.owner.scope
    # First: after the cut these pages could not be found again.
    async with stores.database.transaction() as tx:
        for path in found.unsourced:
            await stores.decisions.propose(tx, scope, text_proposal("page", path, None, UNSOURCED))
        for path in found.again:
            key = f"{path} {at}"
            await stores.jobs.enqueue(tx, CONSOLIDATE_AGAIN, key, scope, {"page": path})
    if found.edits or unsaid.lost.asked:
        await asyncio.to_thread(_cut, stores.wiki.files, found, unsaid.lost)
    return found


def _lines_that_say(wiki: WikiStore, facts: Sequence[str], wanted: AllWordsMatcher) -> list[str]:
    if not wiki.exists:
        return []
    stems, found = _stems(facts), list[str]()
    with wiki.files.reading():
        for batch in _batches(_contents(wiki.files, pages_of(wiki))):
            worded = {*wanted.among([content for _, content in batch])}
            for n, (path, content) in enumerate(batch):
                ours = written_lines(wiki.files, path) if _has_one(content, stems) else ()
                seen = content if ours or n in worded else b""
                for line in without_matter(_legible(seen)).splitlines():
                    is_worded = (
                        n in worded and wanted.are_in(line) and says_something(LINK.sub("", line))
                    )
                    if is_worded or (
                        _is_ours(line, ours) and is_forgotten_with(_said(line), facts, ours=True)
                    ):
                        found.append(_said(line))
    return found


def _plan(wiki: WikiStore, unsaid: ErasedTexts) -> CutPages:
    """Find the files that contain it, and plan the edits."""
    if not wiki.exists:
        return CutPages()
    files, wanted, lost = wiki.files, TextMatcher(unsaid.texts), unsaid.lost
    with files.reading():
        for at, _, _ in os.walk(wiki.root):
            restore_saves(Path(at), SETTLED_AFTER)
        edits = _of_records(wiki, unsaid) | _of_jobs(wiki, lost.jobs)
        raw = {path.rpartition("/")[0] for path in (*edits, *unsaid.files) if _is_raw(path)}
        pages = _of_pages(wiki, wanted, unsaid.facts, lost)
        others = wiki.tree().names.paths - {*pages_of(wiki)}
        named = [path for path in pages_of(wiki) if wanted.is_in(name_of(path))]
        named += [path for path, _ in _saying(_contents(files, sorted(others)), wanted)]
        named += _elsewhere(wiki, wanted)
        odd = [path for path in (*pages, *edits) if not _is_editable(files, path)]
        named += [path for path in odd if pages.pop(path, None) or edits.pop(path, None)]
        unsourced, again = _losing(wiki, {*pages}, raw, edits) if pages or raw else ((), ())
    edits |= pages  # last: after a crash the pages still show what to cut
    above = (folder / GIT for folder in (wiki.root, *wiki.root.resolve().parents))
    git = [str(path) for path in above if edits and path.exists()][:1]
    return CutPages(edits, unsourced, again, (*(str(wiki.root / path) for path in named), *git))


def _elsewhere(wiki: WikiStore, wanted: TextMatcher) -> Iterator[str]:
    """Yield listed conversations outside the store that contain it: they belong to a person."""
    with suppress(StoreUnusable):
        for path in filter(os.path.isabs, listed(wiki.files)):
            with suppress(OSError, ValueError):
                files = StoreFolder(Path(path))
                names = [each.name for each in sorted(files.root.iterdir())]
                yield from (
                    f"{path}/{name}" for name, _ in _saying(_contents(files, names), wanted)
                )


def _legible(content: bytes) -> str:
    """Decode a file as far as possible."""
    with suppress(FileUnusable):
        return _decoded(content)[0]
    return content.decode(errors="replace")


def _is_editable(files: StoreFolder, path: str) -> bool:
    with suppress(FileUnusable):
        _decoded(files.content(path) or b"")
        return True
    return False


def _losing(
    wiki: WikiStore, changed: Collection[str], raw: Collection[str], edits: dict[str, Edit]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the pages that lose something: those that cite nothing else, and the others."""
    linked = {path: found for path, found in wiki.graph().linked.items() if is_page(path)}
    sources = {path: _sources(found) for path, found in linked.items()}
    losing = sorted(path for path, of in sources.items() if path in changed or of & {*raw})
    has_text = {of: _has_text(wiki.files, of, edits) for path in losing for of in sources[path]}
    left = {path for path in losing if not sources[path] or any(map(has_text.get, sources[path]))}
    return tuple(path for path in losing if path not in left), tuple(sorted(left))


def _cut(files: StoreFolder, found: CutPages, lost: LostLines) -> None:
    with files.writing():
        update_withheld(files, lost.asked, lost.anywhere)
        for path, edit in found.edits.items():
            with suppress(FileUnusable):
                while not _is_cut(files, path, edit):  # somebody saved it meanwhile
                    pass


def _is_cut(files: StoreFolder, path: str, edit: Edit) -> bool:
    """Cut a file, and return False if somebody saved it meanwhile. Raises: FileUnusable."""
    content = files.content(path)
    if content is None:
        return True
    text, encoding = _decoded(content)
    left = edit(text)
    return left == text or files.replace_if_unchanged(path, content, left.encode(encoding))


def _decoded(content: bytes) -> tuple[str, str]:
    """Decode a text with the encoding for writing it again. Raises: FileUnusable."""
    encoding = "utf-16" if content.startswith((BOM_UTF16_LE, BOM_UTF16_BE)) else "utf-8"
    try:
        return content.decode(encoding), encoding
    except UnicodeDecodeError as error:
        raise FileUnusable("is no text that can be written again") from error


def _of_records(wiki: WikiStore, unsaid: ErasedTexts) -> dict[str, Edit]:
    edits: dict[str, Edit] = {}
    for top in RECORDS:
        wanted = TextMatcher([*unsaid.texts, *(unsaid.lost.texts if top == JOBS else ())])
        paths = (
            each.relative_to(wiki.root).as_posix() for each in sorted((wiki.root / top).rglob("*"))
        )
        without = partial(_record_without, wanted=wanted, lost=unsaid.lost)
        found = _saying(_contents(wiki.files, paths), wanted)
        edits |= {path: partial(without, path=path) for path, _ in found}
    return edits | {p: _erased for p in unsaid.files if wiki.files.presence(p) == "file"}


def _erased(_text: str) -> str:
    return f"{GONE}\n"


def _record_without(text: str, wanted: TextMatcher, lost: LostLines, path: str) -> str:
    if path.endswith(".json"):
        with suppress(ValueError, RecursionError, KeyError, TypeError, AttributeError):
            value = json.loads(text)
            if Path(path).name == "changes.json":  # cut like the pages, so that an undo still fits
                for each in value:
                    states = {name: each[name] for name in ("before", "after") if each[name]}
                    each |= {name: lost.cut(each["path"], said) for name, said in states.items()}
            value = wanted.cut_all(value, ERASED)
            return json.dumps(value, ensure_ascii=False, indent=1) + "\n"
    return wanted.cut(text, ERASED)


def _of_jobs(wiki: WikiStore, jobs: Collection[str]) -> dict[str, Edit]:
    """Return edits that drop the words of agents that were shown it, as they may have rephrased it."""
    edits: dict[str, Edit] = {}
    for job in jobs:
        edits |= {f"{JOBS}/{job}/agent.{each}.txt": _erased for each in ("stdout", "stderr")}
        edits[f"{JOBS}/{job}/{REPORT}"] = lambda text: text.partition(SAYS)[0]
    return {path: edit for path, edit in edits.items() if wiki.files.presence(path) == "file"}


def _of_pages(
    wiki: WikiStore, wanted: TextMatcher, facts: Sequence[str], lost: LostLines
) -> dict[str, Edit]:
    stems, cut = _stems(facts), {path for path, _ in lost.known}
    edits: dict[str, Edit] = {}
    for batch in _batches(_contents(wiki.files, pages_of(wiki))):
        said = {*wanted.among([content for _, content in batch])}
        for n, (path, content) in enumerate(batch):
            text = _legible(content) if lost.anywhere or path in cut else ""
            gone = any(lost.is_lost(path, line) for line in text.splitlines())
            if n in said or gone or _has_one(content, stems):
                ours = written_lines(wiki.files, path)
                edit = partial(without_lines, wanted=wanted, facts=facts, written=ours)
                edit = partial(edit, goes=partial(lost.is_lost, path), asked=lost.asked)
                text = _legible(content)
                if edit(text) != text:
                    edits[path] = edit
    return edits


def _contents(files: StoreFolder, paths: Collection[str] | Iterator[str]) -> Contents:
    for path in paths:
        with suppress(FileUnusable):
            content = files.content(path)
            if content is not None and content.startswith((BOM_UTF16_LE, BOM_UTF16_BE)):
                content = _legible(content).encode()
            if content is not None:
                yield path, content


def _saying(contents: Contents, wanted: TextMatcher | AllWordsMatcher) -> Contents:
    for batch in _batches(contents):
        for n in wanted.among([content for _, content in batch]):
            yield batch[n]


def _batches(contents: Contents) -> Iterator[list[tuple[str, bytes]]]:
    while batch := list(islice(contents, AT_ONCE)):
        yield batch


def _stems(facts: Sequence[str]) -> list[bytes]:
    """Return the word beginnings that any text covered by one of these facts has."""
    return [stem.encode() for stem in sorted({stem for fact in facts for stem in beginnings(fact)})]


def _has_one(content: bytes, stems: Sequence[bytes]) -> bool:
    if not stems:
        return False
    lower = content.lower()
    if not content.isascii():  # as `beginnings` writes them
        text = unicodedata.normalize("NFKC", _legible(content))
        lower = text.casefold().encode()
    return any(stem in lower for stem in stems)


def without_lines(
    text: str,
    wanted: TextMatcher,
    facts: Sequence[str],
    written: Collection[str],
    goes: Callable[[str], bool] = lambda _: False,
    asked: Collection[str] = (),
) -> str:
    """Return a page without the lines that contain it; a cut line keeps its links to pages.

    `written`: the lines that no person wrote, as `lines_of` returns them. `goes`: checks for lines derived from it.
    `asked`: digests of lines that only a person may remove.
    """
    body = without_matter(text)
    head = text[: len(text) - len(body)]
    kept: list[str] = []
    whole: list[str] = []
    for line in body.splitlines(keepends=True):
        if asked and digest(line) in asked:
            whole, kept = [*whole, _cut_within(kept, wanted), line], []
            continue
        said, ours = _said(line), _is_ours(line, written)
        texts = (said, LEADING_LINK.sub("", said))  # a line of the index repeats a page
        if goes(line) or (
            said
            and (wanted.is_in(said) or any(is_forgotten_with(t, facts, ours=ours) for t in texts))
        ):
            kept += [remaining_links(line)]
        else:
            kept.append(line)
    return "".join([head, *whole, _cut_within(kept, wanted)])


def _cut_within(lines: Sequence[str], wanted: TextMatcher) -> str:
    """Return lines without matches that span several of them."""
    left = "".join(lines)
    return wanted.cut(left, ERASED) if wanted.is_in(left) else left


def _said(line: str) -> str:
    return line.strip().lstrip("-*+>#0123456789. \t")


def _is_ours(line: str, written: Collection[str]) -> bool:
    return " ".join(line.split()) in written


def _is_raw(path: str) -> bool:
    return path.startswith(f"{RAW}/")


def _sources(linked: Collection[str]) -> frozenset[str]:
    """Return the raw conversations that a page cites."""
    return frozenset(path.rpartition("/")[0] for path in linked if _is_raw(path))


def _has_text(files: StoreFolder, folder: str, edits: dict[str, Edit]) -> bool:
    """Check whether a raw conversation has any text left after these edits."""
    with suppress(OSError):
        paths = [
            path.relative_to(files.root).as_posix() for path in (files.root / folder).iterdir()
        ]
        for path, content in _contents(files, paths):
            text = _legible(content)
            left = edits[path](text) if path in edits else text
            if left.strip() not in ("", GONE, ERASED):
                return True
    return False
