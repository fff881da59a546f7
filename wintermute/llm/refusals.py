"""The reasons of refused requests, from one table of codes and words. Pure.

    body ─▶ complaint: its words and codes ─▶ first matching row of `refusals.toml` ─▶ a kind

Texts of the request that a server repeats are ignored, so that a message about quotas does not look
like a spent quota. Only both ends of a long body are read, to save time.
"""

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import resources
from itertools import islice
from typing import Any

from wintermute.messages import Json, json_in
from wintermute.text import clean

LONGEST_PARSED = 32_000
END = 1_200
"""Characters read at each end of a text: servers quote a template before they complain."""
MOST_PARTS = 300
LONGEST_QUOTE = 300
TOLD = frozenset({"error", "message", "detail", "raw"})
"""Fields written for people; in the last one a gateway passes on the error that it got."""
ECHOED = frozenset({"input", "flagged_input", "failed_generation", "prompt", "content", "messages"})
"""Fields in which servers repeat the request."""
ECHOES = (("'input':", "'loc':"), ('"input":', '"loc":'), ("input_value=", "input_type="))
"""Marks around the request's own words in an error of pydantic."""
CODE = re.compile(r'"?\b(?:error_)?(?:code|type|status|reason)"?\s*:\s*"?([\w.-]{1,80})')
DELAY = re.compile(
    r"(?:(?:retry|again) (?:in|after) |retryDelay\W{1,5})((?:[\d.]{1,12} ?(?:ms|h|m|s)\w{0,11}[ ,]*)+)"
)
PART_OF_DELAY = re.compile(r"(\d+(?:\.\d+)?) ?(ms|h|m|s)")
SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
MENDABLE = frozenset({"form", "tools", "system", "turns", "gone", "error"})
"""Kinds after which the request is changed and repeated, if possible (F-042)."""


@dataclass(frozen=True, slots=True)
class Complaint:
    """A server's refusal; `status` is 0 inside an answer that began well.

    `param`: the request field that it names apart from its words; `delay`: the seconds to wait.
    """

    status: int
    kind: str
    text: str
    quote: str
    param: str
    delay: float | None

    def names(self, name: str) -> bool:
        """Return True if it is about a request field; a name that is also a word must be quoted."""
        plain = self.text.lower().replace("-", "_").replace(" ", "_")
        quoted = any(f"{sign}{name}{sign}" in self.text for sign in "'\"`")
        return self.param == name or quoted or ("_" in name and name in plain)

    def wants(self, remedy: str) -> bool:
        """Return True if it asks for a remedy of the table."""
        return any(words in self.text.lower() for words in _table()["remedies"][remedy])

    @property
    def advice(self) -> str:
        """The quote and what to do about it, to be put after the name of the backend."""
        quote = self.text[-LONGEST_QUOTE:] if self.kind in ("system", "turns") else self.quote
        reason = ": ".join(filter(None, (str(self.status or ""), quote))) or "without a reason"
        return str(_table()["advice"][self.kind]).format(said=reason)


def complaint(status: int, body: Any) -> Complaint:
    """Parse an error body, given as text or as JSON that was parsed already."""
    parts = [(key, _ends(value)) for key, value in _parts(body)]
    # With field names, because some say as much as their values.
    text = " ".join(f"{key}: {value}" if key else value for key, value in parts)
    text = clean(" ".join(_ends(text).split()))
    codes = frozenset(map(str.lower, CODE.findall(text)))
    quote = ": ".join(dict.fromkeys(value_text for key, value_text in parts if key in TOLD)) or text
    delay = DELAY.search(text)
    delays = PART_OF_DELAY.findall(delay[1]) if delay else []
    return Complaint(
        status,
        _kind(status, codes, text.lower()),
        text,
        "" if quote.startswith("<") else clean(" ".join(quote.split())[:LONGEST_QUOTE]),
        next((value for key, value in reversed(parts) if key in ("param", "loc")), ""),
        sum(float(number) * SECONDS[unit] for number, unit in delays) if delays else None,
    )


@cache
def _table() -> Json:
    return tomllib.loads((resources.files("wintermute.llm") / "refusals.toml").read_text("utf-8"))


def _kind(status: int, codes: frozenset[str], text: str) -> str:
    """Return the kind of the first matching row; the last one always matches."""
    for row in _table()["rows"]:
        row_codes, row_words = row.get("codes", ()), row.get("words", ())
        of = row.get("status", (status,))
        if status in of or status // 100 in of:
            matches = not codes.isdisjoint(row_codes) or any(each in text for each in row_words)
            if matches or not (row_codes or row_words):
                return str(row.get(f"kind_{status}", row["kind"]))
    raise LookupError(status)


def _parts(body: Any) -> Iterator[tuple[str, str]]:
    """Yield the plain values of a body with their field names; a list's items with the list's name."""
    queue, count = [("", body)], 0
    while queue and count < MOST_PARTS:
        key, value = queue.pop(0)
        count += 1
        if isinstance(value, str) and len(value) <= LONGEST_PARSED:
            # A gateway quotes the error that it got, as JSON in a field.
            value = json_in(value, value)
        if isinstance(value, dict):
            fields = islice(value.items(), MOST_PARTS)
            queue += [(name, "" if name in ECHOED else each) for name, each in fields]
        elif isinstance(value, list):
            queue += [(key, each) for each in value[:MOST_PARTS]]
        elif value is not None:
            text = _ends(str(value), LONGEST_PARSED)
            for begins, ends in ECHOES:
                text, *rest = text.split(begins)
                text += "".join(each[each.rfind(ends) :] for each in rest if ends in each)
            yield key, text


def _ends(text: str, most: int = END) -> str:
    return text if len(text) <= 2 * most else f"{text[:most]} {text[-most:]}"
