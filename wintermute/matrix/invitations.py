"""Goes where we are welcome and declines elsewhere, without holding up anything else (X-001)."""

import asyncio
import logging

from wintermute.clock import Clock, until_rung
from wintermute.errors import HomeserverUnavailable, SendRefused
from wintermute.mailbox.rooms import Invitation, KnownRooms
from wintermute.matrix.client import MatrixClient

log = logging.getLogger(__name__)

FIRST_WAIT = 0.5
LONGEST_WAIT = 60.0


class Invitations:
    """Answers stored invitations; a row stays until its room was seen, or it is declined."""

    def __init__(self, client: MatrixClient, known: KnownRooms, clock: Clock) -> None:
        self._client = client
        self._known = known
        self._clock = clock
        self._bell = asyncio.Event()
        self._waits: dict[str, tuple[float, float]] = {}  # of each room: seconds, and until when

    def wake(self) -> None:
        """There may be a new one."""
        self._bell.set()

    async def run(self) -> None:
        """Answer until cancelled. A room that cannot be reached now is tried again later."""
        while True:
            self._bell.clear()
            for invitation in await self._known.invitations():
                _, until = self._waits.get(invitation.room_id, (0.0, 0.0))
                if invitation.state == "pending" and self._clock.monotonic() >= until:
                    await self._answer(invitation)
            next_try = min((until for _, until in self._waits.values()), default=None)
            await self._wait(None if next_try is None else next_try - self._clock.monotonic())

    async def _answer(self, invitation: Invitation) -> None:
        room_id = invitation.room_id
        seconds, _ = self._waits.pop(room_id, (FIRST_WAIT, 0.0))
        try:
            if invitation.welcome:
                await self._client.join(room_id)
                await self._known.joined(invitation)
                log.info("joined room=%s inviter=%s", room_id, invitation.inviter)
            else:
                await self._client.leave(room_id)
                await self._known.declined(invitation)
        except SendRefused as error:  # withdrawn, or the room is gone
            log.warning("invitation void room=%s reason=%s", room_id, error.code)
            await self._known.declined(invitation)
        except HomeserverUnavailable as error:
            seconds = error.retry_after or min(seconds * 2, LONGEST_WAIT)
            self._waits[room_id] = (seconds, self._clock.monotonic() + seconds)
            log.warning("invitation waits room=%s seconds=%s reason=%s", room_id, seconds, error)

    async def _wait(self, seconds: float | None) -> None:
        if seconds is None:
            await self._bell.wait()
        else:
            await until_rung(self._bell, self._clock, seconds)
