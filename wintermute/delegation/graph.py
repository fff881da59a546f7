"""Workflows: what a new sub-session may depend on. Pure.

A sub-session can only depend on those that are there before it, so there is no cycle but the one
of a sub-session that names itself.
"""

from collections.abc import Mapping, Sequence

from wintermute.delegation.records import SubSession
from wintermute.errors import ToolFailed

FAILED = "dependency failed: {label}"


def resolved(
    asked: Sequence[str], name: str | None, known: Mapping[str, SubSession]
) -> tuple[SubSession, ...]:
    """The sub-sessions of these ids or names, each once.

    `known` are those that may be named, by what they are called; `name` is that of the new one.

    Raises: ToolFailed for an unknown one, for a cycle (L-065), and for one that has failed (L-064).
    """
    if name is not None and name in asked:
        raise ToolFailed(f"cycle: {name} depends on itself; nothing was started")
    unknown = [word for word in asked if word not in known]
    if unknown:
        raise ToolFailed(
            f"unknown dependency: {', '.join(unknown)}; nothing was started. Spawn it first;"
            " names hold for one answer, ids for the whole conversation"
        )
    found = tuple(dict.fromkeys(known[word] for word in asked))
    for each in found:
        if each.state != "done" and not each.is_open:
            raise ToolFailed(f"{FAILED.format(label=each.label)}; nothing was started")
    return found


def joined(own: str, dependencies: Sequence[SubSession]) -> tuple[str, tuple[str, ...]]:
    """The workflow of a new sub-session, and those workflows that become one with it (L-067)."""
    workflows = list(dict.fromkeys(each.workflow for each in dependencies)) or [own]
    return workflows[0], tuple(workflows[1:])
