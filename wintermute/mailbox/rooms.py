"""The store of rooms: invitations, encryption, and which room replaces which.

A room replaces another only if both say so: the tombstone of the old one names it, and its own
creation event names the old one (F-013). Either alone could be forged.
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
    """A room that replaces another or is replaced; "" for unknown.

    `successor` and `predecessor` are what the rooms' state says, `moved_to` is what was done.
    `scope`: the name of the room's scope, unless it is named after this room.
    """

    room_id: str
    encrypted: bool
    joined: bool
    successor: str = ""
    predecessor: str = ""
    moved_to: str = ""
    scope: str = ""


class Move(NamedTuple):
    """One room that is replaced by another."""

    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Moves:
    """The rooms in which conversations of replaced rooms continue."""

    current_rooms: Mapping[str, str] = field(default_factory=dict)
    """The current room of each conversation, by the room it began in."""
    scopes: Mapping[str, str] = field(default_factory=dict)
    """The name of the scope of each room that replaces another."""
    closed: frozenset[str] = frozenset()
    """Replaced rooms: messages there are not read any more."""
    unencrypted: frozenset[str] = frozenset()
    """Unencrypted rooms that replace an encrypted one: no message is sent there for another room."""

    def current_room(self, room_id: str) -> str:
        """Return the room where the conversation of a room continues."""
        return self.current_rooms.get(room_id, room_id)

    def rooms_before(self, room_id: str) -> list[str]:
        """Return the rooms whose conversations continue in this one."""
        return [old for old, home in self.current_rooms.items() if home == room_id]

    def scope(self, room_id: str) -> str:
        """Return the name of a room's scope, as of a group."""
        return self.scopes.get(room_id, f"{ROOM}{room_id}")

    def canonical_scope(self, scope: str) -> str:
        """Return the real name of a scope that a person names by any of its rooms."""
        room_id = self.current_room(scope.removeprefix(ROOM))
        return self.scope(room_id) if scope.startswith(ROOM) else scope


def compute_moves(links: Sequence[Link]) -> Moves:
    """Compute from these links where conversations go on."""
    known = {link.room_id: link for link in links}
    moved = {link.room_id: link.moved_to for link in links if link.moved_to}
    named = {link.room_id: link.successor for link in links if link.successor}
    return Moves(
        current_rooms={room: end for room in moved if (end := _end(moved, room))},
        scopes={link.room_id: link.scope for link in links if link.scope},
        closed=frozenset(moved) | {room for room in named if _end(named, room)},
        unencrypted=frozenset(
            new for old, new in _pairs(links) if known[old].encrypted and not known[new].encrypted
        ),
    )


def pending_moves(links: Sequence[Link]) -> list[Move]:
    """Return the moves to make, in order; rooms that replace each other in a circle do not move."""
    left, homes = _pairs(links), compute_moves(links).current_rooms
    found: list[Move] = []
    while ready := [pair for pair in left if pair.old not in {other.new for other in left}]:
        found += ready
        left = [pair for pair in left if pair not in ready]
    ends = [Move(old, homes.get(new, new)) for old, new in found]
    return [move for move in ends if move.old != move.new]


def _pairs(links: Sequence[Link]) -> list[Move]:
    """Return the rooms that have not moved yet, each with its confirmed and joined successor."""
    known = {link.room_id: link for link in links}
    pairs = [Move(link.room_id, link.successor) for link in links if not link.moved_to]
    return [
        pair
        for pair in pairs
        if pair.new in known and known[pair.new].joined and known[pair.new].predecessor == pair.old
    ]


def _end(steps: Mapping[str, str], room_id: str) -> str:
    """Follow the moves from a room to the last one; "" if they form a circle."""
    passed = {room_id}
    while (room_id := steps[room_id]) in steps:
        if room_id in passed:
            return ""
        passed.add(room_id)
    return room_id


async def senders(
    database: Database, conversation_ids: Sequence[str]
) -> tuple[tuple[str, str], ...]:
    """Return Matrix id and display name of all senders, in the order of their first messages."""
    rows = await database.rows(
        "SELECT sender, sender_name FROM inbox WHERE conversation_id IN"
        " (SELECT value FROM json_each(?)) GROUP BY sender, sender_name ORDER BY min(seq)",
        (json.dumps(list(conversation_ids)),),
    )
    return tuple((row["sender"], row["sender_name"]) for row in rows)


@dataclass(frozen=True, slots=True)
class Invitation:
    """An invitation into a room. `welcome`: the inviter is allowed to invite us."""

    room_id: str
    inviter: str
    welcome: bool
    state: Literal["pending", "joined"]
    received_at: str


_link = reader(Link)
_invitation = reader(Invitation)


