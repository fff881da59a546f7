"""Conversations as folders of message files, `NNNN-ROLE.md`, in the order of their numbers (W-036).

People also add, change and remove these files; those without a number come first, by name.
`meta/conversations.json` lists the folders.
"""

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Literal, get_args

from wintermute.errors import FileUnusable, StoreBusy, StoreMissing, StoreUnusable, WintermuteError
from wintermute.files import folder_of, locked
from wintermute.wiki.folder import StoreFolder, disk_errors, missing
from wintermute.wiki.links import CONVERSATIONS, INDEX, RAW, is_name, legible
from wintermute.wiki.store import LISTED

Role = Literal["system", "user", "assistant"]
ROLES: Mapping[str, Role] = {role: role for role in get_args(Role)}
NAME = re.compile(r"(?:(\d{1,18})-)?(?:.*-)?(system|user|assistant)\.md")
SYSTEM = "0000-system.md"
"""Name of a system message before all other messages."""
BUSY = (
    "the last message of this conversation is still being answered: wait for the answer, then try"
    " again"
)


@dataclass(frozen=True, slots=True)
class MessageFile:
    """Message. `name`: name of its file."""

    name: str
    role: Role
    text: str


@dataclass(frozen=True, slots=True)
class FolderPage:
    """Messages in order. `earlier`: name of the first one, if there are more before it."""

    messages: tuple[MessageFile, ...]
    earlier: str | None


class ConversationFolder:
    """Conversation: a folder in a store, or, for somebody at the machine, anywhere (W-038)."""

    def __init__(self, root: Path, below: str = "") -> None:
        """`below`: the folder's path in the store `root`; "": the folder is `root` itself.

        Raises: WintermuteError if it is no such folder.
        """
        self._files = StoreFolder(root)
        self._below = f"{below}/" if below else ""
        self.path = root / below if below else root

    def messages(self) -> tuple[MessageFile, ...]:
        """Return the current messages in order. Raises: WintermuteError for an unreadable file."""
        return tuple(self._read(*each) for each in _in_order(self._names()))

    def page(self, most: int, before: str = "") -> FolderPage:
        """Return the last `most` messages, or those before the named one. Raises: WintermuteError."""
        there = _in_order(self._names())
        names = [name for name, _ in there]
        there = there[: names.index(before)] if before in names else there
        found = tuple(self._read(*each) for each in there[-most:])
        return FolderPage(found, found[0].name if len(there) > most else None)

    def opening(self) -> str:
        """Return a person's first message; "" if there is none. Raises: WintermuteError, as `messages`."""
        first = next((each for each in _in_order(self._names()) if each[1] == "user"), None)
        return self._read(*first).text if first else ""

    def _read(self, name: str, role: Role) -> MessageFile:
        try:
            text = self._files.exact_text(self._below + name)
        except (FileUnusable, FileNotFoundError) as problem:
            raise WintermuteError(f"{legible(str(self.path / name))} {problem}") from problem
        return MessageFile(name, role, text.rstrip("\n"))

    def strangers(self) -> tuple[str, ...]:
        """Return the names of files that are no messages."""
        return tuple(legible(name) for name in self._names() if not _match(name))

    def _names(self) -> list[str]:
        parts = [*self._below.split("/")] if self._below else [""]
        try:
            with folder_of(self._files.root, parts) as folder, os.scandir(folder) as entries:
                return sorted(entry.name for entry in entries if not entry.name.startswith("."))
        except OSError as error:
            named = legible(str(self.path))
            raise WintermuteError(f"{named} is no conversation: {error.strerror}") from error

    def append(self, role: Role, text: str) -> str:
        """Write a message after all others, or the first system message before them; return its file name.

        The caller holds `held`, else two messages could get one number. Raises: WintermuteError.
        """
        if self._below.startswith(f"{RAW}/"):
            raise WintermuteError(f"{self._below} is kept word for word: nothing is added to it")
        there = _in_order(self._names())
        last = max((_number(name) for name, _ in there), default=0)
        is_first = role == "system" and all(each != "system" for _, each in there)
        name = SYSTEM if is_first else f"{last + 1:04}-{role}.md"
        with disk_errors(self.path):
            self._files.put(self._below + name, f"{text}\n")
        return name

    @contextmanager
    def held(self, patience: float | None = None) -> Iterator[None]:
        """Lock the conversation against other writers, who wait.

        Raises: StoreBusy if somebody else holds the lock for longer than `patience` seconds.
        """
        with ExitStack() as stack:
            with disk_errors(self.path):
                try:
                    stack.enter_context(locked(self.path, patience=patience))
                except BlockingIOError as error:
                    raise StoreBusy(BUSY) from error
            yield


