"""Autonomous runs: what a due task works on by itself, and what its room is told of it."""

import json
import shutil
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from tests.world.delegating import call, done, objective
from tests.world.house import ANN, ROOM, House
from tests.world.model import Calls, Fail, Hang, ModelServer, Seen, Step, Text, Use, own_words
from tests.world.promised import (
    GROUP_SCOPE,
    Morning,
    after,
    at_terminal,
    check,
    do,
    ended,
    now,
    occurrences,
    promise,
    talk,
)
from wintermute.config.schema import BudgetSettings
from wintermute.mailbox.outbox import TERMINAL
from wintermute.tasks.tasks import EVERYWHERE


@pytest.fixture
def morning(tmp_path: Path, model: ModelServer) -> Morning:
    return Morning(tmp_path, model)


async def test_a_run_posts_its_result_once(morning: Morning) -> None:
    """T-047, T-041: with the prompt of its scope, and no word but the result."""
    morning.model.script(done("249 euros"))
    async with morning.at_work() as house:
        task = await morning.due(house, check(schedule_type="once", at="09:00"))
        await house.fire()
        assert await house.said(1) == ["249 euros"]
        await house.fire()
        assert await house.spoken() == ["249 euros"]
        assert await occurrences(house) == [("2026-03-02T08:00", "done", 0)]
        assert ((await now(house, task)).status, (await now(house, task)).reason) == (
            "completed",
            "delivered",
        )
        row = await house.one("SELECT result FROM occurrences")
        assert row["result"] == "249 euros"
    [seen] = morning.model.requests
    assert [own_words(message["content"]) for message in seen.messages[1:]] == ["Start."]
    assert "# Active Tasks" in seen.messages[1]["content"]


async def test_a_run_that_never_calls_done_posts_what_it_says(morning: Morning) -> None:
    """L-012, T-047: a small one, once it was asked for `done` and has answered in words again."""
    morning.model.script(Text("I look."), Text("249 euros"), Text("no more"))
    async with morning.at_work(size="small") as house:
        await morning.due(house)
        assert await house.said(1) == ["249 euros"]
        assert [state for _, state, _ in await occurrences(house)] == ["done"]
    assert len(morning.model.requests) == 2


async def test_the_objective_says_what_the_run_should_know(morning: Morning) -> None:
    """T-045, T-049: task, due time, number, the last result, and that it is late."""
    morning.model.script(done("249 euros " * 400), done("229 euros"))
    async with morning.at_work() as house:
        task = await morning.due(house)
        await ended(house)
        after(morning.clock, "2026-03-04T10:00")
        await house.fire()
        await ended(house, 2)
    first, second = (objective(seen) for seen in morning.model.requests)
    assert first.startswith("Compare the prices.")
    assert f"#{task.id} Price check" in first
    assert "Monday, 2026-03-02 09:00 CET" in first
    assert "Run number 1" in first
    assert "no earlier result" in first
    assert "late" not in first
    assert "Run number 2" in second
    assert "it is late now (was due 2026-03-04 09:00, 2 missed)" in second
    assert 1_500 < len(second.split("Last result: ")[1].split("\n\n")[0]) < 1_600


@pytest.mark.parametrize("mode", ["autonomous_notify", "autonomous_silent"])
@pytest.mark.parametrize("result", ["[NO_ACTION]", " [NO_ACTION]\n"])
async def test_no_action_posts_nothing(morning: Morning, mode: str, result: str) -> None:
    """T-049."""
    morning.model.script(done(result))
    async with morning.at_work() as house:
        await morning.due(house, check(mode))
        await ended(house)
        assert await house.spoken() == []


async def test_a_silent_run_keeps_its_result_and_posts_a_failure(morning: Morning) -> None:
    """T-048."""
    morning.model.script(done("all is well"), Fail(400, "no such model"))
    async with morning.at_work() as house:
        task = await morning.due(house, check("autonomous_silent"))
        await ended(house)
        assert await house.spoken() == []
        after(morning.clock, "2026-03-03T09:00")
        await house.fire()
        [said] = await house.said(1)
        assert said.startswith(f"The run of `{task.id}` (Price check) failed: ")
        assert said.endswith("It runs again on Wednesday, 2026-03-04 09:00 CET.")
        results = await house.rows("SELECT result FROM occurrences ORDER BY seq")
        assert results[0]["result"] == "all is well"
        assert "no such model" in results[1]["result"]


