"""New keys for a device whose key store is an earlier copy: what the old ones sealed went on without us.

An Olm session that was used since then gives the same key for another message, which the other side
drops; and the secrets of one-time keys that were uploaded since then are gone.
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
"""One-time keys that a homeserver may say it has of us; more than any client uploads."""
STALE = "stale"
"""The kind of our notes beside the keys that names sessions."""
INHERITED = "inherited"
DUE = "renewal"
"""No session has this name."""
SETTLED_SECONDS = 3.0
"""Another copy may be at work beside us, which ends: its sessions must not be the newest there are."""


class Renewal:
    """Takes the device back into use. Until that is done nothing is encrypted."""

    def __init__(
        self, nio: AsyncClient, store: KeyStore, clock: Clock, upload: Callable[[], Awaitable[bool]]
    ) -> None:
        """`upload`: offers new one-time keys until they are accepted; whether they were."""
        self._nio = nio
        self._store = store
        self._clock = clock
        self._upload = upload
        self._settled_at = 0.0
        self._read: frozenset[str] | None = None
        self._is_wanted = False

    @property
    def _notes(self) -> KeyNotes:
        return KeyNotes(self._nio.store.database)

    @property
    def _stale(self) -> frozenset[str]:
        """Which Olm sessions seal nothing any more; DUE among them while this is not over."""
        if self._read is None:
            with self._store.writing():
                self._read = self._notes.values(STALE)
        return self._read

    @property
    def is_due(self) -> bool:
        """Whether it was begun and is not over, in this run or in an earlier one."""
        return self._is_wanted or DUE in self._stale

    def begin(self) -> None:
        """From now on nothing is sealed with what there is, even if that cannot be kept yet.

        Raises: KeyStoreBlocked.
        """
        self._is_wanted = True
        with self._store.writing():
            self._notes.add_olm_sessions(STALE, DUE)
            stale = self._notes.values(STALE)
        self._read, self._is_wanted = stale, False
        self._nio.olm.outbound_group_sessions.clear()
        self._settled_at = self._clock.monotonic() + SETTLED_SECONDS

    def session(self, curve25519: str) -> Any | None:
        """The Olm session to seal something with for a device; None when a new one is wanted."""
        if self._is_wanted:
            return None
        sessions = self._nio.olm.session_store[curve25519]
        return next((each for each in sessions if each.id not in self._stale), None)

    async def run(self) -> bool:
        """Use up our keys at the homeserver, give it new ones, and have all sessions begun anew.

        Whether that was due. Raises: DeviceSpent, HomeserverUnavailable when it is too early.
        """
        if not self.is_due:
            return False
        if self._is_wanted:
            self.begin()
        if (left := self._settled_at - self._clock.monotonic()) > 0:
            raise HomeserverUnavailable("our keys are an earlier copy and are replaced now", left)
        claimed = await self._use_up()
        self._nio.olm.uploaded_key_count = 0
        if not await self._upload():
            raise DeviceSpent(f"the homeserver takes no new keys of device {self._nio.device_id}")
        # Each is told by an empty message in a new session, and answers in that one.
        wedged = self._nio.olm.wedged_devices
        wedged.extend(device for device in self._correspondents() if device not in wedged)
        with self._store.writing():
            self._notes.remove(STALE, DUE)
        self._read = self._stale - {DUE}
        log.info("encryption keys renewed claimed=%s", claimed)
        return True

    async def _use_up(self) -> int:
        """Claim our one-time keys, so that nobody begins a session with one whose secret is gone."""
        us, device = self._nio.user_id, self._nio.device_id
        body = {"one_time_keys": {us: {device: "signed_curve25519"}}}
        for count in range(MOST_CLAIMS):
            try:
                answer = await call(self._nio, "POST", path("keys", "claim"), body)
            except SendRefused as error:  # then who takes one of them says what we cannot read
                log.warning("our own keys are not given out reason=%s", error.code)
                return count
            usable, _ = usable_one_time_keys(answer, {us: [device]})
            keys = [key for _, _, each in usable for key in each.values()]
            if not keys or any("fallback" in key for key in keys):
                return count
        return MOST_CLAIMS

    def _correspondents(self) -> list[OlmDevice]:
        """Devices of others, and of ours, that may hold an old session."""
        olm = self._nio.olm
        users = {user for room in self._nio.rooms.values() if room.encrypted for user in room.users}
        return [
            device
            for user in sorted(users)
            for device in olm.device_store.active_user_devices(user)
            if (user, device.id) != (self._nio.user_id, self._nio.device_id)
        ]


def inherit(nio: AsyncClient, session: Session) -> None:
    """Take over the room keys of the device before, once: what was said to it stays readable.

    Raises: KeyStoreBlocked for the file of that device.
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
        if told := blocked(file, error):
            raise told from error
        raise
    for each in inherited:
        if nio.olm.inbound_group_store.add(each):
            nio.store.save_inbound_group_session(each)
    notes.note(INHERITED, session.predecessor)
