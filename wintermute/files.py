"""Text files that people edit: read whole, whatever stands in their place by now (F-031).

What is written to one is on the disk, whenever the power fails.

All locks between processes are flocks, and die with their process. Whoever holds one may wait for
those below it, and never for one above:

    data/wintermute.lock  the daemon, `chat`, `demo`, `matrix logout`  a second one is refused
    data/night.lock       a night                                      a second one is refused
    STORE/sleep/          who makes pages (`wiki consolidate`)         refused; `--wait`: waits
    data/placing.lock     who puts files of items in place, forgets    waits
    a CONVERSATION/       who adds a message to it                     waits; a page of ours: 5 seconds
    STORE/                who writes (alone) or reads (shared)         waits 5 seconds; who writes: 30
    data/                 who takes one of the first two, a moment     waits
    wintermute-pages-*    the job that works on this copy of a store   others leave the copy alone
"""

import asyncio
import codecs
import ctypes
import errno
import os
import secrets
import stat
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, suppress
from fcntl import LOCK_EX, LOCK_NB, LOCK_SH, flock
from pathlib import Path
from typing import TypeVar

from wintermute.errors import FileUnusable

# Without O_NONBLOCK opening a fifo would wait for its writer for ever.
READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY
ENTER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
FOLDER = os.O_RDONLY | os.O_DIRECTORY
LOCK_FILE = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
HERE, NOREPLACE, EXCHANGE = -100, 1, 2
"""Flags of renameat2(2)."""
STALE = 3_600.0  # seconds
PAUSE = 0.01
T = TypeVar("T")
Guard = Callable[[int, str, bool], None]
"""Told of each folder, what is entered in it, and whether to write; raises where that may not be."""


def unguarded(_folder: int, _entry: str, _writing: bool, /) -> None:
    """Everything may be entered."""


@contextmanager
def folder_of(
    root: Path, below: Sequence[str], *, make: bool = False, guard: Guard = unguarded
) -> Iterator[int]:
    """A descriptor of the folder that holds a file, whose names `below` the root end with its own.

    A path is only text until it is opened: whoever can swap a folder for a link between a check and
    the use wins. So each is opened from the one before, and no link is followed below the root.
    `make` creates what is missing. Raises: OSError for links and whatever else is in the way.
    """
    if any(name == ".." or "/" in name for name in below):
        raise OSError(errno.EACCES, "leads out of its folder", "/".join(below))
    folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for name in below[:-1]:
            guard(folder, name, make)
            inner = _enter(folder, name, make)
            os.close(folder)
            folder = inner
        guard(folder, below[-1], make)
        yield folder
    finally:
        os.close(folder)


def _enter(folder: int, name: str, make: bool) -> int:
    try:
        return os.open(name, ENTER, dir_fd=folder)
    except FileNotFoundError:
        if not make:
            raise
    with suppress(FileExistsError):  # made by somebody else just now
        os.mkdir(name, dir_fd=folder)
    os.fsync(folder)
    return os.open(name, ENTER, dir_fd=folder)


