"""Whose session encrypted an event, and which of its messages it is.

nio takes the sender's word from the homeserver, takes a key for any room from anybody, and knows
until it ends which messages it has seen. So we open events ourselves: the session tells whose
device made it, its owner is kept with the first look and stays, and a message that was taken in is
no other event's, whoever shows it again (F-005).
"""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from nio import AsyncClient, MegolmEvent, RoomKeyEvent
from nio.crypto import OlmDevice

from wintermute.db import Transaction
from wintermute.matrix.people import Device
from wintermute.matrix.sieve import GroupSession, megolm, unsealed
from wintermute.messages import Json

UNREADABLE = (ValueError, TypeError, RecursionError)  # what vodozemac and JSON raise on garbage
MESSAGE_BYTES = 16


@dataclass(frozen=True, slots=True)
class Sealed:
    """A message by its place in the session that encrypted it; `ed25519` by its sender's word."""

    session: GroupSession
    index: int
    ed25519: str


@dataclass(frozen=True, slots=True)
class Opened:
    """An event in clear; if it was encrypted, how, and whose device its session belongs to."""

    event: Json
    device: Device | None = None
    sealed: Sealed | None = None


class Sessions:
    """The sessions of others in nio's store."""

    def __init__(self, nio: AsyncClient) -> None:
        self._nio = nio

    def opened(self, room_id: str, event: Json) -> Opened | None:
        """A room event in clear and whence it came; None while its key is missing or it is garbage."""
        if event["type"] != "m.room.encrypted":
            return Opened(event)
        encrypted = megolm(event)
        if encrypted is None or self._nio.olm is None:
            return None
        found, session = self._session(room_id, encrypted)
        if session is None:
            # nio's machine sees to it that the key comes, as it does when it decrypts.
            parsed = MegolmEvent.from_dict(encrypted)
            if isinstance(parsed, MegolmEvent):
                parsed.room_id = room_id
                self._nio.olm.check_if_wedged(parsed)
            return None
        try:
            text, index = session.decrypt(encrypted["content"]["ciphertext"])
            clear = unsealed(json.loads(text), room_id, event)
        except UNREADABLE:
            return None
        if clear is None:
            return None
        device = self._owner(found, session.ed25519, event["sender"])
        if device is None:  # a new one; or who claims to be the sender has such keys
            self._nio.olm.users_for_key_query.add(event["sender"])
        return Opened(clear, device, Sealed(found, index, session.ed25519))

    def owner(self, room_id: str, event: Json) -> str:
        """Whose device encrypted an event; "" if that is not known."""
        encrypted = megolm(event)
        if encrypted is None or self._nio.olm is None:
            return ""
        found, session = self._session(room_id, encrypted)
        device = self._owner(found, session.ed25519, event["sender"]) if session else None
        return device.user_id if device else ""

    def owned(self, keys: Iterable[RoomKeyEvent]) -> list[tuple[str, GroupSession, Device | None]]:
        """Of keys that came: sender, session, and its device if that is one we know."""
        found: list[tuple[str, GroupSession, Device | None]] = []
        for key in keys:
            group = GroupSession(key.room_id, key.sender_key, key.session_id)
            session = self._nio.olm.inbound_group_store.get(*group)
            if session is not None:
                found.append((key.sender, group, self._owner(group, session.ed25519, key.sender)))
        return found

    def _session(self, room_id: str, event: Json) -> tuple[GroupSession, Any]:
        content = event["content"]
        found = GroupSession(room_id, content["sender_key"], content["session_id"])
        return found, self._nio.olm.inbound_group_store.get(*found)

    def _owner(self, found: GroupSession, ed25519: str, sender: str) -> Device | None:
        """The device with these keys, looked for among the sender's first; signed out ones as well."""
        devices = self._nio.olm.device_store
        for user in (sender, *(set(devices.users) - {sender})):
            for device in devices[user].values():
                if (device.curve25519, device.ed25519) == (found.sender_key, ed25519):
                    return known(device)
        return None


def known(device: OlmDevice) -> Device:
    """A device as nio's store has it."""
    return Device(device.user_id, device.id, device.ed25519, device.curve25519)


async def bind(tx: Transaction, session: GroupSession, device: Device) -> None:
    """Keep whose session this is; the first word stays."""
    await tx.execute(
        "INSERT INTO session_owners (room_id, sender_key, session_id, user_id, device_id, ed25519)"
        " VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
        (*session, device.user_id, device.device_id, device.ed25519),
    )


async def bound(
    tx: Transaction, sealed: Sealed, device: Device | None, *, keep: bool
) -> Device | None:
    """The device that a session is bound to: the one that was seen first, be it this one now.

    `keep`: if nobody was, this one is from now on.
    """
    if device is not None and keep:
        await bind(tx, sealed.session, device)
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


async def take(tx: Transaction, sealed: Sealed, event_id: str) -> bool:
    """Note that a message is taken in as this event; False when it was as another one."""
    place = json.dumps([sealed.session.sender_key, sealed.session.session_id, sealed.index])
    message = hashlib.sha256(place.encode()).digest()[:MESSAGE_BYTES]
    await tx.execute(
        "INSERT INTO taken_messages (message, event_id) VALUES (?, ?) ON CONFLICT DO NOTHING",
        (message, event_id),
    )
    row = await tx.row("SELECT event_id FROM taken_messages WHERE message = ?", (message,))
    return row is not None and row["event_id"] == event_id
