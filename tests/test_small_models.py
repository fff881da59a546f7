"""`llm.backends.NAME.size: small`: shorter texts, fewer tools, and nothing taken away unseen."""

import json
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.world.clock import FakeClock
from tests.world.configuration import GOOD, configuration, problem
from tests.world.delegating import behave, call, done
from tests.world.house import PROMPTS, house_at_work, open_house
from tests.world.model import Calls, Fail, ModelServer, Text, Use
from tests.world.promised import LIMITS, MORNING, after, check, ended, promise
from tests.world.story import Story
from wintermute.config.schema import Backend
from wintermute.conversation.toolbox import Accepted, Toolbox
from wintermute.ids import new_id
from wintermute.llm.backend import Endpoint
from wintermute.messages import Call, Json, Request

HELLO = Request(({"role": "system", "content": "Be kind."}, {"role": "user", "content": "hi"}))
TOOLS = ({"type": "function", "function": {"name": "echo", "parameters": {"type": "object"}}},)
SMALL = GOOD.replace("model:", "size: small, model:")


def names(definitions: Sequence[Json]) -> list[str]:
    return [each["function"]["name"] for each in definitions]


@pytest.mark.parametrize(
    ("written", "near"), [("tiny", "small"), ("smal", "small"), ("fill", "full")]
)
def test_an_unknown_size_is_told_the_nearest(tmp_path: Path, written: str, near: str) -> None:
    """L-082."""
    said = problem(tmp_path, GOOD.replace("model:", f"size: {written}, model:"))
    assert said.endswith(f"llm.backends.local.size: must be one of full, small; nearest: {near}")


def test_a_layout_that_is_none_is_told_the_two_and_the_nearest(tmp_path: Path) -> None:
    said = problem(tmp_path, GOOD + "context: {layout: apend}\n")
    assert said.endswith("context.layout: must be one of append, system; nearest: append")


@pytest.mark.parametrize(
    ("text", "greets", "levels"),
    [
        (GOOD, True, 2),
        (SMALL, False, 0),
        (SMALL + "seed: {enabled: true}\n", True, 0),
        (SMALL + "sub_sessions: {max_depth: 1}\n", False, 1),
        (GOOD + "seed: {enabled: false}\nsub_sessions: {max_depth: 0}\n", False, 0),
    ],
)
def test_a_small_first_model_neither_greets_nor_delegates_unless_that_is_written(
    tmp_path: Path, text: str, greets: bool, levels: int
) -> None:
    config = configuration(tmp_path, text)
    assert (config.opening.enabled, config.levels) == (greets, levels)


async def test_a_small_model_is_offered_less_in_fewer_words(story: Story) -> None:
    """P-006, L-011: sorted, the same arguments accepted, `done` only where it ends the cast."""
    async with story.house(prompts=PROMPTS, sub_sessions=LIMITS) as house:
        toolbox = house.runner.toolbox
    full, small = toolbox.definitions(done=False), toolbox.definitions("small", done=False)
    assert names(toolbox.definitions()) == list(toolbox.names)
    assert set(toolbox.names) - set(names(full)) == {"done"}
    kept = ["add_skill", "append_memory", "night", "read_file", "recall", "task", "write_file"]
    assert names(small) == kept  # delegation is not asked for by the configuration
    assert len(json.dumps(small)) < len(json.dumps(full)) / 2
    wide = {each["function"]["name"]: each["function"]["parameters"] for each in full}
    for each in small:
        arguments = each["function"]["parameters"]["properties"]
        assert arguments.keys() <= wide[each["function"]["name"]]["properties"].keys()


async def test_delegation_that_is_asked_for_is_one_tool_for_a_small_model(story: Story) -> None:
    limits = replace(LIMITS, max_depth=1)
    async with story.house(prompts=PROMPTS, sub_sessions=limits) as house:
        offered = names(house.runner.toolbox.definitions("small", done=False))
    assert {name for name in offered if "agent" in name or "spawn" in name} == {"call_agent"}


async def test_done_is_not_offered_where_text_ends_the_cast_and_works_anyway(story: Story) -> None:
    """L-011."""
    story.model.script(done("It is noon."))
    async with story.at_work(prompts=PROMPTS) as house:
        await house.incoming("what time is it?")
        assert await house.said(1) == ["It is noon."]
    assert "done" not in names(story.model.requests[0].body["tools"])


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({"answer": "yes", "more": None}, {"answer": "yes", "more": None}),
        ({"answer": "yes", "kind": ""}, {"answer": "yes"}),
        ({"answer": "yes", "kind": None, "count": ""}, {"answer": "yes"}),
        ({"answer": "yes", "note": ""}, {"answer": "yes", "note": ""}),
    ],
)
def test_a_blank_that_the_schema_refuses_counts_as_left_out(given: Json, kept: Json) -> None:
    """L-030: models fill in every argument there is; a blank that may mean something stays."""
    properties = {"kind": {"enum": ["a", "b"]}, "count": {"type": "integer"}}
    schema = {"type": "object", "properties": properties | {"answer": {}, "note": {}}}

    verdict = Toolbox([Notes(schema)]).accept(Call("1", "note", json.dumps(given)))
    assert isinstance(verdict, Accepted)
    assert verdict.args == kept


