"""From YAML text to a small tree of positions and plain text, read by the types of the keys.

YAML's own guesses (`no` is false, `3:30` is 210, dates) never happen: a scalar stays text until the
type of its key decides what it means.
"""

import difflib
import math
import re
import shlex
import unicodedata
import zoneinfo
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import yaml

from wintermute.config.schema import ORIGIN, URL

LARGEST = 256 * 1024
DEEPEST = 12
QUOTED = re.compile(r"""(['"])(?!<)..+\1""")
NULLS = {"", "~", "null", "Null", "NULL"}
TRUTHS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
WHOLE = re.compile(r"[-+]?[0-9]{1,15}")
LONG = re.compile(r"[-+]?[0-9]{1,20}")
NUMBER = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
KeyRules = Mapping[str, Any]
FILLED_IN = frozenset({"store", "sleep", "conversation"})
"""The placeholders in braces that an agent's command line may have (W-061)."""


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """A place in a file, counted from 1."""

    line: int
    column: int


TOP = Position(1, 1)


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """One thing that a person has to change. `key` is dotted; empty if no key is concerned."""

    place: Position
    key: str
    text: str

    def __str__(self) -> str:
        where = f"{self.place.line}:{self.place.column}: "
        return where + (f"{self.key}: {self.text}" if self.key else self.text)


@dataclass(frozen=True, slots=True)
class Scalar:
    """Text as written; `plain` if it had no quotes."""

    place: Position
    text: str
    plain: bool


@dataclass(frozen=True, slots=True)
class Items:
    """A list."""

    place: Position
    items: tuple["Node", ...]


@dataclass(frozen=True, slots=True)
class Entries:
    """Keys with their values, in order; the same key may occur twice."""

    place: Position
    pairs: tuple[tuple["Node", "Node"], ...]


Node = Scalar | Items | Entries


def parse(text: str) -> Node | Problem | None:
    """Return the document's tree, the one reason why there is none, or None for an empty document."""
    if len(text) > LARGEST:
        return Problem(TOP, "", f"larger than {LARGEST // 1024} KB: this is no configuration")
    try:
        root = _Plain(text).get_single_node()
    except yaml.reader.ReaderError as error:
        before = text[: error.position]
        place = Position(before.count("\n") + 1, error.position - before.rfind("\n"))
        return Problem(place, "", "has a character no YAML may have")
    except yaml.MarkedYAMLError as error:
        return _syntax(error, text)
    except (ValueError, OverflowError):  # the scanner raises it for "\Uffffffff"
        return Problem(TOP, "", "not valid YAML: an escape sequence names no character")
    return None if root is None else _tree(root)


