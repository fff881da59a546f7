"""Reminders: each due moment is said once, in the right room, however long we were away."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.world.clock import FakeClock
from tests.world.house import ANN, ROOM, House, open_house
from tests.world.promised import DAILY, MORNING, after, do, now, occurrences, promise, talk
from wintermute.ids import new_id
from wintermute.owner import Owner
from wintermute.tasks.schedules import PlanRequest
from wintermute.tasks.tasks import EVERYWHERE, SIGNS, Tasks

BEN = "@ben:test"
NIGHT = timedelta(hours=12)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(MORNING)


@pytest.fixture
async def house(tmp_path: Path, clock: FakeClock) -> AsyncIterator[House]:
    async with open_house(tmp_path, None, clock=clock) as house:
        await talk(house)
        yield house


async def test_a_reminder_is_said_when_it_is_due_and_not_before(
    house: House, clock: FakeClock
) -> None:
    """T-041, T-046: without a model, and completed only when it is in the room."""
    task = await promise(house)
    after(clock, "2026-03-02T08:59:59")
    await house.fire()
    assert await house.spoken() == []
    after(clock, "2026-03-02T09:00")
    await house.fire()
    await house.fire()
    assert await house.spoken() == ["⏰ Call Anna"]
    assert await occurrences(house) == [("2026-03-02T08:00", "claimed", 0)]
    assert (await now(house, task)).status == "active"
    assert await house.deliver() == ["⏰ Call Anna"]
    await house.fire()
    assert await occurrences(house) == [("2026-03-02T08:00", "done", 0)]
    done = await now(house, task)
    assert (done.status, done.reason, done.next_due) == ("completed", "delivered", None)


async def test_what_was_delivered_carries_the_signs_to_answer_with(
    house: House, clock: FakeClock
) -> None:
    """T-063: once, and not before it is in the room."""
    await promise(house)
    after(clock, "2026-03-02T09:00")
    await house.fire()
    await house.deliver()
    await house.fire()
    await house.fire()
    row = await house.one("SELECT body, reacts_to FROM outbox WHERE reacts_to IS NOT NULL")
    said = await house.one("SELECT id FROM outbox WHERE reacts_to IS NULL")
    assert row == {"body": " ".join(SIGNS), "reacts_to": f"$of-{said['id']}"}


async def test_a_reminder_that_waits_longer_than_five_minutes_says_so(
    house: House, clock: FakeClock
) -> None:
    """T-038: the mark is added when it is said."""
    await promise(house)
    after(clock, "2026-03-02T09:00")
    await house.fire()
    after(clock, "2026-03-02T09:05:01")
    assert await house.deliver() == ["⏰ Call Anna (was due 2026-03-02 09:00)"]


async def test_what_was_due_while_we_were_away_says_so_however_short_that_was(
    tmp_path: Path, clock: FakeClock
) -> None:
    """T-036, T-042."""
    async with open_house(tmp_path, None, clock=clock) as house:
        await promise(house)
    after(clock, "2026-03-02T09:00:10")
    async with open_house(tmp_path, None, clock=clock) as house:
        await house.fire()
        assert await house.deliver() == ["⏰ Call Anna (was due at 09:00)"]
    async with open_house(tmp_path, None, clock=clock) as house:
        await house.fire()
        assert await house.deliver() == [" ".join(SIGNS)]


async def test_days_that_were_missed_are_one_message(house: House, clock: FakeClock) -> None:
    """T-043: marked with the latest, then the normal rhythm goes on."""
    await promise(house, asked=DAILY)
    after(clock, "2026-03-04T20:00")
    await house.fire()
    assert await house.deliver() == ["⏰ Call Anna (was due at 09:00, 3 missed)"]
    after(clock, "2026-03-05T09:00")
    await house.fire()
    assert (await house.deliver())[0] == "⏰ Call Anna"
    assert await occurrences(house) == [
        ("2026-03-04T08:00", "done", 3),
        ("2026-03-05T08:00", "done", 0),
    ]


async def test_what_cannot_be_sent_for_days_is_one_message_when_it_can(
    house: House, clock: FakeClock
) -> None:
    """T-043, lesson 9: the one that waits stands for those that fell due meanwhile."""
    await promise(house, asked=DAILY)
    for day in (2, 3, 4):
        after(clock, f"2026-03-0{day}T09:00")
        await house.fire()
    assert await house.deliver() == ["⏰ Call Anna (was due 2026-03-04 09:00, 3 missed)"]
    await house.fire()
    assert await occurrences(house) == [
        ("2026-03-02T08:00", "done", 3),
        ("2026-03-03T08:00", "missed", 0),
        ("2026-03-04T08:00", "missed", 0),
    ]


async def test_several_that_were_missed_come_in_due_order_in_their_own_rooms(
    house: House, clock: FakeClock
) -> None:
    """T-044."""
    kitchen = "!kitchen:test"
    await promise(house, "third", PlanRequest(schedule_type="once", at="2026-03-02T11:00"))
    await promise(house, "first", PlanRequest(schedule_type="once", at="2026-03-02T09:00"))
    await promise(
        house, "soup", PlanRequest(schedule_type="daily", at="10:00"), f"room:{kitchen}", kitchen
    )
    after(clock, "2026-03-03T20:00")
    await house.fire()
    assert [text.split(" (")[0] for text in await house.deliver()] == ["⏰ first", "⏰ third"]
    assert await house.deliver(kitchen) == ["⏰ soup (was due at 10:00, 2 missed)"]


async def test_the_clock_may_go_back_and_nothing_is_said_twice(
    house: House, clock: FakeClock
) -> None:
    """T-034, T-035: also when the schedule is begun anew meanwhile."""
    task = await promise(house, asked=DAILY)
    after(clock, "2026-03-02T09:00")
    await house.fire()
    await house.deliver()
    clock.advance(-7200)
    await house.fire()
    await do(house, "pause", task)
    await do(house, "resume", task)
    after(clock, "2026-03-02T09:10")
    await house.fire()
    assert await house.spoken() == ["⏰ Call Anna", " ".join(SIGNS)]
    after(clock, "2026-03-03T09:00")
    await house.fire()
    assert "⏰ Call Anna" in await house.deliver()


async def test_nothing_of_a_pause_is_made_up_for(house: House, clock: FakeClock) -> None:
    """T-006."""
    task = await promise(house, asked=DAILY)
    await do(house, "pause", task)
    after(clock, "2026-03-03T20:00")
    await house.fire()
    resumed = await do(house, "resume", task)
    await house.fire()
    assert await house.spoken() == []
    assert resumed.next_due == datetime(2026, 3, 4, 8, 0, tzinfo=UTC)


async def test_a_private_reminder_never_goes_to_a_group(house: House, clock: FakeClock) -> None:
    """T-013: it waits for a direct chat, and is said there as late."""
    await promise(house)
    await talk(house, ROOM, f"room:{ROOM}")  # somebody came in
    after(clock, "2026-03-02T09:00")
    await house.fire()
    assert await house.spoken() == []
    assert [task.held for task in await house.stores.tasks.listed(None)] == [True]
    await talk(house, "!new:test", f"person:{ANN}")
    clock.advance(31)
    await house.fire()
    assert await house.deliver("!new:test") == ["⏰ Call Anna"]
    assert await house.spoken() == []


async def test_who_is_in_the_room_counts_not_what_was_last_said_there(
    house: House, clock: FakeClock
) -> None:
    """T-013: somebody may have come in without a word."""
    await promise(house)
    house.speaker.unfit.add(ROOM)
    after(clock, "2026-03-02T09:00")
    await house.fire()
    assert await house.spoken() == []


async def test_a_room_that_we_have_left_is_not_spoken_in(house: House, clock: FakeClock) -> None:
    await promise(house)
    async with house.database.transaction() as tx:
        await house.stores.known.seen(tx, ROOM, encrypted=False)
        await house.stores.known.left(tx, ROOM)
    after(clock, "2026-03-02T09:00")
    await house.fire()
    assert await house.spoken() == []


async def test_a_task_of_the_command_line_is_said_in_its_persons_chat(
    house: House, clock: FakeClock
) -> None:
    await talk(house, "!ben:test", f"person:{BEN}")
    await promise(house, room=None)
    await promise(house, "Feed the cat", scope=f"person:{BEN}", room=None)
    after(clock, "2026-03-02T09:00")
    await house.fire()
    assert await house.deliver() == ["⏰ Call Anna"]
    assert await house.deliver("!ben:test") == ["⏰ Feed the cat"]


async def test_a_global_task_is_said_where_it_was_made(house: House, clock: FakeClock) -> None:
    """T-014."""
    await talk(house, "!other:test", f"person:{ANN}")
    await promise(house, scope=EVERYWHERE, room=ROOM)
    after(clock, "2026-03-02T09:00")
    await house.fire()
    assert await house.deliver() == ["⏰ Call Anna"]


async def test_a_snoozed_reminder_comes_again_and_then_is_done(
    house: House, clock: FakeClock
) -> None:
    """T-063."""
    task = await promise(house)
    after(clock, "2026-03-02T09:00")
    await house.fire()
    await house.deliver()
    await house.fire()
    again = await do(house, "snooze", task, clock.now() + timedelta(minutes=10))
    assert (again.status, again.reason) == ("active", "")
    after(clock, "2026-03-02T09:09")
    await house.fire()
    await house.deliver()
    after(clock, "2026-03-02T09:10")
    await house.fire()
    assert await house.deliver() == ["⏰ Call Anna"]
    await house.fire()
    assert (await now(house, task)).status == "completed"


async def test_a_snooze_does_not_touch_the_rhythm(house: House, clock: FakeClock) -> None:
    task = await promise(house, asked=DAILY)
    after(clock, "2026-03-02T09:00")
    await house.fire()
    await house.deliver()
    await house.fire()
    snoozed = await do(house, "snooze", task, clock.now() + timedelta(minutes=10))
    assert snoozed.next_due == datetime(2026, 3, 2, 8, 10, tzinfo=UTC)
    after(clock, "2026-03-02T09:10")
    await house.fire()
    assert (await now(house, task)).next_due == datetime(2026, 3, 3, 8, 0, tzinfo=UTC)


async def test_a_count_that_is_used_up_completes_the_task(house: House, clock: FakeClock) -> None:
    """T-025."""
    four = PlanRequest(schedule_type="rrule", rrule="FREQ=WEEKLY;BYDAY=MO,WE;COUNT=4", at="09:00")
    task = await promise(house, asked=four)
    said = []
    for _ in range(30):
        clock.advance(NIGHT.total_seconds())
        await house.fire()
        said += [text for text in await house.deliver() if text.startswith("⏰ C")]
        await house.fire()
    assert len(said) == 4
    assert (await now(house, task)).status == "completed"


async def test_a_changed_zone_keeps_the_local_time_and_repeats_no_day(
    house: House, clock: FakeClock
) -> None:
    """T-033."""
    task = await promise(house, asked=DAILY)
    after(clock, "2026-03-02T09:00")
    await house.fire()  # 09:00 in Berlin; in New York it is 03:00
    moved = Tasks(
        house.database, house.stores.changes, clock, new_id, Owner(ANN), "America/New_York"
    )
    async with house.database.transaction() as tx:
        assert await moved.rezone(tx) == 1
        assert await moved.rezone(tx) == 0
    assert (await now(house, task)).next_due == datetime(2026, 3, 3, 14, 0, tzinfo=UTC)
