"""The intake: it stores the rows of a sync and its token in one transaction (DESIGN §3, hop 3)."""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from wintermute.clock import Clock
from wintermute.config.schema import Matrix
from wintermute.conversation.replies import REWORDED
from wintermute.db import Transaction
from wintermute.mailbox.inbox import InboxState, LockedEvent
from wintermute.mailbox.notices import EVER
from wintermute.mailbox.outbox import ANYBODY
from wintermute.mailbox.rate_limit import RATE_LIMIT_SECONDS, Exchanges, exchange_after
from wintermute.matrix.client import MatrixClient
from wintermute.matrix.inbox import (
    Policy,
    RoomView,
    inviter,
    may_read,
    read_event,
    scope_of,
    string,
    thread_of,
    unread,
    views,
)
from wintermute.matrix.membership import RoomMoves
from wintermute.matrix.people import NOT_THEIRS, TrustLevel
from wintermute.matrix.relations import (
    Reaction,
    Relations,
    read_edit,
    read_reaction,
    redacted,
    redactor,
)
from wintermute.matrix.sessions import DecryptedEvent, store_owner
from wintermute.matrix.sync_response import (
    RoomBatch,
    SyncBatch,
    is_malformed_message,
    verification_in_room,
)
from wintermute.matrix.trust import (
    READERS,
    REPLAYED,
    UNSIGNED,
    UNSIGNED_IN_CLEAR,
    Acceptance,
    Trust,
    acceptance,
    harmless_id,
    not_private,
)
from wintermute.matrix.undecryptable import DAY, HOUR, UndecryptableNotices
from wintermute.matrix.verifications import Verifications
from wintermute.memory.origins import changes_meaning
from wintermute.messages import PERSON, Incoming, Json, mapping
from wintermute.stores import Stores
from wintermute.text import plain

log = logging.getLogger(__name__)

MOST_BOT_EXCHANGES = 3

