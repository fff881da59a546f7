"""Reading config.yaml into a Config: all problems at once, each with its place, never showing a secret."""

import dataclasses
import os
import re
import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Union, get_args, get_origin

from wintermute.clock import host_zone
from wintermute.config.document import (
    LARGEST,
    TOP,
    Entries,
    Items,
    KeyRules,
    Node,
    Position,
    Problem,
    Scalar,
    Unavailable,
    Wrong,
    expected,
    is_null,
    nearest,
    parse,
    plain_value,
    read_scalar,
)
from wintermute.config.schema import (
    DATA,
    SHORTEST_TOKEN,
    Backend,
    Config,
    Dreaming,
    Secret,
    Web,
    Wiki,
    is_loopback,
    key_name,
)
from wintermute.config.secrets import Sources, read_secret
from wintermute.errors import ConfigurationError

BACKENDS = "llm.backends"
BASE = "llm.roles.base"
MEMORY = "memory.backend"
PROVIDER = "memory.embeddings.provider"
EMBEDDINGS = "memory.embeddings.backend"
DEDUP = "dreaming.dedup_similarity"
QUIET = "quiet.from", "quiet.to"
CONTRADICTION = "dreaming.contradiction_similarity"
SECRET = "{env: NAME} or {file: PATH}"
NAME = re.compile(r"[\w.-]{1,64}")


@dataclass(frozen=True, slots=True)
class ConfigValue:
    """A value in the file under a key. An empty optional key does not count."""

    place: Position
    value: object
    """None for an invalid value, which is reported already."""
    names_backend: bool


def check_all(found: Mapping[str, ConfigValue], reported: set[str]) -> list[Problem]:
    """Check the values that must fit together, except below keys that are reported already."""
    problems = [*_login(found), *_owner(found), *_backends(found), *_references(found)]
    problems += [*_memory(found), *_likeness(found), *_web(found), *_quiet(found)]
    return [problem for problem in problems if not reported & set(_upwards(problem.key))]


def _upwards(key: str) -> list[str]:
    """Return a key and its sections, from the inside out."""
    parts = key.split(".")
    return [".".join(parts[:length]) for length in range(len(parts), 0, -1)]


def _problem(found: Mapping[str, ConfigValue], key: str, text: str) -> Problem:
    place = next((found[part].place for part in _upwards(key) if part in found), TOP)
    return Problem(place, key, text)


def _value(found: Mapping[str, ConfigValue], key: str) -> object:
    return found[key].value if key in found else None


def _login(found: Mapping[str, ConfigValue]) -> Iterator[Problem]:
    given = [key for key in ("matrix.password", "matrix.access_token") if key in found]
    if not given:
        text = f"is missing: write {SECRET}, or give an access_token in the same way"
        yield _problem(found, "matrix.password", text)
    elif len(given) == 2:
        yield _problem(found, "matrix.access_token", "is set beside a password: remove one of them")


def _owner(found: Mapping[str, ConfigValue]) -> Iterator[Problem]:
    owner = _value(found, "matrix.owner")
    if owner is not None and owner == _value(found, "matrix.user_id"):
        text = "is the bot's own account (user_id): write the id of the person it belongs to"
        yield _problem(found, "matrix.owner", text)


def _backends(found: Mapping[str, ConfigValue]) -> Iterator[Problem]:
    backends = _value(found, BACKENDS)
    if not isinstance(backends, Mapping):
        return
    if not backends:
        yield _problem(found, BACKENDS, "names no backend: describe at least one")
    if len(backends) > 1 and not _value(found, BASE):
        names = ", ".join(backends)
        yield _problem(found, BASE, f"is missing: several backends, so write which to use: {names}")
    for name, backend in backends.items():
        if isinstance(backend, Backend) and _crowded(backend):
            key = f"{BACKENDS}.{name}.max_output_tokens"
            text = f"leaves no room for the question: must be below {backend.context_tokens}"
            text += " (context_tokens), or empty: a quarter of the window then"
            yield _problem(found, key, text)


def _crowded(backend: Backend) -> bool:
    window: int | None = backend.context_tokens  # None if it is invalid
    longest = backend.max_output_tokens
    return longest is not None and window is not None and longest >= window


