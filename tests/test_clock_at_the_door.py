"""Clocks that are set wrong while the daemon runs, or by the time it starts, with a real homeserver."""

import asyncio
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from tests.world.bot import Bot
from tests.world.chats import echoed_each, inbox_states
from tests.world.clock import SYSTEM, WITHIN, until
from tests.world.duties import in_, once, promise
from tests.world.model import ModelServer
from tests.world.proxy import Answer, Proxy, Request
from tests.world.scene import NewBot, NewCurrent, NewPerson, NewRoom
from tests.world.user import MatrixUser
from wintermute.tasks.schedules import PlanRequest

HOUR, DAY = 3600, 86_400
NEVER = 400 * DAY
LIE = {"Date": "Mon, 01 Jan 2001 00:00:00 GMT"}


def daily_in(seconds: float) -> PlanRequest:
    """A reminder of each day, the next one so soon."""
    due = datetime.fromisoformat(in_(seconds)).astimezone(ZoneInfo("Europe/Berlin"))
    return PlanRequest(schedule_type="daily", at=f"{due:%H:%M:%S}")


async def wait_for_messages(person: MatrixUser, room: str, daemon: Bot, n: int) -> list[str]:
    """What the bot has said, once it is so much."""
    await person.until(lambda: len(person.messages(room, daemon.user_id)) >= n)
    return [message.body for message in person.messages(room, daemon.user_id)]


async def schedule(daemon: Bot, text: str) -> None:
    """Wait until `status` says this of the schedule."""
    query = "SELECT 1 FROM health WHERE part = 'schedule' AND detail LIKE ?"
    async with asyncio.timeout(WITHIN):
        while not daemon.rows(query, f"%{text}%"):  # noqa: ASYNC110  a row of another process
            await asyncio.sleep(0.1)
    assert text in (await daemon.command("status", "--all"))[1]


def next_due(daemon: Bot) -> dict[str, timedelta]:
    """When each task is due next, from now."""
    rows = daemon.rows("SELECT content, next_due FROM tasks WHERE next_due IS NOT NULL")
    now = SYSTEM.now()
    return {row["content"]: datetime.fromisoformat(row["next_due"]) - now for row in rows}


@pytest.mark.slow
async def test_a_clock_that_is_wrong_for_seconds_is_not_noticed_in_the_room(
    person: NewPerson, bot: NewBot, room: NewRoom
) -> None:
    """F-015: while the daemon runs, and when it is started meanwhile; status tells of it."""
    ann = await person("ann")
    daemon = await bot(ann, start=False)
    daemon.set_clocks()
    await daemon.start()
    chat = await room(ann, daemon)
    await promise(daemon, ann.user_id, chat, {"pills": daily_in(6), "tea": daily_in(HOUR)})
    daemon.set_clocks(wall=NEVER)
    await schedule(daemon, "400 days ahead of where it should be")
    assert await wait_for_messages(ann, chat, daemon, 1) == ["⏰ pills"]
    await daemon.said_all()
    await daemon.kill()
    daemon.set_clocks(wall=2 * HOUR)
    await promise(daemon, ann.user_id, chat, {"soup": once(in_(3))})
    await daemon.start()
    await wait_for_messages(ann, chat, daemon, 2)
    daemon.set_clocks()
    await schedule(daemon, "wakes up for due tasks")
    said = [message.body.split(" (")[0] for message in ann.messages(chat, daemon.user_id)]
    assert said == ["⏰ pills", "⏰ soup"]
    due = next_due(daemon)
    assert timedelta(0) < due["tea"] < timedelta(hours=1)
    assert timedelta(hours=22) < due["pills"] < timedelta(hours=26)


