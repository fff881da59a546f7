"""Keys for whom: a room's session goes to the devices of its people that are theirs, and no others."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from vodozemac import AnyOlmMessage, Curve25519PublicKey

from tests.world.chats import echoed_each, notices
from tests.world.clock import FakeClock
from tests.world.keys import (
    ANN,
    BOT,
    NEW,
    SESSION,
    Wire,
    enter,
    given_to,
    keys_of,
    known_devices,
    with_identity,
    without_identity,
)
from tests.world.keys import Device as Phone
from tests.world.proxy import Action, Answer, Hang, Proxy, Request
from tests.world.scene import Scene
from tests.world.user import CLIENT
from wintermute.errors import HomeserverUnavailable
from wintermute.matrix.keys import DEVICES_A_REQUEST, Keys
from wintermute.matrix.people import MOST_DEVICES, usable_devices

Json = dict[str, Any]
ROOM, OTHER_ROOM = "!r", "!s"
GIVEN = "sendToDevice/m.room.encrypted"
FAILED: Json = {"failures": {"test": {}}}
WITHHELD = "MEGOLM_KEY_WITHHELD_FOR_UNVERIFIED_DEVICE"
LAPTOP, TABLET = Phone(ANN, "LAPTOP"), Phone(ANN, "TABLET")

GUEST, NAMESAKE = Phone("@guest:test", "GUEST"), Phone("@guest:test", SESSION.device_id)
SPY = Phone(BOT, "SPY")


@dataclass(frozen=True, slots=True)
class Sharing:
    """The room keys of a bot, at a homeserver that is a table."""

    wire: Wire
    keys: Keys
    nio: Any
    clock: FakeClock

    def serve(
        self, *served: Json, without_key: Collection[str] = (), phones: Collection[Phone] = ()
    ) -> None:
        """Serve the keys of everybody in the room from now on; `without_key` have none to begin with."""
        whole: Json = {}
        for each in served:
            whole = {part: whole.get(part, {}) | each.get(part, {}) for part in {*whole, *each}}
        everything = (LAPTOP, TABLET, GUEST, NAMESAKE, SPY, *phones)
        keys = {(phone.user, phone.name): phone.one_time_key for phone in everything}

        def claimed(request: Request) -> Json:
            asked = request.json["one_time_keys"].items()
            return {
                "one_time_keys": {
                    user: {d: keys[user, d]() for d in devices if d not in without_key}
                    for user, devices in asked
                }
            }

        self.wire.members[ROOM] = (BOT, *whole["device_keys"])
        self.wire.answers |= {"keys/query": whole, "keys/claim": claimed}

    async def share(self, *users: str, apart: bool = False, room_id: str = ROOM) -> str:
        """Do what is done before a message; its session."""
        if room_id not in self.nio.rooms:
            enter(self.wire, self.nio, room_id)
        self.nio.olm.users_for_key_query |= set(users)
        await self.keys.share(room_id, apart=apart)
        return str(self.nio.olm.outbound_group_sessions[room_id].id)

    async def fails(self, *users: str, match: str | None = None, apart: bool = False) -> None:
        """Share in vain."""
        with pytest.raises(HomeserverUnavailable, match=match):
            await self.share(*users, apart=apart)

    @property
    def sessions(self) -> list[str]:
        """Every session of ours, used or not."""
        return [session.id for session in self.nio.olm.inbound_group_store]

    def sent(self, kind: str = "m.room.encrypted") -> list[tuple[str, str]]:
        """To whom to-device messages of a kind went, in order."""
        return [
            (user, name)
            for request in self.wire.seen("PUT", f"sendToDevice/{kind}")
            for user, devices in request.json["messages"].items()
            for name in devices
        ]

    def two_rooms(self, without_key: Collection[str] = ()) -> None:
        """One with two devices of hers, one with two of a guest."""
        guest = without_identity(GUEST, NAMESAKE, user=GUEST.user)
        self.serve(without_identity(LAPTOP, TABLET), guest, without_key=without_key)
        self.wire.members |= {ROOM: (BOT, ANN), OTHER_ROOM: (BOT, GUEST.user)}


@pytest.fixture
async def sharing(wire: Wire, tmp_path: Path) -> AsyncIterator[Sharing]:
    clock = FakeClock()
    async with keys_of(tmp_path, wire, clock) as (keys, nio):
        yield Sharing(wire, keys, nio, clock)


def tos(requests: Collection[Request]) -> list[str]:
    """The devices that to-device messages to her went to."""
    return [name for request in requests for name in request.json["messages"][ANN]]


async def test_a_session_goes_to_signed_devices_and_the_others_are_told_why(
    sharing: Sharing,
) -> None:
    """Issue 13.4: unchanged it is kept; newly signed or gone, a new one is begun."""
    sharing.serve(
        with_identity(LAPTOP, TABLET, signed=[LAPTOP]),
        without_identity(GUEST, user=GUEST.user),
    )
    first = await sharing.share(ANN, GUEST.user)
    assert {*sharing.sent()} == {(ANN, "LAPTOP"), (GUEST.user, "GUEST")}
    assert sharing.sent("m.room_key.withheld") == [(ANN, "TABLET")]
    [told] = sharing.wire.seen("PUT", "m.room_key.withheld")
    word = told.json["messages"][ANN]["TABLET"]
    assert (word["code"], word["session_id"]) == ("m.unverified", first)
    assert await sharing.share() == first
    assert await sharing.share(ANN) == first
    assert len(sharing.sent("m.room_key.withheld")) == 1

    sharing.serve(
        with_identity(LAPTOP, TABLET, signed=[LAPTOP, TABLET]),
        without_identity(user=GUEST.user),
    )
    second = await sharing.share(ANN)
    sharing.serve(with_identity(TABLET, signed=[TABLET]), without_identity(user=GUEST.user))
    third = await sharing.share(ANN, GUEST.user)
    assert len({first, second, third}) == 3
    assert sharing.sent()[-1] == (ANN, "TABLET")
    assert len(sharing.sent()) == 6


async def test_a_guest_with_an_identity_is_treated_as_anybody(sharing: Sharing) -> None:
    """Whom we do not answer reads us too."""
    guest = with_identity(GUEST, NAMESAKE, signed=[NAMESAKE], user=GUEST.user)
    sharing.serve(with_identity(LAPTOP, signed=[LAPTOP]), guest)
    await sharing.share(ANN, GUEST.user)
    assert (GUEST.user, "GUEST") in sharing.sent("m.room_key.withheld")
    # A device of somebody else with the name of ours is none of ours.
    assert (GUEST.user, SESSION.device_id) in sharing.sent()


async def test_a_device_without_keys_to_give_changes_nothing_for_the_others(
    sharing: Sharing,
) -> None:
    """Asked for once a minute; when it has one, a new session goes to it as well."""
    sharing.serve(without_identity(LAPTOP, TABLET), without_key=["TABLET"])
    first = await sharing.share(ANN)
    assert {await sharing.share() for _ in range(3)} == {first}
    assert len(sharing.wire.bodies("/keys/claim")) == 1
    sharing.clock.advance(61)
    assert await sharing.share() == first
    assert len(sharing.wire.bodies("/keys/claim")) == 2
    sharing.serve(without_identity(LAPTOP, TABLET))
    sharing.clock.advance(61)
    assert await sharing.share() != first
    assert {*sharing.sent()[1:]} == {(ANN, "LAPTOP"), (ANN, "TABLET")}


@pytest.mark.parametrize("by", ["nobody", "an identity that is not ours"])
async def test_another_device_of_ours_gets_keys_only_if_we_signed_it(
    by: str, sharing: Sharing
) -> None:
    """Issue 13.4: whatever the homeserver says."""
    signed = [] if by == "nobody" else [SPY]
    sharing.serve(without_identity(LAPTOP), with_identity(SPY, signed=signed, user=BOT))
    await sharing.share(ANN, BOT)
    assert sharing.sent() == [(ANN, "LAPTOP")]


async def test_where_somebody_has_another_identity_by_now_nothing_is_sent(sharing: Sharing) -> None:
    """X-035: found out on the way; only what goes apart goes, in a session that ends with it."""
    sharing.keys.people.allowed |= {ANN}
    sharing.serve(with_identity(LAPTOP, signed=[LAPTOP]))
    first = await sharing.share(ANN)
    sharing.nio.encrypt(ROOM, "m.room.message", {"body": "secret"})
    sharing.serve(with_identity(LAPTOP, signed=[LAPTOP], master=NEW))
    await sharing.fails(ANN, match="identity")
    assert len(sharing.sent()) == 1
    notice = await sharing.share(apart=True)
    assert sharing.sent() == [(ANN, "LAPTOP")] * 2
    sharing.keys.end_session(ROOM)
    sharing.serve(with_identity(LAPTOP, signed=[LAPTOP]))
    assert await sharing.share(ANN) not in (first, notice)


async def test_who_failed_in_an_answer_is_asked_for_again(sharing: Sharing) -> None:
    """X-034: devices without a word on their owner's identity are not the whole answer."""
    sharing.serve(without_identity(LAPTOP))
    sharing.wire.answers["keys/query"] |= FAILED
    await sharing.fails(ANN, match="nobody")
    sharing.clock.advance(61)
    sharing.serve(with_identity(LAPTOP, TABLET, signed=[TABLET]))
    await sharing.share()
    assert sharing.sent() == [(ANN, "TABLET")]


