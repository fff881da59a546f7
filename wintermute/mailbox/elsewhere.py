"""What was answered by a run whose database is gone: ours is an earlier copy (F-009)."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from wintermute.clock import moment
from wintermute.db import Database, Transaction
from wintermute.db.values import reader


@dataclass(frozen=True, slots=True)
class OpenRow:
    """An inbox row that still wants something done. `edits`: the event whose text it replaces."""

    seq: int
    event_id: str
    conversation_id: str
    room_id: str
    kind: str
    body: str
    sender_name: str
    direct: bool
    is_locked: bool
    sent_at: datetime
    edits: str | None


_open_row = reader(OpenRow)


class Elsewhere:
    """Brings the inbox up to what the rooms say of that time."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def last_sync(self, account: str) -> datetime | None:
        """When these data were last in use; None: never, with this account."""
        row = await self._database.row(
            "SELECT stored_at FROM sync_token WHERE account = ?", (account,)
        )
        return moment(row["stored_at"]) if row else None

    async def open_rows(self, tx: Transaction) -> list[OpenRow]:
        """All that is not dealt with, in order."""
        rows = await tx.rows(
            "SELECT *, 0 AS is_locked FROM inbox WHERE state IN ('waiting', 'casting') UNION ALL"
            " SELECT *, 1 FROM inbox WHERE state IN ('locked', 'untrusted') ORDER BY seq"
        )
        return [_open_row(row) for row in rows]

    async def answered(self, tx: Transaction, rows: Sequence[OpenRow]) -> None:
        """These were answered; of those that cannot be read nothing is kept."""
        await tx.execute(
            "UPDATE inbox SET raw = iif(kind = 'locked', '', raw), not_before = NULL,"
            " state = iif(kind = 'locked', 'ignored', 'answered')"
            " WHERE seq IN (SELECT value FROM json_each(?))",
            (json.dumps([row.seq for row in rows]),),
        )
