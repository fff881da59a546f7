"""SIGTERM: what is under way may end, what is not is kept, and the daemon is gone in time."""

import asyncio
import os
import signal
from collections.abc import Callable

import pytest

from tests.world.bot import Bot, said
from tests.world.clock import promptly
from tests.world.duties import is_send
from tests.world.model import Hang as Silence
from tests.world.model import ModelServer, Slow, Text
from tests.world.proxy import Action, Hang, Proxy, Request, pass_before
from tests.world.scene import NewBot, NewPerson, NewRoom

IN_TIME = 20.0
LONG = "\n\n".join(f"Paragraph {n}. " + "Words go on and on. " * 30 for n in range(40))


@pytest.mark.slow
async def test_a_stop_keeps_what_was_not_said_for_the_next_start(
    proxy: Proxy, person: NewPerson, bot: NewBot, room: NewRoom, model: ModelServer
) -> None:
    """L-023: while the model is silent, and while the first of several parts is sent."""
    ann = await person("ann")
    daemon = await bot(ann, via=proxy.url)
    chat = await room(ann, daemon)
    model.script(Silence(), Text(LONG))
    await ann.send(chat, "tell")
    await model.request_arrived(1)
    async with promptly(IN_TIME):
        assert await daemon.stop() == 0
    assert await said(ann, chat, daemon.user_id) == []

    proxy.before = stop_at_the_first_send(daemon)
    await daemon.start()
    assert await daemon.ended(IN_TIME) == 0
    first = await said(ann, chat, daemon.user_id)
    assert len(first) == 1

    await daemon.start()
    await ann.send(chat, "and?")
    await ann.wait_for(chat, lambda m: m.body == "echo: and?")
    parts = (await said(ann, chat, daemon.user_id))[:-1]
    assert len(parts) >= 3
    assert parts[0] == first[0]
    assert "\n\n".join(parts).split() == LONG.split()
    assert len(model.requests) == 3


def stop_at_the_first_send(daemon: Bot) -> Callable[[Request], Action]:
    told: list[Request] = []

    def before(request: Request) -> Action:
        if is_send(request) and not told:
            told.append(request)
            os.kill(daemon.pid, signal.SIGTERM)
        return None

    return before


@pytest.mark.slow
@pytest.mark.parametrize(
    "what",
    ["/login", "/send/m.room."],  # drains for ten seconds
)
async def test_a_silent_homeserver_does_not_hold_up_a_stop(
    what: str, proxy: Proxy, person: NewPerson, bot: NewBot
) -> None:
    """L-023: the answer is said after the next start."""
    silent = asyncio.Event()

    def hang(request: Request) -> Action:
        if what not in request.path:
            return None
        silent.set()
        return Hang()

    ann = await person("ann")
    daemon = await bot(ann, via=proxy.url, start=False)
    chat = await ann.create_room([daemon.user_id])
    await ann.send(chat, "hello")
    proxy.before = hang
    await daemon.start(ready=False)
    await silent.wait()
    async with promptly(IN_TIME):
        assert await daemon.stop() == 0
    proxy.before = pass_before
    await daemon.start()
    await ann.wait_for(chat, lambda m: m.body == "echo: hello")
    assert await said(ann, chat, daemon.user_id) == ["echo: hello"]


async def test_one_busy_room_does_not_delay_another_person(
    person: NewPerson, bot: NewBot, room: NewRoom, model: ModelServer
) -> None:
    """X-032: thirty messages of one person, in several rooms, and a slow model."""
    gate = asyncio.Event()
    model.keyed(lambda seen: Slow(gate, Text("late")) if "busy" in seen.last_user else None)
    ann, bob = await person("ann"), await person("bob")
    daemon = await bot(ann, matrix={"allowed_users": [bob.user_id]})
    chats = [await room(ann, daemon) for _ in range(5)]
    other = await room(bob, daemon)
    for n in range(30):
        await ann.send(chats[n % 5], f"busy {n}")
    await model.request_arrived(4)
    await bob.send(other, "quick")
    await bob.wait_for(other, lambda m: m.body == "echo: quick")
    assert not any(ann.messages(chat, daemon.user_id) for chat in chats)
    assert len(model.requests) == 5
    gate.set()
    for chat in chats:
        await ann.wait_for_count(chat, daemon.user_id, 6)
    assert len(model.requests) == 31
