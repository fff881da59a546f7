"""Pages that a model asks for while it answers: what it is told, and how many it may have. Pure.

    <recall>Garden</recall>   or the gate   ─▶   <memory name="Garden"> … </memory>
                                            ─▶   <cathedral>why not</cathedral>

What it was told so far in a cast are results: a page as its record, why there is none as text.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from wintermute.messages import Json
from wintermute.text import shortened, untagged

RECALL = "recall"
MOST_PAGES = 3
"""So many pages one cast may have (W-031)."""
MOST_TITLE = 200
MOST_NAME = 1_000
MOST_PATHS = 20
MOST_TEXT = 50_000
"""Characters of a page (L-026)."""

BEGINNINGS = ('<memory name="', "<cathedral>")
"""How what is told of recalls begins; nobody else's text does (L-071)."""
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
    """A page that somebody asked for. `path`: below the store; `text`: all of the file.

    `outside`: it comes from a conversation with text from outside.
    """

    path: str
    text: str
    outside: bool

    def record(self, title: str) -> Json:
        """As the loom keeps what `recall` gave for a title."""
        return {"title": title, "path": self.path, "outside": self.outside, "text": self.text}


def not_found(title: str, nearest: Iterable[str] = ()) -> str:
    """W-028; `nearest`: the names that are most like it."""
    names = ", ".join(f"'{_in_line(name, MOST_TITLE)}'" for name in nearest)
    said = NOT_FOUND.format(title=_in_line(title, MOST_TITLE))
    return notice(said + (NEAREST.format(names=names) if names else ""))


def ambiguous(title: str, paths: Iterable[str]) -> str:
    """W-029."""
    shown = [_in_line(path.removesuffix(".md"), MOST_NAME) for path in paths]
    listed = ", ".join(shown[:MOST_PATHS])
    return notice(AMBIGUOUS.format(title=_in_line(title, MOST_TITLE), paths=listed))


def out_of_order() -> str:
    """Nobody can read pages now (W-035)."""
    return notice(UNREADABLE)


def already_given(title: str) -> str:
    """W-030."""
    return notice(GIVEN.format(title=_in_line(title, MOST_TITLE)))


def limit_reached() -> str:
    """W-031."""
    return notice(LIMIT)


def notice(text: str) -> str:
    """Something that a model is told instead of a page; what is a notice stays as it is."""
    found = NOTICE.fullmatch(text)
    return f"<cathedral>{untagged(found[1] if found else text)}</cathedral>"


def refused(earlier: Sequence[Any], title: str, path: str | None = None) -> str | None:
    """Why a page is given no more after these results; None: it is (W-030 to W-032).

    `path`: where the title leads, once that is known.
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
    """Whether a result says that nothing more is given until the next message (W-032)."""
    return isinstance(result, str) and LAST_WORD.fullmatch(result) is not None


def shown(result: object) -> str | None:
    """A result as a model reads it, who cannot be made to believe that it ends before it does.

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
    """A title within a line of ours."""
    line = untagged("".join(mark if mark.isprintable() else " " for mark in title))
    return line if len(line) <= most else f"{line[: most - 1]}…"
