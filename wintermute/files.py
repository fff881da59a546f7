"""Text files that people edit: reading them whole, whatever is in their place by now (F-031).

A written text survives a power cut.

All locks between processes are flocks, which end with their process; only this module takes them.
The holder of one may wait for those below it, never for one above:

    lock                  who holds it                                 who comes second
    data/wintermute.lock  the daemon, `chat`, `demo`, `matrix logout`  is refused with its pid
    data/night.lock       a night                                      is refused with its pid
    STORE/sleep/          a job that makes pages                       is refused; `--wait`: waits
    data/placing.lock     who puts files of items in place, forgets    waits 60 seconds
    a CONVERSATION/       who adds a message to it                     waits; a web page: 5 seconds
    STORE/                its writer alone, its readers together       waits 30 seconds; a reader: 5
    data/                 a start of the daemon or a night             waits
    wintermute-pages-*    the job that made this copy of a store       leaves the copy alone
"""

import asyncio
import codecs
import ctypes
import errno
import hashlib
import os
import secrets
import stat
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import (
    AbstractContextManager,
    ExitStack,
    asynccontextmanager,
    contextmanager,
    suppress,
)
from dataclasses import dataclass
from fcntl import LOCK_EX, LOCK_NB, LOCK_SH, flock
from functools import partial
from pathlib import Path
from types import EllipsisType
from typing import TypeVar

from wintermute.errors import FileUnusable, MemoryFileUnusable, WintermuteError

# Without O_NONBLOCK opening a fifo would wait for its writer for ever.
READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
ENTER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
FOLDER = os.O_RDONLY | os.O_DIRECTORY
LOCK_FILE = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
HERE, NOREPLACE, EXCHANGE = -100, 1, 2
"""Flags of renameat2(2)."""
MOST_FILE_BYTES = 50_000_000
MOST_LINE = 1_000_000
STALE = 3_600.0  # seconds
PART = ".part_"
LONGEST = 150
"""The longest file name, in bytes, that its part can repeat."""
PAUSE = 0.01
T = TypeVar("T")
Old = bytes | None | EllipsisType
"""The bytes of a file that is to be replaced; None: there is none; `...`: any."""
Guard = Callable[[int, str, bool], None]
"""Called with each folder, the entry in it, and True for writing; raises where that is forbidden."""


def unguarded(_folder: int, _entry: str, _writing: bool, /) -> None:
    """Allow every folder."""


@contextmanager
def folder_of(
    root: Path, below: Sequence[str], *, make: bool = False, guard: Guard = unguarded
) -> Iterator[int]:
    """Open the folder of a file, given as names `below` the root, and yield its descriptor.

    A path is only text until it is opened: whoever can swap a folder for a link between a check and
    the use wins. So each folder is opened from the one before, and no link is followed below the
    root. `make` creates missing folders. Raises: OSError for links and anything else in the way.
    """
    if any(name == ".." or "/" in name for name in below):
        raise OSError(errno.EACCES, "leads out of its folder", "/".join(below))
    folder = os.open(root, FOLDER)
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
    with suppress(FileExistsError):  # another process has made it
        os.mkdir(name, dir_fd=folder)
    os.fsync(folder)
    return os.open(name, ENTER, dir_fd=folder)


def content_of(path: Path, most: int, *, follow: bool, folder: int | None = None) -> bytes | None:
    """Read a plain file of at most `most` bytes; None if there is none.

    `follow`: a link to such a file is allowed. `folder`: as `dir_fd`. Raises: FileUnusable.
    """
    try:
        how = READ & ~os.O_NOFOLLOW if follow else READ
        descriptor = os.open(path, how, dir_fd=folder)
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
    like: Path | None = None,
    folder: int | None = None,
) -> None:
    """Write a new file whose content survives a power cut. Raises: OSError.

    `like` is the file it will replace; its mode is kept, if it exists. `folder`: as `dir_fd`.
    """
    descriptor = os.open(path, CREATE, mode, dir_fd=folder)
    try:
        with os.fdopen(descriptor, "wb") as file:
            with suppress(FileNotFoundError):
                found = like and os.stat(like, dir_fd=folder, follow_symlinks=False)
                if found:
                    os.fchmod(descriptor, found.st_mode & 0o777)
            file.write(content)
            file.flush()
            os.fsync(descriptor)
    except OSError:
        with suppress(OSError):
            os.unlink(path, dir_fd=folder)  # no file is better than half of one
        raise


def replace(
    path: Path, content: bytes | None, seen: Old = ..., *, mode: int = 0, folder: int | None = None
) -> bool:
    """Replace a file in one step: see `prepared`."""
    with prepared(path, content, seen, mode=mode, folder=folder) as place:
        return place()


