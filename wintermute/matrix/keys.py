"""Keys on the wire: ours to the homeserver, other people's from it, a room's to its devices.

Requests are our own, answers are sifted, and only then nio's machine sees them: what a stranger
has uploaded must not end the daemon, nor leave a person without an answer.
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
from wintermute.matrix.key_store import KeyStore
from wintermute.matrix.people import (
    Device,
    People,
    cross_signing_key,
    device_of,
    is_token,
    told_of,
    usable_devices,
    usable_one_time_keys,
)
from wintermute.matrix.renewal import Renewal
from wintermute.matrix.sessions import known
from wintermute.matrix.sieve import KeysLeft, counts
from wintermute.matrix.signing import Seeds
from wintermute.messages import Json

log = logging.getLogger(__name__)

ASK_AGAIN_SECONDS = 60.0
"""After a query in which somebody was missing: their homeserver may be away for long."""
UPLOAD_AGAIN_SECONDS = 3600.0
CLAIM_AGAIN_SECONDS = 60.0
"""After a device had no one-time key left to begin a session with."""
DEVICES_A_REQUEST = 20
MOST_COLLISIONS = 40
"""Uploads whose names the homeserver knows already: 50 keys each, more than are made in a year."""
UNVERIFIED = "The owner of this session has not verified it."
OTHER_KEYS = (
    "This session has other keys than before, and nobody vouches for them. Please log it out, and "
    "log in again."
)
MEGOLM = "m.megolm.v1.aes-sha2"


@dataclass(frozen=True, slots=True)
class Shared:
    """Which devices are to have the key of a session, have it, and were told that they do not get it."""

    session_id: str
    meant: frozenset[Device]
    given: frozenset[Device] = frozenset()
    withheld: frozenset[Device] = frozenset()


class Keys:
    """What encryption wants done on the homeserver; nothing while it is off."""

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
        self.store = KeyStore(nio, keep_before_upload)
        self._turn = asyncio.Lock()
        self._claiming = asyncio.Lock()
        self._sharing: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._shared: dict[str, Shared] = {}
        self._claimed: dict[Device, float] = {}
        self._uploaded: KeysUploadResponse | None = None
        self._own: Json = {}
        self._watched = people.allowed
        self._unanswered: frozenset[str] = frozenset()
        self._ask_again = 0.0
        self._upload_again = 0.0
        self._counted_until = 0.0
        self._look_again = self._offer_again = 0.0
        self._served: DeviceServed = "ours"
        self._dropped = 0
        self._trouble = ""
        self.fallback = FallbackKey(nio, self.store, clock)
        self.replaced = ReplacedDevices(nio, people, identity)
        self.people = people
        self.identity = identity
        self.renewal = Renewal(nio, self.store, clock, lambda: self._upload(MOST_COLLISIONS))

    @property
    def trouble(self) -> str:
        """The reasons for unusable keys, ours and others', for the status; "" while all work."""
        ours = (self._trouble, NOT_SERVED.get(self._served), self.fallback.trouble)
        return "; ".join(filter(None, (*ours, self.replaced.trouble)))

    def left(self, keys: KeysLeft) -> None:
        """Take in what a sync says of our keys, which nio does not where none is left.

        A homeserver that is silent has none; but what it said to our upload holds for an hour, or
        it would be given more after each sync.
        """
        if self._nio.olm is None:
            return
        if keys.one_time is not None:
            self._nio.olm.uploaded_key_count = keys.one_time
        elif self._clock.monotonic() >= self._counted_until:
            self._nio.olm.uploaded_key_count = 0
        self.fallback.note(lacks=keys.lacks_fallback)

    def drop(self, count: int = 1) -> None:
        """Count devices, keys or to-device events of others that were passed over."""
        self._dropped += count

    def take_dropped(self) -> int:
        """How many were passed over since the last call."""
        dropped, self._dropped = self._dropped, 0
        return dropped

    @property
    def _followed(self) -> frozenset[str]:
        """Of whom we want to know in plain rooms too, which nio does not: the allowed, and us."""
        return self.people.allowed | {self._nio.user_id}

    def changed(self, users: Collection[str]) -> None:
        """Somebody has changed something about their devices or identity."""
        self._watched |= frozenset(users)

    def doubt_devices(self) -> None:
        """Take any device list as changed, because nobody told us."""
        if (olm := self._nio.olm) is not None:
            olm.tracked_users.clear()
            olm.users_for_key_query |= {*olm.device_store.users, *self._followed}

    async def learn_devices(self) -> None:
        """Ask for whatever changed about devices before something is judged by it."""
        if self._nio.olm is not None:
            await self._query()

    def begin_anew(self, user: str, curve25519: str) -> None:
        """Begin another Olm session with a device that has none with us, once an hour at most."""
        if self._nio.olm is not None and user in self._followed:
            self._nio.olm._mark_device_for_unwedging(user, curve25519)

    async def upkeep(self) -> None:
        """What is to be done after each sync."""
        if self._nio.olm is None:
            return
        self.store.probe()
        self._mark_uploaded()
        if await self.renewal.run():
            self.fallback.outdate()
        await self.fallback.offer()  # first: the answer to an upload counts for all keys
        if self._nio.should_upload_keys and self._clock.monotonic() >= self._upload_again:
            await self._upload()
            await self.fallback.offer()
        self._nio.olm.users_for_key_query |= self._watched & self._followed
        self._watched = frozenset()
        if self.identity.wants() or self._clock.monotonic() >= self._look_again:
            self._nio.olm.users_for_key_query.add(self._nio.user_id)
        await self._query()
        if self._own and self._nio.olm.account.shared:
            await self._offer_device()
            await self.identity.settle(self._own, lambda: self.ask({self._nio.user_id}))
            self._own = {}
        async with self._claiming:
            if self._nio.should_claim_keys:
                await self._claim(self._nio.get_users_for_key_claiming())
                # Who has no key to give is tried again at the next message we cannot read.
                self._nio.olm.wedged_devices.clear()
                self._nio.olm.key_request_devices_no_session.clear()
        await self._send_waiting()

    async def _offer_device(self) -> None:
        """Give the homeserver the keys of our device again if it has none; others stay (F-070)."""
        us, device, now = self._nio.user_id, self.identity.device(), self._clock.monotonic()
        self._served = served_device(self._own, us, device)
        if self._served == "missing" and now >= self._offer_again:
            self._offer_again = now + UPLOAD_AGAIN_SECONDS
            self._nio.olm.account.shared = False  # for nio to offer more than one-time keys
            log.warning("device keys missing at the homeserver; offered again")
            if not await self._upload():
                self._nio.olm.account.shared = True  # all else goes on as before
            self._served = served_device(await self.ask({us}), us, device)

    async def replace_identity(self, seeds: Seeds) -> IdentityState:
        """Upload the next identity in the place of ours, unless that was done, and sign with it."""
        us = {self._nio.user_id}
        served = cross_signing_key(await self.ask(us), self._nio.user_id, "master")
        if served != seeds.master.public:
            await self.identity.upload(seeds)
        await self.identity.settle(await self.ask(us), lambda: self.ask(us))
        return self.identity.state

    async def share(self, room_id: str, *, apart: bool = False) -> None:
        """See that every device that is to read our next message in a room has its key, and no other.

        A session is used as long as exactly the same devices are to have it. nio's own sharing
        knows no signatures, and passes over a request that failed. `apart`: in a new session,
        which goes to the devices of changed identities too; whoever asks ends it after one message.
        """
        if self.renewal.is_due:
            raise HomeserverUnavailable("our keys are an earlier copy and are replaced first")
        room = self._nio.rooms[room_id]
        room.members_synced = True  # by /sync, which we ask to leave none out
        async with self._sharing.setdefault(room_id, asyncio.Lock()):
            await self._query()
            self.store.fresh()  # no key goes to a device of which only nio's memory has heard
            everyone = list(room.users)
            if not apart and any(map(self.people.is_changed, everyone)):
                raise HomeserverUnavailable("somebody in the room has another identity now")
            wanted, refused = self._audience(everyone, apart=apart)
            missing = await self._claim_missing(wanted)
            reached = {device: olm for device, olm in wanted.items() if device not in missing}
            if (missing or self._unanswered & set(everyone)) and not self._reaches_anybody(reached):
                raise HomeserverUnavailable("nobody in the room can be given our key yet")
            if apart or not self._is_shared_with(room_id, reached.keys()):
                await self._give(room_id, reached)
            await self._withhold(room_id, refused)

    def end_session(self, room_id: str) -> None:
        """The next message of a room is encrypted anew."""
        if self._nio.olm is not None:
            self._nio.olm.outbound_group_sessions.pop(room_id, None)

    def _audience(
        self, users: Collection[str], *, apart: bool
    ) -> tuple[dict[Device, OlmDevice], list[Device]]:
        """The devices that are to read us, and those that must not as nobody vouches for them."""
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
        """Check that somebody has a device that can decrypt our messages; true while unknown."""
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

    def _begin(self, room_id: str, devices: Collection[Device]) -> Shared:
        """A session for a room in which nothing was said yet, for just these devices.

        The last one if it is that: nio keeps each for ever, and attempts to share one may fail often.
        """
        sessions, meant = self._nio.olm.outbound_group_sessions, frozenset(devices)
        session, shared = sessions.get(room_id), self._shared.get(room_id)
        unused = session is not None and not session.message_count and not session.expired
        if unused and shared and (shared.session_id, shared.meant) == (session.id, meant):
            return shared
        with self.store.writing():
            self._nio.olm.create_outbound_group_session(room_id)
        self._shared[room_id] = Shared(sessions[room_id].id, meant)
        return self._shared[room_id]

    async def _claim_missing(self, wanted: Collection[Device]) -> set[Device]:
        """Begin sessions with the devices that we have none with; those with which it failed."""
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
                except KeyStoreBlocked:  # they had a key to give, and have another
                    self._claimed = {d: at for d, at in self._claimed.items() if d not in due}
                    raise
        return self._without_session(missing)

    def _without_session(self, devices: Collection[Device]) -> set[Device]:
        session = self.renewal.session
        return {device for device in devices if session(device.curve25519) is None}

    async def _give(self, room_id: str, devices: Mapping[Device, OlmDevice]) -> None:
        """A session for a room, its key sent to each device. `shared_history` is never set."""
        olm, shared = self._nio.olm, self._begin(room_id, devices)
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
                if self._without_session(chunk):  # forgotten meanwhile: it could not be stored
                    raise HomeserverUnavailable("sessions have to begin anew")
                for device in chunk:
                    with_it = self.renewal.session(device.curve25519)
                    sealed[device] = olm._olm_encrypt(with_it, devices[device], "m.room_key", key)
            await self._to_devices("m.room.encrypted", sealed)
            shared = replace(shared, given=shared.given.union(chunk))
            self._shared[room_id] = shared
        session.shared = True

    async def _withhold(self, room_id: str, refused: Collection[Device]) -> None:
        """Tell devices why they cannot read us (Matrix spec, "Reporting that decryption keys are withheld")."""
        shared = self._shared[room_id]
        word = {
            "algorithm": MEGOLM,
            "room_id": room_id,
            "session_id": shared.session_id,
            "sender_key": self._nio.olm.account.identity_keys["curve25519"],
            "from_device": self._nio.device_id,
            "code": "m.unverified",
        }
        for chunk in chunks([device for device in refused if device not in shared.withheld]):
            words = {device: word | {"reason": self._reason(device)} for device in chunk}
            await self._to_devices("m.room_key.withheld", words)
            shared = replace(shared, withheld=shared.withheld.union(chunk))
            self._shared[room_id] = shared

    def _reason(self, device: Device) -> str:
        """Give the reason for withholding keys from a device; its client may show it (F-069)."""
        replaced = device in self.replaced.refused_of(device.user_id)
        return OTHER_KEYS if replaced else UNVERIFIED

    async def _to_devices(self, kind: str, contents: Mapping[Device, Json]) -> None:
        messages: dict[str, dict[str, Json]] = {}
        for device, content in contents.items():
            messages.setdefault(device.user_id, {})[device.device_id] = content
        target = path("sendToDevice", kind, self._new_id("device"))
        await call(self._nio, "PUT", target, {"messages": messages})

    def _reaches_anybody(self, devices: Collection[Device]) -> bool:
        """Whether one of the others has a device that we can send a key to."""
        return any(device.user_id != self._nio.user_id for device in devices)

    async def _upload(self, attempts: int = 2) -> bool:
        """Give the homeserver our keys; a refusal leaves us as able to talk as we were."""
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
                # After a restored backup it may have other keys under these ids: give them up.
                with self.store.writing():
                    self._nio.olm.mark_keys_as_published()
                    self._nio.olm.save_account()
        self._upload_again = self._clock.monotonic() + UPLOAD_AGAIN_SECONDS
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
        """Keep that these keys are given away, or they would be once more when one is used up."""
        if self._uploaded is not None:
            with self.store.writing():
                self._nio.olm.handle_response(self._uploaded)
            self._uploaded = None

    async def _query(self) -> None:
        """Learn the devices of everybody who is new or has changed something.

        One at a time: who finds a query under way has to wait for its answer.
        """
        olm = self._nio.olm
        async with self._turn:
            wanted = set(filter(is_token, olm.users_for_key_query | self._unanswered))
            if self._clock.monotonic() < self._ask_again:
                wanted -= self._unanswered
            if not wanted:
                return
            olm.users_for_key_query -= wanted
            # Who fails takes everybody of their server along: strangers none of those we answer.
            known = wanted & self._followed
            try:
                for users in filter(None, (known, wanted - known)):
                    await self._ask(users)
            except BaseException:
                olm.users_for_key_query |= wanted
                raise

    async def ask(self, users: set[str]) -> Json:
        """Learn the devices of users now; the whole answer."""
        async with self._turn:
            return await self._ask(users)

    async def _ask(self, wanted: set[str]) -> Json:
        olm = self._nio.olm
        everything: list[str] = []  # of each, that is: all devices
        body = {"device_keys": dict.fromkeys(wanted, everything)}
        answer = await call(self._nio, "POST", path("keys", "query"), body)
        before = {user: list(olm.device_store.devices(user)) for user in wanted}
        found, dropped = usable_devices(answer, wanted, before)
        self.drop(dropped)
        told = told_of(answer, found)
        if self._nio.user_id in told:
            self._own = answer
            self._look_again = self._clock.monotonic() + UPLOAD_AGAIN_SECONDS
            self.identity.learn(answer["device_keys"][self._nio.user_id])
        found = {user: self.replaced.sift(answer, user, found[user]) for user in told}
        changed_meanwhile = set(olm.users_for_key_query)
        with self.store.writing():
            await self._nio.receive_response(KeysQueryResponse(found, {}))  # waits for nobody
            restore_devices(olm, found)
        olm.users_for_key_query |= changed_meanwhile
        self.people.learn(answer, found)
        self._unanswered = (self._unanswered - told) | (wanted - told)
        if wanted - told:
            self._ask_again = self._clock.monotonic() + ASK_AGAIN_SECONDS
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
            except ValueError:  # a point with which no secret can be agreed on
                dropped += 1
        self.drop(dropped)

    async def _send_waiting(self) -> None:
        """Send what nio's machine wants said to devices."""
        for message in list(self._nio.outgoing_to_device_messages):
            target = path("sendToDevice", message.type, self._new_id("device"))
            try:
                await call(self._nio, "PUT", target, message.as_dict())
            except SendRefused as error:
                log.warning("to-device message refused reason=%s", error)
            with self.store.writing():
                self._nio.olm.handle_response(ToDeviceResponse(message))


