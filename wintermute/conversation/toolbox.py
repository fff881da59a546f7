"""Tools that a cast may call, the check of every call before it runs, and the call's context.

The limits are enforced outside the model, so that every cast ends (L-019 to L-024).
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol, runtime_checkable

from jsonschema import Draft202012Validator

from wintermute.db import Transaction
from wintermute.loom.records import Wards
from wintermute.messages import UNREADABLE, Call, Json, Origin, Size
from wintermute.text import display_name, is_blank

DONE = "done"
NO_CALL = "what stood at the end of your answer is no call of a tool: not shown, not run"
DEEPEST = 64  # levels of arguments; deeper ones exceed Python's recursion limit


@dataclass(frozen=True, slots=True)
class Caller:
    """The cast on whose behalf a tool runs."""

    conversation_id: str
    scope: str
    cast_id: str
    origin: Origin
    event_id: str | None
    """The message or event that the cast answers: stores record it as their evidence."""
    begun: datetime
    """The start of the cast; the model may not have seen anything newer."""
    place: "CallSite | None" = None
    """The call that is being run; None before the first."""
    written: datetime | None = None
    """The time of the message that its relative times refer to; None for now (F-029)."""
    only_adds: bool = False
    """True if nothing may be replaced or removed: a small model calls, and nobody can be asked.

    Before the first call: True if nobody can be asked.
    """


@dataclass(frozen=True, slots=True)
class CallSite:
    """The position of a call: a sub-session is attached to it and limited by it.

    `role`, `backend` and `depth` come from the cast's settings, `wards` are its limits, and `left`
    is the unused part of them.
    """

    turn_id: str
    n: int
    toolbox: "Toolbox"
    role: str
    backend: str | None
    depth: int
    wards: Wards
    left: Wards


class DescribedTool(Protocol):
    """One gate as it is described to a model. `parameters` is the JSON schema of its arguments."""

    @property
    def name(self) -> str: ...

    @property
    def description(self) -> str: ...

    @property
    def parameters(self) -> Json: ...


class Tool(DescribedTool, Protocol):
    """A gate with any effects.

    `durable`: running it twice is the same as once. Only such a gate may run again after a crash
    that left its outcome unknown (L-051).
    """

    @property
    def durable(self) -> bool: ...

    async def run(self, caller: Caller, args: Json) -> object:
        """Run the tool; the result must be JSON. Raises: ToolFailed."""
        ...


@runtime_checkable
class StoreTool(DescribedTool, Protocol):
    """A gate that only changes our own stores, in one transaction with its observation."""

    async def change(self, tx: Transaction, caller: Caller, args: Json) -> object:
        """Make the change within `tx`. Raises: ToolFailed, then nothing of it is stored."""
        ...


@runtime_checkable
class UntrustedTool(Protocol):
    """A gate that may return untrusted text: from then on its cast is tainted (L-037)."""

    def is_untrusted(self, caller: Caller, args: Json, result: object) -> bool:
        """Return True if the result of this call is untrusted text."""
        ...


@runtime_checkable
class ScopedTool(Protocol):
    """A gate that exists only in some scopes."""

    async def exists_in(self, scope: str) -> bool:
        """Return True if casts in rooms of this scope have it at present."""
        ...


@runtime_checkable
class ToolWithStatus(Protocol):
    """A gate with a status text for people who see an answer grow."""

    @property
    def doing(self) -> str:
        """The status text, such as "reading a page", without any argument."""
        ...


@runtime_checkable
class BriefTool(Protocol):
    """A gate with a shorter description for small models."""

    @property
    def brief(self) -> tuple[str, Json] | None:
        """Its description and arguments; None if small models do not get the tool."""
        ...


AnyTool = Tool | StoreTool


@dataclass(frozen=True, slots=True)
class Accepted:
    """A call that may run."""

    tool: AnyTool
    args: Json


@dataclass(frozen=True, slots=True)
class Rejected:
    """A call that may not run; the model is told the `reason`. `args` is None if they are no object."""

    reason: str
    args: Json | None = None


class Toolbox:
    """The tools of one cast, sorted by name so that requests stay byte-identical (P-006)."""

    def __init__(self, tools: Iterable[AnyTool]) -> None:
        self._tools = {tool.name: tool for tool in sorted(tools, key=lambda tool: tool.name)}

    @property
    def tools(self) -> tuple[AnyTool, ...]:
        """All tools."""
        return tuple(self._tools.values())

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all tools."""
        return tuple(self._tools)

    def doing(self, name: str) -> str:
        """Return the status text of a tool for people, or else its name."""
        tool = self._tools.get(name)
        return tool.doing if isinstance(tool, ToolWithStatus) else display_name(name)

    def offered(self, size: Size) -> tuple[str, ...]:
        """Return the names of the tools that models of a size are offered."""
        return tuple(name for name, tool in self._tools.items() if _described(tool, size))

    def only(self, names: Iterable[str]) -> "Toolbox":
        """Return a toolbox with some of these tools; it can never hold one that this one lacks."""
        wanted = set(names)
        return Toolbox(tool for name, tool in self._tools.items() if name in wanted)

    async def within(self, scope: str) -> "Toolbox":
        """Return a toolbox with the tools that exist for casts in rooms of this scope."""
        return Toolbox([tool for tool in self.tools if await _exists_in(tool, scope)])

    def definitions(self, size: Size = "full", *, done: bool = True) -> tuple[Json, ...]:
        """Return the tools in the form of a chat-completions request.

        `size`: the model's size. `done`: include the tool `done`, which can be called anyway
        (L-011).
        """
        offered = (tool for name, tool in self._tools.items() if done or name != DONE)
        named = ((tool.name, _described(tool, size)) for tool in offered)
        return tuple(
            {
                "type": "function",
                "function": {"name": name, "description": words[0], "parameters": words[1]},
            }
            for name, words in named
            if words is not None
        )

    def accept(self, call: Call) -> Accepted | Rejected:
        """Check a call: known name, JSON arguments, schema obeyed (L-029, L-030)."""
        args, tool = _arguments(call), self._tools.get(call.name)
        if tool is None:
            available = ", ".join(self._tools) or "none"
            refusal = NO_CALL if call.name == UNREADABLE else f"unknown tool: {call.name}"
            reason = f"{refusal}. Available: {available}"
            return Rejected(reason, None if isinstance(args, str) else args)
        if isinstance(args, str):
            return Rejected(args)
        if tool.name == DONE:
            answer = args.get("answer")
            is_empty = answer is None or (isinstance(answer, str) and is_blank(answer))
            problem = "done requires a non-empty answer" if is_empty else None
        else:
            args = _without_blanks(tool.parameters, args)
            problem = breach(tool.parameters, args)
        return Rejected(problem, args) if problem else Accepted(tool, args)


