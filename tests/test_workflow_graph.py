"""Workflows: what starts when, what fails with what, and that each is reported once."""

import asyncio
import json
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tiers import examples
from tests.world.clock import until_so
from tests.world.delegating import (
    all_over,
    behave,
    call,
    context,
    done,
    objective,
    reasons,
    reports,
    results,
    spawn,
    states,
    workflow,
)
from tests.world.house import WARDS, Gate, HeldClock, House, house_at_work
from tests.world.model import Calls, Fail, Hang, ModelServer, Seen, Slow, Step, Use
from tests.world.story import Story
from wintermute.config.schema import SubSessionSettings
from wintermute.text import EMPTY_LISTS

LIMITS = SubSessionSettings()


async def test_a_dependent_starts_with_the_results_of_all_it_depends_on(story: Story) -> None:
    """L-063, L-067: and one event tells the whole workflow."""
    gate = asyncio.Event()

    def child(asked: str, seen: Seen) -> Step | None:
        if asked == "two":
            return Slow(gate, done("blue"))
        if asked == "three":
            return done(context(seen))
        return done("red")

    steps = [
        spawn("one", name="a"),
        spawn("two", name="b"),
        spawn("three", name="c", depends_on=["a", "b"], context="Mix them."),
    ]
    behave(story.model, steps, child)
    async with story.at_work(sub_sessions=LIMITS) as house:
        await house.ask("go")
        await until_so(lambda: is_done(house, "a"))
        assert (await states(house))["c"] == "waiting"
        gate.set()
        await all_over(house)
        (report,) = await reports(house)
        assert 'kind="workflow_complete"' in report
        for part in ("## a: done", "red", "## b: done", "blue", "## c: done", "Mix them."):
            assert part in report
        assert "## Result of a\nred\n\n## Result of b\nblue" in report


async def is_done(house: House, name: str) -> bool:
    return (await states(house)).get(name) == "done"


async def test_a_failure_reaches_all_that_depend_on_it_and_nothing_else(story: Story) -> None:
    """L-064."""
    steps = workflow("a", "b", "c < a", "d < c b", "e < b")
    behave(story.model, steps, lambda asked, _seen: Fail(400) if asked == "a" else None)
    async with story.at_work(sub_sessions=LIMITS) as house:
        await house.incoming("go")
        await all_over(house)
        failed, well = dict.fromkeys("acd", "failed"), dict.fromkeys("be", "done")
        assert await states(house) == failed | well
        assert (await reasons(house))["d"] == "dependency failed: a"
        (report,) = await reports(house)
        assert report.count("failed (dependency failed: a)") == 2
        assert {objective(seen) for seen in story.model.requests} == {"", "a", "b", "e"}


async def test_a_spawn_on_what_has_failed_is_refused(story: Story) -> None:
    """L-064, L-067: a single spawn is reported by itself, and ids are known in later casts."""
    behave(story.model, [spawn("a")], lambda *_: Fail(400))
    async with story.at_work(sub_sessions=LIMITS) as house:
        await house.incoming("go")
        await all_over(house)
        (report,) = await reports(house)
        assert 'kind="sub_session_failed"' in report
        row = await house.one("SELECT id FROM sub_sessions")
        behave(story.model, [spawn("b", depends_on=[row["id"]])])
        await house.incoming("go")
        assert f"dependency failed: {row['id']}" in (await house.said(3))[2]


async def test_a_later_spawn_may_wait_for_an_earlier_one_by_its_id(story: Story) -> None:
    """L-063, L-069: also when that is done already."""
    behave(story.model, [spawn("a", name="a")])
    async with story.at_work(sub_sessions=LIMITS) as house:
        await house.incoming("go")
        await all_over(house)
        row = await house.one("SELECT id FROM sub_sessions")
        behave(
            story.model,
            [spawn("b", name="b", depends_on=[row["id"]]), spawn("c", depends_on=["a"])],
        )
        await house.incoming("go")
        await all_over(house, 2)
        assert await states(house) == {"a": "done", "b": "done"}
        single, both = await reports(house)
        assert 'kind="sub_session_result"' in single
        assert 'kind="workflow_complete"' in both
        assert "unknown dependency: a" in "".join(await house.spoken())


async def test_a_name_is_used_once_in_a_cast(story: Story) -> None:
    behave(story.model, [spawn("one", name="a"), spawn("two", name="a")])
    async with story.at_work(sub_sessions=LIMITS) as house:
        assert "named a already" in await house.ask("go")
        await all_over(house)
        assert len(await house.rows("SELECT 1 FROM sub_sessions")) == 1


