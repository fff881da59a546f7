"""How a running cast is ended from outside, by its person or its time, or has to ask anew."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Stop:
    """One cast's end switch. Pressing it cancels whatever the cast is waiting for."""

    def __init__(self) -> None:
        self._scope: asyncio.Timeout | None = None
        self._question: asyncio.Timeout | None = None
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

    def ask_anew(self) -> None:
        """Something that is in view was taken back: a question with it goes out no more."""
        if self._question is not None and not self._question.expired():
            self._question.reschedule(asyncio.get_running_loop().time())

    @asynccontextmanager
    async def asking(self) -> AsyncIterator[asyncio.Timeout]:
        """A block that `ask_anew` leaves with TimeoutError."""
        async with asyncio.timeout(None) as question:
            self._question = question
            try:
                yield question
            finally:
                self._question = None
