"""Nights and tasks: the assistant's own are tidied, and a person's are asked about (T-056 to T-061)."""

import asyncio
import json
from pathlib import Path

import pytest

from tests.world.model import ModelServer, Seen, Slow, Step, Text
from tests.world.tidied import OWNER, Tidied, open_nights, tally
from wintermute.changes.change_sets import Cause, Reason
from wintermute.messages import Json
from wintermute.tasks.schedules import NOTHING, PlanRequest
from wintermute.tasks.tasks import Target, Task

CLUB = "room:!club:test"
DAILY = PlanRequest(schedule_type="daily", at="09:00")


async def added(
    night: Tidied,
    content: str,
    *,
    by: Cause = "tool",
    request: PlanRequest = NOTHING,
    scope: str = OWNER,
) -> Task:
    async with night.house.database.transaction() as tx:
        return await night.house.stores.tasks.add(
            tx, Reason(by, scope), content, scope=scope, request=request
        )


async def now(night: Tidied, task: Task) -> Task:
    return await night.house.stores.tasks.get(task.id, None)


def says(*actions: Json) -> Text:
    return Text(json.dumps({"actions": [*actions]}))


def done(task: Task) -> Json:
    return {"task_id": task.id, "action": "complete", "reason": "it says so"}


def worded(task: Task, content: str) -> Json:
    return {"task_id": task.id, "action": "update", "content": content}


async def test_one_call_lists_the_tasks_and_what_changed_nothing_is_not_asked_again(
    tmp_path: Path,
) -> None:
    """T-056: one call with at least one active task; none without, and none about the same."""
    async with ModelServer() as model, open_nights(tmp_path, model) as night:
        await night.night("tasks")
        assert model.requests == []
        task = await added(night, "Order red bricks")
        model.script(says({"task_id": task.id, "action": "keep"}))
        await night.night("tasks")
        assert f"[P5] #{task.id}: Order red bricks" in model.requests[0].last_user
        await night.night("tasks")
        assert len(model.requests) == 1
        assert await night.items() == []


async def test_the_assistants_own_unscheduled_task_is_completed_at_once(tmp_path: Path) -> None:
    """T-058, T-059: with the way back, in the change set of the night."""
    async with ModelServer() as model, open_nights(tmp_path, model) as night:
        task = await added(night, "Find out about bricks (done, they are red)")
        model.script(says(done(task)))
        ran = await night.night("tasks")
        assert (await now(night, task)).status == "completed"
        assert (tally(ran, "tasks").before, tally(ran, "tasks").after) == (1, 0)
        [item] = await night.items("done")
        found = await night.house.stores.changes.get(item.change_set or "")
        assert found is not None
        assert (found.cause, found.scope) == ("night", OWNER)
        await night.take_back(item)
        assert (await now(night, task)).status == "active"


@pytest.mark.parametrize(
    ("by", "request_"),
    [("command", NOTHING), ("tool", DAILY), ("command", DAILY), ("import", NOTHING)],
)
async def test_a_persons_task_or_a_scheduled_one_is_only_asked_about(
    tmp_path: Path, by: Cause, request_: PlanRequest
) -> None:
    """T-058, M-079: the model's word alone must not cancel a reminder; a yes does it."""
    async with ModelServer() as model, open_nights(tmp_path, model) as night:
        task = await added(night, "Water the plants", by=by, request=request_)
        model.script(says(done(task)))
        await night.night("tasks")
        assert (await now(night, task)).status == "active"
        [item] = await night.items("open")
        assert item.scope == OWNER
        await night.night("tasks")
        assert len(model.requests) == 1
        assert await night.yes(item)
        assert (await now(night, task)).status == "completed"


async def test_an_update_changes_wording_and_priority_and_nothing_else(tmp_path: Path) -> None:
    """T-059: never schedule, mode or scope; the old values are in the history and come back."""
    async with ModelServer() as model, open_nights(tmp_path, model) as night:
        task = await added(night, "Water the plants, all of them", request=DAILY)
        wanted = worded(task, "Water the plants") | {
            "priority": 2,
            "schedule_type": "once",
            "at": "today 18:00",
            "scope": "global",
            "execution_mode": "ai_task",
        }
        model.script(says(wanted))
        await night.night("tasks")
        after = await now(night, task)
        assert (after.content, after.priority) == ("Water the plants", 2)
        assert (after.plan, after.scope, after.schedule) == (task.plan, OWNER, "daily at 09:00")
        [item] = await night.items("done")
        await night.take_back(item)
        assert (await now(night, task)).content == task.content
        await night.night("tasks")
        assert len(model.requests) == 1


async def test_a_persons_wording_is_theirs(tmp_path: Path) -> None:
    """M-079: a night asks before it words a person's task anew."""
    async with ModelServer() as model, open_nights(tmp_path, model) as night:
        task = await added(night, "Water the plants, all of them", by="command")
        model.script(says(worded(task, "Water the plants")))
        await night.night("tasks")
        assert (await now(night, task)).content == task.content
        assert len(await night.items("open")) == 1


