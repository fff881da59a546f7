"""Our own sync loop: ask, fill the gaps, store, and only then act (notes/matrix §3)."""

import asyncio
import logging
from collections.abc import Callable

from wintermute.clock import Clock
from wintermute.errors import HomeserverUnavailable, SendRefused
from wintermute.health.store import Health, HealthState
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
OUT_OF_THE_ROOM = frozenset({"M_FORBIDDEN", "M_NOT_FOUND"})
MAY_ALLOW = frozenset({"m.room.power_levels", "m.room.encryption"})
"""Events after which a message that was refused may be let through."""


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
        stored: Callable[[], None],
        clock: Clock,
    ) -> None:
        self._client = client
        self._inbox = inbox
        self._known = known
        self._intake = intake
        self._health = health
        self._wake = wake
        self._stored = stored
        self._clock = clock
        self.ready = asyncio.Event()
        """Set after the first sync: rooms and members are known, our keys were offered."""

    async def run(self) -> None:
        """Sync until cancelled. Raises: LoginRefused when our token is gone."""
        token = await self._inbox.token(self._client.account.user_id)
        wait = 0.0
        while True:
            try:
                # After a failure without a long poll: upkeep must not wait for news.
                token = await self._round(token, LONG_POLL_SECONDS if not wait else 0.0)
                await self._keep_keys()
            except (HomeserverUnavailable, SendRefused) as error:
                asked = error.retry_after if isinstance(error, HomeserverUnavailable) else None
                wait = asked or min(max(wait * 2, 0.5), LONGEST_WAIT)
                log.warning("sync failed seconds=%s reason=%s", wait, error)
                await self._health.note("homeserver", "fail", str(error))
                await self._clock.sleep(wait)
            else:
                wait = 0.0
                await self._health.note("homeserver", "ok", "in sync")

    async def _keep_keys(self) -> None:
        """Upkeep of encryption. Its trouble delays nobody who can be talked to all the same."""
        try:
            await self._client.upkeep()
        finally:
            self.ready.set()
        trouble = self._client.key_trouble
        state: HealthState = "warn" if trouble else "ok"
        await self._health.note("keys", state, trouble or "in order")

    async def _round(self, token: str | None, wait_s: float) -> str:
        first = not self.ready.is_set()
        batch = await self._client.sync(token, full_state=first, wait_s=wait_s)
        invited = {invitation.room_id for invitation in await self._known.invitations()}
        rooms = [
            RoomEvents(
                room.room_id,
                # Before the very first sync nobody asked us anything (notes/matrix §3).
                await self._events(room, token, invited)
                if token or room.room_id in invited
                else (),
                room.encryption,
                room.room_id in invited,
                first or any(event["type"] in MAY_ALLOW for event in room.events),
            )
            for room in batch.joined
        ]
        woken = await self._intake.store(batch, rooms)
        for conversation_id in woken | await self._intake.unlock():
            self._wake(conversation_id)
        self._stored()
        return batch.next_batch

    async def _events(
        self, room: RoomBatch, since: str | None, invited: set[str]
    ) -> tuple[Json, ...]:
        """What is new in a room, gaps filled, never from before our invitation (X-005, X-006)."""
        events = list(room.events)
        us = self._client.account.user_id
        end = None if room.room_id in invited else since
        start = room.prev_batch if room.limited else None
        while start and not invited_in(events, us):
            try:
                older, start = await self._client.page(room.room_id, start, end)
            except SendRefused as error:
                if error.code not in OUT_OF_THE_ROOM:  # the gap is there: try again, do not skip it
                    raise
                log.warning("gap not filled room=%s reason=%s", room.room_id, error.code)
                break
            events = older + events
            if not older:
                break
        return tuple(since_invitation(events, us))
