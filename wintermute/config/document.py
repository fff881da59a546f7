"""From YAML text to a small tree of places and plain text, with nothing guessed on the way.

YAML's own guesses (`no` is false, `3:30` is 210, dates) never happen: a scalar stays text, and
what it means is decided by the key it stands under.
"""

import re
from dataclasses import dataclass

import yaml

LARGEST = 256 * 1024
DEEPEST = 12
QUOTED = re.compile(r"""(['"])(?!<)..+\1""")


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """Where something stands, counted from 1."""

    line: int
    column: int


TOP = Place(1, 1)


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """One thing a person has to change. `key` is dotted; empty when no key is concerned."""

    place: Place
    key: str
    text: str

    def __str__(self) -> str:
        where = f"{self.place.line}:{self.place.column}: "
        return where + (f"{self.key}: {self.text}" if self.key else self.text)


@dataclass(frozen=True, slots=True)
class Scalar:
    """Text as written; `plain` when it had no quotes."""

    place: Place
    text: str
    plain: bool


@dataclass(frozen=True, slots=True)
class Items:
    """A list."""

    place: Place
    items: tuple["Node", ...]


@dataclass(frozen=True, slots=True)
class Entries:
    """Keys with their values, in order; the same key may stand there twice."""

    place: Place
    pairs: tuple[tuple["Node", "Node"], ...]


Node = Scalar | Items | Entries


def parse(text: str) -> Node | Problem | None:
    """The document's tree, the one reason why there is none, or None for an empty document."""
    if len(text) > LARGEST:
        return Problem(TOP, "", f"larger than {LARGEST // 1024} KB: this is no configuration")
    try:
        root = _Plain(text).get_single_node()
    except yaml.reader.ReaderError as error:
        return Problem(_place_of(text, error.position), "", "has a character no YAML may have")
    except yaml.MarkedYAMLError as error:
        return _syntax(error, text)
    except (ValueError, OverflowError):  # the scanner on "\Uffffffff"
        return Problem(TOP, "", "not valid YAML: an escape sequence names no character")
    return None if root is None else _tree(root)


class _Plain(yaml.BaseLoader):
    """Composes without anchors, aliases and tags, and not deeper than we ever need."""

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
    place = Place(node.start_mark.line + 1, node.start_mark.column + 1)
    if isinstance(node, yaml.SequenceNode):
        return Items(place, tuple(_tree(item) for item in node.value))
    if isinstance(node, yaml.MappingNode):
        return Entries(place, tuple((_tree(key), _tree(value)) for key, value in node.value))
    return Scalar(place, node.value, getattr(node, "style", None) is None)


def _syntax(error: yaml.MarkedYAMLError, text: str) -> Problem:
    mark = error.problem_mark or error.context_mark
    place = Place(mark.line + 1, mark.column + 1) if mark else TOP
    problem = error.problem or ""
    if isinstance(error, yaml.composer.ComposerError) and not error.context:
        return Problem(place, "", problem)
    if "cannot start any token" in problem and mark and mark.index < len(text):
        return Problem(place, "", _bad_start(text[mark.index]))
    # What YAML quotes may be a part of a secret; names of its own tokens are not.
    said = QUOTED.sub("…", f"{error.context}: {problem}" if error.context else problem)
    return Problem(place, "", f"not valid YAML: {said}: {_hint(problem)}")


def _hint(problem: str) -> str:
    """What to look for; YAML itself says what it met, not what to do."""
    if "unexpected end of stream" in problem:
        return "close the quote or bracket that begins above"
    if "mapping values are not allowed" in problem:
        return "align this line with its neighbours, or put quotes around text with a colon"
    return "look at the indentation, quotes and brackets here"


def _bad_start(mark: str) -> str:
    if mark == "\t":
        return "a tab stands where only spaces may: use spaces"
    return f"text that starts with {mark} needs quotes"


def _place_of(text: str, index: int) -> Place:
    before = text[:index]
    return Place(before.count("\n") + 1, index - before.rfind("\n"))