async def test_workflows_that_a_new_one_connects_become_one(story: Story) -> None:
    """L-067."""
    gate = asyncio.Event()
    steps = workflow("a", "b < a", "c", "d < c", "e < d b")
    behave(story.model, steps, lambda asked, _seen: Slow(gate, done(asked)))
    async with story.at_work(sub_sessions=LIMITS) as house:
        await house.ask("go")
        assert len(await house.rows("SELECT DISTINCT workflow FROM sub_sessions")) == 1
        gate.set()
        await all_over(house)
        assert len(await reports(house)) == 1


async def test_a_time_to_start_is_kept_across_a_restart(story: Story) -> None:
    """L-066: a time without an offset is meant in the configured zone."""
    clock = HeldClock()
    half_past = "2026-05-04T14:30"  # 12:30 UTC, half an hour from now
    behave(story.model, [spawn("x", not_before=half_past)])
    async with story.at_work(clock=clock, sub_sessions=LIMITS) as house:
        assert "2026-05-04T14:30:00+02:00" in await house.ask("go")
        await clock.asleep()
        assert await states(house) == {"x": "waiting"}
    async with story.at_work(clock=clock, sub_sessions=LIMITS) as house:
        await clock.asleep()
        await clock.move(1799)
        await clock.asleep()
        assert await states(house) == {"x": "waiting"}
        await clock.move(1)
        await all_over(house)
        assert await states(house) == {"x": "done"}


async def test_after_a_restart_done_ones_are_not_repeated(story: Story) -> None:
    """L-068."""
    asked: list[str] = []

    def first(name: str, seen: Seen) -> Step | None:
        asked.append(name)
        if name == "b":
            return Hang() if results(seen) else Calls((Use("echo", {"say": "half"}),))
        return None

    steps = [
        spawn("a", name="a"),
        spawn("b", name="b", tools=["echo"], depends_on=["a"]),
        spawn("c", name="c", depends_on=["b"]),
    ]
    behave(story.model, steps, first)
    gate = Gate()
    async with story.at_work(gates=[gate], sub_sessions=LIMITS) as house:
        await house.incoming("go")
        await story.model.request_arrived(5)
    behave(story.model, [], lambda name, seen: done(f"{results(seen)}") if name == "b" else None)
    async with story.at_work(gates=[gate], sub_sessions=LIMITS) as house:
        await all_over(house)
        assert await states(house) == {"a": "done", "b": "done", "c": "done"}
        assert len(gate.taken) == 1
        assert asked.count("a") == 1
        (report,) = await reports(house)
        assert "half" in report


async def test_what_three_crashes_interrupt_fails(story: Story) -> None:
    """L-068: what a kill leaves behind is a copy of the folder as it was at that moment."""
    behave(story.model, workflow("x", "y < x"), lambda *_: Hang())
    folders = [story.folder / str(n) for n in range(4)]
    folders[0].mkdir()
    for n, (folder, after) in enumerate(pairwise(folders)):
        async with house_at_work(folder, story.model.url, sub_sessions=LIMITS) as house:
            if not n:
                await house.ask("go")
            await story.model.request_arrived(3 + n)
            assert await states(house) == {"x": "running", "y": "waiting"}
            shutil.copytree(folder, after)
    async with house_at_work(folders[3], story.model.url, sub_sessions=LIMITS) as house:
        await all_over(house)
        assert await reasons(house) == {"x": "restarted", "y": "dependency failed: x"}
        row = await house.one("SELECT state, reason FROM casts WHERE event_id IS NULL")
        assert row == {"state": "truncated", "reason": "restarted"}
        assert len(await reports(house)) == 1


async def test_an_ordinary_restart_is_no_interruption(story: Story) -> None:
    """L-068: however often the program is started anew, its work goes on."""
    behave(story.model, [spawn("x", name="x")], lambda *_: Hang())
    for n in range(5):
        async with story.at_work(sub_sessions=LIMITS) as house:
            if not n:
                await house.ask("go")
            await story.model.request_arrived(3 + n)
    behave(story.model, [spawn("x", name="x")])
    async with story.at_work(sub_sessions=LIMITS) as house:
        await all_over(house)
        assert await states(house) == {"x": "done"}


async def test_a_batch_goes_on_after_a_restart_where_it_was(story: Story) -> None:
    """L-051, L-068: what was answered is not asked again, and the order holds."""
    asked: list[str] = []

    def first(name: str, _seen: Seen) -> Step | None:
        asked.append(name)
        return Hang() if name == "b" else None

    calls = {"calls": [{"intent": name} for name in "abc"]}
    behave(story.model, [Use("call_agent_batch", calls)], first)
    async with story.at_work(sub_sessions=LIMITS) as house:
        await house.incoming("go")
        await until_so(lambda: are_done(house, 2))

    def second(name: str, _seen: Seen) -> Step | None:
        asked.append(name)
        return None

    behave(story.model, [Use("call_agent_batch", calls)], second)
    async with story.at_work(sub_sessions=LIMITS) as house:
        (said,) = await house.said(1)
        assert [one["result"] for one in json.loads(said)] == ["did a", "did b", "did c"]
        assert sorted(asked) == ["a", "b", "b", "c"]


