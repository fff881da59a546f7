"""What was done, in words: for a person whose model has nothing more to say about it. Pure."""

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

from wintermute.conversation.view import as_text
from wintermute.loom.records import Observation, Turn
from wintermute.messages import Json
from wintermute.text import one_line

LOOKING = {"read_file", "recall", "search_memory", "search_web", "fetch_url", "done"}
"""Gates that change nothing."""
MOST = 300
"""Characters of one line."""


def done_so_far(turns: Sequence[Turn]) -> str:
    """What the calls of a cast have done, a line each; "" unless one did something.

    What failed is named too: nobody may think that it was done.
    """
    seen = [each for turn in turns for each in turn.observations]
    done = dict.fromkeys(_receipt(each) for each in seen if _has_effect(each))
    failed = dict.fromkeys(_failure(each) for each in seen if each.completed and each.is_error)
    if not done:
        return ""
    return "\n\n".join(chain(_listed("Done", [*done]), _listed("Not done", [*failed])))


def _has_effect(seen: Observation) -> bool:
    looks = seen.gate in LOOKING or (seen.args or {}).get("action") == "list"
    return seen.completed and not seen.is_error and not looks


def _listed(heading: str, lines: Sequence[str]) -> Iterator[str]:
    if len(lines) == 1:
        yield f"{heading}: {lines[0]}"
    elif lines:
        yield "\n".join([f"{heading}:", "", *(f"- {line}" for line in lines)])


def _receipt(seen: Observation) -> str:
    """One result, as its tool's receipt reads; what no tool of ours gave, under its name."""
    result: Any = seen.result
    if isinstance(result, dict):
        match result:
            case {"text": str(text), "stored": outcome}:
                return _line("known already" if outcome == "known" else "remembered", f'"{text}"')
            case {"id": task_id, "content": content, "status": _}:
                return _line(f"task #{task_id}", f"{content}{_when(result)}")
            case {"path": path}:
                return _line("written", f"`{path}`")
    return _line(seen.gate, as_text(result))


def _when(task: Json) -> str:
    if task["status"] != "active":
        return f", {task['status']}"
    return f", next on {task['next_due']}" if task.get("next_due") else ""


def _failure(seen: Observation) -> str:
    return _line(seen.gate, as_text(seen.result))


def _line(what: str, text: str) -> str:
    line = one_line(text)
    return f"{what}: {line if len(line) <= MOST else line[: MOST - 1] + '…'}"
