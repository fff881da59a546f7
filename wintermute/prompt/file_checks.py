"""Checks of files that people edit, before a prompt needs them (F-031)."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from wintermute.errors import ConfigurationError, MemoryFileUnusable, ToolFailed
from wintermute.health.health import StatusLine
from wintermute.memory.core import Places
from wintermute.skills.skills import ENDING, IN_FOLDER, is_skill_file, text_of
from wintermute.templates import read_template, shipped_prompts

FOLDER = "data/prompts"
"""The name of the prompts folder for people, wherever it is."""
SKILLS = "data/skills"
UNTIL_THEN = "until then what they last held is used"

FileStamp = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class FileProblems:
    """The result of a check. `problems`: the error and what to do, by the name of the file."""

    problems: Mapping[str, str]
    prompts: Mapping[str, str]
    """Valid prompt files that changed since the last check: name to text."""


@dataclass(frozen=True, slots=True)
class _File:
    name: str
    path: Path
    read: Callable[[], str | None]


class FileChecks:
    """Opens only the files that changed since the last check. It blocks: call it in a thread."""

    def __init__(self, places: Places, prompts: Path | None) -> None:
        self._places = places
        self._prompts = prompts
        self._needed = [name for name in shipped_prompts() if not name.startswith("SEED_")]
        self._checked: dict[str, tuple[FileStamp | None, str]] = {}

    def check(self) -> FileProblems:
        """Check the files now."""
        problems: dict[str, str] = {}
        fresh: dict[str, str] = {}
        for file in self._files():
            stamp = _stamp(file.path)
            known, problem = self._checked.get(file.name, (None, ""))
            if stamp is None or known != stamp:
                text, problem = _read(file)
                self._checked[file.name] = (stamp, problem)
                if text and file.name.startswith(FOLDER):
                    fresh[file.name] = text
            if problem:
                problems[file.name] = problem
        return FileProblems(problems, fresh)

    def _files(self) -> Iterator[_File]:
        """Yield the memories, the skills, the required prompts, and the existing seeds."""
        for file in self._places.files():
            yield _File(file.name, file.path, file.text)
        skills = self._places.skills()
        for path in sorted((*skills.glob(f"*{ENDING}"), *skills.glob(f"*{IN_FOLDER}{ENDING}"))):
            name = str(path.relative_to(skills))
            if is_skill_file(name):
                yield _File(f"{SKILLS}/{name}", path, partial(_skill, skills, name))
        folder = self._prompts
        if folder is not None:
            seeds = (path.name for path in folder.glob("SEED_*.txt"))
            for name in (*self._needed, *sorted(seeds)):
                yield _File(f"{FOLDER}/{name}", folder / name, partial(read_template, folder, name))


def unusable_files(places: Places, prompts: Path | None = None) -> list[StatusLine]:
    """Return the status line about unusable memory files and prompts; nothing if all are usable."""
    problems = FileChecks(places, prompts).check().problems
    hints = [UNTIL_THEN] if any(not name.startswith(SKILLS) for name in problems) else []
    return (
        [StatusLine("files", "warn", "; ".join([*problems.values(), *hints]))] if problems else []
    )


def _read(file: _File) -> tuple[str | None, str]:
    try:
        return file.read(), ""
    except (MemoryFileUnusable, ConfigurationError, ToolFailed) as problem:
        return None, str(problem)


def unusable_skills(places: Places) -> dict[str, str]:
    """Return the error of each skill that cannot be read (F-056)."""
    problems = FileChecks(places, None).check().problems.items()
    return {name: problem for name, problem in problems if name.startswith(SKILLS)}


def _skill(folder: Path, name: str) -> str | None:
    try:
        return text_of(folder, name.removesuffix(ENDING))
    except ToolFailed as problem:
        raise ToolFailed(f"{problem}: save it as text in UTF-8, or move it away") from None


def _stamp(path: Path) -> FileStamp | None:
    try:
        status = path.lstat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino, status.st_mode