def _memory(found: Mapping[str, ConfigValue]) -> Iterator[Problem]:
    """Refuse an incomplete backend: the program must not start with another one (M-021)."""
    backend = _value(found, MEMORY)
    if backend == "qdrant" and _value(found, "memory.qdrant.url") is None:
        yield _problem(found, "memory.qdrant.url", "is missing: backend qdrant needs its address")
    if _value(found, PROVIDER) == "endpoint" and EMBEDDINGS not in found:
        backends = _value(found, BACKENDS)
        names = ", ".join(backends) if isinstance(backends, Mapping) else ""
        text = "is missing: write which of llm.backends computes embeddings"
        yield _problem(found, EMBEDDINGS, f"{text}: {names}" if names else text)


def _likeness(found: Mapping[str, ConfigValue]) -> Iterator[Problem]:
    """Check the similarities: what is similar enough to be merged is not asked about as a contradiction."""
    usual = Dreaming()
    merged = _number(found, DEDUP, usual.dedup_similarity)
    compared = _number(found, CONTRADICTION, usual.contradiction_similarity)
    if merged is not None and compared is not None and compared >= merged:
        key = CONTRADICTION if CONTRADICTION in found else DEDUP
        text = (
            f"contradiction_similarity ({compared:g}) must be below dedup_similarity ({merged:g})"
        )
        yield _problem(found, key, text)


def _web(found: Mapping[str, ConfigValue]) -> Iterator[Problem]:
    """Refuse a token that others could guess (V-011)."""
    token, host = _value(found, "web.token"), _value(found, "web.host")
    public = _value(found, "web.public_url")
    named = [host] if isinstance(host, str) else []
    named += [Web(public_url=public).public_host] if isinstance(public, str) else []
    short = isinstance(token, Secret) and len(token.reveal()) < SHORTEST_TOKEN
    if short and not all(is_loopback(name) for name in named):
        text = (
            f"is shorter than {SHORTEST_TOKEN} characters, and other machines could try them all:"
        )
        yield _problem(found, "web.token", f"{text} write a longer one, or none")


def _quiet(found: Mapping[str, ConfigValue]) -> Iterator[Problem]:
    given = [key for key in QUIET if key in found]
    if len(given) == 1:
        (missing,) = {*QUIET} - {*given}
        yield _problem(found, given[0], f"needs {missing} as well: write both, or neither")
    elif given and (begin := _value(found, QUIET[0])) == _value(found, QUIET[1]) and begin:
        yield _problem(found, QUIET[1], "is when they begin: write another time, or neither")


def _number(found: Mapping[str, ConfigValue], key: str, usual: float) -> float | None:
    """Return the number under a key, or its default; None if it is invalid."""
    value = found[key].value if key in found else usual
    return value if isinstance(value, float) else None


def _references(found: Mapping[str, ConfigValue]) -> Iterator[Problem]:
    backends = _value(found, BACKENDS)
    if not isinstance(backends, Mapping) or not backends:
        return
    for key, place in found.items():
        if place.names_backend and isinstance(place.value, str) and place.value not in backends:
            guess = nearest(place.value, backends)
            text = f"no backend is called {place.value[:60]!r}; the nearest known one is {guess}"
            yield _problem(found, key, text)


def environment() -> Mapping[str, str]:
    """Return the environment of this process; the rest of the program takes it from here."""
    return os.environ  # noqa: TID251  the one place that may


def read_config(path: Path, environment: Mapping[str, str]) -> Config:
    """Read the configuration.

    Raises: ConfigurationError with one line for each problem, `FILE:LINE:COLUMN: key: what`.
    """
    config, missing = read_with_gaps(path, environment)
    if missing:
        raise unreadable(path, missing)
    return config


def read_with_gaps(
    path: Path, environment: Mapping[str, str]
) -> tuple[Config, tuple[Problem, ...]]:
    """Read the configuration and list the secrets it lacks, for callers that do not need all of them.

    Raises: ConfigurationError for all other problems, with these as well.
    """
    document = parse(_load(path))
    if document is None:
        document = Problem(TOP, "", "the file is empty: `wintermute init DIR` writes one")
    if isinstance(document, Problem):
        raise unreadable(path, [document])
    sources = Sources(path.absolute().parent, environment)
    walk = _Walk(sources, sources.path(str(DATA)))
    config = walk.section(Config, document, "")
    reported = {problem.key for problem in (*walk.problems, *walk.missing)}
    problems = walk.problems + check_all(walk.found, reported)
    if problems:
        raise unreadable(path, problems + walk.missing)
    if "timezone" not in walk.found:
        config = dataclasses.replace(config, timezone=host_zone(environment))
    return _with_base(config), tuple(sorted(walk.missing))