async def test_a_device_missing_in_one_answer_gets_keys_when_it_is_back(
    sharing: Sharing, wire: Wire, tmp_path: Path
) -> None:
    """Issue 13.4: nio never takes back that a device is gone; other keys of its name are not it."""
    for served in ((LAPTOP, TABLET), (LAPTOP,), (LAPTOP, Phone(ANN, "TABLET"))):
        sharing.serve(without_identity(*served))
        await sharing.share(ANN)
    assert given_to(wire) == {ANN: ["LAPTOP"]}
    sharing.serve(without_identity(LAPTOP, TABLET))
    await sharing.share(ANN)
    assert {*given_to(wire)[ANN]} == {"LAPTOP", "TABLET"}
    async with keys_of(tmp_path, wire, FakeClock()) as (_, nio):
        assert {*known_devices(nio, ANN)} == {"LAPTOP", "TABLET"}


async def test_an_answer_that_failed_takes_no_device_away(sharing: Sharing) -> None:
    """X-034: what their homeserver did not say is not believed."""
    sharing.serve(without_identity(LAPTOP, TABLET))
    first = await sharing.share(ANN)
    sharing.wire.answers["keys/query"] = {"device_keys": {ANN: {}}} | FAILED
    assert await sharing.share(ANN) == first


async def test_a_guest_whose_devices_are_not_known_hides_nobody_of_the_same_server(
    sharing: Sharing,
) -> None:
    """X-034: `failures` names servers, so that one device list is enough to spoil an answer."""
    sharing.keys.people.allowed |= {ANN}
    sharing.serve(with_identity(LAPTOP, signed=[LAPTOP]), without_identity(GUEST, user=GUEST.user))
    whole = sharing.wire.answers["keys/query"]

    def spoilt(request: Request) -> Action:
        spoils = GUEST.user in request.json["device_keys"]
        return Answer(200, whole | FAILED if spoils else whole)

    sharing.wire.answers["keys/query"] = spoilt
    await sharing.share(ANN, GUEST.user)
    assert sharing.sent() == [(ANN, "LAPTOP")]


