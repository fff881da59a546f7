"""Graph of links between pages: backlinks, orphans, broken links, and other problems. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from wintermute.wiki.links import (
    ENDING,
    INDEX,
    Names,
    Presence,
    PresenceOf,
    Unresolved,
    is_page,
    legible,
    resolve,
)
from wintermute.wiki.pages import MOST_INDEX_LINES, MOST_TOKENS, WikiPage


@dataclass(frozen=True, slots=True)
class BrokenLink:
    """Link that leads to no page, or to several."""

    page: str
    target: str
    why: Unresolved

    def __str__(self) -> str:
        """Return the link as W-045 prints it."""
        said = f"{shown(self.page)}: [[{legible(self.target)}]]"
        if self.why.reason == "ambiguous":
            return f"{said} (ambiguous: {', '.join(self.why.paths)})"
        return f"{said} (outside the store)" if self.why.reason == "outside" else said


@dataclass(frozen=True, slots=True)
class WikiProblem:
    """Problem that a person may want to fix. `subject`: the part of the page that it concerns.

    `note` describes it; problems that differ only in `note` are the same.
    """

    kind: str
    page: str
    subject: str
    note: str

    @property
    def identity(self) -> tuple[str, str, str]:
        """Key of the problem."""
        return self.kind, self.page, self.subject

    def __str__(self) -> str:
        return f"{self.kind}: {shown(self.page)}: {self.note}"


def shown(path: str) -> str:
    """Return a page's name for people: its path without `.md`."""
    return path.removesuffix(ENDING)


def undirected(linked: Mapping[str, frozenset[str]]) -> dict[str, set[str]]:
    """Return both directions of each link between two of these pages."""
    both: dict[str, set[str]] = {path: set() for path in linked}
    for path, targets in linked.items():
        for target in targets:
            if target in both and target != path:
                both[path].add(target)
                both[target].add(path)
    return both


class LinkGraph:
    """All links of a store at one moment."""

    def __init__(self, pages: Mapping[str, WikiPage], names: Names, look: PresenceOf) -> None:
        """`pages`: pages and the index by path. `look`: see `links.resolve`."""
        self._source_pages = pages
        self._pages = dict(sorted(pages.items()))
        self._names = names
        self._presence_of = look
        self._presences: dict[str, Presence] = {}
        targets = {target for page in self._pages.values() for target in page.links}
        self._found = {each: resolve(each, names, self._presence, near=False) for each in targets}

    def _presence(self, path: str) -> Presence:
        found = self._presences[path] = self._presence_of(path)
        return found

    def is_of(self, pages: Mapping[str, WikiPage], names: Names) -> bool:
        """Check that the graph is current: same pages, and other linked files unchanged."""
        return (pages is self._source_pages and names is self._names) and all(
            self._presence_of(path) == found for path, found in self._presences.items()
        )

    def backlinks(self, path: str) -> tuple[str, ...]:
        """Return the pages that link to a file, sorted; the index as well (W-043)."""
        return tuple(self._incoming.get(path, ()))

    @cached_property
    def orphans(self) -> tuple[str, ...]:
        """Pages that neither another page nor the index links to, sorted (W-044)."""
        pages = filter(is_page, self._pages)
        return tuple(path for path in pages if self._incoming.get(path, [path]) == [path])

    @cached_property
    def broken(self) -> tuple[BrokenLink, ...]:
        """Links that lead to no page, or to several (W-045)."""
        return tuple(
            BrokenLink(path, target, found)
            for path, page in self._pages.items()
            for target in page.links
            if isinstance(found := self._found[target], Unresolved)
        )

    @cached_property
    def linked(self) -> Mapping[str, frozenset[str]]:
        """Files that each page links to."""
        return {path: frozenset(self._targets(page)) for path, page in self._pages.items()}

    @cached_property
    def neighbours(self) -> Mapping[str, set[str]]:
        """Other pages that each page links to or is linked from."""
        return undirected(self.linked)

    @cached_property
    def _incoming(self) -> dict[str, list[str]]:
        incoming: dict[str, list[str]] = {}
        for path, page in self._pages.items():
            for target in dict.fromkeys(self._targets(page)):
                incoming.setdefault(target, []).append(path)
        return incoming

    def _targets(self, page: WikiPage) -> Iterator[str]:
        return (found for each in page.links if isinstance(found := self._found[each], str))

    def problems(self, odd: Mapping[str, str]) -> tuple[WikiProblem, ...]:
        """Return all problems (W-051). `odd`: files that are not read, with the reason."""
        unread = (WikiProblem("not read", path, "", why) for path, why in sorted(odd.items()))
        return (*self._own_problems, *unread)

    @cached_property
    def _own_problems(self) -> tuple[WikiProblem, ...]:
        orphans = (WikiProblem("orphan", path, "", "no page links to it") for path in self.orphans)
        return (*self._broken(), *orphans, *self._ambiguous(), *self._unread(), *self._long())

    def _broken(self) -> Iterator[WikiProblem]:
        for link in self.broken:
            said = str(link).removeprefix(f"{shown(link.page)}: ")
            yield WikiProblem("broken link", link.page, link.target, said)

    def _unread(self) -> Iterator[WikiProblem]:
        for path, page in self._pages.items():
            if page.unusable:
                yield WikiProblem("not read", path, "", page.unusable)
            yield from (WikiProblem("frontmatter", path, each, each) for each in page.problems)

    def _ambiguous(self) -> Iterator[WikiProblem]:
        for name, paths in sorted(self._names.shared.items()):
            pages = [path for path in paths if is_page(path)]
            if pages:
                note = f"{len(paths)} pages have this name: {', '.join(paths)}"
                yield WikiProblem("ambiguous name", name, " ".join(paths), note)
        for each in self._names.lookalikes:
            note = f"differs only by case or normal form from {', '.join(map(ascii, each[1:]))}"
            yield WikiProblem("look-alike name", each[0], " ".join(each), note)

    def _long(self) -> Iterator[WikiProblem]:
        for path, page in self._pages.items():
            if path == INDEX and page.lines > MOST_INDEX_LINES:
                note = f"{page.lines:,} lines, of which the first {MOST_INDEX_LINES} are shown"
                yield WikiProblem("long index", path, "", note)
            elif path != INDEX and page.tokens > MOST_TOKENS:
                note = f"about {page.tokens:,} tokens, over {MOST_TOKENS:,}: split it"
                yield WikiProblem("long page", path, "", note)
