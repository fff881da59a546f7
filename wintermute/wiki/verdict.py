"""Verdict on changes of pages before they count. Pure.

    wanted ─ dated ─▶ set aside: changes that remove too much ─▶ proposals
                         │
                         ▼ the others
                      objections? ─ any ─▶ nothing is changed
                         ╰─ none ─▶ they are put in place

An objection is a new problem of the store, or a change outside of pages and index (W-064). Only the affected
pages are examined, since a store has thousands of them.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import PurePosixPath

from wintermute.wiki.folder import FileChange
from wintermute.wiki.graph import LinkGraph, WikiProblem
from wintermute.wiki.links import (
    DEEPEST,
    ENDING,
    INDEX,
    Names,
    Presence,
    PresenceOf,
    alike,
    fences,
    is_name,
    is_page,
    links_in,
    name_of,
    resolve,
)
from wintermute.wiki.pages import (
    FRESH_INDEX,
    WikiPage,
    dated,
    examined,
    page_text,
    read_page,
    without_matter,
)

MOST_NAME_BYTES = 255
UNLINKABLE = frozenset("[]|#\\")
"""Characters that would end a link too early, or have another meaning in it."""
NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
WORD = re.compile(r"\S+")
MOST_LOST = 1 / 3
MOST_TOLD = 20
PAGE_PROBLEMS = frozenset(
    {"broken link", "frontmatter", "not read", "long page", "ambiguous name", "look-alike name"}
)
"""Kinds of problems that are objections; missing links to new pages are checked apart."""

MOST_OPENING = 120
MARKUP = re.compile(r"[\[\]`*_<>|]")


@dataclass(frozen=True, slots=True)
class StoreView:
    """Current or future store: its pages with the index, and all names."""

    pages: Mapping[str, WikiPage]
    names: Names
    look: PresenceOf

    def after(self, changes: Iterable[FileChange], files: Collection[str] = ()) -> "StoreView":
        """Return the view after these changes; `files`: further files that will exist then."""
        texts = {change.path: change.after for change in changes}
        if not texts and not files:
            return self
        there = {path: read_page(text.encode()) for path, text in texts.items() if text is not None}
        gone = texts.keys() - there.keys()
        pages = {path: page for path, page in self.pages.items() if path not in gone} | there
        known = {*there, *files}

        def look(path: str) -> Presence:
            return "file" if path in known else "none" if path in gone else self.look(path)

        paths = self.names.paths
        names = self.names if texts.keys() <= paths and not gone else Names(paths - gone | {*there})
        return StoreView(pages, names, look)

    def links_to(self, paths: Collection[str]) -> dict[str, set[str]]:
        """Return for each of these files the other pages that link to it."""
        sources: dict[str, set[str]] = {path: set() for path in paths}
        wanted = {alike(name_of(path)) for path in paths}
        for page, value in self.pages.items():
            for link in value.links:
                name = link.rpartition("/")[2]
                if name in ("", "."):
                    name = PurePosixPath(link).name
                if alike(name) in wanted or alike(name.removesuffix(ENDING)) in wanted:
                    path = resolve(link, self.names, self.look, near=False)
                    if isinstance(path, str) and path in sources and path != page:
                        sources[path].add(page)
        return sources


@dataclass(frozen=True, slots=True)
class ProposedPage:
    """Change that waits for a person, because of the content that it would remove."""

    change: FileChange
    lost: tuple[str, ...]

    @property
    def reason(self) -> str:
        """Content that it would remove, in words."""
        return f"it would take away: {'; '.join(self.lost[:MOST_TOLD])}"


@dataclass(frozen=True, slots=True)
class PageVerdict:
    """Verdict on a job's changes. `reasons`: objections; if there are any, nothing is changed."""

    changes: tuple[FileChange, ...] = ()
    proposed: tuple[ProposedPage, ...] = ()
    reasons: tuple[str, ...] = ()


