"""Origins of the lines of pages: the messages that each line came from (M-082).

    page of a model ─ [2, 5] behind a line ─▶ removed, checked ─▶ `page_lines`: path, line ─▶ messages
                                              forgotten messages ─▶ lines to delete, lines to ask about

A line is identified by its page and the digest of its text. If its page is gone, a person has renamed the page.
"""

import asyncio
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from wintermute.db import Row, Transaction
from wintermute.memory.lexical_overlap import beginnings
from wintermute.stores import Stores
from wintermute.wiki.folder import FileChange, StoreFolder
from wintermute.wiki.links import ENDING, INDEX, JOBS, fences, is_page, links_in, name_of
from wintermute.wiki.page_jobs import names_in, read_job, text_at, written_lines
from wintermute.wiki.store import WikiStore
from wintermute.wiki.verdict import lines_of, opening_line
from wintermute.wiki.withheld_lines import content_lines, digest, withheld_lines

MARK = r"[ \t]+\[\d{1,4}(?:[ \t]*,[ \t]*\d{1,4})*\](?:[ \t]*\[\d{1,4}\])*"
MARKS = re.compile(rf"(?<=[.!?]){MARK}(?=\s)|(?<=\S){MARK}(?=[ \t]*(?:[.!?|]|$))")
"""Numbers of messages that a model puts behind a line as its origins: `[2]`, `[2, 5]`, `[2][5]`."""
NUMBER = re.compile(r"\d+")
YEAR = 1000
DAY = re.compile(r"\A\[[^\n]*\]\n")
ANSWER = re.compile(r"^assistant: ", re.MULTILINE)
MOST_OTHERS = 2
"""Messages that may share a word; a more common word identifies none of them."""
SENTENCE_END = re.compile(r"[.!?\n]+\s*")
PATCHES = ("diff.patch", "proposed.patch")

KnownLine = tuple[str, str]
"""Path of a page, and the digest of a line there."""


@dataclass(frozen=True, slots=True)
class LineOrigin:
    """Messages that a line came from (empty: all of its job), and earlier lines of the same page."""

    events: frozenset[str] = frozenset()
    lines: frozenset[str] = frozenset()


LineOrigins = Mapping[str, LineOrigin]
"""Origins of the new lines of a page."""


@dataclass(frozen=True, slots=True)
class LostLines:
    """Lines that came from forgotten messages. `anywhere`: digests of lines to delete on any page.

    `texts`: their text. `asked`: people's lines that share words with them, by digest. `jobs`: jobs that saw
    the messages. `lines`: the lines to delete as they are in the file, by digest.
    """

    known: frozenset[KnownLine] = frozenset()
    anywhere: frozenset[str] = frozenset()
    texts: tuple[str, ...] = ()
    asked: dict[str, str] = field(default_factory=dict)
    jobs: tuple[str, ...] = ()
    lines: dict[str, str] = field(default_factory=dict)

    def is_lost(self, path: str, line: str) -> bool:
        """Decide if a line of a page is deleted."""
        name = digest(line)
        return name in self.anywhere or (path, name) in self.known

    def cut(self, path: str, text: str) -> str:
        """Return the text of a page without these lines; their links stay."""
        lines = text.splitlines(keepends=True)
        return "".join(
            remaining_links(line) if self.is_lost(path, line) else line for line in lines
        )


NOTHING_LOST = LostLines()


def remaining_links(line: str) -> str:
    """Return the links of a deleted line as a list entry; "" if it has none."""
    links = [f"[[{target}]]" for target in links_in(line)]
    return f"- {' '.join(links)}\n" if links else ""


def strip_marks(
    text: str, before: str, shown: Collection[int]
) -> tuple[str, dict[str, tuple[int, ...]]]:
    """Return a page without origin marks, and the numbers by line; lines from `before` keep theirs.

    A year in brackets is a mark only if that many messages were `shown`.
    """
    kept, coded = {*lines_of(before)}, list(fences(text))
    named: dict[str, tuple[int, ...]] = {}
    lines, at = list[str](), 0
    for line in text.splitlines(keepends=True):
        start, at = at, at + len(line)
        numbers = [int(n) for mark in MARKS.findall(line) for n in NUMBER.findall(mark)]
        stays = " ".join(line.split()) in kept or any(n >= YEAR and n not in shown for n in numbers)
        if numbers and not stays and not any(begin <= start < end for begin, end in coded):
            line = MARKS.sub("", line)
            said = " ".join(line.split())
            named[said] = (*named.get(said, ()), *numbers)
        lines.append(line)
    return "".join(lines), named