async def test_many_new_devices_push_out_neither_signed_nor_known_ones(sharing: Sharing) -> None:
    """X-022: by whoever has a login of theirs; also when those came long before."""
    flood = [Phone(ANN, f"{number:03}") for number in range(MOST_DEVICES)]
    raw = with_identity(*flood, LAPTOP, TABLET, signed=[LAPTOP])
    found, dropped = usable_devices(raw, [ANN], {ANN: ["TABLET", *(each.name for each in flood)]})
    assert (len(found[ANN]), dropped) == (MOST_DEVICES, 2)
    assert {"LAPTOP", "TABLET"} <= found[ANN].keys()
    for served in (
        without_identity(TABLET),
        without_identity(*flood, TABLET),
        without_identity(*flood, LAPTOP, TABLET),
    ):
        sharing.serve(served)
        await sharing.keys.ask({ANN})
    assert "TABLET" in known_devices(sharing.nio, ANN)
    sharing.serve(raw)
    await sharing.keys.ask({ANN})
    assert {"LAPTOP", "TABLET"} <= {*known_devices(sharing.nio, ANN)}


@pytest.mark.slow
async def test_an_unfinished_session_is_finished_and_no_other_begun(sharing: Sharing) -> None:
    """Issue 13.4: each begun session stays in the key store for ever; who has its key gets it once."""
    phones = [Phone(ANN, f"P{number}") for number in range(2 * DEVICES_A_REQUEST + 5)]
    after_one = iter([Answer(200)])
    sharing.serve(without_identity(*phones), phones=phones)
    sharing.wire.answers[GIVEN] = lambda _: next(after_one, Answer(502))
    for _ in range(10):
        await sharing.fails(ANN)
    [only] = sharing.sessions
    del sharing.wire.answers[GIVEN]
    assert await sharing.share() == only
    requests = sharing.wire.seen("PUT", GIVEN)
    once = [*requests[0].json["messages"][ANN], *tos(requests[-2:])]
    assert sorted(once) == sorted(phone.name for phone in phones)
    assert await sharing.share() == only
    assert len(sharing.wire.seen("PUT", GIVEN)) == len(requests)


