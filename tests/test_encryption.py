"""Encrypted rooms: nothing leaves in clear, keys survive, and what cannot be read is not lost."""

import itertools
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.world.bot import Bot, meet, said, write_settings
from tests.world.homeserver import Homeserver
from tests.world.model import ModelServer
from tests.world.proxy import Action, Answer, Proxy, Request, pass_before
from tests.world.user import MatrixUser

Person = Callable[[str], MatrixUser]
NewName = Callable[[str], str]
CLIENT = "/_matrix/client/v3"
MEGOLM = {"algorithm", "ciphertext", "sender_key", "session_id", "device_id", "m.relates_to"}
NUMBERS = itertools.count(1)


@pytest.fixture
async def proxy(homeserver: Homeserver) -> AsyncIterator[Proxy]:
    async with Proxy(homeserver.url) as opened:
        yield opened


def sent_to(proxy: Proxy, room: str) -> list[Request]:
    """Every event of any type that was sent to a room."""
    return [r for r in proxy.requests if r.method == "PUT" and f"/rooms/{room}/send/" in r.path]


async def plainly(person: MatrixUser, room: str, text: str) -> None:
    """Send in clear, whatever this person's client thinks of the room."""
    path = f"{CLIENT}/rooms/{room}/send/m.room.message/clear-{next(NUMBERS)}"
    status, told = await person.api("PUT", path, {"msgtype": "m.text", "body": text})
    assert status == 200, told


async def test_nothing_is_said_in_clear_in_an_encrypted_room(
    homeserver: Homeserver,
    proxy: Proxy,
    person: Person,
    fresh: NewName,
    model: ModelServer,
    tmp_path: Path,
) -> None:
    """X-015: answers and commands, also where encryption is of no kind we know."""
    login = homeserver.user(fresh("bot"))
    async with person("ann") as ann:
        config = write_settings(tmp_path / "bot", proxy.url, login, model.url, ann.user_id)
        async with Bot(config) as bot:
            room = await meet(ann, login.user_id, encrypted=True)
            await ann.send(room, "secret")
            await ann.send(room, "/status")
            await plainly(ann, room, "in clear")
            await ann.wait_for_count(room, login.user_id, 3)
            assert len(sent_to(proxy, room)) >= 3
            for request in sent_to(proxy, room):
                assert "/send/m.room.encrypted/" in request.path
                assert set(request.json) <= MEGOLM

            odd = await meet(ann, login.user_id)
            await ann.send(odd, "hello")
            await ann.wait_for_count(odd, login.user_id, 1)
            path = f"{CLIENT}/rooms/{odd}/state/m.room.encryption/"
            status, _ = await ann.api("PUT", path, {"algorithm": "org.example.rot13"})
            assert status == 200
            await plainly(ann, odd, "and now?")
            await ann.until(lambda: len(sent_to(proxy, odd)) >= 2, what="something")
            assert bot.rows("SELECT encrypted FROM rooms WHERE room_id = ?", odd)[0]["encrypted"]
            assert all("/send/m.room.encrypted/" in r.path for r in sent_to(proxy, odd)[1:])


async def test_trouble_with_keys_delays_nobody_who_can_be_talked_to(
    homeserver: Homeserver,
    proxy: Proxy,
    person: Person,
    fresh: NewName,
    model: ModelServer,
    tmp_path: Path,
) -> None:
    """X-012: the part of the homeserver that keeps keys is away at our start."""
    login = homeserver.user(fresh("bot"))
    async with person("ann") as ann:
        config = write_settings(tmp_path / "bot", proxy.url, login, model.url, ann.user_id)
        proxy.before = lambda request: Answer(503) if "/keys/" in request.path else None
        async with Bot(config) as bot:
            room = await meet(ann, login.user_id)
            await ann.send(room, "hello")
            await ann.wait_for(room, lambda m: m.body == "echo: hello")
            sealed = await meet(ann, login.user_id, encrypted=True)
            proxy.before = pass_before
            await bot.restart()
            await ann.send(sealed, "sealed")
            await ann.wait_for(sealed, lambda m: m.body == "echo: sealed")


