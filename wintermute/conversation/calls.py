"""A model's answer as the loop wants it: known names, arguments that are JSON. Pure.

What is repaired here is repaired before anything is stored, so that the record, the observation
and the next request agree (L-004, L-010, L-027).
"""

import json
import re
from dataclasses import replace
from typing import Any

from wintermute.conversation.toolbox import DONE
from wintermute.messages import Call, Json, Reply

ALIASES = {"call_entity": "call_agent", "call_entity_batch": "call_agent_batch"}
SUBMIT = "submit_answer"
FENCE = re.compile(r"\A\s*```(?:json)?\s*\n(.*?)\n?\s*```\s*\Z", re.DOTALL | re.IGNORECASE)
COMMA = re.compile(r'("(?:[^"\\]|\\.)*")|,(?=\s*[}\]])', re.DOTALL)
"""A string, which stays as it is, or a comma after the last item."""


def normalised(reply: Reply) -> Reply:
    """The same answer with the names and arguments that we use."""
    return replace(reply, calls=tuple(map(_normalised, reply.calls)))


def _normalised(call: Call) -> Call:
    arguments = repaired(call.arguments)
    name = ALIASES.get(call.name, call.name)
    if name == SUBMIT:
        name, arguments = DONE, _as_answer(arguments)
    return Call(call.id, name, arguments)


def repaired(arguments: str) -> str:
    """Arguments as one JSON object where there is only one way to read them; else as they came.

    A fence around them, a comma after the last item, line ends inside strings, an object that
    was written as a string, and nothing at all for no arguments.
    """
    if not arguments.strip():
        return "{}"
    if _object(arguments) is not None:
        return arguments
    fenced = FENCE.match(arguments)
    text = COMMA.sub(lambda match: match[1] or "", fenced[1] if fenced else arguments)
    found = _object(text, strict=False)
    return arguments if found is None else json.dumps(found, ensure_ascii=False)


def _object(text: str, *, strict: bool = True) -> Json | None:
    try:
        value: Any = json.loads(text, strict=strict)
        if isinstance(value, str):
            value = json.loads(value, strict=strict)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) and (not strict or text.lstrip()[0] == "{") else None


def _as_answer(arguments: str) -> str:
    """`submit_answer(x)` is `done(answer: x)`, whatever the model called x (L-010)."""
    given = _object(arguments)
    if given is None or "answer" in given or len(given) != 1:
        return arguments
    return json.dumps({"answer": next(iter(given.values()))}, ensure_ascii=False)