def _match(name: str) -> re.Match[str] | None:
    return NAME.fullmatch(name) if is_name(name) else None


def _number(name: str) -> int:
    match = _match(name)
    return int(match[1] or 0) if match else 0


def _in_order(names: list[str]) -> list[tuple[str, Role]]:
    """Return the message files in order, each with its role."""
    messages = [(name, ROLES[match[2]]) for name in names if (match := _match(name))]
    return sorted(messages, key=lambda each: (_number(each[0]), each[0]))


def create(files: StoreFolder, now: datetime) -> str:
    """Create and list an empty conversation in a store; return its path (W-037).

    `now`: the local time. Within `StoreFolder.writing`. Raises: StoreMissing (W-005).
    """
    if files.presence(INDEX) != "file":
        raise StoreMissing(missing(files.root))
    known, stem, n = listed(files), f"{CONVERSATIONS}/{now:%Y%m%d-%H%M%S}", 1
    path = stem
    while path in known or not files.make_folder(path):
        n += 1
        path = f"{stem}-{n}"
    enlist(files, path)
    return path


def enlist(files: StoreFolder, *paths: str) -> None:
    """Add conversations to the list. Within `StoreFolder.writing`. Raises: StoreUnusable."""
    known = listed(files)
    new = [path for path in dict.fromkeys(paths) if path not in known]
    if new:
        _list(files, (*known, *new))


def delist(files: StoreFolder, *paths: str) -> None:
    """Remove conversations from the list; their files stay. Within `StoreFolder.writing`. Raises: StoreUnusable."""
    known = listed(files)
    left = [path for path in known if path not in paths]
    if len(left) < len(known):
        _list(files, left)


def _list(files: StoreFolder, paths: Sequence[str]) -> None:
    odd = not all(map(is_encodable, paths))  # another program may have written them
    files.put(LISTED, json.dumps([*paths], indent=2, ensure_ascii=odd) + "\n")


def listed(files: StoreFolder) -> tuple[str, ...]:
    """Return the paths of a store's conversations in the order of the list.

    Raises: StoreUnusable, naming file and line, for a damaged list (W-039).
    """
    try:
        text = files.exact_text(LISTED)
        paths = json.loads(text)
    except FileNotFoundError:
        return ()
    except FileUnusable as problem:
        raise StoreUnusable(f"{files.root / LISTED}: {problem}") from problem
    except (ValueError, RecursionError) as error:
        line = error.lineno if isinstance(error, json.JSONDecodeError) else 1
        raise StoreUnusable(_damaged(files, line, "is no JSON")) from error
    if not isinstance(paths, list):
        raise StoreUnusable(_damaged(files, 1, "is no list of paths"))
    for path in paths:
        if not isinstance(path, str):
            raise StoreUnusable(_damaged(files, _line_of(text, path), "is no path"))
    return tuple(paths)


def is_encodable(path: str) -> bool:
    """Decide if a path can be a file name: a lone surrogate cannot be encoded."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def is_there(files: StoreFolder, path: str) -> bool:
    """Check if the folder of a listed conversation exists."""
    return os.path.isdir(files.root / path)  # noqa: PTH112  Path's own may raise


def _damaged(files: StoreFolder, line: int, what: str) -> str:
    return f"{files.root / LISTED}:{line}: {what}: correct it by hand, for Wintermute does not overwrite it"


def _line_of(text: str, value: object) -> int:
    before, found, _ = text.partition(json.dumps(value)[:20])
    return before.count("\n") + 1 if found else 1
