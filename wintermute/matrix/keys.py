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

ASK_AGAIN_SECONDS = 60.0
"""Seconds after a query without an answer for somebody: their homeserver may be down for long."""
UPLOAD_AGAIN_SECONDS = 3600.0
CLAIM_AGAIN_SECONDS = 60.0
"""Seconds after a device had no one-time key left for a new session."""
DEVICES_A_REQUEST = 20
MOST_COLLISIONS = 40
"""Uploads with names that the homeserver knows already; together more keys than a year makes."""
UNVERIFIED = "The owner of this session has not verified it."
OTHER_KEYS = (
    "This session has other keys than before, and nobody vouches for them. Please log it out, and "
    "log in again."
)
MEGOLM = "m.megolm.v1.aes-sha2"
REFUSED_SECONDS = 3600.0
UNAVAILABLE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class SharedSession:
    """The devices that shall get the key of a session, that have it, and that got a refusal."""

    session_id: str
    meant: frozenset[Device]
    given: frozenset[Device] = frozenset()
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
        self._claimed: dict[Device, float] = {}
        self._uploaded: KeysUploadResponse | None = None
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
        self.fallback.note(lacks=keys.lacks_fallback)

    def drop(self, count: int = 1) -> None:
        """Count discarded devices, keys or to-device events of others."""
        self._dropped += count

    def take_dropped(self) -> int:
        """Return the number of discarded ones since the last call."""
        dropped, self._dropped = self._dropped, 0
        return dropped

    @property
    def _followed(self) -> frozenset[str]:
        """The users whose keys we follow in unencrypted rooms, too, unlike nio: the allowed ones and us."""
        return self.people.allowed | {self._nio.user_id}

    def changed(self, users: Collection[str]) -> None:
        """Note that users have changed their devices or identity."""
        self._changed_users |= frozenset(users)

    def assume_devices_changed(self) -> None:
        """Treat every device list as changed, as changes may have been missed."""
        if (olm := self._nio.olm) is not None:
            olm.tracked_users.clear()
            olm.users_for_key_query |= {*olm.device_store.users, *self._followed}

    async def learn_devices(self) -> None:
        """Query changed devices before a decision that depends on them."""
        if self._nio.olm is not None:
            await self._query()

    def begin_session(self, user: str, curve25519: str) -> None:
        """Begin another Olm session with a device that has none with us, at most once an hour."""
        if self._nio.olm is not None and user in self._followed:
            self._nio.olm._mark_device_for_unwedging(user, curve25519)

    async def upkeep(self) -> None:
        """Do the work that is due after each sync."""
        if self._nio.olm is None:
            return
        self.store.probe()
        self._mark_uploaded()
        if await self.rotation.run():
            self.fallback.outdate()
        await self.fallback.offer()  # first: the answer to an upload counts all keys
        if self._nio.should_upload_keys and self._clock.monotonic() >= self._retry_upload_at:
            await self._upload()
            await self.fallback.offer()
        self._nio.olm.users_for_key_query |= self._changed_users & self._followed
        self._changed_users = frozenset()
        if self.identity.wants() or self._clock.monotonic() >= self._query_self_at:
            self._nio.olm.users_for_key_query.add(self._nio.user_id)
        await self._query()
        if self._own_answer and self._nio.olm.account.shared:
            await self._offer_device()
            await self.identity.settle(self._own_answer, lambda: self.ask({self._nio.user_id}))
            self._own_answer = {}
        async with self._claiming:
            if self._nio.should_claim_keys:
                await self._claim(self._nio.get_users_for_key_claiming())
                # Devices without a key are tried again at their next undecryptable message.
                self._nio.olm.wedged_devices.clear()
                self._nio.olm.key_request_devices_no_session.clear()
        await self._send_waiting()

    async def _offer_device(self) -> None:
        """Upload the keys of our device again if they are missing; others are not replaced (F-070)."""
        us, device, now = self._nio.user_id, self.identity.device(), self._clock.monotonic()
        self._served = served_device(self._own_answer, us, device)
        if self._served == "missing" and now >= self._retry_device_at:
            self._retry_device_at = now + UPLOAD_AGAIN_SECONDS
            self._nio.olm.account.shared = False  # so that nio uploads the device keys, too
            log.warning("device keys missing at the homeserver; offered again")
            if not await self._upload():
                self._nio.olm.account.shared = True  # everything else goes on as before
            self._served = served_device(await self.ask({us}), us, device)

    async def replace_identity(self, seeds: Seeds) -> IdentityState:
        """Upload the next identity in place of ours, unless that was done, and sign with it."""
        us = {self._nio.user_id}
        served = cross_signing_key(await self.ask(us), self._nio.user_id, "master")
        if served != seeds.master.public:
            await self.identity.upload(seeds)
        await self.identity.settle(await self.ask(us), lambda: self.ask(us))
        return self.identity.state

    async def share(self, room_id: str, *, apart: bool = False) -> None:
        """Give the key of the room's session to exactly the devices that may read our next message.

        A session is used as long as these devices stay the same. nio's own sharing ignores
        signatures and failed requests. `apart`: in a new session, which goes to devices of changed
        identities, too; the caller ends it after one message.
        """
        if self.rotation.is_due:
            raise HomeserverUnavailable("our keys come from a backup and are replaced first")
        room = self._nio.rooms[room_id]
        room.members_synced = True  # by /sync, which we ask for all members
        async with self._sharing.setdefault(room_id, asyncio.Lock()):
            await self._query()
            self.store.reload()  # no key goes to a device that could not be stored
            everyone = list(room.users)
            if not apart and any(map(self.people.is_changed, everyone)):
                raise HomeserverUnavailable("somebody in the room has another identity now")
            wanted, refused = self._audience(everyone, apart=apart)
            missing = await self._claim_missing(wanted)
            reached = {device: olm for device, olm in wanted.items() if device not in missing}
            if (missing or self._unanswered & set(everyone)) and not self._reaches_anybody(reached):
                raise HomeserverUnavailable("nobody in the room can be given our key yet")
            if apart or not self._is_shared_with(room_id, reached.keys()):
                await self._send_key(room_id, reached)
            await self._withhold(room_id, refused)

    def end_session(self, room_id: str) -> None:
        """Encrypt the next message of a room in a new session."""
        if self._nio.olm is not None:
            self._nio.olm.outbound_group_sessions.pop(room_id, None)

    def _audience(
        self, users: Collection[str], *, apart: bool
    ) -> tuple[dict[Device, OlmDevice], list[Device]]:
        """Return the devices that may read us, and those refused because nobody signed them."""
        wanted: dict[Device, OlmDevice] = {}
        refused: list[Device] = []
        for user in users:
            for olm_device in self._nio.olm.device_store.active_user_devices(user):
                device = known(olm_device)
                if (user, device.device_id) == (self._nio.user_id, self._nio.device_id):
                    continue
                if self._admits(device) or (apart and self.people.is_changed(user)):
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
        return self.people.is_changed(user) or any(map(self._admits, devices))

    def _admits(self, device: Device) -> bool:
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
        return shared.session_id == session.id and shared.given == frozenset(devices)

    def _unused_session(self, room_id: str, devices: Collection[Device]) -> SharedSession:
        """Return an unused session of a room for exactly these devices.

        The last one is used again if it fits: nio keeps every session, and sharing may fail often.
        """
        sessions, meant = self._nio.olm.outbound_group_sessions, frozenset(devices)
        session, shared = sessions.get(room_id), self._shared.get(room_id)
        unused = session is not None and not session.message_count and not session.expired
        if unused and shared and (shared.session_id, shared.meant) == (session.id, meant):
            return shared
        with self.store.writing():
            self._nio.olm.create_outbound_group_session(room_id)
        self._shared[room_id] = SharedSession(sessions[room_id].id, meant)
        return self._shared[room_id]

    async def _claim_missing(self, wanted: Collection[Device]) -> set[Device]:
        """Begin sessions with the devices that have none; return those where it failed."""
        if not (missing := self._without_session(wanted)):
            return missing
        async with self._claiming:
            now = self._clock.monotonic()
            missing = self._without_session(missing)
            self._claimed = {d: until for d, until in self._claimed.items() if until > now}
            due = missing - self._claimed.keys()
            if not self._reaches_anybody(set(wanted) - missing):
                due = missing
            if due:
                self._claimed |= dict.fromkeys(due, now + CLAIM_AGAIN_SECONDS)
                asked: dict[str, list[str]] = {}
                for device in due:
                    asked.setdefault(device.user_id, []).append(device.device_id)
                try:
                    await self._claim(asked)
                except KeyStoreBlocked:  # the claimed key is lost, and there are more
                    self._claimed = {d: at for d, at in self._claimed.items() if d not in due}
                    raise
        return self._without_session(missing)

    def _without_session(self, devices: Collection[Device]) -> set[Device]:
        session = self.rotation.session
        return {device for device in devices if session(device.curve25519) is None}

    async def _send_key(self, room_id: str, devices: Mapping[Device, OlmDevice]) -> None:
        """Send the key of a room's session to each device. `shared_history` is never set."""
        olm, shared = self._nio.olm, self._unused_session(room_id, devices)
        session = olm.outbound_group_sessions[room_id]
        key = {
            "algorithm": MEGOLM,
            "room_id": room_id,
            "session_id": session.id,
            "session_key": session.session_key,
        }
        for chunk in chunks([device for device in devices if device not in shared.given]):
            sealed: dict[Device, Json] = {}
            with self.store.writing():
                if self._without_session(chunk):  # lost meanwhile, as it could not be stored
                    raise HomeserverUnavailable("sessions have to begin anew")
                for device in chunk:
                    with_it = self.rotation.session(device.curve25519)
                    sealed[device] = olm._olm_encrypt(with_it, devices[device], "m.room_key", key)
            await self._to_devices("m.room.encrypted", sealed)
            shared = replace(shared, given=shared.given.union(chunk))
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
            words = {device: refusal | {"reason": self._reason(device)} for device in chunk}
            await self._to_devices("m.room_key.withheld", words)
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

    def _reaches_anybody(self, devices: Collection[Device]) -> bool:
        """Check if another user has a device that can get a key."""
        return any(device.user_id != self._nio.user_id for device in devices)

    async def _upload(self, attempts: int = 2) -> bool:
        """Upload our keys; return False if they are refused, which leaves everything else working."""
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
                # After a restored backup it may have other keys under these ids: discard ours.
                with self.store.writing():
                    self._nio.olm.mark_keys_as_published()
                    self._nio.olm.save_account()
        self._retry_upload_at = self._clock.monotonic() + UPLOAD_AGAIN_SECONDS
        return False

    async def _upload_once(self) -> None:
        olm = self._nio.olm
        with self.store.writing():
            body = olm.share_keys()
        answer = await call(self._nio, "POST", path("keys", "upload"), body)
        if not isinstance(answer.get("one_time_key_counts"), dict):
            raise HomeserverUnavailable("the homeserver does not say how many keys it has of us")
        count = counts(answer["one_time_key_counts"])
        self._counted_until = self._clock.monotonic() + UPLOAD_AGAIN_SECONDS
        self._uploaded = KeysUploadResponse(count["curve25519"], count["signed_curve25519"])
        self._mark_uploaded()

    def _mark_uploaded(self) -> None:
        """Store that these keys are uploaded; otherwise they would be uploaded again later."""
        if self._uploaded is not None:
            with self.store.writing():
                self._nio.olm.handle_response(self._uploaded)
            self._uploaded = None

    async def _query(self) -> None:
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
            # A failure may affect everybody in a request, so strangers are asked separately.
            known = wanted & self._followed
            try:
                for users in filter(None, (known, wanted - known)):
                    await self._ask(users)
            except BaseException:
                olm.users_for_key_query |= wanted
                raise

    async def ask(self, users: set[str]) -> Json:
        """Query the devices of users now; return the whole answer."""
        async with self._query_lock:
            return await self._ask(users)

    async def _ask(self, wanted: set[str]) -> Json:
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
            self._query_self_at = self._clock.monotonic() + UPLOAD_AGAIN_SECONDS
            self.identity.learn(answer["device_keys"][self._nio.user_id])
        found = {user: self.replaced.without_refused(answer, user, found[user]) for user in covered}
        changed_meanwhile = set(olm.users_for_key_query)
        with self.store.writing():
            await self._nio.receive_response(KeysQueryResponse(found, {}))  # does not wait
            restore_devices(olm, found)
        olm.users_for_key_query |= changed_meanwhile
        self.people.learn(answer, found)
        self._unanswered = (self._unanswered - covered) | (wanted - covered)
        if wanted - covered:
            self._retry_query_at = self._clock.monotonic() + ASK_AGAIN_SECONDS
            log.warning("device keys missing users=%s", len(self._unanswered))
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

    nio stores them after the homeserver's answer. After a kill before that, it would make other
    keys with the same names, which the homeserver refuses for ever. Keys of a failed upload count
    among those to be made, so that failures do not pile up keys.
    """
    make = olm.account.generate_one_time_keys

    def kept(count: int) -> None:
        make(max(0, count - len(olm.account.one_time_keys["curve25519"])))
        olm.save_account()

    olm.account.generate_one_time_keys = kept


class FallbackKey:
    """Uploads a fallback key whenever the homeserver has no unused one (MSC2732).

    It begins sessions when our one-time keys are used up, possibly many. vodozemac keeps the
    private part of the last one: its first messages may be on the way.
    """

    def __init__(self, nio: AsyncClient, store: KeyStore, clock: Clock) -> None:
        self._nio = nio
        self._store = store
        self._clock = clock
        self._lacks: bool | None = None
        self._signed: Json = {}
        self._retry_at = 0.0
        self.trouble = ""
        """The reason why the homeserver has none of ours; "" if it has one or needs none."""

    def note(self, *, lacks: bool | None) -> None:
        """Store from a sync if the homeserver lacks a fallback key; None: it has no fallback keys at all."""
        self._lacks = lacks

    def outdate(self) -> None:
        """Have the fallback key replaced, as its private part is lost; not if the homeserver knows none."""
        if self._lacks is not None:
            self._lacks = True

    async def offer(self) -> None:
        """Upload a fallback key if needed. A failure is kept in `trouble` and stops nothing else."""
        account = self._nio.olm.account
        if self._lacks is None or not account.shared:
            return
        if not self._lacks:
            if (
                account._account.fallback_key or self._signed
            ):  # it was uploaded, but the answer was lost
                self._mark_published()
            self.trouble = ""
            return
        if self._clock.monotonic() < self._retry_at:
            return
        try:
            await call(self._nio, "POST", path("keys", "upload"), {"fallback_keys": self._key()})
        except (SendRefused, HomeserverUnavailable) as error:
            refused = isinstance(error, SendRefused)
            pause = REFUSED_SECONDS if refused else UNAVAILABLE_SECONDS
            self._retry_at = self._clock.monotonic() + pause
            self.trouble = f"fallback key: {error}"
            log.warning("fallback key not uploaded reason=%s", error)
        else:
            self._mark_published()
            self.trouble = ""

    def _key(self) -> Json:
        """Return the key to upload, which is stored first and stays the same until it is uploaded.

        Each new key makes vodozemac forget the last but one, which may still be in use.
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
        self._signed, self._lacks = {}, False
