"""The small files of the memory, which people edit too: where they lie, and the core among them.

Each person and room has its own (M-013). The core is in every prompt. Problems that last are said
once.
"""

import asyncio
import hashlib
import logging
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from urllib.parse import quote

from wintermute.errors import FileUnusable, MemoryFileUnusable
from wintermute.files import content_of, decoded, sync_folder
from wintermute.health.health import EditedFiles
from wintermute.owner import Owner

MOST_FILE_BYTES = 50_000_000
MOST_LINE = 1_000_000

WRITE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW


@dataclass(frozen=True, slots=True)
class TextFile:
    """One such file. `name` is what prompt and tools call it, and the messages of its errors."""

    path: Path
    name: str
    most: int = MOST_FILE_BYTES

    def text(self) -> str | None:
        """Its text; None when there is no such file. Raises: MemoryFileUnusable."""
        content = self.content()
        return None if content is None else self.decoded(content)

    def decoded(self, content: bytes) -> str:
        """Its bytes as text. Raises: MemoryFileUnusable."""
        try:
            text = decoded(content)
        except FileUnusable as problem:
            raise MemoryFileUnusable(f"{self.name} {problem}") from problem
        if len(text) > MOST_LINE and max(map(len, text.splitlines())) > MOST_LINE:
            raise MemoryFileUnusable(
                f"{self.name} has a line of over {MOST_LINE} characters: break it up"
            )
        return text

    def content(self) -> bytes | None:
        """What a plain file holds; None when there is none. Raises: MemoryFileUnusable."""
        try:
            return content_of(self.path, self.most, follow=False)
        except FileUnusable as problem:
            raise MemoryFileUnusable(f"{self.name} {problem}") from problem

    def saved_at(self) -> float:
        """When it was last saved, in seconds since 1970; 0 where nobody knows."""
        try:
            return self.path.stat().st_mtime
        except OSError:
            return 0.0

    def replace(self, text: str, seen: bytes | None) -> bool:
        """Replace it in one step, unless it is no longer what was `seen`: then False.

        An edit that was saved since is never overwritten. Raises: MemoryFileUnusable.
        """
        # Always the same name, so that a crash leaves at most one copy, and that is overwritten.
        part = self.path.with_name(f".{self.path.name}.part")
        try:
            folder = self.path.parent
            folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            folder.mkdir(mode=0o700, exist_ok=True)
            _write(part, text.encode())
            if self.content() != seen:
                part.unlink()
                return False
            part.replace(self.path)
            sync_folder(folder)
        except OSError as error:
            with suppress(OSError):
                part.unlink()
            raise MemoryFileUnusable(f"{self.name} cannot be written: {error.strerror}") from error
        return True


def _write(path: Path, content: bytes) -> None:
    descriptor = os.open(path, WRITE, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(descriptor)


MEMORIES = "MEMORIES.txt"
CORE = "core.md"
SCOPES = "scopes"
MOST_BYTES = 200
MOST_CORE_BYTES = 1_000_000


class Places:
    """The owner's files lie in the data folder itself, all others in a folder per scope."""

    def __init__(self, data_dir: Path, owner: Owner) -> None:
        self._data_dir = data_dir
        self._owner = owner

    @property
    def owner_scope(self) -> str:
        """Whose files lie in the data folder itself."""
        return self._owner.scope

    def memories(self, scope: str) -> Path:
        """The file of facts, one per line."""
        return self._data_dir / self._below(scope) / MEMORIES

    def core(self, scope: str) -> Path:
        """The core memory."""
        return self._data_dir / self._below(scope) / CORE

    def skills(self) -> Path:
        """The folder of skills."""
        return self._data_dir / "skills"

    def memories_file(self, scope: str) -> TextFile:
        """The file of facts, to be read and written."""
        return self._pair(self._below(scope))[0]

    def core_file(self, scope: str) -> TextFile:
        """The core memory, to be read and written."""
        return self._pair(self._below(scope))[1]

    def shown_memories(self, scope: str) -> str:
        """What prompt and tools call the file of facts, wherever the data folder is."""
        return str("data" / self._below(scope) / MEMORIES)

    def files(self) -> list[TextFile]:
        """The files of everybody for whom there may be one."""
        folders = [PurePosixPath()]
        with suppress(OSError):
            found = sorted((self._data_dir / SCOPES).iterdir())
            folders += [PurePosixPath(SCOPES, folder.name) for folder in found]
        return [file for folder in folders for file in self._pair(folder)]

    def _pair(self, folder: PurePosixPath) -> tuple[TextFile, TextFile]:
        here, shown = self._data_dir / folder, "data" / folder
        return (
            TextFile(here / MEMORIES, str(shown / MEMORIES)),
            TextFile(here / CORE, str(shown / CORE), MOST_CORE_BYTES),
        )

    def _below(self, scope: str) -> PurePosixPath:
        if scope == self._owner.scope:
            return PurePosixPath()
        return PurePosixPath(SCOPES, folder_name(scope))


def folder_name(scope: str) -> str:
    """A scope as exactly one part of a path, different for different scopes."""
    name = quote(scope, safe=":@!")
    if not name.strip("."):
        name = "%2E" * len(name)
    if len(name) <= MOST_BYTES:
        return name
    digest = hashlib.sha256(scope.encode()).hexdigest()[:32]
    return f"{name[: MOST_BYTES - len(digest) - 1]}-{digest}"


class SaidOnce:
    """Warns of a problem of a scope when it begins or becomes another, not at each prompt."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._last: dict[str, tuple[str, str]] = {}

    def warn(self, event: str, scope: str, problem: Exception) -> None:
        """`event` is what comes of it."""
        said = (event, str(problem))
        if self._last.get(scope) != said:
            self._last[scope] = said
            self._log.warning("%s scope=%s reason=%s", event, scope, problem)

    def over(self, scope: str) -> None:
        """All is well: the next problem is a new one."""
        self._last.pop(scope, None)


log = logging.getLogger(__name__)


class Core:
    """Reads `core.md` anew each time, so that an edit by hand is in the next prompt (M-053)."""

    def __init__(self, places: Places, edited: EditedFiles) -> None:
        self._places = places
        self._edited = edited
        self._kept: dict[str, str] = {}
        self._said = SaidOnce(log)

    async def text(self, scope: str) -> str:
        """The file of this scope, or what it last held where it cannot be read (F-031)."""
        file = self._places.core_file(scope)
        try:
            text = await asyncio.to_thread(file.text) or ""
        except MemoryFileUnusable as problem:
            self._said.warn("core memory not read, last text stays in use", scope, problem)
            return await self._edited.text(file.name) or ""
        self._said.over(scope)
        known = self._kept.get(scope)
        if known is None:
            known = await self._edited.text(file.name) or ""
        if text != known:
            await self._edited.keep([(file.name, text)])
        self._kept[scope] = text
        return text
