"""Reading and replacing the small text files of the memory, which people edit too."""

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from wintermute.errors import FileUnusable, MemoryFileUnusable
from wintermute.files import content_of, decoded

MOST_BYTES = 50_000_000
MOST_LINE = 1_000_000

WRITE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW


@dataclass(frozen=True, slots=True)
class TextFile:
    """One such file. `name` is what prompt and tools call it, and the messages of its errors."""

    path: Path
    name: str
    most: int = MOST_BYTES

    def text(self) -> str | None:
        """Its text; None when there is no such file. Raises: MemoryFileUnusable."""
        content = self.content()
        return None if content is None else self.decoded(content)

    def decoded(self, content: bytes) -> str:
        """Its bytes as text. Raises: MemoryFileUnusable."""
        try:
            text = decoded(content)
        except FileUnusable as problem:
            raise MemoryFileUnusable(f"{self.name} {problem}") from problem
        if len(text) > MOST_LINE and max(map(len, text.splitlines())) > MOST_LINE:
            raise MemoryFileUnusable(
                f"{self.name} has a line of over {MOST_LINE} characters: break it up"
            )
        return text

    def content(self) -> bytes | None:
        """What a plain file holds; None when there is none. Raises: MemoryFileUnusable."""
        try:
            return content_of(self.path, self.most, follow=False)
        except FileUnusable as problem:
            raise MemoryFileUnusable(f"{self.name} {problem}") from problem

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
