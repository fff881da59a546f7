"""Where a request differs from a recorded one, for a person. Pure."""

import difflib
import json
from collections.abc import Iterator
from itertools import zip_longest
from typing import Any

from wintermute.messages import Json, Request

MOST_LINES = 40
MOST_CHARACTERS = 1000  # of one line


def difference(then: Request, now: Request) -> tuple[str, ...]:
    """What differs first, named, and how; nothing when they are the same."""
    pairs = zip_longest(then.messages, now.messages)
    for n, (before, after) in enumerate(pairs, start=1):
        if before != after:
            role = (before or after or {}).get("role")
            return (f"message {n} ({role})", *_diff(_message(before), _message(after)))
    old, new = (
        {tool["function"]["name"]: tool for tool in request.tools} for request in (then, now)
    )
    for name in sorted(old.keys() | new.keys()):
        if old.get(name) != new.get(name):
            return (f"tool {name}", *_diff(_pretty(old.get(name)), _pretty(new.get(name))))
    return ()


def _message(message: Json | None) -> list[str]:
    if message is None:
        return []
    content = message.get("content")
    rest = {key: value for key, value in message.items() if key not in ("role", "content")}
    said = content.splitlines() if isinstance(content, str) else _pretty(content)
    return [f"[{message['role']}]", *said, *(_pretty(rest) if rest else [])]


def _pretty(value: Any) -> list[str]:
    return [] if value is None else json.dumps(value, indent=1, ensure_ascii=False).splitlines()


def _diff(then: list[str], now: list[str]) -> Iterator[str]:
    found = list(difflib.unified_diff(then, now, "recorded", "now", n=1, lineterm=""))
    yield from (line[:MOST_CHARACTERS] for line in found[:MOST_LINES])
    if len(found) > MOST_LINES:
        yield f"... {len(found) - MOST_LINES} more lines"