async def test_three_failures_in_a_row_pause_the_task_and_are_told(morning: Morning) -> None:
    """T-050: the next occurrence still happens, until then; a success in between counts."""
    morning.model.script(
        Fail(400), done("[NO_ACTION]"), Fail(400), Fail(400), Fail(400), Text("never")
    )
    async with morning.at_work() as house:
        task = await promise(house, "Price check", check())
        for day in range(2, 9):
            after(morning.clock, f"2026-03-0{day}T09:00")
            await house.fire()
            await ended(house, min(day - 1, 5))
        paused = await now(house, task)
        assert (paused.status, paused.failures) == ("paused", 3)
        said = await house.spoken()
        assert len(said) == 4
        assert said[-1].endswith(f"`/tasks resume {task.id}` lets it run again.")
        assert [state for _, state, _ in await occurrences(house)] == [
            *("failed", "done", "failed", "failed", "failed")
        ]
        resumed = await do(house, "resume", task)
        assert (resumed.failures, resumed.status) == (0, "active")


async def test_a_run_that_was_to_be_once_and_failed_is_not_completed(morning: Morning) -> None:
    morning.model.script(Fail(400))
    async with morning.at_work() as house:
        task = await morning.due(house, check(schedule_type="once", at="09:00"))
        [said] = await house.said(1)
        assert "give it a new time" in said
        assert (await now(house, task)).status == "paused"


async def test_one_task_never_runs_twice_at_a_time(morning: Morning) -> None:
    """T-051."""
    morning.model.script(Hang(), done("done"))
    async with morning.at_work() as house:
        await promise(house, "Price check", check())
        for day in (2, 3, 4):
            after(morning.clock, f"2026-03-0{day}T09:00")
            await house.fire()
        assert await occurrences(house) == [
            ("2026-03-02T08:00", "claimed", 3),
            ("2026-03-03T08:00", "missed", 0),
            ("2026-03-04T08:00", "missed", 0),
        ]


async def test_a_run_can_make_and_change_no_schedules(morning: Morning) -> None:
    """T-053: nor can what it hands out; plain tasks it may keep."""
    tried: list[str] = []

    def choose(seen: Seen) -> Step | None:
        results = [m["content"] for m in seen.messages if m["role"] == "tool"]
        if objective(seen) == "child":
            if not results:
                return Calls((Use("task", {"action": "add", "content": "x", **later}),))
            return done(results[0])
        if not results:
            return Calls((
                Use("task", {"action": "add", "content": "x", **later}),
                Use("task", {"action": "update", "id": task.id, "at": "10:00"}),
                Use("task", {"action": "delete", "id": task.id}),
                Use("task", {"action": "pause", "id": task.id}),
                Use("task", {"action": "add", "content": "buy paint"}),
                call("child", mode="full"),
            ))  # fmt: skip
        tried.extend(results)
        return done("[NO_ACTION]")

    later = {"schedule_type": "once", "at": "in 2 hours"}
    morning.model.keyed(choose)
    async with morning.at_work() as house:
        task = await morning.due(house)
        await ended(house)
        assert [task.content for task in await house.stores.tasks.listed(None, "all")] == [
            "Price check",
            "buy paint",
        ]
        assert (await now(house, task)).schedule == "daily at 09:00"
    refused = [result for result in tried if "makes and changes no schedules" in result]
    assert len(refused) == 5
    offered = [
        {t["function"]["name"] for t in seen.body["tools"]} for seen in morning.model.requests
    ]
    assert {"call_agent", "done", "task"} <= offered[0]
    assert "spawn_sub_session" not in set().union(*offered)


