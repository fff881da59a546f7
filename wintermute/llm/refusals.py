"""Why a server refuses a request: one table of codes and words decides. Pure.

    body ─▶ complaint: its words and codes ─▶ first row of `refusals.toml` that fits ─▶ a kind

Texts of the request that a server repeats are passed over: nobody may be taken to be out of quota
because somebody wrote about one. Of a long body only both ends are read, so that it costs nothing.
"""

import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from itertools import islice
from typing import Any

from wintermute.text import clean

LONGEST_PARSED = 32_000
END = 2_000
"""Characters that are read of each end of a text: servers quote a template before they complain."""
MOST_PARTS = 300
"""Values of a body that are looked at."""
LONGEST_QUOTE = 300
AROUND = 100
CODES = frozenset({"code", "type", "status", "reason", "error_code"})
ECHOED = frozenset(
    {"input", "flagged_input", "failed_generation", "prompt", "content", "messages", "ctx"}
)
"""Fields in which servers repeat what they were sent."""
CODE = re.compile(r'"(?:code|type|status|reason)"\s*:\s*"?([\w.-]{1,80})|"(flagged_input)"')
MESSAGE = re.compile(rf'"(?:message|detail)"\s*:\s*"((?:[^"\\]|\\.){{1,{LONGEST_QUOTE}}})')
DELAY = re.compile(
    r"(?:(?:retry|again) (?:in|after) |retryDelay\W{3,9})((?:[\d.]{1,12}\s?(?:ms|h|m|s)\w{0,11}[\s,]*)+)",
    re.IGNORECASE,
)
PART_OF_DELAY = re.compile(r"([\d.]+)\s?(ms|h|m|s)")
SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
MENDABLE = frozenset({"form", "tools", "system", "turns", "gone", "error"})
"""Kinds after which the request is asked in other words, if there are any (F-042)."""


@dataclass(frozen=True, slots=True)
class Complaint:
    """What a server says when it refuses. `status` 0: in an answer that began as a good one."""

    status: int
    text: str
    quote: str = ""
    codes: frozenset[str] = frozenset()
    param: str = ""
    """The field of the request that it names, if it does so apart from its words."""
    delay: float | None = None
    """Seconds after which it wants to be asked again, if it says so in its body."""
    kind: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "kind", _kind(self.status, self.codes, self.text.lower()))

    def names(self, name: str) -> bool:
        """Whether it is about a field of the request; a name that is also a word must be quoted."""
        if self.param == name or any(f"{sign}{name}{sign}" in self.text for sign in "'\"`"):
            return True
        plain = self.text.lower().replace("-", "_").replace(" ", "_")
        return "_" in name and name in plain

    def wants(self, remedy: str) -> bool:
        """Whether it asks for one of the remedies of the table."""
        return _any(_table().remedies[remedy], self.text.lower())

    @property
    def advice(self) -> str:
        """What it says and what to do, behind the name of who says it."""
        said = ": ".join(filter(None, (str(self.status or ""), self._quoted())))
        return _table().advice[self.kind].format(said=said or "without a reason")

    def _quoted(self) -> str:
        """What was said of roles stands somewhere behind the template that says it."""
        ends = [self.text.lower().rfind(mark) for mark in ("alternat", "support", "enabled")]
        if self.kind not in ("system", "turns") or max(ends) < 0:
            return self.quote
        return self.text[max(0, max(ends) - AROUND) : max(ends) + AROUND]


def complaint(status: int, body: Any) -> Complaint:
    """What an answer says, given as its text or as what its text was read as."""
    if isinstance(body, str):
        body = _decoded(body)
    if isinstance(body, str):
        text = _line(body)
        codes = frozenset((code[1] or code[2]).lower() for code in CODE.finditer(text))
        said = MESSAGE.search(text)
        quote = said[1] if said else "" if text.startswith("<") else text[:LONGEST_QUOTE]
        return Complaint(status, text, quote, codes, delay=_delay_in(text))
    if isinstance(body, list) and len(body) == 1:  # Gemini's
        (body,) = body
    parts = [(key, str(value)) for key, value in _parts(body)]
    of = dict(parts)
    text = _line(" ".join(_ends(value) for _, value in parts))
    named = {key.lower() for key in of} | {said.lower() for key, said in parts if key in CODES}
    param = of.get("param") or of.get("loc", "")  # the last of a path, as FastAPI's
    delay = _delay_in(f'retryDelay": "{of["retryDelay"]}' if "retryDelay" in of else text)
    quote = _quote(body) or text[:LONGEST_QUOTE]
    return Complaint(status, text, quote, frozenset(named), param, delay)


