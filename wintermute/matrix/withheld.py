"""Keys that we do not get, by the word of whose client has them: kept to say why a message stays locked."""

from datetime import timedelta

from wintermute.clock import Clock, stamp
from wintermute.db import Database, Transaction
from wintermute.matrix.sieve import Withheld

KEPT = timedelta(days=1)  # nobody is told of what is locked for longer
MOST = 200  # of one sender


class WithheldKeys:
    """The store of these words. Only the cause is kept."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def keep(self, tx: Transaction, word: Withheld) -> None:
        """Keep a word, and of its sender the newest ones only."""
        now = self._clock.now()
        await tx.execute(
            "INSERT INTO withheld (sender, room_id, session_id, sender_key, code, received_at)"
            " VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET"
            " code = excluded.code, received_at = excluded.received_at",
            (word.sender, word.room_id, word.session_id, word.sender_key, word.code, stamp(now)),
        )
        await tx.execute("DELETE FROM withheld WHERE received_at < ?", (stamp(now - KEPT),))
        await tx.execute(
            "DELETE FROM withheld WHERE sender = :sender AND received_at < (SELECT received_at"
            " FROM withheld WHERE sender = :sender ORDER BY received_at DESC LIMIT 1 OFFSET :most)",
            {"sender": word.sender, "most": MOST - 1},
        )

    async def code(self, sender: str, room_id: str, session_id: str, sender_key: str) -> str:
        """Why we do not have the key of a session; "" if nobody said. Any device's without `sender_key`."""
        row = await self._database.row(
            "SELECT code FROM withheld WHERE sender = :sender AND (room_id = :room AND"
            " session_id = :session OR room_id = '') AND :key IN (sender_key, '')"
            " ORDER BY room_id DESC, received_at DESC LIMIT 1",
            {"sender": sender, "room": room_id, "session": session_id, "key": sender_key},
        )
        return str(row["code"]) if row else ""
