"""Rate limit for programs that answer each other at once: such a sender gets one answer a minute (F-048).

Messages that arrive in between are kept as lines of context. The newest becomes a message when the
minute is over.
"""

import json
from dataclasses import asdict, dataclass

from wintermute.db import Database, Transaction

QUICK_MS, SLOW_MS = 2_000, 10_000
MOST_QUICK = 10
RATE_LIMIT_SECONDS = 60.0
HELD = "kind = 'context' AND not_before IS NOT NULL"


@dataclass(frozen=True, slots=True)
class RecentExchange:
    """The recent exchange in a room. `said_ms`: our last message, in the homeserver's time.

    `streak`: consecutive quick answers of `sender`, the last one to our message of `answered_ms`.
    `paced`: the sender who is answered once a minute.
    """

    said_ms: int = 0
    sender: str = ""
    streak: int = 0
    answered_ms: int = 0
    paced: str = ""


def exchange_after(before: RecentExchange, sender: str, at_ms: int) -> RecentExchange:
    """Return the exchange after a message of `sender`."""
    gap = at_ms - before.said_ms
    if sender == before.paced:
        return RecentExchange(before.said_ms) if gap > SLOW_MS else before
    quick = 0 <= gap <= QUICK_MS
    if quick and (sender, before.said_ms) == (before.sender, before.answered_ms):
        return before  # several lines sent at once count as one answer
    streak = before.streak + 1 if quick and sender == before.sender else int(quick)
    paced = sender if streak >= MOST_QUICK else before.paced
    return RecentExchange(before.said_ms, sender, streak, before.said_ms, paced)


class Exchanges:
    """The store of the exchange of each room, and of the messages that wait for the minute to end."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def of_room(self, tx: Transaction, room_id: str) -> RecentExchange:
        """Return the exchange of a room."""
        rows = await tx.scalars("SELECT exchange FROM rooms WHERE room_id = ?", (room_id,))
        return RecentExchange(**json.loads(rows[0])) if any(rows) else RecentExchange()

    async def store_exchange(self, tx: Transaction, room_id: str, exchange: RecentExchange) -> None:
        """Store the exchange of a room."""
        values = (json.dumps(asdict(exchange)), room_id)
        tx.defer("UPDATE rooms SET exchange = ? WHERE room_id = ?", values)

    async def release_held(self, now: float) -> set[str]:
        """Release the newest message of each conversation whose minute is over, with those before it.

        If a message has come since, the held ones are shown as context of that. Returns the
        conversations to wake.
        """
        due = f"SELECT conversation_id FROM inbox WHERE {HELD} AND CAST(not_before AS REAL)"
        range_ = (now, now + RATE_LIMIT_SECONDS)  # a reboot resets the monotonic clock
        found = await self._database.scalars(f"{due} NOT BETWEEN ? AND ?", range_)
        if not found:
            return set()
        there = "conversation_id IN (SELECT value FROM json_each(?))"
        async with self._database.transaction() as tx:
            woken = await tx.scalars(
                "UPDATE inbox SET kind = 'message', state = 'waiting', not_before = NULL"
                " WHERE kind = 'context' AND seq IN (SELECT max(seq) FROM inbox"
                f"  WHERE {there} AND ({HELD} OR kind = 'message' AND state <> 'ignored')"
                "  GROUP BY conversation_id)"
                " RETURNING conversation_id",
                (json.dumps(found),),
            )
            blanked = f"UPDATE inbox SET not_before = NULL WHERE {there} AND {HELD}"
            await tx.execute(blanked, (json.dumps(found),))
        return set(woken)
