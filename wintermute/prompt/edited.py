"""Looks whether the files that people edit can be used, before a prompt needs them (F-031)."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from wintermute.errors import ConfigurationError, MemoryFileUnusable
from wintermute.health.report import Fact
from wintermute.memory.places import Places
from wintermute.templates import read_template, shipped_prompts

FOLDER = "data/prompts"
"""What the folder of prompts is called, wherever it is."""
UNTIL_THEN = "until then what they last held is used"

Stamp = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class Looked:
    """What was found. `problems`: what is wrong and what to do, by the name of the file."""

    problems: Mapping[str, str]
    prompts: Mapping[str, str]
    """The prompt files that are in order and changed since the last look: name to text."""


@dataclass(frozen=True, slots=True)
class _File:
    name: str
    path: Path
    read: Callable[[], str | None]


class EditedLook:
    """Opens only what changed since the last look. It blocks: call it in a thread."""

    def __init__(self, places: Places, prompts: Path | None) -> None:
        self._places = places
        self._prompts = prompts
        self._seen: dict[str, tuple[Stamp | None, str]] = {}

    def look(self) -> Looked:
        """As the files are now."""
        problems: dict[str, str] = {}
        fresh: dict[str, str] = {}
        for file in self._files():
            stamp = _stamp(file.path)
            seen, problem = self._seen.get(file.name, (None, ""))
            if stamp is None or seen != stamp:
                text, problem = _read(file)
                self._seen[file.name] = (stamp, problem)
                if text and file.name.startswith(FOLDER):
                    fresh[file.name] = text
            if problem:
                problems[file.name] = problem
        return Looked(problems, fresh)

    def _files(self) -> Iterator[_File]:
        for file in self._places.files():
            yield _File(file.name, file.path, file.text)
        if self._prompts is not None:
            yield from _prompt_files(self._prompts)


def unusable_files(places: Places, prompts: Path | None = None) -> list[Fact]:
    """What a status says of memory files, and of prompts, that cannot be used; nothing of others."""
    problems = EditedLook(places, prompts).look().problems
    return [Fact("files", "warn", "; ".join([*problems.values(), UNTIL_THEN]))] if problems else []


def _prompt_files(folder: Path) -> Iterator[_File]:
    """Those that must be there, and the seeds that are."""
    needed = {name for name in shipped_prompts() if not name.startswith("SEED_")}
    for name in sorted({*needed, *(path.name for path in folder.glob("SEED_*.txt"))}):
        yield _File(f"{FOLDER}/{name}", folder / name, partial(read_template, folder, name))


def _read(file: _File) -> tuple[str | None, str]:
    try:
        return file.read(), ""
    except (MemoryFileUnusable, ConfigurationError) as problem:
        return None, str(problem)


def _stamp(path: Path) -> Stamp | None:
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino, found.st_mode
