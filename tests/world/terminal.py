"""A person at the command line: real processes on a data folder that no daemon uses."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from wintermute.config.write import starter_config

PASSWORD = "correct horse"


@dataclass(frozen=True)
class Terminal:
    """Runs commands for the owner, `@you:example.org`."""

    folder: Path

    @classmethod
    def in_folder(cls, folder: Path) -> Self:
        """With the configuration that `init` writes, as it is."""
        (folder / "config.yaml").write_text(starter_config())
        (folder / "data" / "skills").mkdir(parents=True)
        return cls(folder)

    @property
    def data(self) -> Path:
        """The data folder."""
        return self.folder / "data"

    def run(self, *words: str | Path, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        """What a command did; its output as bytes."""
        return subprocess.run(
            [sys.executable, "-m", "wintermute", *words],
            input=given,
            capture_output=True,
            check=False,
            cwd=self.folder,
            env={
                "PATH": os.defpath,
                "WINTERMUTE_PASSWORD": PASSWORD,
                "PYTHONPATH": str(Path(__file__).parent.parent.parent),
            },
        )

    def says(self, *words: str | Path, given: bytes = b"") -> str:
        """What a command prints that must not fail."""
        done = self.run(*words, given=given)
        assert (done.returncode, done.stderr) == (0, b"")
        return done.stdout.decode()

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
