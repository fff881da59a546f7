"""SIGTERM: what is under way may end, what is not is kept, and the daemon is gone in time."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from tests.world.bot import Bot, meet, said, write_settings
from tests.world.homeserver import Homeserver
from tests.world.model import Hang as Silence
from tests.world.model import ModelServer, Slow, Text
from tests.world.proxy import Action, Hang, Proxy, Request
from tests.world.user import MatrixUser

Person = Callable[[str], MatrixUser]
NewName = Callable[[str], str]
IN_TIME = 20.0
LONG = "\n\n".join(f"Paragraph {n}. " + "Words go on and on. " * 30 for n in range(40))


@pytest.fixture
async def proxy(homeserver: Homeserver) -> AsyncIterator[Proxy]:
    async with Proxy(homeserver.url) as opened:
        yield opened


def is_send(request: Request) -> bool:
    return request.method == "PUT" and "/send/m.room." in request.path


async def test_a_stop_keeps_what_was_not_said_for_the_next_start(
    homeserver: Homeserver,
    proxy: Proxy,
    person: Person,
    fresh: NewName,
    model: ModelServer,
    tmp_path: Path,
) -> None:
    """L-023: while the model is silent, and while the first of several parts is sent."""
    login = homeserver.user(fresh("bot"))
    async with person("ann") as ann:
        config = write_settings(tmp_path / "bot", proxy.url, login, model.url, ann.user_id)
        async with Bot(config) as bot:
            room = await meet(ann, login.user_id)
            model.script(Silence(), Text(LONG))
            await ann.send(room, "tell")
            await model.request_arrived(1)
            async with asyncio.timeout(IN_TIME):
                assert await bot.stop() == 0
            assert await said(ann, room, login.user_id) == []

            proxy.before = stop_at_the_first_send(bot)
            await bot.start()
            assert await bot.ended(IN_TIME) == 0
            first = await said(ann, room, login.user_id)
            assert len(first) == 1

            await bot.start()
            await ann.send(room, "and?")
            await ann.wait_for(room, lambda m: m.body == "echo: and?")
            parts = (await said(ann, room, login.user_id))[:-1]
            assert len(parts) >= 3
            assert parts[0] == first[0]
            assert "\n\n".join(parts).split() == LONG.split()
            assert len(model.requests) == 3


def stop_at_the_first_send(bot: Bot) -> Callable[[Request], Action]:
    told: list[Request] = []

    def before(request: Request) -> Action:
        if is_send(request) and not told:
            told.append(request)
            os.kill(bot.pid, signal.SIGTERM)
        return None

    return before


@pytest.mark.parametrize("what", ["/login", "/send/m.room."])
async def test_a_silent_homeserver_does_not_hold_up_a_stop(
    what: str,
    homeserver: Homeserver,
    proxy: Proxy,
    person: Person,
    fresh: NewName,
    model: ModelServer,
    tmp_path: Path,
) -> None:
    """L-023: the answer is said after the next start."""
    login, silent = homeserver.user(fresh("bot")), asyncio.Event()

    def hang(request: Request) -> Action:
        if what not in request.path:
            return None
        silent.set()
        return Hang()

    async with person("ann") as ann:
        config = write_settings(tmp_path / "bot", proxy.url, login, model.url, ann.user_id)
        room = await ann.create_room([login.user_id])
        await ann.send(room, "hello")
        proxy.before = hang
        bot = Bot(config)
        await bot.start(ready=False)
        try:
            await silent.wait()
            async with asyncio.timeout(IN_TIME):
                assert await bot.stop() == 0
            proxy.before = lambda _request: None
            await bot.start()
            await ann.wait_for(room, lambda m: m.body == "echo: hello")
            assert await said(ann, room, login.user_id) == ["echo: hello"]
        finally:
            await bot.kill()


async def test_one_busy_room_does_not_delay_another_person(
    homeserver: Homeserver, person: Person, fresh: NewName, model: ModelServer, tmp_path: Path
) -> None:
    """X-032: thirty messages of one person, in several rooms, and a slow model."""
    login, gate = homeserver.user(fresh("bot")), asyncio.Event()
    model.keyed(lambda seen: Slow(gate, Text("late")) if "busy" in seen.last_user else None)
    async with person("ann") as ann, person("bob") as bob:
        config = write_settings(
            tmp_path / "bot",
            homeserver.url,
            login,
            model.url,
            ann.user_id,
            matrix={"allowed_users": [bob.user_id]},
        )
        async with Bot(config):
            rooms = [await meet(ann, login.user_id) for _ in range(5)]
            other = await meet(bob, login.user_id)
            for n in range(30):
                await ann.send(rooms[n % 5], f"busy {n}")
            await model.request_arrived(4)
            await bob.send(other, "quick")
            await bob.wait_for(other, lambda m: m.body == "echo: quick", within=5)
            assert not any(ann.messages(room, login.user_id) for room in rooms)
            assert len(model.requests) == 5
            gate.set()
            for room in rooms:
                await ann.wait_for_count(room, login.user_id, 6)
            assert len(model.requests) == 31
