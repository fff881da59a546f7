"""Keys: nobody else's stop us, ours are stored before anybody has them, whichever write fails, and a spoilt store is told."""

import base64
import json
import os
import sqlite3  # noqa: TID251  a look from outside, with another library than the daemon's
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from nio import KeysClaimResponse, KeysQueryResponse
from nio.events import OlmEvent
from peewee import SqliteDatabase
from vodozemac import Curve25519PublicKey, GroupSession

from tests.world.chats import answered_with
from tests.world.clock import FakeClock
from tests.world.homeserver import Homeserver, Login
from tests.world.keys import (
    ALGORITHM,
    ANN,
    BOT,
    EVE,
    NO_POINT,
    SESSION,
    Device,
    Json,
    Wire,
    accepted,
    enter,
    given_to,
    keys_of,
    known_devices,
    machine,
    numbered,
)
from tests.world.malformed import WRONG, misshapen
from tests.world.proxy import Action, Answer, Cut, Proxy, Request
from tests.world.scene import NewAnybody, NewName, Scene
from tests.world.user import CLIENT, MatrixUser
from wintermute.config.schema import Matrix
from wintermute.errors import ConfigurationError, HomeserverUnavailable, KeyStoreBlocked
from wintermute.matrix.client import open_client
from wintermute.matrix.error_boundary import install
from wintermute.matrix.kept_login import Session, store_file
from wintermute.matrix.keys import Keys
from wintermute.matrix.login import _probe_store
from wintermute.matrix.people import MOST_DEVICES, People, usable_devices, usable_one_time_keys


def asked_for(wire: Wire, user: str) -> list[Json]:
    """The key queries in which a user was."""
    return [body for body in wire.bodies("/keys/query") if user in body["device_keys"]]


def spoilt_devices(device: Device) -> list[object]:
    """Spoilt before it was signed, and after."""
    before = [device.signed(dict(changed)) for changed in misshapen(device.plain())]  # type: ignore[call-overload]  # wrong() gives objects
    return [*before, *misshapen(device.keys()), *WRONG[1:]]


async def test_no_devices_of_others_can_stop_a_query(tmp_path: Path) -> None:
    """X-022: a corpus, through nio's own machine; a good device beside it is always learned."""
    eve, ann = Device(EVE, "EVIL"), Device(ANN, "GOOD")
    cases: list[object] = [
        {ANN: {"GOOD": ann.keys()}, EVE: {"EVIL": x}} for x in spoilt_devices(eve)
    ]
    cases += [{ANN: {"GOOD": ann.keys()}, EVE: x} for x in WRONG[1:]]
    for value in WRONG[1:]:
        spoilt = Device(EVE, "EVIL")
        spoilt_plain = spoilt.plain()
        spoilt_plain["keys"]["curve25519:EVIL"] = value
        cases.append({ANN: {"GOOD": ann.keys()}, EVE: {"EVIL": spoilt.signed(spoilt_plain)}})
    assert len(cases) > 100
    async with machine(tmp_path) as nio:
        for case in cases:
            found, _ = usable_devices({"device_keys": case}, [ANN, EVE])
            await nio.receive_response(KeysQueryResponse(found, {}))
            assert known_devices(nio, ANN) == ["GOOD"]
    for raw in [{}, *({"device_keys": value} for value in WRONG[1:])]:
        assert usable_devices(raw, [ANN]) == ({}, 0)


def test_a_good_device_is_kept_and_each_bad_one_counted() -> None:
    """X-022."""
    good, bad = Device(EVE, "GOOD"), Device(EVE, "BAD")
    plain = bad.plain()
    plain["keys"]["curve25519:BAD"] = "garbage"
    raw = {"device_keys": {EVE: {"GOOD": good.keys(), "BAD": bad.signed(plain)}, ANN: {}}}
    found, dropped = usable_devices(raw, [EVE, ANN])
    assert dropped == 1
    assert list(found[EVE]) == ["GOOD"]
    assert found[ANN] == {}
    assert found[EVE]["GOOD"].items() >= good.plain().items()


@pytest.mark.parametrize(
    "name", ["", "two words", f"X\n{ANN} HERS matrix-ed25519 {NO_POINT}", "x\u2028y", "x" * 256]
)
def test_a_device_name_that_would_forge_a_line_of_a_trust_file_is_dropped(name: str) -> None:
    raw = {"device_keys": {EVE: {name: Device(EVE, name).keys()}}}
    assert usable_devices(raw, [EVE]) == ({EVE: {}}, 1)


