"""A private Synapse on loopback: no federation, no limits, no accounts but the person's and the bot's.

The demo starts and watches it, and ends it with itself. Here is also what a demo folder remembers
between starts, and the person's identity in secret storage (Matrix specification,
client-server API, "Secrets"): a client asks for the recovery key at its first login; with it, it
signs itself, and shows no red shields.
"""

import asyncio
import base64
import hashlib
import hmac
import importlib.util
import json
import secrets
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

import httpx2
from Crypto.Cipher import AES
from Crypto.Hash import SHA256
from Crypto.Protocol.KDF import HKDF

from wintermute import files
from wintermute.errors import ConfigurationError, WintermuteError
from wintermute.messages import Json

KEY_BYTES = 32
KEY_ID = "demo"
ALGORITHM = "m.secret_storage.v1.aes-hmac-sha2"
ALPHABET = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
PREFIX = b"\x8b\x01"
FILE = "demo.json"
ENDING_SECONDS = 15.0  # a daemon may take ten to finish sending
POLL_SECONDS = 0.05
TAIL_LINES = 15
SERVER_NAME = "localhost"
BOOT_SECONDS = 60.0
BOUNDLESS = {"per_second": 1e6, "burst_count": 1_000_000}
LIMITS = (
    "message registration admin_redaction joins_per_room key_requests media_create room_creation"
    " user_directory profile delayed_event_mgmt reports"
)
GROUPED_LIMITS = {
    "rc_login": ("address", "account", "failed_attempts"),
    "rc_joins": ("local", "remote"),
    "rc_invites": ("per_room", "per_user", "per_issuer"),
}


def secret_storage(key: bytes, kept: Mapping[str, str]) -> dict[str, Json]:
    """Return account data, by type, that keeps secrets by their names under a key of 32 bytes."""
    proof = _sealed(key, "", bytes(KEY_BYTES))
    described = {"algorithm": ALGORITHM, "name": "Wintermute demo"}
    found: dict[str, Json] = {
        f"m.secret_storage.key.{KEY_ID}": {**described, "iv": proof["iv"], "mac": proof["mac"]},
        "m.secret_storage.default_key": {"key": KEY_ID},
    }
    for name, secret in kept.items():
        found[name] = {"encrypted": {KEY_ID: _sealed(key, name, secret.encode())}}
    return found


def recovery_key(key: bytes) -> str:
    """Return the key as a person types it: base58 in groups of four."""
    whole = PREFIX + key
    parity = 0
    for byte in whole:
        parity ^= byte
    number, digits = int.from_bytes(whole + bytes([parity]), "big"), ""
    while number:
        number, digit = divmod(number, len(ALPHABET))
        digits = ALPHABET[digit] + digits
    return " ".join(digits[n : n + 4] for n in range(0, len(digits), 4))


def _sealed(key: bytes, name: str, secret: bytes) -> Json:
    derived = HKDF(key, 2 * KEY_BYTES, bytes(KEY_BYTES), SHA256, context=name.encode())
    assert isinstance(derived, bytes)
    vector = bytearray(secrets.token_bytes(16))
    vector[8] &= 0x7F  # cleared as the specification requires
    cipher = AES.new(derived[:KEY_BYTES], AES.MODE_CTR, nonce=b"", initial_value=bytes(vector))
    sealed = cipher.encrypt(secret)
    mac = hmac.new(derived[KEY_BYTES:], sealed, hashlib.sha256).digest()
    texts = (base64.b64encode(part).decode() for part in (bytes(vector), sealed, mac))
    return dict(zip(("iv", "ciphertext", "mac"), texts, strict=True))


