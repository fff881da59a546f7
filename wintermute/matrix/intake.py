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
from wintermute.matrix.followups import FollowUps
from wintermute.matrix.inbox import (
    Account,
    Policy,
    RoomView,
    inviter,
    is_direct,
    mapping,
    read_event,
    string,
    views,
)
from wintermute.matrix.relations import read_edit, read_reaction
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


@dataclass(frozen=True, slots=True)
class Arrival:
    """One event as it came and in clear, and who was in the room then.

    `locked` is the row that has kept its place while its key was missing.
    """

    raw: Json
    event: Json
    view: RoomView
    account: Account
    locked: Locked | None = None

    @property
    def encrypted(self) -> bool:
        """Whether it travelled so."""
        return bool(self.raw["type"] == "m.room.encrypted")


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
        followups: FollowUps,
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
        self._followups = followups
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
            else:
                await self._own(tx, event)
        return {conversation} if conversation else set()

    async def _own(self, tx: Transaction, event: Json) -> None:
        """Know an event of ours again: somebody may react to it before its sender is answered."""
        txn_id = string(mapping(event.get("unsigned")), "transaction_id")
        if txn_id:
            await self._outbox.seen(tx, txn_id, str(event["event_id"]))

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
        return await self._take(tx, Arrival(event, clear, view, self._account(view)))

    async def _take(self, tx: Transaction, came: Arrival) -> str | None:
        """Store what an event in clear is to us; its conversation then."""
        conversation = await self._read(tx, came)
        if conversation is None and came.locked is not None:
            await self._inbox.discard_locked(tx, came.locked.seq)
        return conversation

    async def _read(self, tx: Transaction, came: Arrival) -> str | None:
        asked = (came.event, came.view, came.account, self._policy, self._clock.now())
        # In clear in encrypted rooms too: that is how clients send reactions. So whoever runs the
        # homeserver can forge one, which ends or judges an answer, or answers a reminder, as can
        # be undone, and can say nothing to us.
        reaction = read_reaction(*asked)
        if reaction is not None:
            command = await self._followups.command(tx, reaction)
            if command is None:
                return None
            return await self._keep(tx, came, await self._home(tx, came), command, "waiting")
        edit = read_edit(*asked)
        if edit is not None:
            return await self._edited(tx, came, edit)
        incoming = read_event(*asked)
        if incoming is None:
            return None
        conversation = await self._home(tx, came)
        takes = await self._takes(tx, conversation, incoming, came)
        if incoming.kind == "context":  # other people's lines: what is shown of them is enough
            incoming = replace(incoming, raw={})
        state: State = "waiting" if takes else "ignored"
        return await self._keep(tx, came, conversation, incoming, state)

    async def _edited(self, tx: Transaction, came: Arrival, edit: Incoming) -> str | None:
        """An edit is answered in the place of what it changes, or noted, and never one message more."""
        original = await self._followups.original(tx, edit)
        known = came.locked is None and await self._inbox.find(tx, edit.event_id)
        if original is None or known:
            return None
        conversation = await self._home(tx, came)
        if original.state == "locked":  # what it changes has no text yet: with it, later
            await self._inbox.store_locked(tx, conversation, edit.room_id, edit.event_id, came.raw)
            return conversation
        if await self._refuses(tx, conversation, came):
            return None
        seq = came.locked.seq if came.locked else None
        if not await self._followups.is_newest(tx, edit, original, seq):
            await self._followups.note(tx, edit, original)
            return None
        return await self._keep(tx, came, conversation, edit, "waiting")

    async def _home(self, tx: Transaction, came: Arrival) -> str:
        if came.locked is not None:
            return came.locked.conversation_id
        return await self._conversation(tx, came.view)

    async def _keep(
        self,
        tx: Transaction,
        came: Arrival,
        conversation: str,
        incoming: Incoming,
        state: State,
    ) -> str:
        if came.locked is None:
            await self._inbox.store(tx, conversation, incoming, state)
        else:
            await self._inbox.unlock(tx, came.locked.seq, incoming, state)
        return conversation

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
        self, tx: Transaction, conversation: str, incoming: Incoming, came: Arrival
    ) -> bool:
        """Whether a message is to be answered, beyond being addressed to us by somebody allowed."""
        if incoming.kind == "context" or await self._refuses(tx, conversation, came):
            return False
        if incoming.by_bot:
            return await self._inbox.bot_streak(tx, conversation) < MOST_BOT_EXCHANGES
        return True

    async def _refuses(self, tx: Transaction, conversation: str, came: Arrival) -> bool:
        """Whether what came in clear should not have; its room is told then (X-015)."""
        if self._encryption != "required" or came.encrypted:
            return False
        # In an encrypted room too: whoever runs the homeserver could have written it.
        room_id = came.view.room_id
        await self._outbox.notice_once(
            tx, f"plain {room_id}", DAY, conversation, room_id, ONLY_ENCRYPTED
        )
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
            came = Arrival(row.raw, clear, view, self._account(view), row)
            async with self._database.transaction() as tx:
                await self._health.count_in(tx, "decrypted", int(came.encrypted))
                conversation = await self._take(tx, came)
            if conversation is not None:
                woken.add(conversation)
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
