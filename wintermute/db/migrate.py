"""Numbered migrations: forward only, each complete or not at all, with a copy of the file before the first."""

import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zlib import crc32

from wintermute.db import driver
from wintermute.errors import DatabaseUnusable

log = logging.getLogger(__name__)

NAME = re.compile(r"(\d{4})_[a-z0-9_]+\.sql")
COPY = re.compile(r"\.before-\d{4}(-wal|-shm|-journal|-part)?")
"""End of the name of a copy, or of the files that SQLite puts beside an open one."""
KEPT = timedelta(days=30)
"""Time for which a copy is kept for a return to the older version."""


@dataclass(frozen=True, slots=True)
class Migration:
    """One migration. `number` becomes the file's `user_version`."""

    number: int
    name: str
    sql: str


@dataclass(frozen=True, slots=True)
class UpgradeCopy:
    """A copy of the database from before an upgrade. Forgetting does not reach it."""

    path: Path
    made_at: datetime

    @property
    def until(self) -> datetime:
        """Return when it is deleted."""
        return self.made_at + KEPT


def copies(path: Path) -> list[UpgradeCopy]:
    """Return the copies of a database that still exist, oldest first."""
    found = []
    for file in path.parent.glob(f"{path.name}.before-*"):
        if COPY.fullmatch(file.name.removeprefix(path.name)):
            with suppress(FileNotFoundError):  # deleted meanwhile
                found.append(UpgradeCopy(file, datetime.fromtimestamp(file.stat().st_mtime, UTC)))
    return sorted(found, key=lambda copy: (copy.made_at, copy.path))


def expire_copies(path: Path, now: datetime) -> None:
    """Delete expired copies."""
    for copy in copies(path):
        if copy.until < now:
            try:
                copy.path.unlink(missing_ok=True)
            except OSError as error:
                log.warning("old copy stays file=%s reason=%s", copy.path, error.strerror)
            else:
                log.info("old copy deleted file=%s", copy.path)


def migrations(files: Mapping[str, str]) -> list[Migration]:
    """Return the migrations in `files` (name to text), in order; other names are ignored."""
    found = [
        Migration(int(match[1]), name, text)
        for name, text in files.items()
        if (match := NAME.fullmatch(name))
    ]
    return sorted(found, key=lambda step: step.number)


def schema_id(steps: list[Migration]) -> int:
    """Return the application id of databases that began with this schema; comments do not count."""
    return crc32(re.sub(r"--.*|\s+", "", steps[0].sql).encode()) & 0x7FFFFFFF


def check_ours(path: Path, steps: list[Migration]) -> None:
    """Check the header alone, as opening a foreign file would already change it.

    Raises: DatabaseUnusable for another schema or program, and for a newer Wintermute.
    """
    with path.open("rb") as file:
        header = file.read(100)
    pages, version, application = (int.from_bytes(header[n : n + 4]) for n in (28, 60, 68))
    if not header.startswith(b"SQLite format 3\0") or not (application or version or pages > 1):
        return  # broken, or not made yet
    if application != schema_id(steps):
        raise not_ours(path)
    _prove_known(version, path, steps)


def is_foreign(connection: Any, steps: list[Migration]) -> bool:
    """Check whether a file is foreign, also if its header is still in its WAL."""
    made = connection.execute("SELECT 1 FROM sqlite_schema").fetchone()
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    return bool(made) and application != schema_id(steps)


def not_ours(path: Path) -> DatabaseUnusable:
    """Return the error for a foreign file."""
    return DatabaseUnusable(
        f"{path} is from an earlier Wintermute or another program: move {path.parent} aside and run"
        f" `wintermute init {path.parent.parent}`; docs/upgrading.md says how to keep your memories"
    )


def _prove_known(version: int, path: Path, steps: list[Migration]) -> None:
    newest = max((step.number for step in steps), default=0)
    if version > newest:
        raise DatabaseUnusable(
            f"database {path} was written by a newer Wintermute (schema {version}, this one knows "
            f"{newest}): install the newer version again"
        )


def migrate(connection: Any, path: Path, steps: list[Migration]) -> None:
    """Apply the missing migrations. One that fails changes nothing.

    Of several processes one upgrades: the version is read again inside the transaction (F-054), so that the others
    wait and find nothing left to do.

    Raises: DatabaseUnusable when a newer Wintermute wrote the file.
    """
    if not unseen(connection, path, steps):
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        missing = unseen(connection, path, steps)
        if missing and missing[0].number > steps[0].number:
            _copy(path, path.with_name(f"{path.name}.before-{missing[0].number:04d}"))
        for step in missing:
            _apply(connection, step, schema_id(steps))
    finally:
        if connection.in_transaction:  # a failed step left nothing in it
            connection.execute("COMMIT")


def unseen(connection: Any, path: Path, steps: list[Migration]) -> list[Migration]:
    """Return the missing migrations. Raises: DatabaseUnusable when a newer version wrote it."""
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    _prove_known(version, path, steps)
    return [step for step in steps if step.number > version]


def _copy(path: Path, copy: Path) -> None:
    """Copy the last committed state beside the file, completely or not at all, unless it exists."""
    if copy.exists():
        return
    part = copy.with_name(f"{copy.name}-part")
    part.unlink(missing_ok=True)
    part.touch(0o600)  # an empty file may be written into, and keeps its mode
    with closing(driver.connect(path, read_only=False)) as reader:  # ours is in a transaction
        reader.execute("VACUUM INTO ?", (str(part),))
    part.replace(copy)


def _apply(connection: Any, step: Migration, schema: int) -> None:
    connection.execute("SAVEPOINT step")
    try:
        marks = f"PRAGMA user_version={step.number}; PRAGMA application_id={schema};"
        for statement in statements(f"{step.sql}\n;{marks}"):
            connection.execute(statement)
    except BaseException:
        if connection.in_transaction:  # otherwise SQLite rolled everything back, as on a full disk
            connection.execute("ROLLBACK TO step")
        raise


def statements(script: str) -> Iterator[str]:
    """Yield the statements of a script; the body of a trigger is a part of its statement."""
    found = ""
    for piece in script.split(";"):
        found += f"{piece};"
        if driver.is_complete(found):
            yield found
            found = ""
