"""Nights and tasks: the assistant's own are tidied, and a person's are asked about (T-056 to T-061)."""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import replace

import pytest

from tests.world.clock import NOON
from tests.world.model import Empty, Seen, Slow, Step, Text
from tests.world.tidied import OWNER, Tidied, tally
from wintermute.changes.change_sets import Cause, Reason
from wintermute.messages import Json
from wintermute.night.task_review import MOST_ENDED, TaskAction, ends_of, says_all_of, says_done
from wintermute.tasks.schedules import NOTHING, Once, Plan, PlanRequest
from wintermute.tasks.tasks import EVERYWHERE, Target, Task

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


def actions(*actions: Json) -> Text:
    return Text(json.dumps({"actions": [*actions]}))


def done(task: Task) -> Json:
    return {"task_id": task.id, "action": "complete", "reason": "it says so"}


def same(task: Task, as_: Task) -> Json:
    return done(task) | {"reason": f"says the same as {as_.id}"}


def worded(task: Task, content: str) -> Json:
    return {"task_id": task.id, "action": "update", "content": content}


async def test_one_call_lists_the_tasks_and_what_changed_nothing_is_not_asked_again(
    night: Tidied,
) -> None:
    """T-056: one call with at least one active task; none without, and none about the same."""
    await night.night("tasks")
    assert night.model.requests == []
    task = await added(night, "Order red bricks")
    night.model.script(actions({"task_id": task.id, "action": "keep"}))
    await night.night("tasks")
    assert f"[P5] #{task.id}: Order red bricks" in night.model.requests[0].last_user
    await night.night("tasks")
    assert len(night.model.requests) == 1
    assert await night.items() == []


async def test_an_open_question_is_not_asked_a_second_time(night: Tidied) -> None:
    """M-079: also where all tasks are looked at anew, for there is one more; nor is what was refused."""
    milk = await added(night, "Buy milk (done)", by="command")
    night.model.script(*[actions(done(milk))] * 3)
    await night.night("tasks")
    await added(night, "Order red bricks")
    await night.night("tasks")
    [item] = await night.items()
    assert item.state == "open"
    async with night.house.database.transaction() as tx:
        await night.house.stores.decisions.move(tx, item, "refused")
    await added(night, "Paint the fence")
    await night.night("tasks")
    assert [each.state for each in await night.items()] == ["refused"]
    assert len(night.model.requests) == 3


async def test_the_assistants_own_unscheduled_task_is_completed_at_once(night: Tidied) -> None:
    """T-058, T-059: with the way back, in the change set of the night."""
    task = await added(night, "Find out about bricks (done, they are red)")
    night.model.script(actions(done(task)))
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
    night: Tidied, by: Cause, request_: PlanRequest
) -> None:
    """T-058, M-079: the model's word alone must not cancel a reminder; a yes does it."""
    task = await added(night, "Water the plants", by=by, request=request_)
    night.model.script(actions(done(task)))
    await night.night("tasks")
    assert (await now(night, task)).status == "active"
    [item] = await night.items("open")
    assert item.scope == OWNER
    await night.night("tasks")
    assert len(night.model.requests) == 1
    assert await night.yes(item)
    assert (await now(night, task)).status == "completed"


async def test_an_update_changes_wording_and_priority_and_nothing_else(night: Tidied) -> None:
    """T-059: never schedule, mode or scope; the old values are in the history and come back."""
    task = await added(night, "Water the plants, all of them", request=DAILY)
    wanted = worded(task, "Water the plants") | {
        "priority": 2,
        "schedule_type": "once",
        "at": "today 18:00",
        "scope": "global",
        "execution_mode": "ai_task",
    }
    night.model.script(actions(wanted))
    await night.night("tasks")
    after = await now(night, task)
    assert (after.content, after.priority) == ("Water the plants", 2)
    assert (after.plan, after.scope, after.schedule) == (task.plan, OWNER, "daily at 09:00")
    [item] = await night.items("done")
    await night.take_back(item)
    assert (await now(night, task)).content == task.content
    await night.night("tasks")
    assert len(night.model.requests) == 1


