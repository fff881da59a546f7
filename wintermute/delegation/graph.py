"""Workflows: what a new sub-session may depend on. Pure.

A sub-session can only depend on those that are there before it, so there is no cycle but the one
of a sub-session that names itself.
"""

import json
from collections.abc import Mapping, Sequence, Set

from wintermute.delegation.records import SubSession
from wintermute.errors import ToolFailed
from wintermute.messages import Json
from wintermute.text import one_line

SPAWN = "spawn_sub_session"
FAILED = "dependency failed: {label}"
Spawns = Mapping[int, tuple[str, list[str]]]


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


def spawns_of(calls: Sequence[Json]) -> Spawns:
    """What a turn spawns: by place its name and what it depends on."""
    return {n: _words(call) for n, call in enumerate(calls) if call["name"] == SPAWN}


def to_be_named(spawns: Spawns, seen: Set[int]) -> set[str]:
    """The names on which spawns of a turn depend, however indirectly, that have no result yet.

    Until then those who bear them do not start: one that fails or answers at once would else be
    told alone, before what depends on it is known.
    """
    needs = {name: depends_on for name, depends_on in spawns.values() if name}
    found: set[str] = set()
    ahead = [word for n, (_, words) in spawns.items() if n not in seen for word in words]
    while ahead:
        word = ahead.pop()
        if word not in found:
            found.add(word)
            ahead += needs.get(word, ())
    return found


def _words(call: Json) -> tuple[str, list[str]]:
    """The name in a call's arguments and what it depends on, whatever stands there."""
    try:
        args = json.loads(call["arguments"])
    except (ValueError, RecursionError):
        args = None
    args = args if isinstance(args, dict) else {}
    depends_on = args.get("depends_on")
    words = depends_on if isinstance(depends_on, list) else []
    return one_line(str(args.get("name") or "")), [word for word in words if isinstance(word, str)]