@pytest.mark.slow
async def test_a_start_that_nothing_vouches_for_says_nothing_until_it_is_known_what_time_it_is(
    person: NewPerson, bot: NewBot, room: NewRoom, proxy: Proxy
) -> None:
    """F-015: a date that lies by years does no harm; after ten minutes it is as if it was none."""
    ann = await person("ann")
    daemon = await bot(ann, via=proxy.url, start=False)
    daemon.set_clocks()
    await daemon.start()
    chat = await room(ann, daemon)
    await daemon.kill()
    await promise(daemon, ann.user_id, chat, {"pills": daily_in(HOUR), "tea": once(in_(1))})
    daemon.change(
        "UPDATE single_values SET value = json_set(value, '$.boot', 'another') WHERE name = 'clock'"
    )
    daemon.set_clocks(wall=2 * HOUR)
    await daemon.start()
    await schedule(daemon, "waits: the clock of this machine may be wrong")
    daemon.set_clocks()  # where the homeserver's is
    await schedule(daemon, "wakes up for due tasks")
    [said] = await wait_for_messages(ann, chat, daemon, 1)
    assert said.startswith("⏰ tea (was due ")
    assert timedelta(0) < next_due(daemon)["pills"] < timedelta(hours=1)
    await daemon.said_all()
    await daemon.kill()
    daemon.change(
        "UPDATE single_values SET value = json_set(value, '$.boot', 'another') WHERE name = 'clock'"
    )
    proxy.after = lie
    await daemon.start()
    await promise(daemon, ann.user_id, chat, {"soup": once(in_(1))})
    await schedule(daemon, "waits: the clock of this machine may be wrong")
    await asyncio.sleep(3)
    assert len(ann.messages(chat, daemon.user_id)) == 1
    daemon.set_clocks(wall=600, steady=600)
    await wait_for_messages(ann, chat, daemon, 2)


def lie(_request: Request, status: int, body: bytes) -> Answer:
    """The homeserver's clock is wrong by many years."""
    return Answer(status, body, LIE)


async def test_a_laptop_that_slept_has_no_wrong_clock(
    person: NewPerson, bot: NewBot, room: NewRoom
) -> None:
    """F-015, T-042: what fell due meanwhile is late, and said at once."""
    ann = await person("ann")
    daemon = await bot(ann, start=False)
    daemon.set_clocks()
    await daemon.start()
    chat = await room(ann, daemon)
    await promise(daemon, ann.user_id, chat, {"tea": once(in_(HOUR))})
    daemon.set_clocks(wall=2 * HOUR, steady=2 * HOUR)
    [said] = await wait_for_messages(ann, chat, daemon, 1)
    assert said.startswith("⏰ tea (was due ")
    assert not any("WARNING clock" in line for line in daemon.log)


@pytest.mark.slow
async def test_a_message_is_not_old_because_the_homeservers_clock_is_behind(
    person: NewPerson, bot: NewBot, room: NewRoom, model: ModelServer
) -> None:
    """F-029: what is told of its age would be wrong with each message, and so would times be."""
    ann = await person("ann")
    daemon = await bot(ann, start=False)
    daemon.set_clocks(wall=HOUR)
    await daemon.start()
    chat = await room(ann, daemon)
    await ann.send(chat, "hello")
    assert await wait_for_messages(ann, chat, daemon, 1) == ["echo: hello"]
    assert "[written" not in str(model.requests[0].body)


@pytest.mark.slow
async def test_a_start_years_ahead_throws_nothing_away(
    current: NewCurrent, bot: NewBot, room: NewRoom
) -> None:
    """F-015, X-034, M-065: neither what can be undone nor what waits for a signature."""
    ann = await current("ann")
    daemon = await bot(ann, start=False)
    daemon.set_clocks()
    await daemon.start()
    chat = await room(ann, daemon, encrypted=True)
    await echoed_each(ann, chat, "one")
    phone = await current(ann, identity=False)
    await phone.send(chat, "two")
    await until(lambda: inbox_states(daemon).count("untrusted") == 1)
    assert (await daemon.command("memory", "add", "Anna lives in Lyon"))[0] == 0
    await daemon.kill()
    daemon.change(
        "UPDATE single_values SET value = json_set(value, '$.boot', 'another') WHERE name = 'clock'"
    )
    daemon.set_clocks(wall=NEVER)
    await daemon.start()
    await schedule(daemon, "waits: the clock of this machine may be wrong")
    await echoed_each(ann, chat, "three")
    daemon.set_clocks()
    await schedule(daemon, "wakes up for due tasks")
    await ann.share_identity(phone)
    await ann.wait_for(chat, lambda m: m.body == "echo: two")
    assert (await daemon.command("memory", "undo", "--last"))[0] == 0