@dataclass(frozen=True, slots=True)
class DemoSecrets:
    """The secrets of the homeserver and its two accounts, and the room they share."""

    port: int
    secret: str
    bot_password: str
    password: str
    recovery: str
    """The key of the person's secret storage, in hex."""
    room_id: str | None = None

    @classmethod
    def of(cls, folder: Path) -> Self:
        """Read the secrets of the last start, or make new ones, with a port that is free now.

        Raises: ConfigurationError for a file that is not ours.
        """
        file = folder / FILE
        if not file.exists():
            new = secrets.token_hex
            return cls(free_port(), new(32), new(16), secrets.token_urlsafe(9), new(KEY_BYTES))
        try:
            kept = cls(**json.loads(file.read_text("utf-8")))
        except (OSError, ValueError, TypeError) as error:
            raise ConfigurationError(
                f"{file} cannot be read ({type(error).__name__}): choose another folder"
            ) from error
        return replace(kept, port=free_port(kept.port))

    def save(self, folder: Path) -> None:
        """Write the file in one step, readable by its owner only."""
        write(folder / FILE, json.dumps(asdict(self), indent=1))


def write(file: Path, text: str) -> None:
    """Replace a file in one step, readable by its owner only."""
    files.replace(file, text.encode(), mode=0o600)


def free_port(wanted: int = 0) -> int:
    """Return a loopback port that nobody listens on: the wanted one if possible."""
    with socket.socket() as probe:
        # Closing connections of the last start must not block the port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", wanted))
        except OSError:
            return free_port()
        port: int = probe.getsockname()[1]
        return port


@dataclass(frozen=True, slots=True)
class Child:
    """A running program. `log` is its output since this start."""

    name: str
    process: asyncio.subprocess.Process
    log: Path

    async def logged(self, text: str) -> bool:
        """Return True if its log has this text."""
        return text in await asyncio.to_thread(self.log.read_text, "utf-8", "replace")

    def tail(self) -> str:
        """Return the end of its log."""
        lines = self.log.read_text("utf-8", errors="replace").splitlines()
        return "\n".join(lines[-TAIL_LINES:])

    async def wait_for_end(self) -> None:
        """Wait for its unwanted end. Raises: WintermuteError."""
        code = await self.process.wait()
        raise WintermuteError(f"{self.name} ended ({code}); its last lines:\n{self.tail()}")

    async def wait_until(self, true: Callable[[], Awaitable[bool]], within: float) -> None:
        """Poll until a condition holds. Raises: WintermuteError."""
        try:
            async with asyncio.timeout(within):
                while not await true():
                    try:
                        await asyncio.wait_for(self.wait_for_end(), POLL_SECONDS)
                    except TimeoutError:
                        continue
        except TimeoutError:
            raise WintermuteError(
                f"{self.name} is not ready after {within:.0f} s; its last lines:\n{self.tail()}"
            ) from None


@asynccontextmanager
async def watched_child(
    name: str, log: Path, folder: Path, environment: Mapping[str, str], *words: str
) -> AsyncIterator[Child]:
    """Run a module as a program in `folder` for a block; at the end it is asked to end, then killed."""
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            # -P: no module of that folder may hide one of the program's
            *(sys.executable, "-P", "-m", "wintermute.demo.parent_watchdog", *words),
            stdin=asyncio.subprocess.PIPE,
            stdout=output,
            stderr=output,
            cwd=folder,
            env=environment,
        )
    try:
        yield Child(name, process, log)
    finally:
        await _end(process)


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.terminate()
        try:
            await asyncio.wait_for(process.wait(), ENDING_SECONDS)
        except TimeoutError:
            process.kill()
            await process.wait()
    if process.stdin is not None:
        process.stdin.close()


def require_synapse() -> None:
    """Check that the extra is installed. Raises: ConfigurationError."""
    if importlib.util.find_spec("synapse") is None:
        raise ConfigurationError("the demo needs its homeserver: pip install 'wintermute[demo]'")


