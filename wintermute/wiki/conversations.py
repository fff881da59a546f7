"""Conversations as folders of message files, `NNNN-ROLE.md`, in the order of their names (W-036).

People put files there as well, change and remove them. `meta/conversations.json` lists the folders.
"""

import fcntl
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Literal, get_args

from wintermute.errors import FileUnusable, StoreUnusable, WintermuteError
from wintermute.files import folder_of
from wintermute.wiki.folder import StoreFolder, told
from wintermute.wiki.links import CONVERSATIONS
from wintermute.wiki.store import LISTED

Role = Literal["system", "user", "assistant"]
ROLES: Mapping[str, Role] = {role: role for role in get_args(Role)}
NAME = re.compile(r"(?:(\d+)-)?(?:.*-)?(system|user|assistant)\.md", re.DOTALL)
SYSTEM = "0000-system.md"
"""Before whatever somebody has put there."""


@dataclass(frozen=True, slots=True)
class MessageFile:
    """One message. `name`: that of its file."""

    name: str
    role: Role
    text: str


class ConversationFolder:
    """One conversation: a folder in a store, or anywhere for who sits at the machine (W-038)."""

    def __init__(self, root: Path, below: str = "") -> None:
        """`below`: the folder's path in the store `root`; "": the folder is `root` itself.

        Raises: WintermuteError when it is no such folder.
        """
        self._files = StoreFolder(root)
        self._below = f"{below}/" if below else ""
        self.path = root / below if below else root

    def messages(self) -> tuple[MessageFile, ...]:
        """Those that are there now, in order. Raises: WintermuteError for what is no message."""
        found = []
        for name in self._names():
            match = NAME.fullmatch(name)
            if match is None:
                continue
            try:
                text = self._files.exact(self._below + name)
            except (FileUnusable, FileNotFoundError) as problem:
                raise WintermuteError(f"{self.path / name}: {problem}") from problem
            found.append(MessageFile(name, ROLES[match[2]], text.rstrip("\n")))
        return tuple(found)

    def strangers(self) -> tuple[str, ...]:
        """The names of what is no message file."""
        return tuple(name for name in self._names() if not NAME.fullmatch(name))

    def _names(self) -> list[str]:
        parts = [*self._below.split("/")] if self._below else [""]
        try:
            with folder_of(self._files.root, parts) as folder, os.scandir(folder) as entries:
                return sorted(entry.name for entry in entries if not entry.name.startswith("."))
        except OSError as error:
            raise WintermuteError(f"{self.path}: no conversation: {error.strerror}") from error

    def append(self, role: Role, text: str) -> str:
        """Write a message behind all others; the name of its file.

        Within `held`, else two could take one number. Raises: StoreUnusable.
        """
        numbers = (NAME.fullmatch(name) for name in self._names())
        last = max((int(found[1] or 0) for found in numbers if found), default=0)
        name = SYSTEM if role == "system" and not last else f"{last + 1:04}-{role}.md"
        with told(self.path):
            self._files.put(self._below + name, f"{text}\n")
        return name

    @contextmanager
    def held(self) -> Iterator[None]:
        """A block in which nobody else adds to it: whoever comes meanwhile waits."""
        with told(self.path):
            folder = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            yield
        finally:
            os.close(folder)


def create(files: StoreFolder, now: datetime) -> str:
    """A new, empty conversation in a store, listed; its path there (W-037).

    `now`: the local time. Within `StoreFolder.writing`.
    """
    known, stem, n = listed(files), f"{CONVERSATIONS}/{now:%Y%m%d-%H%M%S}", 1
    path = stem
    while path in known or not _made(files.root, path):
        n += 1
        path = f"{stem}-{n}"
    enlist(files, path)
    return path


def _made(root: Path, path: str) -> bool:
    parts = path.split("/")
    with folder_of(root, parts, make=True) as folder:
        try:
            os.mkdir(parts[-1], dir_fd=folder)
        except FileExistsError:
            return False
        os.fsync(folder)
    return True


def enlist(files: StoreFolder, *paths: str) -> None:
    """List conversations that are not yet. Within `StoreFolder.writing`. Raises: StoreUnusable."""
    known = listed(files)
    new = [path for path in dict.fromkeys(paths) if path not in known]
    if new:
        _list(files, (*known, *new))


def delist(files: StoreFolder, *paths: str) -> None:
    """Conversations are listed no more; their files stay. As `enlist`."""
    known = listed(files)
    left = [path for path in known if path not in paths]
    if len(left) < len(known):
        _list(files, left)


def _list(files: StoreFolder, paths: Sequence[str]) -> None:
    files.put(LISTED, json.dumps([*paths], indent=2, ensure_ascii=False) + "\n")


def listed(files: StoreFolder) -> tuple[str, ...]:
    """The paths of the conversations of a store, in the order in which they were listed.

    Raises: StoreUnusable, naming file and line, for a list that is damaged (W-039).
    """
    try:
        text = files.exact(LISTED)
        found = json.loads(text)
    except FileNotFoundError:
        return ()
    except FileUnusable as problem:
        raise StoreUnusable(f"{files.root / LISTED}: {problem}") from problem
    except (ValueError, RecursionError) as error:
        line = error.lineno if isinstance(error, json.JSONDecodeError) else 1
        raise StoreUnusable(_damaged(files, line, "is no JSON")) from error
    if not isinstance(found, list):
        raise StoreUnusable(_damaged(files, 1, "is no list of paths"))
    for path in found:
        if not isinstance(path, str):
            raise StoreUnusable(_damaged(files, _line_of(text, path), "is no path"))
    return tuple(found)


def _damaged(files: StoreFolder, line: int, what: str) -> str:
    return f"{files.root / LISTED}:{line}: {what}: mend it by hand, it is not overwritten"


def _line_of(text: str, value: object) -> int:
    before, found, _ = text.partition(json.dumps(value)[:20])
    return before.count("\n") + 1 if found else 1
