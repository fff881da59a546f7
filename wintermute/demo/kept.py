"""What a demo folder remembers from one start to the next."""

import json
import secrets
import socket
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Self

from wintermute.demo.recovery import KEY_BYTES
from wintermute.errors import ConfigurationError

FILE = "demo.json"


@dataclass(frozen=True, slots=True)
class Kept:
    """Secrets of the homeserver and its two accounts, and the room they share."""

    port: int
    secret: str
    bot_password: str
    password: str
    room_id: str | None = None
    recovery: str = ""
    """The key of the person's secret storage, in hex."""

    @classmethod
    def of(cls, folder: Path) -> Self:
        """As the last start left it, or all new; on a port that is free now.

        Raises: ConfigurationError for a file we did not write.
        """
        file = folder / FILE
        if not file.exists():
            new = secrets.token_hex
            password, recovery = secrets.token_urlsafe(9), new(KEY_BYTES)
            return cls(free_port(), new(32), new(16), password, recovery=recovery)
        try:
            kept = cls(**json.loads(file.read_text("utf-8")))
        except (OSError, ValueError, TypeError) as error:
            raise ConfigurationError(
                f"{file} cannot be read ({type(error).__name__}): choose another folder"
            ) from error
        recovery = kept.recovery or secrets.token_hex(KEY_BYTES)
        return replace(kept, port=free_port(kept.port), recovery=recovery)

    def save(self, folder: Path) -> None:
        """Write it, complete or not at all, for the owner's eyes only."""
        write(folder / FILE, json.dumps(asdict(self), indent=1))


def write(file: Path, text: str) -> None:
    """Put a text in place of a file, complete or not at all, readable by its owner only."""
    fresh = file.with_name(f"{file.name}.new")
    fresh.unlink(missing_ok=True)
    fresh.touch(mode=0o600)
    fresh.write_text(text, "utf-8")
    fresh.replace(file)


def free_port(wanted: int = 0) -> int:
    """A loopback port that nobody listens on: the wanted one if possible."""
    with socket.socket() as probe:
        # Connections of the last start that are not quite over are no reason to move.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", wanted))
        except OSError:
            return free_port()
        port: int = probe.getsockname()[1]
        return port