async def are_done(house: House, n: int) -> bool:
    return list((await states(house)).values()).count("done") == n


@pytest.mark.parametrize("outer", ["spawn", "call"])
async def test_what_a_child_spawned_is_told_through_it_once(story: Story, outer: str) -> None:
    """L-067."""
    gate = asyncio.Event()

    def child(asked: str, seen: Seen) -> Step | None:
        if asked == "outer":
            return done("mine") if results(seen) else Calls((spawn("inner", name="in"),))
        return Slow(gate, done("deep"))

    make = spawn if outer == "spawn" else call
    behave(story.model, [make("outer", tools=["spawn_sub_session"])], child)
    async with story.at_work(sub_sessions=LIMITS) as house:
        await house.incoming("go")
        await until_so(lambda: collecting(house))
        assert not await reports(house)
        gate.set()
        await all_over(house)
        texts = await reports(house) if outer == "spawn" else await house.said(1)
        assert len(texts) == 1
        assert "mine" in texts[0]
        assert texts[0].count("deep") == 1
        assert len(await reports(house)) == (outer == "spawn")
        assert await states(house) == {"outer": "done", "in": "done"}


async def collecting(house: House) -> bool:
    return (await states(house)).get("outer") == "collecting"


@pytest.mark.slow
async def test_what_a_lost_child_spawned_is_told_to_the_room(story: Story) -> None:
    """L-062: it outlives the cast that waited for the child between them."""
    gate = asyncio.Event()

    def child(asked: str, seen: Seen) -> Step | None:
        if asked == "outer":
            return Hang() if results(seen) else Calls((spawn("inner", name="in"),))
        return Slow(gate, done("deep"))

    behave(story.model, [call("outer", tools=["spawn_sub_session"])], child)
    wards = replace(WARDS, max_seconds=3)  # for what both of them begin with
    async with story.at_work(wards=wards, sub_sessions=LIMITS) as house:
        await house.ask("go")
        gate.set()
        await all_over(house)
        (report,) = await reports(house)
        assert "## in: " in report
        assert (await states(house))["outer"] == "ended"


def lose_the_caller(model: ModelServer) -> None:
    """A sub-session that is waited for spawns another, which is over, and then hangs."""

    def child(asked: str, seen: Seen) -> Step | None:
        if asked == "outer":
            return Hang() if results(seen) else Calls((spawn("inner", name="in"),))
        return done("deep")

    behave(model, [call("outer", tools=["spawn_sub_session"])], child)


@pytest.mark.slow
async def test_what_a_cast_waited_for_is_over_with_it(story: Story) -> None:
    """L-062: at once, be there nothing else whose end would look after it."""
    lose_the_caller(story.model)
    wards = replace(WARDS, max_seconds=2)
    async with story.at_work(wards=wards, sub_sessions=LIMITS) as house:
        await house.ask("go")
        assert (await states(house))["outer"] == "ended"
        assert (await reasons(house))["outer"] == "parent_terminated"


@pytest.mark.slow
async def test_what_a_lost_child_had_gathered_is_told_to_the_room(story: Story) -> None:
    """L-062: what was over before the cast that waited for the child between them is not lost."""
    lose_the_caller(story.model)
    wards = replace(WARDS, max_seconds=2)
    async with story.at_work(wards=wards, sub_sessions=LIMITS) as house:
        await house.incoming("go")
        texts = await house.said(2)
        assert "told: " in texts[1]
        assert "## in: done\nObjective: inner\ndeep" in texts[1]
        assert await states(house) == {"outer": "ended", "in": "done"}
        assert len(await reports(house)) == 1


async def test_one_of_a_workflow_can_be_stopped_alone(story: Story) -> None:
    """L-062, L-064: by its name or id; the rest goes on and is told."""
    steps = workflow("a", "b < a", "c", "d < c", "e < d b")
    gate = asyncio.Event()
    behave(
        story.model, steps, lambda asked, _seen: Hang() if asked == "a" else Slow(gate, done(asked))
    )
    async with story.at_work(sub_sessions=LIMITS) as house:
        await house.ask("go")
        await story.model.request_arrived(4)
        await house.incoming("/stop a")
        assert (await house.said(2))[1] == "Stopped."
        gate.set()
        await all_over(house)
        assert await states(house) == {
            "a": "ended",
            "b": "failed",
            "c": "done",
            "d": "done",
            "e": "failed",
        }
        (report,) = await reports(house)
        assert "## a: stopped" in report
        await house.incoming("/stop sub_00000000")
        assert "No work `sub_00000000`" in (await house.said(4))[3]


