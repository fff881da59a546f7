"""When the machine's clock was believed the last time, kept so that the next start can tell."""

from wintermute.clock import ClockReading, boot_id, moment, stamp
from wintermute.db import Database


class ClockMarks:
    """The store of that moment."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def last(self) -> ClockReading | None:
        """It, if the machine has not been started since: else the steady clock began anew."""
        row = await self._database.row("SELECT wall, steady, boot FROM clock")
        if row is None or not row["boot"] or row["boot"] != boot_id():
            return None
        return ClockReading(moment(row["wall"]), row["steady"])

    async def keep(self, reading: ClockReading) -> None:
        """Remember it."""
        async with self._database.transaction() as tx:
            await tx.execute(
                "INSERT INTO clock (id, wall, steady, boot) VALUES (1, ?, ?, ?)"
                " ON CONFLICT (id) DO UPDATE SET wall = excluded.wall, steady = excluded.steady,"
                " boot = excluded.boot",
                (stamp(reading.wall), reading.steady, boot_id()),
            )
