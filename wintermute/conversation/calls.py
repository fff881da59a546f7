"""A model's answer as the loop wants it: known names, arguments that are JSON. Pure.

What is repaired here is repaired before anything is stored, so that the record, the observation
and the next request agree (L-004, L-010, L-027).
"""

import json
from dataclasses import replace

from wintermute.conversation.toolbox import DONE
from wintermute.llm.arguments import parsed, repaired
from wintermute.messages import Call, Reply

ALIASES = {"call_entity": "call_agent", "call_entity_batch": "call_agent_batch"}
SUBMIT = "submit_answer"


def normalised(reply: Reply) -> Reply:
    """The same answer with the names and arguments that we use."""
    return replace(reply, calls=tuple(map(_normalised, reply.calls)))


def _normalised(call: Call) -> Call:
    arguments = repaired(call.arguments)
    name = ALIASES.get(call.name, call.name)
    if name == SUBMIT:
        name, arguments = DONE, _as_answer(arguments)
    return Call(call.id, name, arguments)


def _as_answer(arguments: str) -> str:
    """`submit_answer(x)` is `done(answer: x)`, whatever the model called x (L-010)."""
    given = parsed(arguments)
    if given is None or "answer" in given or len(given) != 1:
        return arguments
    return json.dumps({"answer": next(iter(given.values()))}, ensure_ascii=False)
