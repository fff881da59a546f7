"""Work that a cast hands out: waited for, not waited for, and what ends it."""

import asyncio
import json
import logging
from dataclasses import replace
from pathlib import Path

import pytest

from tests.world.clock import promptly
from tests.world.delegating import batch, behave, call, done, objective, results, spawn, states
from tests.world.house import ANN, PROMPTS, Gate, house_at_work
from tests.world.model import Calls, Fail, Hang, ModelServer, Seen, Slow, Step, Text, Use
from tests.world.story import Story
from wintermute.config.schema import Backend, Llm, Roles, SubSessionSettings
from wintermute.conversation.toolbox import Caller
from wintermute.loom.records import Wards
from wintermute.loom.sub_sessions import names_still_needed, spawns_of
from wintermute.messages import Json

LIMITS = SubSessionSettings()
DELEGATING = {"spawn_sub_session", "call_agent", "call_agent_batch"}


def tools(seen: Seen) -> set[str]:
    return {tool["function"]["name"] for tool in seen.body["tools"]}


async def test_a_call_waits_for_the_answer_of_its_child(story: Story) -> None:
    """L-057, L-059, L-044: the child sees objective and context, nothing of the conversation."""
    behave(story.model, [call("count", context="Apples are red.")])
    async with story.at_work(sub_sessions=LIMITS) as house:
        await house.incoming("my secret")
        await house.incoming("go")
        assert (await house.said(2))[1] == "did count"
        child = next(seen for seen in story.model.requests if objective(seen))
        assert child.messages[1:] == [{"role": "user", "content": "Start."}]
        assert child.system.endswith("# Task Context\nApples are red.\n\n---\n\n# Objective\ncount")
        assert "secret" not in json.dumps(child.body["messages"])
        assert tools(child) == {"done"}
        assert await states(house) == {"count": "done"}


async def test_the_turns_of_a_child_hang_below_the_turn_that_asked(story: Story) -> None:
    """L-046."""
    behave(story.model, [call("count")])
    async with story.at_work(sub_sessions=LIMITS) as house:
        await house.ask("go")
        rows = await house.rows(
            "SELECT t.*, c.event_id FROM turns t JOIN casts c ON c.id = t.cast_id"
        )
        parent, child, after = rows
        assert [parent["parent_id"], child["parent_id"]] == [None, parent["id"]]
        assert (child["event_id"], after["parent_id"]) == (None, parent["id"])
        assert len({row["id"] for row in rows}) == 3
        assert child["entity_id"] != parent["entity_id"]


async def test_the_old_names_of_the_calls_are_understood(story: Story) -> None:
    """L-004."""
    use = call("count")
    behave(story.model, [Use("call_entity", use.arguments)])
    async with story.at_work(sub_sessions=LIMITS) as house:
        await house.incoming("go")
        assert await house.said(1) == ["did count"]
        row = await house.one("SELECT gate FROM observations WHERE gate LIKE 'call%'")
        assert row["gate"] == "call_agent"
        assert "call_entity" not in json.dumps([seen.body for seen in story.model.requests])


async def test_a_batch_answers_in_the_order_of_its_calls(story: Story) -> None:
    """L-057: whichever ends first, and with the failure of one in its place."""
    last = asyncio.Event()

    def child(asked: str, seen: Seen) -> Step | None:
        if asked == "a":
            return Slow(last, done("slow a"))
        if asked == "c":
            last.set()
            return Fail(400)
        return None

    behave(story.model, [batch("a", "b", "c")], child)
    async with story.at_work(sub_sessions=LIMITS) as house:
        first, second, third = json.loads(await house.ask("go"))
        assert (first, second) == (
            {"result": "slow a", "is_error": False},
            {"result": "did b", "is_error": False},
        )
        assert third["is_error"]
        assert "model_refused" in third["result"]


