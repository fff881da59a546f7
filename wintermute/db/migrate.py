"""Numbered migrations: forward only, one transaction each, a copy of the file before the first."""

import logging
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from wintermute.errors import DatabaseUnusable

log = logging.getLogger(__name__)

NAME = re.compile(r"(\d{4})_[a-z0-9_]+\.sql")
COPY = re.compile(r"\.before-\d{4}(-wal|-shm|-journal)?")
"""What the name of a copy ends with; or of what SQLite puts beside one that somebody looks into."""
KEPT = timedelta(days=30)
"""How long a copy is there for whoever wants the older version back."""


@dataclass(frozen=True, slots=True)
class Migration:
    """One step. `number` becomes the file's `user_version`."""

    number: int
    name: str
    sql: str


@dataclass(frozen=True, slots=True)
class UpgradeCopy:
    """A copy of the database from before an upgrade. Nothing is ever forgotten in there."""

    path: Path
    made_at: datetime

    @property
    def until(self) -> datetime:
        """When it goes by itself."""
        return self.made_at + KEPT


def copies(path: Path) -> list[UpgradeCopy]:
    """The copies of a database that are still there, oldest first."""
    found = []
    for file in path.parent.glob(f"{path.name}.before-*"):
        if COPY.fullmatch(file.name.removeprefix(path.name)):
            with suppress(FileNotFoundError):  # somebody deletes it just now
                found.append(UpgradeCopy(file, datetime.fromtimestamp(file.stat().st_mtime, UTC)))
    return sorted(found, key=lambda copy: (copy.made_at, copy.path))


def expire_copies(path: Path, now: datetime) -> None:
    """Delete the copies whose time is over."""
    for copy in copies(path):
        if copy.until < now:
            try:
                copy.path.unlink(missing_ok=True)
            except OSError as error:
                log.warning("old copy stays file=%s reason=%s", copy.path, error.strerror)
            else:
                log.info("old copy deleted file=%s", copy.path)


def migrations(files: Mapping[str, str]) -> list[Migration]:
    """The steps found in `files` (name to text), in order; other names are passed over."""
    found = [
        Migration(int(match[1]), name, text)
        for name, text in files.items()
        if (match := NAME.fullmatch(name))
    ]
    return sorted(found, key=lambda step: step.number)


def migrate(connection: Any, path: Path, steps: list[Migration]) -> None:
    """Apply the steps this file has not seen. A step that fails changes nothing.

    Raises: DatabaseUnusable when a newer Wintermute wrote the file.
    """
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    newest = max((step.number for step in steps), default=0)
    if version > newest:
        raise DatabaseUnusable(
            f"database {path} was written by a newer Wintermute (schema {version}, this one knows "
            f"{newest}): install the newer version again"
        )
    if not version and connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]:
        raise DatabaseUnusable(f"{path} is some other program's database: move it aside")
    missing = [step for step in steps if step.number > version]
    if missing and version:
        copy = path.with_name(f"{path.name}.before-{version + 1:04d}")
        copy.unlink(missing_ok=True)
        copy.touch(0o600)  # an empty file may be written into, and keeps its mode
        connection.execute("VACUUM INTO ?", (str(copy),))
    for step in missing:
        script = f"BEGIN IMMEDIATE;\n{step.sql}\n;PRAGMA user_version={step.number};\nCOMMIT;"
        try:
            connection.executescript(script)
        finally:
            if connection.in_transaction:  # the script stopped half-way
                connection.execute("ROLLBACK")