def test_the_devices_of_one_person_are_bounded() -> None:
    """X-022."""
    devices = [Device(EVE, f"D{number:04}") for number in range(MOST_DEVICES + 7)]
    raw = {"device_keys": {EVE: {device.name: device.keys() for device in devices}}}
    found, dropped = usable_devices(raw, [EVE])
    assert (len(found[EVE]), dropped) == (MOST_DEVICES, 7)


async def test_no_one_time_keys_of_others_can_stop_a_claim(tmp_path: Path) -> None:
    """X-022: a corpus, through nio's own machine."""
    eve = Device(EVE, "EVIL")
    cases: list[object] = [*WRONG[1:], *misshapen(eve.one_time_key())]
    cases += [eve.one_time_key(value) for value in WRONG[1:] if value]
    cases += [{f"signed_curve25519:{x}": eve.signed({"key": x})} for x in WRONG[1:]]
    async with machine(tmp_path) as nio:
        await nio.receive_response(KeysQueryResponse({EVE: {"EVIL": eve.keys()}}, {}))
        for case in cases:
            raw = {"one_time_keys": {EVE: {"EVIL": case}}}
            usable, dropped = usable_one_time_keys(raw, {EVE: ["EVIL"]})
            assert len(usable) + dropped == 1
            for user, device, key in usable:
                nio.olm.handle_response(KeysClaimResponse({user: {device: key}}, {}))
    for value in WRONG[1:]:
        asked = {EVE: ["EVIL"]}
        assert usable_one_time_keys({"one_time_keys": value}, asked) == ([], 0)
        assert usable_one_time_keys({"one_time_keys": {EVE: value}}, asked) == ([], 0)


async def test_a_room_key_reaches_the_others_when_one_key_is_useless(
    wire: Wire, tmp_path: Path
) -> None:
    """X-022: a key that has the right form, and with which nio cannot make a session."""
    ann, eve = Device(ANN, "GOOD"), Device(EVE, "EVIL")
    wire.answers |= {
        "keys/query": {"device_keys": {ANN: {"GOOD": ann.keys()}, EVE: {"EVIL": eve.keys()}}},
        "keys/claim": {
            "one_time_keys": {
                EVE: {"EVIL": eve.one_time_key(NO_POINT)},
                ANN: {"GOOD": ann.one_time_key()},
            }
        },
    }
    wire.members["!r"] = (ANN, EVE, BOT)
    async with keys_of(tmp_path, wire, FakeClock()) as (keys, nio):
        enter(wire, nio, "!r")
        await keys.share("!r")
        nio.encrypt("!r", "m.room.message", {"body": "secret"})
        assert given_to(wire) == {ANN: ["GOOD"]}
        assert keys.take_dropped() == 1


@pytest.mark.parametrize("away", ["devices", "one-time keys"])
async def test_what_nobody_could_read_is_not_sent_yet(
    away: str, wire: Wire, tmp_path: Path
) -> None:
    """L-073: the homeserver of the only other person is away; the answer waits for it."""
    ann = Device(ANN, "GOOD")
    there = {"keys/query": {"device_keys": {ANN: {"GOOD": ann.keys()}}}}
    given = {"keys/claim": {"one_time_keys": {ANN: {"GOOD": ann.one_time_key()}}}}
    missing = {"keys/query": {"device_keys": {}}} if away == "devices" else there
    wire.members["!r"] = (ANN, BOT)
    wire.answers |= missing | {"keys/claim": {"one_time_keys": {}}}
    clock = FakeClock()
    async with keys_of(tmp_path, wire, clock) as (keys, nio):
        enter(wire, nio, "!r")
        with pytest.raises(HomeserverUnavailable, match="nobody"):
            await keys.share("!r")
        wire.answers |= there | given
        clock.advance(61)
        await keys.share("!r")
        assert given_to(wire) == {ANN: ["GOOD"]}


async def test_who_is_missing_in_an_answer_is_asked_for_once_a_minute(
    wire: Wire, tmp_path: Path
) -> None:
    """Their homeserver may be away for days; nobody else waits for it."""
    clock = FakeClock()
    wire.answers["keys/query"] = {"device_keys": {}, "failures": {"test": {}}}
    async with keys_of(tmp_path, wire, clock) as (keys, nio):
        for _ in range(3):
            nio.olm.users_for_key_query.add(ANN)
            await keys.upkeep()
        assert len(asked_for(wire, ANN)) == 1
        clock.advance(61)
        wire.answers["keys/query"] = {"device_keys": {ANN: {"D": Device(ANN, "D").keys()}}}
        await keys.upkeep()
        assert known_devices(nio, ANN) == ["D"]
        clock.advance(61)
        await keys.upkeep()
        assert len(asked_for(wire, ANN)) == 2


