"""Calls that a model wrote as JSON text, for templates without tool calls.

    {"name": …, "arguments": …}   alone, several, in a list, a fence, <tools> or doubled braces
    <tools><NAME ARGUMENT="…"/></tools>, <tools><function name="…" arguments='{…}'/></tools>

Only for backends that are known to need it: with others, a person who asks for the JSON of a call
gets to see it. Pure but for `ModelQuirk`, which records those backends.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from html.parser import HTMLParser
from typing import Any, Literal

from wintermute.clock import Clock, stamp
from wintermute.db import Database
from wintermute.llm.json_repair import repaired, unaliased
from wintermute.messages import Json, mapping

QuirkColumn = Literal["text_tool_calls", "thinks_aloud"]
"""Quirks on record: writes its calls as text · ends reasoning that it never began (F-020)."""
LONGEST = 200_000
"""The most characters of an answer that may be calls; none of ours needs as many."""
OPEN = r"```[a-z_]*[ \t]*\n?"
BLOCK = re.compile(
    rf"(?:{OPEN}(.*?)```|<(tools|tool_calls?)>(.*?)(?:</\2>|\Z))\s*", re.DOTALL | re.IGNORECASE
)
PERHAPS = re.compile(
    rf'\s*(?:\[\s*(?:\{{|\Z)|\{{[\s{{]*(?:"|\Z)|`{{0,2}}\Z|{OPEN}\s*(?:[\[{{<]|\Z))', re.IGNORECASE
)
TAGS = ("<tools>", "<tool_call>", "<tool_calls>")
WORDS = frozenset(
    {
        "name",
        "arguments",
        "parameters",
        "id",
        "type",
        "function",
        "index",
        "tool_name",
        "tool_call_id",
    }
)


def may_be_calls(text: str) -> bool:
    """Return True if the text so far may become nothing but calls."""
    if len(text) > LONGEST:
        return False
    begun = text.lstrip().lower()
    in_tag = any(tag.startswith(begun) or begun.startswith(tag) for tag in TAGS)
    return in_tag or PERHAPS.match(text) is not None


def json_calls(text: str, offered: Mapping[str, Json]) -> list[tuple[str, str]]:
    """Return names and arguments if a text is nothing but calls of offered tools; else none."""
    if len(text) > LONGEST:
        return []
    try:
        calls = list(_calls(text))
    except (ValueError, RecursionError):
        return []
    return calls if all(name in offered for name, _ in calls) else []


# All of these raise ValueError if the text is no call.


def _calls(text: str) -> Iterator[tuple[str, str]]:
    text = text.strip()
    while block := BLOCK.match(text):
        inside = (block[1] if block[1] is not None else block[3]).strip()
        yield from _element_calls(inside) if block[2] and inside.startswith("<") else _calls(inside)
        text = text[block.end() :]
    for value in _values(text):
        yield from calls_in(value)


def _element_calls(body: str) -> Iterator[tuple[str, str]]:
    if "<!" in body:  # the parser cannot read declarations
        raise ValueError(body[:20])
    parser = _Elements()
    parser.feed(body)
    parser.close()
    for each in parser.found:
        yield from calls_in(each)


class _Elements(HTMLParser):
    """Parses calls that are elements, with their arguments as attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[Json] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if len(values) < len(attrs):
            raise ValueError(tag)
        self.found.append(values if tag == "function" else {"name": tag, "arguments": values})

    def handle_data(self, data: str) -> None:
        if data.strip():
            raise ValueError(data)


def _values(body: str) -> list[Any]:
    """Return the JSON values that a text consists of, also in the doubled braces of a template."""
    if not body.startswith("{{"):
        return json_values(body)
    for each in (body[1:-1], body[1:], body.replace("{{", "{").replace("}}", "}")):
        try:
            return json_values(each)
        except ValueError:
            continue
    raise ValueError(body[:20])


def json_values(body: str) -> list[Any]:
    """Return the JSON values that a text consists of. Raises: ValueError."""
    decoder, at, values = json.JSONDecoder(strict=False), 0, []
    while at < len(body):
        value, at = decoder.raw_decode(body, at)
        values.append(value)
        while at < len(body) and (body[at].isspace() or body[at] in ",;"):
            at += 1
    return values


def calls_in(value: Any, missing: Json | None = None) -> Iterator[tuple[str, str]]:
    """Yield the calls in a JSON value.

    `missing`: its arguments if it has none. Raises: ValueError.
    """
    if isinstance(value, dict) and set(value) == {"tool_calls"}:
        value = value["tool_calls"]
    if isinstance(value, list):
        for each in value:
            yield from calls_in(each, missing)
        return
    if not isinstance(value, dict) or not set(value) <= WORDS:
        raise ValueError
    function = value.get("function", value)
    function = function if isinstance(function, dict) else {**value, "name": function}
    if not set(function) <= WORDS or "properties" in mapping(function.get("parameters")):
        raise ValueError  # a tool's definition, which a person asked to see
    name = function.get("name", function.get("tool_name"))
    arguments = function.get("arguments", function.get("parameters", missing))
    if isinstance(arguments, dict):
        arguments = json.dumps(arguments, ensure_ascii=False)
    if not (isinstance(name, str) and isinstance(arguments, str)):
        raise ValueError(name)  # noqa: TRY004  the text is no call; nobody passed a wrong type
    yield unaliased(name, repaired(arguments))


@dataclass(frozen=True, slots=True)
class ModelQuirk:
    """The record of a quirk of a model at an address; `column` names the quirk."""

    database: Database
    clock: Clock
    column: QuirkColumn
    model: str
    base_url: str

    async def known(self) -> bool:
        """Return True if the model has the quirk."""
        query = (
            f"SELECT 1 FROM models WHERE model = ? AND base_url = ? AND {self.column} IS NOT NULL"
        )
        return bool(await self.database.rows(query, (self.model, self.base_url)))

    async def found(self, *, has: bool) -> None:
        """Record whether the model has it."""
        values = (self.model, self.base_url, stamp(self.clock.now()) if has else None)
        async with self.database.transaction() as tx:
            await tx.execute(
                f"INSERT INTO models (model, base_url, {self.column}) VALUES (?, ?, ?) ON CONFLICT"
                f" (model, base_url) DO UPDATE SET {self.column} = excluded.{self.column}",
                values,
            )