@contextmanager
def prepared(
    path: Path, content: bytes | None, seen: Old = ..., *, mode: int = 0, folder: int | None = None
) -> Iterator[Callable[[], bool]]:
    """Write a new text beside a file; the yielded function puts it in place. It returns False if
    `seen` differs.

    At a power cut the file has the old or the new text, whole. Each writer has a part file of its
    own: a shared one would mix two texts.

    `content` None: the file is deleted. `seen`: only this content is replaced. `mode`: 0 keeps that
    of the file. `folder`: as `dir_fd`; parts of other writers in it are not mended. Raises:
    OSError, FileUnusable.
    """
    if content is None:
        yield partial(_placed, None, path, seen, folder)
        return
    part = path.with_name(_part_name(path.name, content, seen, is_ours=folder is None))
    try:
        like = None if mode else path
        write_new(part, content, mode or 0o666, like=like, folder=folder)
        if folder is None:
            restore_saves(path.parent)
        yield partial(_placed, part, path, seen, folder)
    finally:
        with suppress(OSError):
            os.unlink(part, dir_fd=folder)


def _part_name(name: str, content: bytes, seen: Old, *, is_ours: bool) -> str:
    """Name a part after its file and the digests of old and new text, if the name is short enough."""
    texts = [_digest(seen if isinstance(seen, bytes) else b""), _digest(content)]
    fits = is_ours and len(os.fsencode(name)) < LONGEST
    stem = f".{name}{PART}{'_'.join(texts)}_" if fits else PART
    return f"{stem}{secrets.token_hex(8)}-{os.getpid()}"


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=8).hexdigest()


def restore_saves(folder: Path, stale: float = STALE) -> None:
    """Put back an editor's save that a kill left in our part file; delete other abandoned parts (F-066).

    A part is abandoned if it is older than `stale` seconds or its process is gone.
    """
    with suppress(OSError):
        before = time.time_ns() / 10**9 - stale
        for part in (*folder.glob(f"{PART}*"), *folder.glob(f".*{PART}*")):
            with suppress(OSError):
                is_left = part.lstat().st_mtime < before or _is_abandoned(part.name)
                if is_left and not _is_put_back(part):
                    part.unlink()


def _is_put_back(part: Path) -> bool:
    """Put a part back if it holds a text that an editor saved and no other file has."""
    name, _, texts = part.name[1:].rpartition(PART)
    seen, _, more = texts.partition("_")
    ours, path = more.partition("_")[0], part.with_name(name or part.name)
    with suppress(FileNotFoundError):
        if _digest(part.read_bytes()) in (seen, ours) or _digest(path.read_bytes()) != ours:
            return False
        part.replace(path)
        return True
    return False


def _is_abandoned(name: str) -> bool:
    """Return True if the process in this name is gone."""
    try:
        os.kill(int(name.rpartition("-")[2]), 0)
    except (OSError, ValueError, OverflowError) as problem:
        return isinstance(problem, ProcessLookupError)
    return False


def _placed(part: Path | None, path: Path, seen: Old, folder: int | None) -> bool:
    if seen is not ... and _now(path, folder) != seen:
        return False
    if part is not None:
        if seen is ...:
            os.replace(part, path, src_dir_fd=folder, dst_dir_fd=folder)
        elif not put_in_place(part, path, seen, folder):
            return False
    with suppress(FileNotFoundError):
        os.unlink(part or path, dir_fd=folder)
    sync_folder_of(path, folder)
    return True


def put_in_place(part: Path, path: Path, seen: bytes | None, folder: int | None = None) -> bool:
    """Exchange a new text with a file. False, with the file unchanged, if it is no longer `seen`.

    Both change places in one step: if an editor saved in between, its text is now in the part and
    goes back, after a kill too (`restore_saves`). Raises: OSError.
    """
    new = _now(part, folder)
    if problem := _renamed(part, path, NOREPLACE if seen is None else EXCHANGE, folder):
        if problem in (errno.EEXIST, errno.ENOENT):
            return False  # it was saved or removed in between
        # This system, or its disk, cannot exchange files.
        os.replace(part, path, src_dir_fd=folder, dst_dir_fd=folder)
    elif seen is not None and _now(part, folder) != seen:
        _renamed(part, path, EXCHANGE, folder)
        if _now(part, folder) != new:  # it was saved once more
            _renamed(part, path, EXCHANGE, folder)
        return False
    return True


def _now(path: Path, folder: int | None) -> bytes | None:
    return content_of(path, sys.maxsize, follow=False, folder=folder)