async def _exists_in(tool: AnyTool, scope: str) -> bool:
    return not isinstance(tool, ScopedTool) or await tool.exists_in(scope)


def _described(tool: AnyTool, size: Size) -> tuple[str, Json] | None:
    if size == "small" and isinstance(tool, BriefTool):
        return tool.brief
    return tool.description, tool.parameters


def _without_blanks(schema: Json, args: Json) -> Json:
    """Drop blank arguments, because small models fill in all there are.

    A blank that its schema allows is kept: it may have a meaning for the tool.
    """
    known, required = schema.get("properties", {}), schema.get("required", ())
    return {
        name: value
        for name, value in args.items()
        if name in required
        or name not in known
        or value not in (None, "", [])
        or Draft202012Validator(known[name]).is_valid(value)
    }


def _arguments(call: Call) -> Json | str:
    """Parse a call's arguments; return the problem as text if that fails."""
    try:
        args: Any = json.loads(call.arguments or "{}")
    except (ValueError, RecursionError) as error:
        return f"arguments are not valid JSON: {error}"
    if not isinstance(args, dict):
        return "arguments must be a JSON object"
    if _too_deep(args):
        return f"arguments are nested deeper than {DEEPEST} levels"
    return args


def _too_deep(args: Json) -> bool:
    level: list[Any] = [args]
    for _ in range(DEEPEST):
        inner = [item.values() if isinstance(item, dict) else item for item in level]
        level = [item for items in inner for item in items if isinstance(item, dict | list)]
    return bool(level)


def breach(schema: Json, args: Json, part: str = "arguments") -> str | None:
    """Return the schema violations of arguments as text; `part` is their name in it."""
    errors = sorted(Draft202012Validator(schema).iter_errors(args), key=lambda e: list(e.path))
    if not errors:
        return None
    problems = [
        f"{'.'.join(str(step) for step in error.absolute_path) or part}: {error.message[:300]}"
        for error in errors[:5]
    ]
    return "bad arguments: " + "; ".join(problems)
