"""A real Synapse of our own on loopback, thrown away with the test run.

As a program (`python homeserver.py -c FILE`) it is Synapse itself, tied to the life of whoever
started it.
"""

import base64
import hashlib
import hmac
import json
import os
import runpy
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

SERVER_NAME = "wintermute.test"
PATIENCE = 1800
"""How often a start looks for an answer, 50 ms apart: a busy machine may take long."""
PORTS = range(10_000, 30_000)
"""Below those that Linux gives to outgoing connections (ip_local_port_range, from 32,768)."""
TRIES = 200
AS_SHIPPED = {"rc_message": {"per_second": 0.2, "burst_count": 10}}
"""The limit of messages that a Synapse has unless somebody lifts it: overrides of a test's own."""
BOUNDLESS = {"per_second": 1e6, "burst_count": 1_000_000}


@dataclass(frozen=True, slots=True)
class Login:
    """One session of one user."""

    user_id: str
    access_token: str
    device_id: str
    password: str


class Refused(Exception):
    """The homeserver answered with an error."""

    def __init__(self, status: int, body: str) -> None:
        super().__init__(f"{status}: {body[:500]}")
        self.status = status
        self.body = body


class Homeserver:
    """Synapse with SQLite, no federation and no rate limits; its directory is kept.

    `start` after `stop` is a restart: same port, same rooms, users and tokens. Both block; call
    them through `asyncio.to_thread` when something else must go on meanwhile. `overrides` are
    top-level keys of homeserver.yaml, such as `{"rc_message": {...}}`; `database` is one to begin
    with, else it makes its own.
    """

    def __init__(
        self,
        directory: Path,
        overrides: dict[str, Any] | None = None,
        database: Path | None = None,
    ) -> None:
        self._directory = directory
        self._database = database
        self._overrides = overrides or {}
        self._port = free_port()
        self._secret = secrets.token_hex(32)
        self._process: subprocess.Popen[bytes] | None = None
        self._logins: dict[str, Login] = {}

    @property
    def url(self) -> str:
        """Where it answers."""
        return f"http://127.0.0.1:{self._port}"

    @property
    def pid(self) -> int | None:
        """The running process."""
        return self._process.pid if self._process else None

    def __enter__(self) -> Self:
        self._write_files()
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start it and wait until it answers."""
        with (self._directory / "console.log").open("ab") as console:
            self._process = subprocess.Popen(
                # -P: this folder's module names must not hide Synapse's own imports
                [sys.executable, "-P", __file__, "-c", "homeserver.yaml"],
                cwd=self._directory,
                stdin=subprocess.PIPE,  # the lifeline, see `die_with_parent`
                stdout=console,
                stderr=console,
            )
        try:
            self._wait_for_an_answer(self._process)
        except BaseException:
            self.stop(kill=True)
            raise

    def stop(self, *, kill: bool = False) -> None:
        """Stop it, politely or as a crash would."""
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(signal.SIGKILL if kill else signal.SIGTERM)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        finally:
            if process.stdin:
                process.stdin.close()

    def user(self, name: str) -> Login:
        """The user of this name with one session, registered when first asked for."""
        if name not in self._logins:
            self._register(name)
            self._logins[name] = self.login(name)
        return self._logins[name]

    def login(self, name: str, device_id: str | None = None) -> Login:
        """One more session of a registered user, on a new device unless one is named."""
        body: dict[str, Any] = {
            "type": "m.login.password",
            "identifier": {"type": "m.id.user", "user": name},
            "password": password_of(name),
        }
        if device_id:
            body["device_id"] = device_id
        answer = self.request("POST", "/_matrix/client/v3/login", body)
        return Login(
            answer["user_id"], answer["access_token"], answer["device_id"], password_of(name)
        )

    def request(
        self, method: str, path: str, body: object = None, token: str | None = None
    ) -> dict[str, Any]:
        """One JSON request; `Refused` when the answer is an error."""
        headers = {"Content-Type": "application/json"}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        payload = None if body is None else json.dumps(body).encode()
        question = urllib.request.Request(self.url + path, payload, headers, method=method)
        try:
            with urllib.request.urlopen(question, timeout=30) as answer:
                parsed: dict[str, Any] = json.load(answer)
                return parsed
        except urllib.error.HTTPError as error:
            with error:
                raise Refused(error.code, error.read().decode(errors="replace")) from error

    def _register(self, name: str) -> None:
        path = "/_synapse/admin/v1/register"
        nonce = self.request("GET", path)["nonce"]
        said = "\0".join([nonce, name, password_of(name), "notadmin"])
        seal = hmac.new(self._secret.encode(), said.encode(), hashlib.sha1).hexdigest()
        body = {"nonce": nonce, "username": name, "password": password_of(name), "mac": seal}
        self.request("POST", path, body | {"admin": False, "inhibit_login": True})

    def _wait_for_an_answer(self, process: subprocess.Popen[bytes]) -> None:
        for _ in range(PATIENCE):
            try:
                self.request("GET", "/_matrix/client/versions")
            except (OSError, Refused):
                pass
            else:
                return
            try:
                process.wait(0.05)  # a pause that ends at once when Synapse gives up
            except subprocess.TimeoutExpired:
                continue
            break
        ended = "" if process.returncode is None else f" and ended with {process.returncode}"
        raise RuntimeError(f"Synapse does not answer{ended}:\n{self._last_words()}")

    def _last_words(self) -> str:
        return (self._directory / "console.log").read_text(errors="replace")[-3000:]

    def _write_files(self) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        if self._database is not None:
            shutil.copy(self._database, self._directory / "homeserver.db")
        seed = base64.b64encode(secrets.token_bytes(32)).decode().rstrip("=")
        (self._directory / "signing.key").write_text(f"ed25519 a_test {seed}\n")
        log = {
            "version": 1,
            "handlers": {"file": {"class": "logging.FileHandler", "filename": "synapse.log"}},
            "root": {"level": "WARNING", "handlers": ["file"]},
        }
        (self._directory / "log.yaml").write_text(json.dumps(log))  # JSON is YAML
        settings = configuration(self._port, self._secret) | without_limits() | self._overrides
        (self._directory / "homeserver.yaml").write_text(json.dumps(settings, indent=1))


def configuration(port: int, secret: str) -> dict[str, Any]:
    """homeserver.yaml, with paths relative to the directory Synapse runs in."""
    return {
        "server_name": SERVER_NAME,
        "public_baseurl": f"http://127.0.0.1:{port}",
        "listeners": [
            {
                "type": "http",
                "port": port,
                "bind_addresses": ["127.0.0.1"],
                "resources": [{"names": ["client"]}],
            }
        ],
        "database": {"name": "sqlite3", "args": {"database": "homeserver.db"}},
        "media_store_path": "media",
        "pid_file": "homeserver.pid",
        "log_config": "log.yaml",
        "signing_key_path": "signing.key",
        "registration_shared_secret": secret,
        "macaroon_secret_key": secret,
        "form_secret": secret,
        "bcrypt_rounds": 4,
        "report_stats": False,
        "trusted_key_servers": [],
        "federation_domain_whitelist": [],
        # What no test asks for, and each message would pay for.
        "presence": {"enabled": False},
        "push": {"enabled": False},
        "stats": {"enabled": False},
        "user_directory": {"enabled": False},
        "gc_thresholds": [50_000, 50, 50],
        # Else a client that restarts within two minutes is told the past again.
        "caches": {"sync_response_cache_duration": "0s"},
        # The watching user asks for long timelines so that it never has a gap; the bot asks
        # for a limit of its own and gets it.
        "filter_timeline_limit": -1,
    }


def without_limits() -> dict[str, Any]:
    """Every rate limit that a client can meet, out of the way."""
    grouped: dict[str, Iterable[str]] = {
        "rc_login": ("address", "account", "failed_attempts"),
        "rc_joins": ("local", "remote"),
        "rc_invites": ("per_room", "per_user", "per_issuer"),
    }
    single = (
        "message registration admin_redaction joins_per_room key_requests media_create "
        "room_creation user_directory profile delayed_event_mgmt reports"
    )
    return {
        **{group: dict.fromkeys(names, BOUNDLESS) for group, names in grouped.items()},
        **{f"rc_{name}": BOUNDLESS for name in single.split()},
    }


def password_of(name: str) -> str:
    """Every test user's password follows from the name."""
    return f"open sesame {name}"


def free_port(among: range = PORTS) -> int:
    """A loopback port that nobody listens on, and that no outgoing connection is given meanwhile."""
    for _ in range(TRIES):
        port = secrets.choice(among)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise RuntimeError(f"no free port on loopback from {among[0]} to {among[-1]}: end what listens")


def die_with_parent() -> None:
    """Kill this process once the other end of its standard input is gone.

    Holds for kill -9 of the test run too: nobody is left to clean up, but the pipe closes.
    """
    os.read(0, 1)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    from synapse.storage.database import LoggingDatabaseConnection
    from synapse.storage.engines.sqlite import Sqlite3Engine

    connect = Sqlite3Engine.on_new_connection

    def on_new_connection(self: Sqlite3Engine, db_conn: LoggingDatabaseConnection) -> None:
        """Without a wait for the disk, thirty times a message: it is killed, but no power is cut."""
        connect(self, db_conn)
        db_conn.execute("PRAGMA synchronous = OFF")

    Sqlite3Engine.on_new_connection = on_new_connection  # type: ignore[method-assign]  # no setting
    threading.Thread(target=die_with_parent, daemon=True).start()
    runpy.run_module("synapse.app.homeserver", run_name="__main__")
