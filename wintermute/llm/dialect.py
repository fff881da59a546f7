"""What a server turned out not to know, and how a question is put to it instead. Pure.

    system, user, user ─▶ a template that wants turns: system, user  ─▶ one without system: user

Every server begins with all words of the API and loses those that it complains about.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from wintermute.config.schema import Backend
from wintermute.llm.kept import OF_MESSAGE, PLACEHOLDERS, UNWANTED
from wintermute.llm.refusals import MENDABLE, Complaint
from wintermute.messages import Json, Request
from wintermute.text import untagged

NEEDED = frozenset({"model", "messages", "tools", "max_tokens", "max_completion_tokens"})
"""Fields that no request goes without."""
CALLED = "[Here I called `{name}` with {arguments}]"
GAVE = "[What `{name}` gave, told by Wintermute; no message of a person:]\n{lines}"
"""An earlier call, and its result with each line quoted: none can pass for something else (L-071)."""
NOTHING_SAID = "[no answer was given]"
"""What stands between the result of a tool and the next message, where turns must alternate."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """The words that one server knows, as far as it has told."""

    limit: str = "max_tokens"
    takes_turns_only: bool = False
    """Its template wants a person and the model to speak in turn."""
    has_system: bool = True
    calls_in_turn: bool = False
    """It is to make one call at a time."""
    tells_progress: bool = False
    """How much of a request it has read (llama.cpp); nobody knows what servers elsewhere refuse."""
    thinks_not: bool = False
    """It is not to think where there are tools."""
    unknown: frozenset[str] = frozenset()
    """Fields that it refuses."""
    tells_calls: bool = False
    """Calls of earlier casts are told as text."""
    placeholders: frozenset[str] = frozenset()
    """Fields that every answer has to have, its own or not (F-040)."""
    unwanted: frozenset[str] = frozenset()
    """Fields that it sends with answers and refuses when they come back."""

    def body(self, request: Request, settings: Backend, most_tokens: int) -> Json:
        """The question in its words. `extra` of the configuration says what we do not."""
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
        return known | {name: said for name, said in settings.extra.items() if name not in body}

    @property
    def learnt(self) -> str:
        """In which other words it is asked, for a person; "": in those of the API."""
        told = {
            f"with {self.limit}": self.limit != "max_tokens",
            "with reasoning_effort none": self.thinks_not,
            f"without {', '.join(sorted(self.unknown))}": bool(self.unknown),
            f"without {', '.join(sorted(self.unwanted))} of answers": bool(self.unwanted),
            f"with {', '.join(sorted(self.placeholders))} in answers": bool(self.placeholders),
            "without a system message": not self.has_system,
            "with one message of a person at a time": self.takes_turns_only,
            "with earlier tool calls as text": self.tells_calls,
        }
        return "; ".join(words for words, holds in told.items() if holds)

    def without(self, said: Complaint | None, body: Json, settings: Backend) -> "Dialect | None":
        """The dialect without what it complains about; None: we cannot do without that."""
        others = self._others(said, body, settings) if said and said.kind in MENDABLE else ()
        return next((other for other in others if other != self), None)

    def _others(self, said: Complaint, body: Json, settings: Backend) -> "Iterator[Dialect]":
        """Yield other ways to ask, the likeliest first; all of them keep to the configuration."""
        if "reasoning_effort" not in body and body.get("tools") and said.wants("effort"):
            yield replace(self, thinks_not=True)
        if said.wants("limit"):
            yield replace(self, limit="max_completion_tokens")
        named = {name for name in body.keys() - settings.extra.keys() - NEEDED if said.names(name)}
        yield replace(self, unknown=self.unknown | named)
        yield self._of_fields(said.text, body["messages"])
        speaks = self.has_system and any(_role(each) == "system" for each in body["messages"])
        if said.kind == "turns" and _in_turn(body["messages"]) != body["messages"]:
            yield replace(self, takes_turns_only=True)
        # Templates that never heard of a system message complain of it in the same words.
        if said.kind in ("system", "turns") and speaks:
            yield replace(self, has_system=False)
        if said.wants("calls") and _calls_told(body["messages"]) != body["messages"]:
            yield replace(self, tells_calls=True)

    def _of_fields(self, complaint: str, messages: Iterable[Json]) -> "Dialect":
        """The dialect with the fields of answers that a complaint asks for, or without its own."""
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


def _calls_told(messages: tuple[Json, ...]) -> tuple[Json, ...]:
    """Calls before the last message of a person, and what they gave, as text of both sides."""
    last = max((n for n, each in enumerate(messages) if _role(each) == "user"), default=0)
    found: list[Json] = []
    names: dict[str, str] = {}
    for message in messages[:last]:
        if calls := message.get("tool_calls"):
            names |= {call["id"]: call["function"]["name"] for call in calls}
            told = (CALLED.format_map(call["function"]) for call in calls)
            found.append(_joined({"role": "assistant"}, message["content"], *told))
        elif _role(message) == "tool":
            lines = "\n".join(f"> {line}" for line in untagged(message["content"]).splitlines())
            gave = GAVE.format(name=names.get(message["tool_call_id"], "a tool"), lines=lines)
            found.append({"role": "user", "content": gave})
        else:
            found.append(message)
    return (*found, *messages[last:])


def _joined(message: Json, *contents: str | None) -> Json:
    return {**message, "content": "\n\n".join(text for text in contents if text) or None}


def _role(message: Json) -> str:
    return str(message["role"])
