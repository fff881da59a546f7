"""Key exchange: our keys to the homeserver, other people's from it, a room's key to its devices.

We send the requests and sanitise the answers before nio processes them: malformed keys of a
stranger must not end the daemon or leave a person without an answer.
"""

import asyncio
import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakValueDictionary

from nio import (
    AsyncClient,
    KeysClaimResponse,
    KeysQueryResponse,
    KeysUploadResponse,
    ToDeviceResponse,
)
from nio.crypto import OlmDevice

from wintermute.clock import Clock
from wintermute.errors import HomeserverUnavailable, KeyStoreBlocked, SendRefused
from wintermute.ids import NewId
from wintermute.matrix.cross_signing import (
    NOT_SERVED,
    CrossSigning,
    DeviceServed,
    IdentityState,
    ReplacedDevices,
    served_device,
)
from wintermute.matrix.http import call, path
from wintermute.matrix.key_rotation import KeyRotation
from wintermute.matrix.key_store import KeyStore
from wintermute.matrix.people import (
    Device,
    People,
    covered_users,
    cross_signing_key,
    device_of,
    is_token,
    usable_devices,
    usable_one_time_keys,
)
from wintermute.matrix.sessions import known
from wintermute.matrix.signing import Seeds
from wintermute.matrix.sync_response import KeyCounts, counts
from wintermute.messages import Json

log = logging.getLogger(__name__)

QUERY_RETRY_SECONDS = 60.0
"""Pause after a query without an answer for somebody: their homeserver may be down for long."""
UPLOAD_RETRY_SECONDS = 3600.0
"""Pause after the homeserver refused our keys, or lacked the keys of our device."""
COUNT_VALID_SECONDS = 3600.0
"""Time for which the count of keys from an upload is used if syncs bring none."""
QUERY_SELF_SECONDS = 3600.0
"""Interval in which we check that the homeserver still has our own keys."""
CLAIM_RETRY_SECONDS = 60.0
"""Pause after a device had no one-time key left for a new session."""
DEVICES_A_REQUEST = 20
MOST_COLLISIONS = 40
"""Attempts to upload keys after a rollback, when the homeserver has other keys under their names.

Each attempt discards some; together they are more than we make in a year.
"""
UNVERIFIED = "The owner of this session has not verified it."
OTHER_KEYS = (
    "The keys of this session changed and you have not verified them. Log it out and in again."
)
MEGOLM = "m.megolm.v1.aes-sha2"
FALLBACK_REFUSED_SECONDS = 3600.0
FALLBACK_UNAVAILABLE_SECONDS = 60.0
"""Pauses after a fallback key was refused, or the homeserver did not answer."""


@dataclass(frozen=True, slots=True)
class SharedSession:
    """A Megolm session of a room, and which devices have its key.

    `intended`: those that shall get the key; `sent`: those that it was sent to; `withheld`: those
    that were told why they do not get it.
    """

    session_id: str
    intended: frozenset[Device]
    sent: frozenset[Device] = frozenset()
    withheld: frozenset[Device] = frozenset()


