"""Removal of our own messages with their edits, which stay readable if only the event is redacted (X-054).

    a person redacts an event of ours   ─▶ its rows are erased, nothing more is sent, its edits are redacted
    we remove an event                  ─▶ it is redacted (`Outbox.change`), its edits are redacted
    a draft that may be on its way      ─▶ a row names the draft until its event is known

A row with `edits_of` redacts the edits one by one until there are none: after a kill it goes on.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from wintermute.db import Database, Transaction
from wintermute.db.values import reader
from wintermute.mailbox.outbox import ANSWERS, Outbox, SentMessage
from wintermute.mailbox.streaming import REMOVED_DRAFT
from wintermute.text import plain

PLACE = (  # the row that owns an event, or the event that it edits
    "SELECT w.conversation_id, p.n, coalesce("
    " (SELECT outbox_id FROM outbox_parts WHERE event_id = w.changes AND w.body <> ''),"
    " iif(p.n = 0 AND p.content ->> '$.\"m.relates_to\".rel_type' = 'm.replace', w.continues, NULL),"
    " w.id) AS owner FROM outbox_parts p JOIN outbox w ON w.id = p.outbox_id"
    " WHERE p.event_id = ? AND w.room_id = ? ORDER BY w.seq DESC LIMIT 1"
)
OWNERS = "(SELECT outbox_id FROM outbox_parts WHERE event_id = :event UNION SELECT :owner)"
SHOWN = (  # the rows whose text our event has shown; not an answer sent below its draft
    f"SELECT id, cast_id, body, meant_for FROM outbox WHERE id IN {OWNERS} OR changes = :event"
    f" OR continues IN {OWNERS} AND NOT EXISTS (SELECT 1 FROM outbox_parts WHERE outbox_id = outbox.id"
    "  AND n = 0 AND content ->> '$.\"m.relates_to\".rel_type' IS NOT 'm.replace')"
)
GROWING = (  # drafts of messages whose final answer is not in the room yet
    "SELECT id, grows FROM outbox o WHERE (id = :owner OR grows IN (SELECT value FROM json_each(:events)"
    "  UNION SELECT edits FROM inbox WHERE event_id IN (SELECT value FROM json_each(:events))))"
    f" AND grows IS NOT NULL AND problem IS NOT '{REMOVED_DRAFT}' AND NOT EXISTS (SELECT 1 FROM outbox a"
    "  JOIN outbox_parts p ON p.outbox_id = a.id AND p.event_id IS NOT NULL WHERE a.continues = o.id)"
)
ANEW = (  # edited messages whose answer may be growing in the event of an earlier answer
    "SELECT DISTINCT i.event_id FROM outbox a JOIN inbox v ON v.event_id = a.answers"
    " JOIN inbox i ON i.edits = coalesce(v.edits, v.event_id) AND i.seq > v.seq"
    " WHERE coalesce(a.continues, a.id) = ? AND i.state = 'casting'"
)

LISTS = (
    f"SELECT seq FROM outbox WHERE cast_id IS NULL AND {ANSWERS.of} AND EXISTS (SELECT 1"
    "  FROM json_each(:lines) WHERE instr(char(10) || body || char(10), value))"
)
_spoken = reader(SentMessage)


@dataclass(frozen=True, slots=True)
class RedactedRows:
    """Rows of ours that somebody redacted. `message_id`: the message that they were about to answer.

    `maybe_growing`: messages for which that is true if a part of their answer is in the room.
    """

    conversation_id: str
    messages: tuple[SentMessage, ...]
    message_id: str = ""
    maybe_growing: tuple[str, ...] = ()


class Removals:
    """The store of removals, which are rows of the outbox."""

    def __init__(self, outbox: Outbox, database: Database) -> None:
        self._outbox = outbox
        self._database = database

    async def erase_redacted(
        self, tx: Transaction, room_id: str, event_id: str
    ) -> RedactedRows | None:
        """Erase the rows of our event that somebody redacted, and redact its edits.

        Whoever redacts the newest edit means its text, so the original event is redacted as well.
        """
        place = await tx.row(PLACE, (event_id, room_id))
        if place is None:
            return None
        where, owner, event = (place["conversation_id"], room_id), place["owner"], event_id
        if place["n"] == 0:
            first = "SELECT event_id FROM outbox_parts WHERE outbox_id = ? AND n = 0"
            [event] = await tx.scalars(first, (owner,))
        asked = {"owner": owner, "event": event}
        growing = await tx.rows(GROWING, asked | {"events": "[]"})
        anew = await tx.scalars(ANEW, (owner,))
        said = [_spoken(row) for row in await tx.rows(SHOWN, asked)]
        for each in said:
            await self._outbox.drop(tx, each.id)
        query = f"UPDATE outbox SET problem = :problem WHERE id IN {OWNERS}"
        await tx.execute(query, asked | {"problem": REMOVED_DRAFT})
        if event != event_id:
            await self._outbox.change(tx, *where, event, "")
        await self._outbox.withdraw(tx, *where, event)
        message = "".join(row["grows"] for row in growing)
        readable = tuple(each for each in said if each.body)
        return RedactedRows(where[0], readable, message, tuple(anew))

    async def redact_event(
        self, tx: Transaction, conversation_id: str, room_id: str, event_id: str
    ) -> None:
        """Redact an event of ours and all its edits, including an unsent one."""
        for row in await tx.scalars("SELECT id FROM outbox WHERE changes = ?", (event_id,)):
            await self._outbox.drop(tx, row)
        await self._outbox.change(tx, conversation_id, room_id, event_id, "")
        await self._outbox.withdraw(tx, conversation_id, room_id, event_id)

    async def redact_drafts(self, tx: Transaction, events: Sequence[str]) -> None:
        """Remove the drafts of answers to these redacted messages.

        A draft that had taken over the event of an earlier answer gives that its text back.
        """
        asked = {"owner": None, "events": json.dumps(list(events))}
        for row in await tx.rows(GROWING, asked):
            await self.redact_draft(tx, row["id"])

    async def redact_draft(self, tx: Transaction, outbox_id: str) -> None:
        """Remove a draft, even if it is unknown yet whether it reached its room."""
        await self._outbox.drop(tx, outbox_id)
        rows = await tx.rows(
            "UPDATE outbox SET problem = ? WHERE id = ? RETURNING conversation_id, room_id,"
            " (SELECT coalesce(event_id, outbox_id) FROM outbox_parts WHERE outbox_id = id AND n = 0"
            "  AND attempts > 0) AS event",
            (REMOVED_DRAFT, outbox_id),
        )
        for row in [each for each in rows if each["event"]]:
            take = self._outbox.withdraw if row["event"] == outbox_id else self.redact_event
            owners = "SELECT 1 FROM outbox_parts WHERE event_id = ? AND outbox_id <> ?"
            if await tx.exists(owners, (row["event"], outbox_id)):  # a former answer, which stays
                take = self._outbox.withdraw
            await take(tx, row["conversation_id"], row["room_id"], row["event"])

    async def lists(self, texts: Sequence[str], scopes: Sequence[str]) -> list[tuple[int]]:
        """Find answers to commands that list one of these memories at a line's end, however short (M-030)."""
        around = (("\n- ", "\n"), ("\n- ", " ("), (": ", "\n"), ("memory ", "\n"))
        lines = [f"{before}{plain(text)}{after}" for text in texts for before, after in around]
        asked = {"lines": json.dumps(lines), "scopes": json.dumps(list(scopes))}
        return [(int(row["seq"]),) for row in await self._database.rows(LISTS, asked)]

    async def event_of(self, outbox_id: str) -> str | None:
        """Return the event of a row, if it is known."""
        query = "SELECT event_id FROM outbox_parts WHERE outbox_id = ? AND n = 0"
        return "".join(filter(None, await self._database.scalars(query, (outbox_id,)))) or None

    async def is_final(self, event_id: str) -> bool:
        """Check if an edit holds our final text, not a step on the way to it."""
        query = (
            "SELECT 1 FROM outbox_parts p JOIN outbox o ON o.id = p.outbox_id"
            " WHERE p.event_id = ? AND p.content <> '{}' AND o.body <> '' AND o.grows IS NULL"
        )
        return bool(await self._database.scalars(query, (event_id,)))

    async def finish(self, outbox_id: str, event_id: str | None = None) -> None:
        """Mark a removal as done when no edits are left; remove the draft's event, if it has one."""
        async with self._database.transaction() as tx:
            query = (
                "UPDATE outbox SET state = 'sent' WHERE id = ? RETURNING conversation_id, room_id"
            )
            for row in await tx.rows(query, (outbox_id,)):
                if event_id is not None:
                    await self.redact_event(tx, row["conversation_id"], row["room_id"], event_id)