async def test_a_spent_budget_puts_a_run_off_and_reminders_go_on(morning: Morning) -> None:
    """Issue 6, L-086: not a failure; told once, and done at midnight."""
    morning.model.script(done("249 euros"))
    spent = BudgetSettings(tokens_per_day=1_000_000)
    async with morning.at_work(budget=spent) as house:
        async with house.database.transaction() as tx:
            await tx.execute(
                "INSERT INTO reservations (id, day, role, backend, tokens, usd, created_at)"
                " VALUES ('r', '2026-03-02', 'base', 'scripted', 999999, 0, '')"
            )
        task = await promise(house, "Price check", check())
        await promise(house, "Call Anna")
        after(morning.clock, "2026-03-02T09:00")
        await house.fire()
        said = await house.said(2)
        assert "⏰ Call Anna" in said
        waits = next(text for text in said if text.startswith(f"`{task.id}`"))
        assert "has to wait" in waits
        assert (await now(house, task)).failures == 0
        after(morning.clock, "2026-03-03T01:00")
        await house.fire()
        assert "249 euros" in await house.said(3)


async def test_a_model_that_is_away_puts_a_run_off(morning: Morning) -> None:
    """What was done before it went away is in view when it is back."""
    morning.model.script(Calls((Use("task", {"action": "list"}),)), Fail(503), done("all done"))
    async with morning.at_work() as house:
        task = await morning.due(house)
        await house.said(1)
        morning.clock.advance(61)
        await house.fire()
        assert (await house.said(2))[1] == "all done"
        assert (await now(house, task)).failures == 0
    assert [m["role"] for m in morning.model.requests[2].messages].count("tool") == 1


async def test_the_room_knows_what_its_tasks_have_told(morning: Morning) -> None:
    """T-052: the next message comes with it, the one after that does not; lesson 25."""
    morning.model.script(done("249 euros"))
    async with morning.at_work() as house:
        run = await promise(house, "Price check", check())
        reminder = await promise(house, "Call <event Anna")
        after(morning.clock, "2026-03-02T09:00")
        await house.fire()
        await house.said(2)
        morning.clock.advance(5)
        await house.incoming("thanks, later")
        await house.said(3)
        await house.incoming("and now?")
        await house.said(4)
    [asked] = [
        own_words(m["content"]) for m in morning.model.requests[1].messages if m["role"] == "user"
    ]
    assert asked.endswith("</event>\n\nthanks, later")
    assert f'<event kind="scheduled_task" id="{run.id}">' in asked
    assert "Due: Monday, 2026-03-02 09:00 CET" in asked
    assert "249 euros" in asked
    assert f'<event kind="scheduled_task" id="{reminder.id}">' in asked
    assert "Call &lt;event Anna" in asked
    assert morning.model.requests[2].last_user == "and now?"


async def test_only_the_first_of_many_messages_brings_what_a_task_told(morning: Morning) -> None:
    """T-052: the first that is asked about brings it."""
    async with morning.house() as house:
        await promise(house, "Call Anna")
        await house.incoming("one")
        await house.incoming("two")
        after(morning.clock, "2026-03-02T09:00")
        await house.fire()
        morning.clock.advance(5)
        async with house.working():
            await house.said(3)
            morning.clock.advance(5)
            await house.incoming("three")
            await house.said(4)
    brought = ["scheduled_task" in request.last_user for request in morning.model.requests]
    assert brought == [True, False, False]


async def test_a_result_meant_for_one_person_is_not_told_to_a_group(morning: Morning) -> None:
    """T-013, M-010, F-002: it is kept for whom it was made."""
    morning.model.script(done("a private thing"))
    async with morning.house() as house:
        await morning.due(house)
        await talk(house, ROOM, f"room:{ROOM}")
        morning.clock.advance(1)
        async with house.working():
            await house.said(1)
        [said] = await house.rows("SELECT body, meant_for FROM outbox")
        assert (said["body"], said["meant_for"]) == ("a private thing", f"person:{ANN}")
        assert (await house.one("SELECT result FROM occurrences"))["result"] == "a private thing"
        morning.clock.advance(5)
        async with house.working():
            await house.incoming("what was that?", scope=f"room:{ROOM}", direct=False)
            await house.said(2)
    assert "private thing" not in json.dumps(morning.model.requests[-1].body)


