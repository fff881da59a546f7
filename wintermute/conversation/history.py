"""From the loom to the messages of a request. Pure: the same record gives the same bytes."""

import json
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from wintermute.loom.records import Cast, Observation, Turn
from wintermute.messages import Json
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
            if not turn.calls and cast.wards.get("require_done") and _goes_on(cast, turn):
                found.append({"role": "user", "content": CALL_DONE})  # L-012
    return tuple(found)


def _goes_on(cast: Cast, turn: Turn) -> bool:
    return cast.state == "running" or turn is not cast.turns[-1]


def is_shown(turn: Turn) -> bool:
    """Whether a turn is part of what the model sees."""
    return turn.error is None and bool(turn.utterance or turn.calls)


def query(cast: Cast, earlier: Sequence[Cast]) -> str | None:
    """What memory may rank by: a person's words and the last reply; None for other work (P-013)."""
    if cast.origin not in ("owner", "other"):
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