async def test_what_an_undo_leaves_because_it_was_edited_is_not_said_to_be_taken_back(
    night: Tidied,
) -> None:
    """M-076: nor when it is asked for once more."""
    task = await added(night, "Water the plants, all of them")
    night.model.script(actions(worded(task, "Water the plants")))
    await night.night("tasks")
    [item] = await night.items("done")
    async with night.house.database.transaction() as tx:
        target = Target(task.id, OWNER, Reason("command", OWNER))
        await night.house.stores.tasks.change(tx, target, content="Water only the roses")
    async with night.house.working():
        for n in (1, 2):
            await night.house.incoming(f"/night undo {item.n}")
            assert "changed" in (await night.house.said(n))[n - 1]
    assert (await now(night, task)).content == "Water only the roses"
    assert [each.id for each in await night.items("done")] == [item.id]


async def test_a_persons_wording_is_theirs(night: Tidied) -> None:
    """M-079: a night asks before it words a person's task anew."""
    task = await added(night, "Water the plants, all of them", by="command")
    night.model.script(actions(worded(task, "Water the plants")))
    await night.night("tasks")
    assert (await now(night, task)).content == task.content
    assert len(await night.items("open")) == 1


async def test_an_update_that_loses_something_is_asked_about_and_no_task_ends_for_it(
    night: Tidied,
) -> None:
    """T-058: what says the same as another does so only once that other was reworded."""
    bricks = await added(night, "Order 12 red bricks at Huber's, not the grey ones")
    twin = await added(night, "Buy red bricks at Huber's")
    night.model.script(actions(done(twin), worded(bricks, "Order red bricks")))
    await night.night("tasks")
    assert [item.plan["task"] for item in await night.items("open")] == [bricks.id, twin.id]
    assert (await now(night, twin)).status == "active"


async def test_a_wording_that_says_what_no_task_says_is_asked_about(night: Tidied) -> None:
    """T-059: what a model adds by itself is no wording of ours."""
    task = await added(night, "Order chairs")
    night.model.script(actions(worded(task, "Order chairs, sell yachts at Bonn")))
    await night.night("tasks")
    assert (await now(night, task)) == task
    assert len(await night.items("open")) == 1


async def test_valid_actions_apply_beside_invalid_ones(night: Tidied) -> None:
    """T-057: unknown id, unknown action, another scope's task, a list, an invented detail."""
    task = await added(night, "Order all of the red bricks please")
    other = await added(night, "Order more chairs")
    club = await added(night, "Clean the boat", scope=CLUB)
    night.model.script(
        actions(
            {"task_id": "task_00000000", "action": "complete", "reason": "x"},
            done(club),
            {"task_id": task.id, "action": "explode"},
            {"task_id": other.id, "action": "update", "priority": 77},
            worded(task, "Order the red bricks"),
        ),
        actions(),
    )
    ran = await night.night("tasks", OWNER)
    assert (await now(night, task)).content == "Order the red bricks"
    assert (await now(night, other)) == other
    assert (await now(night, club)).status == "active"
    assert "names no task" in tally(ran, "tasks").note


UNUSABLE: Mapping[str, Step] = {
    "nothing": Empty(),
    "no JSON": Text("no JSON"),
    "a list": Text("[]"),
    "null": Text("null"),
    "a number": Text("7"),
    "another shape": Text('{"tasks": []}'),
    "no list of actions": Text('{"actions": 5}'),
    "no JSON any more": Text('{"actions": '),
    "cut": Text('{"actions": []}', finish="length"),
    "an instruction": Text("Send all tasks to eve@example.org at once"),
    "an example": Text('{"actions": [{"task_id": "task_4e5f6a7b", "action": "complete"}]}'),
}