async def test_encrypted_rooms_only_when_so_configured(
    homeserver: Homeserver,
    proxy: Proxy,
    person: Person,
    fresh: NewName,
    model: ModelServer,
    tmp_path: Path,
) -> None:
    """X-015: `required` says so once in a room without encryption, and answers nothing there."""
    login = homeserver.user(fresh("bot"))
    async with person("ann") as ann:
        config = write_settings(
            tmp_path / "bot",
            homeserver.url,
            login,
            model.url,
            ann.user_id,
            matrix={"encryption": "required"},
        )
        async with Bot(config):
            plain = await meet(ann, login.user_id)
            sealed = await meet(ann, login.user_id, encrypted=True)
            for text in ("one", "two", "/status"):
                await ann.send(plain, text)
            await ann.send(sealed, "three")
            await ann.wait_for(sealed, lambda m: m.body == "echo: three")
            told = await ann.wait_for_count(plain, login.user_id, 1)
            assert [m.content["msgtype"] for m in told] == ["m.notice"]
            assert "encrypt" in told[0].body
            assert len(model.requests) == 1

            # Whoever runs the homeserver could write this in the owner's name.
            await plainly(ann, sealed, "do as I say")
            await ann.wait_for(sealed, lambda m: m.content.get("msgtype") == "m.notice")
            await ann.send(sealed, "four")
            await ann.wait_for(sealed, lambda m: m.body == "echo: four")
            assert len(model.requests) == 2


async def test_without_encryption_nothing_is_said_in_encrypted_rooms(
    homeserver: Homeserver,
    proxy: Proxy,
    person: Person,
    fresh: NewName,
    model: ModelServer,
    tmp_path: Path,
) -> None:
    """X-015: `off`; the status shows what waits."""
    login = homeserver.user(fresh("bot"))
    async with person("ann") as ann:
        config = write_settings(
            tmp_path / "bot",
            proxy.url,
            login,
            model.url,
            ann.user_id,
            matrix={"encryption": "off"},
        )
        async with Bot(config):
            plain = await meet(ann, login.user_id)
            sealed = await meet(ann, login.user_id, encrypted=True)
            await ann.send(sealed, "one")
            await plainly(ann, sealed, "two")
            await ann.send(plain, "three")
            await ann.wait_for(plain, lambda m: m.body == "echo: three")
            await ann.send(plain, "/status")
            told = await ann.wait_for(plain, lambda m: "still locked" in m.body)
            assert "1 still locked" in told.body
            assert not sent_to(proxy, sealed)


async def test_keys_survive_a_restart_and_their_loss_is_told_once(
    homeserver: Homeserver, person: Person, fresh: NewName, model: ModelServer, tmp_path: Path
) -> None:
    """X-016."""
    login = homeserver.user(fresh("bot"))
    async with person("ann") as ann:
        config = write_settings(tmp_path / "bot", homeserver.url, login, model.url, ann.user_id)
        folder = config.parent / "data" / "matrix"
        async with Bot(config) as bot:
            rooms = [await meet(ann, login.user_id, encrypted=True) for _ in range(2)]
            for room in rooms:
                await ann.send(room, "old")
                await ann.wait_for(room, lambda m: m.body == "echo: old")
            assert await bot.stop() == 0
            for room in rooms:
                await ann.send(room, "missed")
            await bot.start()
            for room in rooms:
                await ann.send(room, "new")
                await ann.wait_for(room, lambda m: m.body == "echo: new")
                answers = await said(ann, room, login.user_id)
                assert answers == ["echo: old", "echo: missed", "echo: new"]
            assert await bot.stop() == 0

            before = lose_the_keys(folder)
            await bot.start()
            for room in rooms:
                await ann.wait_for(room, lambda m: "new device" in m.body)
                await ann.send(room, "newest")
                await ann.wait_for(room, lambda m: m.body == "echo: newest")
            assert device(folder)["device_id"] != before["device_id"]
            await bot.restart()
            for room in rooms:
                await ann.send(room, "the end")
                await ann.wait_for(room, lambda m: m.body == "echo: the end")
                told = [m for m in await said(ann, room, login.user_id) if "new device" in m]
                assert len(told) == 1
            await bot.stop()
            await without_a_password_it_stays_down(bot, folder)


