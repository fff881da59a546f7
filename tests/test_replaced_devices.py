"""A client comes back with other keys under its old name: taken if its owner's identity signed them."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.world.bot import said
from tests.world.chats import echoed_each, inbox_states, notices
from tests.world.clock import FakeClock, until
from tests.world.current import CurrentClient, what_is_missing
from tests.world.homeserver import Homeserver
from tests.world.keys import (
    ANN,
    EVE,
    NEW,
    OTHER,
    Wire,
    enter,
    keys_of,
    with_identity,
    without_identity,
)
from tests.world.keys import Device as Phone
from tests.world.logins import take_all
from tests.world.proxy import Proxy
from tests.world.scene import NewName, Scene
from tests.world.user import MatrixUser
from wintermute.matrix.keys import OTHER_KEYS as REASON

Json = dict[str, Any]
BEFORE, AFTER = Phone(ANN, "PHONE"), Phone(ANN, "PHONE")
OTHER_KEYS = "its keys have changed"


@pytest.fixture
async def wire() -> AsyncIterator[Wire]:
    async with Proxy("http://127.0.0.1:1") as proxy:
        wire = Wire(proxy)
        wire.answers["keys/upload"] = {"one_time_key_counts": {"signed_curve25519": 50}}
        yield wire


def with_other_curve() -> Json:
    """The device signs for another curve key, as it cannot be made to do by its owner."""
    changed = BEFORE.plain()
    changed["keys"]["curve25519:PHONE"] = AFTER.plain()["keys"]["curve25519:PHONE"]
    served = with_identity(BEFORE, signed=[BEFORE])
    served["device_keys"][ANN]["PHONE"] = BEFORE.signed(changed)
    return served


def keys_kept(nio: Any, user: str = ANN) -> list[str]:
    """The keys of somebody's devices that are there."""
    devices = nio.olm.device_store.active_user_devices(user)
    return sorted(f"{device.ed25519} {device.curve25519}" for device in devices)


def keys(phone: Phone) -> str:
    named = phone.plain()["keys"]
    return f"{named['ed25519:PHONE']} {named['curve25519:PHONE']}"


GOOD = with_identity(BEFORE, signed=[BEFORE])
SERVED: dict[str, tuple[Json, Json, bool]] = {
    "signed by the known identity": (GOOD, with_identity(AFTER, signed=[AFTER]), True),
    "signed by nobody": (GOOD, with_identity(AFTER), False),
    "signed by a key that nobody vouches for": (
        GOOD,
        with_identity(AFTER, signed=[AFTER], signing=OTHER) | {"self_signing_keys": {}},
        False,
    ),
    "signed by a new identity": (GOOD, with_identity(AFTER, signed=[AFTER], master=NEW), False),
    "of somebody without an identity": (without_identity(BEFORE), without_identity(AFTER), False),
    "another curve key only": (GOOD, with_other_curve(), False),
}


@pytest.mark.parametrize("case", SERVED)
async def test_new_keys_under_a_known_name_are_taken_if_the_known_identity_signed_them(
    case: str, wire: Wire, tmp_path: Path
) -> None:
    """F-012: else the device is out, until its old keys are served again; over a restart."""
    before, after, taken = SERVED[case]
    wire.answers["keys/query"] = before
    async with keys_of(tmp_path, wire, FakeClock()) as (work, nio):
        await work.ask({ANN})
        assert keys_kept(nio) == [keys(BEFORE)]
        wire.answers["keys/query"] = after
        for _ in range(2):
            await work.ask({ANN})
        assert keys_kept(nio) == ([keys(AFTER)] if taken else [])
        assert len(work.replaced.take_refused()) == (0 if taken else 1)
        assert bool(work.trouble) != taken
        work.people.restore([], [])  # the next run reads from our database what the last one kept
        people = work.people.take_changes()[0].people
    async with keys_of(tmp_path, wire, FakeClock()) as (work, nio):
        work.people.restore(people, [])
        assert keys_kept(nio) == ([keys(AFTER)] if taken else [])
        await work.ask({ANN})
        assert keys_kept(nio) == ([keys(AFTER)] if taken else [])
        if not taken:
            wire.answers["keys/query"] = before
            await work.ask({ANN})
            assert (keys_kept(nio), work.trouble) == ([keys(BEFORE)], "")


async def test_of_strangers_the_identity_that_is_served_decides(wire: Wire, tmp_path: Path) -> None:
    """F-012: as it does whether they get our keys; and no trouble of theirs is told."""
    before, after = Phone(EVE, "PHONE"), Phone(EVE, "PHONE")
    async with keys_of(tmp_path, wire, FakeClock()) as (work, nio):
        for served, there in (
            (with_identity(before, signed=[before], user=EVE), before),
            (with_identity(after, user=EVE), None),
            (with_identity(after, signed=[after], user=EVE), after),
        ):
            wire.answers["keys/query"] = served
            await work.ask({EVE})
            assert keys_kept(nio, EVE) == ([keys(there)] if there else [])
            assert work.trouble == ""


