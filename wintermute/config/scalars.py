"""What one scalar means under a key of a given kind: a value, or what is wrong with it."""

import difflib
import math
import re
import unicodedata
import zoneinfo
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from wintermute.config.document import Scalar
from wintermute.config.schema import URL

NULLS = {"", "~", "null", "Null", "NULL"}
TRUTHS = {
    "true": True,
    "True": True,
    "TRUE": True,
    "false": False,
    "False": False,
    "FALSE": False,
}
WHOLE = re.compile(r"[-+]?[0-9]{1,15}")
NUMBER = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")

Rules = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Wrong:
    """Why something is no value. Never repeats it: it may be a secret in the wrong place."""

    text: str


def is_null(node: object) -> bool:
    """Nothing, `~` or `null`."""
    return isinstance(node, Scalar) and node.plain and node.text in NULLS


def read_scalar(node: Scalar, kind: Any, rules: Rules) -> object:
    """The value of a key of this kind, or Wrong."""
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
    return Wrong(f"must be {expected(kind, rules)}") if found is None else found


def expected(kind: Any, rules: Rules) -> str:
    """What to write there, in words."""
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
    """The known name that looks most like this one; empty when none is known."""
    lower = {item.lower(): item for item in known}
    found = difflib.get_close_matches(name[:60].lower(), lower, n=1, cutoff=0.0)
    return lower[found[0]] if found else ""


def _range(rules: Rules) -> str:
    least, most = rules.get("least"), rules.get("most")
    if least is None:
        return ""
    return f" of at least {least}" if most is None else f" from {least} to {most}"


def _number(node: Scalar, kind: type[int] | type[float], rules: Rules) -> int | float | None:
    pattern = WHOLE if kind is int else NUMBER
    if not node.plain or not pattern.fullmatch(node.text):
        return None
    number = kind(node.text)
    if not math.isfinite(number):
        return None
    inside = rules.get("least", number) <= number <= rules.get("most", number)
    return number if inside else None


def _text(node: Scalar, kind: Any, rules: Rules) -> object:
    text = node.text
    if node.plain and text in TRUTHS:
        return Wrong(f"must be {expected(kind, rules)}; put quotes around {text.lower()}")
    if not text.strip() or any(unicodedata.category(mark) in {"Cc", "Cs"} for mark in text):
        return Wrong(f"must be {expected(kind, rules)}, not blank and in one line")
    if "pattern" in rules and not re.fullmatch(rules["pattern"], text):
        return Wrong(f"must be {expected(kind, rules)}")
    if rules.get("zone"):
        return _zone(text)
    if rules.get("pattern") == URL:
        return text.rstrip("/")  # paths are put behind it
    return Path(text) if kind is Path else text


def _zone(name: str) -> str | Wrong:
    try:
        zoneinfo.ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        guess = nearest(name, sorted(zoneinfo.available_timezones()))
        return Wrong(f"no time zone is called {name[:60]!r}; the nearest known one is {guess}")
    return name
