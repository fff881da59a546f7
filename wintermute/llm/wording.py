"""What a model wrote as the name or the arguments of a call, as what it must have meant. Pure."""

import json
import re
from typing import Any

from wintermute.messages import Json, json_in

ALIASES = {"call_entity": "call_agent", "call_entity_batch": "call_agent_batch"}
FENCE = re.compile(r"\A```(?:json)?[ \t]*\n(.*)```\Z", re.DOTALL | re.IGNORECASE)
COMMA = re.compile(r'("(?:[^"\\]|\\.)*(?:"|\\?\Z))|,(?=\s*[}\]])', re.DOTALL)
"""A string, which stays as it is, also one that never ends; or a comma after the last item."""


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
    given = json_in(arguments, {})
    if isinstance(given, dict) and (not given or "answer" in given):
        return "done", arguments
    if isinstance(given, dict) and len(given) == 1:
        (given,) = given.values()
    return "done", json.dumps({"answer": given}, ensure_ascii=False)
