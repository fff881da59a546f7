"""Edits that are noted and not answered: of older messages, and into or of commands (L-054)."""

import json
from collections.abc import Collection, Sequence
from datetime import datetime

from wintermute.clock import Clock, moment, stamp
from wintermute.config.secrets import UNHIDDEN, Redaction
from wintermute.db import Database, Transaction
from wintermute.db.traces import holds


class Edits:
    """The store of noted edits. An edit that is answered is an inbox row of its own."""

    def __init__(self, database: Database, clock: Clock, redact: Redaction = UNHIDDEN) -> None:
        """`redact` hides our own secrets, should somebody post one (L-089)."""
        self._database = database
        self._redact = redact
        self._clock = clock

    async def note(
        self,
        tx: Transaction,
        event_id: str,
        edited: str,
        conversation_id: str,
        sender: str,
        text: str,
    ) -> bool:
        """Keep what somebody changed the message `edited` to; False when it was noted before."""
        added = await tx.execute(
            "INSERT INTO edits (event_id, edited, conversation_id, sender, text, created_at)"
            " VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (event_id) DO NOTHING",
            (
                event_id,
                edited,
                conversation_id,
                sender,
                self._redact(text),
                stamp(self._clock.now()),
            ),
        )
        return added == 1

    async def since(self, tx: Transaction, conversation_id: str) -> datetime:
        """Since when a message may be the newest one: what came before is another history.

        A branch that an edit began goes on with the same message, which may be edited again.
        """
        row = await tx.row(
            "SELECT created_at FROM branches WHERE conversation_id = ? AND reason <> 'edit'"
            " ORDER BY seq DESC LIMIT 1",
            (conversation_id,),
        )
        if row is None:
            raise LookupError(conversation_id)
        return moment(row["created_at"])

    async def take_back(self, tx: Transaction, room_id: str, events: Collection[str]) -> None:
        """Blank these edits, and those of these messages, in a room (F-027)."""
        await tx.execute(
            "UPDATE edits SET text = '' WHERE text <> ''"
            " AND (event_id IN (SELECT value FROM json_each(:events))"
            "  OR edited IN (SELECT value FROM json_each(:events))) AND EXISTS"
            " (SELECT 1 FROM inbox i WHERE i.event_id = edits.edited AND i.room_id = :room)",
            {"room": room_id, "events": json.dumps(sorted(events))},
        )

    async def forget(self, tx: Transaction, events: Sequence[str], traces: Sequence[str]) -> int:
        """Blank the edits of these events and what holds one of the `traces`; how many that was."""
        return await tx.execute(
            "UPDATE edits SET text = '' WHERE text <> '' AND ("
            "event_id IN (SELECT value FROM json_each(:events))"
            f" OR edited IN (SELECT value FROM json_each(:events)) OR {holds('text')})",
            {"events": json.dumps(list(events)), "traces": json.dumps(list(traces))},
        )
