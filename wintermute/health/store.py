"""The state of each part, since when, and a few counters."""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from wintermute.clock import Clock, moment, stamp
from wintermute.db import Database, Transaction

HealthState = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class PartHealth:
    """One part's state. `since` is when it came into this state."""

    part: str
    state: HealthState
    detail: str
    since: datetime


class Health:
    """The store of states and counters. Writes happen on change only."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._known: dict[str, tuple[HealthState, str]] = {}

    async def note(self, part: str, state: HealthState, detail: str = "") -> None:
        """Record a part's state; free of cost when nothing changed."""
        if self._known.get(part) == (state, detail):
            return
        kept = await self.part(part)
        if kept is not None and (kept.state, kept.detail) == (state, detail):
            self._known[part] = (state, detail)
            return
        async with self._database.transaction() as tx:
            await self.note_in(tx, part, state, detail)
        self._known[part] = (state, detail)

    async def note_in(
        self, tx: Transaction, part: str, state: HealthState, detail: str = ""
    ) -> None:
        """As `note`, within a transaction."""
        now = stamp(self._clock.now())
        await tx.execute(
            "INSERT INTO health (part, state, detail, since, updated_at) VALUES (?, ?, ?, ?, ?)"
            " ON CONFLICT (part) DO UPDATE SET detail = excluded.detail,"
            " updated_at = excluded.updated_at, state = excluded.state,"
            " since = CASE WHEN health.state = excluded.state THEN health.since"
            " ELSE excluded.since END",
            (part, state, detail, now, now),
        )
        self._known.pop(part, None)  # the transaction may yet fail

    async def count_in(self, tx: Transaction, name: str, by: int) -> None:
        """Add to a counter."""
        if by:
            await tx.execute(
                "INSERT INTO counters (name, value) VALUES (?, ?)"
                " ON CONFLICT (name) DO UPDATE SET value = value + excluded.value",
                (name, by),
            )

    async def failed(self, name: str) -> None:
        """Count one failure of something that is done without."""
        async with self._database.transaction() as tx:
            await self.count_in(tx, f"{name} failed", 1)

    async def parts(self) -> list[PartHealth]:
        """Every part's state."""
        rows = await self._database.rows("SELECT * FROM health ORDER BY part")
        return [
            PartHealth(row["part"], row["state"], row["detail"], moment(row["since"]))
            for row in rows
        ]

    async def part(self, name: str) -> PartHealth | None:
        """One part's state."""
        return next((part for part in await self.parts() if part.part == name), None)
