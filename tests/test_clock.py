"""When the clock of the machine is believed, and what the schedule does when it was wrong."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import astuple
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.world.clock import NOON, WITHIN, FakeClock, HeldClock
from tests.world.house import House, house_at_work, open_house
from tests.world.model import Fail, ModelServer, Text
from tests.world.promised import DAILY, MORNING, after, fire_at, now, occurrences, promise, talk
from tests.world.schema import open_migrated
from wintermute.clock import (
    CheckedClock,
    ClockReading,
    SystemClock,
    host_zone,
    is_trustworthy,
    zone_doubt,
)
from wintermute.conversation.replies import BACK
from wintermute.health.health import TrustedReadings
from wintermute.matrix.http import date_of
from wintermute.tasks.schedules import PlanRequest
from wintermute.tasks.tasks import REMINDER_REACTIONS

DAY, HOUR, MINUTE = timedelta(days=1), timedelta(hours=1), timedelta(minutes=1)
NEVER = timedelta(days=400)
LAST = ClockReading(NOON, 1000.0)


@pytest.mark.parametrize(
    ("ahead", "later", "server", "doubted", "believed"),
    [
        (timedelta(0), MINUTE, None, 0, True),
        (timedelta(seconds=4), timedelta(0), None, 0, True),
        (timedelta(seconds=-4), timedelta(0), None, 0, True),
        (timedelta(0), 9 * HOUR, None, 0, True),  # it slept, and the steady clock counted that
        (timedelta(seconds=30), 9 * HOUR, None, 0, True),  # and was put right afterwards
        (timedelta(seconds=6), timedelta(0), None, 0, False),
        (2 * HOUR, MINUTE, None, 0, False),
        (-2 * HOUR, MINUTE, None, 0, False),
        (2 * HOUR, MINUTE, 2 * HOUR, 0, True),
        (2 * HOUR, MINUTE, 2 * HOUR + timedelta(seconds=59), 0, True),
        (2 * HOUR, MINUTE, 2 * HOUR + timedelta(seconds=61), 0, False),
        (-3 * DAY, MINUTE, -3 * DAY, 0, True),
        (NEVER, MINUTE, timedelta(0), 599, False),
        (NEVER, MINUTE, -9 * NEVER, 599, False),  # a date that lies proves nothing
        (NEVER, MINUTE, -9 * NEVER, 600, True),
        (timedelta(0), MINUTE, -9 * NEVER, 0, True),  # and refutes nothing
        (-NEVER, MINUTE, None, 600, True),
    ],
)
def test_a_clock_is_believed_that_runs_evenly_or_is_vouched_for(
    ahead: timedelta, later: timedelta, server: timedelta | None, doubted: float, believed: bool
) -> None:
    """F-015: `ahead` of where it should be; `server` is what the homeserver's is ahead of that."""
    steady = LAST.monotonic + later.total_seconds()
    seen = ClockReading(NOON + later + ahead, steady)
    heard = None if server is None else ClockReading(NOON + server, LAST.monotonic)
    assert is_trustworthy(seen, LAST, heard, doubted) is believed
    untold = is_trustworthy(seen, None, heard, doubted)
    assert untold is (doubted >= 600 or (server is not None and abs(server - ahead) <= MINUTE))


def test_time_goes_on_while_the_clock_is_doubted() -> None:
    """F-015: what is stored, or thrown away for its age, is so by the time that is real."""
    machine = FakeClock()
    clock = CheckedClock(machine)
    machine.advance(10)
    machine.ahead = NEVER
    assert clock.now() == NOON + timedelta(seconds=10)
    machine.advance(590)
    assert clock.now() == NOON + timedelta(seconds=600)
    doubt = clock.doubt
    assert doubt is not None
    assert astuple(doubt) == (NEVER, True)
    clock.note_server_time(NOON + timedelta(seconds=601))
    doubt = clock.doubt
    assert doubt is not None
    assert not doubt.waits  # the homeserver says what time it is
    machine.ahead = timedelta(0)
    assert clock.doubt is None
    machine.ahead = NEVER
    assert clock.doubt is not None
    machine.advance(600)
    assert clock.now() == NOON + NEVER + timedelta(seconds=1200)
    assert clock.doubt is None


