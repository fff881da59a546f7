"""What a server turned out not to know, and how a question is put to it instead. Pure.

    system, user, user ─▶ a template that wants turns: system, user  ─▶ one without system: user

Every server begins with all words of the API and loses those that it complains about.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from wintermute.config.schema import Backend
from wintermute.llm.failures import NO_SYSTEM, NO_TURNS
from wintermute.llm.kept import OF_MESSAGE, PLACEHOLDERS, UNWANTED
from wintermute.messages import Json, Request

TOOL_CHOICE = re.compile(r"tool.?choice", re.IGNORECASE)
NOTHING_SAID = "[no answer was given]"
"""What stands between the result of a tool and the next message, where turns must alternate."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """The words that one server knows, as far as it has told."""

    reports_usage: bool = True
    limit: str = "max_tokens"
    can_be_forced: bool = True
    takes_turns_only: bool = False
    """Its template wants a person and the model to speak in turn."""
    has_system: bool = True
    calls_in_turn: bool = False
    """It is to make one call at a time."""
    tells_progress: bool = False
    """How much of a request it has read (llama.cpp); nobody knows what servers elsewhere refuse."""
    placeholders: frozenset[str] = frozenset()
    """Fields that every answer has to have, its own or not (F-040)."""
    unwanted: frozenset[str] = frozenset()
    """Fields that it sends with answers and refuses when they come back."""

    def body(self, request: Request, settings: Backend, most_tokens: int) -> Json:
        """The question in its words. `extra` of the configuration says what we do not."""
        alone = {"parallel_tool_calls": False} if request.tools and self.calls_in_turn else {}
        body: Json = {
            **alone,
            **settings.extra,
            "model": settings.model,
            "messages": self._messages(request.messages),
            "stream": True,
            self.limit: most_tokens,
        }
        if request.tools:
            body["tools"] = request.tools
        if request.must_call and self.can_be_forced:
            body["tool_choice"] = "required"
        if self.reports_usage:
            body["stream_options"] = {"include_usage": True}
        if self.tells_progress:
            body["return_progress"] = True
        return body

    def without(self, complaint: str, body: Json) -> "Dialect | None":
        """The dialect without what it complains about; None: we cannot do without that."""
        if "stream_options" in complaint and "stream_options" in body:
            return replace(self, reports_usage=False)
        if "max_completion_tokens" in complaint and "max_tokens" in body:
            return replace(self, limit="max_completion_tokens")
        if "parallel_tool_calls" in complaint and "parallel_tool_calls" in body:
            return replace(self, calls_in_turn=False)
        if "return_progress" in complaint and "return_progress" in body:
            return replace(self, tells_progress=False)
        if "tool_choice" in body and TOOL_CHOICE.search(complaint):
            return replace(self, can_be_forced=False)
        if (other := self._of_fields(complaint, body["messages"])) != self:
            return other
        speaks = self.has_system and any(_role(each) == "system" for each in body["messages"])
        if NO_SYSTEM.search(complaint):
            return replace(self, has_system=False) if speaks else None
        if NO_TURNS.search(complaint):
            if not self.takes_turns_only and _in_turn(body["messages"]) != body["messages"]:
                return replace(self, takes_turns_only=True)
            # Templates that never heard of a system message complain of it in the same words.
            return replace(self, has_system=False) if speaks else None
        return None

    def _of_fields(self, complaint: str, messages: Iterable[Json]) -> "Dialect":
        """The dialect with the fields of answers that a complaint asks for, or without its own."""
        beside = {name for each in messages for name in each} - OF_MESSAGE
        named = {name for name in beside if re.search(rf"\b{re.escape(name)}\b", complaint)}
        if named and UNWANTED.search(complaint.lower()):
            return replace(self, unwanted=self.unwanted | named)
        fields = {name for name, word in PLACEHOLDERS.items() if word in complaint.lower()}
        return replace(self, placeholders=self.placeholders | fields)

    def _messages(self, messages: tuple[Json, ...]) -> tuple[Json, ...]:
        if self.unwanted:
            messages = tuple({k: m[k] for k in m if k not in self.unwanted} for m in messages)
        if not self.has_system:
            messages = _without_system(messages)
        return _in_turn(messages) if self.takes_turns_only or not self.has_system else messages


def _without_system(messages: Iterable[Json]) -> tuple[Json, ...]:
    """The system message at the head of the first message of a person."""
    system, *others = messages
    if _role(system) != "system":
        return (system, *others)
    if others and _role(others[0]) == "user":
        return (_joined(others[0], system["content"], others[0]["content"]), *others[1:])
    return ({**system, "role": "user"}, *others)


def _in_turn(messages: Sequence[Json]) -> tuple[Json, ...]:
    """Neighbours of one role as one message; who asks after the result of a tool had no answer."""
    found: list[Json] = []
    for message in messages:
        role, last = _role(message), _role(found[-1]) if found else ""
        if role == last and role in ("user", "assistant") and not found[-1].get("tool_calls"):
            found[-1] = _joined(message, found[-1]["content"], message["content"])
            continue
        if role == "user" and last == "tool":
            found.append({"role": "assistant", "content": NOTHING_SAID})
        found.append(message)
    return tuple(found)


def _joined(message: Json, *contents: str | None) -> Json:
    return {**message, "content": "\n\n".join(text for text in contents if text) or None}


def _role(message: Json) -> str:
    return str(message["role"])