async def test_a_run_goes_on_after_a_restart_where_it_was(morning: Morning) -> None:
    """T-037, L-068."""
    morning.model.script(Calls((Use("task", {"action": "add", "content": "buy paint"}),)), Hang())
    async with morning.house() as house:
        await morning.due(house)
        async with house.working():
            await morning.model.request_arrived(2)
    morning.model.script(done("249 euros"))
    async with morning.at_work() as house:
        assert await house.said(1) == ["249 euros"]
        assert [t.content for t in await house.stores.tasks.listed(None)].count("buy paint") == 1


async def test_a_run_that_three_crashes_interrupted_fails_and_is_told(morning: Morning) -> None:
    """L-068: what a kill leaves behind is a copy of the folder as it was at that moment."""
    morning.model.keyed(lambda _: Hang())
    folders = [morning.folder / str(n) for n in range(4)]
    folders[0].mkdir()
    for n, (folder, after_kill) in enumerate(pairwise(folders)):
        async with replace(morning, folder=folder).house() as house:
            if not n:
                await morning.due(house)
            async with house.working():
                await morning.model.request_arrived(n + 1)
                shutil.copytree(folder, after_kill)
    async with replace(morning, folder=folders[3]).at_work() as house:
        [said] = await house.said(1)
        assert "failed: it was interrupted three times." in said
    assert len(morning.model.requests) == 3


async def test_stop_ends_the_runs_of_its_room(morning: Morning) -> None:
    """L-023: it is neither a failure nor begun again."""
    morning.model.script(Hang(), done("of the other"))
    async with morning.house() as house:
        async with house.working():
            task = await morning.due(house)
            await morning.model.request_arrived(1)
            await house.incoming("/stop")
            assert await house.said(1) == ["Stopped."]
        other = await promise(house, "Another check", check(at="10:00"))
        after(morning.clock, "2026-03-02T10:00")
        await house.fire()
        async with house.working():
            assert await house.said(2) == ["Stopped.", "of the other"]
        states = {
            row["task_id"]: row["state"]
            for row in await house.rows("SELECT task_id, state FROM occurrences")
        }
        assert states == {task.id: "missed", other.id: "done"}
        assert (await now(house, task)).failures == 0
        row = await house.one("SELECT state, reason FROM casts ORDER BY seq LIMIT 1")
        assert row == {"state": "truncated", "reason": "stopped"}


async def test_a_task_that_was_deleted_meanwhile_posts_nothing(morning: Morning) -> None:
    morning.model.script(done("of the other"))
    async with morning.house() as house:
        task = await promise(house, "Price check", check())
        await promise(house, "Another check", check())
        after(morning.clock, "2026-03-02T09:00")
        await house.fire()
        await do(house, "delete", task)
        async with house.working():
            assert await house.said(1) == ["of the other"]
        assert await occurrences(house) == [
            ("2026-03-02T08:00", "missed", 0),
            ("2026-03-02T08:00", "done", 0),
        ]


async def test_a_model_that_is_long_away_does_not_fill_a_conversation(morning: Morning) -> None:
    """Lesson 25: each attempt began with a word of its own."""
    morning.model.script(*[Fail(503)] * 5, done("all done"))
    async with morning.at_work() as house:
        await promise(house, "Price check", check())
        after(morning.clock, "2026-03-02T09:00")
        for attempt in range(1, 7):
            await house.fire()
            await morning.model.request_arrived(attempt)
            await house.until(lambda n=attempt: _tried(house, n))  # type: ignore[misc]  # bound now
            morning.clock.advance(61)
        assert (await house.spoken())[-1] == "all done"
    assert [own_words(m["content"]) for m in morning.model.requests[-1].messages[1:]] == ["Start."]


async def _tried(house: House, n: int) -> bool:
    row = await house.one("SELECT count(*) AS n FROM casts WHERE state <> 'running'")
    return bool(row["n"] >= n)


