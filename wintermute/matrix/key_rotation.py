"""Key rotation after a restore: new keys for a device whose key store is a backup.

An Olm session that was used after the backup would use a key twice, and the other side drops such
messages. The private parts of one-time keys uploaded after the backup are gone.
"""

import logging
from collections.abc import Awaitable, Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from nio import AsyncClient
from nio.crypto import OlmDevice
from peewee import PeeweeException

from wintermute.clock import Clock
from wintermute.errors import DeviceSpent, HomeserverUnavailable, SendRefused
from wintermute.matrix.http import call, path
from wintermute.matrix.kept_login import Session, store_file
from wintermute.matrix.key_store import KeyNotes, KeyStore, blocked
from wintermute.matrix.people import usable_one_time_keys

log = logging.getLogger(__name__)

MOST_CLAIMS = 500
"""The most one-time keys to claim; more than any client uploads."""
STALE = "stale"
"""The kind of notes in the key store that hold stale session ids."""
INHERITED = "inherited"
DUE = "renewal"
"""The note of an unfinished rotation; no session has this name."""
SETTLED_SECONDS = 3.0
"""Seconds to wait first: a second running copy may have to stop, and must not have newer sessions."""


class KeyRotation:
    """Replaces the keys of our device. Until then nothing is encrypted."""

    def __init__(
        self, nio: AsyncClient, store: KeyStore, clock: Clock, upload: Callable[[], Awaitable[bool]]
    ) -> None:
        """`upload` uploads new one-time keys; returns False if they are refused."""
        self._nio = nio
        self._store = store
        self._clock = clock
        self._upload = upload
        self._ready_at = 0.0
        self._cached: frozenset[str] | None = None
        self._is_wanted = False

    @property
    def _notes(self) -> KeyNotes:
        return KeyNotes(self._nio.store.database)

    @property
    def _stale(self) -> frozenset[str]:
        """The ids of stale Olm sessions; includes DUE until the rotation is finished."""
        if self._cached is None:
            with self._store.writing():
                self._cached = self._notes.values(STALE)
        return self._cached

    @property
    def is_due(self) -> bool:
        """True from `begin` until the rotation is finished, also after a restart."""
        return self._is_wanted or DUE in self._stale

    def begin(self) -> None:
        """Use no existing session from now on, even if that cannot be stored yet.

        Raises: KeyStoreBlocked.
        """
        self._is_wanted = True
        with self._store.writing():
            self._notes.add_olm_sessions(STALE, DUE)
            stale = self._notes.values(STALE)
        self._cached, self._is_wanted = stale, False
        self._nio.olm.outbound_group_sessions.clear()
        self._ready_at = self._clock.monotonic() + SETTLED_SECONDS

    def session(self, curve25519: str) -> Any | None:
        """Return the Olm session for a device; None if a new one is needed."""
        if self._is_wanted:
            return None
        sessions = self._nio.olm.session_store[curve25519]
        return next((each for each in sessions if each.id not in self._stale), None)

    async def run(self) -> bool:
        """Use up our keys at the homeserver, upload new ones, and begin all sessions anew.

        Returns False if no rotation was due. Raises: DeviceSpent, HomeserverUnavailable if it is
        too early.
        """
        if not self.is_due:
            return False
        if self._is_wanted:
            self.begin()
        if (left := self._ready_at - self._clock.monotonic()) > 0:
            raise HomeserverUnavailable("our keys come from a backup and are replaced now", left)
        claimed = await self._use_up()
        self._nio.olm.uploaded_key_count = 0
        if not await self._upload():
            raise DeviceSpent(f"the homeserver takes no new keys of device {self._nio.device_id}")
        # Each gets an empty message in a new session, and uses that one from then on.
        wedged = self._nio.olm.wedged_devices
        wedged.extend(device for device in self._correspondents() if device not in wedged)
        with self._store.writing():
            self._notes.remove(STALE, DUE)
        self._cached = self._stale - {DUE}
        log.info("encryption keys renewed claimed=%s", claimed)
        return True

    async def _use_up(self) -> int:
        """Claim our own one-time keys, so that nobody uses one whose private part is gone."""
        us, device = self._nio.user_id, self._nio.device_id
        body = {"one_time_keys": {us: {device: "signed_curve25519"}}}
        for count in range(MOST_CLAIMS):
            try:
                answer = await call(self._nio, "POST", path("keys", "claim"), body)
            except SendRefused as error:  # then messages that use one of them are undecryptable
                log.warning("one-time keys not used up reason=%s", error.code)
                return count
            usable, _ = usable_one_time_keys(answer, {us: [device]})
            keys = [key for _, _, each in usable for key in each.values()]
            if not keys or any("fallback" in key for key in keys):
                return count
        return MOST_CLAIMS

    def _correspondents(self) -> list[OlmDevice]:
        """Return the devices of other people, and our own, that may have a stale session."""
        olm = self._nio.olm
        users = {user for room in self._nio.rooms.values() if room.encrypted for user in room.users}
        return [
            device
            for user in sorted(users)
            for device in olm.device_store.active_user_devices(user)
            if (user, device.id) != (self._nio.user_id, self._nio.device_id)
        ]


def inherit(nio: AsyncClient, session: Session) -> None:
    """Copy the room keys of the replaced device, once, so that its messages stay readable.

    Raises: KeyStoreBlocked for that device's file.
    """
    notes = KeyNotes(nio.store.database)
    if not session.predecessor or session.predecessor in notes.values(INHERITED):
        return
    folder = Path(nio.store.store_path)
    file = store_file(folder, replace(session, device_id=session.predecessor))
    if not file.exists():
        return
    device = (session.user_id, session.predecessor)
    try:
        before = type(nio.store)(*device, str(folder), session.pickle_key, file.name)
        with closing(before.database):
            inherited = list(before.load_inbound_group_sessions())
    except PeeweeException as error:
        if blocked_error := blocked(file, error):
            raise blocked_error from error
        raise
    for each in inherited:
        if nio.olm.inbound_group_store.add(each):
            nio.store.save_inbound_group_session(each)
    notes.note(INHERITED, session.predecessor)
