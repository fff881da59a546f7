"""Programs that answer each other at once: such a sender is answered once a minute (F-048).

What comes meanwhile is kept as lines of context; the newest becomes a message when the minute is over.
"""

import json
from dataclasses import asdict, dataclass

from wintermute.db import Database, Transaction

QUICK_MS, SLOW_MS = 2_000, 10_000
MOST_QUICK = 10
PACE_SECONDS = 60.0
HELD = "kind = 'context' AND not_before IS NOT NULL"


@dataclass(frozen=True, slots=True)
class TalkPace:
    """The end of what was said in a room. `said_ms`: when we spoke last, by the homeserver's clock.

    `streak`: quick answers of the `sender` in a row, the last to what we said at `answered_ms`;
    `paced`: who is answered once a minute.
    """

    said_ms: int = 0
    sender: str = ""
    streak: int = 0
    answered_ms: int = 0
    paced: str = ""


def heard_after(before: TalkPace, sender: str, at_ms: int) -> TalkPace:
    """The exchange once somebody has spoken."""
    gap = at_ms - before.said_ms
    if sender == before.paced:
        return TalkPace(before.said_ms) if gap > SLOW_MS else before
    quick = 0 <= gap <= QUICK_MS
    if quick and (sender, before.said_ms) == (before.sender, before.answered_ms):
        return before  # several lines at once answer us once
    streak = before.streak + 1 if quick and sender == before.sender else int(quick)
    paced = sender if streak >= MOST_QUICK else before.paced
    return TalkPace(before.said_ms, sender, streak, before.said_ms, paced)


class Exchanges:
    """The store of exchanges, and of the messages that are held."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def of_room(self, tx: Transaction, room_id: str) -> TalkPace:
        """Return the pace of the talk there."""
        found = await tx.scalars("SELECT exchange FROM rooms WHERE room_id = ?", (room_id,))
        return TalkPace(**json.loads(found[0])) if any(found) else TalkPace()

    async def store_exchange(self, tx: Transaction, room_id: str, exchange: TalkPace) -> None:
        """Remember it."""
        kept = json.dumps(asdict(exchange))
        tx.later("UPDATE rooms SET exchange = ? WHERE room_id = ?", (kept, room_id))

    async def take_held(self, now: float) -> set[str]:
        """Have the newest message answered that was held long enough, with those before it.

        Not if somebody has spoken since: they are shown with that. The conversations to wake.
        """
        due = f"SELECT conversation_id FROM inbox WHERE {HELD} AND CAST(not_before AS REAL)"
        range_ = (now, now + PACE_SECONDS)  # after a start of the machine the clock began anew
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
