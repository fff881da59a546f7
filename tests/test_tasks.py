"""Tasks: what is promised is a row, seen by whom it concerns, and every change has a way back."""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.world.clock import FakeClock
from tests.world.schema import open_migrated
from wintermute.changes.change_sets import ChangeSets, Reason
from wintermute.changes.placing import Placing
from wintermute.changes.undo import Undo, Undone
from wintermute.db import Database
from wintermute.errors import ToolFailed
from wintermute.ids import new_id
from wintermute.owner import Owner
from wintermute.tasks.schedules import PlanRequest
from wintermute.tasks.tasks import EVERYWHERE, Target, Task, Tasks

ANN, BEN, ROOM = "person:@ann:test", "person:@ben:test", "room:!kitchen:test"
SCOPES = [ANN, BEN, ROOM]


@dataclass(frozen=True)
class Desk:
    """The store of tasks, where @ann:test is the owner."""

    database: Database
    clock: FakeClock
    tasks: Tasks
    changes: ChangeSets
    folder: Path

    async def add(self, content: str, scope: str = ANN, **more: Any) -> Task:
        async with self.database.transaction() as tx:
            return await self.tasks.add(tx, why(scope), content, scope=scope, **more)

    async def do(
        self,
        action: str,
        task: Task | str,
        scope: str | None = ANN,
        *,
        by_owner: bool = False,
        **more: Any,
    ) -> Task:
        """One change in a transaction of its own."""
        act: Callable[..., Awaitable[Task]] = getattr(self.tasks, action)
        task_id = task if isinstance(task, str) else task.id
        async with self.database.transaction() as tx:
            target = Target(task_id, scope, why(scope or ANN), by_owner)
            return await act(tx, target, **more)

    async def undo(self, newest: int = 0) -> Undone:
        """Take back the newest change of all, or one further back."""
        sets = await self.changes.history(("task",))
        placing = Placing(self.database, self.changes, {}, self.folder)
        undo = Undo(self.database, self.changes, {"task": self.tasks}, placing)
        return await undo.apply(sets[newest])


def why(scope: str) -> Reason:
    return Reason("tool", scope, evidence=("$event",))


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    async with open_migrated(tmp_path / "w.db") as database:
        clock = FakeClock()
        changes = ChangeSets(database, clock, new_id)
        tasks = Tasks(database, changes, clock, new_id, Owner("@ann:test"), "Europe/Berlin")
        yield Desk(database, clock, tasks, changes, tmp_path)


async def test_a_new_task_has_a_short_id_and_is_shown_at_once(desk: Desk) -> None:
    """T-002."""
    task = await desk.add("  Renew the\npassport \x00")
    assert task.id.startswith("task_")
    assert len(bytes.fromhex(task.id.removeprefix("task_"))) == 4
    assert (task.content, task.priority, task.status) == ("Renew the passport", 5, "active")
    assert await desk.tasks.listed(ANN) == (task,)
    [kept] = await desk.changes.history(("task",), ANN)
    assert kept.changes[0].item == task.id
    assert kept.changes[0].evidence == ("$event",)


async def test_an_id_that_was_given_before_is_not_given_again(desk: Desk) -> None:
    ids = iter(["task_0123456700000001", "task_0123456700000002", "task_89abcdef00000001"])
    tasks = Tasks(
        desk.database, desk.changes, desk.clock, lambda _: next(ids), Owner("@ann:test"), "UTC"
    )
    async with desk.database.transaction() as tx:
        made = [await tasks.add(tx, why(ANN), name, scope=ANN) for name in ("a", "b")]
    assert [task.id for task in made] == ["task_01234567", "task_89abcdef"]


@pytest.mark.parametrize(
    ("fields", "rule"),
    [
        ({"priority": 0}, "priority must be an integer from 1"),
        ({"priority": 11}, "priority must be an integer from 1"),
        ({"priority": True}, "priority must be an integer from 1"),
        ({"priority": "3"}, "priority must be an integer from 1"),
        ({"priority": 2.5}, "priority must be an integer from 1"),
        ({"content": ""}, "content must be a text that is not blank"),
        ({"content": " \n\t\x07\ufeff\u200b\u2800"}, "content must be a text that is not blank"),
        ({"content": 7}, "content must be a text that is not blank"),
        ({"content": "x" * 2001}, "2001 characters; at most 2000"),
    ],
)
async def test_a_task_that_breaks_a_rule_is_neither_made_nor_changed(
    desk: Desk, fields: dict[str, Any], rule: str
) -> None:
    """T-003."""
    with pytest.raises(ToolFailed, match=rule):
        await desk.add(**{"content": "x", **fields})
    assert await desk.tasks.listed(None, "all") == ()
    task = await desk.add("x" * 2000)
    with pytest.raises(ToolFailed, match=rule):
        await desk.do("change", task, **fields)
    assert await desk.tasks.listed(ANN) == (task,)
    assert len(await desk.changes.history(("task",))) == 1


