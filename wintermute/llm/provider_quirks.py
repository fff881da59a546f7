"""Quirks of one server: the API features it rejects, and requests that do without. Pure.

    system, user, user ─▶ a template that wants turns: system, user  ─▶ one without system: user

Requests to a server begin with all features, and lose those that it complains about.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from wintermute.config.schema import Backend
from wintermute.llm.provider_fields import OF_MESSAGE, PLACEHOLDERS, UNWANTED
from wintermute.llm.refusals import MENDABLE, Complaint
from wintermute.messages import Json, Request
from wintermute.text import untagged

NEEDED = frozenset({"model", "messages", "tools", "max_tokens", "max_completion_tokens"})
"""Fields that every request must have."""
CALLED = "[Here I called `{name}` with {arguments}]"
GAVE = "[What `{name}` gave, told by Wintermute; no message of a person:]\n{lines}"
"""A result as text, each line quoted, so that it cannot pass for something else (L-071)."""
NOTHING_SAID = "[no answer was given]"
"""The text between a tool's result and the next message, where turns must alternate."""


@dataclass(frozen=True, slots=True)
class ProviderQuirks:
    """The features that one server accepts, as far as known."""

    limit: str = "max_tokens"
    takes_turns_only: bool = False
    """True if its template requires user and assistant to alternate."""
    has_system: bool = True
    calls_in_turn: bool = False
    """True if it should make one call at a time."""
    tells_progress: bool = False
    """True if it reports how much of a request it has read (llama.cpp).

    Only asked of private servers, as others might refuse.
    """
    thinks_not: bool = False
    """True if reasoning must be off when tools are offered."""
    unknown: frozenset[str] = frozenset()
    """Request fields that it rejects."""
    tells_calls: bool = False
    """True if calls of earlier casts are sent as text."""
    placeholders: frozenset[str] = frozenset()
    """Fields that every answer must have, even one of another backend (F-040)."""
    unwanted: frozenset[str] = frozenset()
    """Fields that it sends with answers and rejects in requests."""

    def body(self, request: Request, settings: Backend, most_tokens: int) -> Json:
        """Return the request body. `extra` of the configuration adds fields that we do not set."""
        ours: Json = {}
        if request.tools and self.calls_in_turn:
            ours["parallel_tool_calls"] = False
        if request.tools and self.thinks_not:
            ours["reasoning_effort"] = "none"
        body: Json = {
            "model": settings.model,
            "messages": self._messages(request.messages),
            "stream": True,
            self.limit: most_tokens,
        }
        if request.tools:
            body["tools"] = request.tools
        if request.must_call:
            body["tool_choice"] = "required"
        body["stream_options"] = {"include_usage": True}
        if self.tells_progress:
            body["return_progress"] = True
        known = {name: value for name, value in (ours | body).items() if name not in self.unknown}
        return known | {key: value for key, value in settings.extra.items() if key not in body}

    @property
    def request_changes(self) -> str:
        """The changes to requests, for a person; "" if there are none."""
        changes = {
            f"with {self.limit}": self.limit != "max_tokens",
            "with reasoning_effort none": self.thinks_not,
            f"without {', '.join(sorted(self.unknown))}": bool(self.unknown),
            f"without {', '.join(sorted(self.unwanted))} of answers": bool(self.unwanted),
            f"with {', '.join(sorted(self.placeholders))} in answers": bool(self.placeholders),
            "without a system message": not self.has_system,
            "with one message of a person at a time": self.takes_turns_only,
            "with earlier tool calls as text": self.tells_calls,
        }
        return "; ".join(words for words, holds in changes.items() if holds)

    def after_complaint(
        self, found: Complaint | None, body: Json, settings: Backend
    ) -> "ProviderQuirks | None":
        """Return the dialect without the rejected feature; None if there is no way without it."""
        others = self._others(found, body, settings) if found and found.kind in MENDABLE else ()
        return next((other for other in others if other != self), None)

    def _others(
        self, complaint: Complaint, body: Json, settings: Backend
    ) -> "Iterator[ProviderQuirks]":
        """Yield other dialects, the likeliest first; fields of the configuration stay."""
        if "reasoning_effort" not in body and body.get("tools") and complaint.wants("effort"):
            yield replace(self, thinks_not=True)
        if complaint.wants("limit"):
            yield replace(self, limit="max_completion_tokens")
        named = {
            name for name in body.keys() - settings.extra.keys() - NEEDED if complaint.names(name)
        }
        yield replace(self, unknown=self.unknown | named)
        yield self._of_fields(complaint.text, body["messages"])
        speaks = self.has_system and any(_role(each) == "system" for each in body["messages"])
        if complaint.kind == "turns" and _in_turn(body["messages"]) != body["messages"]:
            yield replace(self, takes_turns_only=True)
        # Templates without system messages complain about them in the same words.
        if complaint.kind in ("system", "turns") and speaks:
            yield replace(self, has_system=False)
        if complaint.wants("calls") and _calls_told(body["messages"]) != body["messages"]:
            yield replace(self, tells_calls=True)

    def _of_fields(self, complaint: str, messages: Iterable[Json]) -> "ProviderQuirks":
        """Return the dialect with the answer fields that a complaint asks for, or without those it rejects."""
        beside = {name for each in messages for name in each} - OF_MESSAGE
        named = {name for name in beside if re.search(rf"\b{re.escape(name)}\b", complaint)}
        if named and UNWANTED.search(complaint.lower()):
            return replace(self, unwanted=self.unwanted | named)
        fields = {name for name, word in PLACEHOLDERS.items() if word in complaint.lower()}
        return replace(self, placeholders=self.placeholders | fields)

    def _messages(self, messages: tuple[Json, ...]) -> tuple[Json, ...]:
        if self.tells_calls:
            messages = _calls_told(messages)
        if self.unwanted:
            messages = tuple({k: m[k] for k in m if k not in self.unwanted} for m in messages)
        if not self.has_system:
            messages = _without_system(messages)
        return _in_turn(messages) if self.takes_turns_only or not self.has_system else messages