async def test_no_more_of_a_batch_run_at_once_than_allowed(story: Story) -> None:
    """L-057."""
    gate = asyncio.Event()
    behave(story.model, [batch(*"abcde")], lambda asked, _seen: Slow(gate, done(asked)))
    limits = SubSessionSettings(max_parallel=2)
    async with story.at_work(sub_sessions=limits) as house:
        await house.incoming("go")
        await story.model.request_arrived(3)
        assert await house.rows("SELECT 1 FROM sub_sessions") == [{"1": 1}] * 2
        gate.set()
        assert [one["result"] for one in json.loads((await house.said(1))[0])] == list("abcde")


@pytest.mark.parametrize(
    ("use", "told"),
    [
        (Use("call_agent_batch", {"calls": [{"intent": "x"}] * 4}), "at most 3"),
        (
            Use(
                "call_agent_batch", {"calls": [{"intent": "x"}, {"intent": "y", "tools": ["fly"]}]}
            ),
            "unknown tool: fly",
        ),
        (call(" "), "objective is empty"),
        (call("x", mode="loud"), "minimal, full, base_only, none"),
        (call("x", model="gpt"), "unknown model: gpt"),
        (call("x", wings=2), "'wings' was unexpected"),
        (spawn("x", tools=["read_file", "fly"]), "unknown tool: read_file, fly"),
        (spawn("x", depends_on=["sub_12345678"]), "unknown dependency: sub_12345678"),
        (spawn("x", name="me", depends_on=["me"]), "cycle: me"),
        (spawn("x", not_before="tomorrow"), "ISO 8601"),
        (spawn("x", not_before="0001-01-01"), "ISO 8601"),
        (spawn("x", timeout_s=0), "timeout_s"),
        (spawn("x", mode="loud"), "minimal, full, base_only, none"),
        (spawn("\n"), "objective is empty"),
    ],
)
async def test_an_order_that_is_wrong_starts_nothing(story: Story, use: Use, told: str) -> None:
    """L-057, L-059, L-065, P-046."""
    behave(story.model, [use])
    limits = SubSessionSettings(max_batch=3)
    async with story.at_work(sub_sessions=limits) as house:
        await house.incoming("go")
        (said,) = await house.said(1)
        assert said.startswith("error: ")
        assert told in said
        assert await states(house) == {}
        assert len(await house.rows("SELECT 1 FROM conversations")) == 1


async def test_a_spawned_child_leaves_the_room_usable_and_reports_once(story: Story) -> None:
    """L-058, L-067, L-070."""
    gate = asyncio.Event()
    behave(story.model, [spawn("count")], lambda asked, _seen: Slow(gate, done("seven")))
    async with story.at_work(sub_sessions=LIMITS) as house:
        await house.incoming("go")
        (said,) = await house.said(1)
        sub_id = json.loads(said)["id"]
        assert len(sub_id) == len("sub_") + 8
        int(sub_id.removeprefix("sub_"), 16)
        await house.incoming("still there?")
        assert (await house.said(2))[1] == "echo: still there?"
        gate.set()
        told = (await house.said(3))[2]
        assert f'<event kind="sub_session_result" id="{sub_id}">' in told
        assert "seven" in told
        row = await house.one("SELECT kind, origin FROM inbox WHERE event_id LIKE 'result%'")
        assert row == {"kind": "event", "origin": "system"}


async def test_a_grandchild_has_no_tools_to_delegate(story: Story) -> None:
    """L-025, L-060."""

    def child(asked: str, seen: Seen) -> Step | None:
        if results(seen):
            return done(f"{asked} got {results(seen)[-1]}")
        if asked == "outer":
            return Calls((call("inner", tools=["call_agent"]),))
        return Calls((call("deeper"),))

    behave(story.model, [call("outer", tools=["call_agent"])], child)
    async with story.at_work(sub_sessions=LIMITS) as house:
        await house.incoming("go")
        (said,) = await house.said(1)
        assert said.startswith("outer got inner got error: unknown tool: call_agent.")
        inner = next(seen for seen in story.model.requests if objective(seen) == "inner")
        assert tools(inner) == {"done"}


