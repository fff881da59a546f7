"""Other keys under an old name: a new identity is not believed, a device is if its owner's identity signed it."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.world.bot import Bot, said
from tests.world.chats import echoed_each, inbox_states, notices
from tests.world.clock import FakeClock, until
from tests.world.current import CurrentClient, what_is_missing
from tests.world.homeserver import Homeserver
from tests.world.identities import identity_notice, trust
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
from tests.world.model import Slow, Text
from tests.world.proxy import Action, Answer, Proxy, Request, pass_after
from tests.world.scene import NewName, Scene
from tests.world.user import MatrixUser
from wintermute.matrix.keys import OTHER_KEYS as REASON

Json = dict[str, Any]
Lie = Callable[[Json, str], None]


def sent(proxy: Proxy, room: str) -> list[str]:
    """The session of each encrypted event that was sent to a room."""
    found = proxy.seen("PUT", f"/rooms/{room}/send/m.room.encrypted/")
    return [request.json["session_id"] for request in found]


def given(proxy: Proxy, user: str) -> int:
    """How often a room key went to devices of a user."""
    shares = proxy.seen("PUT", "/sendToDevice/m.room.encrypted/")
    return sum(user in request.json["messages"] for request in shares)


def waiting(daemon: Bot) -> list[str]:
    return [row["body"] for row in daemon.rows("SELECT body FROM outbox WHERE state = 'waiting'")]


@pytest.mark.slow
async def test_after_a_new_identity_all_waits_until_somebody_trusts_it(scene: Scene) -> None:
    """X-035: one notice, readable, in a session of its own; a restart; then all goes on."""
    ann = await scene.current("ann")
    daemon = await scene.bot(ann, via=scene.proxy.url)
    plain, chat = await scene.room(ann, daemon), await scene.room(ann, daemon, encrypted=True)
    await echoed_each(ann, chat, "one")
    gate = asyncio.Event()
    scene.model.script(Slow(gate, Text("two, at last")))
    await ann.send(plain, "two")
    await until(lambda: len(scene.model.requests) == 2)
    await ann.make_identity(anew=True)
    await identity_notice(ann, chat)
    gate.set()
    for text in ("three", "four"):
        await ann.send(chat, text)
    await until(lambda: inbox_states(daemon).count("untrusted") == 2)
    await until(lambda: waiting(daemon) == ["two, at last"])
    await daemon.restart()
    assert inbox_states(daemon).count("untrusted") == 2
    assert waiting(daemon) == ["two, at last"]
    assert len(notices(daemon, "new cryptographic identity")) == 1
    first, of_notice = sent(scene.proxy, chat)
    assert first != of_notice
    assert given(scene.proxy, ann.user_id) == 2

    await trust(daemon, ann.user_id)
    await ann.wait_for(chat, lambda m: m.body == "echo: four")
    await ann.wait_for(plain, lambda m: m.body == "two, at last")
    answers = [m.body for m in ann.messages(chat, daemon.user_id)]
    assert answers[2:] == ["echo: three", "echo: four"]
    assert of_notice not in sent(scene.proxy, chat)[2:]
    await echoed_each(await scene.current(ann), chat, "five")


def no_master_key(answer: Json, user: str) -> None:
    answer["master_keys"].pop(user, None)


def not_signed(answer: Json, user: str) -> None:
    if user in answer["self_signing_keys"]:
        answer["self_signing_keys"][user]["signatures"] = {}


@pytest.mark.slow
@pytest.mark.parametrize("lie", [no_master_key, not_signed])
async def test_a_homeserver_that_takes_an_identity_away_is_not_believed(
    scene: Scene, lie: Lie, proxy: Proxy
) -> None:
    """X-034, X-035: nothing goes on until it is there again."""
    ann, daemon, chat = await scene.met(await scene.current("ann"), encrypted=True, via=proxy.url)
    await echoed_each(ann, chat, "one")

    def lying(request: Request, status: int, body: bytes) -> Action:
        if not request.path.endswith("/keys/query"):
            return None
        answer = json.loads(body)
        lie(answer, ann.user_id)
        return Answer(status, answer)

    proxy.after = lying
    await daemon.restart()
    await ann.wait_for(chat, lambda m: "no longer has" in m.body)
    await ann.send(chat, "two")
    await until(lambda: inbox_states(daemon).count("untrusted") == 1)
    await daemon.restart()
    assert inbox_states(daemon).count("untrusted") == 1
    proxy.after = pass_after
    await daemon.restart()
    await ann.wait_for(chat, lambda m: m.body == "echo: two")
    assert len(notices(daemon, "no longer has")) == 1


@pytest.mark.slow
async def test_where_somebody_has_changed_the_others_wait_with_them(scene: Scene) -> None:
    """X-035: in the group, and nowhere else."""
    ann, ben = await asyncio.gather(scene.current("ann"), scene.current("ben"))
    daemon = await scene.bot(ann, via=scene.proxy.url, matrix={"allowed_users": [ben.user_id]})
    chat, bens = (
        await scene.room(ann, daemon, encrypted=True),
        await scene.room(ben, daemon, encrypted=True),
    )
    group = await scene.room(ann, daemon, ben, encrypted=True)
    await ann.make_identity(anew=True)
    await identity_notice(ann, chat)
    us = {"m.mentions": {"user_ids": [daemon.user_id]}}
    await ben.send(group, "hello", **us)
    await echoed_each(ben, bens, "one")
    await until(lambda: len(waiting(daemon)) == 1)
    assert sent(scene.proxy, group) == []
    await trust(daemon, ann.user_id)
    answer = await ben.wait_for(group, lambda m: m.sender == daemon.user_id)
    assert answer.body.endswith("hello")
    await echoed_each(ann, chat, "two")
    of_notice, later = sent(scene.proxy, chat)
    assert of_notice != later


@pytest.mark.slow
@pytest.mark.parametrize(
    "steps",
    [
        [["operation", "INSERT INTO people"], ["executing", "INSERT INTO outbox"]],
        [["operation", "INSERT INTO people"], ["executing", "UPDATE people SET notified"]],
        [["operation", "UPDATE people SET notified"], ["executing", "INSERT INTO outbox_parts"]],
        [["operation", "INSERT INTO outbox_parts"], ["executing", "UPDATE outbox_parts"]],
    ],
)
async def test_a_kill_at_any_step_tells_of_it_once(scene: Scene, steps: list[list[str]]) -> None:
    """X-035."""
    ann, daemon, chat = await scene.met(await scene.current("ann"), encrypted=True)
    await echoed_each(ann, chat, "one")
    assert await daemon.stop() == 0
    await ann.make_identity(anew=True)
    await daemon.start({"logger": "aiosqlite", "steps": steps}, ready=False)
    assert await daemon.ended() < 0
    await daemon.start()
    await identity_notice(ann, chat)
    await ann.send(chat, "two")
    await until(lambda: "untrusted" in inbox_states(daemon))
    await daemon.said_all()
    await daemon.restart()
    assert len(notices(daemon, "new cryptographic identity")) == 1
    assert [m.body for m in ann.messages(chat, daemon.user_id)][2:] == []
    await trust(daemon, ann.user_id)
    await ann.wait_for(chat, lambda m: m.body == "echo: two")


@pytest.mark.slow
async def test_what_changes_again_is_told_again_and_trusted_anew(scene: Scene) -> None:
    """X-035: trusted while nobody was at work, and changed meanwhile."""
    ann, daemon, chat = await scene.met(await scene.current("ann"), encrypted=True)
    await echoed_each(ann, chat, "one")
    await ann.make_identity(anew=True)
    await identity_notice(ann, chat)
    assert await daemon.stop() == 0
    await trust(daemon, ann.user_id)
    await ann.make_identity(anew=True)
    await daemon.start()
    await identity_notice(ann, chat)
    await ann.send(chat, "two")
    await until(lambda: "untrusted" in inbox_states(daemon))
    await trust(daemon, ann.user_id)
    await ann.wait_for(chat, lambda m: m.body == "echo: two")


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
    ann, daemon, chat = await scene.met(await scene.current("ann"), encrypted=True)
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
