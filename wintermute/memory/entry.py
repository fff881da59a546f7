"""The text of a fact: one clean line, and the key by which equal facts are one."""

import re
import textwrap
import unicodedata

from wintermute.errors import ToolFailed

LEAST = 3
MOST = 2_000
"""Characters of a fact that a conversation or a model adds (M-006)."""
SHORTEST = 1
LONGEST = 20_000
"""Characters of a fact that comes from a file (M-067)."""

# A mark before a blank or a word makes structure of a line; a minus before a digit is a number.
MARKS = re.compile(r"(?:[#>*\s\u200c\u200d]|-(?!\d)|[`~]{3,})+")
DROPPED = {"Cc", "Cf", "Cs"}
JOINERS = {"\u200c", "\u200d"}
"""Invisible, but parts of words in Persian and of emoji."""
# Between signs of these scripts, or beside one, a blank means nothing.
SIGN = "[\u3000-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
IDLE_BLANK = re.compile(f"(?<={SIGN}) | (?={SIGN})")


def entry(text: str, least: int = LEAST, most: int = MOST) -> str:
    """The text as one clean line (M-006).

    Raises: ToolFailed, naming the limit, for a line that is too short or too long.
    """
    line = cleaned(text)
    if len(line) < least or not _says_something(line):
        raise ToolFailed(
            f"a memory is one line with a letter or digit, of at least {least} characters"
        )
    if len(line) > most:
        raise ToolFailed(
            f"a memory has at most {most} characters, this one has {len(line)}:"
            " shorten it, or make several of it"
        )
    return line


def entries(line: str) -> list[str]:
    """The facts in a line of a memories file: none in mere decoration, several if very long."""
    parts = textwrap.wrap(cleaned(line), LONGEST) if len(line) > LONGEST else [line]
    return [text for part in parts if _says_something(text := cleaned(part))]


def cleaned(text: str) -> str:
    """The text in one line, without invisible characters and leading marks of structure."""
    if not text.isprintable():
        text = "".join(mark for mark in text if mark.isspace() or not _invisible(mark))
    line = " ".join(text.split())
    marks = MARKS.match(line)
    return line[marks.end() :] if marks else line


def key(text: str) -> str:
    """What equal facts have in common: the text whatever its case and spacing (M-007)."""
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    return IDLE_BLANK.sub("", " ".join(folded.split()))


def _says_something(line: str) -> bool:
    return any(mark.isalnum() for mark in line)


def _invisible(mark: str) -> bool:
    return unicodedata.category(mark) in DROPPED and mark not in JOINERS
