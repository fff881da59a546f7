"""Numbered migrations: forward only, one transaction each, a copy of the file before the first."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wintermute.errors import DatabaseUnusable

NAME = re.compile(r"(\d{4})_[a-z0-9_]+\.sql")


@dataclass(frozen=True, slots=True)
class Migration:
    """One step. `number` becomes the file's `user_version`."""

    number: int
    name: str
    sql: str


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
        connection.execute("VACUUM INTO ?", (str(_copy_name(path, version)),))
    for step in missing:
        _apply(connection, step)


def _copy_name(path: Path, version: int) -> Path:
    copy = path.with_name(f"{path.name}.before-{version + 1:04d}")
    copy.unlink(missing_ok=True)
    copy.touch(0o600)  # an empty file may be written into, and keeps its mode
    return copy


def _apply(connection: Any, step: Migration) -> None:
    script = f"BEGIN IMMEDIATE;\n{step.sql}\n;PRAGMA user_version={step.number};\nCOMMIT;"
    try:
        connection.executescript(script)
    finally:
        if connection.in_transaction:  # the script stopped half-way
            connection.execute("ROLLBACK")