async def test_a_single_one_that_was_stopped_by_hand_is_not_told(story: Story) -> None:
    behave(
        story.model, [spawn("a"), spawn("b")], lambda asked, _seen: Hang() if asked == "a" else None
    )
    async with story.at_work(sub_sessions=LIMITS) as house:
        await house.incoming("go")
        await story.model.request_arrived(4)
        row = await house.one("SELECT id FROM sub_sessions WHERE objective = 'a'")
        await house.incoming(f"/stop {row['id']}")
        await all_over(house)
        assert await states(house) == {"a": "ended", "b": "done"}
        (report,) = await reports(house)
        assert "did b" in report


async def test_a_result_from_before_a_fresh_start_is_never_told(story: Story) -> None:
    """L-062, L-074: whichever of the two came first."""
    gates = [asyncio.Event() for _ in range(12)]
    steps = [spawn(str(n)) for n in range(12)]
    behave(story.model, steps, lambda asked, _seen: Slow(gates[int(asked)], done(asked)))
    limits = SubSessionSettings(max_parallel=12)
    async with story.at_work(sub_sessions=limits) as house:
        await house.incoming("go")
        await story.model.request_arrived(14)
        for n, gate in enumerate(gates):
            if n == 6:
                await house.incoming("/new")
            gate.set()
        await all_over(house)
        await house.say("what was said?")
        assert not any(
            "<event" in text for m in story.model.requests[-1].messages for text in [str(m)]
        )


async def test_a_person_can_see_what_is_handed_out(story: Story) -> None:
    """L-068: in the room, and in the status."""
    steps = [
        spawn("find *trains*", name="a"),
        spawn("b", depends_on=["a"]),
        spawn("c", not_before="2026-05-04T14:30"),
    ]
    behave(story.model, steps, lambda *_: Hang())
    clock = HeldClock()
    async with story.at_work(clock=clock, sub_sessions=LIMITS) as house:
        await house.incoming("/sessions")
        assert await house.said(1) == [EMPTY_LISTS["sessions"]]
        await house.incoming("go")
        await house.said(2)
        await story.model.request_arrived(3)
        await house.incoming("/sessions")
        lines = (await house.said(3))[2].splitlines()
        assert [line.partition(" ")[2].partition(" ")[2] for line in lines] == [
            r"a: find \*trains\* (running)",
            "b (waits for a)",
            "c (not before 2026-05-04 14:30)",
        ]
        await house.incoming("/status all")
        (line,) = [line for line in (await house.said(4))[3].splitlines() if "sub-sessions" in line]
        assert "1 running, 2 waiting: sub_" in line


@settings(max_examples=examples(25))
@given(
    st.lists(st.sets(st.integers(0, 11), max_size=3), min_size=1, max_size=12),
    st.sets(st.integers(0, 11), max_size=3),
)
def test_any_graph_runs_as_its_edges_say(edges: list[set[int]], bad: set[int]) -> None:
    """L-063, L-064, L-067: against what a few lines of set arithmetic say."""
    needs = [{d for d in wanted if d < n} for n, wanted in enumerate(edges)]
    asyncio.run(check(needs, bad))


async def check(needs: Sequence[set[int]], bad: set[int]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with ModelServer() as model:
            order: list[int] = []

            def child(asked: str, _seen: Seen) -> Step | None:
                order.append(int(asked))
                return Fail(400) if int(asked) in bad else None

            behave(
                model,
                [
                    spawn(str(n), name=f"n{n}", depends_on=[f"n{d}" for d in sorted(wanted)])
                    for n, wanted in enumerate(needs)
                ],
                child,
            )
            async with house_at_work(Path(folder), model.url, sub_sessions=LIMITS) as house:
                await house.incoming("go")
                await all_over(house, len(needs))
                doomed: set[int] = set()
                for n, wanted in enumerate(needs):
                    if n in bad or wanted & doomed:
                        doomed.add(n)
                expected = {f"n{n}": "failed" if n in doomed else "done" for n in range(len(needs))}
                assert await states(house) == expected
                assert all(order.index(d) < order.index(n) for n in order for d in needs[n])
                groups = [{n} for n in range(len(needs))]
                for n, wanted in enumerate(needs):
                    for d in wanted:
                        a = next(g for g in groups if n in g)
                        b = next(g for g in groups if d in g)
                        if a is not b:
                            groups = [g for g in groups if g not in (a, b)] + [a | b]
                assert len(await reports(house)) == len(groups)