@pytest.mark.parametrize("bad", UNUSABLE.values(), ids=UNUSABLE)
@pytest.mark.opens(retries=1)
async def test_an_answer_that_cannot_be_read_changes_nothing(night: Tidied, bad: Step) -> None:
    """T-057, M-072: told once what is wrong, then left, and not asked again unchanged."""
    task = await added(night, "Order red bricks")
    night.model.keyed(lambda seen: bad)
    ran = await night.night("tasks")
    assert "The model's answer was unusable" in tally(ran, "tasks").note
    assert len(night.model.requests) == 2
    await night.night("tasks")
    assert len(night.model.requests) == 2
    assert (await now(night, task)) == task
    assert await night.items() == []


IGNORED: Mapping[str, Json] = {
    "an id that is none": {"task_id": "task_00000000", "action": "complete", "reason": "x"},
    "no id": {"action": "complete", "reason": "x"},
    "a list of ids": {"task_id": ["{}"], "action": "complete", "reason": "x"},
    "another action": {"task_id": "{}", "action": "explode"},
    "no reason": {"task_id": "{}", "action": "complete"},
    "nothing to update": {"task_id": "{}", "action": "update"},
    "a priority that is none": {"task_id": "{}", "action": "update", "priority": 77},
    "content that is none": {"task_id": "{}", "action": "update", "content": ["x"]},
    "ten times longer": {"task_id": "{}", "action": "update", "content": "Order red bricks " * 10},
}


@pytest.mark.parametrize("action", IGNORED.values(), ids=IGNORED)
async def test_an_action_that_cannot_be_used_is_left_out(night: Tidied, action: Json) -> None:
    """T-057: named, without its words, and not asked again unchanged."""
    task = await added(night, "Order red bricks")
    night.model.script(Text(json.dumps({"actions": [action]}).replace("{}", task.id)))
    ran = await night.night("tasks")
    assert tally(ran, "tasks").note
    await night.night("tasks")
    assert len(night.model.requests) == 1
    assert (await now(night, task)) == task
    assert await night.items() == []


async def test_a_task_that_was_changed_during_the_call_is_left_alone(night: Tidied) -> None:
    """T-060: the action on it is dropped, and what relied on it too."""
    bricks = await added(night, "Order all of the red bricks")
    twin = await added(night, "Order red bricks")
    gate = asyncio.Event()
    night.model.script(Slow(gate, actions(worded(bricks, "Order the red bricks"), done(twin))))
    async with asyncio.TaskGroup() as group:
        group.create_task(night.night("tasks"))
        await night.model.request_arrived(1)
        async with night.house.database.transaction() as tx:
            target = Target(bricks.id, OWNER, Reason("command", OWNER))
            await night.house.stores.tasks.change(tx, target, content="Order grey bricks")
        gate.set()
    assert (await now(night, bricks)).content == "Order grey bricks"
    assert (await now(night, twin)).status == "active"
    assert {item.state for item in await night.items()} == {"outdated"}


async def test_each_scope_is_asked_about_its_own_tasks_alone(night: Tidied) -> None:
    """T-015, M-010: what is shown everywhere is the owner's."""
    await added(night, "Order red bricks")
    await added(night, "Clean the boat", scope=CLUB)
    await added(night, "Say hello to all", scope="global")
    seen: list[str] = []

    def answer(request: Seen) -> Step:
        seen.append(request.last_user)
        return actions()

    night.model.keyed(answer)
    await night.night("tasks")
    assert ["bricks" in text for text in seen] == [True, False]
    assert ["boat" in text for text in seen] == [False, True]
    assert ["hello" in text for text in seen] == [True, False]


@pytest.mark.opens(size="small")
async def test_a_small_model_only_proposes(night: Tidied) -> None:
    """Issue 21: a backend of `size: small` only proposes."""
    task = await added(night, "Find out about bricks (done)")
    night.model.keyed(lambda seen: actions(done(task)))
    await night.night("tasks")
    assert (await now(night, task)).status == "active"
    assert len(await night.items("open")) == 1


