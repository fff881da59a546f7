"""Text of one page: its frontmatter, its links and its problems. Pure."""

import re
from dataclasses import dataclass
from datetime import date
from sys import intern

import yaml

from wintermute.errors import FileUnusable
from wintermute.files import decoded
from wintermute.wiki.links import links_in

MATTER = re.compile(r"\A---[ \t]*\n(?:(.*?)\n)?---[ \t]*(?:\n|\Z)", re.DOTALL)
USUAL = re.compile(r"created: (\d{4}-\d\d-\d\d)\nupdated: (\d{4}-\d\d-\d\d)")
"""Frontmatter as we write it; anything else is left to YAML, which takes a hundred times as long."""
DAY = re.compile(r"\d{4}-\d\d-\d\d")
KEYS = ("created", "updated")
MOST_MATTER = 4_000
MOST_BYTES = 5_000_000
"""Bytes of a page that is read at all."""
MOST_TOKENS = 2_000
"""Tokens of a page that a model can be given beside a conversation."""
MOST_INDEX_LINES = 100

FRESH_INDEX = "First instantiation. No memory has been gathered yet."


@dataclass(frozen=True, slots=True)
class WikiPage:
    """Page without its text. `characters`: length of the file. `lines`: lines below the frontmatter.

    `problems`: violations of W-010 in its frontmatter. `unusable`: why it cannot be read.
    """

    links: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    characters: int = 0
    lines: int = 0
    unusable: str = ""

    @property
    def tokens(self) -> int:
        """Estimated tokens (W-046)."""
        return tokens(self.characters)


def tokens(characters: int) -> int:
    """Estimate the tokens of a text, at four characters each (W-046)."""
    return -(-characters // 4)


def read_page(content: bytes) -> WikiPage:
    """Parse the bytes of a page; unusable ones give a page with a reason."""
    if len(content) > MOST_BYTES:
        return WikiPage(unusable=f"has over {MOST_BYTES:,} bytes: not read")
    try:
        text = text_of(content)
    except FileUnusable as problem:
        return WikiPage(unusable=str(problem))
    problems, body = examined(text)
    links = tuple(map(intern, links_in(body)))
    return WikiPage(links, problems, len(text), body.strip("\n").count("\n") + 1)


def text_of(content: bytes) -> str:
    """Return the text of a page, with newlines as line ends. Raises: FileUnusable."""
    return decoded(content).replace("\r\n", "\n")


def without_matter(text: str) -> str:
    """Return a page's text without its frontmatter."""
    matter = MATTER.match(text)
    return text[matter.end() :].lstrip("\n") if matter else text


def examined(text: str) -> tuple[tuple[str, ...], str]:
    """Return the problems of a text's frontmatter, and the text below it (W-008, W-010)."""
    found = MATTER.match(text)
    if found is None:
        return ("has no frontmatter: created and updated are missing",), text
    body = text[found.end() :]
    matter = found[1] or ""
    usual = USUAL.fullmatch(matter)
    if usual and all(map(_is_day, usual.groups())):
        return (), body
    return tuple(_problems(matter)), body


def _problems(matter: str) -> list[str]:
    pairs = _pairs(matter)
    if pairs is None:
        return ["its frontmatter is no list of keys and values"]
    given, names = dict(pairs), [name for name, _ in pairs]
    twice = {name for name in names if names.count(name) > 1}
    wrong = [f"{name[:60]!r} is in its frontmatter twice" for name in sorted(twice)]
    wrong += [f"unknown key {name[:60]!r} in its frontmatter" for name in given if name not in KEYS]
    for name in KEYS:
        if name not in given:
            wrong.append(f"{name} is missing in its frontmatter")
        elif not _is_day(given[name]):
            wrong.append(f"{name} is no date such as 2026-05-04: {given[name][:40]!r}")
    return wrong


def _pairs(matter: str) -> list[tuple[str, str]] | None:
    """Return keys and values as they are written; None if this is no mapping."""
    if len(matter) > MOST_MATTER:
        return None
    try:
        # Nodes only, no values: so repeated aliases cannot use up memory.
        found = yaml.compose(matter, Loader=yaml.SafeLoader)
    except (yaml.YAMLError, ValueError, RecursionError):
        return None
    if found is None:
        return []
    if not isinstance(found, yaml.MappingNode):
        return None
    return [
        (str(key.value), value.value if isinstance(value, yaml.ScalarNode) else "")
        for key, value in found.value
    ]


def _is_day(text: str) -> bool:
    if not DAY.fullmatch(text):
        return False
    try:
        date.fromisoformat(text)
    except ValueError:
        return False
    return True


def page_text(created: date, updated: date, body: str) -> str:
    """Return the file content of a page (W-008)."""
    return f"---\ncreated: {created}\nupdated: {updated}\n---\n\n{body.strip()}\n"


def dated(text: str, today: date, before: str | None = None) -> str:
    """Return a page with today's `updated`, and `created` from the version `before` (W-067)."""
    created = day_in(before, "created") or day_in(text, "created") or today
    return page_text(created, today, without_matter(text))


def day_in(text: str | None, key: str) -> date | None:
    """Read a date from the frontmatter of a text; None: there is none."""
    matter = MATTER.match(text) if text else None
    written = dict(_pairs(matter[1] or "") or ()).get(key, "") if matter else ""
    return date.fromisoformat(written) if _is_day(written) else None
