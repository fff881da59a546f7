"""Which room follows which, and where what was in them goes on (F-013). Pure.

A room follows another when both say so: the tombstone of the old names it, and its own creation
names the old. Either alone anybody can write.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from wintermute.messages import ROOM


@dataclass(frozen=True, slots=True)
class Link:
    """What is known of a room that follows another or is followed; "": nothing.

    `successor` and `predecessor` are what is said, `moved_to` is what was done; `scope` is the name
    of what lives there, unless it is called after this room.
    """

    room_id: str
    encrypted: bool
    joined: bool
    successor: str = ""
    predecessor: str = ""
    moved_to: str = ""
    scope: str = ""


class Move(NamedTuple):
    """One room that gave way to another."""

    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Moves:
    """Where what was in rooms goes on."""

    homes: Mapping[str, str] = field(default_factory=dict)
    """Of each room that has moved: where its conversation is by now."""
    scopes: Mapping[str, str] = field(default_factory=dict)
    """Of each room that follows another: the name of the scope that lives there."""
    closed: frozenset[str] = frozenset()
    """Rooms that are over: nobody looks there any more, wherever the conversation is."""
    barred: frozenset[str] = frozenset()
    """Rooms in clear that follow an encrypted one: nothing from elsewhere is said there."""

    def home(self, room_id: str) -> str:
        """Where the conversation of a room is now."""
        return self.homes.get(room_id, room_id)

    def left_for(self, room_id: str) -> list[str]:
        """The rooms of which all goes on in this one."""
        return [old for old, home in self.homes.items() if home == room_id]

    def scope(self, room_id: str) -> str:
        """The name of what lives in a room, as a room of many."""
        return self.scopes.get(room_id, f"{ROOM}{room_id}")

    def named(self, scope: str) -> str:
        """The name of the scope that a person means: they may call a room's by any of its rooms."""
        room_id = self.home(scope.removeprefix(ROOM))
        return self.scope(room_id) if scope.startswith(ROOM) else scope


def moves_of(links: Sequence[Link]) -> Moves:
    """What these rooms come to."""
    known = {link.room_id: link for link in links}
    moved = {link.room_id: link.moved_to for link in links if link.moved_to}
    named = {link.room_id: link.successor for link in links if link.successor}
    return Moves(
        homes={room: end for room in moved if (end := _end(moved, room))},
        scopes={link.room_id: link.scope for link in links if link.scope},
        closed=frozenset(moved) | {room for room in named if _end(named, room)},
        barred=frozenset(
            new for old, new in _pairs(links) if known[old].encrypted and not known[new].encrypted
        ),
    )


def wanted(links: Sequence[Link]) -> list[Move]:
    """What is to move, and where to, in this order; what only goes round in a circle stays."""
    left, homes = _pairs(links), moves_of(links).homes
    found: list[Move] = []
    while ready := [pair for pair in left if pair.old not in {other.new for other in left}]:
        found += ready
        left = [pair for pair in left if pair not in ready]
    ends = [Move(old, homes.get(new, new)) for old, new in found]
    return [move for move in ends if move.old != move.new]


def _pairs(links: Sequence[Link]) -> list[Move]:
    """The rooms that did not move yet, each with the one that follows it and that we are in."""
    known = {link.room_id: link for link in links}
    pairs = [Move(link.room_id, link.successor) for link in links if not link.moved_to]
    return [
        pair
        for pair in pairs
        if pair.new in known and known[pair.new].joined and known[pair.new].predecessor == pair.old
    ]


def _end(steps: Mapping[str, str], room_id: str) -> str:
    """Where the steps from a room end; "" when they never do."""
    passed = {room_id}
    while (room_id := steps[room_id]) in steps:
        if room_id in passed:
            return ""
        passed.add(room_id)
    return room_id