ONLY_ENCRYPTED = (
    "I only answer encrypted messages, and this one was not. Please turn on encryption in this "
    "room's settings, or set `matrix.encryption: preferred` in my configuration."
)
KEYS_LOST = (
    "My encryption keys were lost, so I now use a new device. I cannot read encrypted messages "
    "from before. "
)
SAME_IDENTITY = "It is signed by the same identity, so you need not verify me again."
OTHER_IDENTITY = "If you verified me, please do so again."
UNTRUSTED_DAYS = 7
PACED = (
    "{sender} always answers me within two seconds, so it may be a program. To avoid an endless loop, I"
    " answer them here only once a minute until they slow down."
)
SettleSync = Callable[[Transaction, Mapping[str, Sequence[Json]]], Awaitable[None]]
"""Completes work on the events of each room before the token is stored."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """One event, raw and decrypted, with the members of its room at that time.

    `locked`: the row that has waited for the event's key.
    """

    raw: Json
    decrypted: DecryptedEvent
    view: RoomView
    trust_level: TrustLevel
    locked: LockedEvent | None = None

    @property
    def encrypted(self) -> bool:
        """True if the event was encrypted."""
        return bool(self.raw["type"] == "m.room.encrypted")

    @property
    def in_thread(self) -> bool:
        """True if the event says that it belongs to a thread."""
        return thread_of(self.decrypted.event)[1] != ""


class Intake:
    """Turns events into inbox rows."""

    def __init__(
        self,
        stores: Stores,
        client: MatrixClient,
        relations: Relations,
        trust: Trust,
        verifications: Verifications,
        policy: Policy,
        settings: Matrix,
        clock: Clock,
    ) -> None:
        self._stores = stores
        self._client = client
        self._relations = relations
        self._complaints = UndecryptableNotices(stores, client, policy, clock, trust)
        self._verifications = verifications
        self._moves = RoomMoves(stores, client, policy)
        self._policy = policy
        self._settings = settings
        self._accepts = settings.unsigned_devices == "accept"
        self.trust = trust
        self.exchanges = Exchanges(stores.database)
        self._clock = clock

    async def narrow(self, batch: SyncBatch) -> set[str]:
        """Stop answers in chats that others can read now (F-004). Returns the changed conversations.

        If somebody has left instead, `store` handles that together with the messages until then.
        """
        rooms = [self._client.room(r.room_id) for r in batch.joined if batch.may_change_readers(r)]
        woken: set[str] = set()
        if not rooms:
            return woken
        async with self._stores.database.transaction() as tx:
            for view in rooms:
                held = await self._stores.conversations.conversations_in(tx, view.room_id)
                us, scopes = self._client.account, {each.scope for each in held}
                if not all(may_read(view, scope, us, self._policy) for scope in scopes):
                    woken |= await self._rescope(tx, view)
        return woken

    async def store(
        self, batch: SyncBatch, rooms: Sequence[RoomBatch], settle: SettleSync | None = None
    ) -> set[str]:
        """Store a whole sync with its token. Returns the conversations with new work."""
        woken = await self._moves.follow(batch)
        async with self._stores.database.transaction(late=True) as tx:
            for room in rooms:
                woken |= await self._room(tx, room)
            for room_id, state in batch.invited:
                await self._invited(tx, room_id, state)
            for room_id in batch.left:
                await self._stores.known.mark_left(tx, room_id)
                await self._stores.known.delete_invitation(tx, room_id)
            for session, device in batch.owners:
                await store_owner(tx, session, device)
            for message in batch.verifications:
                await self._verifications.accept(tx, message)
            for claim in batch.withheld:
                await self._complaints.store_claim(tx, claim)
            await self._stores.health.count_in(tx, "malformed", batch.malformed)
            if settle is not None:
                await settle(tx, {room.room_id: room.events for room in rooms})
            await self._stores.inbox.store_token(tx, self._client.account.user_id, batch.next_batch)
        return woken

    async def _room(self, tx: Transaction, room: RoomBatch) -> set[str]:
        view = self._client.room(room.room_id)
        encrypted = room.encryption or view.encrypted
        await self._stores.known.store_room(tx, room.room_id, encrypted, room.last)
        if room.invited:
            await self._stores.known.delete_invitation(tx, room.room_id)
        if room.retry:
            await self._stores.outbox.release(tx, room.room_id)
        redacted_ids = redacted(room.events)  # a redaction may come before its message
        own = ("", self._stores.owner.user_id)
        not_by_owner = redacted(event for event in room.events if redactor(event) not in own)
        woken = await self._relations.redact(tx, room.room_id, redacted_ids - not_by_owner)
        woken |= await self._relations.redact(
            tx, room.room_id, redacted_ids & not_by_owner, asks=True
        )
        us, last = self._client.account.user_id, None
        by_others = redacted(event for event in room.events if redactor(event) != us)
        woken |= await self._relations.erase_answers(tx, room.room_id, by_others)
        for event, view_then in zip(room.events, views(room.events, view, us), strict=True):
            # A new member can read, even without having written (F-001).
            if view_then is not last:
                woken |= await self._rescope(tx, view_then)
            last = view_then
            if event["sender"] == us:
                await self._recognise(tx, event, room.room_id)
                await self._record_own_message(tx, event, room.room_id)
            elif event["event_id"] not in redacted_ids:
                conversation = await self._event(tx, event, view_then)
                woken |= {conversation} if conversation else set()
        if view is not last:
            woken |= await self._rescope(tx, view)
        if room.retry or any(event["type"] in READERS for event in room.events):
            scope = scope_of(view, self._client.account, self._policy)
            await self._stores.outbox.release_for(tx, scope)
        return woken

    async def _rescope(self, tx: Transaction, view: RoomView) -> set[str]:
        """Move the conversations of a room to the scope of its current readers. Returns those that changed.

        Besides its own and its threads these are the conversations of rooms that it replaces
        (F-013): their answers are sent here.
        """
        if self._has_moved(view.room_id):
            return set()
        scope = scope_of(view, self._client.account, self._policy)
        changed: set[str] = set()
        for room_id in (view.room_id, *self._client.moves.rooms_before(view.room_id)):
            changed.update(await self._stores.conversations.rescope(tx, room_id, scope))
        if changed:
            log.info("readers changed room=%s scope=%s", view.room_id, scope)
        return changed

    async def _recognise(self, tx: Transaction, event: Json, room_id: str) -> None:
        """Recognise an event of ours: somebody may react to it before the sender gets its id."""
        if txn_id := string(mapping(event.get("unsigned")), "transaction_id"):
            await self._stores.outbox.note_event(tx, txn_id, str(event["event_id"]))
            self._verifications.recognise_event(txn_id, str(event["event_id"]))
        elif self._verifications.is_running_in(room_id):  # another device of ours may have answered
            opened = self._client.sessions.decrypt(room_id, event)
            if opened is not None:
                await self._verification(tx, event, opened.event, room_id)

    async def _record_own_message(self, tx: Transaction, event: Json, room_id: str) -> None:
        """Record when we last wrote, by the homeserver's clock; a draft counts as well (F-048)."""
        edits = mapping(event["content"].get("m.relates_to")).get("rel_type") == "m.replace"
        if event["type"] in ("m.room.message", "m.room.encrypted") and not edits:
            exchange = await self.exchanges.of_room(tx, room_id)
            exchange = replace(exchange, said_ms=event["origin_server_ts"])
            await self.exchanges.store_exchange(tx, room_id, exchange)

    async def _verification(
        self, tx: Transaction, raw: Json, event: Json, room_id: str
    ) -> str | None:
        """Handle an event of a verification. Returns a notice ("" for none); None if it is another event."""
        message = verification_in_room(raw, event, room_id)
        return None if message is None else await self._verifications.accept(tx, message)

    async def _event(self, tx: Transaction, event: Json, view: RoomView) -> str | None:
        """Store one event if it concerns us. Returns its conversation then."""
        if root := thread_of(event)[1]:
            await self._stores.threads.note_writer(tx, view.room_id, root, str(event["sender"]))
        opened, verdict = await self._decrypt(tx, event, view)
        if opened is None or verdict in NOT_THEIRS:
            return await self._locked(tx, event, view, verdict)
        encrypted = event["type"] == "m.room.encrypted"
        await self._stores.health.count_in(tx, "decrypted", int(encrypted))
        await self._stores.health.count_in(tx, "malformed", int(is_malformed_message(opened.event)))
        return await self._store_event(tx, Arrival(event, opened, view, verdict))

    async def _locked(
        self, tx: Transaction, event: Json, view: RoomView, verdict: TrustLevel
    ) -> str | None:
        """Store the raw form of an event that cannot be decrypted or not be trusted."""
        await self._stores.health.count_in(tx, "undecryptable", 1)
        sender, event_id, room_id = str(event["sender"]), str(event["event_id"]), view.room_id
        if sender not in self._policy.allowed:  # it would only be context
            return None
        conversation = await self._conversation(tx, view, event)
        await self._stores.inbox.store_locked(tx, conversation, room_id, event_id, event)
        if verdict == "replayed":
            log.warning("message replayed room=%s event=%s sender=%s", room_id, event_id, sender)
            notice, key = REPLAYED.format(sender=sender), f"replayed {room_id}"
            await self._stores.notices.notice_once(tx, key, DAY, conversation, notice)
        return conversation

    async def _decrypt(
        self, tx: Transaction, raw: Json, view: RoomView
    ) -> tuple[DecryptedEvent | None, TrustLevel]:
        """Decrypt an event and return it with the trust level of its sender's device."""
        if raw["type"] == "m.room.encrypted":
            return await self._client.decrypt_checked(tx, view.room_id, raw)
        return DecryptedEvent(raw), await self._unencrypted_trust(tx, str(raw["sender"]), view)

    async def _unencrypted_trust(self, tx: Transaction, sender: str, view: RoomView) -> TrustLevel:
        """Return the trust level of an unencrypted event."""
        people = self._client.people
        if people.is_changed(sender):
            return "changed"
        seen = people.was_looked_for(sender)
        if sender not in people.allowed or (seen and not people.cross_signs(sender)):
            return "good"
        # No device has signed an unencrypted event in an encrypted room.
        if not (view.encrypted or await self._stores.known.is_encrypted(tx, view.room_id)):
            return "good"
        return "unsigned" if seen else "unseen"

    async def _store_event(self, tx: Transaction, arrival: Arrival) -> str | None:
        """Store a decrypted event according to its meaning for us. Returns its conversation then."""
        notice = await self._verification(
            tx, arrival.raw, arrival.decrypted.event, arrival.view.room_id
        )
        if notice:
            await self._notify_unread(tx, arrival, "verification", notice)
        conversation = await self._read(tx, arrival) if notice is None else None
        if conversation is None and arrival.locked is not None:
            await self._stores.inbox.discard_locked(tx, arrival.locked.seq)
        return conversation

    async def _read(self, tx: Transaction, arrival: Arrival) -> str | None:
        event, us = arrival.decrypted.event, self._client.account
        us = replace(us, display_name=arrival.view.members.get(us.user_id, ""))
        asked = (event, arrival.view, us, self._policy, self._clock.now())
        # Clients send reactions unencrypted, also in encrypted rooms. So whoever runs the homeserver
        # can forge one. It can stop or rate an answer or confirm a reminder, which can be undone.
        # It cannot carry text.
        if (reaction := read_reaction(*asked)) is not None:
            return await self._reacted(tx, arrival, reaction)
        answers_us = await self._relations.answers_us(tx, arrival.view.room_id, event)
        answers_us = answers_us or await self._is_with_us(tx, arrival)
        if (edit := read_edit(*asked, answers_us=answers_us)) is not None:
            return await self._edited(tx, arrival, edit)
        if (incoming := read_event(*asked, answers_us=answers_us)) is not None:
            return await self._message(tx, arrival, incoming)
        found = unread(*asked[:-1], answers_us=answers_us)
        if found is None or self._acceptance(arrival) == "held":  # the sender may be forged
            return None
        if not await self._refuses(tx, await self._conversation_of(tx, arrival), arrival):
            await self._notify_unread(tx, arrival, found.kind, found.line)
        return None

    async def _notify_unread(self, tx: Transaction, arrival: Arrival, kind: str, line: str) -> None:
        """Send a notice that an event is not read: once per kind, room and hour (F-024)."""
        room_id = arrival.view.room_id
        key, conversation = f"unread {kind} {room_id}", await self._conversation_of(tx, arrival)
        await self._stores.notices.notice_once(tx, key, HOUR, conversation, line)

    async def _reacted(self, tx: Transaction, arrival: Arrival, reaction: Reaction) -> str | None:
        decision = self._acceptance(arrival)
        if decision == "held":
            return None
        if decision == "other" and arrival.encrypted:
            reaction = reaction._replace(command=replace(reaction.command, origin="other"))
        command = await self._relations.command(tx, reaction)
        if command is None:
            return None
        return await self._keep(
            tx, arrival, await self._conversation_of(tx, arrival), command, "waiting"
        )

    async def _message(self, tx: Transaction, arrival: Arrival, incoming: Incoming) -> str | None:
        decision, context = self._acceptance(arrival), incoming.kind == "context"
        if decision == "refused" and context:
            return None
        conversation = await self._conversation_of(tx, arrival)
        if decision == "held":
            return await self._hold(tx, conversation, arrival, tell=not context)
        if decision == "other":
            incoming = replace(incoming, origin="other")
        takes = not context and not await self._refuses(tx, conversation, arrival)
        if takes and incoming.by_bot:
            streak = await self._stores.inbox.bot_streak(tx, conversation)
            takes = streak < MOST_BOT_EXCHANGES
        await self._notify_readers(tx, conversation, arrival)
        if context:  # other people's lines: the text is enough
            incoming = replace(incoming, raw={})
        elif (incoming.kind, incoming.replies_to) == ("message", None) and arrival.in_thread:
            root = await self._stores.threads.unseen_root(tx, conversation)
            incoming = replace(incoming, replies_to=root)
        state: InboxState = "waiting" if takes else "ignored"
        return await self._keep(tx, arrival, conversation, incoming, state)

    async def _notify_readers(self, tx: Transaction, conversation: str, arrival: Arrival) -> None:
        """Notify the sender once why this is not a direct chat, if they may think that it is (F-014)."""
        room_id, sender = arrival.view.room_id, str(arrival.raw["sender"])
        # The scope before is known of the room, not of a thread that began later.
        main = await self._conversation(tx, arrival.view) if arrival.in_thread else conversation
        was = await self._stores.conversations.was_private(tx, main) == f"{PERSON}{sender}"
        notice = not_private(
            arrival.view, self._client.account.user_id, sender, self._policy, was=was
        )
        if notice and not self._has_moved(room_id):
            key = f"not private {await self._stores.conversations.current_branch(tx, main)}"
            await self._stores.notices.notice_once(tx, key, EVER, conversation, notice)

    async def _edited(self, tx: Transaction, arrival: Arrival, edit: Incoming) -> str | None:
        """Store an edit that is to be answered in place of its original, or note it; never both."""
        original = await self._relations.original(tx, edit)
        known = arrival.locked is None and await self._stores.inbox.find(tx, edit.event_id)
        if original is None or known:
            return None
        conversation, decision = await self._conversation_of(tx, arrival), self._acceptance(arrival)
        if decision == "held":
            return await self._hold(tx, conversation, arrival, tell=True)
        if original.state in ("locked", "untrusted"):
            # Its original is not decrypted yet: the edit waits, too.
            await self._stores.inbox.store_locked(
                tx, conversation, edit.room_id, edit.event_id, arrival.raw
            )
            return conversation
        if await self._refuses(tx, conversation, arrival):
            return None
        if decision == "other":
            edit = replace(edit, origin="other")
        seq = arrival.locked.seq if arrival.locked else None
        if await self._relations.is_redone(tx, edit, original, seq):
            return await self._keep(tx, arrival, conversation, edit, "waiting")
        if not await self._relations.is_newest(tx, edit, original, seq):
            if changes_meaning(await self._relations.wording(tx, original), edit.body):  # M-089
                said = (original.conversation_id, edit.sender, edit.body)
                await self._stores.edits.note(tx, edit.event_id, original.event_id, *said)
                if "command" in (original.kind, edit.kind):
                    key = f"reworded {edit.event_id}"
                    await self._stores.notices.notice_once(tx, key, EVER, conversation, REWORDED)
            return None
        await self._stores.inbox.mark_addressed(tx, original.seq)
        edit = replace(edit, replies_to=original.replies_to)
        return await self._keep(tx, arrival, conversation, edit, "waiting")

    async def _conversation_of(self, tx: Transaction, arrival: Arrival) -> str:
        if arrival.locked is not None:
            return arrival.locked.conversation_id
        return await self._conversation(tx, arrival.view, arrival.decrypted.event)

    async def _keep(
        self,
        tx: Transaction,
        arrival: Arrival,
        conversation: str,
        incoming: Incoming,
        state: InboxState,
    ) -> str:
        incoming = replace(incoming, sent_at=self._client.to_our_clock(incoming.sent_at))
        paced = await self._is_paced(tx, arrival, conversation)
        held = paced and (incoming.kind, state) == ("message", "waiting")
        if held:
            incoming, state = replace(incoming, kind="context"), "ignored"
        if arrival.locked is None:
            await self._stores.inbox.store(tx, conversation, incoming, state)
        else:
            await self._stores.inbox.unlock(tx, arrival.locked.seq, incoming, state)
        if held:
            until = self._clock.monotonic() + RATE_LIMIT_SECONDS
            await self._stores.inbox.set_state(tx, incoming.event_id, state, until)
        return conversation

    async def _is_paced(self, tx: Transaction, arrival: Arrival, conversation_id: str) -> bool:
        """Check if a sender keeps answering us within seconds; send the room one notice."""
        room_id, sender = arrival.view.room_id, str(arrival.raw["sender"])
        if arrival.raw["type"] == "m.reaction":
            return False
        before = await self.exchanges.of_room(tx, room_id)
        now = exchange_after(before, sender, arrival.raw["origin_server_ts"])
        if now != before:
            await self.exchanges.store_exchange(tx, room_id, now)
        if now.paced not in ("", before.paced):
            log.info("sender rate-limited room=%s sender=%s", room_id, sender)
            notice = PACED.format(sender=plain(sender))
            await self._stores.outbox.enqueue(
                tx, conversation_id, notice, kind="notice", meant_for=ANYBODY
            )
        return now.paced == sender

    async def _conversation(
        self, tx: Transaction, view: RoomView, event: Json | None = None
    ) -> str:
        """Return the conversation of a room, or of the room that replaces it (F-013).

        An event in a thread belongs to the thread; so does an event about a message in one.
        """
        room_id = view.room_id
        if moved := self._has_moved(room_id):
            view = self._client.room(self._client.moves.current_room(room_id))
        scope = scope_of(view, self._client.account, self._policy)
        main = await self._stores.conversations.in_room(tx, view.room_id, scope)
        about, root = thread_of(event or {})
        if about:
            return await self._stores.threads.of_event(tx, room_id, about) or main
        return (
            await self._thread(tx, main, room_id, event) if event and root and not moved else main
        )

    async def _thread(self, tx: Transaction, main: str, room_id: str, event: Json) -> str:
        """Return the conversation of the thread that an event names; a new one is created."""
        threads = self._stores.threads
        root = await threads.root(tx, room_id, thread_of(event)[1])
        if not root:
            return main
        if found := await threads.of_root(tx, room_id, root):
            return found
        ours = await self._stores.outbox.sent_event(tx, room_id, root)
        sender = str(event["sender"])
        starter = await threads.partner(tx, room_id, root, sender, ours=ours is not None)
        cast_id, starter = ours.cast_id if ours else None, starter if starter == sender else None
        return await threads.open(tx, main, root, answer_of=cast_id, starter=starter)

    async def _is_with_us(self, tx: Transaction, arrival: Arrival) -> bool:
        """Check if an event is in a thread in which only its sender and we have written (F-025)."""
        threads, room_id = self._stores.threads, arrival.view.room_id
        sender = str(arrival.raw["sender"])
        about, root = thread_of(arrival.decrypted.event)
        if about:
            thread = await threads.of_event(tx, room_id, about)
        elif not root:
            return False
        elif (thread := await threads.of_root(tx, room_id, root)) is None:
            ours = await self._stores.outbox.sent_event(tx, room_id, root) is not None
            return await threads.partner(tx, room_id, root, sender, ours=ours) == sender
        return thread is not None and await threads.is_with(tx, thread, sender)

    def _has_moved(self, room_id: str) -> bool:
        return self._client.moves.current_room(room_id) != room_id

    def _acceptance(self, arrival: Arrival) -> Acceptance:
        return acceptance(arrival.trust_level, encrypted=arrival.encrypted, accept=self._accepts)

    async def _hold(
        self, tx: Transaction, conversation: str, arrival: Arrival, *, tell: bool
    ) -> str:
        """Keep an event that cannot be trusted yet; its sender gets one notice per device (X-034)."""
        room_id, raw = arrival.view.room_id, arrival.raw
        sender, event_id = raw["sender"], raw["event_id"]
        await self._stores.inbox.store_locked(
            tx, conversation, room_id, event_id, arrival.raw, "untrusted"
        )
        log.info("message held room=%s sender=%s reason=%s", room_id, sender, arrival.trust_level)
        if arrival.trust_level == "unsigned" and tell:
            device_id = arrival.decrypted.device.device_id if arrival.decrypted.device else ""
            name, shown = self._client.device_name(sender, device_id), harmless_id(device_id, "?")
            notice = UNSIGNED.format(person=sender, name=name, device=shown)
            key = f"unsigned {sender} {device_id} {room_id}"
            notification = (str(sender), conversation, key, EVER, notice)
            await self.trust.notify_person(tx, arrival.view, *notification)
        return conversation

    async def _refuses(self, tx: Transaction, conversation: str, arrival: Arrival) -> bool:
        """Check if an unencrypted event should have been encrypted, and send a notice (X-015, X-034)."""
        unsigned = self._acceptance(arrival) == "refused"
        if arrival.encrypted or not (unsigned or self._settings.encryption == "required"):
            return False
        # Also in an encrypted room: whoever runs the homeserver could have written it.
        room_id, sender = arrival.view.room_id, str(arrival.raw["sender"])
        notice = UNSIGNED_IN_CLEAR.format(person=sender) if unsigned else ONLY_ENCRYPTED
        await self._stores.notices.notice_once(tx, f"plain {room_id}", DAY, conversation, notice)
        return True

    async def _invited(self, tx: Transaction, room_id: str, state: Sequence[Json]) -> None:
        host, rooms = inviter(state, self._client.account), self._policy.rooms
        welcome = host in self._policy.allowed and (not rooms or room_id in rooms)
        await self._stores.known.store_invitation(tx, room_id, host or "", welcome)

    async def settle(self) -> set[str]:
        """Apply new keys of people. Returns the conversations with new work."""
        return await self.reconsider() if await self.trust.settle() else set()

    async def reconsider(self) -> set[str]:
        """Retry events that could not be decrypted or trusted. Returns the conversations with new work."""
        async with self._stores.database.transaction():
            pass  # waits for a running intake that uses the old trust levels
        rows, last = await self._stores.inbox.locked(), 0
        while page := await self._stores.inbox.untrusted(last):
            rows, last = [*rows, *page], page[-1].seq
        return await self._retry_all(sorted(rows, key=lambda row: row.seq))

    async def sweep(self) -> None:
        """Discard untrusted events after `UNTRUSTED_DAYS`."""
        async with self._stores.database.transaction() as tx:
            await self._stores.inbox.discard_untrusted(tx, self._clock.now() - UNTRUSTED_DAYS * DAY)

    async def notify_undecryptable(self) -> bool:
        """Send due notices about undecryptable events; False if there are none."""
        rows = await self._stores.inbox.locked()
        for row in rows:
            await self._complaints.notify(row)
        return bool(rows)

    async def _retry_all(self, rows: Sequence[LockedEvent]) -> set[str]:
        return {tried for row in rows if (tried := await self._retry(row)) is not None}

    async def _retry(self, row: LockedEvent) -> str | None:
        """Store an event if it can be decrypted and trusted by now. Returns its conversation then."""
        verdict: TrustLevel = "foreign"
        if self._client.sessions.decrypt(row.room_id, row.raw) is not None:
            view, encrypted = self._room_of(row), row.raw["type"] == "m.room.encrypted"
            async with self._stores.database.transaction() as tx:
                opened, verdict = await self._decrypt(tx, row.raw, view)
                held = acceptance(verdict, encrypted=True, accept=self._accepts) == "held"
                waits = row.state == "untrusted" and encrypted and held
                if opened is not None and verdict not in NOT_THEIRS and not waits:
                    was_locked = row.state == "locked" and encrypted
                    await self._stores.health.count_in(tx, "decrypted", int(was_locked))
                    return await self._store_event(tx, Arrival(row.raw, opened, view, verdict, row))
        if verdict == "foreign":
            await self._complaints.notify(row)
        return None

    def _room_of(self, row: LockedEvent) -> RoomView:
        """Return the room of a held event; its sender counts as a member even if the room was replaced."""
        view = self._client.room(row.room_id)
        if not self._has_moved(row.room_id):
            return view
        spoke = dict.fromkeys((self._client.account.user_id, str(row.raw["sender"])), "")
        return replace(view, members={**spoke, **view.members})

    async def notify_keys_lost(self) -> None:
        """Notify every encrypted room once that we have a new device, and whose it is (X-016)."""
        device = self._client.account.device_id
        notice = KEYS_LOST + (SAME_IDENTITY if self._client.keeps_identity else OTHER_IDENTITY)
        for room_id in sorted(await self._stores.known.encrypted()):
            view = self._client.room(room_id)
            if not view.members or self._has_moved(room_id):
                continue
            async with self._stores.database.transaction() as tx:
                conversation = await self._conversation(tx, view)
                key = f"keys lost {device} {room_id}"
                await self._stores.notices.notice_once(tx, key, EVER, conversation, notice)
