"""When a night runs: once per local date, at its hour, whatever the clock does; and the morning after."""

from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from tests.world.clock import HeldClock, utc
from tests.world.house import House
from tests.world.model import ModelServer
from tests.world.nights import OWNER, begin, look, nights, opened
from wintermute.changes.change_sets import Reason
from wintermute.config.schema import Dreaming
from wintermute.night.night_jobs import newest_night, next_night

ONE = time(1, 0)
HALF_PAST_TWO = time(2, 30)
HOUR = 3600.0


@pytest.mark.parametrize(
    ("now", "begins", "zone", "day", "at"),
    [
        ("2026-05-04T22:59", ONE, "Europe/Berlin", "2026-05-04", "2026-05-03T23:00"),
        ("2026-05-04T23:00", ONE, "Europe/Berlin", "2026-05-05", "2026-05-04T23:00"),
        # 02:30 does not exist: the first instant after the gap.
        ("2025-03-30T00:59", HALF_PAST_TWO, "Europe/Berlin", "2025-03-29", "2025-03-29T01:30"),
        ("2025-03-30T01:00", HALF_PAST_TWO, "Europe/Berlin", "2025-03-30", "2025-03-30T01:00"),
        # 02:30 comes twice: the first of them, and not again.
        ("2025-10-26T00:30", HALF_PAST_TWO, "Europe/Berlin", "2025-10-26", "2025-10-26T00:30"),
        ("2025-10-26T01:30", HALF_PAST_TWO, "Europe/Berlin", "2025-10-26", "2025-10-26T00:30"),
        ("2026-05-04T00:00", time(0, 0), "UTC", "2026-05-04", "2026-05-04T00:00"),
        ("2026-05-03T23:59", time(0, 0), "UTC", "2026-05-03", "2026-05-03T00:00"),
        # The whole of 2011-12-30 does not exist there.
        ("2011-12-30T10:00", ONE, "Pacific/Apia", "2011-12-30", "2011-12-30T10:00"),
    ],
)
def test_the_night_of_a_date_begins_at_its_hour(
    now: str, begins: time, zone: str, day: str, at: str
) -> None:
    """M-054, T-029, T-030: over gaps, hours that come twice, and midnight."""
    night = newest_night(utc(now), begins, ZoneInfo(zone))
    assert (night.day.isoformat(), night.at) == (day, utc(at))


@pytest.mark.parametrize("year", [2025, 2026])
@pytest.mark.parametrize(
    "zone", ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "UTC"]
)
@pytest.mark.parametrize("begins", [time(0, 0), ONE, HALF_PAST_TWO, time(23, 59)])
def test_each_date_has_one_night_and_the_next_is_always_ahead(
    year: int, zone: str, begins: time
) -> None:
    """M-054."""
    now, seen = datetime(year, 1, 2, tzinfo=UTC), list[date]()
    for _ in range(4 * 365):
        night = newest_night(now, begins, ZoneInfo(zone))
        assert night.at <= now < next_night(night, begins, ZoneInfo(zone)).at
        seen += [night.day] if night.day not in seen[-1:] else []
        now += timedelta(hours=6)
    assert seen == sorted(set(seen))
    assert len(seen) in (365, 366)


async def test_a_night_runs_at_its_hour_and_once(house: House, clock: HeldClock) -> None:
    """M-054: 01:00 in Berlin is 23:00 UTC."""
    await begin(house)
    clock.advance(11 * HOUR - 1)
    await look(house)
    assert await nights(house) == []
    clock.advance(1)
    for _ in range(3):
        await look(house)
        clock.advance(60)
    assert await nights(house) == [("2026-05-05", "schedule", "done")]
    clock.advance(24 * HOUR - 180)
    await look(house)
    assert await nights(house) == [
        ("2026-05-05", "schedule", "done"),
        ("2026-05-06", "schedule", "done"),
    ]


