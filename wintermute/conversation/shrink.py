"""A smaller request when one was too large for the model's window (L-036). Pure.

Each step is strictly smaller than the one before, so asking again always ends.
"""

import json
from collections.abc import Callable
from typing import Any

from wintermute.messages import Json

KEPT_CHARACTERS = 400
MARK = "\n[… {count} characters left out to fit the model's window …]\n"


def fitted(
    messages: tuple[Json, ...], kept: int, fits: Callable[[tuple[Json, ...]], bool]
) -> tuple[Json, ...]:
    """The messages, made smaller until they fit, or as small as they get."""
    while not fits(messages):
        less = smaller(messages, kept)
        if less is None:
            break
        messages = less
    return messages


def smaller(messages: tuple[Json, ...], kept: int) -> tuple[Json, ...] | None:
    """The next smaller form of a request; None when nothing can shrink.

    First the older half of what came before the last `kept` messages goes, then the largest text
    is halved in its middle: tool results before the rest. In between, the largest arguments of a
    call are cut down. The system prompt stays.
    """
    return (
        _without_oldest(messages, kept)
        or _cut(messages, {"tool"})
        or _without_arguments(messages)
        or _cut(messages, {"user", "assistant"})
    )


def _without_oldest(messages: tuple[Json, ...], kept: int) -> tuple[Json, ...] | None:
    current = len(messages) - kept
    starts = [n for n, message in enumerate(messages[:current]) if message["role"] == "user"]
    if not starts:
        return None
    keep_from = [*starts, current][(len(starts) + 1) // 2]
    return messages[: starts[0]] + messages[keep_from:]


def _cut(messages: tuple[Json, ...], roles: set[str]) -> tuple[Json, ...] | None:
    lengths = [
        len(message["content"] or "") if message["role"] in roles else 0 for message in messages
    ]
    longest = max(range(len(messages)), key=lengths.__getitem__)
    if lengths[longest] <= KEPT_CHARACTERS:
        return None
    return (
        *messages[:longest],
        {**messages[longest], "content": _halved(messages[longest]["content"])},
        *messages[longest + 1 :],
    )


def _without_arguments(messages: tuple[Json, ...]) -> tuple[Json, ...] | None:
    """Without the largest arguments, which stay a JSON object."""
    places = [
        (len(call["function"]["arguments"]), n, k)
        for n, message in enumerate(messages)
        for k, call in enumerate(message.get("tool_calls", ()))
    ]
    longest, n, k = max(places, default=(0, 0, 0))
    if longest <= 2 * KEPT_CHARACTERS:
        return None
    calls = list(messages[n]["tool_calls"])
    function = calls[k]["function"]
    short = json.dumps({"shortened": _ends(function["arguments"], 100)}, ensure_ascii=False)
    calls[k] = {**calls[k], "function": {**function, "arguments": short}}
    return (*messages[:n], {**messages[n], "tool_calls": calls}, *messages[n + 1 :])


def _halved(text: Any) -> str:
    return _ends(str(text), len(str(text)) // 4)


def _ends(content: str, keep: int) -> str:
    left_out = MARK.format(count=len(content) - 2 * keep)
    return content[:keep] + left_out + content[-keep:]