async def test_content_and_priority_can_each_be_changed_alone(desk: Desk) -> None:
    """T-004."""
    task = await desk.add("tea", priority=3)
    desk.clock.advance(60)
    renamed = await desk.do("change", task, content="green tea")
    assert (renamed.content, renamed.priority) == ("green tea", 3)
    urgent = await desk.do("change", f"#{task.id}", priority=1)
    assert (urgent.content, urgent.priority) == ("green tea", 1)
    assert (urgent.id, urgent.created_at) == (task.id, task.created_at)
    assert await desk.do("change", task, priority=1) == urgent
    assert len(await desk.changes.history(("task",))) == 3
    with pytest.raises(ToolFailed, match="a new content, priority, schedule"):
        await desk.do("change", task)


STEPS = {"active": [], "paused": ["pause"], "completed": ["complete"], "deleted": ["delete"]}
LEADS = {
    ("active", "complete"): "completed",
    ("paused", "complete"): "completed",
    ("active", "pause"): "paused",
    ("paused", "resume"): "active",
    ("completed", "resume"): "active",
    ("active", "delete"): "deleted",
    ("paused", "delete"): "deleted",
    ("completed", "delete"): "deleted",
    ("deleted", "restore"): "active",
    ("active", "change"): "active",
    ("paused", "change"): "paused",
}
ACTIONS = ["complete", "pause", "resume", "delete", "restore", "change"]


def needs(action: str) -> dict[str, Any]:
    more: dict[str, dict[str, Any]] = {"complete": {"reason": "done"}, "change": {"priority": 2}}
    return more.get(action, {})


@pytest.mark.parametrize(("status", "action"), [*itertools.product(STEPS, ACTIONS)])
async def test_an_action_leads_from_one_status_to_another_or_names_the_present_one(
    desk: Desk, status: str, action: str
) -> None:
    """T-005 to T-007."""
    task = await desk.add("tea")
    for step in STEPS[status]:
        task = await desk.do(step, task, **needs(step))
    if (status, action) in LEADS:
        task = await desk.do(action, task, **needs(action))
        assert task.status == LEADS[status, action]
        assert bool(task.reason) == ("completed" in (status, task.status) and action != "resume")
    else:
        with pytest.raises(ToolFailed, match=f"{task.id} is {status}"):
            await desk.do(action, task, **needs(action))
    assert await desk.tasks.get(task.id, ANN) == task
    assert bool(await desk.tasks.listed(ANN)) == (task.status == "active")


@pytest.mark.parametrize("reason", ["", " \n", "x" * 2001])
async def test_a_task_is_completed_with_a_reason_only(desk: Desk, reason: str) -> None:
    """T-005."""
    task = await desk.add("tea")
    with pytest.raises(ToolFailed, match="reason"):
        await desk.do("complete", task, reason=reason)
    assert await desk.tasks.listed(ANN) == (task,)


@pytest.mark.parametrize("status", ["active", "paused", "completed"])
async def test_a_deleted_task_comes_back_as_it_was_for_thirty_days(desk: Desk, status: str) -> None:
    """T-007."""
    task = await desk.add("tea")
    for step in STEPS[status]:
        task = await desk.do(step, task, **needs(step))
    await desk.do("delete", task)
    desk.clock.advance(timedelta(days=29, hours=23).total_seconds())
    assert await desk.do("restore", task) == task
    await desk.do("delete", task)
    desk.clock.advance(timedelta(days=30).total_seconds())
    with pytest.raises(ToolFailed, match="more than 30 days ago"):
        await desk.do("restore", task)


