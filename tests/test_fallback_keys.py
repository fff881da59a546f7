"""Our keys on the homeserver run out while nobody looks: a fallback key stands in, and all are made anew."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from vodozemac import Account, Curve25519PublicKey

from tests.world.bot import Bot, said
from tests.world.clock import FakeClock
from tests.world.homeserver import Homeserver
from tests.world.keys import ANN, BOT, SESSION, Wire, keys_of
from tests.world.logins import FULL, Json, kept_login, take_all
from tests.world.malformed import WRONG
from tests.world.proxy import Answer, Cut, Proxy, Request
from tests.world.scene import NewName, Scene
from tests.world.user import CLIENT, MatrixUser
from wintermute.errors import DeviceSpent
from wintermute.matrix.key_rotation import SETTLED_SECONDS
from wintermute.matrix.keys import Keys
from wintermute.matrix.sync_response import KeyCounts, parse_sync


def left(homeserver: Homeserver, daemon: Bot) -> tuple[int, list[str]]:
    """How many of the daemon's one-time keys there are, and of which kinds an unused fallback key."""
    path = f'{CLIENT}/sync?timeout=0&filter={{"room":{{"rooms":[]}}}}'
    told = homeserver.request("GET", path, token=kept_login(daemon)["access_token"])
    count = told["device_one_time_keys_count"]["signed_curve25519"]
    return count, told["device_unused_fallback_key_types"]


async def until_full(homeserver: Homeserver, daemon: Bot) -> None:
    for _ in range(100):
        if await asyncio.to_thread(left, homeserver, daemon) == (FULL, ["signed_curve25519"]):
            return
        await asyncio.sleep(0.2)
    raise AssertionError("they were not made anew")


async def test_a_new_device_is_answered_when_all_our_one_time_keys_were_used_up(
    scene: Scene, homeserver: Homeserver, fresh: NewName, proxy: Proxy, tmp_path: Path
) -> None:
    """F-010: taken by a stranger while we were away; afterwards the homeserver has new ones."""
    ann, eve = await scene.person("ann"), homeserver.user(fresh("eve"))
    daemon = await scene.bot(ann, via=proxy.url)
    chat = await scene.room(ann, daemon, encrypted=True)
    await until_full(homeserver, daemon)
    assert await daemon.stop() == 0
    device = kept_login(daemon)["device_id"]
    taken_one = await asyncio.to_thread(take_all, homeserver, eve, daemon.user_id, device)
    assert left(homeserver, daemon) == (0, [])
    login = homeserver.login(ann.user_id[1:].partition(":")[0])
    async with MatrixUser(homeserver.url, login, tmp_path / "phone") as phone:
        await phone.until(lambda: daemon.user_id in phone.members(chat))
        await phone.send(chat, "my first words")
        await daemon.start()
        await phone.wait_for(chat, lambda m: m.body == "echo: my first words")
        assert await said(phone, chat, daemon.user_id) == ["echo: my first words"]
    await until_full(homeserver, daemon)
    first, second = [r.json["fallback_keys"] for r in proxy.requests if b"fallback_keys" in r.body]
    assert taken_one == first
    assert first.keys() != second.keys()


@pytest.fixture
async def wire() -> AsyncIterator[Wire]:
    async with Proxy("http://127.0.0.1:1") as proxy:
        wire = Wire(proxy)
        wire.answers["keys/upload"] = taken
        yield wire


def taken(_request: Request) -> Json:
    return {"one_time_key_counts": {"signed_curve25519": FULL}}


def uploads(wire: Wire) -> list[Json]:
    """Each upload of a fallback key, by its name."""
    bodies = [body.get("fallback_keys", {}) for body in wire.bodies("/keys/upload")]
    return [body for body in bodies if body]


async def keys_left(keys: Keys, *, lacks: bool | None, count: int | None = FULL) -> None:
    """A sync, and what is done after it."""
    keys.store_counts(KeyCounts(count, lacks))
    await keys.upkeep()


def begins_a_session(nio: Any, key: Json) -> bool:
    """Whether the bot can read the first message of somebody who took this key."""
    account, phone = nio.olm.account, Account()
    us = Curve25519PublicKey.from_base64(account.identity_keys["curve25519"])
    session = phone.create_outbound_session(us, Curve25519PublicKey.from_base64(key["key"]))
    message = session.encrypt(b"hello").to_pre_key()
    try:
        account.create_inbound_session(phone.curve25519_key.to_base64(), message)
    except ValueError:
        return False
    return True


