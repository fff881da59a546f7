"""Titles and links, and the page that each refers to. Pure, and the same for everybody who asks (W-014).

"Garden"            the only page of this name, in any folder
"semantic/Garden"   the page at this path, also with `.md`
[[Garden]]  [[semantic/Garden|the garden]]  [[Garden#Roses]]    the same, in a text
"""

import re
import unicodedata
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from heapq import nlargest
from pathlib import PurePosixPath
from typing import Literal

ENDING = ".md"
INDEX = "meta/Index.md"
PAGE_FOLDERS = ("semantic", "episodic")
META, RAW, JOBS, CONVERSATIONS = "meta", "episodic-raw", "sleep", "conversations"
DEEPEST = 32
"""Levels of folders; files below are not read."""
OUTSIDE = f"{META}/outside.json"
"""List of raw conversations and their pages that may contain text from outside."""
BY_PATH_ONLY = (RAW, CONVERSATIONS)
"""Folders whose files have no titles: there are too many of them to name."""

Presence = Literal["file", "link", "none"]
"""State of a path: a plain file, a link that leads elsewhere, or nothing that would be read."""
PresenceOf = Callable[[str], Presence]

LINK = re.compile(r"(!?)\[\[([^\[\]\n]*)\]\]")
ATTACHED = re.compile(r"\.(?:avif|gif|jpe?g|m4a|mov|mp[34]|ogg|pdf|png|svg|wav|webm|webp)", re.I)
"""Suffixes of files that editors show within a page: `![[plan.png]]` links to no page."""
FENCE = re.compile(
    r"^(?:[ \t>]|(?P<item>[-*+]|\d{1,9}[.)])[ \t])*(?P<run>`{3,}|~{3,})(?P<rest>[^\n]*)$",
    re.MULTILINE,
)
# Possessive quantifiers, but no possessive groups: Python before 3.11.5 matches those wrongly.
SPAN = re.compile(
    r"""
    ` (?: (?:(?<!\\`)|(?<=\\\\`)) (`{0,7}+) (?!`)
          (?: [^`\n]++
            | \n (?![ \t>]* (?: \n | (?: \#{1,6} | [-*+] | \d{1,9}[.)] ) [ \t] ))
            | (?! `\1 (?!`) ) `++
          )*
          ` \1 (?!`)
        | (?<=\\`) (?<!\\\\`)
        | `*+
      )
    """,
    re.VERBOSE,
)
"""Code span within one block of text, or else backticks that begin none: escaped, or not closed."""
CONTROL = re.compile(r"[\0-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
"""Characters that can neither be typed nor shown in a line."""
MOST_LINKS = 10_000
"""Links of one page; more were not written by a person, and are not followed."""
NEAREST = 3
FAR = 2
"""Letters by which a suggested title may differ."""
MOST_SHOWN = 300


def links_in(text: str) -> tuple[str, ...]:
    """Return the link targets of a text, each once, in order; none within code (W-011, W-012).

    An embedded picture is no link.
    """
    if "[[" not in text:
        return ()
    targets: dict[str, None] = {}
    for match in LINK.finditer(without_code(text)):
        target = target_of(match[2])
        if target and not (match[1] and ATTACHED.fullmatch(PurePosixPath(target).suffix)):
            targets[target] = None
        if len(targets) >= MOST_LINKS:
            break
    return tuple(targets)


def unlinked(text: str, dead: Collection[str]) -> str:
    """Replace links to these targets by the words that they show; code stays as it is."""
    parts, at = list[str](), 0
    for match in LINK.finditer(without_code(text)):
        if target_of(match[2]) in dead:
            parts += [text[at : match.start()], match[2].replace("\\|", "|").rpartition("|")[2]]
            at = match.end()
    return "".join([*parts, text[at:]])


def target_of(inside: str) -> str:
    """Return the target of a link from the text between its brackets.

    In a table the `|` before the label is escaped.
    """
    return inside.replace("\\|", "|").partition("|")[0].partition("#")[0].strip()


def without_code(text: str) -> str:
    """Replace code spans and fences by blanks, so that all other text keeps its position."""
    if "`" not in text and "~~~" not in text:
        return text
    parts: list[str] = []
    at = 0
    for start, end in fences(text):
        parts += [_without_spans(text[at:start]), _blanked(text[start:end])]
        at = end
    return "".join([*parts, _without_spans(text[at:])])


def fences(text: str) -> Iterator[tuple[int, int]]:
    """Yield start and end of each fence; one that is not closed goes to the end."""
    if "```" not in text and "~~~" not in text:
        return
    opened: re.Match[str] | None = None
    for line in FENCE.finditer(text):
        run, rest = line["run"], line["rest"]
        if opened is None:
            if run[0] == "~" or "`" not in rest:
                opened = line
        elif run.startswith(opened["run"]) and not line["item"] and not rest.strip():
            yield opened.start(), line.end()
            opened = None
    if opened is not None:
        yield opened.start(), len(text)


def is_open_fence(text: str) -> bool:
    """Decide if text appended here would be code."""
    return without_code(f"{text}\n\n.")[-1] != "."


def _without_spans(text: str) -> str:
    return SPAN.sub(lambda found: _blanked(found[0]) if found[1] is not None else found[0], text)


def _blanked(code: str) -> str:
    if "\n" not in code:
        return " " * len(code)
    return "\n".join(" " * len(line) for line in code.split("\n"))


@dataclass(frozen=True, slots=True)
class Unresolved:
    """Failed lookup of a title. `paths`: pages that it may mean; `nearest`: similar names."""

    reason: Literal["empty", "outside", "missing", "ambiguous"]
    title: str
    paths: tuple[str, ...] = ()
    nearest: tuple[str, ...] = ()
    is_path: bool = False

    def __str__(self) -> str:
        """Return the message for every interface (W-016, W-017, W-019)."""
        shown = legible(self.title)
        match self.reason:
            case "empty":
                return "empty title"
            case "outside":
                return f"{shown}: outside the store"
            case "ambiguous":
                return f"ambiguous title '{shown}': {', '.join(self.paths)}"
        said = f"not found: {shown}" if self.is_path else f"no page named '{shown}'"
        near = " or ".join(f"'{name}'" for name in self.nearest)
        return f"{said} (did you mean {near}?)" if near else said


class Names:
    """Markdown files that a title can refer to, by name and path."""

    def __init__(self, paths: Iterable[str]) -> None:
        """`paths`: relative to the store, without files that have no titles."""
        self.paths = frozenset(paths)
        by_name: dict[str, list[str]] = {}
        for path in sorted(self.paths):
            by_name.setdefault(name_of(path), []).append(path)
        self._by_name = {name: tuple(found) for name, found in by_name.items()}
        self._by_form: dict[str, list[str]] = {}
        for name in (*self.paths, *self._by_name):
            if not name.isascii():
                self._by_form.setdefault(_composed(name), []).append(name)
        self.has_pages = any(map(is_page, self.paths))

    def named(self, name: str) -> tuple[str, ...]:
        """Return the paths of all files of this name, sorted; else of the same name in another normal form."""
        if name in self._by_name:
            return self._by_name[name]
        return tuple(path for each in self.in_form(name) for path in self._by_name.get(each, ()))

    def in_form(self, name: str) -> tuple[str, ...]:
        """Return the names and paths that equal this one in normal form."""
        return tuple(sorted(self._by_form.get(_composed(name), ())))

    @cached_property
    def lookalikes(self) -> tuple[tuple[str, ...], ...]:
        """Groups of page paths whose names differ by case or normal form only."""
        found: dict[str, list[str]] = {}
        for name in self._by_name:
            found.setdefault(alike(name), []).append(name)
        groups = (sorted(names) for names in found.values() if len(names) > 1)
        pages = ((path for name in names for path in self._by_name[name]) for names in groups)
        return tuple(each for group in pages if len(each := tuple(filter(is_page, group))) > 1)

    @property
    def shared(self) -> Mapping[str, tuple[str, ...]]:
        """Names that several files have, with their paths."""
        return {name: paths for name, paths in self._by_name.items() if len(paths) > 1}

    def near(self, title: str) -> tuple[str, ...]:
        """Return the names that differ from a title in case or by a letter or two, the nearest first."""
        wanted = alike(title)
        found = (
            (distance, name)
            for name in self._by_name
            if (distance := _distance(wanted, alike(name))) <= FAR
        )
        return tuple(name for _, name in sorted(found)[:NEAREST])

    def like(self, title: str) -> tuple[str, ...]:
        """Return the three names that are most similar to a title, as suggestions."""
        near, words = self.near(title), set(_words(title))
        shared = (name for name in self._by_name if any(map(name.casefold().__contains__, words)))
        ranked = nlargest(NEAREST, shared, key=lambda name: _likeness(words, set(_words(name))))
        return tuple(dict.fromkeys((*near, *ranked)))[:NEAREST]


def alike(name: str) -> str:
    """Reduce a name to the form shared by names that differ only by case or normal form (W-079)."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())


def legible(title: str) -> str:
    """Return a title or link text as it is shown: in one line, and cut to length."""
    safe = CONTROL.sub(lambda mark: ascii(mark[0])[1:-1], title[: MOST_SHOWN + 1])
    return safe if len(safe) <= MOST_SHOWN else f"{safe[:MOST_SHOWN]}…"


def _composed(name: str) -> str:
    return unicodedata.normalize("NFC", name)


def is_name(name: str) -> bool:
    """Decide if a file or folder of this name belongs to the store.

    A leading dot hides it; blanks at its ends would be neither seen nor typed in a title.
    """
    bare = name.removesuffix(ENDING)
    return not name.startswith(".") and bare == bare.strip() and not CONTROL.search(name)


def name_of(path: str) -> str:
    """Return a page's name: its file name without `.md` (W-009)."""
    return path.rpartition("/")[2].removesuffix(ENDING)


def is_page(path: str) -> bool:
    """Decide if a file is a page: it is in one of the two folders for pages (W-013)."""
    return path.partition("/")[0] in PAGE_FOLDERS and "/" in path


def resolve(title: str, names: Names, look: PresenceOf, *, near: bool = True) -> str | Unresolved:
    """Return the path of the one file that a title refers to (W-014 to W-019).

    `look` returns the state of a path that is not in `names`. `near`: also search all names for suggestions.
    """
    found = _resolved(title.strip(), names, look)
    if near and isinstance(found, Unresolved) and found.reason == "missing":
        return replace(found, nearest=_nearest(found, names))
    return found


def _resolved(title: str, names: Names, look: PresenceOf) -> str | Unresolved:
    if not title:
        return Unresolved("empty", title)
    if "\0" in title or title.startswith("/") or ".." in title.split("/"):
        return Unresolved("outside", title)
    if "/" not in title and not title.endswith(ENDING):
        return _named(title, title, names)
    path = str(PurePosixPath(title))
    found = _at(path, names, look)
    if found is not None:
        return found
    if "/" not in title:
        name = title.removesuffix(ENDING)
        return _named(title, name if names.named(name) else title, names)
    return Unresolved("missing", title, is_path=True)


def _at(path: str, names: Names, look: PresenceOf) -> str | Unresolved | None:
    parts = path.split("/")
    if parts[0] == JOBS or len(parts) > DEEPEST or not all(map(is_name, parts)):
        return None
    for each in (path, path + ENDING) if path.endswith(ENDING) else (path + ENDING,):
        if each in names.paths:
            return each
        match look(each):
            case "file":
                return each
            case "link":
                return Unresolved("outside", path)
        same = names.in_form(each)
        if len(same) > 1:
            return Unresolved("ambiguous", path, same)
        if same:
            return same[0]
    return None


def _named(title: str, name: str, names: Names) -> str | Unresolved:
    paths = names.named(name)
    if len(paths) == 1:
        return paths[0]
    if paths:
        return Unresolved("ambiguous", title, paths)
    return Unresolved("missing", title)


def _nearest(missing: Unresolved, names: Names) -> tuple[str, ...]:
    """Return suggestions; for a path, the paths of pages elsewhere."""
    near = names.near(name_of(missing.title))
    if not missing.is_path:
        return near
    return tuple(path.removesuffix(ENDING) for each in near for path in names.named(each))[:NEAREST]


def _words(text: str) -> list[str]:
    words = re.findall(r"\w+", text.casefold())
    return [word for word in words if len(word) > 2 or not word.isascii()]


def _likeness(words: set[str], others: set[str]) -> float:
    return len(words & others) / len(words | others)


def _distance(one: str, other: str) -> int:
    """Count letters that differ, are missing or added; `FAR + 1` stands for any more than `FAR`."""
    if abs(len(one) - len(other)) > FAR or len(set(one) ^ set(other)) > 2 * FAR:
        return FAR + 1
    row = list(range(len(other) + 1))
    for n, mark in enumerate(one, 1):
        before, row = row, [n] + [FAR + 1] * len(other)
        for k in range(max(1, n - FAR), min(len(other), n + FAR) + 1):
            same = before[k - 1] + (mark != other[k - 1])
            row[k] = min(same, before[k] + 1, row[k - 1] + 1)
        if min(row) > FAR:
            return FAR + 1
    return row[-1]
