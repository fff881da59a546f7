"""Goes where we are welcome and declines elsewhere, without holding up anything else (X-001)."""

import asyncio
import logging

from wintermute.errors import HomeserverUnavailable, SendRefused
from wintermute.mailbox.rooms import Invitation, KnownRooms
from wintermute.matrix.client import MatrixClient

log = logging.getLogger(__name__)

FIRST_WAIT = 0.5
LONGEST_WAIT = 60.0


class Invitations:
    """Answers stored invitations; a row stays until its room was seen, or it is declined."""

    def __init__(self, client: MatrixClient, known: KnownRooms) -> None:
        self._client = client
        self._known = known
        self._bell = asyncio.Event()

    def wake(self) -> None:
        """There may be a new one."""
        self._bell.set()

    async def run(self) -> None:
        """Answer until cancelled. A room that cannot be reached now is tried again later."""
        again = FIRST_WAIT
        while True:
            self._bell.clear()
            failed = False
            for invitation in await self._known.invitations():
                if invitation.state == "pending":
                    failed |= not await self._answer(invitation)
            again = min(again * 2, LONGEST_WAIT) if failed else FIRST_WAIT
            await self._wait(again if failed else None)

    async def _answer(self, invitation: Invitation) -> bool:
        room_id = invitation.room_id
        try:
            if invitation.welcome:
                await self._client.join(room_id)
                await self._known.joined(room_id)
                log.info("joined room=%s inviter=%s", room_id, invitation.inviter)
            else:
                await self._client.leave(room_id)
                await self._known.declined(room_id)
        except SendRefused as error:  # withdrawn, or the room is gone
            log.warning("invitation void room=%s reason=%s", room_id, error.code)
            await self._known.declined(room_id)
        except HomeserverUnavailable as error:
            log.warning("invitation waits room=%s reason=%s", room_id, error)
            return False
        return True

    async def _wait(self, seconds: float | None) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._bell.wait()
        except TimeoutError:
            return