def judge_changes(
    view: StoreView,
    changes: Sequence[FileChange],
    *,
    today: date,
    ours: Mapping[str, Collection[str]],
    plan: Collection[str] | None = None,
    index: str = "",
    files: Collection[str] = (),
    outside: bool = False,
) -> PageVerdict:
    """Judge changes (W-064).

    `ours`: lines written by us, by page. `plan`: announced pages; if given, new pages without a link to them
    get a line in the `index`. `files`: further files that will exist. `outside`: the changes come from
    untrusted text, so the index, which is in every prompt, gets the names of pages only.
    """
    if outside:
        changes = [change for change in changes if change.path != INDEX]
    if reasons := misplaced(changes, plan):
        return PageVerdict(reasons=reasons)
    kept, proposed = set_aside(redated(changes, today), ours)
    after = view.after(kept, files)
    by_us = plan is not None or outside
    if by_us and (line := with_index_lines(after, kept, index, told=not outside)):
        lines = redated([line], today)
        kept, after = (*(each for each in kept if each.path != INDEX), *lines), after.after(lines)
    if reasons := objections(view, after, [change.path for change in kept]):
        return PageVerdict(reasons=reasons)
    return PageVerdict(kept, proposed)


def path_problem(path: str) -> str:
    """Return why no page may be written at a path; "" if one may."""
    parts = path.split("/")
    if path == INDEX:
        return ""
    if any(part in ("", ".", "..") for part in parts) or "\0" in path:
        return "lies outside the store"
    if not is_page(path):
        return "is neither in semantic/ nor in episodic/, nor the index"
    if len(parts) > DEEPEST:
        return "lies too deep"
    if not path.endswith(ENDING):
        return f"does not end in {ENDING}"
    if any(not _is_linkable(part) for part in parts) or not name_of(path):
        return "has a name that no link can hold"
    return ""


def _is_linkable(part: str) -> bool:
    return (
        is_name(part)
        and part.isprintable()
        and part == part.strip()
        and not UNLINKABLE & {*part}
        and len(part.encode()) <= MOST_NAME_BYTES
    )


def lost_content(before: str, after: str, ours: Collection[str]) -> tuple[str, ...]:
    """List the content that a page would lose and that only a person may remove (W-064).

    `ours`: the lines written by us, as returned by `lines_of`.
    """
    was, now = _said(before).replace(FRESH_INDEX, ""), _said(after)
    stay, links = {*ours, *lines_of(now)}, links_in(now)
    losses = [f'the line "{line}"' for line in lines_of(was) if line not in stay]
    losses += [f"the link [[{link}]]" for link in links_in(was) if link not in links]
    numbers = set(NUMBER.findall(now))
    losses += [f"the number {n}" for n in dict.fromkeys(NUMBER.findall(was)) if n not in numbers]
    code = Counter(_code(now))
    losses += ["a block of code" for block in (Counter(_code(was)) - code).elements() if block]
    words = Counter(WORD.findall(was))
    gone = sum(len(word) * n for word, n in (words - Counter(WORD.findall(now))).items())
    if gone > MOST_LOST * sum(len(word) * n for word, n in words.items()):
        losses.append("more than a third of its text")
    return tuple(losses)


def lines_of(text: str) -> tuple[str, ...]:
    """Return the lines of a text that are not blank, with normalised whitespace."""
    lines = (" ".join(line.split()) for line in _said(text).splitlines())
    return tuple(line for line in lines if line)


def ours_after(before: str | None, after: str, ours: Collection[str]) -> tuple[str, ...]:
    """Return the lines that are ours after our change; a person's lines stay theirs."""
    theirs = {line for line in lines_of(before or "") if line not in ours}
    return tuple(dict.fromkeys(line for line in lines_of(after) if line not in theirs))


def _said(text: str) -> str:
    """Return the text of a page without frontmatter, byte order mark and CRLF."""
    return without_matter(_plain(text))


def _plain(text: str) -> str:
    return text.removeprefix("\ufeff").replace("\r\n", "\n")


def _code(text: str) -> Iterator[str]:
    """Yield the fenced blocks of a text, with their fences."""
    return (" ".join(text[start:end].split()) for start, end in fences(text))


def set_aside(
    changes: Sequence[FileChange], ours: Mapping[str, Collection[str]]
) -> tuple[tuple[FileChange, ...], tuple[ProposedPage, ...]]:
    """Split changes into those that may be made at once and those that only a person may allow."""
    kept: list[FileChange] = []
    proposed: list[ProposedPage] = []
    for change in changes:
        gone: tuple[str, ...] = ()
        if change.before is not None and change.after is not None:
            gone = lost_content(change.before, change.after, ours.get(change.path, ()))
        if gone:
            proposed.append(ProposedPage(change, gone))
        else:
            kept.append(change)
    return tuple(kept), tuple(proposed)