def restore_devices(olm: Any, found: Mapping[str, Mapping[str, Json]]) -> None:
    """Take back that a device is gone, which nio never does when its very keys are there again."""
    back: dict[str, dict[str, OlmDevice]] = {}
    for user, devices in found.items():
        for name, served in devices.items():
            device = olm.device_store[user].get(name)
            if device and device.deleted and known(device) == device_of(user, name, served):
                device.deleted = False
                back.setdefault(user, {})[name] = device
    olm.store.save_device_keys(back)


def chunks(devices: Sequence[Device]) -> Iterator[Sequence[Device]]:
    """As many as go into one request."""
    return (devices[n : n + DEVICES_A_REQUEST] for n in range(0, len(devices), DEVICES_A_REQUEST))


def keep_before_upload(olm: Any) -> None:
    """Make nio keep new one-time keys before anybody else can have them.

    nio keeps them when the homeserver has answered. After a kill before that, it would make others
    of the same names, and the homeserver refuses those for ever. Keys that were made and not
    accepted count among those to be made, so that a homeserver that fails often costs nothing.
    """
    make = olm.account.generate_one_time_keys

    def kept(count: int) -> None:
        make(max(0, count - len(olm.account.one_time_keys["curve25519"])))
        olm.save_account()

    olm.account.generate_one_time_keys = kept