class Keys:
    """The upkeep of encryption keys at the homeserver; does nothing while encryption is off."""

    def __init__(
        self,
        nio: AsyncClient,
        new_id: NewId,
        clock: Clock,
        people: People,
        identity: CrossSigning,
        *,
        refuse_unsigned: bool,
    ) -> None:
        """`refuse_unsigned`: devices that a person with an identity did not sign get no keys."""
        self._nio = nio
        self._new_id = new_id
        self._clock = clock
        self._refuse_unsigned = refuse_unsigned
        self.store = KeyStore(nio, store_before_upload)
        self._query_lock = asyncio.Lock()
        self._claiming = asyncio.Lock()
        self._sharing: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._shared: dict[str, SharedSession] = {}
        self._claim_retry_at: dict[Device, float] = {}
        self._pending_upload_response: KeysUploadResponse | None = None
        self._own_answer: Json = {}
        self._changed_users = people.allowed
        self._unanswered: frozenset[str] = frozenset()
        self._retry_query_at = 0.0
        self._retry_upload_at = 0.0
        self._counted_until = 0.0
        self._query_self_at = self._retry_device_at = 0.0
        self._served: DeviceServed = "ours"
        self._dropped = 0
        self._trouble = ""
        self.fallback = FallbackKey(nio, self.store, clock)
        self.replaced = ReplacedDevices(nio, people, identity)
        self.people = people
        self.identity = identity
        self.rotation = KeyRotation(nio, self.store, clock, lambda: self._upload(MOST_COLLISIONS))

    @property
    def trouble(self) -> str:
        """The reasons for unusable keys, ours and others', for the status; "" while all work."""
        ours = (self._trouble, NOT_SERVED.get(self._served), self.fallback.trouble)
        return "; ".join(filter(None, (*ours, self.replaced.trouble)))

    def store_counts(self, keys: KeyCounts) -> None:
        """Store the number of our one-time keys from a sync; nio ignores zero.

        If the homeserver does not say, it has none. But its answer to our last upload is used for
        an hour; otherwise keys would be uploaded after each sync.
        """
        if self._nio.olm is None:
            return
        if keys.one_time is not None:
            self._nio.olm.uploaded_key_count = keys.one_time
        elif self._clock.monotonic() >= self._counted_until:
            self._nio.olm.uploaded_key_count = 0
        self.fallback.set_missing(keys.lacks_fallback)

    def drop(self, count: int = 1) -> None:
        """Count devices, keys or to-device events of others that were discarded as malformed."""
        self._dropped += count

    def take_dropped(self) -> int:
        """Return the count of `drop`, and begin it anew."""
        dropped, self._dropped = self._dropped, 0
        return dropped

    @property
    def _always_tracked(self) -> frozenset[str]:
        """The allowed users and us: unlike nio, we follow their keys in unencrypted rooms, too."""
        return self.people.allowed | {self._nio.user_id}

    def changed(self, users: Collection[str]) -> None:
        """Note that users have changed their devices or identity."""
        self._changed_users |= frozenset(users)

    def assume_devices_changed(self) -> None:
        """Treat every device list as changed, as changes may have been missed."""
        if (olm := self._nio.olm) is not None:
            olm.tracked_users.clear()
            olm.users_for_key_query |= {*olm.device_store.users, *self._always_tracked}

    async def learn_devices(self) -> None:
        """Query changed devices before a decision that depends on them."""
        if self._nio.olm is not None:
            await self._query_changed()

    def begin_session(self, user: str, curve25519: str) -> None:
        """Replace a broken Olm session with a device, at most once an hour."""
        if self._nio.olm is not None and user in self._always_tracked:
            self._nio.olm._mark_device_for_unwedging(user, curve25519)

    async def upkeep(self) -> None:
        """Do the work that is due after each sync."""
        if self._nio.olm is None:
            return
        self.store.probe()
        self._mark_uploaded()
        if await self.rotation.run():
            self.fallback.require_new()
        # Before the other keys: nio marks every key as published after the answer to their upload.
        await self.fallback.upload_if_needed()
        if self._nio.should_upload_keys and self._clock.monotonic() >= self._retry_upload_at:
            await self._upload()
            # Again, as a new device has to upload its device keys before a fallback key.
            await self.fallback.upload_if_needed()
        self._nio.olm.users_for_key_query |= self._changed_users & self._always_tracked
        self._changed_users = frozenset()
        if self.identity.wants() or self._clock.monotonic() >= self._query_self_at:
            self._nio.olm.users_for_key_query.add(self._nio.user_id)
        await self._query_changed()
        if self._own_answer and self._nio.olm.account.shared:
            await self._upload_missing_device_keys()
            await self.identity.settle(self._own_answer, lambda: self.ask({self._nio.user_id}))
            self._own_answer = {}
        async with self._claiming:
            if self._nio.should_claim_keys:
                await self._claim(self._nio.get_users_for_key_claiming())
                # Devices without a key are tried again at their next undecryptable message.
                self._nio.olm.wedged_devices.clear()
                self._nio.olm.key_request_devices_no_session.clear()
        await self._send_waiting()

    async def _upload_missing_device_keys(self) -> None:
        """Upload the keys of our device again if they are missing; never replace other keys (F-070)."""
        us, device, now = self._nio.user_id, self.identity.device(), self._clock.monotonic()
        self._served = served_device(self._own_answer, us, device)
        if self._served == "missing" and now >= self._retry_device_at:
            self._retry_device_at = now + UPLOAD_RETRY_SECONDS
            self._nio.olm.account.shared = False  # so that nio uploads the device keys, too
            log.warning("device keys of ours missing at the homeserver, uploading again")
            if not await self._upload():
                self._nio.olm.account.shared = True  # as before: the rest works without this upload
            self._served = served_device(await self.ask({us}), us, device)

    async def replace_identity(self, seeds: Seeds) -> IdentityState:
        """Replace our cross-signing identity by that of `seeds`, and sign our device with it.

        An identity that is uploaded already is only used for the signature.
        """
        us = {self._nio.user_id}
        served = cross_signing_key(await self.ask(us), self._nio.user_id, "master")
        if served != seeds.master.public:
            await self.identity.upload(seeds)
        await self.identity.settle(await self.ask(us), lambda: self.ask(us))
        return self.identity.state

    async def share(self, room_id: str, *, apart: bool = False) -> None:
        """Send the key of the room's session to exactly the devices that may read our next message.

        A session is used until these devices change. nio's own sharing ignores signatures and
        failed requests, so we do it ourselves.

        `apart`: use a new session, whose key also goes to the devices of people whose identity
        changed. The caller ends it after one message.

        Raises: HomeserverUnavailable while the key cannot be shared yet.
        """
        if self.rotation.is_due:
            raise HomeserverUnavailable("our keys come from a backup and have to be replaced first")
        room = self._nio.rooms[room_id]
        room.members_synced = True  # our /sync filter requests all members, so nio need not
        async with self._sharing.setdefault(room_id, asyncio.Lock()):
            await self._query_changed()
            self.store.reload()  # forget devices that could not be stored: they must get no key
            everyone = list(room.users)
            if not apart and any(map(self.people.is_changed, everyone)):
                raise HomeserverUnavailable("somebody in the room has another identity now")
            recipients, refused = self._recipients(everyone, apart=apart)
            missing = await self._claim_missing(recipients)
            reached = {device: olm for device, olm in recipients.items() if device not in missing}
            if (missing or self._unanswered & set(everyone)) and not self._includes_others(reached):
                raise HomeserverUnavailable("nobody else in the room can get our key yet")
            if apart or not self._is_shared_with(room_id, reached.keys()):
                await self._send_key(room_id, reached)
            await self._withhold(room_id, refused)

    def end_session(self, room_id: str) -> None:
        """Encrypt the next message of a room in a new session."""
        if self._nio.olm is not None:
            self._nio.olm.outbound_group_sessions.pop(room_id, None)

    def _recipients(
        self, users: Collection[str], *, apart: bool
    ) -> tuple[dict[Device, OlmDevice], list[Device]]:
        """Return the devices that may decrypt our messages, and those refused as unsigned."""
        wanted: dict[Device, OlmDevice] = {}
        refused: list[Device] = []
        for user in users:
            for olm_device in self._nio.olm.device_store.active_user_devices(user):
                device = known(olm_device)
                if (user, device.device_id) == (self._nio.user_id, self._nio.device_id):
                    continue
                if self._may_get_keys(device) or (apart and self.people.is_changed(user)):
                    wanted[device] = olm_device
                else:
                    refused.append(device)
            refused += self.replaced.refused_of(user)
        return wanted, refused

    def reaches(self, user: str) -> bool:
        """Check if somebody has a device that can decrypt our messages; True while unknown."""
        if self._nio.olm is None or user not in self._nio.olm.tracked_users:
            return True
        devices = map(known, self._nio.olm.device_store.active_user_devices(user))
        return self.people.is_changed(user) or any(map(self._may_get_keys, devices))

    def _may_get_keys(self, device: Device) -> bool:
        if device.user_id == self._nio.user_id:  # by our own key, whatever the homeserver says
            return self.identity.vouches_for(device)
        if self.people.is_changed(device.user_id):
            return False
        if not self._refuse_unsigned or not self.people.cross_signs(device.user_id):
            return True
        return self.people.is_signed_now(device)

    def _is_shared_with(self, room_id: str, devices: Collection[Device]) -> bool:
        session = self._nio.olm.outbound_group_sessions.get(room_id)
        shared = self._shared.get(room_id)
        if session is None or shared is None or session.expired or not session.shared:
            return False
        return shared.session_id == session.id and shared.sent == frozenset(devices)

    def _unused_session(self, room_id: str, devices: Collection[Device]) -> SharedSession:
        """Return an unused session of a room for exactly these devices.

        The last one is used again if it fits: nio keeps every session, and sharing may fail often.
        """
        sessions, intended = self._nio.olm.outbound_group_sessions, frozenset(devices)
        session, shared = sessions.get(room_id), self._shared.get(room_id)
        unused = session is not None and not session.message_count and not session.expired
        if unused and shared and (shared.session_id, shared.intended) == (session.id, intended):
            return shared
        with self.store.writing():
            self._nio.olm.create_outbound_group_session(room_id)
        self._shared[room_id] = SharedSession(sessions[room_id].id, intended)
        return self._shared[room_id]

    async def _claim_missing(self, wanted: Collection[Device]) -> set[Device]:
        """Begin Olm sessions with the devices that have none; return those where it failed."""
        if not (missing := self._without_session(wanted)):
            return missing
        async with self._claiming:
            now = self._clock.monotonic()
            missing = self._without_session(missing)
            self._claim_retry_at = {
                d: until for d, until in self._claim_retry_at.items() if until > now
            }
            due = missing - self._claim_retry_at.keys()
            if not self._includes_others(set(wanted) - missing):
                due = missing  # nobody else could read the message: ignore the pause
            if due:
                self._claim_retry_at |= dict.fromkeys(due, now + CLAIM_RETRY_SECONDS)
                to_claim: dict[str, list[str]] = {}
                for device in due:
                    to_claim.setdefault(device.user_id, []).append(device.device_id)
                try:
                    await self._claim(to_claim)
                except KeyStoreBlocked:  # the key that we got is lost: claim another one at once
                    self._claim_retry_at = {
                        d: at for d, at in self._claim_retry_at.items() if d not in due
                    }
                    raise
        return self._without_session(missing)

    def _without_session(self, devices: Collection[Device]) -> set[Device]:
        session = self.rotation.session
        return {device for device in devices if session(device.curve25519) is None}

    async def _send_key(self, room_id: str, devices: Mapping[Device, OlmDevice]) -> None:
        """Send the key of a room's session to each device.

        `shared_history` is never set (MSC3061): new members must not get old keys.
        """
        olm, shared = self._nio.olm, self._unused_session(room_id, devices)
        session = olm.outbound_group_sessions[room_id]
        key = {
            "algorithm": MEGOLM,
            "room_id": room_id,
            "session_id": session.id,
            "session_key": session.session_key,
        }
        for chunk in chunks([device for device in devices if device not in shared.sent]):
            encrypted: dict[Device, Json] = {}
            with self.store.writing():
                if self._without_session(chunk):  # a session was lost, as it could not be stored
                    raise HomeserverUnavailable(
                        "an Olm session could not be stored and has to be begun again"
                    )
                for device in chunk:
                    olm_session = self.rotation.session(device.curve25519)
                    encrypted[device] = olm._olm_encrypt(
                        olm_session, devices[device], "m.room_key", key
                    )
            await self._to_devices("m.room.encrypted", encrypted)
            shared = replace(shared, sent=shared.sent.union(chunk))
            self._shared[room_id] = shared
        session.shared = True

    async def _withhold(self, room_id: str, refused: Collection[Device]) -> None:
        """Send devices the reason why they get no key (Matrix spec, "Reporting that decryption
        keys are withheld").
        """
        shared = self._shared[room_id]
        refusal = {
            "algorithm": MEGOLM,
            "room_id": room_id,
            "session_id": shared.session_id,
            "sender_key": self._nio.olm.account.identity_keys["curve25519"],
            "from_device": self._nio.device_id,
            "code": "m.unverified",
        }
        for chunk in chunks([device for device in refused if device not in shared.withheld]):
            contents = {device: refusal | {"reason": self._reason(device)} for device in chunk}
            await self._to_devices("m.room_key.withheld", contents)
            shared = replace(shared, withheld=shared.withheld.union(chunk))
            self._shared[room_id] = shared

    def _reason(self, device: Device) -> str:
        """Return the reason for withholding keys from a device; its client may show it (F-069)."""
        replaced = device in self.replaced.refused_of(device.user_id)
        return OTHER_KEYS if replaced else UNVERIFIED

    async def _to_devices(self, kind: str, contents: Mapping[Device, Json]) -> None:
        messages: dict[str, dict[str, Json]] = {}
        for device, content in contents.items():
            messages.setdefault(device.user_id, {})[device.device_id] = content
        target = path("sendToDevice", kind, self._new_id("device"))
        await call(self._nio, "PUT", target, {"messages": messages})

    def _includes_others(self, devices: Collection[Device]) -> bool:
        """Check if another user has a device that can get a key."""
        return any(device.user_id != self._nio.user_id for device in devices)

    async def _upload(self, attempts: int = 2) -> bool:
        """Upload our keys; return False if they are refused. Everything else goes on working then."""
        for left in reversed(range(attempts)):
            try:
                await self._upload_once()
            except SendRefused as error:
                self._trouble = str(error)
                log.warning("keys refused reason=%s", error.code)
            else:
                self._trouble = ""
                return True
            if left:
                # After a rollback the homeserver may have other keys under these names: discard ours.
                with self.store.writing():
                    self._nio.olm.mark_keys_as_published()
                    self._nio.olm.save_account()
        self._retry_upload_at = self._clock.monotonic() + UPLOAD_RETRY_SECONDS
        return False

    async def _upload_once(self) -> None:
        olm = self._nio.olm
        with self.store.writing():
            body = olm.share_keys()
        answer = await call(self._nio, "POST", path("keys", "upload"), body)
        if not isinstance(answer.get("one_time_key_counts"), dict):
            raise HomeserverUnavailable("the homeserver does not say how many keys it has of us")
        count = counts(answer["one_time_key_counts"])
        self._counted_until = self._clock.monotonic() + COUNT_VALID_SECONDS
        self._pending_upload_response = KeysUploadResponse(
            count["curve25519"], count["signed_curve25519"]
        )
        self._mark_uploaded()

    def _mark_uploaded(self) -> None:
        """Mark the keys of the last upload as published, so that they are not uploaded again."""
        if self._pending_upload_response is not None:
            with self.store.writing():
                self._nio.olm.handle_response(self._pending_upload_response)
            self._pending_upload_response = None

    async def _query_changed(self) -> None:
        """Query the devices of all users that are new or have changed.

        Only one query runs at a time; other callers wait for its answer.
        """
        olm = self._nio.olm
        async with self._query_lock:
            wanted = set(filter(is_token, olm.users_for_key_query | self._unanswered))
            if self._clock.monotonic() < self._retry_query_at:
                wanted -= self._unanswered
            if not wanted:
                return
            olm.users_for_key_query -= wanted
            # A failure may affect everybody in a request, so strangers get one of their own.
            tracked = wanted & self._always_tracked
            try:
                for users in filter(None, (tracked, wanted - tracked)):
                    await self._query_users(users)
            except BaseException:
                olm.users_for_key_query |= wanted
                raise

    async def ask(self, users: set[str]) -> Json:
        """Query the devices of users now; return the whole answer."""
        async with self._query_lock:
            return await self._query_users(users)

    async def _query_users(self, wanted: set[str]) -> Json:
        olm = self._nio.olm
        everything: list[str] = []  # an empty list means all devices
        body = {"device_keys": dict.fromkeys(wanted, everything)}
        answer = await call(self._nio, "POST", path("keys", "query"), body)
        before = {user: list(olm.device_store.devices(user)) for user in wanted}
        found, dropped = usable_devices(answer, wanted, before)
        self.drop(dropped)
        covered = covered_users(answer, found)
        if self._nio.user_id in covered:
            self._own_answer = answer
            self._query_self_at = self._clock.monotonic() + QUERY_SELF_SECONDS
            self.identity.learn(answer["device_keys"][self._nio.user_id])
        found = {user: self.replaced.without_refused(answer, user, found[user]) for user in covered}
        changed_meanwhile = set(olm.users_for_key_query)
        with self.store.writing():
            # This call never suspends, so it may run inside `writing()`.
            await self._nio.receive_response(KeysQueryResponse(found, {}))
            restore_devices(olm, found)
        olm.users_for_key_query |= changed_meanwhile
        self.people.learn(answer, found)
        self._unanswered = (self._unanswered - covered) | (wanted - covered)
        if wanted - covered:
            self._retry_query_at = self._clock.monotonic() + QUERY_RETRY_SECONDS
            log.warning("key query unanswered users=%s", len(self._unanswered))
        return answer

    async def _claim(self, wanted: Mapping[str, Collection[str]]) -> None:
        body = {
            "one_time_keys": {
                user: dict.fromkeys(devices, "signed_curve25519")
                for user, devices in wanted.items()
            }
        }
        answer = await call(self._nio, "POST", path("keys", "claim"), body)
        usable, dropped = usable_one_time_keys(answer, wanted)
        for user, device, key in usable:
            try:
                with self.store.writing():
                    self._nio.olm.handle_response(KeysClaimResponse({user: {device: key}}, {}))
            except ValueError:  # an invalid curve point
                dropped += 1
        self.drop(dropped)

    async def _send_waiting(self) -> None:
        """Send the to-device messages that nio has queued."""
        for message in list(self._nio.outgoing_to_device_messages):
            target = path("sendToDevice", message.type, self._new_id("device"))
            try:
                await call(self._nio, "PUT", target, message.as_dict())
            except SendRefused as error:
                log.warning("to-device message refused reason=%s", error)
            with self.store.writing():
                self._nio.olm.handle_response(ToDeviceResponse(message))