async def test_tasks_are_listed_by_priority_then_age_and_filtered_by_status(desk: Desk) -> None:
    """T-008, P-019."""
    made = [await desk.add(f"{n}", priority=priority) for n, priority in enumerate([5, 1, 5, 3])]
    order = [made[1], made[3], made[0], made[2]]
    assert await desk.tasks.listed(ANN) == tuple(order)
    paused = await desk.do("pause", made[0])
    gone = await desk.do("delete", made[1])
    assert await desk.tasks.listed(ANN) == (made[3], made[2])
    assert await desk.tasks.listed(ANN, "paused") == (paused,)
    assert await desk.tasks.listed(ANN, "deleted") == (gone,)
    assert await desk.tasks.listed(ANN, "completed") == ()
    assert await desk.tasks.listed(ANN, "all") == (gone, made[3], paused, made[2])


async def test_an_unknown_id_names_a_near_one_that_may_be_seen(desk: Desk) -> None:
    """T-009, T-015."""
    mine, bens = await desk.add("mine"), await desk.add("bens", BEN)
    for task, scope, other in ((mine, ANN, BEN), (bens, BEN, ANN)):
        slip = task.id[:-1] + ("0" if task.id[-1] != "0" else "1")
        with pytest.raises(ToolFailed, match=rf"^no task {slip}; did you mean {task.id}\?$"):
            await desk.do("delete", slip, scope)
        with pytest.raises(ToolFailed, match=rf"^no task {slip}$"):
            await desk.do("delete", slip, other)
    for strange in ("", "x" * 5000, "a\nb\x00", "task_\ud800"):
        with pytest.raises(ToolFailed, match=r"^no task .{0,100}$"):
            await desk.tasks.get(strange, ANN)
    assert len(await desk.tasks.listed(None)) == 2


@pytest.mark.parametrize("scope", SCOPES)
async def test_a_task_is_seen_in_its_own_room_and_with_its_own_person(
    desk: Desk, scope: str
) -> None:
    """T-013, P-020."""
    made = {of: await desk.add(f"canary {of}", of) for of in SCOPES}
    assert await desk.tasks.listed(scope) == (made[scope],)
    assert await desk.tasks.listed(scope, "all") == (made[scope],)
    assert await desk.tasks.listed(None) == tuple(made.values())


@pytest.mark.parametrize("action", ACTIONS)
async def test_a_task_of_another_room_is_as_one_that_does_not_exist(
    desk: Desk, action: str
) -> None:
    """T-015."""
    task = await desk.add("secret", BEN)
    before = await desk.changes.history(("task",))
    for scope in (ANN, ROOM):
        with pytest.raises(ToolFailed, match=f"^no task {task.id}$"):
            await desk.do(action, task, scope, by_owner=True, **needs(action))
    assert await desk.tasks.listed(BEN) == (task,)
    assert await desk.changes.history(("task",)) == before


@pytest.mark.parametrize("action", ["complete", "pause", "delete", "change"])
async def test_a_global_task_is_seen_by_all_and_changed_by_the_owner(
    desk: Desk, action: str
) -> None:
    """T-014."""
    task = await desk.add("shown everywhere", EVERYWHERE)
    for scope in (ANN, BEN, ROOM):
        assert await desk.tasks.listed(scope) == (task,)
        with pytest.raises(ToolFailed, match="only the owner may change it"):
            await desk.do(action, task, scope, **needs(action))
    owners: dict[str, Any] = {"by_owner": True}
    more: list[tuple[str | None, dict[str, Any]]] = [(ANN, owners), (ROOM, owners)]
    for scope_of_owner, flag in [*more, (None, {})]:
        other = await desk.add("another", EVERYWHERE)
        await desk.do(action, other, scope_of_owner, **flag, **needs(action))


Step = tuple[str, dict[str, Any]]


@pytest.mark.parametrize(
    "steps",
    [
        [("change", {"content": "coffee", "priority": 1})],
        [("pause", {})],
        [("complete", {"reason": "done"})],
        [("delete", {})],
        [("pause", {}), ("delete", {})],
        [("delete", {}), ("restore", {})],
        [("complete", {"reason": "done"}), ("resume", {})],
    ],
)
async def test_a_change_that_is_undone_never_was_and_can_be_done_again(
    desk: Desk, steps: list[Step]
) -> None:
    """T-007: one undo for every kind of change, and for the undo itself."""
    before = after = await desk.add("tea", priority=4)
    for action, more in steps:
        before, after = after, await desk.do(action, after, **more)
    undone = await desk.undo()
    assert undone.kept == ()
    assert await desk.tasks.get(before.id, ANN) == before
    await desk.undo()
    assert await desk.tasks.get(before.id, ANN) == after