def test_a_start_that_nothing_vouches_for_waits_for_the_homeserver() -> None:
    """F-015: after the machine was started the clock may be hours ahead until it is put right."""
    machine = FakeClock()
    clock = CheckedClock(machine, asks=True)
    assert clock.doubt is not None
    assert clock.now() == machine.now()
    clock.note_server_time(NOON - 2 * HOUR)
    assert clock.doubt is not None
    machine.ahead = -2 * HOUR
    assert clock.doubt is None
    assert CheckedClock(machine).doubt is None  # at a terminal there is nobody to ask


@pytest.mark.parametrize(
    ("server", "sent", "by_ours"),
    [
        (None, -HOUR, -HOUR),
        (timedelta(seconds=-50), -HOUR, -HOUR),
        (-HOUR, -HOUR, timedelta(0)),
        (-HOUR, -2 * HOUR, -HOUR),
        (-HOUR, timedelta(0), timedelta(0)),
        (-HOUR, MINUTE, MINUTE),
        (HOUR, -HOUR, -HOUR),
        (-9000 * DAY, -HOUR, timedelta(0)),
        (9000 * DAY, -HOUR, -HOUR),
        (3000 * 365 * DAY, -HOUR, -HOUR),
    ],
)
def test_what_was_sent_is_no_older_because_the_homeserver_is_behind(
    server: timedelta | None, sent: timedelta, by_ours: timedelta
) -> None:
    """F-029: and a date that lies makes nothing old."""
    clock = CheckedClock(FakeClock())
    if server is not None:
        clock.note_server_time(NOON + server)
    assert clock.on_our_clock(NOON + sent) == NOON + by_ours


@pytest.mark.parametrize(
    ("header", "date"),
    [
        ("Mon, 04 May 2026 12:00:00 GMT", NOON),
        ("Mon, 04 May 2026 12:00:00 -0000", NOON),
        ("", None),
        ("noon", None),
        ("Mon, 04 May 99999 12:00:00 GMT", None),
        ("Mon, 04 May 9999 12:00:00 GMT", None),
        ("Thu, 01 Jan 1970 00:00:00 GMT", None),
        ("Mon, 99 May 2026 12:00:00 GMT", None),
        ("Mon, 04 May 2026 12:00:00 +9999", None),
        ("\udcff" * 1_000_000, None),
        ("9" * 1_000_000, None),
    ],
)
def test_a_date_is_a_time_one_can_count_with_or_none(header: str, date: datetime | None) -> None:
    """F-015: the header comes from a homeserver."""
    assert date_of(header) == date


async def test_who_sleeps_wakes_in_time_although_the_machine_slept() -> None:
    """F-015: the clock of the loop does not count that."""

    class Laptop(SystemClock):
        slept = 0.0

        def monotonic(self) -> float:
            return super().monotonic() + self.slept

    clock = Laptop(longest_nap=0.05)
    async with asyncio.timeout(WITHIN), asyncio.TaskGroup() as group:
        nap = group.create_task(clock.sleep(3600))
        await asyncio.sleep(0.12)
        assert not nap.done()
        clock.slept = 3600


async def test_another_start_of_the_machine_tells_nothing(tmp_path: Path) -> None:
    """F-015: its steady clock has begun anew."""
    async with open_migrated(tmp_path / "wintermute.db") as database:
        marks = TrustedReadings(database)
        assert await marks.last() is None
        for mark in (ClockReading(NOON, 1.5), ClockReading(NOON + DAY, 2.5)):
            await marks.keep(mark)
            assert await marks.last() == mark
        async with database.transaction() as tx:
            await tx.execute(
                "UPDATE single_values SET value = json_set(value, '$.boot', 'another') WHERE name = 'clock'"
            )
        assert await marks.last() is None


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(MORNING)


