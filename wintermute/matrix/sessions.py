"""Megolm sessions: the owner of the session that encrypted an event, and replay protection.

nio accepts the homeserver's word for the sender and a key for any room from anybody, and remembers
seen messages only until it ends. So we decrypt events ourselves. The session tells the device that
made it; its owner is stored when first seen and never changes; and a decrypted message belongs to
one event for ever (F-005).

Events need not name their device, and are not trusted if they do. A session is found by room and
id among all received keys, and any member can send it as their own. So each sender's copy is
stored, and only the copy of the event's sender counts (F-057).
"""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from nio import AsyncClient, MegolmEvent, RoomKeyEvent
from nio.crypto import OlmDevice
from nio.crypto.memorystores import GroupSessionStore
from nio.crypto.sessions import InboundGroupSession
from nio.store import DefaultStore
from nio.store.database import use_database
from nio.store.models import MegolmInboundSessions

from wintermute.db import Transaction
from wintermute.matrix.people import Device
from wintermute.matrix.sync_response import GroupSession, decrypted_event, megolm
from wintermute.messages import Json

UNREADABLE = (ValueError, TypeError, RecursionError)  # what vodozemac and JSON raise on garbage
MESSAGE_BYTES = 16


@dataclass(frozen=True, slots=True)
class SessionPosition:
    """A message's position in its Megolm session; `ed25519` as claimed by its sender."""

    session: GroupSession
    index: int
    ed25519: str


@dataclass(frozen=True, slots=True)
class DecryptedEvent:
    """A decrypted event; if it was encrypted, with its session and the session's owner."""

    event: Json
    device: Device | None = None
    position: SessionPosition | None = None

    def is_of(self, user_id: str) -> bool:
        """Check if the key came from a device of this user."""
        return self.device is not None and self.device.user_id == user_id


class SessionCopiesStore(DefaultStore):  # type: ignore[misc]  # nio is not typed
    """nio's store with one row per copy of a session.

    nio's table has one row per session id, whatever the sender and room. So new rows get ids of
    our own, which nio does not look for; older rows keep theirs.
    """

    def load_inbound_group_sessions(self) -> GroupSessionStore:
        """Load all sessions; of two copies of one sender the one that decrypts more stays."""
        sessions = super().load_inbound_group_sessions()
        add = sessions.add

        def add_better(session: Any) -> bool:
            kept = sessions.get(session.room_id, session.sender_key, session.id)
            opens_more = not kept or session.first_known_index < kept.first_known_index
            return opens_more and bool(add(session))

        sessions.add = add_better
        return sessions

    @use_database  # type: ignore[untyped-decorator]
    def save_inbound_group_session(self, session: Any) -> None:
        """Store a sender's copy of a session, unless the stored one decrypts as much."""
        table, pickle_key = MegolmInboundSessions, self.pickle_key
        name = f"{session.id} {session.sender_key} {session.room_id}"
        origin = {"sender_key": session.sender_key, "room_id": session.room_id}
        rows = table.select().where(table.session_id.in_([session.id, name])).dicts()
        for row in (row for row in rows if origin.items() <= row.items()):
            name, pickle = row["session_id"], row["session"]
            kept = InboundGroupSession.from_pickle(pickle, "", "", "", pickle_key)
            if kept.first_known_index <= session.first_known_index:
                return
        values = {"session_id": name, "session": session.pickle(pickle_key), **origin}
        values |= {"account": self._get_account(), "fp_key": session.ed25519}
        table.insert(values).on_conflict_replace().execute()


