"""The tools that change our own stores: who may use them, and what they say was stored."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.world.toolbox import ANN, BEN, OWNER, ROOM, SKILL, Desk, open_desk
from wintermute.clock import SystemClock
from wintermute.conversation.toolbox import Accepted, Rejected, Toolbox
from wintermute.errors import ToolFailed
from wintermute.ids import new_id
from wintermute.jobs import Jobs
from wintermute.messages import Call, Json, Origin
from wintermute.tools.memory import AddSkill, AppendMemory
from wintermute.tools.task import TaskTool

FIELDS = {"id", "priority", "status", "content", "schedule", "next_due", "scope"}


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    async with open_desk(tmp_path) as opened:
        yield opened


async def test_one_tool_does_all_that_tasks_need(desk: Desk) -> None:
    """T-001, T-002, T-004 to T-008: each result is what is stored."""
    made = await desk.task("add", content="Renew the\npassport")
    assert made.keys() == FIELDS
    assert made == {
        "id": made["id"],
        "priority": 5,
        "status": "active",
        "content": "Renew the passport",
        "schedule": None,
        "next_due": None,
        "scope": ANN,
    }
    named = {"id": made["id"]}
    changed = {**made, "priority": 2}
    assert await desk.task("update", **named, priority=2) == changed
    assert await desk.task("list") == [changed]
    assert await desk.task("pause", **named) == {**changed, "status": "paused"}
    assert await desk.task("list") == []
    assert await desk.task("resume", **named) == changed
    done = {**changed, "status": "completed", "reason": "renewed"}
    assert await desk.task("complete", **named, reason="renewed") == done
    assert await desk.task("list", status="completed") == [done]
    assert await desk.task("delete", **named) == {**done, "status": "deleted"}
    assert await desk.task("list", status="all") == [{**done, "status": "deleted"}]


async def test_a_task_knows_where_it_was_asked_for(desk: Desk) -> None:
    """Lesson 20; the room in which it will be due."""
    await desk.task("add", ROOM, content="milk")
    row = await desk.database.row("SELECT conversation_id, origins FROM tasks")
    assert row is not None
    assert row["conversation_id"] == desk.callers[ROOM].conversation_id
    assert json.loads(row["origins"]) == [f"${ROOM}"]
    [kept] = await desk.changes.history(("task",), ROOM)
    assert (kept.cause, kept.changes[0].evidence) == ("tool", (f"${ROOM}",))


@pytest.mark.parametrize(
    ("args", "told"),
    [
        ({"action": "finish"}, "add, list, complete, update, pause, resume, delete"),
        ({}, "add, list, complete, update, pause, resume, delete"),
        ({"action": "add"}, "content must be a text"),
        ({"action": "add", "content": "x", "priority": 0}, "integer from 1"),
        ({"action": "add", "content": "x", "id": "task_00000000"}, "add takes .*, not id"),
        ({"action": "complete", "reason": "done"}, "needs the id"),
        ({"action": "complete", "id": "{id}"}, "reason"),
        ({"action": "update", "id": "{id}"}, "new content, priority, schedule"),
        ({"action": "update", "id": "{id}", "status": "paused"}, "update takes .*, not status"),
        ({"action": "update", "id": "{id}", "scope": "global"}, "update takes .*, not scope"),
        ({"action": "resume", "id": "{id}"}, "is active already"),
        ({"action": "delete", "id": "task_00000000"}, "no task task_00000000"),
    ],
)
async def test_calls_without_sense_change_nothing(
    desk: Desk, args: dict[str, str], told: str
) -> None:
    """T-001, T-003, T-005, T-009."""
    made = await desk.task("add", content="tea")
    known = {key: made["id"] if value == "{id}" else value for key, value in args.items()}
    with pytest.raises(ToolFailed, match=told):
        await desk.call(desk.caller(ANN), known)
    assert await desk.task("list", status="all") == [made]


@pytest.mark.parametrize(("own", "other"), [(ANN, ROOM), (ROOM, ANN), (ANN, BEN), (BEN, ANN)])
@pytest.mark.parametrize("action", ["complete", "update", "pause", "resume", "delete"])
async def test_another_room_cannot_touch_a_task(
    desk: Desk, action: str, own: str, other: str
) -> None:
    """T-013, T-015: not even the owner from elsewhere."""
    made = await desk.task("add", own, content="canary")
    assert await desk.task("list", other, status="all") == []
    extra: dict[str, Json] = {"complete": {"reason": "x"}, "update": {"priority": 1}}
    args = {"action": action, "id": made["id"], **extra.get(action, {})}
    for caller in (desk.caller(other), desk.caller(other, "owner")):
        with pytest.raises(ToolFailed, match=f"^no task {made['id']}$"):
            await desk.call(caller, args)
    assert await desk.task("list", own) == [made]


@pytest.mark.parametrize(
    ("scope", "origin", "may"),
    [
        (ANN, "owner", True),
        (ANN, "timer", True),
        (ROOM, "owner", True),
        (ROOM, "other", False),
        (ROOM, "timer", False),
        (BEN, "other", False),
        (BEN, "system", False),
    ],
)
async def test_only_the_owner_has_tasks_everywhere(
    desk: Desk, scope: str, origin: Origin, may: bool
) -> None:
    """T-014."""
    caller = desk.caller(scope, origin)
    add = {"action": "add", "content": "everywhere", "scope": "global"}
    made = await desk.call(desk.caller(ANN), add)
    for seen_in in (ANN, BEN, ROOM):
        assert await desk.task("list", seen_in) == [made]
    pause = {"action": "pause", "id": made["id"]}
    if may:
        assert (await desk.call(caller, add))["scope"] == "global"
        assert (await desk.call(caller, pause))["status"] == "paused"
        assert len(await desk.changes.history(("task",), ANN)) == 3  # nobody else can undo it
        return
    for args in (add, pause):
        with pytest.raises(ToolFailed, match="only the owner"):
            await desk.call(caller, args)
    assert await desk.task("list") == [made]
    here = await desk.call(caller, {**add, "scope": "here"})
    assert here["scope"] == scope


@pytest.mark.parametrize(
    ("scope", "origin", "may"),
    [
        (ANN, "owner", True),
        (ROOM, "owner", True),
        (ANN, "system", True),
        (ANN, "timer", True),
        (ROOM, "other", False),
        (ROOM, "system", False),
        (BEN, "timer", False),
        (BEN, "other", False),
    ],
)
async def test_the_owner_alone_teaches(desk: Desk, scope: str, origin: Origin, may: bool) -> None:
    """P-037: they are shown in every room."""
    tool = AddSkill(desk.skills, OWNER)
    if may:
        caller = desk.caller(scope, origin)
        place = {"path": "data/skills/tea.md"}
        assert await tool.run(caller, SKILL) == {**place, "created": True}
        better = {**SKILL, "documentation": "Boil it twice."}
        assert await tool.run(caller, better) == {**place, "created": False}
        assert await desk.skills.read("tea") == "Making tea\n\nBoil it twice.\n"
        return
    with pytest.raises(ToolFailed, match="only the owner"):
        await tool.run(desk.caller(scope, origin), SKILL)
    assert await desk.skills.listed() == ()


async def test_a_memory_is_stored_for_the_scope_in_which_it_was_told(desk: Desk) -> None:
    """M-004 to M-007, M-010."""
    first = await desk.remember(BEN, entry="- Ben likes\njazz.")
    assert first["text"] == "Ben likes jazz."
    assert (first["source"], first["stored"]) == ("user_explicit", "stored")
    again = await desk.remember(BEN, entry="ben likes JAZZ.")
    assert again == {**first, "stored": "known"}
    [fact] = await desk.facts.live(BEN)
    assert (fact.id, fact.origins) == (first["id"], (f"${BEN}",))
    assert await desk.facts.live(ANN) == await desk.facts.live(ROOM) == []


async def test_the_source_of_a_memory_can_be_raised(desk: Desk) -> None:
    """M-005, M-007."""
    first = await desk.remember(ANN, entry="Ann likes tea.", source="harvest")
    assert (first["source"], first["stored"]) == ("harvest", "stored")
    raised = await desk.remember(ANN, entry="Ann likes tea.")
    assert raised == {**first, "source": "user_explicit", "stored": "raised"}


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (
            {"entry": "Ann likes tea.", "source": "hearsay"},
            "user_explicit, harvest, dreaming_merge",
        ),
        ({"entry": "ab"}, "at least 3"),
        ({"entry": "x" * 60_000}, "at most 2000"),
    ],
)
async def test_a_memory_against_a_rule_is_refused(
    desk: Desk, args: dict[str, str], told: str
) -> None:
    """M-005, M-006."""
    with pytest.raises(ToolFailed, match=told):
        await desk.remember(ANN, **args)
    assert await desk.facts.live(ANN) == []


@pytest.mark.parametrize(
    ("name", "arguments", "told"),
    [
        ("task", {"action": "finish"}, "'add', 'list', 'complete', 'update', 'pause'"),
        ("task", {"content": "x"}, "'action' is a required property"),
        ("task", {"action": "add", "content": "x", "priority": "3"}, "not of type 'integer'"),
        ("task", {"action": "list", "status": "open"}, "'active', 'paused', 'completed'"),
        ("add_skill", {"skill_name": "tea"}, "'summary' is a required property"),
        ("append_memory", {"entry": "x", "source": "me"}, "'harvest', 'dreaming_merge'"),
        ("append_memory", {"entry": 3}, "not of type 'string'"),
    ],
)
async def test_what_the_schema_refuses_is_told_with_the_choice(
    desk: Desk, name: str, arguments: Json, told: str
) -> None:
    """L-030, T-001, M-005."""
    verdict = toolbox(desk).accept(Call("call_1", name, json.dumps(arguments)))
    assert isinstance(verdict, Rejected)
    assert told in verdict.reason


async def test_the_definitions_are_short_and_their_examples_are_accepted(desk: Desk) -> None:
    tools = toolbox(desk)
    for definition in tools.definitions():
        function = definition["function"]
        example, _ = json.JSONDecoder().raw_decode(
            function["description"], function["description"].index("{")
        )
        call = Call("call_1", function["name"], json.dumps(example))
        assert isinstance(tools.accept(call), Accepted)
        assert function["parameters"]["additionalProperties"] is False
    assert AddSkill(desk.skills, OWNER).durable


def toolbox(desk: Desk) -> Toolbox:
    return Toolbox(
        [
            TaskTool(desk.tasks),
            AddSkill(desk.skills, OWNER),
            AppendMemory(desk.facts, desk.casts, Jobs(SystemClock(), new_id)),
        ]
    )


async def test_what_is_not_due_any_more_says_how_it_would_be(desk: Desk) -> None:
    """T-005, T-006: "done" to what comes again ends all of it; a paused task gets no new time."""
    daily = {"content": "Feed the cat", "schedule_type": "daily", "at": "09:00"}
    task = (await desk.task("add", **daily))["id"]
    assert (
        "if it was done just this once, resume it"
        in (await desk.task("complete", id=task, reason="fed"))["note"]
    )
    with pytest.raises(ToolFailed, match="resume it first"):
        await desk.task("update", id=task, at="10:00")
    assert "note" not in await desk.task("resume", id=task)
    await desk.task("pause", id=task)
    updated = await desk.task("update", id=task, at="10:00")
    assert (updated["next_due"], updated["note"]) == (
        None,
        "while it is paused it is not due: resume it",
    )
