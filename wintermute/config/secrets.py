"""Secrets: read from the environment or a file, and kept out of everything that is shown."""

import dataclasses
import json
import os
import re
from base64 import b64encode
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from wintermute.config.document import Entries, Node, Scalar, Unavailable, Wrong
from wintermute.config.schema import Backend, Config, Matrix, Secret

LONGEST = 64 * 1024
SHORTEST = 4
"""Hiding `x`, as some local servers want for a key, would garble every line and hide nothing."""
HIDDEN = "[secret]"
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


def _from_variable(name: str, environment: Mapping[str, str]) -> Secret | Unavailable:
    if name not in environment:
        return Unavailable(
            f"the environment variable {name} is not set: export it, or use {{file: PATH}}"
        )
    return _usable(environment[name], f"the environment variable {name}")


def _from_file(name: str, sources: Sources) -> Secret | Unavailable:
    path = sources.path(name)
    credentials = sources.environment.get("CREDENTIALS_DIRECTORY")
    try:
        if credentials and not path.exists():
            path = Path(credentials, name)  # an absolute name stays itself
        if not path.is_file():
            return Unavailable(
                f"there is no file {path}: write the secret into it, or correct the path"
            )
        with path.open("rb") as file:
            content = file.read(LONGEST)
        return _usable(content.decode("utf-8").rstrip("\r\n"), f"the file {path}")
    except OSError as error:
        return Unavailable(f"the file {path} cannot be read: {error.strerror}")
    except UnicodeDecodeError:
        return Unavailable(f"the file {path} is not UTF-8 text")


def _usable(value: str, source: str) -> Secret | Unavailable:
    if not value:
        return Unavailable(f"{source} is empty")
    # It goes into an HTTP header or a JSON body; a library that refuses it there would show it.
    if not value.isprintable():
        return Unavailable(f"{source} must hold one line without control characters")
    return Secret(value)


def secret_values(config: Config | Backend) -> tuple[str, ...]:
    """Every secret the configuration, or its part, holds, for `Redaction`."""
    return tuple(dict.fromkeys(_secrets(config)))


def _secrets(value: object) -> Iterator[str]:
    if isinstance(value, Secret):
        yield value.reveal()
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _secrets(item)
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from _secrets(getattr(value, field.name))
        if isinstance(value, Matrix | Backend) and value.proxy_login:  # and what a proxy is sent
            login = value.proxy_login.reveal()
            yield from (
                *filter(None, login.partition(":")[::2]),
                b64encode(login.encode()).decode(),
            )


class Redaction:
    """Puts `[secret]` for each secret, also where quoting changed its look (L-050, L-089)."""

    def __init__(self, secrets: Iterable[str]) -> None:
        self._looks: tuple[str, ...] = ()
        self.hide(*secrets)

    def hide(self, *secrets: str) -> None:
        """Hide these as well from now on, as the token of a new login."""
        looks = {look for secret in secrets if len(secret) >= SHORTEST for look in _looks(secret)}
        looks |= set(self._looks)
        if looks:  # what stands for a secret stays as it is, even with `secret` for a password
            looks.add(HIDDEN)
        self._looks = tuple(sorted(looks, key=len, reverse=True))
        self._pattern = re.compile("|".join(map(re.escape, self._looks)))

    def __call__(self, text: str) -> str:
        """The text without secrets."""
        # Nearly always there is none, and looking for it plainly is far cheaper than the pattern.
        if any(look in text for look in self._looks):
            return self._pattern.sub(HIDDEN, text)
        return text

    def tree(self, value: Any, frame: Collection[str] = ()) -> Any:
        """JSON without secrets, in names as well.

        With a `frame` all names stay, and the values of those in it: what a protocol itself says.
        """
        match value:
            case str():
                return self(value)
            case list() | tuple():
                return [self.tree(item, frame) for item in value]
            case dict():
                named = {key if frame else self.tree(key): value[key] for key in value}
                return {
                    name: item if name in frame else self.tree(item, frame)
                    for name, item in named.items()
                }
            case _:
                return value

    def settled(self, text: str) -> int:
        """How much of the beginning of a text can be judged now, whatever follows it."""
        if not self._looks:
            return len(text)
        starts = range(max(0, len(text) - len(self._looks[0]) + 1), len(text))
        begun = (at for at in starts if any(look.startswith(text[at:]) for look in self._looks))
        end = next(begun, len(text))
        # One that is complete must not be cut by the beginning of another one within it.
        found = map(re.Match.span, self._pattern.finditer(text))
        return next((start for start, stop in found if start < end < stop), end)


class StreamRedactor:
    """A text that comes in pieces, shown without the secrets that may be split over them."""

    def __init__(self, redact: Redaction, show: Callable[[str], None]) -> None:
        self._redact = redact
        self._show = show
        self._held = ""

    def feed(self, piece: str) -> None:
        """Show what can be shown by now."""
        text = self._held + piece
        end = self._redact.settled(text)
        self._held = text[end:]
        if end:
            self._show(self._redact(text[:end]))

    def end(self) -> None:
        """Show the rest: nothing follows."""
        if self._held:
            self._show(self._redact(self._held))
        self._held = ""


class NoRedaction(Redaction):
    """Hides nothing. All who have no secrets share it, so that none can be added to it."""

    def hide(self, *secrets: str) -> None:
        if secrets:
            raise TypeError("a secret needs a Redaction of its own, not the shared UNHIDDEN")
        super().hide()


UNHIDDEN = NoRedaction(())


def _looks(secret: str) -> set[str]:
    written = {
        secret,
        repr(secret)[1:-1],
        json.dumps(secret)[1:-1],
        json.dumps(secret, ensure_ascii=False)[1:-1],
        quote(secret, safe=""),
    }
    # Once more, for results of tools are JSON that stands in the JSON of a request.
    return written | {json.dumps(look, ensure_ascii=False)[1:-1] for look in written}
