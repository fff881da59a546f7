"""A model that is slow to begin: what its people see meanwhile (issue 17, F-017)."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.world.clock import HeldClock
from tests.world.house import House, house_at_work
from tests.world.model import ModelServer, Reads, Text
from tests.world.scene import Scene
from tests.world.user import CLIENT
from wintermute.mailbox.outbox import TERMINAL, WEB

READ = ((2048, 5249), (4096, 5249), (5249, 5249))
NOTICE = (
    "I am still waiting for scripted, which needs time to read long texts; {} of 5,249 tokens read."
)


async def until_read(house: House, read: int) -> None:
    """Until it is known how far the server is."""

    async def known() -> bool:
        return any(wait.read == read for wait in house.speaker.waits)

    await house.until(known)


def spoken(house: House, n: int) -> Callable[[], Awaitable[bool]]:
    async def enough() -> bool:
        return len(await house.spoken()) >= n

    return enough


async def test_after_a_minute_one_notice_stands_until_the_answer_is_sent(
    tmp_path: Path, model: ModelServer
) -> None:
    """Rows first: the notice, the answer, and only then that the notice goes."""
    clock, gate = HeldClock(), asyncio.Semaphore(1)
    model.script(Reads(READ, gate, Text("at last")))
    async with house_at_work(tmp_path, model.url, clock=clock) as house:
        await house.incoming("a long text")
        await until_read(house, 2048)
        assert await house.spoken() == []
        await clock.move(61)
        gate.release()
        notice = NOTICE.format("4,096")
        assert await house.said(1) == [notice]
        await clock.move(61)
        gate.release()
        await until_read(house, 5249)
        assert await house.deliver() == [notice]
        await house.stores.notices.end_waits()
        assert await house.next_outgoing() is None
        gate.release()
        await house.said(2)
        await house.stores.notices.end_waits()
        assert await house.deliver() == ["at last"]  # it is sent, so
        await house.stores.notices.end_waits()
        gone = await house.next_outgoing()
        shown = await house.one("SELECT event_id FROM outbox_parts p JOIN outbox o ON o.id ="
                                " p.outbox_id WHERE o.kind = 'notice'")  # fmt: skip
        assert gone is not None
        assert (gone.changes, gone.redacts) == (shown["event_id"], True)
        await house.deliver()
        await house.stores.notices.end_waits()
        assert await house.next_outgoing() is None


async def test_another_attempt_is_told_in_the_same_notice(
    tmp_path: Path, model: ModelServer
) -> None:
    """In the room it is an edit, which rings nowhere; what is not said yet just has other words."""
    clock, gate = HeldClock(), asyncio.Semaphore(1)
    model.script(Reads(READ[:2], gate, None), Reads(READ[2:], gate, Text("at last")))
    async with house_at_work(tmp_path, model.url, clock=clock, retries=3) as house:
        await house.incoming("a long text")
        await until_read(house, 2048)
        await clock.move(61)
        gate.release()
        await house.said(1)
        gate.release()

        async def reworded() -> bool:
            return "attempt 2 of 4" in (await house.spoken())[0]

        await house.until(reworded)
        assert len(await house.spoken()) == 1
        await house.deliver()
        await clock.asleep()
        await clock.move(2)
        gate.release()
        await until_read(house, 5249)
        gate.release()
        assert (await house.said(2))[1] == "at last"


async def test_what_is_still_unsaid_when_the_answer_comes_is_not_said(
    tmp_path: Path, model: ModelServer
) -> None:
    clock, gate = HeldClock(), asyncio.Semaphore(1)
    model.script(Reads(READ[:2], gate, Text("at last")))
    async with house_at_work(tmp_path, model.url, clock=clock) as house:
        await house.incoming("a long text")
        await until_read(house, 2048)
        await clock.move(61)
        gate.release()
        await house.said(1)
        gate.release()
        await house.said(2)
        assert await house.deliver() == ["at last"]
        await house.stores.notices.end_waits()
        assert await house.next_outgoing() is None


async def test_a_stopped_wait_takes_its_notice_away_too(tmp_path: Path, model: ModelServer) -> None:
    clock, gate = HeldClock(), asyncio.Semaphore(1)
    model.script(Reads(READ, gate, Text("never")))
    async with house_at_work(tmp_path, model.url, clock=clock) as house:
        await house.incoming("a long text")
        await until_read(house, 2048)
        await clock.move(61)
        gate.release()
        await house.said(1)
        await house.deliver()
        await house.incoming("/stop")
        await house.said(2)
        assert await house.deliver() == ["Stopped."]
        await house.stores.notices.end_waits()
        gone = await house.next_outgoing()
        assert gone is not None
        assert gone.redacts


@pytest.mark.parametrize("place", [TERMINAL, f"{WEB}conv_1"])
async def test_at_a_terminal_and_on_a_page_there_is_no_notice(
    tmp_path: Path, model: ModelServer, place: str
) -> None:
    """There the wait is shown as it passes (F-037, V-014)."""
    clock, gate = HeldClock(), asyncio.Semaphore(1)
    model.script(Reads(READ[:2], gate, Text("at last")))
    async with house_at_work(tmp_path, model.url, clock=clock) as house:
        await house.incoming("a long text", room=place)
        await until_read(house, 2048)
        await clock.move(61)
        gate.release()
        await until_read(house, 4096)
        gate.release()
        assert await house.said(1, place) == ["at last"]


@pytest.mark.slow
async def test_in_a_room_the_notice_is_gone_once_the_answer_is_there_also_after_a_kill(
    scene: Scene, model: ModelServer
) -> None:
    """X-001, X-013: in an encrypted room, with the daemon killed while the model reads."""
    ann = await scene.person("ann")
    daemon = await scene.bot(ann, start=False)
    daemon.set_clocks()
    await daemon.start()
    chat = await scene.room(ann, daemon, encrypted=True)
    gate = asyncio.Semaphore(0)
    model.script(Reads(READ[:2], gate, None), Reads(READ, gate, Text("never")), Text("at last"))
    await ann.send(chat, "a long text")
    gate.release()
    waits = "SELECT 1 FROM outbox WHERE awaits IS NOT NULL"
    await model.request_arrived(1)
    daemon.set_clocks(steady=61)
    gate.release()
    notice = await ann.wait_for(chat, lambda message: "tokens read" in message.body)
    assert notice.encrypted
    assert notice.content["msgtype"] == "m.notice"
    gate.release()  # the connection breaks
    edit = await ann.wait_for(chat, lambda message: "attempt 2 of" in message.body)
    assert edit.encrypted
    assert edit.content["m.relates_to"] == {"rel_type": "m.replace", "event_id": notice.event_id}
    await model.request_arrived(2)
    await daemon.kill()
    assert daemon.rows(waits)
    await daemon.start()
    answer = await ann.wait_for(chat, lambda message: message.body == "at last")

    async def gone(event_id: str) -> bool:
        path = f"{CLIENT}/rooms/{quote(chat)}/event/{quote(event_id)}"
        _, event = await ann.api("GET", path)
        return "redacted_because" in event.get("unsigned", {})

    await daemon.until(lambda: not daemon.rows(waits))
    await daemon.said_all()
    assert [await gone(each.event_id) for each in (notice, edit, answer)] == [True, True, False]
    assert daemon.rows("SELECT state FROM outbox WHERE kind = 'event'")
    mine = [m.event_id for m in ann.messages(chat, daemon.user_id)]
    assert mine[-1] == answer.event_id
