"""Text files that people edit: read whole, whatever stands in their place by now (F-031).

What is written to one is on the disk, whenever the power fails.
"""

import asyncio
import codecs
import errno
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from wintermute.errors import FileUnusable

# Without O_NONBLOCK opening a fifo would wait for its writer for ever.
READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY
ENTER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
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
