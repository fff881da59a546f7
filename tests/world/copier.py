"""What a kill at each statement would leave: copies of a folder, one before each that writes there."""

import logging
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.world.launch import read

WRITES = ("BEGIN", "UPDATE", "INSERT", "DELETE", "COMMIT", "VACUUM", "PRAGMA wal")


class Copier(logging.Handler):
    """Copies a folder before each statement that writes there: what a kill at that moment leaves.

    Once where nothing has reached a file since the statement before: within a transaction that is
    usual.
    """

    def __init__(self, folder: Path, into: Path) -> None:
        super().__init__()
        self._folder = folder
        self._into = into
        self._last: dict[str, bytes] = {}
        self.before: list[tuple[str, Path]] = []
        self.copies: list[Path] = []

    def emit(self, record: logging.LogRecord) -> None:
        phase, statement = read(record)
        if phase != "executing" or not statement.lstrip().startswith(WRITES):
            return
        files = {p.name: p.read_bytes() for p in self._folder.iterdir() if p.is_file()}
        files.pop("wintermute.db-shm", None)  # made anew from the log
        if files != self._last:
            self._last = files
            self.copies.append(self._into / str(len(self.copies)))
            shutil.copytree(self._folder, self.copies[-1])
        self.before.append((statement, self.copies[-1]))


@contextmanager
def copying(folder: Path, into: Path) -> Iterator[Copier]:
    """Copy it for as long as the block lasts."""
    log, copier = logging.getLogger("aiosqlite"), Copier(folder, into)
    level, told = log.level, log.propagate
    log.setLevel(logging.DEBUG)
    log.propagate = False
    log.addHandler(copier)
    try:
        yield copier
    finally:
        log.removeHandler(copier)
        log.setLevel(level)
        log.propagate = told


def before(copier: Copier, start: str) -> Path:
    """The folder as it was before the first statement that begins so."""
    return next(folder for statement, folder in copier.before if statement.startswith(start))