async def test_who_was_asked_for_in_vain_is_asked_for_again(wire: Wire, tmp_path: Path) -> None:
    async with keys_of(tmp_path, wire, FakeClock()) as (keys, nio):
        nio.olm.users_for_key_query.add(ANN)
        wire.answers["keys/query"] = Answer(502)
        with pytest.raises(HomeserverUnavailable):
            await keys.upkeep()
        wire.answers["keys/query"] = {"device_keys": {ANN: {}}}
        await keys.upkeep()
        assert len(asked_for(wire, ANN)) == 2


async def test_the_keys_of_an_unanswered_upload_are_uploaded_again(
    wire: Wire, tmp_path: Path
) -> None:
    """X-016: in the same run and after a kill, the very same; and not one more each time."""
    wire.answers["keys/upload"] = Cut()
    for _ in range(2):
        async with keys_of(tmp_path, wire, FakeClock()) as (keys, _nio):
            for _ in range(2):
                with pytest.raises(HomeserverUnavailable):
                    await keys.upkeep()
    first, *others = wire.bodies("/keys/upload")
    assert len(first["one_time_keys"]) == 50
    assert others == [first] * 3

    wire.answers["keys/upload"] = accepted
    async with keys_of(tmp_path, wire, FakeClock()) as (keys, nio):
        await keys.upkeep()
        nio.olm.uploaded_key_count = 48
        await keys.upkeep()
    *_, last, more = wire.bodies("/keys/upload")
    assert last == first
    assert len(more["one_time_keys"]) == 2
    assert not more["one_time_keys"].keys() & first["one_time_keys"].keys()


async def test_an_upload_that_is_refused_stops_nothing(wire: Wire, tmp_path: Path) -> None:
    """A backup was restored: the homeserver has other keys of these names."""
    clock = FakeClock()
    refusal = Answer(400, {"errcode": "M_UNKNOWN", "error": "One time key already exists."})
    wire.answers |= {"keys/upload": refusal, "keys/query": {"device_keys": {ANN: {}}}}
    async with keys_of(tmp_path, wire, clock) as (keys, nio):
        for _ in range(3):
            nio.olm.users_for_key_query.add(ANN)
            await keys.upkeep()
        first, second = wire.bodies("/keys/upload")
        assert not first["one_time_keys"].keys() & second["one_time_keys"].keys()
        assert "already exists" in keys.trouble
        assert len(wire.bodies("/keys/query")) == 3

        wire.answers["keys/upload"] = accepted
        clock.advance(3601)
        await keys.upkeep()
        assert keys.trouble == ""
        assert wire.bodies("/keys/upload")[2] == second


async def test_a_homeserver_that_counts_no_keys_is_not_given_ever_more(
    wire: Wire, tmp_path: Path
) -> None:
    wire.answers["keys/upload"] = {}
    async with keys_of(tmp_path, wire, FakeClock()) as (keys, nio):
        with pytest.raises(HomeserverUnavailable):
            await keys.upkeep()
        assert not nio.olm.account.shared


