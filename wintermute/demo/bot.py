"""The real daemon with a folder of its own, started as a person would start it."""

import json
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from wintermute.config.read import read_config
from wintermute.demo.child import Child, leashed
from wintermute.demo.found import Found
from wintermute.demo.kept import write
from wintermute.templates import shipped_prompts

READY_SECONDS = 60.0
READY = " ready device="
"""In the daemon's log: it knows its rooms, and others can encrypt for it."""


class Bot:
    """The folder of the bot: its configuration and data."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._config = folder / "config.yaml"
        self.database = folder / "data" / "wintermute.db"

    def furnish(
        self, homeserver: str, user_id: str, password: str, owner: str, found: Found
    ) -> None:
        """Write what `wintermute init` and its reader would; prompts that are there stay."""
        prompts = self._folder / "data" / "prompts"
        for folder in (self._folder, prompts.parent, prompts):
            folder.mkdir(mode=0o700, exist_ok=True)
        for name, text in shipped_prompts().items():
            if not (prompts / name).exists():
                write(prompts / name, text)
        write(self._folder / "password", password)
        config = {
            "data_dir": "data",
            "timezone": local_zone(Path("/etc/localtime").resolve()),
            "matrix": {
                "homeserver": homeserver,
                "user_id": user_id,
                "password": {"file": "password"},
                "owner": owner,
            },
            "llm": found.llm,
        }
        write(self._config, json.dumps(config, indent=2, ensure_ascii=False))  # JSON is YAML

    def running(self, environment: Mapping[str, str]) -> AbstractAsyncContextManager[Child]:
        """`wintermute run`. Raises: ConfigurationError when the model's settings are wrong."""
        read_config(self._config, environment)
        return leashed(
            "the daemon",
            self._folder / "daemon.log",
            self._folder,
            environment,
            *("wintermute", "--config", str(self._config), "run"),
        )


async def until_ready(child: Child) -> None:
    """Raises: WintermuteError when the daemon ends, or takes too long."""

    async def ready() -> bool:
        return child.said(READY)

    await child.until(ready, READY_SECONDS)


def local_zone(localtime: Path) -> str:
    """The time zone whose file this is; UTC when it is none."""
    _, found, name = str(localtime).partition("/zoneinfo/")
    try:
        return ZoneInfo(name).key if found else "UTC"
    except (ZoneInfoNotFoundError, ValueError):
        return "UTC"
