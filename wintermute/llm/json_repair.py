"""Repairs the names and arguments of calls where their meaning is clear. Pure."""

import json
import re
from typing import Any

from wintermute.messages import Json, json_in

ALIASES = {"call_entity": "call_agent", "call_entity_batch": "call_agent_batch"}
FENCE = re.compile(r"\A```(?:json)?[ \t]*\n(.*)```\Z", re.DOTALL | re.IGNORECASE)
COMMA = re.compile(r'("(?:[^"\\]|\\.)*(?:"|\\?\Z))|,(?=\s*[}\]])', re.DOTALL)
"""A string, which stays unchanged, even an endless one; or a comma after the last item."""


def repaired(arguments: str) -> str:
    """Return arguments as one JSON object if they can be read in one way only; else unchanged.

    Repairs a fence around them, a comma after the last item, line ends inside strings, an object
    that was written as a string, and empty arguments.
    """
    if not arguments.strip():
        return "{}"
    value = parsed(arguments)
    if value is not None and arguments.lstrip()[0] == "{":
        return arguments
    fenced = FENCE.match(arguments.strip())
    text = COMMA.sub(lambda match: match[1] or "", fenced[1] if fenced else arguments)
    value = parsed(text, strict=False)
    return arguments if value is None else json.dumps(value, ensure_ascii=False)


def parsed(text: str, *, strict: bool = True) -> Json | None:
    """Return the object in a text, or in a JSON string in it; None if there is none."""
    try:
        value: Any = json.loads(text, strict=strict)
        if isinstance(value, str):
            value = json.loads(value, strict=strict)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def unaliased(name: str, arguments: str) -> tuple[str, str]:
    """Replace names of the loop's older vocabulary by ours (L-004, L-010)."""
    if name != "submit_answer":
        return ALIASES.get(name, name), arguments
    answer = json_in(arguments, {})
    if isinstance(answer, dict) and (not answer or "answer" in answer):
        return "done", arguments
    if isinstance(answer, dict) and len(answer) == 1:
        (answer,) = answer.values()
    return "done", json.dumps({"answer": answer}, ensure_ascii=False)
