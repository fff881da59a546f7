"""What a cast may call, the check of every call before it runs, and the limits of the cast.

The limits are enforced outside the model: every cast must end (L-019 to L-024).
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
DEEPEST = 64  # levels of arguments; beyond what Python can walk, any look at them would fail


@dataclass(frozen=True, slots=True)
class Caller:
    """For whom a tool runs."""

    conversation_id: str
    scope: str
    cast_id: str
    origin: Origin
    event_id: str | None
    """The message or event that the cast answers: what a store names as its evidence."""
    begun: datetime
    """When the cast began; what is newer the model may not have seen."""
    place: "CallSite | None" = None
    """Which call this is; None until one is made."""
    written: datetime | None = None
    """When the message was written from which relative times count; None: from now (F-029)."""
    only_adds: bool = False
    """Nothing may be replaced or taken away: a small model calls, and nobody is there to ask.

    Of a caller that no call was made for yet: nobody is there.
    """


@dataclass(frozen=True, slots=True)
class CallSite:
    """Where a call stands: what a sub-session hangs below, and is limited by.

    `role`, `backend` and `depth` are those of the cast's settings, `wards` its limits, `left` what it
    has not used of them.
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
    """One gate as a model is told of it. `parameters` is the JSON schema of its arguments."""

    @property
    def name(self) -> str: ...

    @property
    def description(self) -> str: ...

    @property
    def parameters(self) -> Json: ...


class Tool(DescribedTool, Protocol):
    """A gate with effects of any kind.

    `durable`: doing it twice is as doing it once; only then may it run again after a crash that
    left its outcome unknown (L-051).
    """

    @property
    def durable(self) -> bool: ...

    async def run(self, caller: Caller, args: Json) -> object:
        """Do it; the result must fit into JSON. Raises: ToolFailed."""
        ...


@runtime_checkable
class StoreTool(DescribedTool, Protocol):
    """A gate that only changes our own stores, with its observation in one transaction."""

    async def change(self, tx: Transaction, caller: Caller, args: Json) -> object:
        """Do it within `tx`. Raises: ToolFailed; then nothing of it is stored."""
        ...


@runtime_checkable
class OutsideTool(Protocol):
    """A gate that may bring text from outside: from then on its cast is tainted (L-037)."""

    def is_outside(self, caller: Caller, args: Json, result: object) -> bool:
        """Whether what this call has brought is such a text."""
        ...


@runtime_checkable
class ScopedTool(Protocol):
    """A gate that does not exist everywhere."""

    async def exists_in(self, scope: str) -> bool:
        """Whether it does at present, for casts in rooms of this scope."""
        ...


@runtime_checkable
class WordedTool(Protocol):
    """A gate with words for who sees an answer grow."""

    @property
    def doing(self) -> str:
        """Words for people while it runs, as "reading a page"; never for or with what."""
        ...


@runtime_checkable
class BriefTool(Protocol):
    """A gate with other words for small models."""

    @property
    def brief(self) -> tuple[str, Json] | None:
        """Its description and arguments; None: they are not offered it."""
        ...


AnyTool = Tool | StoreTool


@dataclass(frozen=True, slots=True)
class Accepted:
    """A call that may run."""

    tool: AnyTool
    args: Json


@dataclass(frozen=True, slots=True)
class Rejected:
    """A call that may not; `reason` is what the model is told. No `args`: they are no object."""

    reason: str
    args: Json | None = None


class Toolbox:
    """The tools of one cast, sorted by name so that requests stay byte-identical (P-006)."""

    def __init__(self, tools: Iterable[AnyTool]) -> None:
        self._tools = {tool.name: tool for tool in sorted(tools, key=lambda tool: tool.name)}

    @property
    def tools(self) -> tuple[AnyTool, ...]:
        """All of them."""
        return tuple(self._tools.values())

    @property
    def names(self) -> tuple[str, ...]:
        """The names that exist here."""
        return tuple(self._tools)

    def doing(self, name: str) -> str:
        """Give a person words for what a tool does; of one without words its name."""
        tool = self._tools.get(name)
        return tool.doing if isinstance(tool, WordedTool) else display_name(name)

    def offered(self, size: Size) -> tuple[str, ...]:
        """The names that models of a size are told of."""
        return tuple(name for name, tool in self._tools.items() if _described(tool, size))

    def only(self, names: Iterable[str]) -> "Toolbox":
        """A toolbox with some of these tools; it can never hold one that this one lacks."""
        wanted = set(names)
        return Toolbox(tool for name, tool in self._tools.items() if name in wanted)

    async def within(self, scope: str) -> "Toolbox":
        """A toolbox with the tools that exist for casts in rooms of this scope."""
        return Toolbox([tool for tool in self.tools if await _exists_in(tool, scope)])

    def definitions(self, size: Size = "full", *, done: bool = True) -> tuple[Json, ...]:
        """The tools as a chat-completions request names them.

        `size`: for which models. `done`: whether it is offered; it can be called anyway (L-011).
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
        """Whether a call may run: known name, JSON arguments, schema obeyed (L-029, L-030)."""
        args, tool = _arguments(call), self._tools.get(call.name)
        if tool is None:
            available = ", ".join(self._tools) or "none"
            what = NO_CALL if call.name == UNREADABLE else f"unknown tool: {call.name}"
            told = f"{what}. Available: {available}"
            return Rejected(told, None if isinstance(args, str) else args)
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
    """The arguments without those that say nothing: small models fill in all there are.

    A blank that its schema allows is left to the tool: there it may mean something.
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
    """What a tool can be given, or what is wrong with it."""
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
    """What arguments have that their schema refuses; `part`: what they are called."""
    errors = sorted(Draft202012Validator(schema).iter_errors(args), key=lambda e: list(e.path))
    if not errors:
        return None
    named = [
        f"{'.'.join(str(step) for step in error.absolute_path) or part}: {error.message[:300]}"
        for error in errors[:5]
    ]
    return "bad arguments: " + "; ".join(named)