async def test_a_missed_night_is_caught_up_when_nobody_has_spoken_for_ten_minutes(
    tmp_path: Path, model: ModelServer
) -> None:
    """M-054: the newest alone, also after two days."""
    clock = HeldClock()
    async with opened(tmp_path, model, clock) as house:
        await begin(house)
    clock.advance(50 * HOUR)  # 14:00 UTC, two nights later
    async with opened(tmp_path, model, clock) as house:
        await look(house)
        clock.advance(599)
        await look(house)
        assert await nights(house) == []
        async with house.working():
            await house.incoming("I am back")
            await house.said(2)
        clock.advance(599)
        await look(house)
        assert await nights(house) == []
        clock.advance(1)
        await look(house)
        await look(house)
        assert await nights(house) == [("2026-05-06", "late", "done")]


async def test_a_missed_night_is_caught_up_where_nobody_ever_talked(
    tmp_path: Path, model: ModelServer
) -> None:
    """M-097: what was imported is tidied as well."""
    clock = HeldClock()
    async with opened(tmp_path, model, clock) as house, house.database.transaction() as tx:
        why = Reason("import", OWNER)
        await house.stores.facts.add(tx, why, "Ann has a dog.", "user_explicit", scope=OWNER)
    clock.advance(50 * HOUR)
    async with opened(tmp_path, model, clock) as house:
        await look(house)
        clock.advance(600)
        await look(house)
        await look(house)
        assert await nights(house) == [("2026-05-06", "late", "done")]


async def test_a_folder_that_is_younger_than_the_night_misses_none(
    house: House, clock: HeldClock
) -> None:
    """M-054: who installs at noon has missed nothing."""
    await begin(house)
    for _ in range(5):
        clock.advance(HOUR)
        await look(house)
    assert await nights(house) == []


@pytest.mark.slow
async def test_a_clock_that_jumps_two_days_ahead_and_back_has_each_date_once(
    house: House, clock: HeldClock
) -> None:
    """M-054."""
    await begin(house)

    async def passes(hours: int) -> None:
        for _ in range(hours * 6):
            clock.advance(600)
            await look(house)

    await passes(24)
    clock.ahead = timedelta(days=2)
    await passes(2)
    clock.ahead = timedelta(0)
    await passes(96)
    dates = [day for day, *_ in await nights(house)]
    assert len(dates) == len(set(dates))
    assert {f"2026-05-0{n}" for n in range(5, 9)} <= {*dates}


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("Europe/Berlin", "America/New_York"),
        ("America/New_York", "Pacific/Auckland"),
        ("Pacific/Auckland", "Europe/Berlin"),
    ],
)
async def test_in_another_zone_the_dates_go_on_and_none_comes_twice(
    tmp_path: Path, model: ModelServer, first: str, second: str
) -> None:
    """M-054, T-033: at each hour of a day at which one may have moved."""
    clock, ran = HeldClock(), list[str]()
    for zone in (first, second, first):
        async with opened(tmp_path, model, clock, zone=zone) as house:
            if zone == first and not ran:
                await begin(house)
            for _ in range(31 * 2):
                clock.advance(HOUR / 2)
                await look(house)
            ran = [day for day, *_ in await nights(house)]
    assert len(ran) == len(set(ran))
    assert len(ran) in (3, 4, 5)


async def test_a_night_that_is_turned_off_never_comes_and_one_that_is_asked_for_does(
    tmp_path: Path, model: ModelServer
) -> None:
    """`dreaming.enabled: false`."""
    clock = HeldClock()
    off = Dreaming(enabled=False)
    async with opened(tmp_path, model, clock, off) as house:
        await begin(house, "Likes tea", "Likes tea, again")
        for _ in range(60):
            clock.advance(HOUR)
            await look(house)
        assert await nights(house) == []
        async with house.working():
            await house.incoming("/dream")
            house.runner.wake("night")
            began, ended = (await house.said(3))[1:]
    assert began.startswith("I'm tidying up what I know.")
    assert ended == ("Done: 2 memories merged. `/night` shows all, `/night undo` takes it back.")


async def test_idle_days_cost_nothing(house: House, clock: HeldClock, model: ModelServer) -> None:
    """24 hours without news: no call of a model, and no word to anybody."""
    await begin(house, "Likes tea")
    before = len(model.requests)
    facts = await house.rows("SELECT * FROM facts")
    for _ in range(24 * 12):
        clock.advance(300)
        await look(house)
    assert await nights(house) == [("2026-05-05", "schedule", "done")]
    assert len(model.requests) == before
    assert await house.rows("SELECT * FROM facts") == facts
    assert len(await house.spoken()) == 1