async def test_a_flood_of_garbage_is_told_in_few_lines(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """X-022: each one counted, one traceback, then at most a line a minute."""
    clock, dropped = FakeClock(), list[int]()
    async with machine(tmp_path) as nio:
        install(nio, lambda: dropped.append(1), clock)
        garbage = {nio.olm.account.identity_keys["curve25519"]: {"type": 0, "body": "AwogAAAA"}}
        content = {"algorithm": ALGORITHM, "sender_key": NO_POINT, "ciphertext": garbage}
        event = OlmEvent.from_dict({"sender": EVE, "type": "m.room.encrypted", "content": content})
        for _ in range(30):
            assert nio.olm.handle_to_device_event(event) is None
            clock.advance(10)
    records = [
        record for record in caplog.records if record.name == "wintermute.matrix.error_boundary"
    ]
    assert len(dropped) == 30
    assert [bool(record.exc_info) for record in records] == [True, False, False, False, False]
    assert [record.getMessage().split("=")[1] for record in records[1:]] == ["6"] * 4


async def test_a_key_store_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    """Spoilt in many ways: a sentence with what to do, never a traceback; `check` sees most."""
    file = store_file(tmp_path, SESSION)
    async with machine(tmp_path):
        pass
    whole = file.read_bytes()
    assert _probe_store(tmp_path, SESSION).state == "ok"
    page = 4096
    spoilt = [
        b"garbage" * 5000,
        whole[: len(whole) // 2],
        whole[:page] + os.urandom(len(whole) - page),
        whole[: 2 * page] + b"\0" * 3 * page + whole[5 * page :],
    ]
    for content in spoilt:
        file.write_bytes(content)
        fact = _probe_store(tmp_path, SESSION)
        assert (fact.state, "reset-crypto" in fact.text) == ("fail", True)
        await refuses_store(tmp_path, SESSION)
    file.write_bytes(whole)
    other = Session(BOT, SESSION.device_id, "token", "another pickle key")
    await refuses_store(tmp_path, other)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(opened(tmp_path, SESSION))


async def test_a_key_store_from_the_future_is_left_as_it_is(tmp_path: Path) -> None:
    """What a newer version wrote, this one would misread; it says so, and writes nothing."""
    file = store_file(tmp_path, SESSION)
    async with machine(tmp_path):
        pass
    connection = sqlite3.connect(file)
    connection.execute("UPDATE storeversion SET version = 3")
    connection.commit()
    connection.close()
    before = file.read_bytes()
    with pytest.raises(ConfigurationError, match="a newer version wrote it"):
        async with opened(tmp_path, SESSION):
            pass
    assert "a newer version wrote it" in _probe_store(tmp_path, SESSION).text
    assert file.read_bytes() == before


async def refuses_store(folder: Path, session: Session) -> None:
    with pytest.raises(ConfigurationError, match=r"backup.*reset-crypto"):
        async with opened(folder, session):
            pass


def opened(folder: Path, session: Session) -> Any:
    matrix = Matrix(homeserver="http://127.0.0.1:1", user_id=BOT, owner=ANN)
    return open_client(matrix, session, folder, numbered, FakeClock(), People())


@pytest.mark.slow
async def test_garbage_device_keys_of_a_stranger_stop_nothing(
    scene: Scene, homeserver: Homeserver, proxy: Proxy, fresh: NewName, anybody: NewAnybody
) -> None:
    """X-022, X-015: also after a restart, and whoever else is in the room can still read us."""
    eve = garbage_person(homeserver, fresh("eve"))
    ann = await anybody("ann", via=proxy.url)
    if isinstance(ann, MatrixUser):
        proxy.after = without(eve.user_id)
    daemon = await scene.bot(ann)
    chat = await scene.room(ann, daemon, encrypted=True)
    await ann.send(chat, "alone?")
    await answered_with(ann, chat, daemon.user_id, "alone?")
    await ann.invite(chat, eve.user_id)
    homeserver.request("POST", f"{CLIENT}/rooms/{chat}/join", {}, eve.access_token)
    await ann.wait_joined(chat, eve.user_id)
    for question in ("still there?", "and after a restart?"):
        pid = daemon.pid
        await ann.send(chat, f"{daemon.user_id}: {question}")
        await answered_with(ann, chat, daemon.user_id, question)
        assert (daemon.running, daemon.pid) == (True, pid)
        await daemon.restart()
    assert all(message.encrypted for message in ann.messages(chat, daemon.user_id))
    [count] = daemon.rows("SELECT value FROM single_values WHERE name = 'malformed'")
    assert count["value"] >= 3  # her devices without a usable key, at least once


def garbage_person(homeserver: Homeserver, name: str) -> Login:
    """Somebody whose devices have keys of no use, signed where a device's name says so."""
    homeserver.user(name)
    names = ("UNSIGNED", "SIGNED", "NOPOINT", "two words\nX Y Z")
    logins = [homeserver.login(name, device) for device in names]
    for login in logins:
        device = Device(login.user_id, login.device_id)
        keys = device.plain()
        keys["keys"][f"curve25519:{login.device_id}"] = "garbage"
        if login.device_id == "NOPOINT":
            keys["keys"]["curve25519:NOPOINT"] = NO_POINT
        if login.device_id == "UNSIGNED":
            keys["keys"]["ed25519:UNSIGNED"] = "garbage"
        body = {"device_keys": device.signed(keys), "one_time_keys": device.one_time_key(NO_POINT)}
        homeserver.request("POST", f"{CLIENT}/keys/upload", body, login.access_token)
    return logins[0]


def without(user: str) -> Callable[[Request, int, bytes], Action]:
    """Keeps a person's devices from a client that they would end."""

    def hide(request: Request, status: int, body: bytes) -> Action:
        if not request.path.endswith("/keys/query"):
            return None
        answer = json.loads(body)
        answer["device_keys"].pop(user, None)
        return Answer(status, answer)

    return hide


REQUESTS = ("keys/upload", "keys/query", "keys/claim")


class Backup:
    """Another program that writes to the key store, from when it is told to until it is to end."""

    def __init__(self, folder: Path) -> None:
        # By nio's own library: locks of one process exclude nobody who uses another one in it.
        self._database = SqliteDatabase(store_file(folder, SESSION))

    def begin(self) -> None:
        self._database.begin("IMMEDIATE")

    def end(self) -> None:
        self._database.rollback()
        self._database.close()


async def shared(keys: Keys) -> None:
    """All that has to be done before something can be said in an encrypted room."""
    await keys.upkeep()
    await keys.share("!r")


@pytest.mark.parametrize("at", REQUESTS)
async def test_what_could_not_be_stored_is_done_again(
    at: str, wire: Wire, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """F-007: the store is locked from the answer to one of the requests on."""
    ann, backup = Device(ANN, "GOOD"), Backup(tmp_path)
    answers: dict[str, Callable[[Request], Json]] = {
        "keys/upload": accepted,
        "keys/query": lambda _: {"device_keys": {ANN: {"GOOD": ann.keys()}}},
        "keys/claim": lambda _: {"one_time_keys": {ANN: {"GOOD": ann.one_time_key()}}},
    }

    def answer_and_lock(request: Request) -> Json:
        backup.begin()
        return answers[at](request)

    wire.answers |= answers | {at: answer_and_lock}
    async with keys_of(tmp_path, wire, FakeClock()) as (keys, nio):
        nio.store.database.timeout = 0.01
        wire.members["!r"] = (ANN, BOT)
        enter(wire, nio, "!r")
        for _ in range(3):
            with pytest.raises(KeyStoreBlocked, match="let the program that has locked it end"):
                await shared(keys)
            wire.answers |= answers
        assert not wire.seen("PUT", "sendToDevice/m.room.encrypted")
        assert "database is locked" in keys.store.trouble
        backup.end()
        await shared(keys)
        nio.encrypt("!r", "m.room.message", {"body": "secret"})
        assert keys.store.trouble == ""
    assert given_to(wire) == {ANN: ["GOOD"]}
    assert len(wire.bodies("/keys/upload")) == 1
    told = [r.getMessage() for r in caplog.records if "key store blocked" in r.getMessage()]
    assert len(told) == 1
    async with machine(tmp_path) as again:  # what was given away is what is stored
        assert again.olm.account.shared
        assert not again.olm.account.one_time_keys["curve25519"]
        assert [d.id for d in again.olm.device_store.active_user_devices(ANN)] == ["GOOD"]
        assert len(again.olm.session_store[ann.plain()["keys"]["curve25519:GOOD"]]) == 1


class Sender(Device):
    """A device of a person that seals keys for the bot."""

    def __init__(self, bot: Any) -> None:
        super().__init__(ANN, "GOOD")
        self.curve = self._account.curve25519_key.to_base64()
        keys = bot.olm.account.identity_keys
        self._bot = keys["ed25519"]
        [(_, one_time_key), *_] = bot.olm.account.one_time_keys["curve25519"].items()
        self._to = keys["curve25519"]
        self._session = self._account.create_outbound_session(
            Curve25519PublicKey.from_base64(self._to), Curve25519PublicKey.from_base64(one_time_key)
        )

    def room_key(self, room_id: str) -> Json:
        """A to-device event with the key of a new session."""
        session = GroupSession()
        key = {
            "algorithm": "m.megolm.v1.aes-sha2",
            "room_id": room_id,
            "session_id": session.session_id,
            "session_key": session.session_key.to_base64(),
        }
        sealed = {
            "type": "m.room_key",
            "content": key,
            "sender": ANN,
            "recipient": BOT,
            "recipient_keys": {"ed25519": self._bot},
            "keys": {"ed25519": self._account.ed25519_key.to_base64()},
        }
        kind, body = self._session.encrypt(json.dumps(sealed).encode()).to_parts()
        text = base64.b64encode(body).decode().rstrip("=")
        return self.event(self.curve, {"type": kind, "body": text})

    def event(self, sender_key: str, message: Json) -> Json:
        sealed = {self._to: message}
        content = {"algorithm": ALGORITHM, "sender_key": sender_key, "ciphertext": sealed}
        return {"type": "m.room.encrypted", "sender": ANN, "content": content}


async def test_of_one_sync_all_keys_are_stored_or_none(wire: Wire, tmp_path: Path) -> None:
    """F-007: the disk is full after some of them; the same sync comes again, with garbage in it."""
    matrix = Matrix(homeserver=wire.url, user_id=BOT, owner=ANN)
    async with open_client(matrix, SESSION, tmp_path, numbered, FakeClock(), People()) as client:
        nio = client._nio
        await client.upkeep()
        nio.olm.account.generate_one_time_keys(1)
        ann, database = Sender(nio), nio.store.database
        events = [ann.room_key(f"!room{n}") for n in range(60)]
        events.insert(30, ann.event(NO_POINT, {"type": 0, "body": "AwogAAAA"}))
        wire.answers["sync"] = {"next_batch": "s1", "to_device": {"events": events}}
        [(pages,)] = database.execute_sql("PRAGMA page_count").fetchall()
        database.execute_sql(f"PRAGMA max_page_count={pages + 5}")
        with pytest.raises(KeyStoreBlocked, match="make room on its disk"):
            await client.sync(None, full_state=False, wait_s=0)
        assert not list(nio.olm.inbound_group_store)
        client.keys.take_dropped()
        batch = await client.sync(None, full_state=False, wait_s=0)
        assert (len(list(nio.olm.inbound_group_store)), batch.malformed) == (60, 1)
    async with machine(tmp_path) as again:
        assert len(list(again.olm.inbound_group_store)) == 60
        assert len(again.olm.session_store[ann.curve]) == 1


async def test_whose_a_session_is_is_not_forgotten_before_it_is_stored(
    wire: Wire, tmp_path: Path
) -> None:
    """F-005: a gap could not be filled, so the same sync comes again; nio passes over it then."""
    matrix = Matrix(homeserver=wire.url, user_id=BOT, owner=ANN)
    async with open_client(
        matrix, SESSION, tmp_path, numbered, FakeClock(), People({ANN})
    ) as client:
        await client.upkeep()
        client._nio.olm.account.generate_one_time_keys(1)
        ann = Sender(client._nio)
        wire.answers["keys/query"] = {"device_keys": {ANN: {"GOOD": ann.keys()}}}
        events = [ann.room_key("!room")]
        wire.answers["sync"] = {"next_batch": "s1", "to_device": {"events": events}}
        for _ in range(2):
            batch = await client.sync(None, full_state=False, wait_s=0)
            [(session, device)] = batch.owners
            assert (session.room_id, device.user_id, device.device_id) == ("!room", ANN, "GOOD")
        wire.answers["sync"] = {"next_batch": "s2"}
        assert not (await client.sync("s1", full_state=False, wait_s=0)).owners


@pytest.mark.slow
@pytest.mark.parametrize(
    ("device", "how", "rooms"),
    [
        (SESSION.device_id, "EXCLUSIVE", ["!room"]),
        ("NEXT", "IMMEDIATE", ["!room"]),
        ("NEXT", "IMMEDIATE", []),
    ],
)
async def test_room_keys_are_taken_over_once_the_store_is_not_blocked(
    wire: Wire, tmp_path: Path, device: str, how: str, rooms: list[str]
) -> None:
    """F-007, F-009: whichever of the two files it is; also where there is only that to be kept."""
    ours = replace(SESSION, device_id="NEXT", predecessor=SESSION.device_id)
    matrix = Matrix(homeserver=wire.url, user_id=BOT, owner=ANN)
    async with machine(tmp_path) as before:
        for room_id in rooms:
            before.olm.create_outbound_group_session(room_id)
    async with open_client(
        matrix, replace(ours, predecessor=""), tmp_path, numbered, FakeClock(), People()
    ):
        pass
    file = store_file(tmp_path, replace(ours, device_id=device))
    backup = SqliteDatabase(file)
    backup.begin(how)
    with pytest.raises(KeyStoreBlocked, match=f"{file.name} .* locked it end"):
        async with open_client(matrix, ours, tmp_path, numbered, FakeClock(), People()):
            pass
    backup.rollback()
    backup.close()
    async with open_client(matrix, ours, tmp_path, numbered, FakeClock(), People()) as client:
        assert [session.room_id for session in client._nio.olm.inbound_group_store] == rooms