class Notes:
    """A tool with this schema."""

    name = "note"
    description = "Notes something."
    durable = True

    def __init__(self, schema: Json) -> None:
        self.parameters = schema

    async def run(self, caller: Any, args: Json) -> object:
        return args


@pytest.mark.parametrize(
    "args",
    [
        {"action": "list", "scope": "here"},
        {"action": "list", "scope": "global", "priority": 5, "content": "", "id": ""},
        {"action": "list", "content": "", "at": "", "schedule_type": "", "day_of_week": ""},
        {"action": "list", "schedule_type": "daily", "at": "18:00"},
        {"action": "add", "content": "Buy milk", "status": "active", "id": None, "rrule": ""},
        {"action": "add", "content": "Buy milk", "id": "reminder_1", "reason": "A reminder"},
    ],
)
async def test_task_tolerates_what_does_nothing(story: Story, args: Json) -> None:
    """T-001: these were refused, three times of three."""
    story.model.script(Calls((Use("task", args),)), Text("ok"))
    async with story.at_work(prompts=PROMPTS) as house:
        await house.incoming("go")
        assert await house.said(1) == ["ok"]
        assert (await house.one("SELECT is_error FROM observations"))["is_error"] == 0


async def test_calls_of_a_small_model_come_one_by_one_if_allowed(model: ModelServer) -> None:
    complaint = {"error": {"message": "Unknown parameter: 'parallel_tool_calls'"}}
    model.script(Text("one"), Fail(400, complaint), Text("two"))
    asked = replace(HELLO, tools=TOOLS)
    settings = Backend(base_url=model.url, model="m", size="small")
    async with aclosing(Endpoint("a", settings, new_id)) as endpoint:
        assert [(await endpoint.ask(asked)).text for _ in range(3)][:2] == ["one", "two"]
    told = [request.body.get("parallel_tool_calls") for request in model.requests]
    assert told == [False, False, None, None]


@pytest.mark.parametrize(("size", "tasks"), [("small", 1), ("full", 2)])
async def test_what_a_small_model_says_twice_is_done_once(
    story: Story, size: str, tasks: int
) -> None:
    """L-007: in their order; only a repetition, word for word, is not run."""
    again = Use("task", {"action": "add", "content": "Buy milk"})
    story.model.script(Calls((again, again)), Text("noted"))
    async with story.house(prompts=PROMPTS, size=size) as house:
        async with house.working():
            await house.incoming("milk!")
            assert await house.said(1) == ["noted"]
        assert (await house.one("SELECT count(*) AS n FROM tasks"))["n"] == tasks


SKILL = {"skill_name": "tea", "summary": "Making tea", "documentation": "Boil."}


@pytest.mark.parametrize(("size", "refused"), [("small", True), ("full", False)])
async def test_a_run_of_a_small_model_only_adds(story: Story, size: str, refused: bool) -> None:
    """T-047: a new skill, task and file are made; nothing that is there changes without a yes."""
    clock, notes = FakeClock(MORNING), story.folder / "notes"
    notes.mkdir()
    (story.folder / "data").mkdir()
    (notes / "old.md").write_text("old")
    async with open_house(
        story.folder / "data",
        story.model.url,
        prompts=PROMPTS,
        sub_sessions=LIMITS,
        clock=clock,
        roots=[notes],
        size=size,
    ) as house:
        task = await promise(house, "Price check", check())
        uses = [
            Use("add_skill", SKILL),
            Use("add_skill", SKILL | {"documentation": "Boil it twice."}),
            Use("task", {"action": "add", "content": "Buy milk"}),
            Use("task", {"action": "update", "id": task.id, "content": "Other"}),
            Use("write_file", {"path": "new.md", "content": "new"}),
            Use("write_file", {"path": "old.md", "content": "gone"}),
            Use("write_file", {"path": "data/MEMORIES.txt", "content": "- gone\n"}),
        ]
        story.model.script(Calls(tuple(uses)), done("checked"))
        async with house.working():
            after(clock, "2026-03-02T09:00")
            await house.fire()
            await ended(house)
        rows = await house.rows("SELECT result FROM observations WHERE gate <> 'done' ORDER BY n")
        told = ["here you may only add" in row["result"] for row in rows]
    assert told == ([False, True, False, True, False, True, True] if refused else [False] * 7)
    assert (notes / "new.md").read_text() == "new"
    assert (notes / "old.md").read_text() == ("old" if refused else "gone")


@pytest.mark.parametrize(("size", "kept"), [("small", "old"), ("full", "gone")])
async def test_work_of_a_small_model_only_adds_as_well(story: Story, size: str, kept: str) -> None:
    """L-061: nobody watches a sub-session, whoever has asked for it."""
    notes = story.folder / "notes"
    notes.mkdir()
    (story.folder / "data").mkdir()
    (notes / "old.md").write_text("old")
    write = Calls((Use("write_file", {"path": "old.md", "content": "gone"}),))
    behave(
        story.model,
        [call("tidy up")],
        lambda _, seen: write if len(seen.messages) < 4 else done("ok"),
    )
    async with house_at_work(
        story.folder / "data",
        story.model.url,
        prompts=PROMPTS,
        sub_sessions=replace(LIMITS, max_depth=1),
        roots=[notes],
        size=size,
    ) as house:
        await house.ask("go")
    assert (notes / "old.md").read_text() == kept
