"""Keys for whom: a room's session goes to the devices of its people that are theirs, and no others."""

import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from nio.crypto import OutboundGroupSession
from nio.rooms import MatrixRoom
from vodozemac import AnyOlmMessage, Curve25519PublicKey

from tests.test_keys import ANN, BOT, SESSION, Wire, accepted, keys_of
from tests.test_keys import Device as Phone
from tests.test_people import NEW, answer, plain
from tests.test_whose_device import answered, notices
from tests.world.clock import FakeClock
from tests.world.proxy import Proxy, Request
from tests.world.scene import NewBot, NewCurrent, NewRoom
from tests.world.user import CLIENT
from wintermute.errors import HomeserverUnavailable
from wintermute.matrix.keys import Keys

Json = dict[str, Any]
ROOM = "!r"
WITHHELD = "MEGOLM_KEY_WITHHELD_FOR_UNVERIFIED_DEVICE"
LAPTOP, TABLET = Phone(ANN, "LAPTOP"), Phone(ANN, "TABLET")


@pytest.fixture
async def wire() -> AsyncIterator[Wire]:
    async with Proxy("http://127.0.0.1:1") as proxy:
        wire = Wire(proxy)
        wire.answers["keys/upload"] = accepted
        yield wire


def serve(wire: Wire, *served: Json, without_key: str = "") -> None:
    """The keys of everybody in the room from now on; `without_key` has none to begin with."""
    whole: Json = {}
    for each in served:
        whole = {part: whole.get(part, {}) | each.get(part, {}) for part in {*whole, *each}}
    phones = {(LAPTOP.user, LAPTOP.name): LAPTOP, (TABLET.user, TABLET.name): TABLET}
    phones |= {(phone.user, phone.name): phone for phone in EXTRA}

    def claimed(request: Request) -> Json:
        asked = request.json["one_time_keys"]
        return {
            "one_time_keys": {
                user: {d: phones[user, d].one_time_key() for d in devices if d != without_key}
                for user, devices in asked.items()
            }
        }

    members: Json = {user: {} for user in (BOT, *whole["device_keys"])}
    wire.answers |= {"keys/query": whole, "keys/claim": claimed, "rooms/!r": {"joined": members}}


EXTRA = [Phone("@guest:test", "GUEST"), Phone("@guest:test", SESSION.device_id), Phone(BOT, "SPY")]
GUEST, NAMESAKE, SPY = EXTRA


async def share(keys: Keys, nio: Any, *users: str, apart: bool = False) -> str:
    """What is done before a message; its session."""
    if ROOM not in nio.rooms:
        nio.rooms[ROOM] = MatrixRoom(ROOM, BOT, encrypted=True)
    nio.olm.users_for_key_query |= set(users)
    await keys.share(ROOM, apart=apart)
    session: OutboundGroupSession = nio.olm.outbound_group_sessions[ROOM]
    return str(session.id)


def sent(wire: Wire, kind: str) -> list[tuple[str, str]]:
    """To whom to-device messages of a kind went, in order."""
    return [
        (user, name)
        for request in wire.seen("PUT", f"sendToDevice/{kind}")
        for user, devices in request.json["messages"].items()
        for name in devices
    ]


async def test_a_session_goes_to_signed_devices_and_the_others_are_told_why(
    wire: Wire, tmp_path: Path
) -> None:
    """Issue 13.4: unchanged it is kept; newly signed or gone, a new one is begun."""
    async with keys_of(tmp_path, wire, FakeClock()) as (keys, nio):
        serve(wire, answer(LAPTOP, TABLET, signed=[LAPTOP]), plain(GUEST, user=GUEST.user))
        first = await share(keys, nio, ANN, GUEST.user)
        assert {*sent(wire, "m.room.encrypted")} == {(ANN, "LAPTOP"), (GUEST.user, "GUEST")}
        assert sent(wire, "m.room_key.withheld") == [(ANN, "TABLET")]
        [told] = wire.seen("PUT", "m.room_key.withheld")
        word = told.json["messages"][ANN]["TABLET"]
        assert (word["code"], word["session_id"]) == ("m.unverified", first)
        assert await share(keys, nio) == first
        assert await share(keys, nio, ANN) == first
        assert len(sent(wire, "m.room_key.withheld")) == 1

        serve(wire, answer(LAPTOP, TABLET, signed=[LAPTOP, TABLET]), plain(user=GUEST.user))
        second = await share(keys, nio, ANN)
        serve(wire, answer(TABLET, signed=[TABLET]), plain(user=GUEST.user))
        third = await share(keys, nio, ANN, GUEST.user)
        assert len({first, second, third}) == 3
        assert sent(wire, "m.room.encrypted")[-1] == (ANN, "TABLET")
        assert len(sent(wire, "m.room.encrypted")) == 6