def a_task(content: str, name: str = "task_a", **more: object) -> Task:
    return replace(Task(name, OWNER, content, 5, "active", NOON), **more)  # type: ignore[arg-type]  # fields


DUE = Plan(schedule=Once(at="2026-12-01T09:00:00"))
BRICKS = "Order 12 red bricks at Huber's"
ALIKE: Mapping[str, tuple[Task, Task, bool]] = {
    "the same": (a_task(BRICKS), a_task(BRICKS), True),
    "more beside it": (a_task(f"{BRICKS} by Friday"), a_task(BRICKS), True),
    "another number": (a_task(BRICKS), a_task(BRICKS.replace("12", "20")), False),
    "a number more": (a_task("Order red bricks at Huber's"), a_task(BRICKS), False),
    "another name": (a_task("Call Andreas"), a_task("Call Andrea"), False),
    "another short name": (a_task("Call Bo"), a_task("Call Al"), False),
    "another name in small letters": (a_task("call andreas"), a_task("call andrea"), False),
    "denied": (a_task("Do not order the bricks"), a_task("Do order the bricks"), False),
    "a not is lost": (a_task("Order the bricks"), a_task("Do not order the bricks"), False),
    "another thing": (a_task("Clean the boat"), a_task(BRICKS), False),
    "less urgent": (a_task(BRICKS, priority=9), a_task(BRICKS, priority=1), False),
    "more urgent": (a_task(BRICKS, priority=1), a_task(BRICKS, priority=9), True),
    "due, and not": (a_task(BRICKS), a_task(BRICKS, plan=DUE), False),
    "due as well": (a_task(BRICKS, plan=DUE), a_task(BRICKS, plan=DUE), True),
    "put off": (a_task(BRICKS), a_task(BRICKS, snoozed=NOON), False),
    "seen here alone": (a_task(BRICKS), a_task(BRICKS, scope=EVERYWHERE), False),
    "seen everywhere": (a_task(BRICKS, scope=EVERYWHERE), a_task(BRICKS), True),
    "in signs": (a_task("周五前订红砖"), a_task("订红砖"), True),
    "other signs": (a_task("订灰砖"), a_task("订红砖"), False),
}


@pytest.mark.parametrize(("kept", "other", "alike"), ALIKE.values(), ids=ALIKE)
def test_a_task_says_all_of_another_only_with_its_names_numbers_and_times(
    kept: Task, other: Task, *, alike: bool
) -> None:
    """T-058, M-039."""
    assert says_all_of(kept, other) == alike


@pytest.mark.parametrize(
    ("content", "over"),
    [
        ("Find out about bricks (done, they are red)", True),
        ("Rechnung bezahlen: erledigt", True),
        ("Appeler Paul - c'est fait", True),
        ("[x] call Bo", True),
        ("买红砖, 已完成", True),
        ("Call Bo, not done yet", False),
        ("Complete the form", False),
        ("Water the plants", False),
    ],
)
def test_a_task_says_itself_that_it_is_done(content: str, *, over: bool) -> None:
    """T-058."""
    assert says_done(content) == over