async def test_an_undone_addition_is_a_deleted_task(desk: Desk) -> None:
    """T-007, T-008: the model can see that it was there."""
    task = await desk.add("tea")
    await desk.undo()
    assert await desk.tasks.listed(ANN) == ()
    assert [found.id for found in await desk.tasks.listed(ANN, "deleted")] == [task.id]
    await desk.undo()
    assert await desk.tasks.listed(ANN) == (task,)


@pytest.mark.parametrize(
    ("changed", "later", "left", "kept"),
    [
        ({"content": "b"}, {"priority": 1}, ("a", 1), 0),
        ({"priority": 9}, {"content": "c"}, ("c", 5), 0),
        ({"content": "b"}, {"content": "c"}, ("c", 5), 1),
        ({"content": "b", "priority": 9}, {"content": "c"}, ("c", 5), 1),
    ],
)
async def test_a_later_edit_survives_the_undo_of_an_earlier_one(
    desk: Desk, changed: dict[str, Any], later: dict[str, Any], left: tuple[str, int], kept: int
) -> None:
    task = await desk.add("a")
    await desk.do("change", task, **changed)
    await desk.do("change", task, **later)
    undone = await desk.undo(1)
    now = await desk.tasks.get(task.id, ANN)
    assert (now.content, now.priority) == left
    assert len(undone.kept) == kept


async def test_a_task_deleted_since_stays_deleted_when_an_edit_is_undone(desk: Desk) -> None:
    task = await desk.add("a")
    await desk.do("change", task, content="b")
    await desk.do("delete", task)
    undone = await desk.undo(1)
    assert (undone.back, len(undone.kept)) == ((), 1)
    assert (await desk.do("restore", task)).content == "b"


async def test_changes_at_the_same_time_are_all_made(desk: Desk) -> None:
    """T-012: in turn, so that each sees the one before."""
    task = await desk.add("tea")
    async with asyncio.TaskGroup() as group:
        group.create_task(desk.do("change", task, priority=2))
        group.create_task(desk.do("change", task, content="green tea"))
        group.create_task(desk.do("pause", task))
    now = await desk.tasks.get(task.id, ANN)
    assert (now.content, now.priority, now.status) == ("green tea", 2, "paused")


async def test_a_failed_transaction_leaves_neither_task_nor_record(desk: Desk) -> None:
    """T-010."""

    async def half() -> None:
        async with desk.database.transaction() as tx:
            await desk.tasks.add(tx, why(ANN), "half made", scope=ANN)
            await desk.tasks.add(tx, why(ANN), "", scope=ANN)

    with pytest.raises(ToolFailed):
        await half()
    assert await desk.tasks.listed(None, "all") == ()
    assert await desk.changes.history(("task",)) == ()


@pytest.mark.slow
@pytest.mark.alone
async def test_a_thousand_tasks_are_at_hand_for_every_prompt(desk: Desk) -> None:
    """The index gives them in order, so nothing is sorted; the best of five runs counts."""
    async with desk.database.transaction() as tx:
        for n in range(1_000):
            await desk.tasks.add(tx, why(ANN), f"task {n}", scope=ANN, priority=n % 10 + 1)
    took = []
    for _ in range(5):
        begun = time.process_time()
        assert len(await desk.tasks.listed(ANN)) == 1_000
        took.append(time.process_time() - begun)
    assert min(took) < 0.05


class TickingClock(FakeClock):
    """Moves on by a second whenever it is read."""

    def now(self) -> datetime:
        seen = super().now()
        self.advance(1)
        return seen


async def test_a_moment_that_comes_while_it_is_written_down_is_due(tmp_path: Path) -> None:
    """T-035: it was ahead when it was asked for, for a new task and for another time of one."""
    clock = TickingClock()
    async with open_migrated(tmp_path / "test.db") as database:
        changes = ChangeSets(database, clock, new_id)
        tasks = Tasks(database, changes, clock, new_id, Owner("@ann:test"), "UTC")
        async with database.transaction() as tx:
            at = clock.now() + timedelta(seconds=2)
            asked = PlanRequest(schedule_type="once", at=at.isoformat())
            made = await tasks.add(tx, why(ANN), "tea", scope=ANN, request=asked)
            assert made.next_due == at
            at = clock.now() + timedelta(seconds=2)
            asked = PlanRequest(schedule_type="once", at=at.isoformat())
            changed = await tasks.change(tx, Target(made.id, ANN, why(ANN)), request=asked)
            assert changed.next_due == at
