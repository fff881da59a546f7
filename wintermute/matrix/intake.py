"""Stores what a sync brought: every row, and the token, in one transaction (DESIGN §3, hop 3)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

from wintermute.clock import Clock
from wintermute.db import Database, Transaction
from wintermute.health.store import Health
from wintermute.loom.conversations import Conversations
from wintermute.mailbox.inbox import Inbox, Locked, State
from wintermute.mailbox.outbox import Outbox
from wintermute.mailbox.rooms import KnownRooms
from wintermute.matrix.client import MatrixClient
from wintermute.matrix.inbox import (
    Account,
    Policy,
    RoomView,
    inviter,
    is_direct,
    read_event,
    views,
)
from wintermute.matrix.sieve import SyncBatch, is_malformed_message
from wintermute.messages import Incoming, Json

MOST_BOT_EXCHANGES = 3
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
KEYS_GRACE = timedelta(seconds=30)  # a key may come a sync later than its message

ONLY_ENCRYPTED = (
    "I only answer encrypted messages, and this one was not. Please turn on encryption in this "
    "room's settings, or set `matrix.encryption: preferred` in my configuration."
)
LOCKED = (
    "I could not decrypt a message here. Sending it again usually helps; I read the old one as soon "
    "as its key reaches me."
)
KEYS_LOST = (
    "My encryption keys were lost, so I am here with a new device. I cannot read encrypted messages "
    "from before; if you verified me, please do so again."
)


@dataclass(frozen=True, slots=True)
class RoomEvents:
    """What is new in one room, oldest first.

    `invited`: an invitation is not settled yet. `retry`: what was refused here may work now.
    """

    room_id: str
    events: tuple[Json, ...]
    encryption: bool
    invited: bool
    retry: bool


class Intake:
    """From events to inbox rows."""

    def __init__(
        self,
        database: Database,
        client: MatrixClient,
        inbox: Inbox,
        outbox: Outbox,
        known: KnownRooms,
        conversations: Conversations,
        health: Health,
        policy: Policy,
        encryption: str,
        clock: Clock,
    ) -> None:
        self._database = database
        self._client = client
        self._inbox = inbox
        self._outbox = outbox
        self._known = known
        self._conversations = conversations
        self._health = health
        self._policy = policy
        self._encryption = encryption
        self._clock = clock

    async def store(self, batch: SyncBatch, rooms: Sequence[RoomEvents]) -> set[str]:
        """Keep a whole sync with its token; the conversations in which something waits now."""
        woken: set[str] = set()
        async with self._database.transaction() as tx:
            for room in rooms:
                woken |= await self._room(tx, room)
            for room_id, state in batch.invited:
                await self._invited(tx, room_id, state)
            for room_id in batch.left:
                await self._known.left(tx, room_id)
                await self._known.settled(tx, room_id)
            await self._health.count_in(tx, "malformed", batch.malformed)
            await self._inbox.store_token(tx, self._client.account.user_id, batch.next_batch)
        return woken

    async def _room(self, tx: Transaction, room: RoomEvents) -> set[str]:
        view = self._client.room(room.room_id)
        await self._known.seen(tx, room.room_id, room.encryption or view.encrypted)
        if room.invited:
            await self._known.settled(tx, room.room_id)
        if room.retry:
            await self._outbox.release(tx, room.room_id)
        conversation: str | None = None
        us = self._client.account.user_id
        for event, then in zip(room.events, views(room.events, view, us), strict=True):
            if event["sender"] != us:
                conversation = await self._event(tx, event, then) or conversation
        return {conversation} if conversation else set()

    async def _event(self, tx: Transaction, event: Json, view: RoomView) -> str | None:
        """Store one event if it concerns us; its conversation then."""
        clear = self._client.decrypted(view.room_id, event)
        encrypted = event["type"] == "m.room.encrypted"
        if clear is None:
            await self._health.count_in(tx, "undecryptable", 1)
            if event["sender"] not in self._policy.allowed:  # background at most: not worth keeping
                return None
            conversation = await self._conversation(tx, view)
            await self._inbox.store_locked(
                tx, conversation, view.room_id, str(event["event_id"]), event
            )
            return conversation
        await self._health.count_in(tx, "decrypted", int(encrypted))
        await self._health.count_in(tx, "malformed", int(is_malformed_message(clear)))
        incoming = self._read(clear, view)
        if incoming is None:
            return None
        conversation = await self._conversation(tx, view)
        takes = await self._takes(tx, conversation, incoming, view, encrypted=encrypted)
        if incoming.kind == "context":  # other people's lines: what is shown of them is enough
            incoming = replace(incoming, raw={})
        await self._inbox.store(tx, conversation, incoming, "waiting" if takes else "ignored")
        return conversation

    def _read(self, event: Json, view: RoomView) -> Incoming | None:
        return read_event(event, view, self._account(view), self._policy, self._clock.now())

    def _account(self, view: RoomView) -> Account:
        account = self._client.account
        return replace(account, display_name=view.members.get(account.user_id, ""))

    async def _conversation(self, tx: Transaction, view: RoomView) -> str:
        scope = f"room:{view.room_id}"
        if is_direct(view, self._account(view), self._policy):
            us = self._client.account.user_id
            scope = f"person:{next(user for user in view.members if user != us)}"
        return await self._conversations.in_room(tx, view.room_id, scope)

    async def _takes(
        self,
        tx: Transaction,
        conversation: str,
        incoming: Incoming,
        view: RoomView,
        *,
        encrypted: bool,
    ) -> bool:
        """Whether a message is to be answered, beyond being addressed to us by somebody allowed."""
        if incoming.kind == "context":
            return False
        if self._encryption == "required" and not encrypted:
            # In an encrypted room too: whoever runs the homeserver could have written it.
            await self._outbox.notice_once(
                tx, f"plain {view.room_id}", DAY, conversation, view.room_id, ONLY_ENCRYPTED
            )
            return False
        if incoming.by_bot:
            return await self._inbox.bot_streak(tx, conversation) < MOST_BOT_EXCHANGES
        return True

    async def _invited(self, tx: Transaction, room_id: str, state: Sequence[Json]) -> None:
        host = inviter(state, self._client.account)
        here = not self._policy.rooms or room_id in self._policy.rooms
        welcome = host in self._policy.allowed and here
        await self._known.invited(tx, room_id, host or "", welcome)

    async def unlock(self, *, new_keys: bool) -> set[str]:
        """Try again what could not be decrypted; the conversations in which something waits now.

        Without new keys only the person is told, when it is time.
        """
        woken: set[str] = set()
        for row in await self._inbox.locked():
            clear = self._client.decrypted(row.room_id, row.raw) if new_keys else None
            if clear is None:
                await self._complain(row)
                continue
            view = self._client.room(row.room_id)
            incoming = self._read(clear, view)
            async with self._database.transaction() as tx:
                await self._health.count_in(tx, "decrypted", 1)
                if incoming is None:
                    await self._inbox.discard_locked(tx, row.seq)
                    continue
                takes = await self._takes(tx, row.conversation_id, incoming, view, encrypted=True)
                state: State = "waiting" if takes else "ignored"
                await self._inbox.unlock(tx, row.seq, incoming, state)
            woken.add(row.conversation_id)
        return woken

    async def _complain(self, row: Locked) -> None:
        """Say at most once per room and hour that a message stays locked (X-021)."""
        age = self._clock.now() - row.received_at
        sender = row.raw.get("sender")
        if not KEYS_GRACE <= age < DAY or sender not in self._policy.allowed:
            return
        key = f"locked {row.room_id}"
        async with self._database.transaction() as tx:
            await self._outbox.notice_once(tx, key, HOUR, row.conversation_id, row.room_id, LOCKED)

    async def tell_keys_lost(self) -> None:
        """Say once in every encrypted room that we have a new device (X-016)."""
        device = self._client.account.device_id
        for room_id in sorted(await self._known.encrypted()):
            view = self._client.room(room_id)
            if not view.members:
                continue
            async with self._database.transaction() as tx:
                conversation = await self._conversation(tx, view)
                await self._outbox.notice_once(
                    tx,
                    f"keys lost {device} {room_id}",
                    3650 * DAY,
                    conversation,
                    room_id,
                    KEYS_LOST,
                )