async def test_an_update_that_loses_something_is_asked_about_and_no_task_ends_for_it(
    tmp_path: Path,
) -> None:
    """T-058: what says the same as another does so only once that other was reworded."""
    async with ModelServer() as model, open_nights(tmp_path, model) as night:
        bricks = await added(night, "Order 12 red bricks at Huber's, not the grey ones")
        twin = await added(night, "Buy red bricks at Huber's")
        model.script(says(done(twin), worded(bricks, "Order red bricks")))
        await night.night("tasks")
        assert [item.plan["task"] for item in await night.items("open")] == [bricks.id, twin.id]
        assert (await now(night, twin)).status == "active"


async def test_a_wording_that_says_what_no_task_says_is_asked_about(tmp_path: Path) -> None:
    """T-059: what a model adds by itself is no wording of ours."""
    async with ModelServer() as model, open_nights(tmp_path, model) as night:
        task = await added(night, "Order chairs")
        model.script(
            says(worded(task, "Order chairs, buy a yacht, send money to Zurich, sell all"))
        )
        await night.night("tasks")
        assert (await now(night, task)) == task
        assert len(await night.items("open")) == 1


async def test_valid_actions_apply_beside_invalid_ones(tmp_path: Path) -> None:
    """T-057: unknown id, unknown action, another scope's task, a list, an invented detail."""
    async with ModelServer() as model, open_nights(tmp_path, model) as night:
        task = await added(night, "Order all of the red bricks please")
        other = await added(night, "Order more chairs")
        club = await added(night, "Clean the boat", scope=CLUB)
        model.script(
            says(
                {"task_id": "task_00000000", "action": "complete", "reason": "x"},
                done(club),
                {"task_id": task.id, "action": "explode"},
                {"task_id": other.id, "action": "update", "priority": 77},
                worded(task, "Order the red bricks"),
            ),
            says(),
        )
        ran = await night.night("tasks", OWNER)
        assert (await now(night, task)).content == "Order the red bricks"
        assert (await now(night, other)) == other
        assert (await now(night, club)).status == "active"
        assert "names no task" in tally(ran, "tasks").note


@pytest.mark.parametrize("bad", ["", "no JSON", "[]", "null", '{"actions": 5}', '{"actions": '])
async def test_an_answer_that_cannot_be_read_changes_nothing(tmp_path: Path, bad: str) -> None:
    """T-057, M-072: told once, then left, and not asked again unchanged."""
    async with ModelServer() as model, open_nights(tmp_path, model) as night:
        task = await added(night, "Order red bricks")
        model.keyed(lambda seen: Text(bad))
        ran = await night.night("tasks")
        assert "stay as they are" in tally(ran, "tasks").note
        asked = len(model.requests)
        await night.night("tasks")
        assert len(model.requests) == asked
        assert (await now(night, task)) == task


async def test_a_task_that_was_changed_during_the_call_is_left_alone(tmp_path: Path) -> None:
    """T-060: the action on it is dropped, and what relied on it too."""
    async with ModelServer() as model, open_nights(tmp_path, model) as night:
        bricks = await added(night, "Order all of the red bricks")
        twin = await added(night, "Buy the red bricks")
        gate = asyncio.Event()
        model.script(Slow(gate, says(worded(bricks, "Order the red bricks"), done(twin))))
        async with asyncio.TaskGroup() as group:
            group.create_task(night.night("tasks"))
            await model.request_arrived(1)
            async with night.house.database.transaction() as tx:
                target = Target(bricks.id, OWNER, Reason("command", OWNER))
                await night.house.stores.tasks.change(tx, target, content="Order grey bricks")
            gate.set()
        assert (await now(night, bricks)).content == "Order grey bricks"
        assert (await now(night, twin)).status == "active"
        assert {item.state for item in await night.items()} == {"outdated"}


async def test_each_scope_is_asked_about_its_own_tasks_alone(tmp_path: Path) -> None:
    """T-015, M-010: what is shown everywhere is the owner's."""
    async with ModelServer() as model, open_nights(tmp_path, model) as night:
        await added(night, "Order red bricks")
        await added(night, "Clean the boat", scope=CLUB)
        await added(night, "Say hello to all", scope="global")
        seen: list[str] = []

        def answer(request: Seen) -> Step:
            seen.append(request.last_user)
            return says()

        model.keyed(answer)
        await night.night("tasks")
        assert ["bricks" in text for text in seen] == [True, False]
        assert ["boat" in text for text in seen] == [False, True]
        assert ["hello" in text for text in seen] == [True, False]


async def test_a_small_model_only_proposes(tmp_path: Path) -> None:
    """Issue 21: a backend of `size: small` only proposes."""
    async with ModelServer() as model, open_nights(tmp_path, model, size="small") as night:
        task = await added(night, "Find out about bricks (done)")
        model.keyed(lambda seen: says(done(task)))
        await night.night("tasks")
        assert (await now(night, task)).status == "active"
        assert len(await night.items("open")) == 1
