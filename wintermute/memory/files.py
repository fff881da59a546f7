"""Reading and replacing the small text files of the memory, which people edit too."""

import os
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from wintermute.errors import MemoryFileUnusable

MOST_BYTES = 50_000_000

# Without O_NONBLOCK opening a fifo would wait for its writer for ever.
READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
WRITE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW


@dataclass(frozen=True, slots=True)
class TextFile:
    """One such file. `name` is what prompt and tools call it, and the messages of its errors."""

    path: Path
    name: str

    def text(self) -> str | None:
        """Its text; None when there is no such file. Raises: MemoryFileUnusable."""
        content = self.content()
        return None if content is None else self.decoded(content)

    def decoded(self, content: bytes) -> str:
        """Its bytes as text. Raises: MemoryFileUnusable.

        A file full of zeros is what some file systems leave after a power cut, not an edit.
        """
        try:
            text = content.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise MemoryFileUnusable(
                f"{self.name} is not UTF-8 at byte {error.start}: save it as UTF-8"
            ) from error
        if "\0" in text:
            raise MemoryFileUnusable(f"{self.name} is not a text file: repair it or move it aside")
        return text

    def content(self) -> bytes | None:
        """What a plain file holds; None when there is none. Raises: MemoryFileUnusable."""
        try:
            return self._content()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise MemoryFileUnusable(f"{self.name} cannot be read: {error.strerror}") from error

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
            _make_folder(self.path.parent)
            _write(part, text.encode())
            if self.content() != seen:
                part.unlink()
                return False
            part.replace(self.path)
            _sync_folder(self.path.parent)
        except OSError as error:
            with suppress(OSError):
                part.unlink()
            raise MemoryFileUnusable(f"{self.name} cannot be written: {error.strerror}") from error
        return True

    def _content(self) -> bytes:
        descriptor = os.open(self.path, READ)
        try:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                raise MemoryFileUnusable(f"{self.name} is not a plain file: move it aside")
            if found.st_size > MOST_BYTES:
                raise MemoryFileUnusable(f"{self.name} has over {MOST_BYTES} bytes: shorten it")
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