async def test_an_unfinished_session_is_for_just_the_devices_it_was_begun_for(
    sharing: Sharing,
) -> None:
    """Issue 13.4: who may have got the key in spite of an error is not to read what comes."""
    sharing.wire.answers[GIVEN] = Answer(502)
    for served in (
        without_identity(LAPTOP),
        without_identity(LAPTOP, TABLET),
        without_identity(TABLET),
    ):
        sharing.serve(served)
        for users in [ANN], []:
            await sharing.fails(*users)
    assert len(begun := sharing.sessions) == 3
    del sharing.wire.answers[GIVEN]
    assert await sharing.share() == begun[-1]
    assert given_to(sharing.wire) == {ANN: ["TABLET"]}


async def test_who_was_told_why_is_told_once_though_others_are_not_reached(
    sharing: Sharing,
) -> None:
    """Issue 13.4: also for what goes apart."""
    phones = [Phone(ANN, f"P{number}") for number in range(DEVICES_A_REQUEST + 5)]
    after_one = iter([Answer(200)])
    sharing.serve(with_identity(LAPTOP, *phones, signed=[LAPTOP]), phones=phones)
    sharing.wire.answers["sendToDevice/m.room_key.withheld"] = lambda _: next(
        after_one, Answer(502)
    )
    for _ in range(3):
        await sharing.fails(ANN, apart=True)
    del sharing.wire.answers["sendToDevice/m.room_key.withheld"]
    await sharing.share(apart=True)
    assert len(sharing.sessions) == 1
    requests = sharing.wire.seen("PUT", "m.room_key.withheld")
    assert [len(tos([request])) for request in requests] == [DEVICES_A_REQUEST, *[5] * 4]


async def test_rooms_do_not_forget_for_each_other_who_had_no_key_to_give(sharing: Sharing) -> None:
    """X-022: each is asked for once a minute, however many rooms there are."""
    sharing.two_rooms(without_key=["TABLET", SESSION.device_id])
    for _ in range(3):
        await sharing.share(ANN)
        await sharing.share(GUEST.user, room_id=OTHER_ROOM)
    assert len(sharing.wire.bodies("/keys/claim")) == 2
    sharing.clock.advance(61)
    await sharing.share()
    assert len(sharing.wire.bodies("/keys/claim")) == 3


@pytest.mark.parametrize("at", ["keys/claim", GIVEN])
async def test_a_room_that_waits_for_its_keys_stops_no_other(at: str, sharing: Sharing) -> None:
    """Issue 13.4: its own next message waits with it."""
    hanging = asyncio.Event()
    sharing.two_rooms()
    other = await sharing.share(GUEST.user, ANN, room_id=OTHER_ROOM)
    before = len(sharing.wire.seen("PUT", GIVEN))

    def hang(_: Request) -> Action:
        hanging.set()
        return Hang()

    answered, sharing.wire.answers[at] = sharing.wire.answers.get(at, {}), hang
    async with asyncio.TaskGroup() as rooms:
        waiting = [rooms.create_task(sharing.share()) for _ in range(2)]
        await hanging.wait()
        assert await sharing.share(room_id=OTHER_ROOM) == other
        assert len(sharing.keys._sharing) == 1
        sharing.wire.answers[at] = answered
        waiting[0].cancel()
    assert waiting[1].result() != other
    assert len(sharing.wire.seen("PUT", GIVEN)) == before + 1 + (at == GIVEN)
    assert len(sharing.keys._sharing) == 0


async def test_a_key_says_nothing_of_shared_history(sharing: Sharing) -> None:
    sharing.serve(without_identity(LAPTOP))
    await sharing.share(ANN)
    [request] = sharing.wire.seen("PUT", "sendToDevice/m.room.encrypted")
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


@pytest.mark.slow
async def test_an_unsigned_device_says_why_it_cannot_read_us(scene: Scene, proxy: Proxy) -> None:
    """Issue 13.4: it is told before the event; a session of the bot's account gets nothing either."""
    ann, daemon, chat = await scene.met(await scene.current("ann"), encrypted=True, via=proxy.url)
    phone = await scene.current(ann, identity=False)
    spy = await scene.current(daemon, identity=False)
    await echoed_each(ann, chat, "one", "two")
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
    await echoed_each(phone, chat, "three")
    told = await phone.wait_for(chat, lambda m: m.body == "echo: three")
    assert told.failure is None


@pytest.mark.slow
async def test_whose_only_device_is_unsigned_is_told_by_their_client(scene: Scene) -> None:
    """X-034: what we say is not for it, and why is shown in its place."""
    ann, daemon, chat = await scene.met(await scene.current("ann"), encrypted=True)
    await echoed_each(ann, chat, "one")
    phone = await scene.current(ann, identity=False)
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