def _delay_in(text: str) -> float | None:
    """Seconds that are named as `in 3s`, `in 1.5 seconds` or `in 6m0s`."""
    found = DELAY.search(text)
    parts = PART_OF_DELAY.findall(found[1]) if found else []
    try:
        return sum(float(number) * SECONDS[unit] for number, unit in parts) if parts else None
    except ValueError:
        return None


@dataclass(frozen=True, slots=True)
class _Row:
    kind: str
    status: frozenset[int] = frozenset()
    codes: frozenset[str] = frozenset()
    words: tuple[tuple[str, ...], ...] = ()

    def fits(self, status: int, codes: frozenset[str], text: str) -> bool:
        if self.status and not self.status & {status, status // 100 or status}:
            return False
        if not (self.codes or self.words):
            return True
        return bool(self.codes & codes) or _any(self.words, text)


@dataclass(frozen=True, slots=True)
class _Refusals:
    rows: tuple[_Row, ...]
    remedies: Mapping[str, tuple[tuple[str, ...], ...]]
    advice: Mapping[str, str]


@cache
def _table() -> _Refusals:
    found = tomllib.loads((resources.files("wintermute.llm") / "refusals.toml").read_text("utf-8"))
    rows = tuple(
        _Row(
            row["kind"],
            frozenset(row.get("status", ())),
            frozenset(row.get("codes", ())),
            _words(row.get("words", ())),
        )
        for row in found["rows"]
    )
    remedies = {name: _words(words) for name, words in found["remedies"].items()}
    return _Refusals(rows, remedies, found["advice"])


def _words(words: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(each.split(" * ")) for each in words)


def _kind(status: int, codes: frozenset[str], text: str) -> str:
    return next(row.kind for row in _table().rows if row.fits(status, codes, text))


def _any(words: Sequence[tuple[str, ...]], text: str) -> bool:
    return any(_stands(parts, text) for parts in words)


def _stands(parts: Sequence[str], text: str) -> bool:
    at = 0
    for part in parts:
        at = text.find(part, at)
        if at < 0:
            return False
        at += len(part)
    return True


def _parts(body: Any) -> Iterator[tuple[str, Any]]:
    """The plain values of a body, by the names of their fields; a list's by that of the list."""
    left, seen = [("", body)], 0
    while left and seen < MOST_PARTS:
        key, value = left.pop(0)
        seen += 1
        if isinstance(value, str) and value.startswith("{"):  # a gateway's: what it was told
            value = _decoded(value)
        if isinstance(value, dict):
            fields = [*islice(value.items(), MOST_PARTS)]
            yield from ((name, "") for name, _ in fields if name in ECHOED)
            left += [(name, each) for name, each in fields if name not in ECHOED]
        elif isinstance(value, list):
            left += [(key, each) for each in value[:MOST_PARTS]]
        elif value is not None:
            yield key, value


def _decoded(body: str) -> Any:
    if len(body) > LONGEST_PARSED:
        return body
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return body


def _quote(body: Any) -> str:
    """What it says for people, as one bounded line."""
    for part in ("error", "message", "detail"):
        if isinstance(body, dict) and body.get(part):
            body = body[part]
    return _line(body)[:LONGEST_QUOTE] if isinstance(body, str) else ""


def _line(text: str) -> str:
    return " ".join(clean(_ends(text)).split())


def _ends(text: str) -> str:
    return text if len(text) <= 2 * END else f"{text[:END]} {text[-END:]}"