@pytest.mark.parametrize(("asked", "may"), [(None, True), (2, True), (1, False), (9, True)])
async def test_a_parent_may_ask_for_less_depth(story: Story, asked: int | None, may: bool) -> None:
    """L-060."""
    more = {} if asked is None else {"max_depth": asked}
    behave(story.model, [call("x", mode="full", **more)])
    async with story.at_work(sub_sessions=LIMITS) as house:
        await house.ask("go")
        child = next(seen for seen in story.model.requests if objective(seen))
        assert (tools(child) >= DELEGATING) is may


async def test_wards_are_the_smaller_of_parent_and_child(story: Story) -> None:
    """L-019, L-024."""
    behave(story.model, [call("x"), spawn("y", timeout_s=20), spawn("z", timeout_s=999)])
    wards = Wards(max_turns=5, max_seconds=60, max_tokens=9000, require_done=False)
    limits = SubSessionSettings(max_turns=20, timeout_s=50)
    async with story.at_work(wards=wards, sub_sessions=limits) as house:
        await house.incoming("go")
        await house.said(3)
        rows = await house.rows("SELECT wards FROM casts WHERE event_id IS NULL ORDER BY seq")
        found = [json.loads(row["wards"]) for row in rows]
        assert all(each["require_done"] for each in found)
        assert [each["max_turns"] for each in found] == [4, 5, 5]
        assert found[0]["max_tokens"] == 9000 - 110
        assert [each["max_seconds"] for each in found] == [50, 20, 50]


async def test_a_parent_without_turns_hands_nothing_out(story: Story) -> None:
    """L-024."""
    behave(story.model, [call("x")])
    wards = Wards(max_turns=1, max_seconds=60, max_tokens=9000, require_done=False)
    async with story.at_work(wards=wards, sub_sessions=LIMITS) as house:
        await house.ask("go")
        row = await house.one("SELECT result FROM observations")
        assert "max_turns leaves nothing" in row["result"]
        assert await states(house) == {}


async def test_a_child_that_fails_is_an_error_its_parent_can_act_on(story: Story) -> None:
    """L-061: truncated by its own ward, with its last step."""
    behave(
        story.model, [call("x", tools=["echo"])], lambda *_: Calls((Use("echo", {"say": "hm"}),))
    )
    limits = SubSessionSettings(max_turns=2)
    async with story.at_work(gates=[Gate()], sub_sessions=limits) as house:
        await house.incoming("go")
        (said,) = await house.said(1)
        assert said.startswith("error: sub-session sub_")
        assert 'failed (max_turns). Its last step: echo {"say": "hm"}' in said


async def test_a_child_that_never_calls_done_is_heard(story: Story) -> None:
    """L-012, L-057: what a small model says when it is asked for `done` is its answer."""
    behave(story.model, [call("count")], lambda _, seen: Text(f"there are {len(seen.messages)}"))
    limits = replace(LIMITS, max_depth=1)
    async with story.at_work(sub_sessions=limits, size="small") as house:
        await house.incoming("go")
        assert await house.said(1) == ["there are 4"]
        assert await states(house) == {"count": "done"}


async def test_a_child_that_takes_too_long_is_timed_out(story: Story) -> None:
    """L-061."""
    behave(story.model, [call("x"), spawn("y")], lambda *_: Hang())
    limits = SubSessionSettings(timeout_s=0.3)
    async with story.at_work(sub_sessions=limits) as house:
        await house.incoming("go")
        said = await house.said(2)
        assert "timed out" in said[0]
        assert 'kind="sub_session_timeout"' in said[1]
        assert await states(house) == {"x": "timed_out", "y": "timed_out"}