def restore_devices(olm: Any, found: Mapping[str, Mapping[str, Json]]) -> None:
    """Mark devices as present again, which nio does not do if their keys did not change."""
    back: dict[str, dict[str, OlmDevice]] = {}
    for user, devices in found.items():
        for name, served in devices.items():
            device = olm.device_store[user].get(name)
            if device and device.deleted and known(device) == device_of(user, name, served):
                device.deleted = False
                back.setdefault(user, {})[name] = device
    olm.store.save_device_keys(back)


def chunks(devices: Sequence[Device]) -> Iterator[Sequence[Device]]:
    """Split devices into chunks of one request."""
    return (devices[n : n + DEVICES_A_REQUEST] for n in range(0, len(devices), DEVICES_A_REQUEST))


def store_before_upload(olm: Any) -> None:
    """Make nio store new one-time keys before they are uploaded.

    nio itself stores them after the homeserver's answer. After a kill before that, it would make
    other keys with the same names, which the homeserver refuses for ever. The keys of a failed
    upload are used first, so that failures do not pile up keys.
    """
    generate = olm.account.generate_one_time_keys

    def generate_and_store(count: int) -> None:
        generate(max(0, count - len(olm.account.one_time_keys["curve25519"])))
        olm.save_account()

    olm.account.generate_one_time_keys = generate_and_store


