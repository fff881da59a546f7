"""Tools that read and write text files inside the folders that the owner allowed.

Each part of a path is opened relative to the part before, and links are not followed.
"""

import asyncio
import errno
import io
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import TextIO

from wintermute.conversation.toolbox import Caller
from wintermute.errors import ConfigurationError, MemoryFileUnusable, ToolFailed
from wintermute.files import READ, folder_of, replace
from wintermute.messages import Json
from wintermute.owner import Owner
from wintermute.text import clean
from wintermute.tools.definition import ASK_FIRST, OwnTool, reason
from wintermute.tools.memory import MemoriesView

SKILLS = PurePath("data/skills")
"""Name of the folder of skills in the prompt, wherever the data folder is (P-040)."""

NOT_SKILLS = "skills are written with add_skill, which keeps the previous text"

MOST_LINES = 2_000
MOST_CHARACTERS = 200_000
MOST_BYTES = 1_000_000
NOT_PLAIN = "is not a plain file: links, folders and devices are not opened"
REASONS = {
    errno.ENOENT: "does not exist",
    errno.ELOOP: NOT_PLAIN,
    errno.ENOTDIR: "leads through a link or through something that is not a folder",
    errno.ENXIO: NOT_PLAIN,
}


@dataclass(frozen=True, slots=True)
class AllowedFile:
    """File below an allowed folder, not opened yet."""

    folder: Path
    below: tuple[str, ...]
    shown: str

    @property
    def name(self) -> str:
        """Name of the file without its folders."""
        return self.below[-1]