async def test_a_bug_fails_one_child_alone(story: Story, caplog: pytest.LogCaptureFixture) -> None:
    """L-031."""

    async def broken(_caller: Caller, _args: Json) -> object:
        raise KeyError("a bug")

    def child(asked: str, _seen: Seen) -> Step | None:
        return Calls((Use("broken"),)) if asked == "x" else None

    behave(story.model, [spawn("x", tools=["broken"]), spawn("y")], child)
    gate = Gate("broken", broken)
    async with story.at_work(gates=[gate], sub_sessions=LIMITS) as house:
        with caplog.at_level(logging.CRITICAL, "wintermute"):
            await house.incoming("go")
            said = await house.said(3)
        assert any("failed (internal_error)" in text for text in said)
        assert any("did y" in text for text in said)
        assert (await house.one("SELECT state FROM health WHERE part = 'casts'"))["state"] == "fail"


async def test_a_stop_ends_all_that_a_room_has_handed_out(story: Story) -> None:
    """L-062: eight children of a batch and a spawned one; within a second, and nothing is told."""
    behave(story.model, [spawn("later"), batch(*"abcdefgh")], lambda *_: Hang())
    async with story.at_work(sub_sessions=LIMITS) as house:
        await house.incoming("go")
        await story.model.request_arrived(10)
        async with promptly(1):
            await house.incoming("/stop")
            assert await house.said(1) == ["Stopped."]
            await house.settled()
        await house.incoming("next")
        assert (await house.said(2))[1] == "echo: next"
        rows = await house.rows("SELECT state, reason FROM casts WHERE event_id IS NULL")
        assert rows == [{"state": "truncated", "reason": "parent_terminated"}] * 9
        assert set((await states(house)).values()) == {"ended"}
        assert not await house.rows("SELECT 1 FROM inbox WHERE event_id LIKE 'result%'")


async def test_a_fresh_start_ends_what_was_spawned_before(story: Story) -> None:
    """L-062, L-074."""
    behave(story.model, [spawn("later")], lambda *_: Hang())
    async with story.at_work(sub_sessions=LIMITS) as house:
        await house.incoming("go")
        await story.model.request_arrived(3)
        await house.incoming("/new")
        await house.said(2)
        row = await house.one("SELECT state, reason FROM casts WHERE event_id IS NULL")
        assert row == {"state": "truncated", "reason": "parent_terminated"}
        await house.incoming("/stop")
        assert (await house.said(3))[2] == "Nothing was running."


async def test_a_spawned_child_outlives_the_cast_and_a_called_one_does_not(story: Story) -> None:
    """L-062: the parent's own time is over first."""
    gate = asyncio.Event()

    def child(asked: str, _seen: Seen) -> Step | None:
        return Slow(gate, done("late")) if asked == "spawned" else Hang()

    behave(story.model, [spawn("spawned"), call("called")], child)
    wards = Wards(max_turns=9, max_seconds=0.5, max_tokens=9000, require_done=False)
    async with story.at_work(wards=wards, sub_sessions=LIMITS) as house:
        await house.ask("go")
        row = await house.one(
            "SELECT c.reason FROM casts c JOIN branches b ON b.id = c.branch_id"
            " JOIN sub_sessions s ON s.branch_id = b.id WHERE s.objective = 'called'"
        )
        assert row["reason"] == "parent_terminated"
        assert (await states(house))["spawned"] in ("running", "timed_out")


@pytest.mark.parametrize(
    ("mode", "there", "missing"),
    [
        ("minimal", ["You are a worker", "# Objective"], ["# Core Instructions", "# Current Time"]),
        ("base_only", ["# Core Instructions", "# Objective"], ["# Current Time", "# Active Tasks"]),
        ("full", ["# Core Instructions", "# Current Time", "# Skills"], ["# Conversation Summary"]),
    ],
)
async def test_each_mode_has_its_own_instructions(
    story: Story, mode: str, there: list[str], missing: list[str]
) -> None:
    """P-041..P-044."""
    behave(story.model, [call("x", mode=mode, context="c")])
    async with story.at_work(prompts=PROMPTS, sub_sessions=LIMITS) as house:
        await house.incoming("go")
        assert await house.said(1) == ["did x"]
        child = next(seen for seen in story.model.requests if objective(seen))
        system = child.system
        assert all(text in child.prompt for text in there)
        assert not any(text in child.prompt for text in missing)
        assert system.endswith("# Task Context\nc\n\n---\n\n# Objective\nx")


