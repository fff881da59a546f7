"""Reading and replacing the small text files of the memory, which people edit too."""

import os
import stat
from contextlib import suppress
from pathlib import Path

from wintermute.errors import MemoryFileUnusable

MOST_BYTES = 50_000_000

# Without O_NONBLOCK opening a fifo would wait for its writer for ever.
READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
WRITE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW


def read_text(path: Path) -> str | None:
    """The text of a file; None when there is no such file. Raises: MemoryFileUnusable."""
    content = read_bytes(path)
    return None if content is None else decoded(path, content)


def decoded(path: Path, content: bytes) -> str:
    """The bytes of a file as text. Raises: MemoryFileUnusable.

    A file full of zeros is what some file systems leave after a power cut, not an edit.
    """
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise MemoryFileUnusable(
            f"{path} is not UTF-8 at byte {error.start}: save it as UTF-8"
        ) from error
    if "\0" in text:
        raise MemoryFileUnusable(f"{path} is not a text file: repair it or move it aside")
    return text


def read_bytes(path: Path) -> bytes | None:
    """The content of a plain file; None when there is none. Raises: MemoryFileUnusable."""
    try:
        return _content(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise MemoryFileUnusable(f"{path} cannot be read: {error.strerror}") from error


def replace_text(path: Path, text: str, seen: bytes | None) -> bool:
    """Replace a file in one step, unless it is no longer what was `seen`: then False.

    An edit that was saved since is never overwritten. Raises: MemoryFileUnusable.
    """
    # Always the same name, so that a crash leaves at most one copy, and that one is overwritten.
    part = path.with_name(f".{path.name}.part")
    try:
        _make_folder(path.parent)
        _write(part, text.encode())
        if read_bytes(path) != seen:
            part.unlink()
            return False
        part.replace(path)
        _sync_folder(path.parent)
    except OSError as error:
        with suppress(OSError):
            part.unlink()
        raise MemoryFileUnusable(f"{path} cannot be written: {error.strerror}") from error
    return True


def _content(path: Path) -> bytes:
    descriptor = os.open(path, READ)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise MemoryFileUnusable(f"{path} is not a plain file: move it aside")
        if found.st_size > MOST_BYTES:
            raise MemoryFileUnusable(f"{path} has over {MOST_BYTES} bytes: make it shorter")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return file.read()
    finally:
        os.close(descriptor)


def _make_folder(folder: Path) -> None:
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)


def _write(path: Path, content: bytes) -> None:
    descriptor = os.open(path, WRITE, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(descriptor)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
