"""A daemon that systemd starts: its environment and its settings."""

import shlex
import sys
from pathlib import Path
from typing import Any


def python_of_a_service(folder: Path, **environment: str) -> str:
    """A Python whose programs find this environment, as systemd would set it."""
    script = folder / "python"
    settings = [f"{name}={shlex.quote(value)}" for name, value in environment.items()]
    script.write_text(f'#!/bin/sh\nexec env {" ".join(settings)} {sys.executable} "$@"\n')
    script.chmod(0o755)
    return str(script)


def merged(content: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Change a dictionary, and those inside it."""
    for name, value in changes.items():
        both = isinstance(value, dict) and isinstance(content.get(name), dict)
        content[name] = content[name] | value if both else value
    return content
