"""The stored login, in one file with mode 0600. This module does not load nio, so commands start fast."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from wintermute.errors import ConfigurationError
from wintermute.matrix.signing import key_stores, write_private

FILE = "session.json"


@dataclass(frozen=True, slots=True)
class Session:
    """A device of ours, its access token, and the key that encrypts its key store."""

    user_id: str
    device_id: str
    access_token: str
    pickle_key: str
    keys_lost: bool = False
    """True if the device before lost its keys, and the rooms have no notice yet (X-016)."""
    predecessor: str = ""
    """The device that this one replaces; its room keys were taken over (F-009)."""

    def __repr__(self) -> str:
        return f"Session({self.user_id}, {self.device_id})"


def store_file(folder: Path, session: Session) -> Path:
    """Return the file of nio's key store for this device."""
    return folder / f"{session.user_id}_{session.device_id}.db"


def load(folder: Path) -> Session | None:
    """Load the stored login; None if there is none.

    Raises: ConfigurationError for an invalid file, or if it is missing although there are key
    stores, which nobody can read without it (F-055).
    """
    file, stores = folder / FILE, key_stores(folder)
    try:
        return Session(**json.loads(file.read_text("utf-8")))
    except FileNotFoundError:
        if not stores:
            return None
        problem = "is missing"
    except (OSError, ValueError, TypeError) as error:
        problem = f"cannot be read ({type(error).__name__})"
    aside = ", ".join(each.name for each in (*stores, *([file] if file.exists() else [])))
    raise ConfigurationError(
        f"{file} {problem}: put it back from a backup, or move {aside} aside to log in as a new device"
    )


def save(folder: Path, session: Session) -> None:
    """Store a login atomically. Raises: StorageBlocked."""
    write_private(folder, FILE, json.dumps(asdict(session)))
