"""The real daemon with a folder of its own, started as a person would start it, and the choice of its model."""

import asyncio
import dataclasses
import json
import re
import sys
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import httpx2

from wintermute.clock import SystemClock
from wintermute.config.read import read_config
from wintermute.config.schema import URL, WIKI, Config, Secret, key_name
from wintermute.demo.homeserver import Child, free_port, watched_child, write
from wintermute.errors import ConfigurationError
from wintermute.memory.status import Machine, first_backend
from wintermute.messages import Json
from wintermute.templates import RUNTIME, shipped_prompts
from wintermute.web.door import is_installed
from wintermute.wiki.store import WikiStore

LOCAL = {"Ollama": "http://127.0.0.1:11434/v1", "llama.cpp": "http://127.0.0.1:8080/v1"}
LOCAL_SECONDS = 0.3
REMOTE_SECONDS = 10.0
MOST_NAMED = 10
SOON: Mapping[str, int] = {"message_threshold": 5, "min_messages": 1, "inactivity_minutes": 1}
"""The settings of the harvest in a demo: memories appear during it, but not after each message."""
AT_ONCE: Mapping[str, int] = {"message_threshold": 1, "min_messages": 1}
"""The same for a model that costs nothing."""
READY_SECONDS = 60.0
COMMAND_SECONDS = 300.0
WEB_DOOR = " web door "
"""In the daemon's log: the web pages are open, or the reason why not."""
READY = " ready device="
"""In the daemon's log: it knows its rooms, and others can encrypt for it."""


@dataclass(frozen=True, slots=True)
class FoundModel:
    """An `llm` section, the environment with its secrets, and its description for the person.

    `harvest`: the keys of `memory_harvest`.
    """

    llm: Json
    description: str
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict, repr=False)
    harvest: Mapping[str, int] = dataclasses.field(default_factory=lambda: SOON)


async def find_model(config: Config | None, environment: Mapping[str, str]) -> FoundModel | None:
    """Return the first model found: in the configuration, in OPENAI_*, on a usual port of this machine.

    Raises: ConfigurationError if OPENAI_* leave the choice of the model open.
    """
    if config is not None:
        return configured(config)
    if environment.get("OPENAI_BASE_URL") or environment.get("OPENAI_API_KEY"):
        return await _of_environment(environment)
    offers = await asyncio.gather(
        *(model_names(address, None, LOCAL_SECONDS) for address in LOCAL.values())
    )
    for (name, address), models in zip(LOCAL.items(), offers, strict=True):
        talking = [model for model in models if "embed" not in model]
        if talking:
            return one_backend(address, talking[0], f"{talking[0]} of the local {name}")
    return None


def configured(config: Config) -> FoundModel:
    """Return the `llm` section of a configuration; its secrets are passed through the environment."""
    secrets: dict[str, str] = {}
    llm = _plain(config.llm, secrets)
    models = (config.llm.backends[name].model for name in config.llm.roles.base)
    return FoundModel(llm, f"{', '.join(models)}, as configured", secrets)


def one_backend(base_url: str, model: str, description: str, key: Json | None = None) -> FoundModel:
    """Return an `llm` section with a single backend."""
    backend = {"base_url": base_url, "model": model} | ({"api_key": key} if key else {})
    return FoundModel({"backends": {"demo": backend}}, description)


async def _of_environment(environment: Mapping[str, str]) -> FoundModel:
    address = environment.get("OPENAI_BASE_URL") or "https://api.openai.com/v1"
    if not re.fullmatch(URL, address):
        raise ConfigurationError("OPENAI_BASE_URL must be text like http://127.0.0.1:8080/v1")
    key = environment.get("OPENAI_API_KEY")
    model = environment.get("OPENAI_MODEL")
    if not model:
        model = _only(address, await model_names(address, key, REMOTE_SECONDS))
    secret = {"env": "OPENAI_API_KEY"} if key else None
    return one_backend(address, model, f"{model} at {address}", secret)


def _only(address: str, models: list[str]) -> str:
    if not models:
        raise ConfigurationError(
            f"{address} names no models: check OPENAI_BASE_URL and OPENAI_API_KEY, or name the "
            "model in OPENAI_MODEL"
        )
    if len(models) > 1:
        more = ", …" if len(models) > MOST_NAMED else ""
        raise ConfigurationError(
            f"{address} has {len(models)} models: name one in OPENAI_MODEL "
            f"({', '.join(models[:MOST_NAMED])}{more})"
        )
    return models[0]


