"""A Synapse of our own on loopback: no federation, no limits, nobody but the two of us."""

import base64
import hashlib
import hmac
import importlib.util
import json
import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2

from wintermute.demo.child import Child, leashed
from wintermute.demo.kept import write
from wintermute.errors import ConfigurationError, WintermuteError
from wintermute.messages import Json

SERVER_NAME = "localhost"
BOOT_SECONDS = 60.0
BOUNDLESS = {"per_second": 1e6, "burst_count": 1_000_000}
LIMITS = [
    "message",
    "registration",
    "admin_redaction",
    "joins_per_room",
    "key_requests",
    "media_create",
    "room_creation",
    "user_directory",
    "profile",
    "delayed_event_mgmt",
    "reports",
]
GROUPED_LIMITS = {
    "rc_login": ("address", "account", "failed_attempts"),
    "rc_joins": ("local", "remote"),
    "rc_invites": ("per_room", "per_user", "per_issuer"),
}


def require_synapse() -> None:
    """Raises: ConfigurationError when the extra is not installed."""
    if importlib.util.find_spec("synapse") is None:
        raise ConfigurationError("the demo needs its homeserver: pip install 'wintermute[demo]'")


class Homeserver:
    """Where it is, and what an administrator may ask of it."""

    def __init__(self, folder: Path, port: int, secret: str, http: httpx2.AsyncClient) -> None:
        self._folder = folder
        self._port = port
        self._secret = secret
        self._http = http
        self.url = f"http://127.0.0.1:{port}"

    def running(self, environment: Mapping[str, str]) -> AbstractAsyncContextManager[Child]:
        """The process; it does not answer yet."""
        self._write_files()
        return leashed(
            "the homeserver",
            self._folder / "console.log",
            self._folder,
            environment,
            "synapse.app.homeserver",
            "-c",
            "homeserver.yaml",
        )

    async def until_it_answers(self, child: Child) -> None:
        """Raises: WintermuteError when it ends, or takes too long."""
        await child.until(self._answers, BOOT_SECONDS)

    async def _answers(self) -> bool:
        try:
            answer = await self._http.get(f"{self.url}/_matrix/client/versions")
        except httpx2.TransportError:
            return False
        return answer.is_success

    async def register(self, name: str, shown: str, password: str) -> str:
        """Make an account unless it is there; its Matrix id."""
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
        """One request. Raises: WintermuteError when it is refused, but not for the code `fine`."""
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
    """The homeserver of this folder, not started yet."""
    async with httpx2.AsyncClient(verify=False, trust_env=False, timeout=30) as http:
        yield Homeserver(folder, port, secret, http)


def _configuration(port: int, secret: str) -> dict[str, Any]:
    """homeserver.yaml, with paths relative to the folder Synapse runs in."""
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
        "bcrypt_rounds": 4,  # the passwords are random: slow hashes would protect nothing
        "report_stats": False,
        "trusted_key_servers": [],
        "federation_domain_whitelist": [],
        "presence": {"enabled": False},
        # Else a daemon that restarts within two minutes is told the past again.
        "caches": {"sync_response_cache_duration": "0s"},
        **{group: dict.fromkeys(names, BOUNDLESS) for group, names in GROUPED_LIMITS.items()},
        **{f"rc_{name}": BOUNDLESS for name in LIMITS},
    }
