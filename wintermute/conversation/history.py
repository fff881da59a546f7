"""From the loom to the messages of a request. Pure: the same record gives the same bytes."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from wintermute.loom.records import Cast, Observation, Turn
from wintermute.messages import Json
from wintermute.text import shortened, untagged

MOST_RESULT_CHARACTERS = 50_000  # L-026
MOST_REPLY_CHARACTERS = 500  # of the last reply, as part of what memory is asked (P-012)
ERASED = "[this message was erased]"  # a redaction or `forget`; many servers refuse empty messages
UNANSWERED = "[no answer was given]"
CALL_DONE = "Call `done` with your complete answer."
INTERRUPTED = "interrupted: outcome unknown"


def messages(system: str, casts: Sequence[Cast]) -> tuple[Json, ...]:
    """The system prompt, then every cast's intent, utterances and observations, in order.

    Several casts for one event (the model was away, L-034) show their intent once. Turns that
    record a failed call are not shown (L-033), nor those that a redaction emptied.
    """
    found: list[Json] = [{"role": "system", "content": system}]
    previous: str | None = None
    for cast in casts:
        if cast.event_id is None or cast.event_id != previous:
            if found[-1]["role"] == "user":  # chat templates of many models want turns to alternate
                found.append({"role": "assistant", "content": UNANSWERED})
            found.append({"role": "user", "content": cast.intent or ERASED})
        previous = cast.event_id
        for turn in cast.turns:
            if turn.error is None and (turn.utterance or turn.calls):
                found += _turn(turn, "the cast had ended" if cast.state != "running" else "")
    return tuple(found)


def query(cast: Cast, earlier: Sequence[Cast]) -> str | None:
    """What memory may rank by: a person's words and the last reply; None for other work (P-013)."""
    if cast.origin not in ("owner", "other"):
        return None
    replies = (past.result for past in reversed(earlier) if past.state == "terminated")
    said = next((reply for reply in replies if reply), "")
    return f"{cast.intent}\n{said[:MOST_REPLY_CHARACTERS]}".strip()


def _turn(turn: Turn, unrun: str) -> Iterable[Json]:
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
        yield {"role": "tool", "tool_call_id": name, "content": _result(seen.get(n), unrun)}


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


def _result(observation: Observation | None, unrun: str) -> str:
    if observation is None:
        return f"not run: {unrun}"
    if not observation.completed:
        return INTERRUPTED
    text = as_text(observation.result)
    if observation.is_error:
        text = f"error: {text}"
    return untagged(shortened(text, MOST_RESULT_CHARACTERS))


def as_text(value: Any) -> str:
    """A gate's result or a `done` answer as text: strings as they are, the rest as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
