"""The long poll of the sync loop, which is cut short when the newest is wanted at once."""

import asyncio
import secrets
from collections.abc import Awaitable, Callable

from wintermute.messages import Json

SHORT_MS = 100


class Poll:
    """Counts syncs, so that others can wait for one that began after something happened (F-002)."""

    def __init__(self) -> None:
        # Synapse repeats an answer to the same request for two minutes, to the next run as well:
        # so no short wait is like the one before.
        self.begun = secrets.randbelow(SHORT_MS)
        """The number of the newest sync that has begun."""
        self._heard = -1
        self._wanted = False
        self._scope: asyncio.Timeout | None = None
        self._bell = asyncio.Event()

    async def round(self, asked: Callable[[int], Awaitable[Json]], wait_ms: int) -> Json:
        """The answer to `asked`, which is told how long it may wait for news, in milliseconds."""
        self.begun += 1
        if wait_ms > SHORT_MS and not self._wanted:
            try:
                async with asyncio.timeout(None) as scope:
                    self._scope = scope
                    return await asked(wait_ms)
            except TimeoutError:
                if not scope.expired():
                    raise
                self.begun += 1
            finally:
                self._scope = None
        return await asked(self.begun % SHORT_MS)

    def heard(self) -> None:
        """What the newest sync brought is known now."""
        self._heard, self._wanted = self.begun, False
        bell, self._bell = self._bell, asyncio.Event()
        bell.set()

    async def heard_since(self, number: int) -> None:
        """Wait until a sync has ended that began after that one; it is asked for at once."""
        while self._heard <= number:
            if self._scope is not None and not self._wanted:
                self._scope.reschedule(asyncio.get_running_loop().time())
            self._wanted = True
            await self._bell.wait()
