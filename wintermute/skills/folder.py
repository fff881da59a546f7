"""The folder of skills: plain files are read, replaced in one step and removed; no link is followed."""

import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import yaml

from wintermute.errors import ToolFailed
from wintermute.ids import new_id
from wintermute.skills.records import Skill
from wintermute.text import one_line

ENDING = ".md"
HEAD = 16_384  # characters in which front matter has to end, and the first line is looked for
OPENING = re.compile(r"[\[{]|[-?:](?=[ \t])")
MOST_OPENINGS = 1_000  # of lists and mappings: to read deep ones takes the square of their depth
TEXT = "tag:yaml.org,2002:str"
FRONT_MATTER = re.compile(
    r"\s*---[ \t]*\n(.*?)^(?:---|\.\.\.)[ \t]*(?:\n|\Z)", re.DOTALL | re.MULTILINE
)
MOST_SHOWN = 200
MOST_BYTES = 1_000_000
PART = ".part_"
STALE = 3_600  # seconds

# Without O_NONBLOCK opening a fifo would wait for its writer for ever.
READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW

Stamp = tuple[int, int, int]
Seen = dict[str, tuple[Stamp, Skill | None]]
"""What each file was when it was looked at, and the skill that was found in it."""


def look(folder: Path, seen: Seen) -> Seen:
    """The files of the folder by name; only those that changed since `seen` are opened.

    Raises: OSError for a folder that cannot be read.
    """
    now: Seen = {}
    with suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            if not is_file_name(entry.name):
                continue
            with suppress(OSError):
                found = entry.stat(follow_symlinks=False)
                if stat.S_ISREG(found.st_mode):
                    mark = (found.st_mtime_ns, found.st_size, found.st_ino)
                    known = seen.get(entry.name)
                    fresh = known if known and known[0] == mark else (mark, _skill(entry))
                    now[entry.name] = fresh
    return now


def is_file_name(name: str) -> bool:
    """Whether a file of this name may be a skill: one clean line, and nothing hidden."""
    return (
        name.endswith(ENDING)
        and not name.startswith(".")
        and name.isprintable()
        and one_line(name) == name
        and "/" not in name
    )


def _skill(entry: "os.DirEntry[str]") -> Skill | None:
    """None for a file without text (P-036)."""
    with (
        suppress(UnicodeDecodeError),
        open(entry.path, encoding="utf-8-sig", opener=_unfollowed) as file,
    ):
        if summary := summary_in(file.read(HEAD)):
            fits = len(summary) <= MOST_SHOWN
            summary = summary if fits else f"{summary[: MOST_SHOWN - 1]}…"
            return Skill(entry.name.removesuffix(ENDING), summary)
    return None


def summary_in(head: str) -> str:
    """What the beginning of a skill says it is for; "" where it has no text.

    That is the `description` of YAML front matter (F-033), or the first line of text. Front matter
    that does not end in the head, or is no mapping, is none.
    """
    matter = FRONT_MATTER.match(head)
    told = _description(matter[1]) if matter else None
    if matter and told is not None:
        head = head[matter.end() :]
    lines = (summary_of(line) for line in head.splitlines())
    return told or next((line for line in lines if line.strip("-. ")), "")


def _description(matter: str) -> str | None:
    """None where it is no front matter; "" where that describes nothing."""
    if len(OPENING.findall(matter)) > MOST_OPENINGS:
        return None
    try:
        # Nodes only: nothing is made of them, however often an alias or a merge stands for them.
        fields = yaml.compose(matter, Loader=yaml.SafeLoader)
    except (yaml.YAMLError, ValueError, RecursionError):
        return None
    if not isinstance(fields, yaml.MappingNode):
        return None if fields else ""
    found = (value for key, value in fields.value if key.value == "description")
    told = next(found, None)
    is_text = isinstance(told, yaml.ScalarNode) and told.tag == TEXT
    return one_line(told.value) if told and is_text else ""


def summary_of(line: str) -> str:
    """What the prompt shows of a first line: the text behind its `#` marks (P-036)."""
    return one_line(line.strip().lstrip("#"))


def _unfollowed(path: str, _flags: int) -> int:
    return os.open(path, READ)


def text_of(folder: Path, name: str) -> str | None:
    """The whole text of a skill; None: there is none.

    Raises: ToolFailed for what is not a plain text file.
    """
    try:
        with open(folder / f"{name}{ENDING}", "rb", opener=_unfollowed) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise ToolFailed(f"{shown(name)} is not a plain file")
            content = file.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise ToolFailed(f"{shown(name)} has more than {MOST_BYTES} bytes")
        return content.decode()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ToolFailed(f"{shown(name)} cannot be opened: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ToolFailed(f"{shown(name)} is not a text file in UTF-8") from error


def new_part(folder: Path) -> Path:
    """Where the new text of a skill is written before it takes the place of the old one."""
    return folder / f".{new_id('part')}"


def prepare(folder: Path, name: str, part: Path, text: str) -> None:
    """The new text of a skill, safe on the disk beside the old one. Raises: ToolFailed."""
    with _told(name):
        folder.mkdir(parents=True, exist_ok=True)
        with os.fdopen(os.open(part, CREATE, 0o666), "wb") as file:
            with suppress(FileNotFoundError):
                os.fchmod(file.fileno(), (folder / f"{name}{ENDING}").lstat().st_mode & 0o777)
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())
        _sweep(folder, part.stat().st_mtime - STALE)


def _sweep(folder: Path, before: float) -> None:
    """Remove the parts that a kill left; a young one may belong to another process."""
    for part in folder.glob(f"{PART}*"):
        with suppress(OSError):
            if part.lstat().st_mtime < before:
                part.unlink()


def place(folder: Path, name: str, part: Path) -> None:
    """Old or new text, whole, whenever the power fails. Raises: ToolFailed."""
    with _told(name):
        part.replace(folder / f"{name}{ENDING}")
        _settle(folder)


def remove(folder: Path, name: str) -> None:
    """No file of that name any more. Raises: ToolFailed."""
    with _told(name):
        (folder / f"{name}{ENDING}").unlink(missing_ok=True)
        _settle(folder)


def shown(name: str) -> str:
    """What the prompt calls the file (P-035)."""
    return f"data/skills/{name}{ENDING}"


def _settle(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _told(name: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ToolFailed(f"{shown(name)} cannot be written: {error.strerror}") from error
