"""A person at the command line: commands on a data folder that no daemon uses.

Each command is a process of its own, forked from a warm interpreter.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from tests.full_config import full_config
from tests.world.house import PROMPTS, Gate, House, open_house
from tests.world.model import ModelServer
from tests.world.schema import lay_schema
from tests.world.warm import Ended, Interpreter
from wintermute.messages import Json
from wintermute.templates import shipped_folder

PASSWORD = "correct horse"
ROOM = "!room:test"
YOU = "@you:example.org"
OWNER = "person:@you:example.org"


@dataclass(frozen=True)
class Terminal:
    """Runs commands for the owner, `@you:example.org`."""

    folder: Path
    python: Interpreter

    @classmethod
    def in_folder(cls, folder: Path, python: Interpreter) -> Self:
        """With the configuration that `init` writes, as it is."""
        (folder / "config.yaml").write_text(full_config())
        (folder / "data" / "skills").mkdir(parents=True)
        lay_schema(folder / "data" / "wintermute.db")
        return cls(folder, python)

    @property
    def data(self) -> Path:
        """The data folder."""
        return self.folder / "data"

    def run(self, *words: str | Path, given: bytes = b"", **environment: str) -> Ended:
        """What a command did; its output as bytes."""
        return self.python.run(
            *map(str, words),
            cwd=self.folder,
            env={"PATH": os.defpath, "WINTERMUTE_PASSWORD": PASSWORD} | environment,
            given=given,
        )

    def says(self, *words: str | Path, given: bytes = b"", **environment: str) -> str:
        """What a command prints that must not fail."""
        done = self.run(*words, given=given, **environment)
        assert (done.returncode, done.stderr) == (0, b"")
        return done.stdout.decode()

    def at_screen(self, *words: str | Path) -> tuple[str, str]:
        """Output of a command whose stderr alone is a terminal, and the text there."""
        ours, theirs = os.openpty()
        with os.fdopen(ours, "rb", buffering=0) as screen, os.fdopen(theirs, "wb") as stderr:
            done = subprocess.run(
                (sys.executable, "-m", "wintermute", *words),
                cwd=self.folder,
                stdout=subprocess.PIPE,
                stderr=stderr,
                check=True,
            )
            os.set_blocking(ours, False)
            return done.stdout.decode(), (screen.read(65536) or b"").decode()

    def json(self, *words: str | Path, given: bytes = b"") -> Any:
        """The JSON that a command prints."""
        return json.loads(self.says(*words, "--json", given=given))

    def refuses(self, *words: str | Path, given: bytes = b"", code: int = 1) -> str:
        """The only line of a command that must fail, or the last one of a wrong usage."""
        done = self.run(*words, given=given)
        lines = done.stderr.decode().splitlines()
        assert (done.returncode, done.stdout) == (code, b"")
        assert code == 2 or len(lines) == 1
        return lines[-1]


def house_at(terminal: Terminal, model: ModelServer, *gates: Gate, **more: Any) -> Any:
    """The loop on the data folder of the terminal."""
    more = {"prompts": terminal.data / "prompts", "owner": YOU, **more}
    return open_house(terminal.data, model.url, gates=gates, **more)


async def tell_at(house: House, *messages: str) -> None:
    """Say these one after the other."""
    await house.say(*messages, room=ROOM, sender=YOU)


def exported(terminal: Terminal, *words: str) -> list[Json]:
    """Export branches; the lines of the file."""
    return [json.loads(line) for line in terminal.says("loom", "export", *words).splitlines()]


def with_model(terminal: Terminal, model: ModelServer, memory: str) -> None:
    """A configuration that asks the scripted model."""
    shutil.copytree(shipped_folder(), terminal.data / "prompts", dirs_exist_ok=True)
    config = terminal.folder / "config.yaml"
    lines = [
        "data_dir: data",
        "matrix: {homeserver: http://localhost, user_id: '@bot:example.org',"
        " password: {env: WINTERMUTE_PASSWORD}, owner: '@you:example.org'}",
        f"llm: {{max_retries: 0, backends: {{local: {{base_url: '{model.url}', model: scripted}}}},"
        " roles: {base: [local]}}",
        f"memory: {{backend: {memory}, embeddings: {{provider: none}}}}",
    ]
    config.write_text("\n".join(lines) + "\n")


async def beside(terminal: Terminal, *words: str, given: bytes = b"") -> Ended:
    """A command, while everything else goes on."""
    env = {"PATH": os.defpath, "WINTERMUTE_PASSWORD": PASSWORD}
    return await terminal.python.command(*words, cwd=terminal.folder, env=env, given=given)


def with_prompts(terminal: Terminal) -> Terminal:
    """Give a person the prompts of a house."""
    shutil.copytree(PROMPTS, terminal.data / "prompts")
    return terminal


def keep_by(terminal: Terminal, way: str) -> None:
    """Let this be in the configuration."""
    config = terminal.folder / "config.yaml"
    text = re.sub(r"(?m)^  backend: \w+", f"  backend: {way}", config.read_text(), count=1)
    config.write_text(text)


async def said_beside(terminal: Terminal, *words: str) -> str:
    """What a command prints that must not fail."""
    done = await beside(terminal, *words)
    assert done.returncode == 0, done.stderr
    return done.stdout.decode()
