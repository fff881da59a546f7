"""What was kept for undo goes after its time, so that the store does not grow junk (M-065)."""

from wintermute.changes.store import KEPT, ChangeSets
from wintermute.clock import CheckedClock
from wintermute.db import Database
from wintermute.memory.facts import Facts

DAY = 86_400.0


class Expiry:
    """Looks once at the start and then daily, and never by a time that may not be (F-015)."""

    def __init__(
        self, database: Database, facts: Facts, changes: ChangeSets, clock: CheckedClock
    ) -> None:
        self._database = database
        self._facts = facts
        self._changes = changes
        self._clock = clock

    async def run(self) -> None:
        """Purge what is over, until cancelled."""
        while True:
            await self._clock.believed()
            await self.purge()
            await self._clock.sleep(DAY)

    async def purge(self) -> None:
        """Remove retired facts and changes that can no longer be undone, and copies as old."""
        before = self._clock.now() - KEPT
        async with self._database.transaction() as tx:
            await self._facts.expire(tx, before)
            await self._changes.expire(tx)
        await self._database.expire_copies(before)