def content_of(path: Path, most: int, *, follow: bool) -> bytes | None:
    """What a plain file of at most so many bytes holds; None when there is none.

    `follow`: a link to such a file will do. Raises: FileUnusable.
    """
    try:
        descriptor = os.open(path, READ if follow else READ | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise FileUnusable("is a link: put the file itself there") from error
        raise FileUnusable(f"cannot be read: {error.strerror}") from error
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise FileUnusable("is not a plain file: move it aside")
        if found.st_size > most:
            raise FileUnusable(f"has over {most} bytes: shorten it")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return file.read()
    except OSError as error:
        raise FileUnusable(f"cannot be read: {error.strerror}") from error
    finally:
        os.close(descriptor)


def write_new(
    path: Path | str,
    content: bytes,
    mode: int = 0o600,
    *,
    like: os.stat_result | None = None,
    folder: int | None = None,
) -> None:
    """Write a file that was not there; what it holds survives a power cut. Raises: OSError.

    `like`: the file whose place it will take, and whose mode it has then. `folder`: as `dir_fd`.
    """
    descriptor = os.open(path, CREATE, mode, dir_fd=folder)
    with os.fdopen(descriptor, "wb") as file:
        if like is not None:
            os.fchmod(descriptor, like.st_mode & 0o777)
        file.write(content)
        file.flush()
        os.fsync(descriptor)


def own_name(stem: str) -> str:
    """The name of a new text beside the old one, which no other writer has."""
    return f"{stem}_{secrets.token_hex(8)}-{os.getpid()}"


def sweep(part: Path, pattern: str) -> None:
    """Remove the parts that a kill left beside a new one."""
    for other in left_parts(part, pattern):
        with suppress(OSError):
            other.unlink()


def left_parts(beside: Path, pattern: str) -> Iterator[Path]:
    """Find the parts that a kill left; others may still be written."""
    before = beside.stat().st_mtime - STALE
    for part in beside.parent.glob(pattern):
        with suppress(OSError):
            if part.lstat().st_mtime < before or _is_abandoned(part.name):
                yield part


def _is_abandoned(name: str) -> bool:
    """Tell if the process that gave this name is gone."""
    try:
        os.kill(int(name.rpartition("-")[2]), 0)
    except (OSError, ValueError, OverflowError) as problem:
        return isinstance(problem, ProcessLookupError)
    return False


def put_in_place(part: Path, path: Path, seen: bytes | None) -> bool:
    """Give a new text the name of a file, unless that is no longer what was `seen`: then False.

    The two change places in one step: whatever an editor saved after the last look is found in the
    place of the new text, and goes back, after a kill too: the name of a part tells which two texts
    are safe elsewhere (`TextFile.recover`). Raises: OSError.
    """
    new = part.read_bytes()
    if problem := _renamed(part, path, NOREPLACE if seen is None else EXCHANGE):
        if problem in (errno.EEXIST, errno.ENOENT):
            return False  # somebody saved it, or removed it, just now
        part.replace(path)  # this system, or its disk, cannot
    elif seen is not None and part.read_bytes() != seen:
        _renamed(part, path, EXCHANGE)
        if part.read_bytes() != new:  # it was saved once more
            _renamed(part, path, EXCHANGE)
        return False
    return True


def _renamed(one: Path, other: Path, how: int) -> int:
    """Rename by Linux's own call; 0 or the number of the error."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return errno.ENOSYS
    sys.audit("os.rename", str(one), str(other), -1, -1)  # as Python's own call does
    done = rename(HERE, os.fsencode(one), HERE, os.fsencode(other), how)
    return ctypes.get_errno() if done else 0


def sync_folder(folder: Path) -> None:
    """Make names in a folder survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def decoded(content: bytes) -> str:
    """Bytes as text: UTF-8, or UTF-16 that begins with its mark. Raises: FileUnusable.

    A file full of zeros is what some file systems leave after a power cut, not an edit.
    """
    is_wide = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    try:
        text = content.decode("utf-16" if is_wide else "utf-8-sig")
    except UnicodeDecodeError as error:
        name = "UTF-16" if is_wide else "UTF-8"
        raise FileUnusable(f"is not {name} at byte {error.start}: save it as UTF-8") from error
    if "\0" in text:
        raise FileUnusable("is not a text file: save it as UTF-8, or move it aside")
    return text


@contextmanager
def locked(
    path: Path, flags: int = FOLDER, *, shared: bool = False, patience: float | None = 0.0
) -> Iterator[int]:
    """Hold a lock on a file or folder for a block; its descriptor. Raises: as `take`; OSError."""
    opened = os.open(path, flags, 0o600)
    try:
        take(opened, shared=shared, patience=patience)
        yield opened
    finally:
        os.close(opened)


def take(opened: int, *, shared: bool = False, patience: float | None = 0.0) -> None:
    """Lock what is open, as long as it is. `patience`: seconds; None waits as long as it takes.

    Raises: BlockingIOError if another process holds it for longer.
    """
    how = LOCK_SH if shared else LOCK_EX
    if patience is None:
        return flock(opened, how)
    for left in reversed(range(int(patience / PAUSE) + 1)):
        try:
            return flock(opened, how | LOCK_NB)
        except BlockingIOError:
            if not left:
                raise
        time.sleep(PAUSE)  # noqa: TID251  for other programs; never on the event loop
    return None


@asynccontextmanager
async def entered(block: AbstractContextManager[T]) -> AsyncIterator[T]:
    """Enter and leave a block by a thread, since it may wait for a lock or a disk."""
    value = await to_its_end(block.__enter__)
    try:
        yield value
    finally:
        await to_its_end(lambda: block.__exit__(None, None, None))


async def to_its_end(work: Callable[[], T]) -> T:
    """Run in a thread, and wait for its end even when cancelled.

    A write left behind could replace the file after a later one has.
    """
    running = asyncio.get_running_loop().run_in_executor(None, work)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        raise
