"""Notices: messages sent once per key, or shown until a message has its answer."""

from datetime import datetime, timedelta

from wintermute.clock import Clock, stamp
from wintermute.config.secrets import UNHIDDEN, Redaction
from wintermute.db import Database, Row, Transaction
from wintermute.mailbox.outbox import ANYBODY, Outbox
from wintermute.mailbox.streaming import REMOVED_DRAFT

EVER = timedelta(days=3650)
"""The period of a notice that is sent only once."""
SHOWN = (
    "SELECT o.id, o.conversation_id, o.room_id, p.event_id FROM outbox o JOIN outbox_parts p"
    " ON p.outbox_id = o.id AND p.event_id IS NOT NULL WHERE o.awaits = ?"
    f" AND o.problem IS NOT '{REMOVED_DRAFT}'"
)
EDITS = (
    "SELECT o.conversation_id, o.room_id, p.event_id FROM outbox o JOIN outbox_parts p"
    " ON p.outbox_id = o.id AND p.event_id IS NOT NULL WHERE o.room_id = ? AND o.changes = ?"
)
GREW = (
    "EXISTS (SELECT 1 FROM outbox d JOIN outbox_parts q ON q.outbox_id = d.id AND q.event_id IS NOT NULL"
    " WHERE d.seq > o.seq AND d.grows = coalesce((SELECT edits FROM inbox WHERE event_id = o.awaits),"
    "  o.awaits))"
)
"""SQL: an answer to the message has begun to grow since."""
OVER = SHOWN.replace("o.awaits = ?", "o.awaits IS NOT NULL") + (
    " AND NOT EXISTS (SELECT 1 FROM inbox i WHERE i.event_id = o.awaits"
    f"  AND i.state IN ('waiting', 'casting') AND NOT {GREW})"
    " AND NOT EXISTS (SELECT 1 FROM outbox a WHERE a.room_id = o.room_id AND a.state = 'waiting'"
    f"  AND a.answers = o.awaits AND NOT {GREW})"
)


class Notices:
    """The store of sent notices."""

    def __init__(
        self, outbox: Outbox, database: Database, clock: Clock, redact: Redaction = UNHIDDEN
    ) -> None:
        self._outbox = outbox
        self._database = database
        self._clock = clock
        self._redact = redact

    async def notice_once(
        self,
        tx: Transaction,
        key: str,
        every: timedelta,
        conversation_id: str,
        body: str,
        *,
        meant_for: str = ANYBODY,
        unasked: bool = False,
    ) -> bool:
        """Send a notice unless one with this `key` was sent within `every`; `unasked`: not in quiet hours."""
        now = self._clock.now()
        fresh = await tx.execute(
            "INSERT INTO notices (key, said_at) VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET"
            " said_at = excluded.said_at WHERE notices.said_at <= ? OR notices.said_at > ?",
            (key, stamp(now), stamp(now - every), stamp(now)),  # the clock may have been set back
        )
        if fresh:
            await self._outbox.enqueue(
                *(tx, conversation_id, body), kind="notice", meant_for=meant_for, unasked=unasked
            )
        return bool(fresh)

    async def say_until_answered(
        self, tx: Transaction, conversation_id: str, event_id: str, body: str
    ) -> None:
        """Send a notice that is removed when a message has its answer."""
        notice = await self._outbox.enqueue(
            tx, conversation_id, body, kind="notice", meant_for=ANYBODY
        )
        await tx.execute("UPDATE outbox SET awaits = ? WHERE id = ?", (event_id, notice))

    async def waits_for(self, tx: Transaction, event_id: str) -> bool:
        """Check if there is a notice about this unanswered message."""
        return await tx.row("SELECT 1 FROM outbox WHERE awaits = ?", (event_id,)) is not None

    async def change_text(self, tx: Transaction, event_id: str, body: str) -> bool:
        """Change the text of such a notice; False if it is just being sent."""
        changed = await tx.execute(
            "UPDATE outbox SET body = ? WHERE awaits = ? AND state = 'waiting' AND NOT EXISTS"
            " (SELECT 1 FROM outbox_parts WHERE outbox_id = outbox.id)",
            (self._redact(body), event_id),
        )
        for row in () if changed else await tx.rows(SHOWN, (event_id,)):
            await self._change(tx, row, body)
            changed += 1
        return bool(changed)

    async def end_waits(self) -> bool:
        """Remove notices whose messages are answered, sent or growing; return True if there were any.

        Also if there will be no answer: the message was stopped, redacted or edited.
        """
        if not await self._database.rows(OVER):
            return False
        async with self._database.transaction() as tx:
            for row in await tx.rows(OVER):
                await tx.execute("UPDATE outbox SET awaits = NULL WHERE id = ?", (row["id"],))
                for edit in await tx.rows(EDITS, (row["room_id"], row["event_id"])):
                    await self._change(tx, edit, "")
                await self._change(tx, row, "")
        return True

    async def noticed(self, tx: Transaction, prefix: str) -> list[str]:
        """Return the keys of sent notices that begin with `prefix`."""
        return await tx.scalars(
            "SELECT key FROM notices WHERE substr(key, 1, ?) = ? ORDER BY key",
            (len(prefix), prefix),
        )

    async def notice_again(
        self, tx: Transaction, prefix: str, before: datetime | None = None
    ) -> None:
        """Allow notices with this key prefix to be sent again; `before`: only those sent until then."""
        await tx.execute(
            "DELETE FROM notices WHERE substr(key, 1, ?) = ? AND said_at < coalesce(?, '~')",
            (len(prefix), prefix, stamp(before) if before else None),
        )

    async def _change(self, tx: Transaction, row: Row, body: str) -> None:
        where, event_id = row["conversation_id"], row["event_id"]
        await self._outbox.change(tx, where, row["room_id"], event_id, body)
