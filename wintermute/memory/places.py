"""Where the memory files of each person and room lie (M-013)."""

import hashlib
from contextlib import suppress
from pathlib import Path, PurePosixPath
from urllib.parse import quote

from wintermute.memory.files import TextFile

MEMORIES = "MEMORIES.txt"
CORE = "core.md"
SCOPES = "scopes"
MOST_BYTES = 200
MOST_CORE_BYTES = 1_000_000


class Places:
    """The owner's files lie in the data folder itself, all others in a folder per scope."""

    def __init__(self, data_dir: Path, owner: str) -> None:
        self._data_dir = data_dir
        self._owner = f"person:{owner}"

    def memories(self, scope: str) -> Path:
        """The file of facts, one per line."""
        return self._data_dir / self._below(scope) / MEMORIES

    def core(self, scope: str) -> Path:
        """The core memory."""
        return self._data_dir / self._below(scope) / CORE

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
        if scope == self._owner:
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
