"""Facts, tasks and changes as lines for a person, in a chat and in the terminal. Pure."""

import re
from collections.abc import Iterable
from zoneinfo import ZoneInfo

from wintermute.changes.merge import ALL_OF_IT
from wintermute.changes.records import Change, ChangeSet
from wintermute.changes.undo import Kept, Undone
from wintermute.memory.records import Fact
from wintermute.messages import Json
from wintermute.tasks.records import Task

MOST = 160  # characters of one side of a change
MOST_LINES = 50
# What would format in the middle of a line, or make a block of it at its beginning.
MARK = re.compile(r"[\\`*<\[~|&]|(?<!\w)_|_(?!\w)|^[#>+-]|(?<=^\d)[.)]")


def plain(text: str) -> str:
    """Text in which Markdown marks are only marks: facts and tasks are quoted, not formatted."""
    return MARK.sub(r"\\\g<0>", text)


def bounded(lines: list[str]) -> str:
    """The first of the lines, and how many more there are."""
    more = len(lines) - MOST_LINES
    return "\n".join(lines[:MOST_LINES] + ([f"\nand {more} more"] if more > 0 else []))


def fact_line(fact: Fact, zone: ZoneInfo) -> str:
    """Id, day, source and text."""
    return f"{fact.id}  {fact.created_at.astimezone(zone):%Y-%m-%d}  {fact.source}  {fact.text}"


def task_line(task: Task) -> str:
    """As in the prompt, with the status where it is not active."""
    when = f" [{task.schedule}]" if task.schedule else ""
    status = "" if task.status == "active" else f" ({_ended(task)})"
    return f"[P{task.priority}] #{task.id}: {task.content}{when}{status}"


def _ended(task: Task) -> str:
    return f"{task.status}: {task.reason}" if task.reason else task.status


def set_lines(change_set: ChangeSet, zone: ZoneInfo) -> list[str]:
    """Id, time and cause, then what was before and after of each item."""
    when = change_set.created_at.astimezone(zone)
    undone = f", undoes {change_set.undoes}" if change_set.undoes else ""
    head = f"{change_set.id}  {when:%Y-%m-%d %H:%M}  {change_set.cause}{undone}"
    return [head, *(f"  {line}" for line in _changes(change_set.changes, change_set.undone))]


def _changes(changes: Iterable[Change], undone: frozenset[str]) -> list[str]:
    return [
        change_line(change) + (" (undone)" if change.item in undone else "") for change in changes
    ]


def change_line(change: Change) -> str:
    """`+` something new, `-` something gone, `~` something else than before."""
    if change.before is None:
        return f"+ {change.kind} {change.item}: {_brief(change.after)}"
    if change.after is None:
        return f"- {change.kind} {change.item}: {_brief(change.before)}"
    fields = [
        f"{name}: {brief(change.before.get(name))} -> {brief(value)}"
        for name, value in change.after.items()
        if change.before.get(name) != value
    ]
    return f"~ {change.kind} {change.item}: {'; '.join(fields)}"


def _brief(state: Json | None) -> str:
    named = state or {}
    return brief(named.get("text") or named.get("content") or "")


def brief(value: object) -> str:
    """The beginning of a text, in one line."""
    line = " ".join(str(value).split())
    return line if len(line) <= MOST else f"{line[: MOST - 1]}…"


def undone_lines(undone: Undone) -> list[str]:
    """What is back, and what a later edit holds on to."""
    return [
        *(change_line(change) for change in undone.back),
        *(f"kept, it was changed since: {kept_words(kept)}" for kept in undone.kept),
    ] or ["nothing to undo: all of it is as it was before"]


def kept_words(kept: Kept) -> str:
    """Which part of which item a later edit holds on to."""
    part = "" if kept.fields == (ALL_OF_IT,) else f"{' and '.join(kept.fields)} of "
    return f"{part}{kept.kind} {kept.item}"
