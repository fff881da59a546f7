"""Secrets: read from the environment or a file, and kept out of all output."""

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
"""A shorter secret is not hidden: hiding `x`, the key of some local servers, would garble every line."""
HIDDEN = "[secret]"
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclasses.dataclass(frozen=True, slots=True)
class Sources:
    """The places of secrets: the folder of the configuration, and the environment."""

    folder: Path
    environment: Mapping[str, str]

    def path(self, name: str) -> Path:
        """Return a path named in the file: `~` is expanded, relative paths start at the file."""
        return self.folder / os.path.expanduser(name)  # noqa: PTH111  Path's own may raise


def read_secret(node: Node, sources: Sources) -> Secret | Wrong:
    """Return the secret that `{env: NAME}` or `{file: PATH}` names. An error never repeats the value."""
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
            path = Path(credentials, name)  # an absolute path stays unchanged
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
    # An HTTP library that refuses a control character would show the secret in its error.
    if not value.isprintable():
        return Unavailable(f"{source} must hold one line without control characters")
    return Secret(value)


def secret_values(config: Config | Backend) -> tuple[str, ...]:
    """Return all secrets of a configuration, or a part of it, for `Redaction`."""
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
        if (
            isinstance(value, Matrix | Backend) and value.proxy_login
        ):  # and its form in the header for the proxy
            login = value.proxy_login.reveal()
            yield from (
                *filter(None, login.partition(":")[::2]),
                b64encode(login.encode()).decode(),
            )


class Redaction:
    """Replaces each secret with `[secret]`, also if quoting changed its look (L-050, L-089)."""

    def __init__(self, secrets: Iterable[str]) -> None:
        self._looks: tuple[str, ...] = ()
        self.hide(*secrets)

    def hide(self, *secrets: str) -> None:
        """Hide more secrets from now on, such as the token of a new login."""
        looks = {look for secret in secrets if len(secret) >= SHORTEST for look in _looks(secret)}
        looks |= set(self._looks)
        if looks:  # `[secret]` stays unchanged, even if a password is `secret`
            looks.add(HIDDEN)
        self._looks = tuple(sorted(looks, key=len, reverse=True))
        self._pattern = re.compile("|".join(map(re.escape, self._looks)))

    def __call__(self, text: str) -> str:
        """Return the text without secrets."""
        # Most texts have no secret, and a plain search is far cheaper than the pattern.
        if any(look in text for look in self._looks):
            return self._pattern.sub(HIDDEN, text)
        return text

    def tree(self, value: Any, frame: Collection[str] = ()) -> Any:
        """Return JSON without secrets, also in names.

        With a `frame` all names stay, and the values under its names: they belong to a protocol.
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
        """Return how much of the beginning can be redacted now, whatever text follows."""
        if not self._looks:
            return len(text)
        starts = range(max(0, len(text) - len(self._looks[0]) + 1), len(text))
        begun = (at for at in starts if any(look.startswith(text[at:]) for look in self._looks))
        end = next(begun, len(text))
        # The beginning of another secret within a complete one must not cut it.
        found = map(re.Match.span, self._pattern.finditer(text))
        return next((start for start, stop in found if start < end < stop), end)


class StreamRedactor:
    """A text that arrives in parts and is shown without secrets, even if one is split over parts."""

    def __init__(self, redact: Redaction, show: Callable[[str], None]) -> None:
        self._redact = redact
        self._show = show
        self._held = ""

    def feed(self, part: str) -> None:
        """Take the next part, and show the text that is safe by now."""
        text = self._held + part
        end = self._redact.settled(text)
        self._held = text[end:]
        if end:
            self._show(self._redact(text[:end]))

    def end(self) -> None:
        """Show the rest at the end of the text."""
        if self._held:
            self._show(self._redact(self._held))
        self._held = ""


class NoRedaction(Redaction):
    """A Redaction without secrets. It is shared, so that no secret can be added to it."""

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
    # Escaped twice, because results of tools are JSON within the JSON of a request.
    return written | {json.dumps(look, ensure_ascii=False)[1:-1] for look in written}
