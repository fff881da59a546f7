"""Quiet hours: what nobody asked for waits until they end, and nothing else does."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, time, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from tests.world.chats import come_in
from tests.world.clock import SYSTEM, HeldClock
from tests.world.desk import POLICY, ROOM, at_desk
from tests.world.duties import in_, once, promise
from tests.world.nights import SOON, ended_night, is_morning
from tests.world.proxy import Proxy
from tests.world.scene import NewBot, NewPerson, NewRoom
from wintermute.config.schema import Config, Dreaming, Llm, Matrix, QuietHours
from wintermute.db.eraser import Erased, erase
from wintermute.db.text_search import TextQuery
from wintermute.ids import new_id
from wintermute.mailbox.outbox import ANSWERS
from wintermute.matrix.drafts import Drafts
from wintermute.matrix.outbox import Sender
from wintermute.matrix.rollback import RollbackDetection

BERLIN = ZoneInfo("Europe/Berlin")
NIGHTLY, NOON = QuietHours(from_="22:00", to="07:00"), QuietHours(from_="11:30", to="13:00")


@pytest.mark.parametrize(
    ("hours", "now", "end"),
    [
        (NIGHTLY, "2026-05-04 21:59", None),
        (NIGHTLY, "2026-05-04 22:00", "2026-05-05 07:00"),
        (NIGHTLY, "2026-05-05 06:59", "2026-05-05 07:00"),
        (NIGHTLY, "2026-05-05 07:00", None),
        (NOON, "2026-05-05 12:59", "2026-05-05 13:00"),
        (NOON, "2026-05-05 13:00", None),
        (QuietHours(), "2026-05-05 03:00", None),
        (QuietHours(from_="22:00", to="02:30"), "2026-03-29 01:59", "2026-03-29 03:30"),  # no 2:30
        (QuietHours(from_="22:00", to="02:30"), "2026-03-29 03:01", None),
        (NIGHTLY, "2026-10-25 00:30", "2026-10-25 07:00"),  # an hour comes twice
    ],
)
def test_quiet_hours_are_by_the_clock_and_may_pass_midnight(
    hours: QuietHours, now: str, end: str | None
) -> None:
    """U-017: their end, whatever the clock does."""

    def at(text: str) -> datetime:
        return datetime.fromisoformat(text).replace(tzinfo=BERLIN).astimezone(UTC)

    assert hours.end_after(at(now), BERLIN) == (at(end) if end else None)


@pytest.mark.parametrize(
    ("report_at", "told"), [("06:00", "07:00"), ("07:00", "07:00"), ("08:00", "08:00")]
)
def test_a_report_that_is_set_within_them_comes_at_their_end(report_at: str, told: str) -> None:
    """U-017."""
    matrix = Matrix(homeserver="", user_id="", owner="")
    config = Config(
        matrix=matrix, llm=Llm(backends={}), dreaming=Dreaming(report_at=report_at), quiet=NIGHTLY
    )
    assert config.nights == replace(config.dreaming, report_at=told)


async def test_what_nobody_asked_for_waits_in_a_row_of_its_own(tmp_path: Path) -> None:
    """U-017: what is said behind it passes it, what has begun goes on, and it is said once, at the end.

    What is forgotten meanwhile is not said.
    """
    clock = HeldClock()
    async with (
        Proxy("http://127.0.0.1:9") as proxy,
        at_desk(tmp_path, proxy, clock, NOON) as desk,
        asyncio.TaskGroup() as group,
    ):
        stores = desk.stores
        copies = RollbackDetection(desk.client, stores.database, clock, new_id)
        drafts = Drafts(clock, shows=True)
        sender = Sender(desk.client, stores, copies, clock, POLICY, drafts)

        async def put(text: str, *, unasked: bool = False) -> str:
            async with stores.database.transaction() as tx:
                home = await stores.conversations.in_room(tx, ROOM, "")
                added = await stores.outbox.enqueue(tx, home, text, meant_for="", unasked=unasked)
            sender.wake()
            return added

        def said() -> list[str]:
            puts = [each for each in desk.requests if "/send/m.room.message/" in each.path]
            return [each.json["body"] for each in puts]

        begun = await put("begun", unasked=True)
        await stores.outbox.store_parts(begun, [("t", {"msgtype": "m.text", "body": "begun"})], "D")
        await put("a secret", unasked=True)
        async with stores.database.text_search() as look, stores.database.transaction() as tx:
            found = await look.seek([TextQuery([ANSWERS], ["a secret"])])
            erased = await erase(tx, [ANSWERS], found)
            assert erased == Erased(frozenset({("outbox", 2)}))
        await put("a notice", unasked=True)
        await put("an answer")
        work = group.create_task(sender.run())
        await desk.until(lambda: said() == ["begun", "an answer"])
        await clock.asleep()
        await clock.move(3590)
        await put("another answer")
        await desk.until(lambda: said()[2:] == ["another answer"])
        await clock.asleep()
        await clock.move(10)
        await desk.until(lambda: said()[3:] == ["a notice"])
        await put("last", unasked=True)
        await desk.until(lambda: said()[4:] == ["last"])
        work.cancel()


@pytest.mark.breaks("tools", perhaps=True)  # after a night there is one tool more
@pytest.mark.parametrize("joined", [False, pytest.param(True, marks=pytest.mark.slow)])
async def test_a_night_report_waits_over_kills_and_is_said_once_when_they_end(
    person: NewPerson, bot: NewBot, room: NewRoom, *, joined: bool
) -> None:
    """U-017, F-002: a reminder rings meanwhile; who has come in by then reads nothing of it."""
    ann, ben = await person("ann"), await person("ben")
    here = SYSTEM.now().astimezone(BERLIN)
    hours = [f"{here + timedelta(hours=hour):%H:%M}" for hour in (-1, 2)]
    quiet = {"from": hours[0], "to": hours[1]}
    daemon = await bot(ann, dreaming=SOON, quiet=quiet)
    chat = await room(ann, daemon)
    await ann.send(chat, "hello")
    await ann.wait_for_count(chat, daemon.user_id, 1)
    assert await daemon.stop() == 0
    daemon.set_clocks()
    await ended_night(daemon, ann)
    await promise(daemon, ann.user_id, chat, {"drink water": once(in_(1))})
    await daemon.start()
    await ann.wait_for(chat, lambda m: m.body.startswith("⏰ drink water"))
    if not QuietHours(from_=hours[0], to=hours[1]).covers(time(0, 1)):
        waits = "SELECT 1 FROM outbox WHERE unsolicited AND state = 'waiting'"
        await daemon.until(lambda: bool(daemon.rows(waits)))
    await daemon.kill()
    await daemon.start()
    if joined:
        await come_in(ben, ann, chat)
    else:
        await ann.send(chat, "well?")
        await ann.wait_for(chat, lambda m: "well?" in m.body and m.sender == daemon.user_id)
    assert not any(map(is_morning, ann.messages(chat)))
    daemon.pass_time(2 * 3600)
    if joined:
        await daemon.until(lambda: bool(daemon.rows("SELECT 1 FROM outbox WHERE state = 'stuck'")))
        assert not any(map(is_morning, ann.messages(chat)))
        return
    await ann.wait_for(chat, is_morning)
    await daemon.said_all()
    await daemon.restart()
    assert sum(map(is_morning, ann.messages(chat, daemon.user_id))) == 1
