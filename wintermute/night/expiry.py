"""What was kept for a time only goes after it, so that the store does not grow junk (M-065, F-030)."""

from datetime import timedelta

from wintermute.changes.change_sets import KEPT
from wintermute.clock import CheckedClock
from wintermute.mailbox.inbox import LAST
from wintermute.stores import Stores

DAY = 86_400.0
LINES_KEPT = timedelta(days=7)
"""How long a line of a group is kept that is background of nothing any more."""


class Expiry:
    """Looks once at the start and then daily, and never by a time that may not be (F-015)."""

    def __init__(self, stores: Stores, clock: CheckedClock) -> None:
        self._stores = stores
        self._clock = clock

    async def run(self) -> None:
        """Purge what is over, until cancelled."""
        while True:
            await self._clock.believed()
            await self.purge()
            await self._clock.sleep(DAY)

    async def purge(self) -> None:
        """Remove what can no longer be undone, copies as old, and what groups said long ago."""
        now = self._clock.now()
        async with self._stores.database.transaction() as tx:
            await self._stores.facts.expire(tx, now - KEPT)
            await self._stores.changes.expire(tx)
            await self._stores.proposals.expire(tx)
        await self._stores.database.expire_copies(now)
        for conversation_id in await self._stores.inbox.groups():
            await self._purge_lines(conversation_id)

    async def _purge_lines(self, conversation_id: str) -> None:
        """Remove lines that a message which came now would not be shown with (F-030)."""
        before = self._clock.now() - LINES_KEPT
        async with self._stores.database.transaction() as tx:
            began = await self._stores.conversations.began(tx, conversation_id)
        shown = await self._stores.inbox.context(conversation_id, LAST, began)
        upto, more = shown[0].seq if shown else LAST, 1
        while more:  # others may write in between
            async with self._stores.database.transaction() as tx:
                more = await self._stores.inbox.expire_context(tx, conversation_id, before, upto)