def read_wiki(document: Node, folder: Path, data: Path) -> tuple[Wiki, tuple[Problem, ...]]:
    """Read settings of the wiki from another source than config.yaml, with their problems.

    Paths are relative to `folder`; a prompt file may be in the data directory `data` as well.
    """
    walk = _Walk(Sources(folder, {}), data)
    return walk.section(Wiki, document, ""), tuple(sorted(walk.problems))


def _with_base(config: Config) -> Config:
    if config.llm.roles.base:
        return config
    roles = dataclasses.replace(config.llm.roles, base=tuple(config.llm.backends))
    return dataclasses.replace(config, llm=dataclasses.replace(config.llm, roles=roles))


def unreadable(path: Path, problems: Iterable[Problem]) -> ConfigurationError:
    """Return one error for these problems in a file."""
    return ConfigurationError("\n".join(f"{path}:{problem}" for problem in sorted(problems)))


def _load(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST * 4)
    except FileNotFoundError as error:
        raise ConfigurationError(
            f"{path}: no such file: make one with `wintermute init DIR` or name yours with --config"
        ) from error
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigurationError(f"{path}: cannot be read: {reason}") from error
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = content[: error.start]
        place = Position(before.count(b"\n") + 1, error.start - before.rfind(b"\n"))
        raise unreadable(path, [Problem(place, "", "the file is not UTF-8 text")]) from error


