"""Events that are about an earlier event, edits and reactions: what they ask of us. Pure.

As in `inbox`, nothing here raises on what strangers send.
"""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Literal, NamedTuple

from wintermute.matrix.inbox import (
    Account,
    Policy,
    RoomView,
    bounded,
    is_id,
    is_marked_by,
    mapping,
    read_event,
    string,
)
from wintermute.messages import Incoming, Json
from wintermute.tasks.records import SIGNS, Sign

Mark = Literal["good", "bad", "stop"] | Sign
MARKS: Mapping[str, Mark] = {
    "\N{THUMBS UP SIGN}": "good",
    "\N{THUMBS DOWN SIGN}": "bad",
    "\N{OCTAGONAL SIGN}": "stop",
    **SIGNS,
}
VARIATIONS = dict.fromkeys((0xFE0E, 0xFE0F, *range(0x1F3FB, 0x1F400)))
"""Presentation selectors and skin tones: with or without them it is the same sign."""


class Reaction(NamedTuple):
    """A sign on an earlier event, and what would be done about it if it asks for something."""

    target: str
    mark: Mark
    command: Incoming
    """What a stop sign says; the other signs that ask for something say it in other words."""


def meaning(key: str) -> Mark | None:
    """What the key of a reaction says to us."""
    return MARKS.get(key.translate(VARIATIONS))


def read_reaction(
    source: object, room: RoomView, account: Account, policy: Policy, received_at: datetime
) -> Reaction | None:
    """The reaction of an allowed person that an event is, when it means something to us (X-026)."""
    event = mapping(source)
    relation = mapping(mapping(event.get("content")).get("m.relates_to"))
    target, mark = string(relation, "event_id"), meaning(string(relation, "key"))
    if (
        string(event, "type") != "m.reaction"
        or string(relation, "rel_type") != "m.annotation"
        or mark is None
        or not is_target(target, event)
        or string(event, "sender") not in policy.allowed
    ):
        return None
    typed = event | {"type": "m.room.message", "content": {"msgtype": "m.text", "body": "/stop"}}
    command = read_event(typed, room, account, policy, received_at)
    if command is None:
        return None
    return Reaction(target, mark, replace(command, kind="command", raw=bounded(event)))


def read_edit(
    source: object,
    room: RoomView,
    account: Account,
    policy: Policy,
    received_at: datetime,
    *,
    answers_us: bool = False,
) -> Incoming | None:
    """The new text that an allowed person gives an earlier message, read as if said now (L-054).

    Not of bots: theirs grow while they write, and each step would be answered (X-004).
    `answers_us`: the earlier message does, which an edit does not change.
    """
    event = mapping(source)
    content, edited = mapping(event.get("content")), edited_by(event)
    if edited is None or string(event, "sender") not in policy.allowed:
        return None
    # What a message relates to is not changed by an edit, whatever stands in there.
    new = {k: v for k, v in mapping(content.get("m.new_content")).items() if k != "m.relates_to"}
    sender = string(event, "sender")
    if is_marked_by(content, sender) or is_marked_by(new, sender):
        return None
    said = event | {"content": new}
    read = read_event(said, room, account, policy, received_at, answers_us=answers_us)
    return replace(read, edits=edited, raw=bounded(event)) if read else None


def edited_by(event: Json) -> str | None:
    """The event that another one edits, by its own word."""
    relation = mapping(mapping(event.get("content")).get("m.relates_to"))
    edited = string(relation, "event_id")
    is_edit = string(relation, "rel_type") == "m.replace" and is_target(edited, event)
    return edited if is_edit else None


def is_target(event_id: str, event: Json) -> bool:
    """Whether an event can be about the event of this id."""
    return is_id(event_id) and event_id != string(event, "event_id")
