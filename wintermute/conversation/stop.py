"""How a running cast is ended from outside: by its person, or by its time."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Stop:
    """One cast's end switch. Pressing it cancels whatever the cast is waiting for."""

    def __init__(self) -> None:
        self._scope: asyncio.Timeout | None = None
        self.pressed = False

    def press(self) -> None:
        """End the cast now; also when it has not begun yet."""
        self.pressed = True
        if self._scope is not None and not self._scope.expired():
            self._scope.reschedule(asyncio.get_running_loop().time())

    def hold(self) -> None:
        """Let no time count until it goes on."""
        if self._scope is not None and not (self.pressed or self._scope.expired()):
            self._scope.reschedule(None)

    def go_on(self, seconds: float) -> None:
        """Time counts again; so much is left."""
        if self._scope is not None and not (self.pressed or self._scope.expired()):
            self._scope.reschedule(asyncio.get_running_loop().time() + max(seconds, 0))

    @asynccontextmanager
    async def within(self, seconds: float) -> AsyncIterator[asyncio.Timeout]:
        """A block that a press, or the end of `seconds`, leaves with TimeoutError."""
        async with asyncio.timeout(0 if self.pressed else max(seconds, 0)) as scope:
            self._scope = scope
            try:
                yield scope
            finally:
                self._scope = None