async def test_a_guest_with_an_identity_is_treated_as_anybody(wire: Wire, tmp_path: Path) -> None:
    """Whom we do not answer reads us too."""
    async with keys_of(tmp_path, wire, FakeClock()) as (keys, nio):
        guest = answer(GUEST, NAMESAKE, signed=[NAMESAKE], user=GUEST.user)
        serve(wire, answer(LAPTOP, signed=[LAPTOP]), guest)
        await share(keys, nio, ANN, GUEST.user)
        assert (GUEST.user, "GUEST") in sent(wire, "m.room_key.withheld")
        # A device of somebody else with the name of ours is none of ours.
        assert (GUEST.user, SESSION.device_id) in sent(wire, "m.room.encrypted")


async def test_a_device_without_keys_to_give_changes_nothing_for_the_others(
    wire: Wire, tmp_path: Path
) -> None:
    """Asked for once a minute; when it has one, a new session goes to it as well."""
    clock = FakeClock()
    async with keys_of(tmp_path, wire, clock) as (keys, nio):
        serve(wire, plain(LAPTOP, TABLET), without_key="TABLET")
        first = await share(keys, nio, ANN)
        assert {await share(keys, nio) for _ in range(3)} == {first}
        assert len(wire.bodies("/keys/claim")) == 1
        clock.advance(61)
        assert await share(keys, nio) == first
        assert len(wire.bodies("/keys/claim")) == 2
        serve(wire, plain(LAPTOP, TABLET))
        clock.advance(61)
        assert await share(keys, nio) != first
        assert {*sent(wire, "m.room.encrypted")[1:]} == {(ANN, "LAPTOP"), (ANN, "TABLET")}


@pytest.mark.parametrize("by", ["nobody", "an identity that is not ours"])
async def test_another_device_of_ours_gets_keys_only_if_we_signed_it(
    by: str, wire: Wire, tmp_path: Path
) -> None:
    """Issue 13.4: whatever the homeserver says."""
    async with keys_of(tmp_path, wire, FakeClock()) as (keys, nio):
        signed = [] if by == "nobody" else [SPY]
        serve(wire, plain(LAPTOP), answer(SPY, signed=signed, user=BOT))
        await share(keys, nio, ANN, BOT)
        assert sent(wire, "m.room.encrypted") == [(ANN, "LAPTOP")]


async def test_where_somebody_has_another_identity_by_now_nothing_is_sent(
    wire: Wire, tmp_path: Path
) -> None:
    """X-035: found out on the way; only what goes apart goes, in a session that ends with it."""
    async with keys_of(tmp_path, wire, FakeClock()) as (keys, nio):
        keys.people.allowed |= {ANN}
        serve(wire, answer(LAPTOP, signed=[LAPTOP]))
        first = await share(keys, nio, ANN)
        serve(wire, answer(LAPTOP, signed=[LAPTOP], master=NEW))
        with pytest.raises(HomeserverUnavailable, match="identity"):
            await share(keys, nio, ANN)
        assert len(sent(wire, "m.room.encrypted")) == 1
        notice = await share(keys, nio, apart=True)
        assert sent(wire, "m.room.encrypted") == [(ANN, "LAPTOP")] * 2
        keys.end_session(ROOM)
        serve(wire, answer(LAPTOP, signed=[LAPTOP]))
        assert await share(keys, nio, ANN) not in (first, notice)