def _without_system(messages: Iterable[Json]) -> tuple[Json, ...]:
    """Move the system message to the beginning of the first user message."""
    system, *others = messages
    if _role(system) != "system":
        return (system, *others)
    if others and _role(others[0]) == "user":
        return (_joined(others[0], system["content"], others[0]["content"]), *others[1:])
    return ({**system, "role": "user"}, *others)


def _in_turn(messages: Sequence[Json]) -> tuple[Json, ...]:
    """Merge neighbours of one role; put a placeholder answer between a tool result and a user message."""
    result: list[Json] = []
    for message in messages:
        role, last = _role(message), _role(result[-1]) if result else ""
        if role == last and role in ("user", "assistant") and not result[-1].get("tool_calls"):
            result[-1] = _joined(message, result[-1]["content"], message["content"])
            continue
        if role == "user" and last == "tool":
            result.append({"role": "assistant", "content": NOTHING_SAID})
        result.append(message)
    return tuple(result)


def _calls_told(messages: tuple[Json, ...]) -> tuple[Json, ...]:
    """Replace calls before the last user message, and their results, by text."""
    last = max((n for n, each in enumerate(messages) if _role(each) == "user"), default=0)
    result: list[Json] = []
    names: dict[str, str] = {}
    for message in messages[:last]:
        if calls := message.get("tool_calls"):
            names |= {call["id"]: call["function"]["name"] for call in calls}
            texts = (CALLED.format_map(call["function"]) for call in calls)
            result.append(_joined({"role": "assistant"}, message["content"], *texts))
        elif _role(message) == "tool":
            lines = "\n".join(f"> {line}" for line in untagged(message["content"]).splitlines())
            gave = GAVE.format(name=names.get(message["tool_call_id"], "a tool"), lines=lines)
            result.append({"role": "user", "content": gave})
        else:
            result.append(message)
    return (*result, *messages[last:])


def _joined(message: Json, *contents: str | None) -> Json:
    return {**message, "content": "\n\n".join(text for text in contents if text) or None}


def _role(message: Json) -> str:
    return str(message["role"])
