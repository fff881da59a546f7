"""Recall: pages that a model asks for while it answers, their limit and their notices. Pure.

    <recall>Garden</recall>   or the gate   ─▶   <memory name="Garden"> … </memory>
                                            ─▶   <cathedral>reason for no page</cathedral>

Results of earlier recalls in a cast are records for pages, and text for notices.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from wintermute.messages import Json
from wintermute.text import shortened, untagged

RECALL = "recall"
MOST_PAGES = 3
"""Pages that one cast may recall (W-031)."""
MOST_TITLE = 200
MOST_NAME = 1_000
MOST_PATHS = 20
MOST_TEXT = 50_000
"""Characters of a page (L-026)."""

BEGINNINGS = ('<memory name="', "<cathedral>")
"""Openings of recalled pages and notices; no other text may begin like this (L-071)."""
NOTICE = re.compile(r"<cathedral>(.*)</cathedral>", re.DOTALL)
NOT_FOUND = (
    "No memory page is named '{title}'. Recall only pages you have seen linked in the index or in"
    " another page."
)
NEAREST = " Nearest: {names}."
AMBIGUOUS = "'{title}' is ambiguous: {paths}. Recall one of these paths."
UNREADABLE = "The memory pages cannot be read at the moment. Answer without them."
GIVEN = "The page '{title}' was already given in this turn. Answer without recalling it again."
LIMIT = f"The limit of {MOST_PAGES} recalls in this turn is reached. Answer without further recall."
LAST_WORD = re.compile(
    f"<cathedral>(?:{re.escape(LIMIT)}|{'.*'.join(map(re.escape, GIVEN.split('{title}')))})</cathedral>"
)


@dataclass(frozen=True, slots=True)
class RecalledPage:
    """Recalled page. `path`: relative to the store; `text`: the whole file.

    `outside`: it comes from a conversation with untrusted text.
    """

    path: str
    text: str
    outside: bool

    def record(self, title: str) -> Json:
        """Return the result as the loom stores it."""
        return {"title": title, "path": self.path, "outside": self.outside, "text": self.text}


def not_found(title: str, nearest: Iterable[str] = ()) -> str:
    """Return the notice of W-028; `nearest`: the most similar names."""
    names = ", ".join(f"'{_in_line(name, MOST_TITLE)}'" for name in nearest)
    said = NOT_FOUND.format(title=_in_line(title, MOST_TITLE))
    return notice(said + (NEAREST.format(names=names) if names else ""))


def ambiguous(title: str, paths: Iterable[str]) -> str:
    """Return the notice of W-029."""
    shown = [_in_line(path.removesuffix(".md"), MOST_NAME) for path in paths]
    listed = ", ".join(shown[:MOST_PATHS])
    return notice(AMBIGUOUS.format(title=_in_line(title, MOST_TITLE), paths=listed))


def out_of_order() -> str:
    """Return the notice that pages cannot be read now (W-035)."""
    return notice(UNREADABLE)


def already_given(title: str) -> str:
    """Return the notice of W-030."""
    return notice(GIVEN.format(title=_in_line(title, MOST_TITLE)))


def limit_reached() -> str:
    """Return the notice of W-031."""
    return notice(LIMIT)


def notice(text: str) -> str:
    """Return a notice for a model instead of a page; a notice stays as it is."""
    found = NOTICE.fullmatch(text)
    return f"<cathedral>{untagged(found[1] if found else text)}</cathedral>"


def refused(earlier: Sequence[Any], title: str, path: str | None = None) -> str | None:
    """Return why no page is given after these results; None if one is given (W-030 to W-032).

    `path`: the path of the title, once it is known.
    """
    last = next(filter(is_last_word, earlier), None)
    if last is not None:
        return str(last)
    given = [each for each in earlier if isinstance(each, dict)]
    if len(given) >= MOST_PAGES:
        return limit_reached()
    again = any(title == each.get("title") or path == each.get("path") for each in given)
    return already_given(title) if again else None


def is_last_word(result: object) -> bool:
    """Decide if a result says that no more pages are given until the next message (W-032)."""
    return isinstance(result, str) and LAST_WORD.fullmatch(result) is not None


def as_model_text(result: object) -> str | None:
    """Return a result as a model reads it, escaped so that its text cannot close the tag.

    None: it is neither a page nor a notice.
    """
    match result:
        case {"title": str(title), "text": str(text)}:
            name = _in_line(title, MOST_NAME).replace('"', "&quot;")
            return f'<memory name="{name}">\n{untagged(shortened(text, MOST_TEXT))}\n</memory>'
        case str(text) if NOTICE.fullmatch(text):
            return notice(text)
    return None


def _in_line(title: str, most: int) -> str:
    line = untagged("".join(mark if mark.isprintable() else " " for mark in title))
    return line if len(line) <= most else f"{line[: most - 1]}…"
