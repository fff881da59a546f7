"""Takes messages of ours away with their edits, which stay readable where only the event goes (X-054).

    a person redacts an event of ours   ─▶ nothing of its rows is kept or sent, its edits go
    we take an event away               ─▶ a redaction of it (`Outbox.change`), its edits go
    a draft that may be on its way      ─▶ a row that names the draft, until its event is known

Edits go by a row with `edits_of`, one after the other until there are none: a kill leaves none behind.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from wintermute.db import Database, Transaction
from wintermute.db.values import reader
from wintermute.mailbox.growing import TAKEN_AWAY
from wintermute.mailbox.outbox import ANSWERS, Outbox, Spoken
from wintermute.text import plain

PLACE = (  # which row owns an event, or the one that it edits
    "SELECT w.conversation_id, p.n, coalesce("
    " (SELECT outbox_id FROM outbox_parts WHERE event_id = w.changes AND w.body <> ''),"
    " iif(p.n = 0 AND p.content ->> '$.\"m.relates_to\".rel_type' = 'm.replace', w.continues, NULL),"
    " w.id) AS owner FROM outbox_parts p JOIN outbox w ON w.id = p.outbox_id"
    " WHERE p.event_id = ? AND w.room_id = ? ORDER BY w.seq DESC LIMIT 1"
)
OWNERS = "(SELECT outbox_id FROM outbox_parts WHERE event_id = :event UNION SELECT :owner)"
SHOWN = (  # the rows whose text an event of ours has had: an answer below its draft is none
    f"SELECT id, cast_id, body, meant_for FROM outbox WHERE id IN {OWNERS} OR changes = :event"
    f" OR continues IN {OWNERS} AND NOT EXISTS (SELECT 1 FROM outbox_parts WHERE outbox_id = outbox.id"
    "  AND n = 0 AND content ->> '$.\"m.relates_to\".rel_type' IS NOT 'm.replace')"
)
GROWING = (  # drafts of messages whose answer has no other text in the room yet
    "SELECT id, grows FROM outbox o WHERE (id = :owner OR grows IN (SELECT value FROM json_each(:events)"
    "  UNION SELECT edits FROM inbox WHERE event_id IN (SELECT value FROM json_each(:events))))"
    f" AND grows IS NOT NULL AND problem IS NOT '{TAKEN_AWAY}' AND NOT EXISTS (SELECT 1 FROM outbox a"
    "  JOIN outbox_parts p ON p.outbox_id = a.id AND p.event_id IS NOT NULL WHERE a.continues = o.id)"
)
ANEW = (  # messages whose answer may be growing in that of an earlier wording
    "SELECT DISTINCT i.event_id FROM outbox a JOIN inbox v ON v.event_id = a.answers"
    " JOIN inbox i ON i.edits = coalesce(v.edits, v.event_id) AND i.seq > v.seq"
    " WHERE coalesce(a.continues, a.id) = ? AND i.state = 'casting'"
)

LISTS = (
    f"SELECT seq FROM outbox WHERE cast_id IS NULL AND {ANSWERS.of} AND EXISTS (SELECT 1"
    "  FROM json_each(:lines) WHERE instr(char(10) || body || char(10), value))"
)


@dataclass(frozen=True, slots=True)
class Retracted:
    """Rows of ours that somebody took back. `growing`: the message that they were about to answer.

    `perhaps`: messages of which that is so if any of their answer is to be seen.
    """

    conversation_id: str
    said: tuple[Spoken, ...]
    growing: str = ""
    perhaps: tuple[str, ...] = ()


_spoken = reader(Spoken)


class Retractions:
    """The store of what is to be taken away, among what must be said."""

    def __init__(self, outbox: Outbox, database: Database) -> None:
        self._outbox = outbox
        self._database = database

    async def redacted(self, tx: Transaction, room_id: str, event_id: str) -> Retracted | None:
        """Somebody redacted an event of ours: keep nothing of its rows, and take its edits away.

        Whoever redacts the newest of its edits means its text, so the event goes as well.
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
        await tx.execute(query, asked | {"problem": TAKEN_AWAY})
        if event != event_id:
            await self._outbox.change(tx, *where, event, "")
        await self._outbox.withdraw(tx, *where, event)
        found = "".join(row["grows"] for row in growing)
        kept = tuple(each for each in said if each.body)
        return Retracted(where[0], kept, found, tuple(anew))

    async def take_away(
        self, tx: Transaction, conversation_id: str, room_id: str, event_id: str
    ) -> None:
        """Take an event of ours away, and its edits, also one that was to close it."""
        for row in await tx.scalars("SELECT id FROM outbox WHERE changes = ?", (event_id,)):
            await self._outbox.drop(tx, row)
        await self._outbox.change(tx, conversation_id, room_id, event_id, "")
        await self._outbox.withdraw(tx, conversation_id, room_id, event_id)

    async def take_drafts(self, tx: Transaction, events: Sequence[str]) -> None:
        """Take away what was growing for these messages, and was taken back.

        Where it grew in the answer to an earlier wording, that has its text again.
        """
        asked = {"owner": None, "events": json.dumps(list(events))}
        for row in await tx.rows(GROWING, asked):
            await self.take_draft(tx, row["id"])

    async def take_draft(self, tx: Transaction, outbox_id: str) -> None:
        """Take a draft away, also one of which is not known yet if it came into its room."""
        await self._outbox.drop(tx, outbox_id)
        rows = await tx.rows(
            "UPDATE outbox SET problem = ? WHERE id = ? RETURNING conversation_id, room_id,"
            " (SELECT coalesce(event_id, outbox_id) FROM outbox_parts WHERE outbox_id = id AND n = 0"
            "  AND attempts > 0) AS event",
            (TAKEN_AWAY, outbox_id),
        )
        for row in [each for each in rows if each["event"]]:
            take = self._outbox.withdraw if row["event"] == outbox_id else self.take_away
            owners = "SELECT 1 FROM outbox_parts WHERE event_id = ? AND outbox_id <> ?"
            if await tx.exists(owners, (row["event"], outbox_id)):  # a former answer, which stays
                take = self._outbox.withdraw
            await take(tx, row["conversation_id"], row["room_id"], row["event"])

    async def lists(self, texts: Sequence[str], scopes: Sequence[str]) -> list[tuple[int]]:
        """Find answers to commands in which one of these memories ends a line, however short (M-030)."""
        around = (("\n- ", "\n"), ("\n- ", " ("), (": ", "\n"), ("memory ", "\n"))
        lines = [f"{before}{plain(text)}{after}" for text in texts for before, after in around]
        asked = {"lines": json.dumps(lines), "scopes": json.dumps(list(scopes))}
        return [(int(row["seq"]),) for row in await self._database.rows(LISTS, asked)]

    async def event_of(self, outbox_id: str) -> str | None:
        """The event that a row has become, as far as that is known."""
        query = "SELECT event_id FROM outbox_parts WHERE outbox_id = ? AND n = 0"
        return "".join(filter(None, await self._database.scalars(query, (outbox_id,)))) or None

    async def stays(self, event_id: str) -> bool:
        """Decide if an edit is what we say there, and not a step on the way to that."""
        query = (
            "SELECT 1 FROM outbox_parts p JOIN outbox o ON o.id = p.outbox_id"
            " WHERE p.event_id = ? AND p.content <> '{}' AND o.body <> '' AND o.grows IS NULL"
        )
        return bool(await self._database.scalars(query, (event_id,)))

    async def done(self, outbox_id: str, event_id: str | None = None) -> None:
        """A row that names a draft is over; the draft's event, if there is one, goes with its edits.

        So is a row of which no edits are left.
        """
        async with self._database.transaction() as tx:
            query = (
                "UPDATE outbox SET state = 'sent' WHERE id = ? RETURNING conversation_id, room_id"
            )
            for row in await tx.rows(query, (outbox_id,)):
                if event_id is not None:
                    await self.take_away(tx, row["conversation_id"], row["room_id"], event_id)
