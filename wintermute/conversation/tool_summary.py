"""A summary of a cast's tool calls, for a person whose model gives no text of its own. Pure."""

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

from wintermute.conversation.view import as_text
from wintermute.loom.records import Observation, Turn
from wintermute.messages import Json
from wintermute.prompt.tool_names import LOOKING
from wintermute.text import one_line, untagged
from wintermute.wiki.recall import RECALL

MOST = 300
"""The most characters of one line."""
MOST_LINES = 50


def done_so_far(turns: Sequence[Turn]) -> str:
    """Return the effects of a cast's calls, a line each, or else the rows they listed.

    "" if there are neither. Failed calls are named too, so that nobody takes them for done, except
    pages that were not found.
    """
    completed = [each for turn in turns for each in turn.observations if each.completed]
    succeeded = [each for each in completed if not each.is_error]
    lists = [each for each in succeeded if _is_listing(each) and isinstance(each.result, list)]
    done = [_receipt(each.gate, each.result) for each in succeeded if _has_effect(each)]
    listed = [_receipt(each.gate, row) for each in lists for row in each.result] or ["nothing"]
    errors = (each for each in completed if each.is_error and each.gate != RECALL)
    failed = [_line(each.gate, as_text(each.result)) for each in errors]
    if not (done or lists):
        return ""
    summary = _section("Done", done) if done else _section("Found", listed)
    return untagged("\n\n".join(chain(summary, _section("Not done", failed))))


def _is_listing(observation: Observation) -> bool:
    return (observation.args or {}).get("action") == "list"


def _has_effect(observation: Observation) -> bool:
    return observation.gate not in LOOKING and not _is_listing(observation)


def _section(heading: str, entries: Sequence[str]) -> Iterator[str]:
    lines = [*dict.fromkeys(entries)]
    if len(lines) > MOST_LINES:
        lines[MOST_LINES:] = [f"and {len(lines) - MOST_LINES} more"]
    if len(lines) == 1:
        yield f"{heading}: {lines[0]}"
    elif lines:
        yield "\n".join([f"{heading}:", "", *(f"- {line}" for line in lines)])


def _receipt(gate: str, result: Any) -> str:
    """Summarise one result: in the form of its tool, or else under the tool's name."""
    if isinstance(result, dict):
        match result:
            case {"text": str(text), "stored": outcome}:
                return _line("known already" if outcome == "known" else "remembered", f'"{text}"')
            case {"id": task_id, "content": content, "status": _}:
                return _line(f"task #{task_id}", f"{content}{_when(result)}")
            case {"path": path}:
                return _line("written", f"`{path}`")
    return _line(gate, as_text(result))


def _when(task: Json) -> str:
    if task["status"] != "active":
        return f", {task['status']}"
    return f", next on {task['next_due']}" if task.get("next_due") else ""


def _line(label: str, text: str) -> str:
    line = one_line(text)
    return f"{label}: {line if len(line) <= MOST else line[: MOST - 1] + '…'}"