class KnownRooms:
    """The store of invitations and rooms."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def store_invitation(
        self, tx: Transaction, room_id: str, inviter: str, welcome: bool
    ) -> None:
        """Store an invitation: the homeserver delivers it once."""
        await tx.execute(
            "INSERT INTO invitations (room_id, inviter, welcome, state, received_at)"
            " VALUES (?, ?, ?, 'pending', ?) ON CONFLICT (room_id) DO UPDATE SET"
            " inviter = excluded.inviter, welcome = excluded.welcome, state = 'pending',"
            " received_at = excluded.received_at",
            (room_id, inviter, welcome, stamp(self._clock.now())),
        )

    async def invitations(self) -> list[Invitation]:
        """Return the invitations without a first sync of their room, those of strangers last."""
        rows = await self._database.rows(
            "SELECT * FROM invitations ORDER BY welcome DESC, received_at"
        )
        return [_invitation(row) for row in rows]

    async def mark_accepted(self, invitation: Invitation) -> None:
        """Mark an invitation as accepted; it stays until the room's first messages are stored."""
        async with self._database.transaction() as tx:
            await tx.execute(
                "UPDATE invitations SET state = 'joined' WHERE room_id = ?", (invitation.room_id,)
            )

    async def delete_declined(self, invitation: Invitation) -> None:
        """Delete an invitation that was declined or is void; a newer one into the same room stays."""
        async with self._database.transaction() as tx:
            await tx.execute(
                "DELETE FROM invitations WHERE room_id = ? AND received_at = ?",
                (invitation.room_id, invitation.received_at),
            )

    async def delete_invitation(self, tx: Transaction, room_id: str) -> None:
        """Delete an invitation in the transaction that stores its room's first messages."""
        await tx.execute("DELETE FROM invitations WHERE room_id = ?", (room_id,))

    async def store_room(
        self, tx: Transaction, room_id: str, encrypted: bool, last: str = ""
    ) -> None:
        """Store that we are in a room, and its newest event; once encrypted it counts as encrypted for ever."""
        tx.defer(
            "INSERT INTO rooms (room_id, encrypted, state, last_event) VALUES (?, ?, 'joined', ?)"
            " ON CONFLICT (room_id) DO UPDATE SET encrypted = max(encrypted, excluded.encrypted),"
            " state = 'joined', last_event = coalesce(nullif(excluded.last_event, ''), last_event)",
            (room_id, encrypted, last),
        )

    async def read_up_to(self) -> dict[str, set[str]]:
        """Return, for each joined room, the event up to which everything was stored."""
        query = "SELECT room_id, last_event FROM rooms WHERE state = 'joined'"
        return {row["room_id"]: {row["last_event"]} for row in await self._database.rows(query)}

    async def mark_left(self, tx: Transaction, room_id: str) -> None:
        """Store that we are no longer in this room."""
        await tx.execute("UPDATE rooms SET state = 'left' WHERE room_id = ?", (room_id,))

    async def inactive(self, tx: Transaction) -> frozenset[str]:
        """Return the rooms that we have left, or that are replaced."""
        left = await tx.scalars("SELECT room_id FROM rooms WHERE state = 'left'")
        return (await self.moves(tx)).closed.union(left)

    async def set_successor(self, tx: Transaction, room_id: str, successor: str) -> None:
        """Store the successor that a room's tombstone names; the newest tombstone counts."""
        query = "UPDATE rooms SET successor = ? WHERE room_id = ?"
        await tx.execute(query, (successor, room_id))

    async def set_predecessor(self, tx: Transaction, room_id: str, predecessor: str) -> None:
        """Store the predecessor that a room's creation event names."""
        query = "UPDATE rooms SET predecessor = ? WHERE room_id = ?"
        await tx.execute(query, (predecessor, room_id))

    async def store_move(self, tx: Transaction, move: Move, scope: str) -> None:
        """Store that a room was replaced: its conversation and scope go on in the new one."""
        await tx.execute("UPDATE rooms SET moved_to = ? WHERE room_id = ?", move[::-1])
        await tx.execute("UPDATE rooms SET scope = ? WHERE room_id = ?", (scope, move.new))

    async def links(self, source: Database | Transaction | None = None) -> list[Link]:
        """Return the rooms that replace another or are replaced, in the order in which we met them."""
        rows = await (source or self._database).rows(
            "SELECT *, state = 'joined' AS joined FROM rooms WHERE successor <> '' OR predecessor <> '' OR moved_to <> ''"
            " OR scope <> '' ORDER BY rowid"
        )
        return [_link(row) for row in rows]

    async def moves(self, source: Database | Transaction | None = None) -> Moves:
        """Return the current rooms and scopes of all moved conversations."""
        return compute_moves(await self.links(source))

    async def is_encrypted(self, tx: Transaction, room_id: str) -> bool:
        """Check if a room was ever encrypted."""
        return await tx.exists("SELECT 1 FROM rooms WHERE room_id = ? AND encrypted", (room_id,))

    async def encrypted(self) -> frozenset[str]:
        """Return the rooms in which nothing may ever be sent unencrypted."""
        return frozenset(await self._database.scalars("SELECT room_id FROM rooms WHERE encrypted"))
