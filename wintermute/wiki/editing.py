"""Page editing by a person: the text that they opened, and the text that may be saved (V-022).

opened ─ typed ─▶ wanted ─┬▶ refused with a message: the person keeps their text
                          ╰▶ a change set of cause `edit`, then put in place
"""

import re
from collections.abc import Collection
from dataclasses import dataclass
from datetime import date
from hashlib import blake2b

from wintermute.errors import FileUnusable, PageRefused
from wintermute.wiki.links import alike, is_page, legible, name_of
from wintermute.wiki.pages import MATTER, dated, examined, without_matter
from wintermute.wiki.store import WikiStore
from wintermute.wiki.verdict import path_problem

MOST_SAVED = 500_000
"""Bytes of a page that a browser may save: far more than a model can be given."""
UPDATED = re.compile(r"^(updated:[ \t]*)\d{4}-\d\d-\d\d(?=[ \t]*$)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class PageSource:
    """Page as it is in its file. `text` None: it does not exist yet."""

    path: str
    text: str | None

    @property
    def version(self) -> str:
        """Digest of this text, by which a save detects an edit in between; "": there is no text."""
        return "" if self.text is None else blake2b(self.text.encode(), digest_size=16).hexdigest()

    def edited(self, typed: str, today: date) -> str:
        """Return the text to save: as typed, dated, with frontmatter if that is missing.

        Line ends stay those of the file. Raises: PageRefused.
        """
        typed, before = typed.replace("\r\n", "\n"), (self.text or "").replace("\r\n", "\n")
        if typed == before and self.text is not None:
            return self.text
        if not without_matter(typed).strip():
            raise PageRefused("the page would be empty: write something below its frontmatter")
        text = _dated(typed, before, today)
        if self.text and "\r\n" in self.text:
            text = text.replace("\n", "\r\n")
        if (size := len(text.encode())) > MOST_SAVED:
            raise PageRefused(
                f"the page has {size:,} bytes, and at most {MOST_SAVED:,} can be saved here:"
                " divide it into several pages"
            )
        return text


def _dated(typed: str, before: str, today: date) -> str:
    matter = MATTER.match(typed)
    if matter is None and typed.lstrip().startswith("---\n"):
        raise PageRefused("the frontmatter has no end: close it with a line that is only ---")
    if matter is None:
        return dated(typed, today, before or None)
    known = examined(before)[0]
    if new := [each for each in examined(typed)[0] if each not in known]:
        raise PageRefused(f"{'; '.join(new)}: correct the lines between the two ---")
    return UPDATED.sub(rf"\g<1>{today}", matter[0], count=1) + typed[matter.end() :]


def page_source(store: WikiStore, path: str) -> PageSource:
    """Read a page for editing, or check that a new one may have this path.

    Within `reading`. Raises: PageRefused.
    """
    if wrong := path_problem(path):
        raise PageRefused(f"{legible(path)} {wrong}: choose another name for the page")
    try:
        return PageSource(path, store.files.exact_text(path))
    except FileUnusable as problem:
        raise PageRefused(f"{path} {problem}: correct the file with another program") from problem
    except FileNotFoundError:
        if known := _lookalike(path, store.tree().names.paths):
            raise PageRefused(
                f"{path} differs from {known} only in case or in how its letters are encoded:"
                " edit that page, or choose another name"
            ) from None
        return PageSource(path, None)


def _lookalike(path: str, paths: Collection[str]) -> str:
    """Return the page whose path differs only by case or normal form (W-079); "" if there is none."""
    form, name = alike(path), name_of(path)
    for each in sorted(filter(is_page, paths)):
        other = name_of(each)
        if alike(each) == form or (other != name and alike(other) == alike(name)):
            return each
    return ""
