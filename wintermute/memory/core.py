"""The small files of the memory, which people edit too: their paths, and the core memory.

Each person and room has its own (M-013). The core is in every prompt; its form is checked, and a model may change it
only within rules. A lasting problem is logged once.
"""

import asyncio
import hashlib
import logging
import re
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from urllib.parse import quote

from wintermute.errors import MemoryFileUnusable
from wintermute.files import TextFile
from wintermute.health.health import EditedFiles
from wintermute.memory.fact import cleaned, key
from wintermute.memory.lexical_overlap import Successors, succeeds
from wintermute.owner import Owner
from wintermute.text import shortened

HEADERS = ("# SOUL", "# TOOLS", "# RULE", "# USER")
EMPTY_CORE = "# SOUL\n\n# TOOLS\n\n# RULE\n\n# USER\n"
MOST_CORE = 4_000
"""Characters of a page that a model writes."""
# A bar below a line makes it a header; a line inside a fence is no header.
HEADING = re.compile(r" {0,3}#{1,6}(?:[ \t]|$)")
DISGUISED = re.compile(r" {0,3}(?:=+|-{2,}|`{3,}.*|~{3,}.*|#.*|<[a-zA-Z/!].*)\s*")
ITEM = re.compile(r"[ \t]*[-*+][ \t]+(?=\S)")

MEMORIES = "MEMORIES.txt"
CORE = "core.md"
SCOPES = "scopes"
MOST_BYTES = 200
MOST_CORE_BYTES = 1_000_000

log = logging.getLogger(__name__)


def form_problem(text: str) -> str | None:
    """Return what is wrong with the form of a page that a person wrote, in words for them (M-052).

    Missing headers do no harm: the text below the others is clear without them.
    """
    last = -1
    for number, line in enumerate(text.split("\n"), 1):
        if "\r" in line:
            return f"line {number} ends as on Windows: save it with Unix line ends (LF)"
        if not HEADING.match(line):
            continue
        if line.rstrip() not in HEADERS:
            named = shortened(line.strip(), 60)
            return f"line {number} has the header `{named}`: only {_named(HEADERS)} may be there"
        place = HEADERS.index(line.rstrip())
        if place <= last:
            return f"line {number}: each of {_named(HEADERS)} may be there once, in this order"
        last = place
    return None


def page_problem(text: str) -> str | None:
    """Return why a text is no whole page: four headers with bullets below them (M-052); None if it is one."""
    if problem := form_problem(text):
        return problem
    lines = text.split("\n")
    found = {line.rstrip() for line in lines}
    if missing := [header for header in HEADERS if header not in found]:
        return f"the header `{missing[0]}` is missing: all of {_named(HEADERS)} must be there"
    if text.splitlines() != text.removesuffix("\n").split("\n"):
        return "it has a character that ends a line: write plain lines"
    if len(text) > MOST_CORE:
        return f"it has {len(text)} characters: at most {MOST_CORE} are allowed"
    return next(filter(None, (_strange(n, line, lines) for n, line in enumerate(lines, 1))), None)


def _strange(number: int, line: str, lines: Sequence[str]) -> str | None:
    if not line.strip() or line.rstrip() in HEADERS:
        return None
    if not any(each.rstrip() in HEADERS for each in lines[:number]):
        return f"line {number} is before the first header: move it below one"
    if DISGUISED.fullmatch(line) and not ITEM.match(line):
        return f"line {number} is no bullet: begin it with `- `"
    return None


def _named(headers: Sequence[str]) -> str:
    return ", ".join(f"`{header}`" for header in headers)


def bullets(text: str) -> list[str]:
    """Return the bullets of a page, one line each, without marks; continuation lines are joined."""
    found: list[str] = []
    for line in text.splitlines():
        if not line.strip() or HEADING.match(line):
            continue
        if found and line[0] in " \t" and not ITEM.match(line):
            found[-1] = f"{found[-1]} {cleaned(line)}"
        else:
            found.append(cleaned(ITEM.sub("", line, count=1)))
    return [bullet for bullet in found if bullet]


def is_covered_by(bullet: str, other: str) -> bool:
    """Check whether another line covers the bullet: main words, numbers and negations (M-039, M-052)."""
    return Successors([other]).cover(bullet)


def is_forgotten_with(bullet: str, facts: Sequence[str], *, ours: bool) -> bool:
    """Check whether a bullet must go when these facts are forgotten, because it repeats one of them.

    A bullet that a model wrote also goes if one fact covers it; a person's own never does.
    """
    return any(key(bullet) == key(fact) or (ours and is_covered_by(bullet, fact)) for fact in facts)


def lost_bullets(before: str, after: str, free: Collection[str]) -> list[str]:
    """Return the bullets that a new page would lose, except those that are `free` to go, by their keys."""
    new = bullets(after)
    keys = {key(bullet) for bullet in new}
    return [
        bullet
        for bullet in bullets(before)
        if key(bullet) not in keys
        and key(bullet) not in free
        and not any(is_covered_by(bullet, other) for other in new)
    ]


