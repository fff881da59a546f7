"""A person at the command line: commands on a data folder that no daemon uses.

Each command is a process of its own, forked from a warm interpreter.
"""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from tests.full_config import full_config
from tests.world.schema import lay_schema
from tests.world.warm import Ended, Interpreter

PASSWORD = "correct horse"


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
