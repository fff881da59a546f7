"""How many tokens something may be, for servers that do not tell."""

import json
from typing import Any

from wintermute.llm.wire import Answer
from wintermute.messages import Request, Usage

BYTES_PER_TOKEN = 3


def estimate(value: Any) -> int:
    """Tokens of a text or of the JSON of a value: a third of its bytes, rounded up."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return -(-len(text.encode("utf-8", "replace")) // BYTES_PER_TOKEN)


def usage_of(request: Request, answer: Answer) -> Usage:
    """What the server reported, or an estimate from both texts."""
    if answer.usage:
        return answer.usage
    said = answer.text + "".join(call.name + call.arguments for call in answer.calls)
    return Usage(estimate([request.messages, request.tools]), estimate(said))