class FallbackKey:
    """Uploads a fallback key whenever the homeserver has no unused one (MSC2732).

    Other devices begin sessions with it when our one-time keys are used up. vodozemac keeps the
    private part of the previous one, because messages to it may still be on the way.
    """

    def __init__(self, nio: AsyncClient, store: KeyStore, clock: Clock) -> None:
        self._nio = nio
        self._store = store
        self._clock = clock
        self._is_missing: bool | None = None
        self._signed: Json = {}
        self._retry_at = 0.0
        self.trouble = ""
        """The reason why the homeserver has no fallback key of ours; "" if it has one or needs none."""

    def set_missing(self, is_missing: bool | None) -> None:
        """Store from a sync if the homeserver lacks a fallback key; None: it does not support them."""
        self._is_missing = is_missing

    def require_new(self) -> None:
        """Replace the fallback key at the next upload: its private part is lost.

        Does nothing at a homeserver that does not support fallback keys.
        """
        if self._is_missing is not None:
            self._is_missing = True

    async def upload_if_needed(self) -> None:
        """Upload a fallback key if needed. A failure is kept in `trouble` and stops nothing else."""
        account = self._nio.olm.account
        if self._is_missing is None or not account.shared:
            return
        if not self._is_missing:
            # An unpublished key here was uploaded, but the answer was lost.
            if account._account.fallback_key or self._signed:
                self._mark_published()
            self.trouble = ""
            return
        if self._clock.monotonic() < self._retry_at:
            return
        try:
            await call(self._nio, "POST", path("keys", "upload"), {"fallback_keys": self._key()})
        except (SendRefused, HomeserverUnavailable) as error:
            refused = isinstance(error, SendRefused)
            pause = FALLBACK_REFUSED_SECONDS if refused else FALLBACK_UNAVAILABLE_SECONDS
            self._retry_at = self._clock.monotonic() + pause
            self.trouble = f"fallback key: {error}"
            log.warning("fallback key not uploaded reason=%s", error)
        else:
            self._mark_published()
            self.trouble = ""

    def _key(self) -> Json:
        """Return the key to upload. It is stored first, and stays the same until it is uploaded.

        vodozemac keeps only two fallback keys: with each new one it forgets the older one, which
        may still be in use.
        """
        olm = self._nio.olm
        account = olm.account._account  # nio has no public name for it
        if not self._signed:
            if not account.fallback_key:
                with self._store.writing():
                    account = olm.account._account
                    account.generate_fallback_key()
                    olm.save_account()
            [(name, key)] = account.fallback_key.items()
            content: Json = {"key": key.to_base64(), "fallback": True}
            signature = {f"ed25519:{olm.device_id}": olm.sign_json(content)}
            content["signatures"] = {olm.user_id: signature}
            self._signed = {f"signed_curve25519:{name}": content}
        return self._signed

    def _mark_published(self) -> None:
        with self._store.writing():
            self._nio.olm.mark_keys_as_published()
            self._nio.olm.save_account()
        self._signed, self._is_missing = {}, False
