"""What a reviewer found: promises that would have been lost, doubled, told to others, or waited for in a circle."""

from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from tests.world.clock import FakeClock
from tests.world.delegating import done
from tests.world.house import ANN, ROOM, House, open_house
from tests.world.model import Calls, Fail, Hang, ModelServer, Use, own_words
from tests.world.promised import (
    DAILY,
    MORNING,
    after,
    check,
    do,
    ended,
    now,
    occurrences,
    open_with_tools,
    promise,
    talk,
)
from wintermute.changes.change_sets import Reason
from wintermute.ids import new_id
from wintermute.mailbox.outbox import NOT_ALONE, TERMINAL
from wintermute.owner import Owner
from wintermute.tasks.schedules import PlanRequest
from wintermute.tasks.tasks import EVERYWHERE, Target, Task, Tasks

GROUP = f"room:{ROOM}"
BEN = "@ben:test"


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(MORNING)


@pytest.fixture
async def house(tmp_path: Path, clock: FakeClock) -> AsyncIterator[House]:
    async with open_house(tmp_path, None, clock=clock) as house:
        await talk(house)
        yield house


async def test_a_run_that_waits_for_a_free_place_does_not_ring_for_ever(
    house: House, clock: FakeClock
) -> None:
    """Issue 6, item 3: what was put off until now and cannot begin yet is no reason to look at once."""
    await promise(house, asked=check())
    after(clock, "2026-03-02T09:00")
    await house.fire()
    row = await house.one("SELECT seq FROM occurrences")
    async with house.database.transaction() as tx:
        await house.stores.runs.put_off(tx, row["seq"], clock.monotonic() + 60)
        look = await house.runs.ready(tx, 0)
        assert look.again == clock.now() + timedelta(seconds=60)
        clock.advance(61)
        look = await house.runs.ready(tx, 0)
        assert look.again is None


async def test_a_model_that_is_away_for_long_does_not_fill_the_conversation_of_a_run(
    tmp_path: Path, model: ModelServer, clock: FakeClock
) -> None:
    """Lesson 25: each attempt began with a word of its own."""
    model.script(*[Fail(503)] * 5, done("all done"))
    async with open_with_tools(tmp_path, model, clock) as house, house.working():
        await promise(house, "Price check", check())
        after(clock, "2026-03-02T09:00")
        for attempt in range(1, 7):
            await house.fire()
            await model.request_arrived(attempt)
            await house.until(lambda n=attempt: _tried(house, n))  # type: ignore[misc]  # bound now
            clock.advance(61)
        assert (await house.spoken())[-1] == "all done"
    assert [own_words(m["content"]) for m in model.requests[-1].messages[1:]] == ["Start."]


async def _tried(house: House, n: int) -> bool:
    row = await house.one("SELECT count(*) AS n FROM casts WHERE state <> 'running'")
    return bool(row["n"] >= n)


@pytest.mark.parametrize("put_off", [False, True])
async def test_a_run_of_a_task_of_all_rooms_keeps_what_it_knows_when_its_chat_becomes_a_group(
    tmp_path: Path, model: ModelServer, clock: FakeClock, put_off: bool
) -> None:
    """T-013, T-014, M-010: it read the memory of one person, and went on as if it had not."""
    model.script(Calls((Use("task", {"action": "list"}),)), *([Fail(503)] if put_off else [Hang()]))
    async with open_with_tools(tmp_path, model, clock) as house:
        await promise(house, "Price check", check(), scope=EVERYWHERE)
        after(clock, "2026-03-02T09:00")
        await house.fire()
        async with house.working():
            await model.request_arrived(2)
            if put_off:
                await house.until(lambda: _tried(house, 1))
    clock.advance(61)
    model.script(done("a private thing"))
    async with open_with_tools(tmp_path, model, clock) as house:
        await talk(house, ROOM, GROUP)
        async with house.working():
            await ended(house)
        [said] = await house.rows("SELECT meant_for FROM outbox WHERE body LIKE '%private%'")
        assert said["meant_for"] == f"person:{ANN}"


async def test_a_run_that_the_terminal_began_is_ended_by_the_daemon(
    tmp_path: Path, model: ModelServer, clock: FakeClock
) -> None:
    """T-037, T-043: else it waits for the next chat at the terminal, and all that is due later with it."""
    model.script(Hang())
    async with open_with_tools(tmp_path, model, clock) as house:
        await _at_terminal(house)
        await promise(house, "Price check", check(), room=TERMINAL)
        after(clock, "2026-03-02T09:00")
        await house.fire()
        async with house.working():
            await model.request_arrived(1)
    model.script(done("249 euros"))
    async with open_with_tools(tmp_path, model, clock) as house:
        await talk(house)
        house.speaker.elsewhere.add(TERMINAL)
        async with house.working():
            await house.fire()
            assert await house.said(1) == ["249 euros"]
        assert await occurrences(house) == [("2026-03-02T08:00", "done", 0)]


