"""Our own sync loop: ask, fill the gaps, store, and only then act (notes/matrix §3)."""

import asyncio
import logging
from collections.abc import Callable

from wintermute.clock import Clock
from wintermute.errors import HomeserverUnavailable, SendRefused
from wintermute.health.store import Health
from wintermute.mailbox.inbox import Inbox
from wintermute.mailbox.rooms import KnownRooms
from wintermute.matrix.client import MatrixClient
from wintermute.matrix.inbox import invited_in, since_invitation
from wintermute.matrix.intake import Intake, RoomEvents
from wintermute.matrix.sieve import RoomBatch
from wintermute.messages import Json

log = logging.getLogger(__name__)

LONG_POLL_SECONDS = 30.0
LONGEST_WAIT = 5.0


class Sync:
    """Takes in what happens in our rooms, from where the last run stopped."""

    def __init__(
        self,
        client: MatrixClient,
        inbox: Inbox,
        known: KnownRooms,
        intake: Intake,
        health: Health,
        wake: Callable[[str], None],
        spoken: Callable[[], None],
        clock: Clock,
    ) -> None:
        self._client = client
        self._inbox = inbox
        self._known = known
        self._intake = intake
        self._health = health
        self._wake = wake
        self._spoken = spoken
        self._clock = clock
        self.ready = asyncio.Event()
        """Set after the first sync: rooms and members are known, our keys are uploaded."""

    async def run(self) -> None:
        """Sync until cancelled. Raises: LoginRefused when our token is gone."""
        token = await self._inbox.token(self._client.account.user_id)
        wait = 0.0
        while True:
            try:
                # After a failure without a long poll: what `_after` has to do must not wait for news.
                token = await self._round(token, LONG_POLL_SECONDS if not wait else 0.0)
                await self._after()
            except HomeserverUnavailable as error:
                wait = error.retry_after or min(max(wait * 2, 0.5), LONGEST_WAIT)
                log.warning("sync failed seconds=%s reason=%s", wait, error)
                await self._health.note("homeserver", "fail", str(error))
                await self._clock.sleep(wait)
            except (
                SendRefused
            ) as error:  # the request itself: nothing we could mend by retrying fast
                log.error("sync refused reason=%s", error)  # noqa: TRY400
                await self._health.note("homeserver", "fail", str(error))
                await self._clock.sleep(LONGEST_WAIT)
            else:
                wait = 0.0
                self.ready.set()
                await self._health.note("homeserver", "ok", "in sync")

    async def _round(self, token: str | None, wait_s: float) -> str:
        first = not self.ready.is_set()
        batch = await self._client.sync(token, full_state=first, wait_s=wait_s)
        fresh = {invitation.room_id for invitation in await self._known.invitations()}
        rooms = [
            RoomEvents(
                room.room_id,
                # Before the very first sync nobody asked us anything (notes/matrix §3).
                await self._events(room, token, fresh) if token or room.room_id in fresh else (),
                room.encryption,
                room.room_id in fresh,
            )
            for room in batch.joined
        ]
        for conversation_id in await self._intake.store(batch, rooms):
            self._wake(conversation_id)
        self._spoken()
        return batch.next_batch

    async def _events(
        self, room: RoomBatch, since: str | None, fresh: set[str]
    ) -> tuple[Json, ...]:
        """What is new in a room, gaps filled, never from before our invitation (X-005, X-006)."""
        events = list(room.events)
        us = self._client.account.user_id
        invited = room.room_id in fresh
        start = room.prev_batch if room.limited else None
        while start and not invited_in(events, us):
            try:
                older, start = await self._client.page(
                    room.room_id, start, None if invited else since
                )
            except SendRefused as error:  # put out of the room meanwhile
                log.warning("gap not filled room=%s reason=%s", room.room_id, error.code)
                break
            events = older + events
            if not older:
                break
        return tuple(since_invitation(events, us))

    async def _after(self) -> None:
        """What wants doing after each sync, in an order that loses nothing."""
        await self._client.upkeep()
        await self._answer_invitations()
        for conversation_id in await self._intake.unlock():
            self._wake(conversation_id)
        self._spoken()

    async def _answer_invitations(self) -> None:
        """Go where we are welcome, decline elsewhere; a row stays until its room was seen (X-001)."""
        for invitation in await self._known.invitations():
            if invitation.state == "joined":
                continue
            try:
                if invitation.welcome:
                    await self._client.join(invitation.room_id)
                    await self._known.joined(invitation.room_id)
                    log.info("joined room=%s inviter=%s", invitation.room_id, invitation.inviter)
                else:
                    await self._client.leave(invitation.room_id)
                    await self._intake.forget_invitation(invitation.room_id)
            except SendRefused as error:  # withdrawn meanwhile
                log.warning("invitation void room=%s reason=%s", invitation.room_id, error.code)
                await self._intake.forget_invitation(invitation.room_id)