class Homeserver:
    """The homeserver's address, and the requests of an administrator."""

    def __init__(self, folder: Path, port: int, secret: str, http: httpx2.AsyncClient) -> None:
        self._folder = folder
        self._port = port
        self._secret = secret
        self._http = http
        self.url = f"http://127.0.0.1:{port}"

    def running(self, environment: Mapping[str, str]) -> AbstractAsyncContextManager[Child]:
        """Run the process for a block; it does not answer at once."""
        self._write_files()
        return watched_child(
            "the homeserver",
            self._folder / "console.log",
            self._folder,
            environment,
            *("synapse.app.homeserver", "-c", "homeserver.yaml"),
        )

    async def until_it_answers(self, child: Child) -> None:
        """Wait until it answers. Raises: WintermuteError if it ends, or takes too long."""
        await child.wait_until(self._answers, BOOT_SECONDS)

    async def _answers(self) -> bool:
        try:
            answer = await self._http.get(f"{self.url}/_matrix/client/versions")
        except httpx2.TransportError:
            return False
        return answer.is_success

    async def register(self, name: str, shown: str, password: str) -> str:
        """Make an account unless it exists. Return its Matrix id."""
        target = "/_synapse/admin/v1/register"
        nonce = (await self.ask("GET", target))["nonce"]
        said = "\0".join([nonce, name, password, "notadmin"])
        seal = hmac.new(self._secret.encode(), said.encode(), hashlib.sha1).hexdigest()
        account = {"nonce": nonce, "username": name, "password": password, "mac": seal}
        more = {"displayname": shown, "admin": False, "inhibit_login": True}
        await self.ask("POST", target, account | more, fine="M_USER_IN_USE")
        return f"@{name}:{SERVER_NAME}"

    async def ask(
        self,
        method: str,
        target: str,
        body: Json | None = None,
        token: str | None = None,
        fine: str | None = None,
    ) -> Json:
        """Send a request. Raises: WintermuteError if it is refused, except with the code `fine`."""
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        try:
            answer = await self._http.request(method, self.url + target, json=body, headers=headers)
            content: Json = answer.json()
        except (httpx2.TransportError, ValueError) as error:
            raise WintermuteError(f"the homeserver does not answer {target}: {error}") from error
        if not answer.is_success and content.get("errcode") != fine:
            raise WintermuteError(f"the homeserver refuses {target}: {content.get('error')}")
        return content

    def _write_files(self) -> None:
        self._folder.mkdir(mode=0o700, exist_ok=True)
        key = self._folder / "signing.key"
        if not key.exists():
            seed = base64.b64encode(secrets.token_bytes(32)).decode().rstrip("=")
            write(key, f"ed25519 a_demo {seed}\n")
        log = {
            "version": 1,
            "handlers": {"console": {"class": "logging.StreamHandler"}},
            "root": {"level": "WARNING", "handlers": ["console"]},
        }
        write(self._folder / "log.yaml", json.dumps(log))  # JSON is YAML
        settings = _configuration(self._port, self._secret)
        write(self._folder / "homeserver.yaml", json.dumps(settings, indent=1))


@asynccontextmanager
async def private_homeserver(folder: Path, port: int, secret: str) -> AsyncIterator[Homeserver]:
    """Prepare the homeserver of this folder, without starting it."""
    async with httpx2.AsyncClient(verify=False, trust_env=False, timeout=30) as http:
        yield Homeserver(folder, port, secret, http)


def _configuration(port: int, secret: str) -> dict[str, Any]:
    """Return homeserver.yaml, with paths relative to the folder Synapse runs in."""
    listener: Json = {"type": "http", "port": port, "bind_addresses": ["127.0.0.1"]}
    return {
        "server_name": SERVER_NAME,
        "public_baseurl": f"http://127.0.0.1:{port}",
        "listeners": [listener | {"resources": [{"names": ["client"]}]}],
        "database": {"name": "sqlite3", "args": {"database": "homeserver.db"}},
        "media_store_path": "media",
        "pid_file": "homeserver.pid",
        "log_config": "log.yaml",
        "signing_key_path": "signing.key",
        "registration_shared_secret": secret,
        "macaroon_secret_key": secret,
        "form_secret": secret,
        "bcrypt_rounds": 4,  # random passwords need no slow hashes
        "report_stats": False,
        "trusted_key_servers": [],
        "federation_domain_whitelist": [],
        "presence": {"enabled": False},
        # Otherwise a daemon that restarts within two minutes gets old events again.
        "caches": {"sync_response_cache_duration": "0s"},
        **{group: dict.fromkeys(names, BOUNDLESS) for group, names in GROUPED_LIMITS.items()},
        **{f"rc_{name}": BOUNDLESS for name in LIMITS.split()},
    }