async def _at_terminal(house: House) -> None:
    async with house.database.transaction() as tx:
        await house.conversations.in_room(tx, TERMINAL, f"person:{ANN}", "terminal")


async def test_what_the_terminal_did_not_show_does_not_silence_a_series(
    tmp_path: Path, clock: FakeClock
) -> None:
    """T-043: the chat at the terminal was closed in the moment the reminder was due."""
    async with open_house(tmp_path, None, clock=clock) as house:
        await _at_terminal(house)
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
    await house.outbox.stuck(row.id, "M_FORBIDDEN")
    async with house.database.transaction() as tx:
        await house.stores.known.seen(tx, ROOM, encrypted=False)
        await house.stores.known.left(tx, ROOM)
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
            await house.outbox.stuck(row.id, "M_FORBIDDEN")
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


@pytest.mark.parametrize("action", ["pause", "delete", "complete"])
async def test_a_run_that_fails_after_its_task_was_changed_says_nothing_wrong(
    tmp_path: Path, model: ModelServer, clock: FakeClock, action: str
) -> None:
    """T-050: neither that it was paused by us, nor anything of a deleted task."""
    model.script(Hang())
    async with open_with_tools(tmp_path, model, clock) as house:
        task = await promise(house, "Price check", check())
        after(clock, "2026-03-02T09:00")
        await house.fire()
        async with house.working():
            await model.request_arrived(1)
        changed = await do(house, action, task, *(["bought"] if action == "complete" else []))
    model.script(Fail(400))
    async with open_with_tools(tmp_path, model, clock) as house:
        async with house.working():
            await ended(house)
        said = await house.spoken()
        assert "paused it" not in "".join(said)
        assert len(said) == (0 if action == "delete" else 1)
        assert (await now(house, task)).status == changed.status


@pytest.mark.slow
async def test_a_run_that_was_interrupted_too_often_is_told_at_once(
    tmp_path: Path, model: ModelServer, clock: FakeClock
) -> None:
    """L-068, T-050: not when somebody happens to say something."""
    model.script(Hang(), Hang(), Hang())
    async with open_with_tools(tmp_path, model, clock) as house:
        await promise(house, "Price check", check())
        after(clock, "2026-03-02T09:00")
        await house.fire()
        for times in range(1, 4):
            async with house.working():
                await model.request_arrived(times)
        house.speaker.noted.clear()
        async with house.working():
            await ended(house)
            await house.until(lambda: _spoken_in(house))


async def _spoken_in(house: House) -> bool:
    async with house.database.transaction() as tx:
        held = await house.conversations.of_room(tx, ROOM)
    return held is not None and ("speak", held.id) in house.speaker.noted


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


async def test_a_long_result_is_told_in_short_to_the_next_message(
    tmp_path: Path, model: ModelServer, clock: FakeClock
) -> None:
    """T-052, lesson 25: the person was shown all of it; the window of the model is not for that."""
    model.script(done("word " * 20_000))
    async with open_with_tools(tmp_path, model, clock) as house, house.working():
        await promise(house, "Price check", check())
        after(clock, "2026-03-02T09:00")
        await house.fire()
        await house.said(1)
        clock.advance(5)
        await house.incoming("thanks")
        await house.said(2)
    assert len(model.requests[-1].last_user) < 10_000


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
    await house.outbox.stuck(row.id, "M_FORBIDDEN")
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
    await house.outbox.stuck(row.id, NOT_ALONE)
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


async def test_the_next_run_knows_the_last_result_there_was(house: House, clock: FakeClock) -> None:
    """T-049: that there was nothing to tell in between is none."""
    run = PlanRequest(
        schedule_type="daily", at="09:00", execution_mode="autonomous_notify", ai_prompt="Look."
    )
    await promise(house, asked=run)
    for day, result in ((2, "249 euros"), (3, "[NO_ACTION]"), (4, "")):
        after(clock, f"2026-03-0{day}T09:00")
        await house.fire()
        async with house.database.transaction() as tx:
            [waits] = await house.stores.runs.ready(tx, await house.stores.runs.rooms(tx), 9)
            if result:
                await house.stores.runs.done(tx, waits, result, None)
            else:
                assert await house.stores.runs.before(tx, waits) == (2, "249 euros")


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
        await house.stores.runs.dropped(tx, waits.seq, "it was stopped")
    assert (await now(house, task)).status == "paused"


async def test_a_task_of_a_group_that_became_a_chat_of_two_begins_no_other_branch(
    house: House, clock: FakeClock
) -> None:
    """T-013: it is said in its room, and the conversation that is held there by now goes on."""
    await promise(house, scope=GROUP)
    conversation = await talk(house, ROOM, f"person:{ANN}")  # the others have left
    house.speaker.rooms[GROUP] = ROOM
    branches = await house.rows("SELECT id FROM branches")
    after(clock, "2026-03-02T09:00")
    await house.fire()
    assert await house.deliver() == ["⏰ Call Anna"]
    assert await house.rows("SELECT id FROM branches") == branches
    assert (await house.conversations.get(conversation)).scope == f"person:{ANN}"
