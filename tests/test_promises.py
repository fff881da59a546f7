"""What wakes the schedule: the next due moment, a change of the tables by anybody, a clock that jumps."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from tests.world.clock import NOON, WITHIN, QuickClock, promptly
from tests.world.house import ANN, ZONE, House, open_house
from tests.world.promised import occurrences, promise, talk
from tests.world.schema import open_migrated
from wintermute.changes.change_sets import Reason
from wintermute.clock import Clock, SystemClock
from wintermute.ids import new_id
from wintermute.owner import Owner
from wintermute.schedule.loop import HEARTBEAT_SECONDS, Alarm, Delay
from wintermute.stores import Stores
from wintermute.tasks.schedules import PlanRequest


class JumpingClock(QuickClock):
    """A clock that somebody sets."""

    def __init__(self) -> None:
        self.ahead = timedelta(0)

    def now(self) -> datetime:
        return super().now() + self.ahead


@asynccontextmanager
async def keeping(folder: Path, clock: Clock) -> AsyncIterator[House]:
    """Promises are kept, as in the daemon."""
    async with open_house(folder, None, clock=clock) as house:
        await talk(house)
        async with asyncio.TaskGroup() as group:
            runs = house.runner.run(house.rooms.wake, unasked=True)
            work = [group.create_task(part) for part in (house.promises.run(), runs)]
            yield house
            for part in work:
                part.cancel()


async def spoken(house: House, n: int) -> list[str]:
    async with asyncio.timeout(WITHIN):
        return await house.said(n)


def at(when: datetime) -> PlanRequest:
    return PlanRequest(schedule_type="once", at=when.isoformat(timespec="seconds"))


@pytest.mark.slow
@pytest.mark.alone
async def test_a_reminder_is_claimed_in_the_second_it_is_due(tmp_path: Path) -> None:
    """Issue 6: APScheduler wakes us; nothing else happens meanwhile."""
    clock = SystemClock()
    async with keeping(tmp_path, clock) as house:
        due = (clock.now() + timedelta(seconds=2.5)).replace(microsecond=0)
        await promise(house, asked=at(due))
        assert await spoken(house, 1) == ["⏰ Call Anna"]
        row = await house.one("SELECT claimed_at FROM occurrences")
        late = (datetime.fromisoformat(row["claimed_at"]) - due).total_seconds()
        assert 0 <= late < 1


async def test_a_change_by_another_program_is_noticed(tmp_path: Path) -> None:
    """T-040: within five seconds."""
    clock = SystemClock()
    async with keeping(tmp_path, clock) as house:
        await house.fire()
        async with open_migrated(tmp_path / "wintermute.db") as database:
            stores = Stores.of(database, tmp_path, Owner(ANN), clock, new_id, timezone=ZONE)
            async with database.transaction() as tx:
                soon = at(clock.now() + timedelta(seconds=1))
                why = Reason("command", stores.owner.scope)
                await stores.tasks.add(tx, why, "tea", scope=stores.owner.scope, request=soon)
        assert await spoken(house, 1) == ["⏰ tea"]
        row = await house.one("SELECT due_at, claimed_at FROM occurrences")
        late = datetime.fromisoformat(row["claimed_at"]) - datetime.fromisoformat(row["due_at"])
        assert late < timedelta(seconds=5)


async def test_a_clock_that_jumps_ahead_is_noticed(tmp_path: Path) -> None:
    """Issue 6, item 3: and what fell due in between says that it is late."""
    clock = JumpingClock()
    async with keeping(tmp_path, clock) as house:
        await promise(house, asked=at(clock.now() + timedelta(hours=1)))
        await asyncio.sleep(0)
        clock.ahead = timedelta(hours=2)
        house.checked.note_server_time(clock.now())
        [said] = await spoken(house, 1)
        row = await house.next_outgoing()
        assert row is not None
        assert "(was due " in row.text(clock.now())
        assert said == "⏰ Call Anna"


async def test_a_clock_that_jumps_back_repeats_nothing_and_misses_nothing(tmp_path: Path) -> None:
    """T-034: and the heartbeat does not wait for the clock to catch up."""
    clock = JumpingClock()
    clock.ahead = timedelta(hours=2)
    async with keeping(tmp_path, clock) as house:
        await promise(house, asked=at(clock.now() + timedelta(hours=1)))
        clock.ahead += timedelta(hours=1)
        house.checked.note_server_time(clock.now())
        await spoken(house, 1)
        clock.ahead = timedelta(0)
        house.checked.note_server_time(clock.now())
        await promise(house, "tea", asked=at(clock.now() + timedelta(seconds=2)))
        assert await spoken(house, 2) == ["⏰ Call Anna", "⏰ tea"]
        assert len(await occurrences(house)) == 2


async def test_the_alarm_rings_at_its_time_and_when_that_has_passed() -> None:
    """Once each time, also when it is due at once: without this first line it would do so for ever."""
    assert Delay(5).get_next_fire_time(NOON, NOON) is None
    rung, count = asyncio.Event(), 0

    def ring() -> None:
        nonlocal count
        count += 1
        rung.set()

    alarm = Alarm(ring)
    with alarm.ticking():
        for seconds in (0.2, 0.001, -1_000_000):
            rung.clear()
            alarm.after(seconds)
            async with promptly(HEARTBEAT_SECONDS / 2):
                await rung.wait()
        alarm.after(0.2)
        alarm.after(None)
        alarm.after(None)
        await asyncio.sleep(0.4)
    assert count == 3
