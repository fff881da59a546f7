"""Random lives of tasks against a simple model: no due moment is lost, none is said twice."""

import asyncio
import tempfile
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.tiers import examples
from tests.world.clock import FakeClock
from tests.world.house import ANN, House, open_house
from tests.world.promised import MORNING, do, promise, talk
from wintermute.changes.change_sets import Reason
from wintermute.errors import ToolFailed
from wintermute.tasks.due import next_due
from wintermute.tasks.schedules import PlanRequest
from wintermute.tasks.tasks import Target, Task

SCHEDULES = (
    PlanRequest(schedule_type="once", at="in 1 hours"),
    PlanRequest(schedule_type="once", at="09:00"),
    PlanRequest(schedule_type="daily", at="09:00"),
    PlanRequest(schedule_type="interval", interval_seconds=1800),
    PlanRequest(schedule_type="rrule", rrule="FREQ=DAILY;COUNT=2", at="10:00"),
    PlanRequest(schedule_type="none"),
)
ACTIONS = ("pause", "resume", "delete", "restore", "acknowledge", "complete", "snooze")
LATER = (timedelta(minutes=10), timedelta(days=1))
steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, len(SCHEDULES) - 2)),
        st.tuples(st.just("update"), st.integers(0, len(SCHEDULES) - 1)),
        st.tuples(st.sampled_from(ACTIONS), st.integers(0, 9)),
        st.tuples(st.just("undo"), st.integers(0, 3)),
        st.tuples(st.sampled_from(("pass", "away")), st.sampled_from((1, 10, 31, 60, 1500, 5000))),
        st.tuples(st.sampled_from(("deliver", "restart")), st.just(0)),
    ),
    min_size=6,
    max_size=25,
)


@dataclass
class Life:
    """The house, and since when each task counts: made, begun anew, or claimed."""

    house: House
    clock: FakeClock
    since: dict[str, datetime] = field(default_factory=dict)
    snoozed: dict[str, datetime] = field(default_factory=dict)

    async def tasks(self) -> dict[str, Task]:
        return {task.id: task for task in await self.house.stores.tasks.listed(None, "all")}

    def note(self, before: dict[str, Task], after: dict[str, Task]) -> None:
        """What a person's change means for what is due next."""
        for task in after.values():
            was = before.get(task.id)
            woken = was is None or (was.status != "active" and task.status == "active")
            if woken or (was and was.plan.schedule != task.plan.schedule):
                self.since[task.id] = self.clock.now()
                self.snoozed.pop(task.id, None)
            if task.status != "active":
                self.snoozed.pop(task.id, None)

    def expected(self, task: Task) -> datetime | None:
        """When it is due next."""
        if task.status != "active":
            return None
        schedule, zone = task.plan.schedule, self.house.stores.tasks.zone
        rule = next_due(schedule, self.since[task.id], zone) if schedule else None
        return min(filter(None, (rule, self.snoozed.get(task.id))), default=None)

    async def do(self, name: str, n: int) -> None:
        """One step of a person, or of the world."""
        before = await self.tasks()
        match name:
            case "away":
                self.clock.advance(n * 60)
            case "pass":
                self.clock.advance(n * 60)
                await self.fire()
            case "deliver":
                await self.house.deliver()
            case "add":
                await promise(self.house, f"task {len(before)}", SCHEDULES[n])
                self.note(before, await self.tasks())
            case _ if before:
                await self._changed(name, n, [*before.values()][n % len(before)])

    async def _changed(self, name: str, n: int, task: Task) -> None:
        before = await self.tasks()
        try:
            await self._change(name, n, task)
        except ToolFailed:
            assert await self.tasks() == before
            return
        self.note(before, await self.tasks())
        if name == "undo":  # what it brings back, the tests of undo look at
            held = (await self.tasks()).items()
            now, left = self.clock.now(), {name for name, each in held if each.snoozed}
            self.since |= {name: min(self.since[name], now) for name in self.snoozed.keys() - left}
            self.snoozed = {task_id: each.snoozed for task_id, each in held if each.snoozed}
        if name == "update":  # also to the same: it counts from now
            self.since[task.id] = self.clock.now()
        if name in ("update", "acknowledge"):
            self.snoozed.pop(task.id, None)
        if name == "snooze" and (task.plan.recurs or task.plan.schedule is None):
            await self._snoozed(task, self.clock.now() + LATER[n % 2])

    async def _snoozed(self, task: Task, until: datetime) -> None:
        """Move the next occurrence, unless the one that was said last is nearer."""
        now, zone = self.clock.now(), self.house.stores.tasks.zone
        rule = None if task.snoozed else self.expected(task)
        query = "SELECT max(due_at) AS at FROM occurrences WHERE task_id = ?"
        [told] = await self.house.rows(query, task.id)
        is_nearer = rule and (
            not told["at"] or rule - now < now - datetime.fromisoformat(told["at"])
        )
        if rule and is_nearer and rule.astimezone(zone).date() <= until.astimezone(zone).date():
            self.since[task.id] = max(rule, now)
        self.snoozed[task.id] = until

    async def _change(self, name: str, n: int, task: Task) -> None:
        if name == "undo":
            found = await self.house.stores.changes.history(("task",))
            await self.house.stores.undo.apply(found[min(n, len(found) - 1)])
        elif name == "update":
            async with self.house.database.transaction() as tx:
                await self.house.stores.tasks.change(
                    tx, Target(task.id, None, Reason("command", task.scope)), request=SCHEDULES[n]
                )
        else:
            more: dict[str, Any] = {
                "complete": ["bought"],
                "snooze": [self.clock.now() + LATER[n % 2]],
            }
            await do(self.house, name, task, *more.get(name, []))

    async def fire(self) -> None:
        """What is due is claimed, and nothing else."""
        now = self.clock.now()
        due = {task.id: task for task in (await self.tasks()).values() if self._is_due(task, now)}
        known = {row["seq"] for row in await self.house.rows("SELECT seq FROM occurrences")}
        await self.house.fire()
        rows = await self.house.rows("SELECT * FROM occurrences")
        fired = {row["task_id"] for row in rows if row["seq"] not in known}
        assert fired == set(due)
        for task_id in due:
            self.since[task_id] = now
            if task_id in self.snoozed and self.snoozed[task_id] <= now:
                del self.snoozed[task_id]

    def _is_due(self, task: Task, now: datetime) -> bool:
        due = self.expected(task)
        return due is not None and due <= now

    async def check(self) -> None:
        """What holds after every step."""
        for task in (await self.tasks()).values():
            assert task.next_due == self.expected(task), task
        said = [text for text in await self.house.spoken() if text.startswith("⏰ t")]
        rows = await self.house.rows(
            "SELECT outbox_id FROM occurrences WHERE outbox_id IS NOT NULL"
        )
        assert len({row["outbox_id"] for row in rows}) == len(rows) == len(said)

    async def end(self) -> None:
        """All is said: nothing is left that is only waiting to be told done."""
        await self.fire()
        await self.house.deliver()
        await self.fire()
        assert not await self.house.rows("SELECT 1 FROM occurrences WHERE state = 'claimed'")
        for task in (await self.tasks()).values():
            rows = await self.house.rows(
                "SELECT max(claimed_at) AS at FROM occurrences WHERE task_id = ?", task.id
            )
            at = rows[0]["at"]
            delivered = at is not None and datetime.fromisoformat(at) >= self.since[task.id]
            if delivered and task.status == "active" and task.plan.schedule:
                assert task.next_due is not None, task


