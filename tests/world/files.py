"""The files below a folder: who has a word, what they say, who may read them."""

import stat
from pathlib import Path

WORD = "zimtkanarie"
"""Its letters are the same in every writing, whatever the rest is escaped to."""


def mode(path: Path) -> int:
    """Read the permissions of a file."""
    return stat.S_IMODE(path.stat().st_mode)


def files_with(folder: Path, word: str = WORD) -> list[str]:
    """The files below a folder that have the word."""
    return [
        path.name
        for path in sorted(folder.rglob("*"))
        if path.is_file() and word.encode() in path.read_bytes().lower()
    ]


def texts_below(root: Path) -> dict[str, str]:
    """Read all files below a folder, by their paths."""
    paths = (path for path in sorted(root.rglob("*")) if path.is_file())
    return {path.relative_to(root).as_posix(): path.read_text() for path in paths}


def texts_in(talk: Path) -> dict[str, str]:
    """Read the files in a folder, by their names."""
    return {file.name: file.read_text() for file in sorted(talk.iterdir())}
