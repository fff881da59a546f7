"""Whose session encrypted an event, and which of its messages it is.

nio takes the sender's word from the homeserver, takes a key for any room from anybody, and knows
until it ends which messages it has seen. So we open events ourselves: the session tells whose
device made it, its owner is kept with the first look and stays, and a message that was taken in is
no other event's, whoever shows it again (F-005).

Events need not say which device encrypted them, and are not believed where they do: a session is
looked for by room and id among all keys that came, and whoever was in the room can send it as
theirs. So each sender's copy is kept, and only the event's sender's counts (F-057).
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

    def is_of(self, user_id: str) -> bool:
        """Say if its key came from a device of this user."""
        return self.device is not None and self.device.user_id == user_id


class KeyFile(DefaultStore):  # type: ignore[misc]  # nio is not typed
    """nio's store. In its table a session id has one row, whoever sent it and for whatever room: so
    ids have our names there, which nobody else looks for; those of before keep theirs.
    """

    def load_inbound_group_sessions(self) -> GroupSessionStore:
        """All of them; of two of one sender that will stay which opens more."""
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
        """Keep a sender's copy of a session, unless theirs that is there opens as much."""
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
    """The sessions of others in nio's store."""

    def __init__(self, nio: AsyncClient) -> None:
        self._nio = nio

    def opened(self, room_id: str, event: Json) -> Opened | None:
        """A room event in clear and whence it came; None while its key is missing or it is garbage."""
        return next(iter(self.heard(room_id, event)), None)

    def heard(self, room_id: str, event: Json) -> list[Opened]:
        """Open an event as `ways` does; ask its sender for a key or device that is missing."""
        found, sender = self.ways(room_id, event), event["sender"]
        encrypted = megolm(event) if event["type"] == "m.room.encrypted" else None
        if encrypted is None or self._nio.olm is None or any(each.is_of(sender) for each in found):
            return found
        said, olm = encrypted["content"], self._nio.olm
        devices = olm.device_store.active_user_devices(sender)
        asked = [each for each in devices if said.get("device_id") in (None, each.id)]
        if not asked or any(each.device is None for each in found):
            olm.users_for_key_query.add(sender)
        for device in asked:  # by nio's machine, as when it decrypts
            named = {"device_id": device.id, "sender_key": device.curve25519}
            parsed = MegolmEvent.from_dict({**encrypted, "content": {**said, **named}})
            if isinstance(parsed, MegolmEvent):
                parsed.room_id = room_id
                olm.check_if_wedged(parsed)
        return found

    def ways(self, room_id: str, event: Json) -> list[Opened]:
        """A room event in clear, by each copy of its session that opens it: its sender's first."""
        if event["type"] != "m.room.encrypted":
            return [Opened(event)]
        if (encrypted := megolm(event)) is None:
            return []
        said, found = encrypted["content"], list[Opened]()
        for session in self.copies(room_id, said["session_id"]).values():
            try:
                text, index = session.decrypt(said["ciphertext"])
                clear = unsealed(json.loads(text), room_id, event)
            except UNREADABLE:
                continue
            if clear is not None:
                group = GroupSession(room_id, session.sender_key, session.id)
                device = self._owner(group, session.ed25519, event["sender"])
                found.append(Opened(clear, device, Sealed(group, index, session.ed25519)))
        return sorted(found, key=lambda each: not each.is_of(event["sender"]))

    def owner(self, room_id: str, event: Json) -> str:
        """Whose device a key came from that opens an event; "" if that is not known."""
        owners = (each.device.user_id for each in self.ways(room_id, event) if each.device)
        return next(owners, "")

    def copies(self, room_id: str, session_id: str) -> dict[str, Any]:
        """The sessions of this id that came for a room, by the keys of the devices that sent them."""
        sent = self._nio.olm.inbound_group_store[room_id].items() if self._nio.olm else ()
        return {key: sessions[session_id] for key, sessions in sent if session_id in sessions}

    def owned(self, keys: Iterable[RoomKeyEvent]) -> list[tuple[str, GroupSession, Device | None]]:
        """Of keys that came: sender, session, and its device if that is one we know."""
        found: list[tuple[str, GroupSession, Device | None]] = []
        for key in keys:
            group = GroupSession(key.room_id, key.sender_key, key.session_id)
            session = self._nio.olm.inbound_group_store.get(*group)
            if session is not None:
                found.append((key.sender, group, self._owner(group, session.ed25519, key.sender)))
        return found

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
    """Note that a message is taken in as this event, whoever's copy opened it; False when it was as
    another one.
    """
    place = json.dumps([sealed.session.room_id, sealed.session.session_id, sealed.index])
    message = hashlib.sha256(place.encode()).digest()[:MESSAGE_BYTES]
    await tx.execute(
        "INSERT INTO seen_messages (message, event_id) VALUES (?, ?) ON CONFLICT DO NOTHING",
        (message, event_id),
    )
    row = await tx.row("SELECT event_id FROM seen_messages WHERE message = ?", (message,))
    return row is not None and row["event_id"] == event_id
