"""Encrypted rooms: nothing leaves in clear, keys survive, and what cannot be read is not lost."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.world.bot import Bot, said
from tests.world.chats import echoed_each, send_in_clear
from tests.world.clock import FakeClock
from tests.world.homeserver import Homeserver
from tests.world.model import ModelServer
from tests.world.person import Person
from tests.world.proxy import Answer, Proxy, Request, hand_over, pass_before, withhold
from tests.world.scene import NewAnybody, NewName, NewPerson, Scene
from tests.world.sending import AtOnce
from wintermute.config.schema import Matrix
from wintermute.errors import SendRefused
from wintermute.ids import new_id
from wintermute.matrix.client import open_client
from wintermute.matrix.inbox import OUTBOX_KEY
from wintermute.matrix.kept_login import Session
from wintermute.matrix.people import People

CLIENT = "/_matrix/client/v3"
MEGOLM = {"algorithm", "ciphertext", "sender_key", "session_id", "device_id", OUTBOX_KEY}


def sent_to(proxy: Proxy, room: str) -> list[Request]:
    """Every event of any type that was sent to a room."""
    return [r for r in proxy.requests if r.method == "PUT" and f"/rooms/{room}/send/" in r.path]


async def test_what_cannot_be_encrypted_is_not_sent(
    person: NewPerson, homeserver: Homeserver, fresh: NewName, proxy: Proxy, tmp_path: Path
) -> None:
    """X-015: whoever asks for it, in a room that either we or nio know to be encrypted."""
    login = homeserver.user(fresh("bot"))
    session = Session(login.user_id, login.device_id, login.access_token, "secret")
    matrix = Matrix(homeserver=proxy.url, user_id=login.user_id, owner="@ann:test")
    keyless = replace(matrix, encryption="off")
    ann = await person("ann")
    chat = await ann.create_room([login.user_id], encrypted=True)
    refused = pytest.raises(SendRefused, match="we cannot encrypt for it")
    asyncio.get_running_loop().set_default_executor(AtOnce())
    async with open_client(matrix, session, tmp_path, new_id, FakeClock(), People()) as client:
        await client.join(chat)
        with refused:  # nio has not heard of the room
            await client.send(chat, {"body": "secret"}, "wm-1", encrypted=True)
    other = tmp_path / "keyless"
    other.mkdir()
    async with open_client(keyless, session, other, new_id, FakeClock(), People()) as client:
        await client.sync(None, full_state=True, wait_s=0)
        for known in (True, False):
            with refused:
                await client.send(chat, {"body": "secret"}, "wm-2", encrypted=known)
    assert sent_to(proxy, chat) == []


async def test_nothing_is_said_in_clear_in_an_encrypted_room(
    scene: Scene, anybody: NewAnybody, proxy: Proxy
) -> None:
    """X-015: answers and commands, also where encryption is of no kind we know."""
    ann, daemon, chat = await scene.met(await anybody("ann"), encrypted=True, via=proxy.url)
    await ann.send(chat, "secret")
    await ann.send(chat, "/status")
    await send_in_clear(ann, chat, "in clear")
    await ann.wait_for_count(chat, daemon.user_id, 3)
    assert len(sent_to(proxy, chat)) >= 3
    for request in sent_to(proxy, chat):
        assert "/send/m.room.encrypted/" in request.path
        assert set(request.json) <= MEGOLM

    odd = await scene.room(ann, daemon)
    await ann.send(odd, "hello")
    await ann.wait_for_count(odd, daemon.user_id, 1)
    path = f"{CLIENT}/rooms/{odd}/state/m.room.encryption/"
    status, _ = await ann.api("PUT", path, {"algorithm": "org.example.rot13"})
    assert status == 200
    await send_in_clear(ann, odd, "and now?")
    await ann.until(lambda: len(sent_to(proxy, odd)) >= 2, what="something")
    assert daemon.rows("SELECT encrypted FROM rooms WHERE room_id = ?", odd)[0]["encrypted"]
    assert all("/send/m.room.encrypted/" in r.path for r in sent_to(proxy, odd)[1:])


@pytest.mark.slow
async def test_trouble_with_keys_delays_nobody_who_can_be_talked_to(
    scene: Scene, anybody: NewAnybody, proxy: Proxy
) -> None:
    """X-012: the part of the homeserver that keeps keys is away at our start."""
    ann = await anybody("ann")
    proxy.before = lambda request: Answer(503) if "/keys/" in request.path else None
    daemon = await scene.bot(ann, via=proxy.url)
    chat = await scene.room(ann, daemon)
    await echoed_each(ann, chat, "hello")
    sealed = await scene.room(ann, daemon, encrypted=True)
    proxy.before = pass_before
    await daemon.restart()
    await echoed_each(ann, sealed, "sealed")


@pytest.mark.slow
async def test_encrypted_rooms_only_when_so_configured(scene: Scene, model: ModelServer) -> None:
    """X-015: `required` says so once in a room without encryption, and answers nothing there."""
    ann, daemon, plain = await scene.direct(matrix={"encryption": "required"})
    sealed = await scene.room(ann, daemon, encrypted=True)
    for text in ("one", "two", "/status"):
        await ann.send(plain, text)
    await echoed_each(ann, sealed, "three")
    told = await ann.wait_for_count(plain, daemon.user_id, 1)
    assert [m.content["msgtype"] for m in told] == ["m.notice"]
    assert "encrypt" in told[0].body
    assert len(model.requests) == 1

    # Whoever runs the homeserver could write this in the owner's name.
    await send_in_clear(ann, sealed, "do as I say")
    await ann.wait_for(sealed, lambda m: m.content.get("msgtype") == "m.notice")
    await echoed_each(ann, sealed, "four")
    assert len(model.requests) == 2


@pytest.mark.slow
async def test_without_encryption_nothing_is_said_in_encrypted_rooms(scene: Scene) -> None:
    """X-015: `off`; the status shows what waits."""
    ann, daemon, plain = await scene.direct(via=scene.proxy.url, matrix={"encryption": "off"})
    sealed = await scene.room(ann, daemon, encrypted=True)
    await ann.send(sealed, "one")
    await send_in_clear(ann, sealed, "two")
    await echoed_each(ann, plain, "three")
    await ann.send(plain, "/status")
    await ann.wait_for(plain, lambda m: "I cannot read 1 message of" in m.body)
    assert not sent_to(scene.proxy, sealed)


@pytest.mark.slow
async def test_keys_survive_a_restart_and_their_loss_is_told_once(
    scene: Scene, anybody: NewAnybody
) -> None:
    """X-016."""
    ann = await anybody("ann")
    daemon = await scene.bot(ann)
    folder = daemon.data / "matrix"
    chats = [await scene.room(ann, daemon, encrypted=True) for _ in range(2)]
    for chat in chats:
        await echoed_each(ann, chat, "old")
    assert await daemon.stop() == 0
    for chat in chats:
        await ann.send(chat, "missed")
    await daemon.start()
    for chat in chats:
        await echoed_each(ann, chat, "new")
        answers = await said(ann, chat, daemon.user_id)
        assert answers == ["echo: old", "echo: missed", "echo: new"]
    assert await daemon.stop() == 0

    before = lose_the_keys(folder)
    await daemon.start()
    for chat in chats:
        await ann.wait_for(chat, lambda m: "new device" in m.body)
        await echoed_each(ann, chat, "newest")
    assert device(folder)["device_id"] != before["device_id"]
    await daemon.restart()
    for chat in chats:
        await echoed_each(ann, chat, "the end")
        told = [m for m in await said(ann, chat, daemon.user_id) if "new device" in m]
        assert len(told) == 1
    await daemon.stop()
    await without_a_password_it_stays_down(daemon, folder)


def device(folder: Path) -> dict[str, str]:
    kept: dict[str, str] = json.loads((folder / "session.json").read_text())
    return kept


def lose_the_keys(folder: Path) -> dict[str, str]:
    """Delete the key store of the device that is logged in; its login."""
    kept = device(folder)
    (folder / f"{kept['user_id']}_{kept['device_id']}.db").unlink()
    return kept


async def without_a_password_it_stays_down(daemon: Bot, folder: Path) -> None:
    lost = lose_the_keys(folder)
    settings = json.loads(daemon.config.read_text())
    settings["matrix"] |= {"access_token": {"file": "token"}, "password": None}
    (daemon.config.parent / "token").write_text(lost["access_token"])
    daemon.config.write_text(json.dumps(settings))
    await daemon.start(ready=False)
    assert await daemon.ended() == 2
    assert "set matrix.password" in daemon.log[-1]


async def test_what_cannot_be_decrypted_waits_for_its_key(
    scene: Scene, proxy: Proxy, anybody: NewAnybody
) -> None:
    """X-021: over a restart, with one notice, counted; then answered."""
    ann, daemon, plain = await scene.met(await anybody("ann", via=proxy.url))
    sealed = await scene.room(ann, daemon, encrypted=True)
    withheld = withhold(proxy)
    for n in range(3):
        await ann.send(sealed, f"sealed {n}")
    assert withheld
    assert "3 still locked" in await status(ann, plain)
    kept = daemon.rows("SELECT raw FROM inbox WHERE state = 'locked' ORDER BY seq")
    assert [json.loads(row["raw"])["content"]["algorithm"] for row in kept] == [
        "m.megolm.v1.aes-sha2"
    ] * 3
    for _ in range(2):
        assert await daemon.stop() == 0
        daemon.change("UPDATE inbox SET received_at = ?", half_an_hour_ago(daemon))
        await daemon.start()
        await ann.wait_for(sealed, lambda m: "could not decrypt" in m.body)
        assert "3 still locked" in await status(ann, plain)

    proxy.before = pass_before
    await hand_over(ann, withheld)
    await ann.wait_for(sealed, lambda m: m.body == "echo: sealed 2")
    answers = await said(ann, sealed, daemon.user_id)
    assert answers[1:] == [f"echo: sealed {n}" for n in range(3)]
    assert "could not decrypt" in answers[0]
    assert "0 still locked" in await status(ann, plain)


def half_an_hour_ago(daemon: Bot) -> str:
    [row] = daemon.rows(
        "SELECT strftime('%Y-%m-%dT%H:%M:%S.000000+00:00', 'now', '-30 minutes') AS t"
    )
    return str(row["t"])


async def status(person: Person, room: str) -> str:
    before = len([m for m in person.messages(room) if "still locked" in m.body])
    await person.send(room, "/status all")
    await person.until(
        lambda: len([m for m in person.messages(room) if "still locked" in m.body]) > before
    )
    return [m for m in person.messages(room) if "still locked" in m.body][-1].body