class _Walk:
    """One pass over the document. An invalid value becomes None, and its problem is listed."""

    def __init__(self, sources: Sources, data: Path) -> None:
        """`data` is the data directory if the document does not name one."""
        self._sources = sources
        self._data = data
        self.problems: list[Problem] = []
        self.missing: list[Problem] = []
        self.found: dict[str, ConfigValue] = {}

    def section(self, shape: Any, node: Node, key: str) -> Any:
        """Return the frozen value of a section; its problems go to `problems`."""
        fields = {key_name(field): field for field in dataclasses.fields(shape)}
        given = self._entries(node, key)
        for name in given.keys() - fields.keys():
            text = f"unknown key; the nearest known one is {nearest(name, fields)}"
            self._report(given[name][0], _dotted(key, safe_key(name)), text)
        values = {
            name: self._value(given[name][1], field.type, field.metadata, _dotted(key, name))
            if name in given
            else self._absent(field, node.place, _dotted(key, name))
            for name, field in fields.items()
        }
        return shape(**{fields[name].name: value for name, value in values.items()})

    def _report(self, place: Position, key: str, text: str) -> None:
        self.problems.append(Problem(place, key, text))

    def _absent(self, field: "dataclasses.Field[Any]", place: Position, key: str) -> Any:
        if dataclasses.is_dataclass(field.type):
            return self.section(field.type, Entries(place, ()), key)
        if field.default is not dataclasses.MISSING:
            return self._placed(field.default)
        if field.default_factory is not dataclasses.MISSING:
            return field.default_factory()
        self._report(place, key, f"is missing: write {_wanted(field.type, field.metadata)}")
        return None

    def _value(self, node: Node, kind: Any, rules: KeyRules, key: str) -> Any:
        kind, optional = _required(kind)
        if optional and is_null(node):
            return None
        value = self._present(node, kind, rules, key)
        self.found[key] = ConfigValue(node.place, value, bool(rules.get("backend")))
        return value

    def _present(self, node: Node, kind: Any, rules: KeyRules, key: str) -> Any:
        if kind is Secret:
            value: object = read_secret(node, self._sources)
        elif dataclasses.is_dataclass(kind) and isinstance(node, Entries):
            return self.section(kind, node, key)
        elif get_origin(kind) is tuple and isinstance(node, Items):
            return tuple(
                self._value(item, get_args(kind)[0], rules, f"{key}[{position}]")
                for position, item in enumerate(node.items)
            )
        elif get_origin(kind) is Mapping and isinstance(node, Entries):
            if get_args(kind)[1] is Any:
                return self._free(node, rules.get("reserved", {}), key)
            return self._named(node, get_args(kind)[1], rules, key)
        elif isinstance(node, Scalar) and _is_scalar(kind):
            value = self._scalar(node, kind, rules)
        else:
            value = Wrong(f"must be {_wanted(kind, rules)}")
        if isinstance(value, Unavailable):
            self.missing.append(Problem(node.place, key, value.text))
            return None
        if isinstance(value, Wrong):
            self._report(node.place, key, value.text)
            return None
        return self._placed(value)

    def _scalar(self, node: Scalar, kind: Any, rules: KeyRules) -> object:
        value = read_scalar(node, kind, rules)
        return self._prompt(value) if isinstance(value, Path) and rules.get("prompt") else value

    def _prompt(self, name: Path) -> Path | Wrong:
        """Find a prompt file beside the file that names it, else in the data directory (W-055)."""
        known = self.found.get("data_dir")
        data = known.value if known and isinstance(known.value, Path) else self._data
        places = dict.fromkeys((self._sources.path(str(name)), data / name))
        found = next((place for place in places if os.path.isfile(place)), None)  # noqa: PTH113  Path's own may raise
        looked = ", nor ".join(map(str, places))
        return found or Wrong(f"there is no file {looked}: write it, or correct the path")

    def _placed(self, value: object) -> object:
        return self._sources.path(str(value)) if isinstance(value, Path) else value

    def _named(self, node: Entries, kind: Any, rules: KeyRules, key: str) -> Mapping[str, Any]:
        """Read a section whose keys are names of the person's choice."""
        values: dict[str, Any] = {}
        for name, (place, value) in self._entries(node, key).items():
            if NAME.fullmatch(name):
                values[name] = self._value(value, kind, rules, _dotted(key, name))
            else:
                text = "names are made of letters, digits, dots, dashes and underscores"
                self._report(place, key, text)
        return types.MappingProxyType(values)

    def _free(self, node: Entries, reserved: Mapping[str, str], key: str) -> Mapping[str, Any]:
        """Read a section for somebody else's program: any names, except those that Wintermute sets itself."""
        for name, _ in node.pairs:
            if isinstance(name, Scalar) and name.text in reserved:
                other = reserved[name.text]
                instead = f"write {other} of this backend" if other else "remove it"
                text = f"is set by Wintermute itself: {instead}"
                self._report(name.place, _dotted(key, name.text), text)
        return types.MappingProxyType(self._plain(node, key))

    def _plain(self, node: Node, key: str) -> Any:
        """Return the value of a node under a key without a type."""
        if isinstance(node, Items):
            return [self._plain(item, f"{key}[{n}]") for n, item in enumerate(node.items)]
        if isinstance(node, Entries):
            values: dict[str, Any] = {}
            for name, (place, value) in self._entries(node, key).items():
                self._plain(
                    Scalar(place, name, plain=False), key
                )  # a name becomes part of the request as well
                values[name] = self._plain(value, _dotted(key, safe_key(name)))
            return values
        meant = plain_value(node)
        if isinstance(meant, Wrong):
            self._report(node.place, key, meant.text)
            return None
        return meant

    def _entries(self, node: Node, key: str) -> dict[str, tuple[Position, Node]]:
        """Return the keys of a section, each once, with their places and values."""
        if not isinstance(node, Entries):
            self._report(node.place, key, "must be a section with keys below it")
            return {}
        entries: dict[str, tuple[Position, Node]] = {}
        for name, value in node.pairs:
            if not isinstance(name, Scalar):
                self._report(name.place, key, "a key must be text")
            elif name.text in entries:
                first = entries[name.text][0].line
                text = f"is here twice (first in line {first}): remove one"
                self._report(name.place, _dotted(key, safe_key(name.text)), text)
            else:
                entries[name.text] = (name.place, value)
        return entries


def _dotted(key: str, name: str) -> str:
    return f"{key}.{name}" if key else name


def safe_key(name: str) -> str:
    """Return a key as it may be shown: in `password:abc` a blank is missing, and abc may be a secret."""
    match = NAME.match(name)
    return match[0] if match else "?"


def _required(kind: Any) -> tuple[Any, bool]:
    """Return a type without its `| None`, and whether it had one."""
    if get_origin(kind) not in (types.UnionType, Union):
        return kind, False
    return next(part for part in get_args(kind) if part is not types.NoneType), True


def _is_scalar(kind: Any) -> bool:
    return not dataclasses.is_dataclass(kind) and get_origin(kind) not in (tuple, Mapping)


def _wanted(kind: Any, rules: KeyRules) -> str:
    if get_origin(kind) is tuple:
        return "a list, such as [a, b], or [] for none"
    if get_origin(kind) is Mapping:
        return "a section of names with their values below it"
    if dataclasses.is_dataclass(kind):
        return "a section with keys below it"
    return expected(kind, rules)