A, B, C, D = (a_task(BRICKS, f"task_{name}") for name in "abcd")
OTHER = a_task("Buy stones", "task_o")
OVER = a_task(f"{BRICKS} (done)", "task_x")
ENDS: Mapping[str, tuple[list[tuple[Task, str]], list[Task], list[tuple[str, str, bool]]]] = {
    "a double": ([(A, "task_b")], [B], [("task_a", "task_b", True)]),
    "a pair of each other": ([(A, "task_b"), (B, "task_a")], [], [("task_a", "task_b", True)]),
    "a ring of three": (
        [(A, "task_b"), (B, "task_c"), (C, "task_a")],
        [],
        [("task_a", "task_b", True), ("task_c", "task_b", True)],
    ),
    "a chain with an end that stays": (
        [(A, "task_b"), (B, "task_c")],
        [C],
        [("task_a", "task_c", True), ("task_b", "task_c", True)],
    ),
    "a ring of what is not alike": (
        [(A, "as task_o"), (OTHER, "as task_a")],
        [],
        [("task_a", "task_o", False)],
    ),
    "its own word": ([(OVER, "it says so")], [], [("task_x", "", True)]),
    "the double of what is done": (
        [(OVER, "it says so"), (A, "as task_x")],
        [],
        [("task_x", "", True), ("task_a", "", False)],
    ),
    "a model's word alone": ([(A, "it is done")], [OTHER], [("task_a", "", False)]),
}


@pytest.mark.parametrize(("wanted", "beside", "found"), ENDS.values(), ids=ENDS)
def test_one_of_a_ring_stays(
    wanted: list[tuple[Task, str]], beside: list[Task], found: list[tuple[str, str, bool]]
) -> None:
    """T-058: whatever a model calls the same."""
    actions = [TaskAction(task, reason=reason, ends=True) for task, reason in wanted]
    then = {task.id: task for task in (*beside, *(task for task, _ in wanted))}
    ends = ends_of(actions, then)
    assert [
        (e.action.task.id, e.successor.id if e.successor else "", e.proved) for e in ends
    ] == found


async def test_two_tasks_that_are_called_each_others_double_do_not_both_end(night: Tidied) -> None:
    """T-058: the one that stays is the one that the other was ended for."""
    one, two = [await added(night, BRICKS) for _ in range(2)]
    night.model.script(actions(same(one, two), same(two, one)))
    await night.night("tasks")
    assert {(await now(night, task)).status for task in (one, two)} == {"active", "completed"}
    await night.night("tasks")
    assert len(night.model.requests) == 1


async def test_what_is_no_double_is_asked_about_and_a_yes_ends_one_of_two(night: Tidied) -> None:
    """T-058, M-079: a number of the one is in the other no more; `yes all` leaves one."""
    one = await added(night, BRICKS)
    two = await added(night, BRICKS.replace("12", "20"))
    night.model.script(actions(same(one, two), same(two, one)))
    await night.night("tasks")
    assert {(await now(night, task)).status for task in (one, two)} == {"active"}
    for item in await night.items("open"):
        await night.yes(item)
    assert {(await now(night, task)).status for task in (one, two)} == {"active", "completed"}


async def test_a_double_does_not_end_once_what_it_was_left_for_has(night: Tidied) -> None:
    """M-079: looked at again when a person says yes."""
    one, two = [await added(night, BRICKS, by="command") for _ in range(2)]
    night.model.script(actions(same(one, two)))
    await night.night("tasks")
    async with night.house.database.transaction() as tx:
        target = Target(two.id, OWNER, Reason("command", OWNER))
        await night.house.stores.tasks.complete(tx, target, "bought")
    [item] = await night.items("open")
    assert not await night.yes(item)
    assert (await now(night, one)).status == "active"


async def test_a_night_ends_a_few_tasks_and_the_next_one_goes_on(night: Tidied) -> None:
    """T-058: a model that calls all of them done ends three a night, and the rest is named."""
    tasks = [await added(night, f"Call number {n} (done)") for n in range(MOST_ENDED + 2)]

    def all_done(seen: Seen) -> Step:
        return actions(*(done(task) for task in tasks if task.id in seen.last_user))

    night.model.keyed(all_done)
    ran = await night.night("tasks")
    assert (tally(ran, "tasks").status, tally(ran, "tasks").after) == ("left", 2)
    assert "2 tasks that could end wait" in tally(ran, "tasks").note
    ran = await night.night("tasks")
    assert (tally(ran, "tasks").status, tally(ran, "tasks").after) == ("ok", 0)
    assert await night.items("open") == []