REFUSED_SECONDS = 3600.0
UNAVAILABLE_SECONDS = 60.0


class FallbackKey:
    """Gives the homeserver a fallback key whenever it says that it has no unused one (MSC2732).

    It begins sessions with us when our one-time keys are used up, and maybe many. vodozemac keeps
    the private part of the one before: its first messages may be on the way.
    """

    def __init__(self, nio: AsyncClient, store: KeyStore, clock: Clock) -> None:
        self._nio = nio
        self._store = store
        self._clock = clock
        self._lacks: bool | None = None
        self._signed: Json = {}
        self._again = 0.0
        self.trouble = ""
        """Why the homeserver has none of ours; empty when it has one, or wants none."""

    def note(self, *, lacks: bool | None) -> None:
        """Take in what a sync says; None: this homeserver knows no fallback keys."""
        self._lacks = lacks

    def outdate(self) -> None:
        """The one that is there is not known here: another is wanted, where they are known at all."""
        if self._lacks is not None:
            self._lacks = True

    async def offer(self) -> None:
        """Upload one if it is wanted. Trouble is kept to be told, and stops nothing else."""
        account = self._nio.olm.account
        if self._lacks is None or not account.shared:
            return
        if not self._lacks:
            if account._account.fallback_key or self._signed:  # it got there, its answer did not
                self._published()
            self.trouble = ""
            return
        if self._clock.monotonic() < self._again:
            return
        try:
            await call(self._nio, "POST", path("keys", "upload"), {"fallback_keys": self._key()})
        except (SendRefused, HomeserverUnavailable) as error:
            refused = isinstance(error, SendRefused)
            pause = REFUSED_SECONDS if refused else UNAVAILABLE_SECONDS
            self._again = self._clock.monotonic() + pause
            self.trouble = f"fallback key: {error}"
            log.warning("fallback key not uploaded reason=%s", error)
        else:
            self._published()
            self.trouble = ""

    def _key(self) -> Json:
        """The key to upload, kept before anybody else can have it; the same until it is there.

        Each new one makes vodozemac forget the last but one, which may still be in use.
        """
        olm = self._nio.olm
        account = olm.account._account  # nio has no name for it
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

    def _published(self) -> None:
        with self._store.writing():
            self._nio.olm.mark_keys_as_published()
            self._nio.olm.save_account()
        self._signed, self._lacks = {}, False
