"""The login we keep: one file, 0600, in the Matrix folder of the data directory."""

import json
import secrets
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from peewee import PeeweeException, SqliteDatabase

from wintermute.errors import ConfigurationError
from wintermute.matrix.seeds import write_private

FILE = "session.json"
PROBE = "session.room"
ENOUGH = 1 << 14
NIO_STORE_VERSION = 2


@dataclass(frozen=True, slots=True)
class Session:
    """A device of ours on the homeserver, and the key its key store is encrypted with."""

    user_id: str
    device_id: str
    access_token: str
    pickle_key: str
    keys_lost: bool = False
    """The device before lost its keys, and the rooms were not told yet (X-016)."""
    predecessor: str = ""
    """The device in whose place this one is: it has the room keys of that one (F-009)."""

    def __repr__(self) -> str:
        return f"Session({self.user_id}, {self.device_id})"


def store_file(folder: Path, session: Session) -> Path:
    """Where nio keeps the keys of this device."""
    return folder / f"{session.user_id}_{session.device_id}.db"


def store_problem(file: Path, *, mode: Literal["ro", "rw"]) -> str | None:
    """What is wrong with the file of a key store; None when its pages can be read.

    After a kill in the middle of a write the next `rw` completes or undoes it; `ro` cannot look.
    """
    database = SqliteDatabase(f"{file.resolve().as_uri()}?mode={mode}", uri=True)
    try:
        connection = database.connection()
        try:
            [verdict] = connection.execute("PRAGMA quick_check(1)").fetchone()
            if verdict == "ok" and _version(connection) > NIO_STORE_VERSION:
                return "a newer version wrote it: install that again"
        except connection.OperationalError as error:
            unfinished = mode == "ro" and file.with_name(f"{file.name}-journal").exists()
            return None if unfinished else str(error)
        except connection.DatabaseError as error:
            return str(error)
        return None if verdict == "ok" else str(verdict)
    except PeeweeException as error:
        return str(error)
    finally:
        database.close()


def _version(connection: Any) -> int:
    """The version of nio's tables, which it reads and believes itself to know; 0 before there are any."""
    named = "SELECT 1 FROM sqlite_schema WHERE name = 'storeversion'"
    if connection.execute(named).fetchone() is None:
        return 0
    row = connection.execute("SELECT max(version) FROM storeversion").fetchone()
    return row[0] if isinstance(row[0], int) else 0


def load(folder: Path) -> Session | None:
    """The kept login, or None. Raises: ConfigurationError for a file we did not write."""
    file = folder / FILE
    if not file.exists():
        return None
    try:
        return Session(**json.loads(file.read_text("utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise ConfigurationError(
            f"{file} cannot be read ({type(error).__name__}): move it aside to log in again"
        ) from error


def save(folder: Path, session: Session) -> None:
    """Keep a login; complete or not at all. Raises: StorageBlocked."""
    write_private(folder, FILE, json.dumps(asdict(session)))


def prove_writable(folder: Path) -> None:
    """See that a login could be kept, before there is one: its token would be lost.

    Raises: StorageBlocked.
    """
    write_private(folder, PROBE, " " * ENOUGH)
    (folder / PROBE).unlink()


def new_pickle_key() -> str:
    """A key for a new key store."""
    return secrets.token_hex(32)
