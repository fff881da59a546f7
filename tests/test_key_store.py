"""What nio could not store it does not know either, whichever of its writes it was (F-007)."""

import base64
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from peewee import SqliteDatabase
from vodozemac import Curve25519PublicKey, GroupSession

from tests.world.clock import FakeClock
from tests.world.keys import (
    ALGORITHM,
    ANN,
    BOT,
    NO_POINT,
    SESSION,
    Device,
    Json,
    Wire,
    accepted,
    enter,
    given_to,
    keys_of,
    machine,
    numbered,
)
from tests.world.proxy import Request
from wintermute.config.schema import Matrix
from wintermute.errors import KeyStoreBlocked
from wintermute.matrix.client import open_client
from wintermute.matrix.kept_login import store_file
from wintermute.matrix.keys import Keys
from wintermute.matrix.people import People

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