async def test_who_failed_in_an_answer_is_asked_for_again(wire: Wire, tmp_path: Path) -> None:
    """X-034: devices without a word on their owner's identity are not the whole answer."""
    clock = FakeClock()
    async with keys_of(tmp_path, wire, clock) as (keys, nio):
        serve(wire, plain(LAPTOP))
        wire.answers["keys/query"] |= {"failures": {"test": {}}}
        await share(keys, nio, ANN)
        clock.advance(61)
        serve(wire, answer(LAPTOP, TABLET, signed=[TABLET]))
        await share(keys, nio)
        assert sent(wire, "m.room.encrypted")[-1] == (ANN, "TABLET")


async def test_a_key_says_nothing_of_shared_history(wire: Wire, tmp_path: Path) -> None:
    async with keys_of(tmp_path, wire, FakeClock()) as (keys, nio):
        serve(wire, plain(LAPTOP))
        await share(keys, nio, ANN)
        [request] = wire.seen("PUT", "sendToDevice/m.room.encrypted")
        sealed = request.json["messages"][ANN]["LAPTOP"]
        [part] = sealed["ciphertext"].values()
        message = AnyOlmMessage.from_parts(
            part["type"], base64.b64decode(part["body"] + "==")
        ).to_pre_key()
        assert message is not None
        sender = Curve25519PublicKey.from_base64(sealed["sender_key"])
        _, opened = LAPTOP._account.create_inbound_session(sender, message)
        key = json.loads(opened)
        assert key["type"] == "m.room_key"
        assert set(key["content"]) == {"algorithm", "room_id", "session_id", "session_key"}


async def test_an_unsigned_device_says_why_it_cannot_read_us(
    current: NewCurrent, bot: NewBot, room: NewRoom, proxy: Proxy
) -> None:
    """Issue 13.4: it is told before the event; a session of the bot's account gets nothing either."""
    ann = await current("ann")
    daemon = await bot(ann, via=proxy.url)
    chat = await room(ann, daemon, encrypted=True)
    phone = await current(ann, identity=False)
    spy = await current(daemon, identity=False)
    await answered(ann, chat, "one", "two")
    unread = await phone.wait_unreadable(chat, daemon.user_id)
    assert unread.failure == WITHHELD
    mine = [r.path for r in proxy.requests if "withheld" in r.path or "/send/m.room.enc" in r.path]
    assert "withheld" in mine[0]
    events = proxy.seen("PUT", f"/rooms/{chat}/send/m.room.encrypted/")
    assert len({request.json["session_id"] for request in events}) == 1
    shares = [r.json["messages"] for r in proxy.seen("PUT", "sendToDevice/m.room.encrypted")]
    assert [[*each] for each in shares] == [[ann.user_id]]
    assert [*shares[0][ann.user_id]] == [ann.device_id]
    assert (await spy.wait_unreadable(chat, daemon.user_id)).failure == WITHHELD

    await ann.share_identity(phone)
    await answered(phone, chat, "three")
    told = await phone.wait_for(chat, lambda m: m.body == "echo: three")
    assert told.failure is None


@pytest.mark.slow
async def test_whose_only_device_is_unsigned_is_told_by_their_client(
    current: NewCurrent, bot: NewBot, room: NewRoom
) -> None:
    """X-034: what we say is not for it, and why is shown in its place."""
    ann = await current("ann")
    daemon = await bot(ann)
    chat = await room(ann, daemon, encrypted=True)
    await answered(ann, chat, "one")
    phone = await current(ann, identity=False)
    assert (await ann.api("POST", f"{CLIENT}/logout", {}))[0] == 200
    await phone.send(chat, "two")
    before = {event.event_id for event in phone.events(chat)}

    def lately() -> list[str | None]:
        return [
            event.failure
            for event in phone.events(chat)
            if event.sender == daemon.user_id and event.event_id not in before
        ]

    await phone.until(lambda: WITHHELD in lately(), what="an event that is kept from it")
    assert notices(daemon, phone.device_id)
