"""Nothing is skipped, nothing is answered twice: downtime, gaps in the timeline, bursts."""

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.world.bot import Bot, meet, said, write_settings
from tests.world.homeserver import Homeserver
from tests.world.model import ModelServer
from tests.world.user import MatrixUser


@pytest.fixture(scope="module")
def terse(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Homeserver]:
    """A homeserver that gives at most ten events of a room at a time."""
    folder = tmp_path_factory.mktemp("terse")
    with Homeserver(folder, {"filter_timeline_limit": 10}) as server:
        yield server


async def test_what_was_said_while_we_were_away_is_answered_once_and_in_order(
    terse: Homeserver, model: ModelServer, tmp_path: Path
) -> None:
    """X-001, X-005: pages of messages, and an invitation with messages before and after it."""
    login = terse.user("away-bot")
    bot_id = login.user_id
    async with MatrixUser(terse.url, terse.user("ann"), tmp_path / "ann") as ann:
        config = write_settings(tmp_path / "bot", terse.url, login, model.url, ann.user_id)
        async with Bot(config) as bot:
            rooms = [await meet(ann, bot_id, encrypted=encrypted) for encrypted in (False, True)]
            for room in rooms:
                await ann.send(room, "hello")
                await ann.wait_for_count(room, bot_id, 1)
            assert await bot.stop() == 0

            async with asyncio.TaskGroup() as group:
                for room, count in zip(rooms, (60, 25), strict=True):
                    group.create_task(count_up(ann, room, count))
            fresh = [await ann.create_room(encrypted=encrypted) for encrypted in (False, True)]
            for room in fresh:
                await ann.send(room, "before the invitation")
                await ann.invite(room, bot_id)
                for n in range(12):
                    await ann.send(room, f"before the join {n}")

            await bot.start()
            for room in (*rooms, *fresh):
                await ann.wait_joined(room, bot_id)
                await ann.send(room, "the end")
            for room in (*rooms, *fresh):
                await ann.wait_for(room, lambda m: m.body == "echo: the end", within=60)
            for room, count in zip(rooms, (60, 25), strict=True):
                assert await said(ann, room, bot_id) == [
                    "echo: hello",
                    *(f"echo: {n}" for n in range(count)),
                    "echo: the end",
                ]
            between = [f"echo: before the join {n}" for n in range(12)]
            assert await said(ann, fresh[0], bot_id) == [*between, "echo: the end"]
            # What was encrypted before we were there was not encrypted for us.
            assert (await said(ann, fresh[1], bot_id))[-1] == "echo: the end"
            assert "before the invitation" not in str(model.requests)


async def test_a_burst_in_several_rooms_is_answered_in_full(
    terse: Homeserver, model: ModelServer, tmp_path: Path
) -> None:
    """X-006: 150 messages in three rooms while the homeserver limits the timeline."""
    login = terse.user("burst-bot")
    bot_id = login.user_id
    async with MatrixUser(terse.url, terse.user("bob"), tmp_path / "bob") as bob:
        config = write_settings(tmp_path / "bot", terse.url, login, model.url, bob.user_id)
        async with Bot(config) as bot:
            rooms = [
                await meet(bob, bot_id, encrypted=encrypted) for encrypted in (False, True, False)
            ]
            os.kill(bot.pid, signal.SIGSTOP)  # a burst faster than the machine
            async with asyncio.TaskGroup() as group:
                for room in rooms:
                    group.create_task(count_up(bob, room, 50))
            os.kill(bot.pid, signal.SIGCONT)
            for room in rooms:
                await bob.send(room, "the end")
            for room in rooms:
                await bob.wait_for(room, lambda m: m.body == "echo: the end", within=60)
            for room in rooms:
                wanted = [*(f"echo: {n}" for n in range(50)), "echo: the end"]
                assert await said(bob, room, bot_id) == wanted


async def count_up(person: MatrixUser, room: str, end: int) -> None:
    for n in range(end):
        await person.send(room, str(n))