def misplaced(changes: Sequence[FileChange], plan: Collection[str] | None) -> tuple[str, ...]:
    """Return objections to paths and frontmatter; `plan`: the announced pages."""
    reasons = []
    for change in changes:
        if problem := path_problem(change.path):
            reasons.append(f"{change.path!r} {problem}")
        elif change.after is None:
            reasons.append(f"{change.path} would be deleted")
        elif plan is not None and change.path not in plan:
            reasons.append(f"{change.path} is not in the plan")
        else:
            known = examined(_plain(change.before))[0] if change.before is not None else ()
            new = [each for each in examined(_plain(change.after))[0] if each not in known]
            reasons += [f"{change.path}: {problem}" for problem in new]
    return tuple(reasons)


def redated(changes: Iterable[FileChange], today: date) -> tuple[FileChange, ...]:
    """Return the changes with today's date; those that change only a date are dropped (W-067)."""
    return tuple(
        replace(change, after=_redated(_plain(change.after or ""), change.before, today))
        for change in changes
        if change.before is None
        or _said(change.before).strip() != _said(change.after or "").strip()
    )


def _redated(text: str, before: str | None, today: date) -> str:
    if before is None:
        return page_text(today, today, without_matter(text))
    return dated(text, today, _plain(before))


def objections(view: StoreView, after: StoreView, paths: Collection[str]) -> tuple[str, ...]:
    """Return problems that a store would get by changes of these pages (W-064).

    The changes remove no links, since such ones were set aside.
    """
    known = {problem.identity for problem in _problems(view, paths)}
    reasons = [str(each) for each in _problems(after, paths) if each.identity not in known]
    new = {path for path in paths if is_page(path) and path not in view.pages}
    links = after.links_to(new)
    reasons += [f"{path}: no page would link to it" for path in sorted(new) if not links[path]]
    return tuple(reasons)


def _problems(view: StoreView, paths: Collection[str]) -> list[WikiProblem]:
    """Return the problems of these pages, and of names."""
    pages = {path: view.pages[path] for path in paths if path in view.pages}
    found = LinkGraph(pages, view.names, view.look).problems({})
    return [problem for problem in found if problem.kind in PAGE_PROBLEMS]


def with_index_lines(
    after: StoreView, changes: Sequence[FileChange], index: str, *, told: bool = True
) -> FileChange | None:
    """Return the index with a line for each new page without links to it; None if there is none.

    `told`: the lines quote the opening of their page.
    """
    made = [change for change in changes if change.before is None and is_page(change.path)]
    links = after.links_to({change.path for change in made})
    lines = [
        f"- [[{shortest_link(after.names, change.path)}]]"
        + (f": {_opening(change.after or '')}" if told else "")
        for change in made
        if not links[change.path]
    ]
    if not lines:
        return None
    changed = next((change for change in changes if change.path == INDEX), None)
    text = (changed.after if changed else index) or ""
    if FRESH_INDEX in text:
        text = text.replace(FRESH_INDEX, "").rstrip() + "\n"
    text = text.rstrip("\n")
    gap = "\n" if text.rpartition("\n")[2].lstrip().startswith("- ") else "\n\n"
    return FileChange(INDEX, index, text + gap + "\n".join(lines) + "\n")


def shortest_link(names: Names, path: str) -> str:
    """Return the link to a page: its name, or its path if other files have that name."""
    name = name_of(path)
    return name if {*names.named(name)} <= {path} else path.removesuffix(ENDING)


def opening_line(text: str) -> str:
    """Return the first line of a page after its title."""
    lines = (line for line in lines_of(text) if not line.startswith(("#", "```", "~~~", "---")))
    return next(lines, "")


def _opening(text: str) -> str:
    line = MARKUP.sub("", opening_line(text)).strip("-+ ")
    return line if len(line) <= MOST_OPENING else f"{line[: MOST_OPENING - 1].rstrip()}…"
