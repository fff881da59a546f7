"""What must be known about rooms before the first sync: invitations, encryption, who follows whom."""

from dataclasses import dataclass
from typing import Literal

from wintermute.clock import Clock, stamp
from wintermute.db import Database, Transaction
from wintermute.mailbox.moves import Link, Move, Moves, moves_of


@dataclass(frozen=True, slots=True)
class Invitation:
    """Somebody asked us into a room. `welcome`: the inviter is allowed to."""

    room_id: str
    inviter: str
    welcome: bool
    state: Literal["pending", "joined"]
    received_at: str


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
        return [
            Invitation(
                row["room_id"],
                row["inviter"],
                bool(row["welcome"]),
                row["state"],
                row["received_at"],
            )
            for row in rows
        ]

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

    async def seen(self, tx: Transaction, room_id: str, encrypted: bool) -> None:
        """We are in this room; once encrypted it counts as encrypted for ever."""
        await tx.execute(
            "INSERT INTO rooms (room_id, encrypted, state) VALUES (?, ?, 'joined')"
            " ON CONFLICT (room_id) DO UPDATE SET encrypted = max(encrypted, excluded.encrypted),"
            " state = 'joined'",
            (room_id, encrypted),
        )

    async def left(self, tx: Transaction, room_id: str) -> None:
        """We are no longer in this room."""
        await tx.execute("UPDATE rooms SET state = 'left' WHERE room_id = ?", (room_id,))

    async def gone(self, tx: Transaction) -> frozenset[str]:
        """Rooms that we are no longer in, or that are over."""
        rows = await tx.rows("SELECT room_id FROM rooms WHERE state = 'left'")
        return (await self.moves(tx)).closed.union(row["room_id"] for row in rows)

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
            "SELECT * FROM rooms WHERE successor <> '' OR predecessor <> '' OR moved_to <> ''"
            " OR scope <> '' ORDER BY rowid"
        )
        return [
            Link(
                row["room_id"],
                bool(row["encrypted"]),
                row["state"] == "joined",
                row["successor"],
                row["predecessor"],
                row["moved_to"],
                row["scope"],
            )
            for row in rows
        ]

    async def moves(self, source: Database | Transaction | None = None) -> Moves:
        """Where what was in rooms goes on."""
        return moves_of(await self.links(source))

    async def is_encrypted(self, tx: Transaction, room_id: str) -> bool:
        """Whether a room was ever seen as encrypted."""
        query = "SELECT 1 FROM rooms WHERE room_id = ? AND encrypted"
        return await tx.row(query, (room_id,)) is not None

    async def encrypted(self) -> frozenset[str]:
        """Rooms in which nothing may ever be sent in clear."""
        rows = await self._database.rows("SELECT room_id FROM rooms WHERE encrypted")
        return frozenset(row["room_id"] for row in rows)