def _renamed(one: Path, other: Path, how: int, folder: int | None) -> int:
    """Rename with Linux's renameat2; return 0 or the number of the error."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return errno.ENOSYS
    at = HERE if folder is None else folder
    sys.audit("os.rename", str(one), str(other), at, at)  # as Python's own call does
    done = rename(at, os.fsencode(one), at, os.fsencode(other), how)
    return ctypes.get_errno() if done else 0


def sync_folder_of(path: Path, folder: int | None = None) -> None:
    """Make the names in a file's folder survive a power cut."""
    descriptor = os.open(path.parent, FOLDER, dir_fd=folder)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def decoded(content: bytes) -> str:
    """Decode UTF-8, or UTF-16 with a byte order mark. Raises: FileUnusable.

    A file full of zeros comes from a power cut on some file systems; it is no edit.
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


@dataclass(frozen=True, slots=True)
class TextFile:
    """A text file that both people and the program write. `name` is its name for people. Raises: `refusal`."""

    path: Path
    name: str
    most: int = MOST_FILE_BYTES
    problem: Callable[[str], str | None] | None = None
    """Returns the error in the form of a text, if the file has a form."""
    mode: int = 0o600
    refusal: type[WintermuteError] = MemoryFileUnusable
    read: Callable[[bytes], str] = decoded

    def text(self) -> str | None:
        """Read the text; None if there is no file."""
        content = self.content()
        return None if content is None else self.decoded(content)

    def read_unchecked(self) -> tuple[str | None, bytes | None]:
        """Read the text without a check of its form, and its bytes; None if there is no file."""
        content = self.content()
        return None if content is None else self._plain(content), content

    def content(self) -> bytes | None:
        """Read the bytes of a plain file; None if there is none."""
        with self._refusing():
            return content_of(self.path, self.most, follow=False)

    def decoded(self, content: bytes) -> str:
        """Decode the text and check its form."""
        text, problem = self._plain(content), None
        if self.problem is not None and content.startswith(codecs.BOM_UTF8):
            problem = "line 1 begins with a byte order mark: save it as UTF-8 without one"
        elif self.problem is not None:
            problem = self.problem(text)
        if problem:
            raise self.refusal(f"{self.name} {problem}")
        return text

    def _plain(self, content: bytes) -> str:
        with self._refusing():
            text = self.read(content)
            if len(text) > MOST_LINE and max(map(len, text.splitlines())) > MOST_LINE:
                raise FileUnusable(f"has a line of over {MOST_LINE} characters: break it up")
            return text

    def saved_at(self) -> float:
        """Return the time of the last save in seconds since 1970; 0 if it is unknown."""
        try:
            return self.path.stat().st_mtime
        except OSError:
            return 0.0

    def replace(self, text: str, seen: bytes | None) -> bool:
        """Replace the file in one step. False, with the file unchanged, if it is no longer `seen`.

        An edit that was saved since is never overwritten.
        """
        with self.prepared(text, seen) as place:
            return place()

    @contextmanager
    def prepared(self, text: str | None, seen: bytes | None) -> Iterator[Callable[[], bool]]:
        """Replace the file in two steps, of which the first detects a full disk. `text` None deletes it."""
        folder, content = self.path.parent, None if text is None else text.encode()
        with ExitStack() as stack:
            with self._refusing():
                folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                folder.mkdir(mode=0o700, exist_ok=True)
                block = prepared(self.path, content, seen, mode=self.mode)
                place = stack.enter_context(block)

            def placed() -> bool:
                with self._refusing():
                    return place()

            yield placed

    def drop_parts(self) -> None:
        """Delete part files that a kill left.

        A writer that is just placing one gets an error.
        """
        with suppress(OSError):
            for part in self.path.parent.glob(f".{self.path.name}{PART}*"):
                part.unlink(missing_ok=True)

    @contextmanager
    def _refusing(self) -> Iterator[None]:
        try:
            yield
        except FileUnusable as problem:
            raise self.refusal(f"{self.name} {problem}") from problem
        except OSError as error:
            raise self.refusal(f"{self.name} cannot be written: {error.strerror}") from error


@contextmanager
def locked(
    path: Path, flags: int = FOLDER, *, shared: bool = False, patience: float | None = 0.0
) -> Iterator[int]:
    """Hold a lock on a file or folder for a block; yield its descriptor. Raises: as `lock_descriptor`; OSError."""
    opened = os.open(path, flags, 0o600)
    try:
        lock_descriptor(opened, shared=shared, patience=patience)
        yield opened
    finally:
        os.close(opened)


def lock_descriptor(opened: int, *, shared: bool = False, patience: float | None = 0.0) -> None:
    """Lock an open file until it is closed. `patience`: seconds to wait; None waits without limit.

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
        time.sleep(PAUSE)  # noqa: TID251  waits for another process; never on the event loop
    return None


@asynccontextmanager
async def entered(block: AbstractContextManager[T]) -> AsyncIterator[T]:
    """Enter and leave a block in a thread, since it may wait for a lock or a disk."""
    stack = ExitStack()
    try:
        yield await run_uncancelled(partial(stack.enter_context, block))
    finally:
        await run_uncancelled(stack.close)


async def run_uncancelled(work: Callable[[], T]) -> T:
    """Run in a thread, and wait for its end even when cancelled.

    An unfinished write could otherwise replace the file after a later one.
    """
    running = asyncio.get_running_loop().run_in_executor(None, work)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        raise
