"""What a model wrote as a call, as the one that it must have meant. Pure."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from wintermute.llm.markup import Written
from wintermute.messages import Json

ALIASES = {"call_entity": "call_agent", "call_entity_batch": "call_agent_batch"}
FENCE = re.compile(r"\A```(?:json)?[ \t]*\n(.*)```\Z", re.DOTALL | re.IGNORECASE)
COMMA = re.compile(r'("(?:[^"\\]|\\.)*(?:"|\\?\Z))|,(?=\s*[}\]])', re.DOTALL)
"""A string, which stays as it is, also one that never ends; or a comma after the last item."""
MISTRAL = re.compile(r"\A([\w.-]+)\s*(?:\[ARGS\])?\s*(?=\{)")
FUNCTION = re.compile(r"<function=([\w.-]+)>(.*?)(?:</function>|\Z)", re.DOTALL)
PARAMETER = re.compile(r"<parameter=([\w.-]+)>\n?(.*?)\n?(?:</parameter>|\Z)", re.DOTALL)
PAIR = re.compile(r"<arg_key>([\w.-]+)</arg_key>\s*<arg_value>(.*?)(?:</arg_value>|\Z)", re.DOTALL)
MOST_WRITTEN = 1_000_000
"""Characters of calls written as text; no call of ours needs as many."""


def repaired(arguments: str) -> str:
    """Arguments as one JSON object where there is only one way to read them; else as they came.

    A fence around them, a comma after the last item, line ends inside strings, an object that
    was written as a string, and nothing at all for no arguments.
    """
    if not arguments.strip():
        return "{}"
    found = parsed(arguments)
    if found is not None and arguments.lstrip()[0] == "{":
        return arguments
    fenced = FENCE.match(arguments.strip())
    text = COMMA.sub(lambda match: match[1] or "", fenced[1] if fenced else arguments)
    found = parsed(text, strict=False)
    return arguments if found is None else json.dumps(found, ensure_ascii=False)


def parsed(text: str, *, strict: bool = True) -> Json | None:
    """The object that a text, or a string in it, is; None when it is none."""
    try:
        value: Any = json.loads(text, strict=strict)
        if isinstance(value, str):
            value = json.loads(value, strict=strict)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def unaliased(name: str, arguments: str) -> tuple[str, str]:
    """Names from the loop's older vocabulary become ours (L-004, L-010)."""
    if name != "submit_answer":
        return ALIASES.get(name, name), arguments
    try:
        given = json.loads(arguments)
    except (ValueError, RecursionError):
        return "done", arguments
    if isinstance(given, dict) and (not given or "answer" in given):
        return "done", arguments
    if isinstance(given, dict) and len(given) == 1:
        (given,) = given.values()
    return "done", json.dumps({"answer": given}, ensure_ascii=False)


def written_calls(written: Sequence[Written], offered: Mapping[str, Json]) -> list[tuple[str, str]]:
    """Names and arguments of calls that a model wrote as text, if they are of offered tools.

    `offered`: the parameters of each tool, as JSON schema, by its name.
    """
    found: list[tuple[str, str]] = []
    for call in written:
        if len(call.body) <= MOST_WRITTEN:
            found += [unaliased(*each) for each in _read(call, offered)]
    return [(name, arguments) for name, arguments in found if name in offered]


def _read(call: Written, offered: Mapping[str, Json]) -> Iterator[tuple[str, str]]:
    if call.name:
        yield call.name, repaired(call.body)
    elif functions := FUNCTION.findall(call.body):
        for name, body in functions:
            given = {
                key: _typed(name, key, value, offered) for key, value in PARAMETER.findall(body)
            }
            yield name, json.dumps(given, ensure_ascii=False)
    elif "<arg_key>" in call.body:  # GLM's
        name = call.body.split("<arg_key>", 1)[0].strip()
        pairs = {key: _typed(name, key, value, offered) for key, value in PAIR.findall(call.body)}
        yield name, json.dumps(pairs, ensure_ascii=False)
    elif named := MISTRAL.match(call.body):
        yield named[1], repaired(call.body[named.end() :])
    else:
        for value in _values(call.body):
            function = value.get("function", value)
            function = function if isinstance(function, dict) else {**value, "name": function}
            arguments = function.get("arguments", function.get("parameters", {}))
            text = arguments if isinstance(arguments, str) else json.dumps(arguments)
            yield str(function.get("name", "")), repaired(text)


def _values(body: str) -> Iterator[Json]:
    """The objects that a body holds, alone, one after the other, or in a list."""
    decoder, at = json.JSONDecoder(strict=False), 0
    while at < len(body):
        try:
            value, at = decoder.raw_decode(body, at)
        except (ValueError, RecursionError):
            return
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, dict):
                yield each
        while at < len(body) and (body[at].isspace() or body[at] in ",;"):
            at += 1


def _typed(name: str, key: str, value: str, offered: Mapping[str, Json]) -> Any:
    """A value that was written without quotation marks, as the tool wants it."""
    properties = offered.get(name, {}).get("properties", {})
    wanted = properties.get(key, {}).get("type") if isinstance(properties, dict) else None
    if wanted == "string":
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value
