"""The prompt and the tools of a sub-session, by its prompt mode."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from wintermute.errors import ToolFailed
from wintermute.loom.records import MODES, PromptMode
from wintermute.prompt.assemble import (
    DIVIDER,
    INSTRUCTIONS,
    SUMMARY,
    WORKER_HEADINGS,
    PromptParts,
    assemble,
    inert,
    joined,
)
from wintermute.prompt.tool_names import ATTENDED, DELEGATING, PERSONAL, WORKING

START = "Start."


@dataclass(frozen=True, slots=True)
class WorkerPrompt:
    """The first messages of a sub-session. `system` None: no system message at all."""

    system: str | None
    first_user: str


def mode_of(text: str | None) -> PromptMode:
    """Return the mode of this name; None: `minimal` (P-041).

    Raises: ToolFailed when there is no such mode (P-046).
    """
    for mode in MODES:
        if mode == (text if text is not None else "minimal"):
            return mode
    raise ToolFailed(f"there is no prompt mode '{text}': use one of {', '.join(MODES)}")


def worker_prompt(
    mode: PromptMode,
    *,
    minimal: str,
    instructions: str,
    parts: PromptParts | None,
    objective: str,
    context: str,
    summary: str = "",
) -> WorkerPrompt:
    """Return the prompt of a sub-session (P-041..P-045).

    `minimal` is the text of the short instructions, `instructions` the sections chosen for the
    worker's tools, `parts` those of its parent's scope (needed by `full` alone), `summary` that of
    the worker's own folded turns.
    """
    user = first_user(mode, objective, context)
    if mode == "none":
        return WorkerPrompt(None, user)
    if mode == "minimal":
        head = minimal.strip()
    elif mode == "base_only":
        head = joined([(INSTRUCTIONS, instructions)])
    elif parts is not None:
        head = assemble(replace(parts, instructions=instructions, summary=""))
    else:
        raise ValueError("mode full needs the parts of the parent's scope")
    folded = joined([(SUMMARY, inert(summary))])
    tail = _tail(objective, context)
    return WorkerPrompt(DIVIDER.join(filter(None, (head, folded, tail))), user)


def first_user(mode: PromptMode, objective: str, context: str) -> str:
    """Return the first message that a sub-session gets (P-044, P-045)."""
    return _tail(objective, context) if mode == "none" else START


def _tail(objective: str, context: str) -> str:
    return joined(zip(WORKER_HEADINGS, (inert(context), inert(objective)), strict=True))


def default_tools(mode: PromptMode, depth_left: int) -> tuple[str, ...]:
    """Return the default tools of a sub-session, sorted (P-047)."""
    if mode != "full":
        return tuple(sorted(WORKING))
    return tuple(sorted(WORKING | PERSONAL | (DELEGATING if depth_left > 0 else frozenset())))


def tools_for(
    mode: PromptMode, depth_left: int, asked: Sequence[str] | None, parent: Collection[str]
) -> tuple[str, ...]:
    """Return the tools of a sub-session, sorted: those asked for, never one its parent lacks (P-047)."""
    names = set(default_tools(mode, depth_left) if asked is None else asked)
    if depth_left <= 0:
        names -= DELEGATING
    names -= ATTENDED
    return tuple(sorted(names.intersection(parent)))
