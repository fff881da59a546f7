"""From the loom to the messages of a request, and to fewer where they were too many. Pure.

The same record gives the same bytes. Each smaller request is strictly smaller than the one before,
so asking again always ends (L-036).
"""

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from wintermute.loom.records import Cast, Observation, Turn
from wintermute.messages import Json
from wintermute.prompt.assemble import DIVIDER, INSTRUCTIONS, MEMORIES, RANKED, pieces
from wintermute.text import shortened, untagged

MOST_RESULT_CHARACTERS = 50_000  # L-026
MOST_REPLY_CHARACTERS = 500  # of the last reply, as part of what memory is asked (P-012)
ERASED = "[this message was erased]"  # a redaction or `forget`; many servers refuse empty messages
UNANSWERED = "[no answer was given]"
CALL_DONE = "Call `done` with your complete answer."
DECAYING = ("recall", "read_file", "fetch_url")  # L-056
INTERRUPTED = "interrupted: outcome unknown"


def messages(
    system: str | None,
    casts: Sequence[Cast],
    *,
    summary: str = "",
    hidden: Collection[str] = (),
) -> tuple[Json, ...]:
    """The system prompt, then every cast's intent, utterances and observations, in order.

    Several casts for one event (the model was away, L-034) show their intent once, as it was told
    last: only that may say how long ago the message was written (F-029). Turns that
    record a failed call are not shown (L-033), nor those that a redaction emptied. Without a
    system prompt the `summary` of what was folded stands before the first intent. Results of the
    `hidden` gates are never shown (L-055).
    """
    found: list[Json] = []
    if system is not None:
        found.append({"role": "system", "content": system})
        summary = ""
    told = {cast.event_id: cast.intent for cast in casts if cast.event_id}
    previous: str | None = None
    for cast in casts:
        if cast.event_id is None or cast.event_id != previous:
            if found and found[-1]["role"] == "user":  # many chat templates want turns to alternate
                found.append({"role": "assistant", "content": UNANSWERED})
            intent = told.get(cast.event_id or "", cast.intent) or ERASED
            found.append(
                {"role": "user", "content": f"{summary}\n\n{intent}" if summary else intent}
            )
            summary = ""
        previous = cast.event_id
        for turn in filter(is_shown, cast.turns):
            found += turn_messages(turn, cast, hidden)
            goes_on = cast.state == "running" or turn is not cast.turns[-1]
            if goes_on and not turn.calls and cast.wards.get("require_done"):
                found.append({"role": "user", "content": CALL_DONE})  # L-012
    return tuple(found)


def is_shown(turn: Turn) -> bool:
    """Whether a turn is part of what the model sees."""
    return turn.error is None and bool(turn.utterance or turn.calls)


def query(cast: Cast, earlier: Sequence[Cast]) -> str | None:
    """What memory may rank by: a person's words and the last reply; None for other work (P-013)."""
    if cast.origin in ("timer", "system"):
        return None
    replies = (past.result for past in reversed(earlier) if past.state == "terminated")
    said = next((reply for reply in replies if reply), "")
    return f"{cast.intent}\n{said[:MOST_REPLY_CHARACTERS]}".strip()


def turn_messages(turn: Turn, cast: Cast, hidden: Collection[str] = ()) -> Iterator[Json]:
    """An utterance and the result of each of its calls, as the model sees them (L-017).

    What was looked up is shown until its cast has ended (L-056).
    """
    ended = cast.state != "running"
    unrun = "the cast had ended" if ended else ""
    ephemeral = {*hidden, *(DECAYING if ended else ())}
    message: Json = {"role": "assistant", "content": turn.utterance or None}
    names = _call_ids(turn)
    if turn.calls:
        message["tool_calls"] = [
            {
                "id": name,
                "type": "function",
                "function": {"name": call.name, "arguments": _valid(call.arguments)},
            }
            for name, call in zip(names, turn.calls, strict=True)
        ]
    yield message
    seen = {observation.n: observation for observation in turn.observations}
    for n, name in enumerate(names):
        content = _result(seen.get(n), unrun, ephemeral)
        yield {"role": "tool", "tool_call_id": name, "content": content}


def _call_ids(turn: Turn) -> list[str]:
    """Call ids, made different where a model used one twice: each result needs its own (L-017)."""
    names: list[str] = []
    for n, call in enumerate(turn.calls):
        name = call.id or "call"
        while name in names:
            name = f"{name}~{n}"
        names.append(name)
    return names


def _valid(arguments: str) -> str:
    """Arguments as a JSON object: several servers parse them again and refuse anything else."""
    try:
        parsed = json.loads(arguments, parse_constant=_no_number)
    except (ValueError, RecursionError):
        parsed = None
    return arguments if isinstance(parsed, dict) else json.dumps({"unparsable": arguments[:2000]})


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is Python, not JSON")


def _result(observation: Observation | None, unrun: str, ephemeral: Collection[str]) -> str:
    if observation is None:
        return f"not run: {unrun}"
    if not observation.completed:
        return INTERRUPTED
    if observation.gate in ephemeral and not observation.is_error:
        return f"[ephemeral:{observation.gate}]"
    text = as_text(observation.result)
    if observation.is_error:
        text = f"error: {text}"
    return untagged(shortened(text, MOST_RESULT_CHARACTERS))


def as_text(value: Any) -> str:
    """A gate's result or a `done` answer as text: strings as they are, the rest as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


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
    halved = _ends(str(messages[longest]["content"]), lengths[longest] // 4)
    message = {**messages[longest], "content": halved}
    return (*messages[:longest], message, *messages[longest + 1 :])


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


def _ends(content: str, keep: int) -> str:
    left_out = MARK.format(count=len(content) - 2 * keep)
    return content[:keep] + left_out + content[-keep:]
