"""A configuration as text in a folder, read as the daemon reads it, or refused."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from wintermute.config.read import read_config
from wintermute.config.schema import Config
from wintermute.errors import ConfigurationError

GOOD = """\
matrix:
  homeserver: https://matrix.example.org
  user_id: "@bot:example.org"
  owner: "@ann:example.org"
  password: {env: PASSWORD}
llm:
  backends:
    local: {base_url: "http://127.0.0.1:8080/v1", model: small}
"""
ENVIRONMENT = {"PASSWORD": "correct horse", "KEY": "sk-123"}


def configuration(
    folder: Path, text: str | bytes, environment: Mapping[str, str] = ENVIRONMENT
) -> Config:
    path = folder / "config.yaml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return read_config(path, environment)


def problems(
    folder: Path, text: str | bytes, environment: Mapping[str, str] = ENVIRONMENT
) -> list[str]:
    """The lines of the refusal, without the path before each."""
    with pytest.raises(ConfigurationError) as refusal:
        configuration(folder, text, environment)
    lines = str(refusal.value).splitlines()
    start = f"{folder / 'config.yaml'}:"
    assert all(line.startswith(start) for line in lines)
    return [line.removeprefix(start) for line in lines]


def problem(folder: Path, text: str | bytes) -> str:
    """The one line of a refusal with one problem."""
    (line,) = problems(folder, text)
    return line
