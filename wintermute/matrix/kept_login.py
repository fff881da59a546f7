"""The login that is kept between starts, in one file, 0600. Nothing here loads nio, so commands start soon."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from wintermute.errors import ConfigurationError
from wintermute.matrix.signing import key_stores, write_private

FILE = "session.json"


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


def load(folder: Path) -> Session | None:
    """The kept login, or None.

    Raises: ConfigurationError for a file we did not write, or one that is missing beside keys that
    nobody can read without it (F-055).
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
    """Keep a login; complete or not at all. Raises: StorageBlocked."""
    write_private(folder, FILE, json.dumps(asdict(session)))
