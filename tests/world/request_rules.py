"""What holds for every request to a model, whoever sends it and whatever happened before."""

import hashlib
import json
import re
from itertools import pairwise
from typing import Any

from wintermute.llm.probes import QUESTION
from wintermute.messages import Json

CANARY = re.compile(r"canary[0-9a-f]{12}")
BARE = ("# Task Context\n", "# Objective\n", "# Conversation Summary\n")


OURS = ("# Core Instructions\n", "You are a worker of Wintermute")
"""A house with other instructions may have no tool but `done`, and that is not always offered."""


DATA = (
    *("<transcript>", "<raw_input>", "<related_memories>", "<current_core_markdown>"),
    *("<entries>", "<first>", "<memories>", "<tasks>", "<skills>"),
)
"""The blocks of those who ask for JSON about them (M-048)."""


def is_for_json(body: Json) -> bool:
    """Whether a request is one of those that nobody waits for, whose answer is JSON (M-072)."""
    messages = body.get("messages") or []
    text = str(messages[0].get("content")) if messages else ""
    return not body.get("tools") and any(f"\n{tag}\n" in text for tag in DATA)


def is_for_reconstruction(body: Json) -> bool:
    """Whether a request asks for one clear version of memories."""
    messages = body.get("messages") or []
    return is_for_json(body) and "\n<related_memories>\n" in str(messages[0].get("content"))


def is_for_core(body: Json) -> bool:
    """Whether a request asks what of new memories belongs into core memory."""
    messages = body.get("messages") or []
    return is_for_json(body) and "\n<current_core_markdown>\n" in str(messages[0].get("content"))


def is_for_summary(body: Json) -> bool:
    """Whether a request asks for a summary of a conversation."""
    messages = body.get("messages") or []
    text = str(messages[0].get("content")) if len(messages) == 1 else ""
    return not body.get("tools") and "<history>" in text


def broken_rules(body: Json) -> list[str]:
    """The rules of L-006, L-017 and M-010 that a request breaks.

    None for `check`'s probe; a summary, or JSON about what is shown, is asked for without instructions and tools, a sub-session of
    mode none without instructions (P-045).
    """
    messages = body.get("messages") or []
    if messages[:1] == list(QUESTION.messages):
        return []
    roles = [message.get("role") for message in messages]
    broken = []
    if is_for_summary(body) or is_for_json(body):
        roles, body = ["system", *roles], {**body, "tools": ["none needed"]}
    bare = roles[:1] == ["user"] and str(messages[0].get("content")).startswith(BARE)
    if roles[:1] != ["system"] and not bare:
        broken.append(f"the system prompt is not first: {roles[:3]}")
    others = [role for role in roles if role != "system"]
    if others[:1] != ["user"]:
        broken.append(f"the first message after the system prompt is not the user's: {others[:3]}")
    if ("tool", "user") in pairwise(roles):
        broken.append("a message follows a result, and nobody has said anything about that")
    ours = str(messages[0].get("content") if messages else "").startswith(OURS)
    if ours and not body.get("tools"):
        broken.append("no tools")
    scopes = sorted(set(CANARY.findall(json.dumps(body))))
    if len(scopes) > 1:
        broken.append(f"words of several scopes in one request: {scopes}")
    return broken + _unpaired(messages)


def canary(scope: str) -> str:
    """A word that belongs to one scope; no request may hold those of two (M-010)."""
    return f"canary{hashlib.sha256(scope.encode()).hexdigest()[:12]}"


def _unpaired(messages: list[Any]) -> list[str]:
    """Calls without their one result before the next utterance, and results without a call."""
    broken: list[str] = []
    waiting: list[str] = []
    for n, message in enumerate([*messages, {"role": "end of the request"}]):
        role = message.get("role")
        if role == "tool":
            answered = message.get("tool_call_id")
            if answered in waiting:
                waiting.remove(answered)
            else:
                broken.append(f"message {n}: result for {answered}, which nothing here waits for")
            continue
        broken.extend(f"message {n}: {role} before the result of {call}" for call in waiting)
        waiting = [call["id"] for call in message.get("tool_calls") or []]
        broken.extend(
            f"message {n}: two calls named {call}"
            for call in set(waiting)
            if waiting.count(call) > 1
        )
    return broken
