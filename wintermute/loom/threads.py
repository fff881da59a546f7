"""The store of room threads: each is a conversation of its own, which continues from its root's answer.

A thread has the scope of its room at any time (see `Conversations.rescope`). `thread_id` is its
root. When its room moves to another, where the root is missing, the thread is closed, and its later
messages go to the room.
"""

from wintermute.clock import Clock
from wintermute.db import Database, Transaction
from wintermute.ids import NewId
from wintermute.loom.conversations import OVER, Conversations
from wintermute.messages import PERSON

SAID_IN = (
    "SELECT c.id FROM conversations c JOIN (SELECT conversation_id FROM inbox"
    "  WHERE event_id = :event AND room_id = :room UNION ALL SELECT o.conversation_id"
    "  FROM outbox_parts p JOIN outbox o ON o.id = p.outbox_id"
    "  WHERE p.event_id = :event AND o.room_id = :room) said ON said.conversation_id = c.id"
    " WHERE c.thread_id <> '' LIMIT 1"
)
BESIDE = (
    "SELECT o.id FROM conversations v JOIN conversations o ON o.room_id = v.room_id WHERE v.id = ?"
)
ROOT = "$*"
"""The pattern of the root of a thread that is not closed."""


class Threads:
    """The store of the links between conversations and threads."""

    def __init__(self, database: Database, clock: Clock, new_id: NewId) -> None:
        self._conversations = Conversations(database, clock, new_id)

    async def of_event(self, tx: Transaction, room_id: str, event_id: str) -> str | None:
        """Return the thread of an event; None if it is in the room itself, or unknown."""
        threads = await tx.scalars(SAID_IN, {"event": event_id, "room": room_id})
        return threads[0] if threads else None

    async def of_root(self, tx: Transaction, room_id: str, root: str) -> str | None:
        """Return the thread of a root, if it has begun; threads do not nest, so it may be an outer one."""
        query = (
            f"SELECT id FROM conversations WHERE room_id = ? AND thread_id IN (?, '{OVER}' || ?)"
        )
        threads = await tx.scalars(query, (room_id, root, root))
        return threads[0] if threads else await self.of_event(tx, room_id, root)

    async def root(self, tx: Transaction, room_id: str, named: str) -> str:
        """Return the original message of an event that is named as a root; "" if of another room."""
        row = await tx.row(
            "SELECT coalesce(edits, event_id) AS root, room_id FROM inbox WHERE event_id = :named"
            " UNION ALL SELECT p.event_id, o.room_id FROM outbox_parts p"
            " JOIN outbox o ON o.id = p.outbox_id WHERE p.event_id = :named LIMIT 1",
            {"named": named},
        )
        if row is None:
            return named
        return str(row["root"]) if row["room_id"] == room_id else ""

    async def close(self, tx: Transaction, room_id: str, root: str) -> None:
        """Close a thread whose root is missing from the room: its later messages go to the room."""
        query = f"UPDATE conversations SET thread_id = '{OVER}' || thread_id"
        await tx.execute(f"{query} WHERE room_id = ? AND thread_id = ?", (room_id, root))

    async def room_conversations(self, tx: Transaction, conversation_id: str) -> set[str]:
        """Return a conversation and all others of its room: they may have each other's turns in view."""
        return {conversation_id, *await tx.scalars(BESIDE, (conversation_id,))}

    async def is_thread(self, tx: Transaction, conversation_id: str) -> bool:
        """Return True for a thread, False for the conversation of a room itself."""
        query = "SELECT 1 FROM conversations WHERE id = ? AND thread_id <> ''"
        return await tx.exists(query, (conversation_id,))

    async def unseen_root(self, tx: Transaction, conversation_id: str) -> str | None:
        """Return the root to show with the first message of a thread, if it is not in view there."""
        roots = await tx.scalars(
            f"SELECT thread_id FROM conversations c WHERE id = ? AND thread_id GLOB '{ROOT}'"
            " AND NOT EXISTS (SELECT 1 FROM branches WHERE conversation_id = c.id"
            "  AND reason <> 'start') AND NOT EXISTS (SELECT 1 FROM inbox"
            "  WHERE conversation_id = c.id AND kind = 'message')",
            (conversation_id,),
        )
        return roots[0] if roots else None

    async def partner(
        self, tx: Transaction, room_id: str, root: str, sender: str, *, ours: bool
    ) -> str | None:
        """Return the partner of a thread: the author of its root, or its first writer below our message (F-025).

        None: a message in it must mention us.
        """
        if ours:
            return sender
        senders = await tx.scalars(
            "SELECT sender FROM inbox WHERE event_id = ? AND room_id = ? AND state <> 'ignored'"
            " AND kind IN ('message', 'command')",
            (root, room_id),
        )
        return senders[0] if senders else None

    async def is_with(self, tx: Transaction, conversation_id: str, sender: str) -> bool:
        """Return True if only this person and we have written in a thread that began with us."""
        query = "SELECT 1 FROM conversations WHERE id = ? AND starter = ?"
        return await tx.exists(query, (conversation_id, sender))

    async def note_writer(self, tx: Transaction, room_id: str, root: str, sender: str) -> None:
        """Note a writer in a thread: if it is not its partner, messages must mention us from now on."""
        thread = await self.of_root(tx, room_id, root)
        query = "UPDATE conversations SET starter = NULL WHERE id = ? AND starter <> ?"
        await tx.execute(query, (thread, sender))

    async def open(
        self,
        tx: Transaction,
        main: str,
        root: str,
        *,
        answer_of: str | None,
        starter: str | None,
    ) -> str:
        """Begin the thread of a root in the room of a conversation; return its id.

        It continues from the end of the cast that answered the root, or whose answer (`answer_of`)
        is the root, if everybody who can read now may see that cast's view. Otherwise it begins
        empty: a group with the same scope again may have other members. It keeps the model that was
        chosen for the room.
        """
        room = await tx.row(
            "SELECT room_id, scope, backend FROM conversations WHERE id = ?", (main,)
        )
        if room is None:
            raise LookupError(main)
        turns = await tx.scalars(
            "SELECT (SELECT id FROM turns WHERE cast_id = k.id ORDER BY seq DESC LIMIT 1)"
            " FROM casts k JOIN branches b ON b.id = k.branch_id"
            " JOIN conversations c ON c.id = b.conversation_id"
            " WHERE k.state <> 'running' AND c.room_id = :room AND b.scope = :scope"
            f" AND (b.scope LIKE '{PERSON}%' OR NOT EXISTS (SELECT 1 FROM branches n WHERE"
            "  n.conversation_id = c.id AND n.seq > b.seq AND n.reason = 'scope')) AND (k.id = :cast OR k.event_id IN"
            "  (SELECT event_id FROM inbox WHERE event_id = :root OR edits = :root))"
            " ORDER BY k.seq DESC LIMIT 1",
            {"room": room["room_id"], "scope": room["scope"], "cast": answer_of, "root": root},
        )
        thread, _ = await self._conversations.add_conversation(
            *(tx, "room", room["scope"]),
            forked_from=next(iter(turns), None),
            room_id=room["room_id"],
            thread_id=root,
            starter=starter,
            backend=room["backend"],
        )
        return thread
