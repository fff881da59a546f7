"""A smaller request when one was too large for the model's window (L-036). Pure.

Each step is strictly smaller than the one before, so asking again always ends.
"""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from wintermute.messages import Json
from wintermute.prompt.assemble import DIVIDER, INSTRUCTIONS, MEMORIES, RANKED, pieces

KEPT_CHARACTERS = 400
MARK = "\n[… {count} characters left out to fit the model's window …]\n"
FEWER = "[… {count} memories left out to fit the model's window …]"
FEWER_BEFORE = re.compile(re.escape(FEWER).replace(r"\{count\}", "([0-9]{1,9})"))
TOO_LARGE = "Too large for the model's window: the {part} alone. {help}"
HELP: Mapping[str, str] = {
    INSTRUCTIONS: "Shorten `BASE_PROMPT.txt` in the folder `prompts`.",
    "Core Memory": "Shorten `core.md` in the data folder.",
    MEMORIES: "`/memory` shows them; shorten `MEMORIES.txt` in the data folder.",
    "Active Tasks": "`/tasks` lists them, and `/tasks cancel ID` takes one away.",
    "Skills": "`wintermute skill list` shows them, and `wintermute skill remove` takes one away.",
}
"""What a person can do about a part of the prompt, by its heading (F-023)."""


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
    call are cut down. Of the system prompt only the memories go: first while they are more than
    half of it all, else at last.
    """
    return (
        _without_memories(messages, share=0.5)
        or _without_oldest(messages, kept)
        or _cut(messages, {"tool"})
        or _without_arguments(messages)
        or _cut(messages, {"user", "assistant"})
        or _without_memories(messages)
    )


def lightened(
    messages: tuple[Json, ...], fits: Callable[[tuple[Json, ...]], bool]
) -> tuple[Json, ...]:
    """The messages with fewer memories, while these are what makes them too large (F-023)."""
    while not fits(messages) and (less := _without_memories(messages, share=0.5)):
        messages = less
    return messages


def prompt_of(messages: tuple[Json, ...]) -> str | None:
    """The system prompt of a request, if it has one."""
    return str(messages[0]["content"]) if messages and messages[0]["role"] == "system" else None


def too_large(messages: tuple[Json, ...]) -> str | None:
    """What to say of the part of the prompt that is most of a request; None: there is none."""
    sizes = {_part(name): len(text) for name, text in pieces(prompt_of(messages) or "")}
    largest = max(sizes, key=sizes.__getitem__)
    if largest not in HELP or sizes[largest] * 2 <= _size(messages):
        return None
    return TOO_LARGE.format(part=largest.lower(), help=HELP[largest])


def _part(name: str) -> str:
    return MEMORIES if name == RANKED else name


def _size(messages: tuple[Json, ...]) -> int:
    return sum(len(str(message["content"] or "")) for message in messages)


def _without_memories(messages: tuple[Json, ...], *, share: float = 0) -> tuple[Json, ...] | None:
    """With half of the memories, if they are more than this share of it all.

    The newest stay, which stand last; of those that were found for a query the best, which stand first.
    """
    parts = list(pieces(prompt_of(messages) or ""))
    place = next((n for n, (name, _) in enumerate(parts) if _part(name) == MEMORIES), None)
    if place is None or len(parts[place][1]) <= share * _size(messages):
        return None
    name, text = parts[place]
    heading, _, body = text.removeprefix(DIVIDER).partition("\n")
    lines = body.split("\n")
    before = FEWER_BEFORE.fullmatch(lines[0])
    lines = lines[1:] if before else lines
    half = len(lines) // 2
    if half == 0:
        return None
    left = lines[: len(lines) - half] if name == RANKED else lines[half:]
    mark = FEWER.format(count=half + int(before[1] if before else 0))
    new = "\n".join([heading, mark, *left])
    parts[place] = (name, DIVIDER + new if text.startswith(DIVIDER) else new)
    system = "".join(text for _, text in parts)
    return ({**messages[0], "content": system}, *messages[1:])


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
