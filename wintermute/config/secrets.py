"""Secrets: read from the environment or a file, and kept out of everything that is shown."""

import dataclasses
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from urllib.parse import quote

from wintermute.config.document import Entries, Node, Scalar
from wintermute.config.scalars import Wrong
from wintermute.config.schema import Config, Secret

LONGEST = 64 * 1024
SHORTEST = 4
"""Hiding `x`, as some local servers want for a key, would garble every line and hide nothing."""
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclasses.dataclass(frozen=True, slots=True)
class Sources:
    """Where secrets come from: the folder of the configuration and the environment."""

    folder: Path
    environment: Mapping[str, str]

    def path(self, name: str) -> Path:
        """A path as the file names it: `~` is somebody's home, the rest starts at the file."""
        return self.folder / os.path.expanduser(name)  # noqa: PTH111  Path's own may raise


def read_secret(node: Node, sources: Sources) -> Secret | Wrong:
    """The secret that `{env: NAME}` or `{file: PATH}` points at. Never repeats what stands there."""
    match node:
        case Entries(pairs=((Scalar(text="env"), Scalar(text=name)),)) if VARIABLE.fullmatch(name):
            return _from_variable(name, sources.environment)
        case Entries(pairs=((Scalar(text="file"), Scalar(text=name)),)) if name.isprintable():
            return _from_file(name, sources) if name else Wrong("names no file")
        case _:
            return Wrong("must be {env: NAME} or {file: PATH}, never the secret itself")


def _from_variable(name: str, environment: Mapping[str, str]) -> Secret | Wrong:
    if name not in environment:
        return Wrong(
            f"the environment variable {name} is not set: export it, or use {{file: PATH}}"
        )
    return _usable(environment[name], f"the environment variable {name}")


def _from_file(name: str, sources: Sources) -> Secret | Wrong:
    path = sources.path(name)
    credentials = sources.environment.get("CREDENTIALS_DIRECTORY")
    try:
        if credentials and not path.exists():
            path = Path(credentials, name)  # an absolute name stays itself
        if not path.is_file():
            return Wrong(f"there is no file {path}: write the secret into it, or correct the path")
        with path.open("rb") as file:
            content = file.read(LONGEST)
        return _usable(content.decode("utf-8").rstrip("\r\n"), f"the file {path}")
    except OSError as error:
        return Wrong(f"the file {path} cannot be read: {error.strerror}")
    except UnicodeDecodeError:
        return Wrong(f"the file {path} is not UTF-8 text")


def _usable(value: str, source: str) -> Secret | Wrong:
    if not value:
        return Wrong(f"{source} is empty")
    # It goes into an HTTP header or a JSON body; a library that refuses it there would show it.
    if not value.isprintable():
        return Wrong(f"{source} must hold one line without control characters")
    return Secret(value)


def secret_values(config: Config) -> tuple[str, ...]:
    """Every secret the configuration holds, for `redaction`."""
    return tuple(dict.fromkeys(secret.reveal() for secret in _secrets(config)))


def _secrets(value: object) -> Iterator[Secret]:
    if isinstance(value, Secret):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _secrets(item)
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from _secrets(getattr(value, field.name))


def redaction(secrets: Iterable[str]) -> Callable[[str], str]:
    """A function that puts `[secret]` for each of them, also where quoting changed its look."""
    looks = {look for secret in secrets if len(secret) >= SHORTEST for look in _looks(secret)}
    if not looks:
        return str
    pattern = re.compile("|".join(re.escape(look) for look in sorted(looks, key=len, reverse=True)))
    return lambda text: pattern.sub("[secret]", text)


def _looks(secret: str) -> set[str]:
    return {
        secret,
        repr(secret)[1:-1],
        json.dumps(secret)[1:-1],
        json.dumps(secret, ensure_ascii=False)[1:-1],
        quote(secret, safe=""),
    }
