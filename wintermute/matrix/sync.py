"""The sync loop (fetch, fill gaps, store, then act; notes/matrix §3), and the whole Matrix door."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from wintermute.clock import CheckedClock, Clock
from wintermute.config.schema import Matrix
from wintermute.conversation.rooms import Rooms
from wintermute.errors import (
    HomeserverUnavailable,
    KeyStoreBlocked,
    SendRefused,
    WintermuteError,
)
from wintermute.health.health import HealthState
from wintermute.matrix.client import MatrixClient
from wintermute.matrix.inbox import Policy, invited_in, since_invitation, since_known
from wintermute.matrix.intake import Intake
from wintermute.matrix.kept_login import Session, load, save
from wintermute.matrix.membership import Invitations
from wintermute.matrix.outbox import Sender
from wintermute.matrix.people import PeopleStore
from wintermute.matrix.relations import Relations
from wintermute.matrix.rollback import Reconciliation, RollbackDetection
from wintermute.matrix.speaker import MatrixSpeaker
from wintermute.matrix.sync_response import RoomBatch, SyncBatch
from wintermute.matrix.trust import Trust
from wintermute.matrix.verifications import Verifications
from wintermute.messages import Json
from wintermute.stores import Stores

log = logging.getLogger(__name__)

LONG_POLL_SECONDS = 30.0
LONGEST_WAIT = 5.0
TRUST_SECONDS = 1.0
SWEEP_SECONDS = 3600.0
MOST_REFUSALS = 20  # of one room's history: then its gap stays, and everybody else is heard again
TOKEN_REFUSED = (400, 404)
"""Status codes for a token that the homeserver does not know; a broken proxy sends them, too."""
MOST_TOKEN_REFUSALS = 2
OUT_OF_THE_ROOM = frozenset({"M_FORBIDDEN", "M_NOT_FOUND"})
MAY_ALLOW = frozenset({"m.room.power_levels", "m.room.encryption"})
"""Events after which a refused message may be accepted."""


@dataclass(frozen=True, slots=True)
class SyncProgress:
    """Callbacks of a sync: to `wake` a conversation, when all is `stored`, and for each `page`."""

    wake: Callable[[str], None]
    stored: Callable[[], None]
    page: Callable[[], None]


class Sync:
    """Fetches the events of our rooms, beginning where the last run stopped."""

    def __init__(
        self,
        client: MatrixClient,
        stores: Stores,
        intake: Intake,
        copies: RollbackDetection,
        restored: Reconciliation,
        progress: SyncProgress,
        clock: Clock,
    ) -> None:
        self._client = client
        self._stores = stores
        self._intake = intake
        self._copies = copies
        self._restored = restored
        self._progress = progress
        self._clock = clock
        self._keys_wait = self._keys_again = 0.0
        self._page_refusals: Counter[str] = Counter()
        self._token_refusals = 0
        self.caught_up = asyncio.Event()
        """Set when the first sync is stored: messages sent while we were offline are known."""
        self.ready = asyncio.Event()
        """Set after the first sync: rooms and members are known, our keys are uploaded."""

    async def rooms(self) -> Collection[str]:
        """Return the rooms that we are in, as of the last sync."""
        return await self._stores.known.read_up_to()

    async def run(self) -> None:
        """Sync until cancelled. Raises: LoginRefused if our token is invalid."""
        token = await self._stores.inbox.token(self._client.account.user_id)
        wait, trouble = 0.0, ""
        while True:
            try:
                await self._copies.check_at_start()
                poll_s = min(self._keys_wait or LONG_POLL_SECONDS, LONG_POLL_SECONDS)
                token = await self._round(token, 0.0 if wait else poll_s)
            except KeyStoreBlocked as error:  # the same sync is repeated, from our token
                wait = next_wait(wait, error, LONGEST_WAIT)
                await self._stores.health.note("keys", "fail", str(error))
                await self._clock.sleep(wait)
            except (HomeserverUnavailable, SendRefused) as error:
                wait = next_wait(wait, error, LONGEST_WAIT)
                if trouble != str(error):  # log each problem once, not each attempt
                    log.warning("sync failed reason=%s", error)
                trouble = str(error)
                await self._stores.health.note("homeserver", "fail", str(error))
                await self._clock.sleep(wait)
            else:
                if trouble:
                    log.info("in sync again")
                wait, trouble = 0.0, ""
                await self._stores.health.note("homeserver", "ok", "in sync")
                await self._upkeep()

    async def _upkeep(self) -> None:
        """Do the upkeep of encryption; its problems do not delay messages that need none."""
        if self._clock.monotonic() < self._keys_again:
            return
        try:
            await self._client.upkeep()
        except (HomeserverUnavailable, SendRefused) as error:
            self._keys_wait = next_wait(self._keys_wait, error, LONG_POLL_SECONDS)
            trouble = str(error)
        else:
            self._keys_wait = 0.0
            trouble = self._client.keys.trouble
        self._keys_again = self._clock.monotonic() + self._keys_wait
        self._wake_all(await self._intake.settle())
        await self._stores.health.note("device", "ok", self._client.device_line)
        identity = self._client.identity
        await self._stores.health.note("identity", identity.state, identity.text)
        if identity.state == "fail":
            await self._intake.trust.notify_owner(identity)
        elif identity.signed:
            await self._intake.trust.in_order(self._client.keys.identity.master)
        self.ready.set()
        state: HealthState = "warn" if trouble else "ok"
        if blocked := self._client.keys.store.trouble:
            state, trouble = "fail", blocked
        await self._stores.health.note("keys", state, trouble or "in order")

    async def follow_trust(self, clock: CheckedClock) -> None:
        """Poll for identities trusted by a command (X-035), and for messages held long enough (F-048).

        It has a clock of its own: reading a file is no sign that the homeserver answers.
        """
        await self.ready.wait()
        swept = -SWEEP_SECONDS
        while True:
            if clock.doubt is None and clock.monotonic() - swept >= SWEEP_SECONDS:
                await self._intake.sweep()
                swept = clock.monotonic()
            if await self._intake.trust.reread():
                self._wake_all(await self._intake.reconsider())
            if held := await self._intake.exchanges.release_held(clock.monotonic()):
                self._wake_all(held)
            await clock.sleep(TRUST_SECONDS)

    def _wake_all(self, conversations: set[str]) -> None:
        for conversation_id in conversations:
            self._progress.wake(conversation_id)
        self._progress.stored()

    async def _round(self, token: str | None, wait_s: float) -> str:
        first = not self.ready.is_set()
        fresh = self._token_refusals >= MOST_TOKEN_REFUSALS
        batch = await self._fetch(token, wait_s, first=first, fresh=fresh)
        # First, as device queries and filling gaps may fail for a long time.
        if narrowed := await self._intake.narrow(batch):
            self._wake_all(narrowed)
        batch = await self._client.take_keys(batch)
        seen: dict[str, set[str]] = {}
        if fresh:  # trust levels depend on the current devices
            await self._client.keys.learn_devices()
            seen, token = await self._stores.known.read_up_to(), ""
            left = seen.keys() - {room.room_id for room in batch.joined}
            batch = replace(batch, left=(*batch.left, *left))
        invited = {invitation.room_id for invitation in await self._stores.known.invitations()}
        rooms = [
            await self._room(room, token, room.room_id in invited, first or fresh, seen)
            for room in batch.joined
        ]
        woken = await self._intake.store(batch, rooms, self._restored.settle if first else None)
        new_keys = first or batch.to_device > 0
        self._wake_all(woken | await self._intake.reconsider() if new_keys else woken)
        if (
            not new_keys and await self._intake.notify_undecryptable()
        ):  # answers do not wait for this
            self._progress.stored()
        self._token_refusals = 0
        self.caught_up.set()
        await self._copies.check_epoch(batch, first=first)
        if not first:
            said = {r.room_id: r.events for r in batch.joined if r.room_id not in invited}
            await self._copies.note_foreign_message(await self._restored.unknown(said))
        return batch.next_batch

    async def _fetch(
        self, token: str | None, wait_s: float, *, first: bool, fresh: bool
    ) -> SyncBatch:
        """Sync from a token, or without one if the homeserver has refused it repeatedly.

        If that is refused as well, the token was not the cause: it is used again (F-058).
        """
        since, anew = (None, True) if fresh else (token, first)
        try:
            return await self._client.fetch_sync(since, full_state=anew, wait_s=wait_s)
        except (HomeserverUnavailable, SendRefused) as error:
            if fresh == (error.status in TOKEN_REFUSED):
                self._token_refusals = 0
            elif token and not fresh:
                self._token_refusals += 1
                log.warning("sync token refused times=%s reason=%s", self._token_refusals, error)
            raise

    async def _room(
        self,
        room: RoomBatch,
        since: str | None,
        invited: bool,
        first: bool,
        seen: Mapping[str, Collection[str]],
    ) -> RoomBatch:
        """Return a room with all its new events, oldest first; `seen`: the last known events of each room."""
        # Events before the very first sync are not for us (notes/matrix §3).
        asked, end = since is not None or invited, None if invited else since
        events = await self._events(room, end, seen.get(room.room_id, ())) if asked else ()
        changed = any(event["type"] in MAY_ALLOW for event in (*room.events, *events))
        retry = first or invited or changed
        return replace(room, events=events, invited=invited, retry=retry)

    async def _events(
        self, room: RoomBatch, end: str | None, seen: Collection[str]
    ) -> tuple[Json, ...]:
        """Return the new events of a room, with gaps filled, none from before our invitation (X-005, X-006)."""
        events = list(room.events)
        us = self._client.account.user_id
        start = room.prev_batch if room.limited else None
        while start and not invited_in(events, us) and since_known(events, seen) == events:
            try:
                older, start = await self._client.page(room.room_id, start, end)
                self._progress.page()
            except SendRefused as error:
                self._page_refusals[room.room_id] += 1
                patient = self._page_refusals[room.room_id] < MOST_REFUSALS
                if patient and error.code not in OUT_OF_THE_ROOM:
                    raise  # try again before the gap is skipped
                log.warning("gap not filled room=%s reason=%s", room.room_id, error.code)
                break
            events = older + events
            if not older:
                break
        self._page_refusals.pop(room.room_id, None)
        return tuple(since_invitation(since_known(events, seen), us))


def next_wait(last: float, error: WintermuteError, most: float) -> float:
    """Return the seconds until the next attempt: as the homeserver asked, else doubled each time."""
    asked = error.retry_after if isinstance(error, HomeserverUnavailable) else None
    return asked or min(max(last * 2, 0.5), most)


@dataclass(frozen=True, slots=True)
class Door:
    """All parts of the Matrix door."""

    sync: Sync
    invitations: Invitations
    sender: Sender
    speaker: MatrixSpeaker
    intake: Intake
    verifications: Verifications
    clock: CheckedClock

    def parts(self) -> list[Coroutine[Any, Any, None]]:
        """Return the tasks to run until cancelled; the sender starts later, see `send`."""
        return [
            self.sync.run(),
            self.sync.follow_trust(self.clock),
            self.invitations.run(),
            self.speaker.run(),
            self._verify(),
        ]

    async def _verify(self) -> None:
        await self.sync.ready.wait()
        await self.verifications.run()

    async def send(self, session: Session, folder: Path) -> None:
        """Send until cancelled; to be started when the members of the rooms are known."""
        if session.keys_lost:
            await self.intake.notify_keys_lost()
            save(folder, replace(load(folder) or session, keys_lost=False))  # its token may be new
        await self.sender.run()


def open_door(
    settings: Matrix,
    policy: Policy,
    client: MatrixClient,
    stores: Stores,
    speaker: MatrixSpeaker,
    sender: Sender,
    verifications: Verifications,
    copies: RollbackDetection,
    work: Rooms,
    pulse: Callable[[], None],
    clocks: tuple[CheckedClock, Clock],
) -> Door:
    """Build the receiving side; `pulse` is called at each sync and each page.

    `clocks`: the second one counts the time between attempts to reach the homeserver.
    """
    clock, attempts = clocks
    trust = Trust(stores, client, PeopleStore(stores.database, clock), policy)
    intake = Intake(
        stores, client, Relations(stores, work), trust, verifications, policy, settings, clock
    )
    invitations = Invitations(client, stores.known, clock)

    def stored() -> None:
        sender.wake()
        invitations.wake()
        pulse()

    restored = Reconciliation(client, stores, policy, clock)
    progress = SyncProgress(work.wake, stored, page=pulse)
    sync = Sync(client, stores, intake, copies, restored, progress, attempts)
    return Door(sync, invitations, sender, speaker, intake, verifications, clock)