def unowned_bullets(
    before: str, after: str, free: Collection[str], explicit: Sequence[str]
) -> set[str]:
    """Return the keys of the new page's bullets that may go later: nobody typed or stated them.

    `free`: those of the old page. `explicit`: statements by people in the new facts. A bullet that takes over the
    words of a protected one is protected too.
    """
    old = {key(bullet): bullet for bullet in bullets(before)}
    typed = [bullet for name, bullet in old.items() if name not in free]
    found = set()
    for bullet in bullets(after):
        name = key(bullet)
        if name in old:
            found |= {name} & set(free)
        elif not any(is_covered_by(each, bullet) for each in typed) and not any(
            succeeds(said, bullet) for said in explicit
        ):
            found.add(name)
    return found


class Places:
    """Paths of the memory files: the owner's in the data folder itself, all others in a folder per scope."""

    def __init__(self, data_dir: Path, owner: Owner) -> None:
        self._data_dir = data_dir
        self._owner = owner

    @property
    def owner_scope(self) -> str:
        """The scope whose files are in the data folder itself."""
        return self._owner.scope

    def memories(self, scope: str) -> Path:
        """Return the path of the memories file, with one fact per line."""
        return self._data_dir / self._below(scope) / MEMORIES

    def core(self, scope: str) -> Path:
        """Return the path of the core memory."""
        return self._data_dir / self._below(scope) / CORE

    def skills(self) -> Path:
        """Return the folder of skills."""
        return self._data_dir / "skills"

    def memories_file(self, scope: str) -> TextFile:
        """Return the memories file for reading and writing."""
        return self._pair(self._below(scope))[0]

    def core_file(self, scope: str) -> TextFile:
        """Return the core memory for reading and writing."""
        return self._pair(self._below(scope))[1]

    def shown_memories(self, scope: str) -> str:
        """Return the name of the memories file in prompts and tools, wherever the data folder is."""
        return str("data" / self._below(scope) / MEMORIES)

    def files(self) -> list[TextFile]:
        """Return the files of all scopes that have a folder."""
        folders = [PurePosixPath()]
        with suppress(OSError):
            found = sorted((self._data_dir / SCOPES).iterdir())
            folders += [PurePosixPath(SCOPES, folder.name) for folder in found]
        return [file for folder in folders for file in self._pair(folder)]

    def _pair(self, folder: PurePosixPath) -> tuple[TextFile, TextFile]:
        here, shown = self._data_dir / folder, "data" / folder
        return (
            TextFile(here / MEMORIES, str(shown / MEMORIES)),
            TextFile(here / CORE, str(shown / CORE), MOST_CORE_BYTES, form_problem),
        )

    def _below(self, scope: str) -> PurePosixPath:
        if scope == self._owner.scope:
            return PurePosixPath()
        return PurePosixPath(SCOPES, folder_name(scope))


def folder_name(scope: str) -> str:
    """Return a scope as one path component, different for different scopes."""
    name = quote(scope, safe=":@!")
    if not name.strip("."):
        name = "%2E" * len(name)
    if len(name) <= MOST_BYTES:
        return name
    digest = hashlib.sha256(scope.encode()).hexdigest()[:32]
    return f"{name[: MOST_BYTES - len(digest) - 1]}-{digest}"


class WarnOnce:
    """Logs a problem of a scope when it begins or changes, not at each prompt."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._last: dict[str, tuple[str, str]] = {}

    def warn(self, event: str, scope: str, problem: Exception) -> None:
        """Log a warning, unless it is the last one of this scope. `event`: the consequence."""
        said = (event, str(problem))
        if self._last.get(scope) != said:
            self._last[scope] = said
            self._log.warning("%s scope=%s reason=%s", event, scope, problem)

    def resolved(self, scope: str) -> None:
        """Note that all is well, so that the next problem is logged again."""
        self._last.pop(scope, None)


class Core:
    """Reads `core.md` anew each time, so that an edit by hand is in the next prompt (M-053)."""

    def __init__(self, places: Places, edited: EditedFiles) -> None:
        self._places = places
        self._edited = edited
        self._kept: dict[str, str] = {}
        self._warnings = WarnOnce(log)

    async def text(self, scope: str) -> str:
        """Return the file of this scope, or its last known text if it cannot be read (F-031)."""
        file = self._places.core_file(scope)
        try:
            text = await asyncio.to_thread(file.text) or ""
        except MemoryFileUnusable as problem:
            self._warnings.warn("core memory not read, last text stays in use", scope, problem)
            return await self._edited.text(file.name) or ""
        self._warnings.resolved(scope)
        known = self._kept.get(scope)
        if known is None:
            known = await self._edited.text(file.name) or ""
        if text != known:
            await self._edited.keep([(file.name, text)])
        self._kept[scope] = text
        return text
