"""Reminders: each due moment is said once, in the right room, however long we were away."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.world.clock import FakeClock
from tests.world.house import ANN, ROOM, House, open_house
from tests.world.promised import (
    DAILY,
    GROUP_SCOPE,
    MORNING,
    after,
    at_terminal,
    check,
    do,
    now,
    occurrences,
    promise,
    talk,
)
from wintermute.changes.change_sets import Reason
from wintermute.ids import new_id
from wintermute.mailbox.outbox import NOT_ALONE, TERMINAL
from wintermute.owner import Owner
from wintermute.tasks.schedules import PlanRequest
from wintermute.tasks.tasks import EVERYWHERE, REMINDER_REACTIONS, Target, Task, Tasks

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
    assert row == {"body": " ".join(REMINDER_REACTIONS), "reacts_to": f"$of-{said['id']}"}


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
        assert await house.deliver() == [" ".join(REMINDER_REACTIONS)]


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
    assert await house.spoken() == ["⏰ Call Anna", " ".join(REMINDER_REACTIONS)]
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
        await house.stores.known.store_room(tx, ROOM, encrypted=False)
        await house.stores.known.mark_left(tx, ROOM)
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


async def test_a_run_that_waits_for_a_free_place_does_not_ring_for_ever(
    house: House, clock: FakeClock
) -> None:
    """Issue 6, item 3: what was put off until now and cannot begin yet is no reason to look at once."""
    await promise(house, asked=check())
    after(clock, "2026-03-02T09:00")
    await house.fire()
    row = await house.one("SELECT seq FROM occurrences")
    async with house.database.transaction() as tx:
        await house.stores.runs.postpone(tx, row["seq"], clock.monotonic() + 60)
        look = await house.runs.poll(tx, 0)
        assert look.next_poll == clock.now() + timedelta(seconds=60)
        clock.advance(61)
        look = await house.runs.poll(tx, 0)
        assert look.next_poll is None


async def test_what_the_terminal_did_not_show_does_not_silence_a_series(
    tmp_path: Path, clock: FakeClock
) -> None:
    """T-043: the chat at the terminal was closed in the moment the reminder was due."""
    async with open_house(tmp_path, None, clock=clock) as house:
        await at_terminal(house)
        await promise(house, asked=DAILY, room=TERMINAL)
        after(clock, "2026-03-02T09:00")
        await house.fire()
    async with open_house(tmp_path, None, clock=clock) as house:
        await talk(house)
        house.speaker.elsewhere.add(TERMINAL)
        after(clock, "2026-03-03T09:00")
        await house.fire()
        assert await house.spoken() == ["⏰ Call Anna"]


async def test_a_message_that_is_refused_for_good_does_not_silence_a_series(
    house: House, clock: FakeClock
) -> None:
    """T-043: the person left that chat and opened another."""
    await promise(house, asked=DAILY)
    after(clock, "2026-03-02T09:00")
    await house.fire()
    row = await house.next_outgoing()
    assert row is not None
    await house.outbox.mark_refused(row.id, "M_FORBIDDEN")
    async with house.database.transaction() as tx:
        await house.stores.known.store_room(tx, ROOM, encrypted=False)
        await house.stores.known.mark_left(tx, ROOM)
    await talk(house, "!new:test", f"person:{ANN}")
    after(clock, "2026-03-03T09:00")
    await house.fire()
    assert await house.spoken("!new:test") == ["⏰ Call Anna"]
    assert [state for _, state, _ in await occurrences(house)] == ["claimed", "missed"]


async def test_a_message_that_is_refused_stands_for_all_while_there_is_no_other_room(
    house: House, clock: FakeClock
) -> None:
    """Lesson 9: when the room takes it after all, it is one message."""
    await promise(house, asked=DAILY)
    for day in (2, 3, 4):
        after(clock, f"2026-03-0{day}T09:00")
        await house.fire()
        if row := await house.next_outgoing():
            await house.outbox.mark_refused(row.id, "M_FORBIDDEN")
    async with house.database.transaction() as tx:
        await house.outbox.release(tx, ROOM)
    [said] = await house.deliver()
    assert said.startswith("⏰ Call Anna (was due ")


async def test_a_series_that_is_over_and_was_snoozed_is_completed_when_it_is_done(
    house: House, clock: FakeClock
) -> None:
    """T-063, T-025: it stood in every prompt for ever."""
    one = PlanRequest(schedule_type="rrule", rrule="FREQ=DAILY;COUNT=1", at="09:00")
    task = await promise(house, asked=one)
    after(clock, "2026-03-02T09:00")
    await house.fire()
    await house.deliver()
    await house.fire()
    await do(house, "snooze", task, clock.now() + timedelta(minutes=10))
    acknowledged = await do(house, "acknowledge", task)
    assert (acknowledged.status, acknowledged.reason) == ("completed", "done")


async def test_the_moment_that_was_claimed_counts_once_however_often_it_comes(
    house: House, clock: FakeClock
) -> None:
    """T-034, T-042: the clock went back while the message waited; it is neither two nor delivered."""
    task = await promise(house)
    after(clock, "2026-03-02T09:00")
    await house.fire()
    clock.advance(-3600)
    await do(house, "pause", task)
    await do(house, "resume", task)
    after(clock, "2026-03-02T09:01")
    await house.fire()
    assert (await now(house, task)).status == "active"
    assert await house.deliver() == ["⏰ Call Anna"]


async def test_a_clock_that_was_set_back_makes_nothing_late(house: House, clock: FakeClock) -> None:
    """T-034, T-038: the program began at a time that the clock shows again later."""
    after(clock, "2026-03-02T08:30")
    await promise(house, asked=PlanRequest(schedule_type="once", at="07:30"))
    clock.advance(-2 * 3600)
    await house.fire()
    await promise(house, "tea", asked=PlanRequest(schedule_type="once", at="2026-03-02T07:00"))
    after(clock, "2026-03-02T07:00")
    await house.fire()
    assert await house.deliver() == ["⏰ tea"]


def _abroad(house: House, clock: FakeClock, zone: str) -> Tasks:
    return Tasks(house.database, house.stores.changes, clock, new_id, Owner(ANN), zone)


async def _moved(house: House, clock: FakeClock, zone: str, task: Task) -> datetime | None:
    async with house.database.transaction() as tx:
        await _abroad(house, clock, zone).rezone(tx)
    return (await now(house, task)).next_due


async def test_an_interval_is_elapsed_time_in_any_zone(house: House, clock: FakeClock) -> None:
    """T-031, T-033: it was silent for as many hours as lie between the zones."""
    every = PlanRequest(schedule_type="interval", interval_seconds=600)
    task = await promise(house, asked=every)
    after(clock, "2026-03-02T08:10")
    await house.fire()
    assert await _moved(house, clock, "America/New_York", task) == clock.now() + timedelta(
        minutes=10
    )


async def test_a_once_task_whose_local_time_has_passed_in_the_new_zone_is_not_lost(
    house: House, clock: FakeClock
) -> None:
    """T-033, T-042."""
    task = await promise(house)
    await _moved(house, clock, "Asia/Tokyo", task)
    after(clock, "2026-03-02T09:00")
    await house.fire()
    assert await house.spoken() == ["⏰ Call Anna"]


async def test_a_moment_in_elapsed_time_stays_in_any_zone(house: House, clock: FakeClock) -> None:
    """T-033: it had been due before, so its local time was taken for the last day."""
    task = await promise(house, asked=DAILY)
    after(clock, "2026-03-02T09:00")
    await house.fire()
    async with house.database.transaction() as tx:
        await house.stores.tasks.change(
            tx,
            Target(task.id, None, Reason("command", task.scope)),
            request=PlanRequest(schedule_type="once", at="in 2 hours"),
        )
    due = clock.now() + timedelta(hours=2)
    assert await _moved(house, clock, "America/New_York", task) == due


async def test_a_sign_that_may_not_count_leaves_it_to_the_owner(
    house: House, clock: FakeClock
) -> None:
    """T-063, T-014: on a reminder of all rooms."""
    task = await promise(house, scope=EVERYWHERE)
    after(clock, "2026-03-02T09:00")
    await house.fire()
    said = await house.one("SELECT id FROM outbox")
    answer = house.stores.occurrences.answer
    async with house.database.transaction() as tx:
        assert await answer(tx, said["id"], "done", by_owner=False) is None
        assert await answer(tx, said["id"], "done", by_owner=True) == task.id
        assert await answer(tx, said["id"], "done", by_owner=True) is None


async def test_undo_brings_a_snoozed_reminder_back_with_its_time(
    house: House, clock: FakeClock
) -> None:
    """T-063: a cancellation by mistake loses no promise; and a snooze can be undone as well."""
    task = await promise(house, asked=DAILY)
    after(clock, "2026-03-02T09:00")
    await house.fire()
    await house.deliver()
    await house.fire()
    snoozed = await do(house, "snooze", task, clock.now() + timedelta(hours=1))
    await do(house, "delete", task)
    await undo_newest(house)
    assert (await now(house, task)).next_due == snoozed.next_due
    await undo_newest(house)
    assert (await now(house, task)).snoozed is None


async def undo_newest(house: House) -> None:
    newest = await house.stores.changes.newest(("task",), f"person:{ANN}")
    assert newest is not None
    async with house.database.transaction() as tx:
        await house.stores.undo.within(tx, newest)


async def test_a_reminder_that_one_room_refused_is_said_in_another(
    house: House, clock: FakeClock
) -> None:
    """T-042: also one that is due no more."""
    task = await promise(house)
    after(clock, "2026-03-02T09:00")
    await house.fire()
    row = await house.next_outgoing()
    assert row is not None
    await house.outbox.mark_refused(row.id, "M_FORBIDDEN")
    await house.fire()
    assert await house.rows("SELECT 1 FROM outbox WHERE state = 'waiting'") == []
    house.speaker.unfit.add(ROOM)
    await talk(house, "!new:test", f"person:{ANN}")
    await house.fire()
    assert await house.deliver("!new:test") == ["⏰ Call Anna"]
    await house.fire()
    assert (await now(house, task)).status == "completed"


async def test_what_was_kept_back_from_a_guest_is_said_when_the_guest_has_left(
    house: House, clock: FakeClock
) -> None:
    """T-013: somebody came in between the promise and its sending."""
    await promise(house)
    after(clock, "2026-03-02T09:00")
    await house.fire()
    row = await house.next_outgoing()
    assert row is not None
    assert row.meant_for == f"person:{ANN}"
    house.speaker.unfit.add(ROOM)
    await house.outbox.mark_refused(row.id, NOT_ALONE)
    await house.fire()
    assert await house.next_outgoing() is None
    house.speaker.unfit.clear()
    await house.fire()
    assert await house.deliver() == ["⏰ Call Anna"]


async def test_a_room_in_which_nobody_has_spoken_yet_will_do(
    house: House, clock: FakeClock
) -> None:
    """T-013: a task of the shell, and the bot was only invited so far."""
    scope = f"person:{BEN}"
    await promise(house, "Feed the cat", scope=scope, room=None)
    house.speaker.rooms[scope] = "!ben:test"
    after(clock, "2026-03-02T09:00")
    await house.fire()
    assert await house.deliver("!ben:test") == ["⏰ Feed the cat"]


async def test_a_run_that_was_to_be_once_and_was_stopped_waits_to_be_resumed(
    house: House, clock: FakeClock
) -> None:
    once = PlanRequest(
        schedule_type="once", at="09:00", execution_mode="autonomous_notify", ai_prompt="Look."
    )
    task = await promise(house, asked=once)
    after(clock, "2026-03-02T09:00")
    await house.fire()
    async with house.database.transaction() as tx:
        [waits] = await house.stores.runs.ready(tx, await house.stores.runs.rooms(tx), 9)
        await house.stores.runs.cancel_run(tx, waits.seq, "it was stopped")
    assert (await now(house, task)).status == "paused"


async def test_a_task_of_a_group_that_became_a_chat_of_two_begins_no_other_branch(
    house: House, clock: FakeClock
) -> None:
    """T-013: it is said in its room, and the conversation that is held there by now goes on."""
    await promise(house, scope=GROUP_SCOPE)
    conversation = await talk(house, ROOM, f"person:{ANN}")  # the others have left
    house.speaker.rooms[GROUP_SCOPE] = ROOM
    branches = await house.rows("SELECT id FROM branches")
    after(clock, "2026-03-02T09:00")
    await house.fire()
    assert await house.deliver() == ["⏰ Call Anna"]
    assert await house.rows("SELECT id FROM branches") == branches
    assert (await house.conversations.get(conversation)).scope == f"person:{ANN}"