@pytest.mark.parametrize("put_off", [False, True])
async def test_a_run_of_a_task_of_all_rooms_keeps_what_it_knows_when_its_chat_becomes_a_group(
    morning: Morning, put_off: bool
) -> None:
    """T-013, T-014, M-010: it read the memory of one person, and went on as if it had not."""
    morning.model.script(
        Calls((Use("task", {"action": "list"}),)), *([Fail(503)] if put_off else [Hang()])
    )
    async with morning.house() as house:
        await morning.due(house, check(), scope=EVERYWHERE)
        async with house.working():
            await morning.model.request_arrived(2)
            if put_off:
                await house.until(lambda: _tried(house, 1))
    morning.clock.advance(61)
    morning.model.script(done("a private thing"))
    async with morning.house() as house:
        await talk(house, ROOM, GROUP_SCOPE)
        async with house.working():
            await ended(house)
        [said] = await house.rows("SELECT meant_for FROM outbox WHERE body LIKE '%private%'")
        assert said["meant_for"] == f"person:{ANN}"


async def test_a_run_that_the_terminal_began_is_ended_by_the_daemon(morning: Morning) -> None:
    """T-037, T-043: else it waits for the next chat at the terminal, and all that is due later with it."""
    morning.model.script(Hang())
    async with morning.house() as house:
        await at_terminal(house)
        await morning.due(house, check(), room=TERMINAL)
        async with house.working():
            await morning.model.request_arrived(1)
    morning.model.script(done("249 euros"))
    async with morning.house() as house:
        await talk(house)
        house.speaker.elsewhere.add(TERMINAL)
        async with house.working():
            await house.fire()
            assert await house.said(1) == ["249 euros"]
        assert await occurrences(house) == [("2026-03-02T08:00", "done", 0)]


@pytest.mark.parametrize("action", ["pause", "delete", "complete"])
async def test_a_run_that_fails_too_late_says_nothing_wrong(morning: Morning, action: str) -> None:
    """T-050: neither that it was paused by us, nor anything of a deleted task."""
    morning.model.script(Hang())
    async with morning.house() as house:
        task = await morning.due(house)
        async with house.working():
            await morning.model.request_arrived(1)
        changed = await do(house, action, task, *(["bought"] if action == "complete" else []))
    morning.model.script(Fail(400))
    async with morning.house() as house:
        async with house.working():
            await ended(house)
        said = await house.spoken()
        assert "paused it" not in "".join(said)
        assert len(said) == (0 if action == "delete" else 1)
        assert (await now(house, task)).status == changed.status


@pytest.mark.slow
async def test_a_run_that_was_interrupted_too_often_is_told_at_once(morning: Morning) -> None:
    """L-068, T-050: not when somebody happens to say something."""
    morning.model.script(Hang(), Hang(), Hang())
    async with morning.house() as house:
        await morning.due(house)
        for times in range(1, 4):
            async with house.working():
                await morning.model.request_arrived(times)
        house.speaker.noted.clear()
        async with house.working():
            await ended(house)
            await house.until(lambda: _spoken_in(house))


async def _spoken_in(house: House) -> bool:
    async with house.database.transaction() as tx:
        held = await house.conversations.of_room(tx, ROOM)
    return held is not None and ("speak", held.id) in house.speaker.noted


async def test_a_long_result_is_told_in_short_to_the_next_message(morning: Morning) -> None:
    """T-052, lesson 25: the person was shown all of it; the window of the model is not for that."""
    morning.model.script(done("word " * 20_000))
    async with morning.at_work() as house:
        await morning.due(house)
        await house.said(1)
        morning.clock.advance(5)
        await house.incoming("thanks")
        await house.said(2)
    assert len(morning.model.requests[-1].last_user) < 10_000


async def test_the_next_run_knows_the_last_result_there_was(morning: Morning) -> None:
    """T-049: that there was nothing to tell in between is none."""
    async with morning.house() as house:
        await promise(house, asked=check())
        for day, result in ((2, "249 euros"), (3, "[NO_ACTION]"), (4, "")):
            after(morning.clock, f"2026-03-0{day}T09:00")
            await house.fire()
            async with house.database.transaction() as tx:
                [waits] = await house.stores.runs.ready(tx, await house.stores.runs.rooms(tx), 9)
                if result:
                    await house.stores.runs.done(tx, waits, result, None)
                else:
                    assert await house.stores.runs.before(tx, waits) == (2, "249 euros")