async def test_without_instructions_the_objective_is_the_first_message(tmp_path: Path) -> None:
    """P-045."""

    def choose(seen: Seen) -> Step:
        if seen.messages[-1]["role"] == "tool":
            return Text(results(seen)[-1])
        return Calls((call("x", mode="none"),)) if seen.last_user == "go" else done("bare")

    async with ModelServer(rules=False, default=choose) as model:
        async with house_at_work(tmp_path, model.url, sub_sessions=LIMITS) as house:
            await house.incoming("go")
            assert await house.said(1) == ["bare"]
        assert model.requests[1].messages == [{"role": "user", "content": "# Objective\nx"}]


async def test_children_have_their_own_models_or_the_one_that_is_named(tmp_path: Path) -> None:
    """L-059."""
    async with ModelServer() as one, ModelServer() as two, ModelServer() as three:
        behave(one, [call("x"), call("y", model="three")])
        for other in (two, three):
            behave(other, [])
        backends = {
            name: Backend(base_url=server.url, model=name)
            for name, server in (("one", one), ("two", two), ("three", three))
        }
        llm = Llm(backends=backends, roles=Roles(base=("one",), sub_sessions=("two",)))
        async with house_at_work(tmp_path, None, llm=llm, sub_sessions=LIMITS) as house:
            await house.incoming("go")
            assert await house.said(1) == ["did x; did y"]
        assert [objective(seen) for seen in two.requests] == ["x"]
        assert [objective(seen) for seen in three.requests] == ["y"]


async def test_a_child_acts_for_the_room_of_its_parent(story: Story) -> None:
    """L-059: scope, origin and evidence are those of the room."""
    callers: list[Caller] = []

    async def note(caller: Caller, _args: Json) -> object:
        callers.append(caller)
        return "noted"

    def child(asked: str, seen: Seen) -> Step | None:
        return None if results(seen) else Calls((Use("note"),))

    behave(story.model, [call("x", tools=["note"]), Use("note")], child)
    async with story.at_work(gates=[Gate("note", note)], sub_sessions=LIMITS) as house:
        event = await house.incoming("go")
        await house.said(1)
        below, above = callers
        assert below.conversation_id == above.conversation_id
        assert (below.scope, below.origin, below.event_id) == (f"person:{ANN}", "owner", event)
        assert below.cast_id != above.cast_id


def spawned(name: str | None, *needs: str) -> Json:
    args = {"objective": "x", "name": name, "depends_on": list(needs)}
    return {"id": "1", "name": "spawn_sub_session", "arguments": json.dumps(args)}


@pytest.mark.parametrize(
    ("calls", "seen", "names"),
    [
        ([spawned("a"), spawned("b", "a")], {0}, {"a"}),
        ([spawned("a"), spawned("b", "a")], {0, 1}, set()),
        ([spawned("a"), spawned("b", "a"), spawned(None, "b")], {0, 1}, {"a", "b"}),
        ([spawned("a", "a")], set(), {"a"}),
        ([{"name": "spawn_sub_session", "arguments": "[{"}], set(), set()),
        ([{"name": "spawn_sub_session", "arguments": '{"depends_on": [1, {}]}'}], set(), set()),
        ([{"name": "echo", "arguments": '{"depends_on": ["a"]}'}], set(), set()),
    ],
)
def test_calls_show_what_they_depend_on(calls: list[Json], seen: set[int], names: set[str]) -> None:
    assert names_still_needed(spawns_of(calls), seen) == names