async def test_a_fallback_key_is_replaced_after_its_use_and_never_else(
    wire: Wire, tmp_path: Path
) -> None:
    """F-010: not at a start, and the one before is good until the next."""
    for lacks in (True, False):
        async with keys_of(tmp_path, wire, FakeClock()) as (keys, nio):
            for _ in range(3):
                await keys_left(keys, lacks=lacks)
                lacks = False
            assert len(uploads(wire)) == 1
    async with keys_of(tmp_path, wire, FakeClock()) as (keys, nio):
        await keys_left(keys, lacks=True)
        [(name, first)], [(other, second)] = (upload.items() for upload in uploads(wire))
        assert name.startswith("signed_curve25519:")
        assert (name, first["key"]) != (other, second["key"])
        assert first["fallback"] is second["fallback"] is True
        identity = nio.olm.account.identity_keys["ed25519"]
        for key in (first, second):
            assert nio.olm.verify_json(dict(key), identity, BOT, SESSION.device_id)
            assert begins_a_session(nio, key)


async def test_no_fallback_key_is_given_to_who_knows_none(wire: Wire, tmp_path: Path) -> None:
    """F-010: a homeserver that does not speak of them."""
    async with keys_of(tmp_path, wire, FakeClock()) as (keys, _):
        for _ in range(2):
            await keys_left(keys, lacks=None)
    assert uploads(wire) == []


@pytest.mark.parametrize(("lacks", "given"), [(None, 0), (False, 2)])
async def test_keys_that_are_an_earlier_copy_bring_a_new_fallback_key_where_one_is_known(
    wire: Wire, tmp_path: Path, lacks: bool | None, given: int
) -> None:
    """F-009, F-010: replaced at once; but only at a homeserver that says it knows such keys."""
    wire.answers |= {"keys/claim": {"one_time_keys": {}}}
    clock = FakeClock()
    async with keys_of(tmp_path, wire, clock) as (keys, _):
        if lacks is not None:
            await keys_left(keys, lacks=True)
        await keys_left(keys, lacks=lacks)
        keys.rotation.begin()
        clock.advance(SETTLED_SECONDS)
        await keys_left(keys, lacks=lacks)
    assert len(uploads(wire)) == given


@pytest.mark.parametrize("accepts", [True, False])
async def test_who_cannot_use_up_keys_that_are_an_earlier_copy_is_given_new_ones(
    wire: Wire, tmp_path: Path, accepts: bool
) -> None:
    """F-009: a homeserver that refuses the claim; only one that takes no new keys ends the device."""
    refusal = Answer(403, {"errcode": "M_FORBIDDEN", "error": "not your own"})
    wire.answers["keys/claim"] = refusal
    clock = FakeClock()
    async with keys_of(tmp_path, wire, clock) as (keys, _):
        await keys_left(keys, lacks=None)
        before = len(wire.bodies("/keys/upload"))
        keys.rotation.begin()
        clock.advance(SETTLED_SECONDS)
        if not accepts:
            wire.answers["keys/upload"] = refusal
            with pytest.raises(DeviceSpent):
                await keys_left(keys, lacks=None)
            return
        await keys_left(keys, lacks=None)
        assert not keys.rotation.is_due
        assert len(wire.bodies("/keys/upload")) == before + 1


async def test_a_fallback_key_without_an_answer_is_uploaded_again_the_very_same(
    wire: Wire, tmp_path: Path
) -> None:
    """F-010: after a kill too; kept before anybody can have it; and if it did get there, it counts."""

    def silent(request: Request) -> object:
        return Cut() if "fallback_keys" in request.json else taken(request)

    wire.answers["keys/upload"] = silent
    for _ in range(2):
        async with keys_of(tmp_path, wire, FakeClock()) as (keys, _):
            await keys_left(keys, lacks=True)
            assert keys.trouble.startswith("fallback key: ")
    clock = FakeClock()
    async with keys_of(tmp_path, wire, clock) as (keys, nio):
        await keys_left(keys, lacks=True)
        first, *others = uploads(wire)
        assert others == [first] * 2
        await keys_left(keys, lacks=False)  # only its answer was lost
        assert keys.trouble == ""
        wire.answers["keys/upload"] = taken
        clock.advance(61)
        await keys_left(keys, lacks=True)
        assert uploads(wire)[-1].keys() != first.keys()
        assert all(begins_a_session(nio, key) for key in first.values())