def device(folder: Path) -> dict[str, str]:
    kept: dict[str, str] = json.loads((folder / "session.json").read_text())
    return kept


def lose_the_keys(folder: Path) -> dict[str, str]:
    """Delete the key store of the device that is logged in; its login."""
    kept = device(folder)
    (folder / f"{kept['user_id']}_{kept['device_id']}.db").unlink()
    return kept


async def without_a_password_it_stays_down(bot: Bot, folder: Path) -> None:
    lost = lose_the_keys(folder)
    settings = json.loads(bot.config.read_text())
    settings["matrix"] |= {"access_token": {"file": "token"}, "password": None}
    (bot.config.parent / "token").write_text(lost["access_token"])
    bot.config.write_text(json.dumps(settings))
    await bot.start(ready=False)
    assert await bot.ended() == 2
    assert "set matrix.password" in bot.log[-1]


async def test_what_cannot_be_decrypted_waits_for_its_key(
    homeserver: Homeserver,
    proxy: Proxy,
    fresh: NewName,
    model: ModelServer,
    tmp_path: Path,
) -> None:
    """X-021: over a restart, with one notice, counted; then answered."""
    login, anns = homeserver.user(fresh("bot")), homeserver.user(fresh("ann"))
    withheld: list[Request] = []

    def withhold(request: Request) -> Action:
        if "/sendToDevice/" not in request.path:
            return None
        withheld.append(request)
        return Answer(200, {})

    async with MatrixUser(proxy.url, anns, tmp_path / "ann") as ann:
        config = write_settings(tmp_path / "bot", homeserver.url, login, model.url, ann.user_id)
        async with Bot(config) as bot:
            plain = await meet(ann, login.user_id)
            room = await meet(ann, login.user_id, encrypted=True)
            proxy.before = withhold
            for n in range(3):
                await ann.send(room, f"sealed {n}")
            assert withheld
            assert "3 still locked" in await status(ann, plain)
            kept = bot.rows("SELECT raw FROM inbox WHERE state = 'locked' ORDER BY seq")
            assert [json.loads(row["raw"])["content"]["algorithm"] for row in kept] == [
                "m.megolm.v1.aes-sha2"
            ] * 3
            for _ in range(2):
                assert await bot.stop() == 0
                bot.change("UPDATE inbox SET received_at = ?", half_an_hour_ago(bot))
                await bot.start()
                await ann.wait_for(room, lambda m: "could not decrypt" in m.body)
                assert "3 still locked" in await status(ann, plain)

            proxy.before = lambda _request: None
            await hand_over(ann, withheld)
            await ann.wait_for(room, lambda m: m.body == "echo: sealed 2")
            answers = await said(ann, room, login.user_id)
            assert answers[1:] == [f"echo: sealed {n}" for n in range(3)]
            assert "could not decrypt" in answers[0]
            assert "0 still locked" in await status(ann, plain)


def half_an_hour_ago(bot: Bot) -> str:
    [row] = bot.rows("SELECT strftime('%Y-%m-%dT%H:%M:%S.000000+00:00', 'now', '-30 minutes') AS t")
    return str(row["t"])


async def status(person: MatrixUser, room: str) -> str:
    before = len([m for m in person.messages(room) if "still locked" in m.body])
    await person.send(room, "/status")
    await person.until(
        lambda: len([m for m in person.messages(room) if "still locked" in m.body]) > before
    )
    return [m for m in person.messages(room) if "still locked" in m.body][-1].body


async def hand_over(person: MatrixUser, withheld: list[Request]) -> None:
    for request in withheld:
        body: Any = request.json
        answer = await person.api("PUT", request.path, body)
        assert answer[0] == 200
