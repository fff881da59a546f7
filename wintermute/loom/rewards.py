"""Rewards: what people thought of an answer, for the turn that gave it (X-026)."""

from typing import Literal

from wintermute.clock import Clock, stamp
from wintermute.db import Database, Transaction
from wintermute.ids import NewId

Reward = Literal[-1, 1]


class Rewards:
    """The store of rewards. One is added later than its turn, and stays (L-048)."""

    def __init__(self, database: Database, clock: Clock, new_id: NewId) -> None:
        self._database = database
        self._clock = clock
        self._new_id = new_id

    async def add(
        self, tx: Transaction, cast_id: str, value: Reward, sender: str, event_id: str
    ) -> bool:
        """Reward the last turn of a cast; False when it has none, or the event was stored before."""
        added = await tx.execute(
            "INSERT INTO rewards (id, turn_id, value, sender, event_id, created_at)"
            " SELECT ?, id, ?, ?, ?, ? FROM turns WHERE cast_id = ? ORDER BY seq DESC LIMIT 1"
            " ON CONFLICT (event_id) DO NOTHING",
            (self._new_id("reward"), value, sender, event_id, stamp(self._clock.now()), cast_id),
        )
        return added == 1
