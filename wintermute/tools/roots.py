"""Where the file tools may go, and how a file is reached there without leaving.

A path is only text until it is opened: whoever can swap a folder for a link between a check and
the use wins. So every component is opened from the one before and links are not followed.
"""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePath

from wintermute.conversation.toolbox import Caller
from wintermute.errors import ConfigurationError, ToolFailed
from wintermute.text import clean
from wintermute.tools.reason import for_owner

SKILLS = PurePath("data/skills")
"""What the prompt calls the folder of skills, wherever the data folder is (P-040)."""

NOT_SKILLS = "skills are written with add_skill, which keeps the previous text"

ENTER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW


@dataclass(frozen=True, slots=True)
class Place:
    """A file below an allowed folder, not opened yet."""

    folder: Path
    below: tuple[str, ...]
    shown: str

    @property
    def name(self) -> str:
        """The file's own name."""
        return self.below[-1]


class Roots:
    """The folders of `tools.files.roots`, and the skills for reading.

    Other people than the owner reach the skills only.
    """

    def __init__(self, data_dir: Path, folders: Iterable[Path], owner_scope: str) -> None:
        """Raises: ConfigurationError for a folder inside the data folder, with what it keeps."""
        self._data_dir = data_dir.absolute()
        self._owner_scope = owner_scope
        # Lexically: resolve() would rename folders that the owner reaches through a link.
        self._folders = tuple(Path(os.path.abspath(folder)) for folder in folders)  # noqa: PTH100
        for folder in self._folders:
            if folder.resolve().is_relative_to(data_dir.resolve()):
                raise ConfigurationError(
                    f"tools.files.roots: {folder} lies in the data folder: choose one beside it"
                )

    def find(self, path: str, caller: Caller, *, writing: bool, also: str | None = None) -> Place:
        """The place that `path` means: the first that exists, else the first possible.

        Raises: ToolFailed, naming the allowed folders.
        """
        allowed = self.allowed(caller, writing=writing, also=also)
        if writing and not for_owner(caller, self._owner_scope):
            raise ToolFailed(f"only the owner may have files written; nothing was ({allowed})")
        places = self._places(path, caller)
        if not places or not all(place.below for place in places):
            raise ToolFailed(f"{path} is not a file inside {allowed}")
        return next((place for place in places if self._exists(place)), places[0])

    def allowed(self, caller: Caller, *, writing: bool, also: str | None = None) -> str:
        """The folders this caller may use, in words; `also` is a file beside them."""
        folders = [*([] if writing else [SKILLS]), *self._open_to(caller)]
        words = f"the allowed folders: {', '.join(map(str, folders)) or 'none'}"
        return f"{words}; and the file {also}" if also else words

    @contextmanager
    def opened(self, place: Place, *, make: bool = False) -> Iterator[int]:
        """A descriptor of the folder that holds the file; `make`, to write, creates missing folders.

        Raises: OSError for links and whatever else is in the way.
        """
        folder = os.open(place.folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            for name in place.below[:-1]:
                self._guard(folder, name, make)
                inner = _enter(folder, name, make)
                os.close(folder)
                folder = inner
            self._guard(folder, place.name, make)
            yield folder
        finally:
            os.close(folder)

    def _open_to(self, caller: Caller) -> tuple[Path, ...]:
        return self._folders if for_owner(caller, self._owner_scope) else ()

    def _places(self, path: str, caller: Caller) -> list[Place]:
        wanted = PurePath(path)
        if clean(path) != path or ".." in wanted.parts:
            return []
        for skills in (SKILLS, self._data_dir / "skills"):
            if wanted.is_relative_to(skills):
                below = wanted.relative_to(skills)
                inner = ("skills", *below.parts) if below.parts else ()
                return [Place(self._data_dir, inner, str(SKILLS / below))]
        folders = self._open_to(caller)
        return [
            Place(folder, (folder / wanted).relative_to(folder).parts, str(folder / wanted))
            for folder in folders
            if (folder / wanted).is_relative_to(folder)
        ]

    def _exists(self, place: Place) -> bool:
        try:
            with self.opened(place) as folder:
                os.stat(place.name, dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            return False
        except OSError:
            return True  # in the way: opening it tells what is wrong
        return True

    def _guard(self, folder: int, entry: str, writing: bool) -> None:
        """A root may contain the data folder, or be in it: only the skills are in reach there."""
        found = os.fstat(folder)
        if entry != "skills" and os.path.samestat(found, self._data_dir.stat()):
            raise ToolFailed(f"of Wintermute's own data folder only {SKILLS} can be used")
        if writing:
            with suppress(FileNotFoundError):
                if os.path.samestat(found, (self._data_dir / "skills").stat()):
                    raise ToolFailed(NOT_SKILLS)


def _enter(folder: int, name: str, make: bool) -> int:
    try:
        return os.open(name, ENTER, dir_fd=folder)
    except FileNotFoundError:
        if not make:
            raise
    with suppress(FileExistsError):  # made by another room just now
        os.mkdir(name, dir_fd=folder)
    os.fsync(folder)
    return os.open(name, ENTER, dir_fd=folder)
