"""When a night runs: once per local date, at its hour, whatever the clock does; and the morning after."""

from contextlib import AbstractAsyncContextManager
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from tests.world.clock import FakeClock, HeldClock
from tests.world.house import ANN, House, open_house
from tests.world.model import ModelServer
from tests.world.nights import SmallNight
from wintermute.config.schema import Dreaming
from wintermute.memory.fact import NewFact
from wintermute.night.night_jobs import newest_night, next_night

OWNER = f"person:{ANN}"
BERLIN = ZoneInfo("Europe/Berlin")
ONE = time(1, 0)
HALF_PAST_TWO = time(2, 30)
HOUR = 3600.0
DREAMING = Dreaming()


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


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
        assert night.at <= now < next_night(night, begins, ZoneInfo(zone))
        seen += [night.day] if night.day not in seen[-1:] else []
        now += timedelta(hours=6)
    assert seen == sorted(set(seen))
    assert len(seen) in (365, 366)


def opened(
    folder: Path,
    model: ModelServer,
    clock: FakeClock,
    dreaming: Dreaming = DREAMING,
    night: SmallNight | None = None,
) -> AbstractAsyncContextManager[House]:
    return open_house(
        folder, model.url, clock=clock, dreaming=dreaming, night=night or SmallNight()
    )


async def remember(house: House, *texts: str, scope: str = OWNER) -> None:
    """What is known, long before the night."""
    async with house.database.transaction() as tx:
        await house.stores.facts.take(tx, [NewFact(scope, text, "harvest") for text in texts])


async def look(house: House, *names: str) -> None:
    """Let the runner do what is owed by now, of nights and mornings."""
    for name in names or ("night", "morning"):
        await house.runner.finish(name, house.rooms.wake)


async def nights(house: House) -> list[tuple[str, str, str]]:
    rows = await house.rows("SELECT date, why, state FROM nights ORDER BY seq")
    return [(row["date"], row["why"], row["state"]) for row in rows]


async def begin(house: House, *texts: str) -> None:
    """Somebody has spoken, long ago, and something is known."""
    async with house.working():
        await house.incoming("hello")
        await house.said(1)
    await remember(house, *texts)


async def test_a_night_runs_at_its_hour_and_once(tmp_path: Path, model: ModelServer) -> None:
    """M-054: 01:00 in Berlin is 23:00 UTC."""
    clock = HeldClock()
    async with opened(tmp_path, model, clock) as house:
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