def find_origins(
    text: str,
    before: str,
    named: Mapping[str, Sequence[int]],
    shown: Mapping[int, tuple[str, Collection[str]]],
    earlier: LineOrigins,
) -> dict[str, LineOrigin]:
    """Find the origins of the lines that are new on a page, by their marks and by their words.

    `shown`: text and events by number. A word that is in none of the marked messages came from another message,
    or from an older line of the page. `earlier`: origins that this job found before.
    """
    words = {n: beginnings(ANSWER.split(DAY.sub("", said))[0]) for n, (said, _) in shown.items()}
    old = {line: beginnings(line) for line in content_lines(before)}
    found = dict(earlier)
    for line in (each for each in content_lines(text) if each not in old):
        marks = [n for n in named.get(line, ()) if n in shown]
        left = beginnings(line).difference(*(words[n] for n in marks or shown))
        holders = {word: [n for n in words if word in words[n]] for word in left}
        numbers = {*marks, *(n for of in holders.values() if len(of) <= MOST_OTHERS for n in of)}
        unknown = {word for word, of in holders.items() if not of}
        lines = {each for each, of in old.items() if unknown & of}
        ours = [earlier[each] for each in lines & earlier.keys()]
        events = {event for n in numbers for event in shown[n][1]}.union(*(o.events for o in ours))
        if not marks or not all(each.events for each in ours):
            events = set()
        lines = (lines - earlier.keys()).union(*(each.lines for each in ours))
        found[line] = LineOrigin(frozenset(events), frozenset(lines))
    return found


def with_new_lines(origins_by_line: LineOrigins, was: str | None, now: str | None) -> LineOrigins:
    """Return origins for the lines as they are `now`, each under its new text.

    Lines that have become equal but had different origins came from all messages.
    """
    old, new = lines_of(was or ""), lines_of(now or "")
    names = dict(zip(old, new, strict=True)) if len(old) == len(new) else {}
    moved: dict[str, LineOrigin] = {}
    for line, origin in origins_by_line.items():
        name = names.get(line, line)
        moved[name] = origin if moved.get(name, origin) == origin else LineOrigin()
    return moved


async def store_origins(
    tx: Transaction, changes: Sequence[FileChange], named: Mapping[str, LineOrigins], raw: str
) -> None:
    """Store the origins of new lines; a line without an origin came from all of `raw`."""
    for change in sorted(changes, key=lambda each: each.path == INDEX):
        before = {*lines_of(change.before or "")}
        for line in (each for each in content_lines(change.after or "") if each not in before):
            origin = named.get(change.path, {}).get(line, LineOrigin())
            known = [(change.path, digest(each)) for each in origin.lines]
            # Our line in the index repeats the opening line of a page.
            if change.path == INDEX and named:
                known = [*_opening_lines(line, changes)]
            old = await tx.scalars(
                "SELECT DISTINCT source FROM page_lines"
                " WHERE (path, line) IN (SELECT value ->> 0, value ->> 1 FROM json_each(?))",
                (json.dumps(known),),
            )
            sources = {*origin.events, *old}
            if not origin.events and not (old and change.path == INDEX):
                sources.add(raw)
            if origin.lines and not old:  # lines older than the record of origins
                sources |= {link.rpartition("/")[0] for link in links_in(change.before or "")}
            await tx.execute_many(
                "INSERT OR IGNORE INTO page_lines (path, line, source) VALUES (?, ?, ?)",
                [(change.path, digest(line), source) for source in sorted(sources)],
            )


def _opening_lines(line: str, changes: Iterable[FileChange]) -> Iterable[KnownLine]:
    """Yield the opening lines of the pages that a line of the index links to."""
    links = {*links_in(line)}
    for change in filter(lambda each: is_page(each.path), changes):
        if {name_of(change.path), change.path.removesuffix(ENDING)} & links:
            yield change.path, digest(opening_line(change.after or ""))


async def drop_lines(tx: Transaction, lines: Collection[KnownLine]) -> None:
    """Delete the origins of these lines."""
    rows = sorted(lines)
    await tx.execute_many("DELETE FROM page_lines WHERE path = ? AND line = ?", rows)


async def lost_lines(
    stores: Stores,
    events: Collection[str],
    raws: Collection[str],
    said: Sequence[str],
    answered: Collection[str] = (),
    *,
    asks: bool = False,
) -> LostLines:
    """Find the lines that came from these events, and those that only a person may delete.

    `raws`: raw copies with these messages. `said`: their texts. `answered`: digests that a person approved.
    `asks`: no line is deleted without a question.
    """
    database = stores.database
    rows = await database.rows(
        "SELECT DISTINCT path, line FROM page_lines WHERE source IN (SELECT value FROM json_each(?))",
        (json.dumps([*events, *raws]),),
    )
    jobs: list[str] = await database.scalars(
        "SELECT job FROM consolidations WHERE raw IN (SELECT value FROM json_each(?)) ORDER BY seq",
        (json.dumps([*raws]),),
    )
    if not stores.wiki.exists or not (rows or jobs or answered or asks):
        return NOTHING_LOST
    every = _known(await database.rows("SELECT DISTINCT path, line FROM page_lines"))
    find = partial(_lost, stores.wiki, every, _known(rows), jobs, frozenset(answered))
    lost = await asyncio.to_thread(find, said, asks=asks)
    return LostLines(asked=lost.asked | lost.lines, jobs=lost.jobs) if asks else lost