async def test_a_session_that_is_refused_is_told_so_in_the_words_of_the_protocol(
    wire: Wire, tmp_path: Path
) -> None:
    """F-069: once a session of ours; and its owner is out of reach while they have no other one."""
    wire.members["!room"] = [ANN]
    wire.answers["keys/query"] = without_identity(BEFORE)
    async with keys_of(tmp_path, wire, FakeClock()) as (work, nio):
        await work.ask({ANN})
        assert work.reaches(ANN)
        wire.answers["keys/query"] = without_identity(AFTER)
        await work.ask({ANN})
        assert not work.reaches(ANN)
        assert work.reaches("@nobody:knows")
        enter(wire, nio, "!room")
        for _ in range(2):
            await work.share("!room")
        [told] = wire.seen("PUT", "sendToDevice/m.room_key.withheld")
        word = told.json["messages"][ANN]["PHONE"]
        assert (word["code"], word["reason"], word["room_id"]) == ("m.unverified", REASON, "!room")
        assert word["session_id"] == nio.olm.outbound_group_sessions["!room"].id


@pytest.mark.slow
async def test_who_has_no_session_to_be_talked_to_hears_of_it_where_they_can(
    scene: Scene, homeserver: Homeserver, fresh: NewName, tmp_path: Path
) -> None:
    """F-069: at that very device, by the owner, and in words once there is a chat for them."""
    if missing := what_is_missing():
        pytest.skip(missing)
    ann, login = await scene.person("ann"), homeserver.user(fresh("ben"))
    daemon = await scene.bot(ann, matrix={"allowed_users": [login.user_id]})
    anns = await scene.room(ann, daemon, encrypted=True)
    async with CurrentClient(homeserver.url, login, tmp_path / "before") as phone:
        chat = await scene.room(phone, daemon, encrypted=True)
        await echoed_each(phone, chat, "one")
    await asyncio.to_thread(take_all, homeserver, ann.login, login.user_id, login.device_id)
    async with CurrentClient(homeserver.url, login, tmp_path / "after") as phone:
        why = "MEGOLM_KEY_WITHHELD_FOR_UNVERIFIED_DEVICE"
        await phone.until(lambda: why in [each.failure for each in phone.events(chat)])
        by_owner = await ann.wait_for(anns, lambda m: OTHER_KEYS in m.body)
        assert login.device_id in by_owner.body
        plain_chat = await scene.room(phone, daemon)
        for text in ("a secret plan", "another one"):
            await phone.send(chat, text)
        await phone.wait_for(plain_chat, lambda m: OTHER_KEYS in m.body)
        await until(lambda: inbox_states(daemon).count("locked") == 2)
        await daemon.restart()
        await echoed_each(ann, anns, "two")
        assert len(ann.messages(anns, daemon.user_id)) == 2
        assert len(phone.messages(plain_chat, daemon.user_id)) == 1
        assert not notices(daemon, "secret")


@pytest.mark.slow
async def test_a_client_that_lost_its_keys_is_answered_when_its_owner_vouches_for_it(
    scene: Scene, homeserver: Homeserver, tmp_path: Path
) -> None:
    """F-012: until then it is refused, the room is told once what to do, over a restart too."""
    ann = await scene.current("ann")
    daemon = await scene.bot(ann)
    chat = await scene.room(ann, daemon, encrypted=True)
    login = homeserver.login(ann.user_id[1:].partition(":")[0])
    # Unsigned: Synapse takes no second signature for a name.
    async with CurrentClient(homeserver.url, login, tmp_path / "before"):
        await echoed_each(ann, chat, "one")
    # Else Synapse takes no new ones of the same names.
    await asyncio.to_thread(take_all, homeserver, ann.login, login.user_id, login.device_id)
    async with CurrentClient(homeserver.url, login, tmp_path / "after") as phone:
        for text in ("two", "three"):
            await phone.send(chat, text)
        told = await ann.wait_for(chat, lambda m: OTHER_KEYS in m.body)
        assert login.device_id in told.body
        await daemon.restart()
        await echoed_each(ann, chat, "four")
        assert inbox_states(daemon).count("locked") == 2
        assert len(notices(daemon, "")) == 1
        code, status = await daemon.command("status", "--all")
        assert (code, "other keys than before" in status) == (0, True), status

        await ann.share_identity(phone)
        await phone.wait_for(chat, lambda m: m.body == "echo: three")
        await echoed_each(phone, chat, "five")
    heard = [m for m in await said(ann, chat, daemon.user_id) if m.startswith("echo: ")]
    assert heard == [f"echo: {word}" for word in ("one", "four", "two", "three", "five")]


@pytest.mark.slow
async def test_a_client_of_somebody_without_an_identity_has_to_log_in_anew(
    scene: Scene, homeserver: Homeserver, tmp_path: Path
) -> None:
    """F-012: who only reads is told as well; a new session of theirs is answered."""
    ann, daemon, chat = await scene.direct(encrypted=True)
    name = ann.user_id[1:].partition(":")[0]
    login = homeserver.login(name)
    async with MatrixUser(homeserver.url, login, tmp_path / "before") as phone:
        await echoed_each(phone, chat, "one")
    async with MatrixUser(homeserver.url, login, tmp_path / "after") as phone:
        await ann.wait_for(chat, lambda m: OTHER_KEYS in m.body)
        await phone.send(chat, "two")
        await until(lambda: inbox_states(daemon).count("locked") == 1)
    new = homeserver.login(name)
    async with MatrixUser(homeserver.url, new, tmp_path / "new") as phone:
        await phone.until(lambda: daemon.user_id in phone.members(chat))
        await echoed_each(phone, chat, "three")
    await daemon.restart()
    await echoed_each(ann, chat, "four")
    assert len(notices(daemon, "")) == 1
