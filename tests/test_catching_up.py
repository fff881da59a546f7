"""Nothing is skipped, nothing is answered twice: downtime, gaps in the timeline, bursts."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.world.bot import said
from tests.world.homeserver import Homeserver
from tests.world.model import ModelServer
from tests.world.person import Person
from tests.world.scene import JS, NIO, NewAnybody, NewBot, NewName, NewPerson, NewRoom, Scene
from tests.world.warm import Interpreter


@pytest.fixture(scope="module")
def terse(blank: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Homeserver]:
    """A homeserver that gives at most ten events of a room at a time."""
    limit = {"filter_timeline_limit": 10}
    with Homeserver(tmp_path_factory.mktemp("terse"), limit, database=blank) as server:
        yield server


@pytest.fixture
async def scene(
    terse: Homeserver, python: Interpreter, fresh: NewName, model: ModelServer, tmp_path: Path
) -> AsyncIterator[Scene]:
    """On that homeserver."""
    async with Scene(terse, python, fresh, tmp_path, model.url) as opened:
        yield opened


@pytest.mark.parametrize(
    ("counts", "anybody"),
    [
        pytest.param({False: 25, True: 12}, NIO, id="nio"),
        pytest.param({False: 60, True: 25}, NIO, id="many", marks=pytest.mark.slow),
        pytest.param({True: 25}, JS, id="js", marks=pytest.mark.slow),
    ],
    indirect=["anybody"],
)
async def test_what_was_said_while_we_were_away_is_answered_once_and_in_order(
    counts: dict[bool, int],
    anybody: NewAnybody,
    bot: NewBot,
    room: NewRoom,
    model: ModelServer,
) -> None:
    """X-001, X-005: pages of messages, and an invitation with messages before and after it."""
    ann = await anybody("ann")
    daemon = await bot(ann)
    known = {await room(ann, daemon, encrypted=each): count for each, count in counts.items()}
    for chat in known:
        await ann.send(chat, "hello")
        await ann.wait_for_count(chat, daemon.user_id, 1)
    assert await daemon.stop() == 0

    async with asyncio.TaskGroup() as group:
        for chat, count in known.items():
            group.create_task(count_up(ann, chat, count))
    new = {await ann.create_room(encrypted=each): each for each in counts}
    for chat in new:
        await invite_late(ann, chat, daemon.user_id)

    await daemon.start()
    for chat in (*known, *new):
        await ann.wait_joined(chat, daemon.user_id)
        await ann.send(chat, "the end")
    for chat in (*known, *new):
        await ann.wait_for(chat, lambda m: m.body == "echo: the end", within=60)
    for chat, count in known.items():
        assert await said(ann, chat, daemon.user_id) == [
            "echo: hello",
            *(f"echo: {n}" for n in range(count)),
            "echo: the end",
        ]
    between = [f"echo: before the join {n}" for n in range(12)]
    for chat, encrypted in new.items():
        answers = await said(ann, chat, daemon.user_id)
        assert answers[-1] == "echo: the end"
        # What was encrypted before we were there was not encrypted for us.
        assert encrypted or answers[:-1] == between
    assert "before the invitation" not in str(model.requests)


async def invite_late(person: Person, room: str, guest: str) -> None:
    await person.send(room, "before the invitation")
    await person.invite(room, guest)
    for n in range(12):
        await person.send(room, f"before the join {n}")


@pytest.mark.slow
async def test_a_burst_in_several_rooms_is_answered_in_full(
    person: NewPerson, bot: NewBot, room: NewRoom
) -> None:
    """X-006: 150 messages in three rooms while the homeserver limits the timeline."""
    bob = await person("bob")
    daemon = await bot(bob)
    chats = [await room(bob, daemon, encrypted=encrypted) for encrypted in (False, True, False)]
    os.kill(daemon.pid, signal.SIGSTOP)  # a burst faster than the machine
    async with asyncio.TaskGroup() as group:
        for chat in chats:
            group.create_task(count_up(bob, chat, 50))
    os.kill(daemon.pid, signal.SIGCONT)
    for chat in chats:
        await bob.send(chat, "the end")
    for chat in chats:
        await bob.wait_for(chat, lambda m: m.body == "echo: the end", within=60)
    for chat in chats:
        wanted = [*(f"echo: {n}" for n in range(50)), "echo: the end"]
        assert await said(bob, chat, daemon.user_id) == wanted


async def count_up(person: Person, room: str, end: int) -> None:
    for n in range(end):
        await person.send(room, str(n))
