"""Digests of page lines, and lines that no model is shown until a person has answered (M-082).

These are people's lines that share words with forgotten messages. The list is a file, `sleep/asked`, because
programs that show pages to models may have no database.
"""

from collections.abc import Collection, Iterable
from hashlib import blake2b

from wintermute.errors import FileUnusable
from wintermute.wiki.folder import StoreFolder
from wintermute.wiki.links import JOBS, LINK, RAW
from wintermute.wiki.verdict import lines_of

ASKED = f"{JOBS}/asked"
FURNITURE = ("# ", "```", "~~~", f"Source: [[{RAW}/")
"""Beginnings of lines without content: title, fences, citations."""


def digest(line: str) -> str:
    """Return the digest of a line, whatever its whitespace."""
    return blake2b(" ".join(line.split()).encode(), digest_size=16).hexdigest()


def content_lines(text: str) -> list[str]:
    """Return the lines of a page with content, so without titles, citations and mere links."""
    found = (line for line in lines_of(text) if not line.startswith(FURNITURE))
    return [
        each
        for each in found
        if any(map(str.isalnum, LINK.sub("", each) if "[[" in each else each))
    ]


def withheld_lines(files: StoreFolder) -> frozenset[str]:
    """Return the digests of lines with an open question."""
    try:
        return frozenset(files.exact_text(ASKED).split())
    except (FileNotFoundError, FileUnusable):
        return frozenset()


def update_withheld(
    files: StoreFolder, more: Iterable[str] = (), but: Collection[str] = ()
) -> None:
    """Withhold more lines from models, or show some again. Raises: OSError."""
    known = withheld_lines(files)
    if (wanted := known.union(more).difference(but)) != known:
        files.put(ASKED, "".join(f"{each}\n" for each in sorted(wanted)))


def show_again(files: StoreFolder, lines: Collection[str]) -> None:
    """Show lines to models again, since a person keeps them. Raises: StoreUnusable."""
    with files.writing():
        update_withheld(files, but=lines)


def without_withheld(text: str, asked: Collection[str]) -> str:
    """Return a page as a model is shown it."""
    if not asked:
        return text
    return "".join(line for line in text.splitlines(keepends=True) if digest(line) not in asked)


def with_withheld(text: str, before: str, asked: Collection[str]) -> str:
    """Put withheld lines back into a page written by a model, each behind its former predecessor."""
    end = "\r\n" if "\r\n" in text else "\n"
    lines, known, last, gap = text.split(end), before.splitlines(), "", 0
    for line in known if asked else ():
        if digest(line) in asked and lines.count(line) < known.count(line):
            at = lines.index(last) + 1 if last in lines else len(lines)
            blank = next((n for n, each in enumerate(lines[at:]) if each.strip()), 0)
            lines.insert(at + min(gap, blank), line)
        last, gap = (line, 0) if line.strip() else (last, gap + 1)
    return end.join(lines)