@pytest.fixture
async def house(tmp_path: Path, clock: FakeClock) -> AsyncIterator[House]:
    async with open_house(tmp_path, None, clock=clock) as house:
        await talk(house)
        yield house


async def fired(house: House) -> list[str]:
    """Fire, and what is said then, without signs."""
    await house.fire()
    return [text for text in await house.deliver() if text != " ".join(REMINDER_REACTIONS)]


@pytest.mark.parametrize("span", [2 * HOUR, NEVER, -3 * DAY, -NEVER])
async def test_a_clock_that_is_wrong_for_seconds_changes_nothing(
    house: House, clock: FakeClock, span: timedelta
) -> None:
    """F-015: forward by any span and back again, or back; a reminder falls due meanwhile."""
    task = await promise(house, asked=DAILY)
    after(clock, "2026-03-02T08:59:55")
    assert await fired(house) == []
    clock.ahead = span
    assert await fired(house) == []
    clock.advance(12)
    assert await fired(house) == []
    assert (await now(house, task)).next_due == MORNING + HOUR
    clock.ahead = timedelta(0)
    assert await fired(house) == ["⏰ Call Anna"]
    assert await fired(house) == []
    assert await occurrences(house) == [("2026-03-02T08:00", "done", 0)]
    assert (await now(house, task)).next_due == MORNING + HOUR + DAY


async def test_what_is_due_is_said_while_the_homeserver_knows_the_time(
    house: House, clock: FakeClock
) -> None:
    """F-015: nobody needs to wait for a clock that is wrong if another one says so."""
    await promise(house, asked=DAILY)
    house.checked.note_server_time(clock.now())
    clock.ahead = NEVER
    after(clock, "2026-03-02T09:00")
    assert await fired(house) == ["⏰ Call Anna"]


@pytest.mark.parametrize("heard", [True, False])
async def test_what_was_due_in_a_true_jump_is_late_and_not_dropped(
    house: House, clock: FakeClock, heard: bool
) -> None:
    """F-015, T-042: once the homeserver agrees, or after ten minutes."""
    await promise(house)
    clock.ahead = 2 * HOUR
    assert await fired(house) == []
    if heard:
        house.checked.note_server_time(clock.now() + timedelta(seconds=2))
    else:
        clock.advance(599)
        assert await fired(house) == []
        clock.advance(1)
    assert await fired(house) == ["⏰ Call Anna (was due at 09:00)"]
    assert await fired(house) == []


FOUR = PlanRequest(schedule_type="rrule", rrule="FREQ=DAILY;COUNT=4", at="09:00")
WEEKLY = PlanRequest(schedule_type="weekly", day_of_week="mon,tue", at="09:00")
ONCE = PlanRequest(schedule_type="once", at="2026-03-02T10:00")


@pytest.mark.parametrize("restarted", [True, False])
async def test_series_go_on_from_the_real_time_after_one_that_never_was(
    tmp_path: Path, clock: FakeClock, restarted: bool
) -> None:
    """F-015, T-034: the wrong time was believed, for it lasted; what it said is not said again."""
    async with open_house(tmp_path, None, clock=clock) as house:
        await talk(house)
        series = [await promise(house, asked=each) for each in (DAILY, FOUR, WEEKLY)]
        await promise(house, "once", ONCE)
        clock.ahead = NEVER
        assert await fired(house) == []
        clock.advance(600)
        assert len(await fired(house)) == 4
        unreal = (await now(house, series[0])).next_due
        assert unreal is not None
        assert unreal > MORNING + NEVER
        assert (await now(house, series[1])).status == "completed"
        clock.ahead = timedelta(0)
        if not restarted:
            await fired(house)
            clock.advance(600)
            assert await fired(house) == []
            await real_day(house, clock)
    if restarted:
        async with open_house(tmp_path, None, clock=clock) as house:
            await real_day(house, clock)