class Sessions:
    """The Megolm sessions of others in nio's store."""

    def __init__(self, nio: AsyncClient) -> None:
        self._nio = nio

    def decrypt(self, room_id: str, event: Json) -> DecryptedEvent | None:
        """Decrypt a room event; None if its key is missing or it is malformed."""
        return next(iter(self.decrypt_or_request_key(room_id, event)), None)

    def decrypt_or_request_key(self, room_id: str, event: Json) -> list[DecryptedEvent]:
        """Decrypt an event like `decrypt_by_copies`; request a missing key or device from its sender."""
        found, sender = self.decrypt_by_copies(room_id, event), event["sender"]
        encrypted = megolm(event) if event["type"] == "m.room.encrypted" else None
        if encrypted is None or self._nio.olm is None or any(each.is_of(sender) for each in found):
            return found
        content, olm = encrypted["content"], self._nio.olm
        devices = olm.device_store.active_user_devices(sender)
        candidates = [each for each in devices if content.get("device_id") in (None, each.id)]
        if not candidates or any(each.device is None for each in found):
            olm.users_for_key_query.add(sender)
        for device in candidates:  # in the same way as nio when it decrypts
            named = {"device_id": device.id, "sender_key": device.curve25519}
            parsed = MegolmEvent.from_dict({**encrypted, "content": {**content, **named}})
            if isinstance(parsed, MegolmEvent):
                parsed.room_id = room_id
                olm.check_if_wedged(parsed)
        return found

    def decrypt_by_copies(self, room_id: str, event: Json) -> list[DecryptedEvent]:
        """Decrypt a room event by each copy of its session; the sender's copy comes first."""
        if event["type"] != "m.room.encrypted":
            return [DecryptedEvent(event)]
        if (encrypted := megolm(event)) is None:
            return []
        content, found = encrypted["content"], list[DecryptedEvent]()
        for session in self.copies(room_id, content["session_id"]).values():
            try:
                text, index = session.decrypt(content["ciphertext"])
                clear = decrypted_event(json.loads(text), room_id, event)
            except UNREADABLE:
                continue
            if clear is not None:
                group = GroupSession(room_id, session.sender_key, session.id)
                device = self._owner(group, session.ed25519, event["sender"])
                found.append(
                    DecryptedEvent(clear, device, SessionPosition(group, index, session.ed25519))
                )
        return sorted(found, key=lambda each: not each.is_of(event["sender"]))

    def owner(self, room_id: str, event: Json) -> str:
        """Return the user whose device sent the key of an event; "" if unknown."""
        owners = (
            each.device.user_id for each in self.decrypt_by_copies(room_id, event) if each.device
        )
        return next(owners, "")

    def copies(self, room_id: str, session_id: str) -> dict[str, Any]:
        """Return the copies of a session in a room, by the keys of the devices that sent them."""
        sent = self._nio.olm.inbound_group_store[room_id].items() if self._nio.olm else ()
        return {key: sessions[session_id] for key, sessions in sent if session_id in sessions}

    def owned(self, keys: Iterable[RoomKeyEvent]) -> list[tuple[str, GroupSession, Device | None]]:
        """Return sender, session and known device for each of these keys."""
        found: list[tuple[str, GroupSession, Device | None]] = []
        for key in keys:
            group = GroupSession(key.room_id, key.sender_key, key.session_id)
            session = self._nio.olm.inbound_group_store.get(*group)
            if session is not None:
                found.append((key.sender, group, self._owner(group, session.ed25519, key.sender)))
        return found

    def _owner(self, group: GroupSession, ed25519: str, sender: str) -> Device | None:
        """Find the device with these keys, first among the sender's; signed out devices, too."""
        devices = self._nio.olm.device_store
        for user in (sender, *(set(devices.users) - {sender})):
            for device in devices[user].values():
                if (device.curve25519, device.ed25519) == (group.sender_key, ed25519):
                    return known(device)
        return None


def known(device: OlmDevice) -> Device:
    """Return a device of nio's store as ours."""
    return Device(device.user_id, device.id, device.ed25519, device.curve25519)


async def store_owner(tx: Transaction, session: GroupSession, device: Device) -> None:
    """Store the owner of a session; the first one stays."""
    await tx.execute(
        "INSERT INTO session_owners (room_id, sender_key, session_id, user_id, device_id, ed25519)"
        " VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
        (*session, device.user_id, device.device_id, device.ed25519),
    )


async def stored_owner(
    tx: Transaction, sealed: SessionPosition, device: Device | None, *, keep: bool
) -> Device | None:
    """Return the owner of a session: the device that was seen first, or this one.

    `keep`: store this device as the owner if there is none.
    """
    if device is not None and keep:
        await store_owner(tx, sealed.session, device)
    row = await tx.row(
        "SELECT user_id, device_id, ed25519 FROM session_owners"
        " WHERE room_id = ? AND sender_key = ? AND session_id = ?",
        sealed.session,
    )
    if row is None:
        return device
    if row["ed25519"] != sealed.ed25519:
        return None
    return Device(row["user_id"], row["device_id"], sealed.ed25519, sealed.session.sender_key)


async def record_message(tx: Transaction, sealed: SessionPosition, event_id: str) -> bool:
    """Record that a message belongs to this event; False if it was recorded for another one."""
    place = json.dumps([sealed.session.room_id, sealed.session.session_id, sealed.index])
    message = hashlib.sha256(place.encode()).digest()[:MESSAGE_BYTES]
    await tx.execute(
        "INSERT INTO seen_messages (message, event_id) VALUES (?, ?) ON CONFLICT DO NOTHING",
        (message, event_id),
    )
    row = await tx.row("SELECT event_id FROM seen_messages WHERE message = ?", (message,))
    return row is not None and row["event_id"] == event_id