class Roots:
    """Folders of `tools.files.roots`, and the skills for reading.

    People other than the owner reach only the skills.
    """

    def __init__(self, data_dir: Path, folders: Iterable[Path], owner: Owner) -> None:
        """Raises: ConfigurationError for a folder inside the data folder."""
        self._data_dir = data_dir.absolute()
        self._owner = owner
        # Lexically: resolve() would rename folders that the owner reaches through a link.
        self._folders = tuple(Path(os.path.abspath(folder)) for folder in folders)  # noqa: PTH100
        for folder in self._folders:
            if folder.resolve().is_relative_to(data_dir.resolve()):
                raise ConfigurationError(
                    f"tools.files.roots: {folder} lies in the data folder: choose one beside it"
                )

    def find(
        self, path: str, caller: Caller, *, writing: bool, also: str | None = None
    ) -> AllowedFile:
        """Find the file for `path`: the first that exists, else the first possible.

        Raises: ToolFailed, naming the allowed folders.
        """
        allowed = self.allowed(caller, writing=writing, also=also)
        if writing and not self._owner.may(caller.origin, caller.scope):
            raise ToolFailed(f"only the owner may have files written; nothing was ({allowed})")
        places = self._places(path, caller)
        if not places or not all(place.below for place in places):
            raise ToolFailed(f"{path} is not a file inside {allowed}")
        return next((place for place in places if self._exists(place)), places[0])

    def is_skill(self, path: str) -> bool:
        """Decide if a path leads into the folder of skills, which count as the owner's own words."""
        wanted = PurePath(path)
        return any(map(wanted.is_relative_to, (SKILLS, self._data_dir / "skills")))

    def allowed(self, caller: Caller, *, writing: bool, also: str | None = None) -> str:
        """Name the folders that this caller may use; `also` is a file beside them."""
        folders = [*([] if writing else [SKILLS]), *self._folders_for(caller)]
        words = f"the allowed folders: {', '.join(map(str, folders)) or 'none'}"
        return f"{words}; and the file {also}" if also else words

    @contextmanager
    def opened(self, place: AllowedFile, *, make: bool = False) -> Iterator[int]:
        """Open the folder of the file; `make` creates missing folders, for writing.

        Raises: OSError for links and other obstacles.
        """
        with folder_of(place.folder, place.below, make=make, guard=self._check_folder) as folder:
            yield folder

    def _folders_for(self, caller: Caller) -> tuple[Path, ...]:
        return self._folders if self._owner.may(caller.origin, caller.scope) else ()

    def _places(self, path: str, caller: Caller) -> list[AllowedFile]:
        wanted = PurePath(path)
        if clean(path) != path or ".." in wanted.parts:
            return []
        for skills in (SKILLS, self._data_dir / "skills"):
            if wanted.is_relative_to(skills):
                below = wanted.relative_to(skills)
                inner = ("skills", *below.parts) if below.parts else ()
                return [AllowedFile(self._data_dir, inner, str(SKILLS / below))]
        folders = self._folders_for(caller)
        return [
            AllowedFile(folder, (folder / wanted).relative_to(folder).parts, str(folder / wanted))
            for folder in folders
            if (folder / wanted).is_relative_to(folder)
        ]

    def _exists(self, place: AllowedFile) -> bool:
        try:
            with self.opened(place) as folder:
                os.stat(place.name, dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            return False
        except OSError:
            return True  # an obstacle: opening it gives the reason
        return True

    def _check_folder(self, folder: int, entry: str, writing: bool) -> None:
        """Refuse the data folder within a root, except for the skills. Raises: ToolFailed."""
        state = os.fstat(folder)
        if entry != "skills" and os.path.samestat(state, self._data_dir.stat()):
            raise ToolFailed(f"of Wintermute's own data folder only {SKILLS} can be used")
        if writing:
            with suppress(FileNotFoundError):
                if os.path.samestat(state, (self._data_dir / "skills").stat()):
                    raise ToolFailed(NOT_SKILLS)


class ReadFile(OwnTool):
    """Tool `read_file(path, offset, limit)`: a text file, or one page of it."""

    name = "read_file"
    doing = "reading a file"
    durable = True

    def __init__(self, roots: Roots, memories: MemoriesView | None = None) -> None:
        self._roots = roots
        self._memories = memories

    def is_untrusted(self, caller: Caller, args: Json, result: object) -> bool:
        """Decide if the result is untrusted: it is neither a skill nor the list of memories."""
        shown = _memories_path(self._memories, caller)
        return not self._roots.is_skill(args["path"]) and not (
            shown and _is_memories(shown, args["path"])
        )

    async def run(self, caller: Caller, args: Json) -> object:
        """Return the text; if lines are left out, a last line says which part this is."""
        path = args["path"]
        first = int(args.get("offset", 1))
        most = min(int(args.get("limit", MOST_LINES)), MOST_LINES)
        shown = _memories_path(self._memories, caller)
        if self._memories and shown and _is_memories(shown, path):
            with _memory_errors():
                text = await self._memories.text(caller.scope)
            return _page(io.StringIO(text), shown, first, most)
        return await asyncio.to_thread(self._read, path, caller, first, most, shown)

    def _read(self, path: str, caller: Caller, first: int, most: int, also: str | None) -> str:
        place = self._roots.find(path, caller, writing=False, also=also)
        with (
            _tool_errors(place, self._roots.allowed(caller, writing=False, also=also)),
            self._roots.opened(place) as folder,
            _plain_file(place, folder) as file,
        ):
            return _page(file, place.shown, first, most)


class WriteFile(OwnTool):
    """Tool `write_file(path, content)`: a whole text file, new or replaced in one step."""

    name = "write_file"
    doing = "writing a file"
    durable = False

    def __init__(self, roots: Roots, memories: MemoriesView | None = None) -> None:
        self._roots = roots
        self._memories = memories

    async def run(self, caller: Caller, args: Json) -> object:
        """Write the file and return its path and size.

        The memories of a scope belong to the person who talks there, not only to the owner.
        """
        path, content = args["path"], args["content"]
        shown = _memories_path(self._memories, caller)
        if self._memories and shown and _is_memories(shown, path):
            if caller.only_adds:
                raise ToolFailed(ASK_FIRST)
            _encoded(shown, content)
            with _memory_errors():
                return await self._memories.replace(
                    caller.scope, content, reason(caller), caller.begun
                )
        return await asyncio.to_thread(self._write, path, caller, content, shown)

    def _write(self, path: str, caller: Caller, content: str, also: str | None) -> Json:
        place = self._roots.find(path, caller, writing=True, also=also)
        content_bytes = _encoded(place.shown, content)
        with (
            _tool_errors(place, self._roots.allowed(caller, writing=True, also=also)),
            self._roots.opened(place, make=True) as folder,
        ):
            created = _replace(place, folder, content_bytes, only_new=caller.only_adds)
        return {"path": place.shown, "bytes": len(content_bytes), "created": created}


def _memories_path(memories: MemoriesView | None, caller: Caller) -> str | None:
    return memories.shown_path(caller.scope) if memories else None


def _is_memories(shown: str, path: str) -> bool:
    """Check if the path is this scope's memories file. Raises: ToolFailed for another scope's (M-011)."""
    wanted, own = PurePath(path), PurePath(shown)
    if wanted != own and wanted.parts[:1] == own.parts[:1] and wanted.name == own.name:
        raise ToolFailed(f"{path} is out of reach here; the memories file is {shown}")
    return wanted == own


@contextmanager
def _memory_errors() -> Iterator[None]:
    try:
        yield
    except MemoryFileUnusable as error:
        raise ToolFailed(str(error)) from error


@contextmanager
def _plain_file(place: AllowedFile, folder: int) -> Iterator[TextIO]:
    descriptor = os.open(place.name, READ, dir_fd=folder)
    try:
        _expect_plain(place, os.fstat(descriptor))
        with os.fdopen(descriptor, encoding="utf-8", newline="\n", closefd=False) as file:
            yield file
    finally:
        os.close(descriptor)


def _page(file: TextIO, shown: str, first: int, most: int) -> str:
    """Return lines of a file; no more of it is held in memory than one line beyond them.

    A line longer than a page counts as several, so that every page makes progress.
    """
    number = 1
    while number < first:
        if not file.readline(MOST_CHARACTERS):
            raise ToolFailed(f"{shown} has only {number - 1} lines")
        number += 1
    lines: list[str] = []
    room = MOST_CHARACTERS
    while line := file.readline(MOST_CHARACTERS):
        if len(lines) == most or len(line) > room:
            last = first + len(lines) - 1
            return f"{''.join(lines)}\n[lines {first}-{last} of {shown}; next offset: {last + 1}]"
        if "\0" in line:
            raise ToolFailed(f"{shown} is not a text file")
        lines.append(line)
        room -= len(line)
    return "".join(lines)


def _encoded(shown: str, content: str) -> bytes:
    try:
        content_bytes = content.encode()
    except UnicodeEncodeError as error:
        raise ToolFailed(f"the content holds a broken character at {error.start}") from error
    if len(content_bytes) > MOST_BYTES:
        raise ToolFailed(
            f"{shown} would have {len(content_bytes)} bytes; at most {MOST_BYTES} are written"
        )
    return content_bytes


def _replace(place: AllowedFile, folder: int, content: bytes, *, only_new: bool) -> bool:
    """Replace the file atomically; True if it is new."""
    before: os.stat_result | None = None
    with suppress(FileNotFoundError):
        before = os.stat(place.name, dir_fd=folder, follow_symlinks=False)
    if before:
        _expect_plain(place, before)
        if only_new:
            raise ToolFailed(ASK_FIRST)
    replace(Path(place.name), content, folder=folder)
    return before is None


def _expect_plain(place: AllowedFile, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise ToolFailed(f"{place.shown} {NOT_PLAIN}")


@contextmanager
def _tool_errors(place: AllowedFile, allowed: str) -> Iterator[None]:
    """Turn errors of the system into messages for the model. Raises: ToolFailed."""
    try:
        yield
    except OSError as error:
        reason = REASONS.get(error.errno or 0) or error.strerror or "cannot be opened"
        raise ToolFailed(f"{place.shown} {reason} ({allowed})") from error
    except UnicodeDecodeError as error:
        raise ToolFailed(f"{place.shown} is not a text file in UTF-8") from error
