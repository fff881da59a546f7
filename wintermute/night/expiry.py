"""Expiry of rows that are kept for a limited time, so that the store does not grow (M-065, F-030)."""

from datetime import datetime, timedelta

from wintermute.changes.change_sets import KEPT
from wintermute.clock import CheckedClock
from wintermute.mailbox.inbox import LAST
from wintermute.stores import Stores

DAY = 86_400.0
LINES_KEPT = timedelta(days=7)
"""Age at which a group's line is removed, unless it is still context of a new message."""


class Expiry:
    """Purges at the start and then daily, but never while the clock is in doubt (F-015)."""

    def __init__(self, stores: Stores, clock: CheckedClock) -> None:
        self._stores = stores
        self._clock = clock

    async def run(self) -> None:
        """Purge expired rows daily until cancelled."""
        while True:
            await self._clock.wait_until_trusted()
            await self.purge()
            await self._clock.sleep(DAY)

    async def purge(self) -> None:
        """Purge once."""
        await purge_expired(self._stores, self._clock.now())


async def purge_expired(stores: Stores, now: datetime) -> None:
    """Remove changes too old to undo, database copies of the same age, and old lines of groups."""
    async with stores.database.transaction() as tx:
        await stores.facts.expire(tx, now - KEPT)
        await stores.changes.expire(tx)
        await stores.decisions.expire(tx)
    await stores.database.expire_copies(now)
    for conversation_id in await stores.inbox.groups():
        await _purge_lines(stores, conversation_id, now - LINES_KEPT)


async def _purge_lines(stores: Stores, conversation_id: str, before: datetime) -> None:
    """Remove lines that would no longer be shown with a message that came now (F-030)."""
    async with stores.database.transaction() as tx:
        began = await stores.conversations.began(tx, conversation_id)
    shown = await stores.inbox.context(conversation_id, LAST, began)
    upto, more = shown[0].seq if shown else LAST, 1
    while more:  # others may write in between
        async with stores.database.transaction() as tx:
            more = await stores.inbox.expire_context(tx, conversation_id, before, upto)