@given(steps)
@example([("add", 0), ("add", 0), ("pass", 60), ("delete", 0), ("deliver", 0), ("restore", 0)])
@example(
    [
        *(("add", 0), ("pass", 60), ("deliver", 0), ("snooze", 0), ("pass", 10)),
        *(("delete", 0), ("deliver", 0), ("restore", 0)),
    ]
)
@example([("add", 2), ("snooze", 1), ("undo", 0), ("pass", 60)])
@example([("add", 3), ("pass", 31), ("deliver", 0), ("snooze", 1), ("restart", 0), ("pass", 31)])
@settings(max_examples=examples(60))
def test_whatever_people_do_each_due_moment_is_claimed_once_and_none_is_lost(
    life: list[tuple[str, int]],
) -> None:
    """T-004, T-006, T-007, T-035, T-041 to T-043: changes, time and restarts in any order."""
    asyncio.run(_live(life))


def test_what_was_told_before_its_change_was_undone_is_done() -> None:
    """T-007, T-041: it rang, was changed before it could be told, was told, and was changed back."""
    rung = [("add", 0), ("pass", 60), ("update", 0), ("deliver", 0), ("undo", 0)]
    asyncio.run(_live(rung))


async def _live(life: list[tuple[str, int]]) -> None:
    clock = FakeClock(MORNING)
    with tempfile.TemporaryDirectory() as folder:
        async with AsyncExitStack() as stack:
            lived = Life(await _opened(stack, folder, clock), clock)
            for name, n in life:
                if name == "restart":
                    await stack.aclose()
                    lived.house = await _opened(stack, folder, clock)
                else:
                    await lived.do(name, n)
                await lived.check()
            await lived.end()


async def _opened(stack: AsyncExitStack, folder: str, clock: FakeClock) -> House:
    house = await stack.enter_async_context(open_house(Path(folder), None, clock=clock))
    await talk(house, scope=f"person:{ANN}")
    return house