class _Plain(yaml.BaseLoader):
    """A loader without anchors, aliases, tags and deep nesting."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0

    def compose_node(self, parent: yaml.Node | None, index: object) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]  # not in the stub
        refused = _refusal(event, self._depth)
        if refused:
            raise yaml.composer.ComposerError(None, None, refused, event.start_mark)
        self._depth += 1
        node = super().compose_node(parent, index)  # type: ignore[arg-type]  # the stub says int
        self._depth -= 1
        return node


def _refusal(event: yaml.Event, depth: int) -> str:
    if depth > DEEPEST:
        return "nested too deeply"
    if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
        return "anchors and aliases are not used here; text that starts with & or * needs quotes"
    if getattr(event, "tag", None):
        return "tags are not used here; text that starts with ! needs quotes"
    return ""


def _tree(node: yaml.Node) -> Node:
    place = Position(node.start_mark.line + 1, node.start_mark.column + 1)
    if isinstance(node, yaml.SequenceNode):
        return Items(place, tuple(_tree(item) for item in node.value))
    if isinstance(node, yaml.MappingNode):
        return Entries(place, tuple((_tree(key), _tree(value)) for key, value in node.value))
    return Scalar(place, node.value, getattr(node, "style", None) is None)


def _syntax(error: yaml.MarkedYAMLError, text: str) -> Problem:
    mark = error.problem_mark or error.context_mark
    place = Position(mark.line + 1, mark.column + 1) if mark else TOP
    problem = error.problem or ""
    if isinstance(error, yaml.composer.ComposerError) and not error.context:
        return Problem(place, "", problem)
    if "cannot start any token" in problem and mark and mark.index < len(text):
        if text[mark.index] == "\t":
            return Problem(place, "", "a tab is where only spaces may be: use spaces")
        return Problem(place, "", f"text that starts with {text[mark.index]} needs quotes")
    # A text that YAML quotes may be part of a secret; names of its own tokens are not.
    said = QUOTED.sub("…", f"{error.context}: {problem}" if error.context else problem)
    return Problem(place, "", f"not valid YAML: {said}: {_hint(problem)}")


def _hint(problem: str) -> str:
    """Return what to look for: YAML itself only says what it met."""
    if "unexpected end of stream" in problem:
        return "close the quote or bracket that begins above"
    if "mapping values are not allowed" in problem:
        return "align this line with its neighbours, or put quotes around text with a colon"
    return "look at the indentation, quotes and brackets here"


TRUTHS |= dict.fromkeys(("false", "False", "FALSE"), False)


@dataclass(frozen=True, slots=True)
class Wrong:
    """The reason why a value is invalid. It never repeats the value, which may be a misplaced secret."""

    text: str


class Unavailable(Wrong):
    """The reason why a valid reference to a secret gives none here or now."""


def is_null(node: object) -> bool:
    """Return True for nothing, `~` or `null`."""
    return isinstance(node, Scalar) and node.plain and node.text in NULLS


def read_scalar(node: Scalar, kind: Any, rules: KeyRules) -> object:
    """Return the value of a key of this type, or Wrong."""
    if is_null(node):
        return Wrong(f"must be {expected(kind, rules)}, not empty")
    if kind is bool:
        found: object = TRUTHS.get(node.text) if node.plain else None
    elif kind in (int, float):
        found = _number(node, kind, rules)
    elif get_origin(kind) is Literal:
        found = node.text if node.text in get_args(kind) else None
    else:
        return _text(node, kind, rules)
    near = f"; nearest: {nearest(node.text, get_args(kind))}" if rules.get("suggests") else ""
    return Wrong(f"must be {expected(kind, rules)}{near}") if found is None else found


def plain_value(node: Scalar) -> object:
    """Return the value of a text under a key without a type, or Wrong: as in JSON, else text."""
    if not node.plain:
        text = node.text
        lone = any(unicodedata.category(mark) == "Cs" for mark in text)
        return Wrong("has half a character, which no request can carry") if lone else text
    if node.text in NULLS:
        return None
    if node.text in TRUTHS:
        return TRUTHS[node.text]
    if LONG.fullmatch(node.text):
        return int(node.text)
    if NUMBER.fullmatch(node.text):
        number = float(node.text)
        return number if math.isfinite(number) else Wrong("is too large for a number")
    return node.text


def expected(kind: Any, rules: KeyRules) -> str:
    """Describe a valid value in words."""
    if get_origin(kind) is Mapping:
        return "a section of names with their values"
    if get_origin(kind) is Literal:
        return "one of " + ", ".join(get_args(kind))
    if kind is bool:
        return "true or false"
    if kind in (int, float):
        return ("a whole number" if kind is int else "a number") + _range(rules)
    if kind is Path:
        return "a path"
    return f"text like {rules['example']}" if "example" in rules else "text"


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the known name that is most similar; empty if none is known."""
    lower = {item.lower(): item for item in known}
    found = difflib.get_close_matches(name[:60].lower(), lower, n=1, cutoff=0.0)
    return lower[found[0]] if found else ""


def _range(rules: KeyRules) -> str:
    least, most = rules.get("least"), rules.get("most")
    if least is None:
        return ""
    return f" of at least {least}" if most is None else f" from {least} to {most}"


def _number(node: Scalar, kind: type[int] | type[float], rules: KeyRules) -> int | float | None:
    pattern = WHOLE if kind is int else NUMBER
    if not node.plain or not pattern.fullmatch(node.text):
        return None
    number = kind(node.text)
    if not math.isfinite(number):
        return None
    inside = rules.get("least", number) <= number <= rules.get("most", number)
    return number if inside else None


def _text(node: Scalar, kind: Any, rules: KeyRules) -> object:
    text = node.text
    if node.plain and text in TRUTHS:
        return Wrong(f"must be {expected(kind, rules)}; put quotes around {text.lower()}")
    if not text.strip() or any(unicodedata.category(mark) in {"Cc", "Cs"} for mark in text):
        return Wrong(f"must be {expected(kind, rules)}, not blank and in one line")
    if "pattern" in rules and not re.fullmatch(rules["pattern"], text):
        return Wrong(f"must be {expected(kind, rules)}")
    if rules.get("zone"):
        return _zone(text)
    if rules.get("command"):
        return _command(text)
    if rules.get("pattern") in (URL, ORIGIN):
        return text.rstrip("/")  # a path is appended to it
    return Path(text) if kind is Path else text


def _command(text: str) -> str | Wrong:
    try:
        words = shlex.split(text)
    except ValueError:
        return Wrong("cannot be split into words: close the quote, or double the last backslash")
    if not words or not words[0]:
        return Wrong("names no program: write its name first")
    if set(re.findall(r"\{(\w+)\}", text)) - FILLED_IN:
        return Wrong("has an unknown placeholder: there are {store}, {sleep} and {conversation}")
    return text


def _zone(name: str) -> str | Wrong:
    try:
        zoneinfo.ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        guess = nearest(name, sorted(zoneinfo.available_timezones()))
        return Wrong(f"no time zone is called {name[:60]!r}; the nearest known one is {guess}")
    return name
