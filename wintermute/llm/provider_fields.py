"""Provider fields that a server wants back with its calls (F-040), and call ids (F-041). Pure.

answer with calls ─▶ `merge_fields` ─▶ JSON with the turn ─▶ `PROVIDER_FIELDS` of its message ─▶ its sender alone
"""

import hashlib
import json
import re
import string
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from wintermute.config.schema import Backend
from wintermute.config.secrets import Redaction
from wintermute.messages import Json

PROVIDER_FIELDS = "_kept"
"""The key in a message with calls for its `sender_id`, turn and fields. No server ever sees it."""
MOST_BYTES = 64 * 1024
OF_MESSAGE = {
    *("role", "content", "tool_calls", "tool_call_id", "refusal", "function_call", "name", "audio"),
    *("images", "annotations", "citations", "channel", "token_ids", "logprobs"),
}
"""Fields of an answer that are read elsewhere, or that no request may have."""
OF_CALL = {"id", "index", "type", "function"}
SENT_WHOLE = {"type", "id", "format", "name", "signature", "thought_signature"}
"""Texts that each part of a stream has in full; all others grow."""
STILL_GROWING = 64  # at most so many last items of a list
LETTERS = string.ascii_letters + string.digits
PLACEHOLDERS = {"reasoning_content": "reasoning_content", "extra_content": "thought"}
"""Fields that a backend may want in answers of others, and the word it complains with."""
UNWANTED = re.compile(
    r"un(supported|known|expected|recogni)|extra inputs|not .{,9}(support|permit|allow)"
)
NO_REASONING = " "  # Kimi, and some of DeepSeek's models, take an empty text for a missing one
# Google's word for calls that its model did not make (ai.google.dev, Thought signatures).
UNSIGNED = {"google": {"thought_signature": "skip_thought_signature_validator"}}


def merge_fields(found: Json, part: Json, known: Collection[str]) -> None:
    """Add the fields of a part of an answer to `found`, except the `known` ones."""
    try:
        for key in part:
            if key not in known and part[key] is not None:
                found[key] = _merged(found.get(key), part[key], key)
    except RecursionError:  # too deep to be meant
        found.clear()


def _merged(old: Any, new: Any, key: str) -> Any:
    match old, new:
        case str(), str():
            return (new or old) if key in SENT_WHOLE else old + new
        case dict(), dict():
            return old | {name: _merged(old.get(name), new[name], name) for name in new}
        case list(), list():
            for item in new:
                near = reversed(range(len(old))[-STILL_GROWING:])
                at = next((n for n in near if _continues(old[n], item)), len(old))
                merged = [_merged(old[at], item, key), *old[at + 1 :]] if at < len(old) else [item]
                old[at:] = merged
            return old
        case _:
            return old if new is None else new


def _continues(one: Any, item: Any) -> bool:
    """Return True if an item continues one of the list.

    OpenRouter numbers items by type, and signs the last part of one.
    """
    if not (isinstance(one, dict) and isinstance(item, dict)):
        return False
    is_same = all(one.get(key) == item.get(key) for key in ("type", "index"))
    return is_same and not (one.get("signature") or one.get("data"))


def fields_as_json(message: Json, calls: Sequence[Json], redact: Redaction) -> str:
    """Return the fields of an answer and of its calls as JSON; "" if there are none, or too many.

    If they contain one of our secrets, nothing is stored (L-089), as changed fields are useless.
    """
    value = {"message": message, "calls": list(calls)}
    try:
        fits = bool(message or any(calls)) and redact.tree(value) == value
        text = json.dumps(value)  # parsed again below: surrogate halves are joined then
        size = len(json.dumps(json.loads(text), ensure_ascii=False).encode())
    except (RecursionError, UnicodeEncodeError):
        return ""
    return text if fits and size <= MOST_BYTES else ""


def sender_id(name: str, settings: Backend) -> str:
    """Return the id of a backend and its model in turns: another address is another sender."""
    identity = f"{name}\n{settings.base_url}\n{settings.model}"
    return hashlib.sha256(identity.encode()).hexdigest()[:16]


def without_fields(messages: Iterable[Json]) -> tuple[Json, ...]:
    """Return messages without provider fields, for the record."""
    return tuple({key: each[key] for key in each if key != PROVIDER_FIELDS} for each in messages)


def fields_for(
    messages: Iterable[Json], to: str, redact: Redaction, placeholders: Collection[str] = ()
) -> tuple[Json, ...]:
    """Return messages for the sender `to`: with its own fields and ids, and neither of any other.

    A repeated id is replaced, so that the messages before stay unchanged. If a provider signed a
    call, all later calls get a signature at once.
    """
    taken, call_ids, result = set[str](), iter(list[str]()), list[Json]()
    wanted = set(placeholders)
    for message in messages:
        if PROVIDER_FIELDS in message:
            message = _for_sender(message, to, redact, taken)
            call_ids = iter([call["id"] for call in message["tool_calls"]])
            wanted |= {key for call in message["tool_calls"] for key in call} & {"extra_content"}
        elif message["role"] == "tool" and (call_id := next(call_ids, "")):
            message = {**message, "tool_call_id": call_id}
        result.append(_filled(message, wanted))
    return tuple(result)


def _for_sender(message: Json, to: str, redact: Redaction, taken: set[str]) -> Json:
    by, turn, fields = message[PROVIDER_FIELDS]
    is_ours = fields and by == to and redact(fields) == fields  # a secret may be new
    own, calls = json.loads(fields) if is_ours else {}, list[Json]()
    for n, call in enumerate(message["tool_calls"]):
        call_id = call["id"]
        # Nine letters and digits, as Mistral requires.
        if by != to or not call_id or call_id in taken:
            made = hashlib.sha256(f"{turn}\n{n}\n{call_id}".encode("utf-8", "replace")).digest()
            call_id = "".join(LETTERS[byte % len(LETTERS)] for byte in made[:9])
        taken.add(call_id)
        calls.append({**call, "id": call_id, **(own["calls"][n] if own else {})})
    return {**without_fields([message])[0], "tool_calls": calls, **own.get("message", {})}


def _filled(message: Json, placeholders: Collection[str]) -> Json:
    if message["role"] == "assistant" and "reasoning_content" in placeholders:
        message = {"reasoning_content": NO_REASONING, **message}
    calls = message.get("tool_calls", ())
    if "extra_content" in placeholders and calls and not any("extra_content" in c for c in calls):
        message = {**message, "tool_calls": [{**calls[0], "extra_content": UNSIGNED}, *calls[1:]]}
    return message