def _known(rows: Iterable[Row]) -> frozenset[KnownLine]:
    return frozenset((row["path"], row["line"]) for row in rows)


def _lost(
    wiki: WikiStore,
    every: frozenset[KnownLine],
    known: frozenset[KnownLine],
    jobs: Sequence[str],
    answered: frozenset[str],
    said: Sequence[str],
    *,
    asks: bool,
) -> LostLines:
    """Find lost lines. `every`: all lines with known origins; `known`: those from these messages."""
    files = wiki.files
    with files.reading():
        known |= {each for job in jobs for each in _lines_of_job(files, job)} - (every - known)
        renamed = {name for path, name in known if files.presence(path) == "none"}
        lost = LostLines(known, answered | renamed)
        pages = _lines(wiki)
        at = {path for path, _ in known}
        near = [each for each in pages if lost.anywhere or each[0] in at]
        gone = {each for each in near if lost.is_lost(*each)}
        going = {digest(line): line for _, line in gone}
        names, texts = (
            {*(name for _, name in known), *lost.anywhere},
            {*map(_bare, going.values())},
        )
        for path in (f"{job}/{patch}" for job in names_in(files, JOBS) for patch in PATCHES):
            lines = (line[1:] for line in (text_at(files, f"{JOBS}/{path}") or "").splitlines())
            texts |= {_bare(line) for line in lines if digest(line) in names}
        others, already = [each for each in pages if each not in gone], withheld_lines(files)
        shares = _sharing(others, [*said, *texts] if known or asks else ())
        own = [
            line
            for path, line in shares
            if asks or not ((path, digest(line)) in every or line in written_lines(files, path))
        ]
        own += [line for _, line in others if digest(line) in already] if already else []
        asked = {digest(line): line for line in own}
    return LostLines(known, lost.anywhere, tuple(sorted(texts)), asked, tuple(jobs), going)


def _lines(wiki: WikiStore) -> list[tuple[str, str]]:
    """Return the lines of all pages and of the index that have text."""
    texts = ((path, text_at(wiki.files, path) or "") for path in pages_of(wiki))
    return [(path, line) for path, text in texts for line in content_lines(text)]


def pages_of(wiki: WikiStore) -> list[str]:
    """Return the paths of all pages, and of the index."""
    return sorted(path for path in wiki.tree().names.paths if is_page(path) or path == INDEX)


def _lines_of_job(files: StoreFolder, job: str) -> set[KnownLine]:
    """Return all lines written by us on the pages of a job, for jobs without recorded origins."""
    record = read_job(files, job)
    return {
        (path, digest(line))
        for path in (record.changed_files if record else ())
        for line in content_lines("\n".join(written_lines(files, path)))
    }


def _sharing(lines: Sequence[tuple[str, str]], texts: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield lines that share most of their words, or most of a sentence's, with the texts."""
    parts = {part: beginnings(part) for text in texts for part in SENTENCE_END.split(text)}
    stems = sorted({word for of in parts.values() for word in of}, key=len, reverse=True)
    any_stem = re.compile("|".join(map(re.escape, stems)))
    for path, line in lines if stems else ():
        if any_stem.search(line.casefold()):  # cheap test first: most lines share no word
            said = beginnings(line)
            if any(_is_most(said & of, min(len(said), len(of))) for of in parts.values()):
                yield path, line


def _is_most(shared: Collection[str], least: int) -> bool:
    """Decide if most words of the shorter side are shared; a single shared word must have a digit."""
    numbered = any(map(str.isdigit, "".join(shared)))
    return 2 * len(shared) > least and (len(shared) > 1 or numbered)


def withheld_places(wiki: WikiStore) -> list[tuple[str, str]]:
    """Return place and digest of each line that people are asked about."""
    asked, found = withheld_lines(wiki.files), list[tuple[str, str]]()
    for path in pages_of(wiki) if asked else ():
        lines = enumerate((text_at(wiki.files, path) or "").splitlines(), 1)
        found += [(f"{path}, line {n}", digest(line)) for n, line in lines if digest(line) in asked]
    return found


def _bare(line: str) -> str:
    """Return the words of a line, without list marks."""
    return line.strip().lstrip("-*+># \t")