async def model_names(address: str, key: str | None, within: float) -> list[str]:
    """Return the models that a server lists; none if it does not answer like a model server."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    encrypted = not address.startswith("http://")
    try:
        async with (
            asyncio.timeout(within),
            httpx2.AsyncClient(verify=encrypted, trust_env=False) as http,
        ):
            answer = await http.get(f"{address.rstrip('/')}/models", headers=headers)
        listed = answer.json()["data"]
        return [str(model["id"]) for model in listed]
    except (httpx2.HTTPError, httpx2.InvalidURL, TimeoutError, ValueError, TypeError, KeyError):
        return []


def _plain(value: Any, secrets: dict[str, str]) -> Any:
    """Return a part of the configuration as JSON; each secret becomes a variable in `secrets`."""
    if isinstance(value, Secret):
        name = f"WINTERMUTE_DEMO_SECRET_{len(secrets)}"
        secrets[name] = value.reveal()
        return {"env": name}
    if dataclasses.is_dataclass(value):
        fields = dataclasses.fields(value)
        return {key_name(field): _plain(getattr(value, field.name), secrets) for field in fields}
    if isinstance(value, Mapping):
        return {name: _plain(item, secrets) for name, item in value.items()}
    if isinstance(value, tuple):
        return [_plain(item, secrets) for item in value]
    return str(value) if isinstance(value, Path) else value


class Bot:
    """The folder of the bot: its configuration and data."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._config = folder / "config.yaml"
        self.database = folder / "data" / "wintermute.db"

    def furnish(
        self, homeserver: str, user_id: str, password: str, owner: str, found: FoundModel
    ) -> None:
        """Write the configuration as `wintermute init` would; existing prompts stay."""
        prompts = self._folder / "data" / "prompts"
        for folder in (self._folder, prompts.parent, prompts):
            folder.mkdir(mode=0o700, exist_ok=True)
        for name, text in shipped_prompts().items():
            (prompts / name).parent.mkdir(mode=0o700, exist_ok=True)
            if not (prompts / name).exists():
                write(prompts / name, text)
        runtime, today = shipped_prompts()[RUNTIME], SystemClock().now().date()
        WikiStore(prompts.parent / WIKI).init(today, runtime)
        write(self._folder / "password", password)
        account: Json = {"homeserver": homeserver, "user_id": user_id}
        config = {
            "data_dir": "data",
            "timezone": local_zone(Path("/etc/localtime").resolve()),
            "matrix": account | {"password": {"file": "password"}, "owner": owner},
            "llm": found.llm,
            "memory": {"backend": first_backend(Machine.here()).backend},
            "memory_harvest": dict(found.harvest),
            "web": {"enabled": is_installed(), "port": free_port()},
        }
        write(self._config, json.dumps(config, indent=2, ensure_ascii=False))  # JSON is YAML

    async def command(self, environment: Mapping[str, str], *words: str) -> str:
        """Run one of our own commands beside the daemon, and return its output."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "wintermute", "--config", str(self._config), *words),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            cwd=self._folder,
            env=environment,
        )
        try:
            printed, _ = await asyncio.wait_for(process.communicate(), COMMAND_SECONDS)
        except TimeoutError:
            return f"it takes longer than {COMMAND_SECONDS:.0f} seconds: left"
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        return printed.decode(errors="replace").rstrip()

    async def login(self, environment: Mapping[str, str]) -> str:
        """Return the line with a login address for a browser."""
        return (await self.command(environment, "web")).splitlines()[-1]

    def running(self, environment: Mapping[str, str]) -> AbstractAsyncContextManager[Child]:
        """Run `wintermute run` for a block. Raises: ConfigurationError if the model's settings are wrong."""
        read_config(self._config, environment)
        return watched_child(
            "the daemon",
            self._folder / "daemon.log",
            self._folder,
            environment,
            *("wintermute", "--config", str(self._config), "run"),
        )


def local_zone(localtime: Path) -> str:
    """Return the time zone that this link points to; UTC if it is none."""
    _, found, name = str(localtime).partition("/zoneinfo/")
    try:
        return ZoneInfo(name).key if found else "UTC"
    except (ZoneInfoNotFoundError, ValueError):
        return "UTC"
