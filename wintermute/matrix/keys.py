"""Keys on the wire: ours to the homeserver, other people's from it, a room's to its devices.

Requests are our own, answers are sifted, and only then nio's machine sees them: what a stranger
has uploaded must not end the daemon, nor leave a person without an answer.
"""

import asyncio
import logging
from collections.abc import Collection, Mapping
from typing import Any

from nio import (
    AsyncClient,
    JoinedMembersResponse,
    KeysClaimResponse,
    KeysQueryResponse,
    KeysUploadResponse,
    RoomMember,
    ShareGroupSessionResponse,
    ToDeviceResponse,
)

from wintermute.clock import Clock
from wintermute.errors import HomeserverUnavailable, SendRefused
from wintermute.ids import NewId
from wintermute.matrix.devices import is_token, usable_devices, usable_one_time_keys
from wintermute.matrix.http import call, path
from wintermute.matrix.sieve import counts, members

log = logging.getLogger(__name__)

ASK_AGAIN_SECONDS = 60.0
"""After a query in which somebody was missing: their homeserver may be away for long."""
UPLOAD_AGAIN_SECONDS = 3600.0


class Keys:
    """What encryption wants done on the homeserver; nothing while it is off."""

    def __init__(self, nio: AsyncClient, new_id: NewId, clock: Clock) -> None:
        self._nio = nio
        self._new_id = new_id
        self._clock = clock
        self._turn = asyncio.Lock()
        self._unanswered: frozenset[str] = frozenset()
        self._ask_again = 0.0
        self._upload_again = 0.0
        self._dropped = 0
        self.trouble = ""
        """Why the homeserver refuses our keys, for the status; empty when it does not."""

    def drop(self, count: int = 1) -> None:
        """Count devices, keys or to-device events of others that were passed over."""
        self._dropped += count

    def take_dropped(self) -> int:
        """How many were passed over since the last call."""
        dropped, self._dropped = self._dropped, 0
        return dropped

    async def upkeep(self) -> None:
        """What is to be done after each sync."""
        if self._nio.olm is None:
            return
        if self._nio.should_upload_keys and self._clock.monotonic() >= self._upload_again:
            await self._upload()
        await self._query()
        async with self._turn:
            if self._nio.should_claim_keys:
                await self._claim(self._nio.get_users_for_key_claiming())
                # Who has no key to give is tried again at the next message we cannot read.
                self._nio.olm.wedged_devices.clear()
                self._nio.olm.key_request_devices_no_session.clear()
        await self._send_waiting()

    async def share(self, room_id: str) -> None:
        """See that every device in a room has, or gets, the key of our next message.

        nio's own sharing passes over a request that failed; then somebody could not read us.
        """
        nio, room = self._nio, self._nio.rooms[room_id]
        if not room.members_synced:
            answer = await call(nio, "GET", path("rooms", room_id, "joined_members"))
            joined = [RoomMember(user, name, None) for user, name in members(answer).items()]
            await nio.receive_response(JoinedMembersResponse(joined, room_id))
        await self._query()
        if not nio.olm.should_share_group_session(room_id):
            return
        async with self._turn:
            missing = nio.get_missing_sessions(room_id)
            if missing:
                await self._claim(missing)
        everyone = list(room.users)
        if (missing or self._unanswered & set(everyone)) and not self._reaches_anybody(everyone):
            raise HomeserverUnavailable("nobody in the room can be given our key yet")
        for shared_with, messages in nio.olm.share_group_session_parallel(
            room_id, everyone, ignore_unverified_devices=True
        ):
            target = path("sendToDevice", "m.room.encrypted", self._new_id("share"))
            await call(nio, "PUT", target, messages)
            await nio.receive_response(ShareGroupSessionResponse(room_id, shared_with))
        nio.olm.outbound_group_sessions[room_id].shared = True

    def _reaches_anybody(self, users: Collection[str]) -> bool:
        """Whether one of the others has a device that we can send a key to."""
        olm = self._nio.olm
        return any(
            olm.session_store.get(device.curve25519)
            for user in set(users) - {self._nio.user_id}
            for device in olm.device_store.active_user_devices(user)
        )

    async def _upload(self) -> None:
        """Give the homeserver our keys; a refusal leaves us as able to talk as we were."""
        for again in (True, False):
            try:
                await self._upload_once()
            except SendRefused as error:
                self.trouble = str(error)
                log.warning("keys refused reason=%s", error)
            else:
                self.trouble = ""
                return
            if again:
                # After a restored backup it may have other keys under these ids: give them up.
                self._nio.olm.mark_keys_as_published()
                self._nio.olm.save_account()
        self._upload_again = self._clock.monotonic() + UPLOAD_AGAIN_SECONDS

    async def _upload_once(self) -> None:
        olm = self._nio.olm
        body = olm.share_keys()
        answer = await call(self._nio, "POST", path("keys", "upload"), body)
        if not isinstance(answer.get("one_time_key_counts"), dict):
            raise HomeserverUnavailable("the homeserver does not say how many keys it has of us")
        count = counts(answer["one_time_key_counts"])
        olm.handle_response(KeysUploadResponse(count["curve25519"], count["signed_curve25519"]))

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
            try:
                everything: list[str] = []  # of each, that is: all devices
                body = {"device_keys": dict.fromkeys(wanted, everything)}
                answer = await call(self._nio, "POST", path("keys", "query"), body)
            except BaseException:
                olm.users_for_key_query |= wanted
                raise
            found, dropped = usable_devices(answer, wanted)
            self.drop(dropped)
            changed_meanwhile = set(olm.users_for_key_query)
            await self._nio.receive_response(KeysQueryResponse(found, {}))
            olm.users_for_key_query |= changed_meanwhile
            self._wait_for(wanted - found.keys(), found.keys())

    def _wait_for(self, missing: Collection[str], found: Collection[str]) -> None:
        self._unanswered = (self._unanswered - set(found)) | set(missing)
        if missing:
            self._ask_again = self._clock.monotonic() + ASK_AGAIN_SECONDS
            log.warning("device keys missing users=%s", len(self._unanswered))

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
            self._nio.olm.handle_response(ToDeviceResponse(message))


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
