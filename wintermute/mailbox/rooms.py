"""What must be known about rooms before the first sync: invitations, encryption, who follows whom.

A room follows another when both say so: the tombstone of the old names it, and its own creation
names the old (F-013). Either alone anybody can write.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from wintermute.clock import Clock, stamp
from wintermute.db import Database, Transaction
from wintermute.db.values import reader
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


async def people(
    database: Database, conversation_ids: Sequence[str]
) -> tuple[tuple[str, str], ...]:
    """Matrix id and display name of everybody, in the order in which they first wrote."""
    rows = await database.rows(
        "SELECT sender, sender_name FROM inbox WHERE conversation_id IN"
        " (SELECT value FROM json_each(?)) GROUP BY sender, sender_name ORDER BY min(seq)",
        (json.dumps(list(conversation_ids)),),
    )
    return tuple((row["sender"], row["sender_name"]) for row in rows)


@dataclass(frozen=True, slots=True)
class Invitation:
    """Somebody asked us into a room. `welcome`: the inviter is allowed to."""

    room_id: str
    inviter: str
    welcome: bool
    state: Literal["pending", "joined"]
    received_at: str


_link = reader(Link)
_invitation = reader(Invitation)


class KnownRooms:
    """The store of invitations and of what is known of rooms."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def invited(self, tx: Transaction, room_id: str, inviter: str, welcome: bool) -> None:
        """Keep an invitation: the homeserver delivers it once."""
        await tx.execute(
            "INSERT INTO invitations (room_id, inviter, welcome, state, received_at)"
            " VALUES (?, ?, ?, 'pending', ?) ON CONFLICT (room_id) DO UPDATE SET"
            " inviter = excluded.inviter, welcome = excluded.welcome, state = 'pending',"
            " received_at = excluded.received_at",
            (room_id, inviter, welcome, stamp(self._clock.now())),
        )

    async def invitations(self) -> list[Invitation]:
        """Invitations not yet followed by the room's first sync, those of strangers last."""
        rows = await self._database.rows(
            "SELECT * FROM invitations ORDER BY welcome DESC, received_at"
        )
        return [_invitation(row) for row in rows]

    async def joined(self, invitation: Invitation) -> None:
        """We went in; the invitation stays until the room's first messages are stored."""
        async with self._database.transaction() as tx:
            await tx.execute(
                "UPDATE invitations SET state = 'joined' WHERE room_id = ?", (invitation.room_id,)
            )

    async def declined(self, invitation: Invitation) -> None:
        """We said no, or the invitation is void; a newer one into the same room stays."""
        async with self._database.transaction() as tx:
            await tx.execute(
                "DELETE FROM invitations WHERE room_id = ? AND received_at = ?",
                (invitation.room_id, invitation.received_at),
            )

    async def settled(self, tx: Transaction, room_id: str) -> None:
        """An invitation is done with, in the transaction that stores its room's first messages."""
        await tx.execute("DELETE FROM invitations WHERE room_id = ?", (room_id,))

    async def seen(self, tx: Transaction, room_id: str, encrypted: bool, last: str = "") -> None:
        """We are in this room; once encrypted it counts as encrypted for ever. `last`: its newest event."""
        tx.later(
            "INSERT INTO rooms (room_id, encrypted, state, last_event) VALUES (?, ?, 'joined', ?)"
            " ON CONFLICT (room_id) DO UPDATE SET encrypted = max(encrypted, excluded.encrypted),"
            " state = 'joined', last_event = coalesce(nullif(excluded.last_event, ''), last_event)",
            (room_id, encrypted, last),
        )

    async def read_up_to(self) -> dict[str, set[str]]:
        """Find, for each room that we are in, the event up to which everything was taken in."""
        query = "SELECT room_id, last_event FROM rooms WHERE state = 'joined'"
        return {row["room_id"]: {row["last_event"]} for row in await self._database.rows(query)}

    async def left(self, tx: Transaction, room_id: str) -> None:
        """We are no longer in this room."""
        await tx.execute("UPDATE rooms SET state = 'left' WHERE room_id = ?", (room_id,))

    async def gone(self, tx: Transaction) -> frozenset[str]:
        """Rooms that we are no longer in, or that are over."""
        left = await tx.scalars("SELECT room_id FROM rooms WHERE state = 'left'")
        return (await self.moves(tx)).closed.union(left)

    async def replaced(self, tx: Transaction, room_id: str, successor: str) -> None:
        """A tombstone names the room that follows this one; the newest one counts."""
        query = "UPDATE rooms SET successor = ? WHERE room_id = ?"
        await tx.execute(query, (successor, room_id))

    async def follows(self, tx: Transaction, room_id: str, predecessor: str) -> None:
        """A room says of itself which one it follows."""
        query = "UPDATE rooms SET predecessor = ? WHERE room_id = ?"
        await tx.execute(query, (predecessor, room_id))

    async def moved(self, tx: Transaction, move: Move, scope: str) -> None:
        """What was in the old room goes on in the new one, under its name."""
        await tx.execute("UPDATE rooms SET moved_to = ? WHERE room_id = ?", move[::-1])
        await tx.execute("UPDATE rooms SET scope = ? WHERE room_id = ?", (scope, move.new))

    async def links(self, source: Database | Transaction | None = None) -> list[Link]:
        """The rooms that follow another or are followed, in the order in which we came to know them."""
        rows = await (source or self._database).rows(
            "SELECT *, state = 'joined' AS joined FROM rooms WHERE successor <> '' OR predecessor <> '' OR moved_to <> ''"
            " OR scope <> '' ORDER BY rowid"
        )
        return [_link(row) for row in rows]

    async def moves(self, source: Database | Transaction | None = None) -> Moves:
        """Where what was in rooms goes on."""
        return moves_of(await self.links(source))

    async def is_encrypted(self, tx: Transaction, room_id: str) -> bool:
        """Whether a room was ever seen as encrypted."""
        return await tx.exists("SELECT 1 FROM rooms WHERE room_id = ? AND encrypted", (room_id,))

    async def encrypted(self) -> frozenset[str]:
        """Rooms in which nothing may ever be sent in clear."""
        return frozenset(await self._database.scalars("SELECT room_id FROM rooms WHERE encrypted"))