async def real_day(house: House, clock: FakeClock) -> None:
    """The day on which the clock is right again, and the one after it."""
    for day in (2, 3):
        after(clock, f"2026-03-0{day}T08:59:59")
        assert await fired(house) == []
        after(clock, f"2026-03-0{day}T09:00")
        assert await fired(house) == ["⏰ Call Anna"] * 3
        after(clock, f"2026-03-0{day}T11:00")
        assert await fired(house) == []


async def test_nothing_of_an_unreal_time_is_said_when_the_clock_was_back_for_long(
    house: House, clock: FakeClock
) -> None:
    """F-015: a task is not due before it was made."""
    task = await promise(house, asked=DAILY)
    clock.ahead = -3 * DAY - HOUR
    await fired(house)
    clock.advance(600)
    assert await fired(house) == []
    clock.ahead = timedelta(0)
    await fired(house)
    clock.advance(600)
    assert await fired(house) == []
    assert (await now(house, task)).next_due == MORNING + HOUR
    after(clock, "2026-03-02T09:00")
    assert await fired(house) == ["⏰ Call Anna"]


@pytest.mark.parametrize("span", [-DAY, NEVER])
async def test_what_waits_for_the_model_waits_no_longer_because_of_a_clock(
    tmp_path: Path, model: ModelServer, span: timedelta
) -> None:
    """F-015: nor does what was said after it; it is told once that the model is away (L-034)."""
    clock = HeldClock()
    model.script(Fail(500), Fail(500), Text("back"), Text("behind"))
    async with house_at_work(tmp_path, model.url, clock=clock) as house:
        await house.incoming("go")
        await clock.asleep()
        clock.ahead = span
        house.checked.note_server_time(clock.now())
        await house.incoming("and this")
        await clock.move(60)
        [notice] = await house.said(1)
        assert "model" in notice
        await clock.asleep()
        await clock.move(60)
        assert await house.said(4) == [notice, BACK, "back", "behind"]


async def test_a_single_reminder_is_over_in_the_moment_in_which_it_is_in_its_room(
    house: House,
) -> None:
    """F-016: and its signs are promised with that; nobody has to look first."""
    task = await promise(house)
    await fire_at(house, "2026-03-02T09:00")
    assert await house.deliver() == ["⏰ Call Anna"]
    assert await occurrences(house) == [("2026-03-02T08:00", "done", 0)]
    assert (await now(house, task)).status == "completed"
    assert await house.stores.tasks.listed(task.scope) == ()
    assert await house.deliver() == [" ".join(REMINDER_REACTIONS)]
    assert datetime(2026, 3, 2, 8, 0, tzinfo=UTC) == task.next_due


def test_a_machine_names_its_zone_in_one_of_three_ways(tmp_path: Path) -> None:
    """F-051."""
    link = tmp_path / "localtime"
    for named, target, written, zone in (
        (":Europe/Berlin", "", "", "Europe/Berlin"),
        ("", "/var/db/timezone/zoneinfo/Europe/Rome", "Asia/Tokyo", "Europe/Rome"),
        ("", "../usr/share/zoneinfo/Etc/UTC", "Europe/Rome", "UTC"),
        ("<nonsense>7", "nowhere", "Europe/Rome\n", "Europe/Rome"),
        ("", "nowhere", "../../etc/passwd", "UTC"),
    ):
        link.unlink(missing_ok=True)
        link.symlink_to(target or "nowhere")
        (tmp_path / "timezone").write_text(written)
        assert host_zone({"TZ": named}, tmp_path) == zone


def test_a_zone_is_doubted_where_it_differs_from_the_machines() -> None:
    """F-051; a server by UTC says nothing about where its person lives."""
    doubted = "Europe/London>Europe/Berlin Europe/London>Africa/Lagos UTC>EST UTC>Etc/GMT+5"
    believed = "Europe/Vienna>Europe/Berlin UTC>Europe/Berlin UTC>UTC UTC>Asia/Tokyo UTC>EST5EDT"
    for pairs, expected in ((doubted, True), (believed, False)):
        for host, zone in (pair.split(">") for pair in pairs.split()):
            assert bool(zone_doubt(zone, host, NOON)) is expected, zone