async def test_a_refused_fallback_key_is_told_and_tried_again_later(
    wire: Wire, tmp_path: Path
) -> None:
    """F-010: everything else goes on, one-time keys included, and the key of before stays good."""
    clock = FakeClock()
    wire.answers["keys/query"] = {"device_keys": {ANN: {}}}
    async with keys_of(tmp_path, wire, clock) as (keys, nio):
        await keys_left(keys, lacks=True)

        def refused(request: Request) -> object:
            error = {"errcode": "M_INVALID_PARAM", "error": "no such key, please"}
            return Answer(400, error) if "fallback_keys" in request.json else taken(request)

        wire.answers["keys/upload"] = refused
        before = len(wire.bodies("/keys/query"))
        for _ in range(3):
            nio.olm.users_for_key_query.add(ANN)
            await keys_left(keys, lacks=True, count=0)
        assert len(uploads(wire)) == 2
        assert "no such key, please" in keys.trouble
        assert len([body for body in wire.bodies("/keys/upload") if "one_time_keys" in body]) == 4
        assert len(wire.bodies("/keys/query")) == before + 3
        clock.advance(3601)
        await keys_left(keys, lacks=True)
        wire.answers["keys/upload"] = taken
        clock.advance(3601)
        await keys_left(keys, lacks=True)
        assert keys.trouble == ""
        first, *others = uploads(wire)
        assert others == [others[0]] * 3
        assert all(begins_a_session(nio, key) for key in first.values())


async def test_a_count_that_is_missing_means_that_there_are_no_keys(
    wire: Wire, tmp_path: Path
) -> None:
    """F-010: new ones at once; from a homeserver that never counts them once an hour."""
    clock = FakeClock()
    async with keys_of(tmp_path, wire, clock) as (keys, _):
        await keys_left(keys, lacks=None, count=None)
    async with keys_of(tmp_path, wire, clock) as (keys, _):
        for _ in range(3):
            await keys_left(keys, lacks=None, count=None)
        assert len(wire.bodies("/keys/upload")) == 2
        await keys_left(keys, lacks=None, count=0)
        await keys_left(keys, lacks=None, count=24)
        clock.advance(3601)
        await keys_left(keys, lacks=None, count=None)
    counts = [len(body["one_time_keys"]) for body in wire.bodies("/keys/upload")]
    assert counts == [FULL, FULL, FULL, 26, FULL]


@pytest.mark.parametrize("wrong", range(1, len(WRONG)))
def test_what_a_homeserver_says_of_our_keys_may_be_anything(wrong: int) -> None:
    """F-010, X-022."""
    value = WRONG[wrong]
    for raw in (
        {"device_one_time_keys_count": value, "device_unused_fallback_key_types": value},
        {"device_one_time_keys_count": {"signed_curve25519": value}},
        {"device_unused_fallback_key_types": [value]},
    ):
        batch = parse_sync({"next_batch": "s1", **raw})
        assert batch is not None
        assert batch.keys_left.one_time in (None, 0, 1, 7, 10_000)
        if "device_one_time_keys_count" not in raw:
            assert batch.keys_left.lacks_fallback is True


def test_the_words_of_a_homeserver_on_our_keys_are_read() -> None:
    """F-010: by the spec, a kind that is not listed is not there."""
    good = {"signed_curve25519": 50}
    table: list[tuple[Json, KeyCounts]] = [
        ({}, KeyCounts(None, None)),
        ({"device_one_time_keys_count": {}}, KeyCounts(0, None)),
        ({"device_one_time_keys_count": good}, KeyCounts(50, None)),
        ({"device_unused_fallback_key_types": []}, KeyCounts(None, True)),
        ({"device_unused_fallback_key_types": ["signed_curve25519"]}, KeyCounts(None, False)),
    ]
    for raw, meant in table:
        batch = parse_sync({"next_batch": "s1", **raw})
        assert batch is not None
        assert batch.keys_left == meant
