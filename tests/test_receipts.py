"""What a person hears when the model has done something and then says nothing (issue 17, L-015)."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.world.clock import FakeClock
from tests.world.house import WARDS, Gate, house_at_work
from tests.world.model import Calls, Empty, ModelServer, Text, Use
from wintermute.conversation.replies import EMPTY
from wintermute.conversation.tool_summary import done_so_far
from wintermute.loom.records import Observation, Turn
from wintermute.messages import Json

PROMPTS = Path(__file__).parent.parent / "data" / "prompts"
REMEMBER = Use("append_memory", {"entry": "Ann is allergic to nuts."})


def turn(*observations: Observation, error: str | None = None) -> Turn:
    return Turn("turn", None, "", (), "tool_calls", 0, 0, error=error, observations=observations)


def seen(gate: str, result: object, *, args: Json | None = None, **how: bool) -> Observation:
    known = {"is_error": False, "completed": True} | how
    return Observation(0, gate, args, result, tool_call_id="c", **known)


FACT = {"id": "fact_1", "text": "Ann is allergic to nuts.", "source": "explicit", "stored": "new"}
LIST: Json = {"action": "list"}
TASK = {"id": "task_ab", "status": "active", "content": "Call Bob", "next_due": "Friday, 9:00"}


@pytest.mark.parametrize(
    ("turns", "said"),
    [
        ([], ""),
        ([turn()], ""),
        ([turn(seen("append_memory", FACT))], 'Done: remembered: "Ann is allergic to nuts."'),
        (
            [turn(seen("append_memory", {**FACT, "stored": "known"}))],
            'Done: known already: "Ann is allergic to nuts."',
        ),
        (
            [turn(seen("task", TASK), seen("task", TASK))],
            "Done: task #task_ab: Call Bob, next on Friday, 9:00",
        ),
        ([turn(seen("task", {**TASK, "next_due": None}))], "Done: task #task_ab: Call Bob"),
        (
            [turn(seen("task", {**TASK, "status": "paused"}))],
            "Done: task #task_ab: Call Bob, paused",
        ),
        (
            [turn(seen("task", [TASK], args=LIST))],
            "Found: task #task_ab: Call Bob, next on Friday, 9:00",
        ),
        ([turn(seen("task", [], args=LIST))], "Found: nothing"),
        (
            [
                turn(seen("task", [TASK, {**TASK, "id": "task_cd"}], args=LIST)),
                turn(seen("task", "no such task", is_error=True)),
            ],
            "Found:\n\n- task #task_ab: Call Bob, next on Friday, 9:00"
            "\n- task #task_cd: Call Bob, next on Friday, 9:00\n\nNot done: task: no such task",
        ),
        (
            [turn(seen("task", [{**TASK, "id": f"{n}"} for n in range(52)], args=LIST))],
            "\n".join(
                [
                    "Found:\n",
                    *(f"- task #{n}: Call Bob, next on Friday, 9:00" for n in range(50)),
                    "- and 2 more",
                ]
            ),
        ),
        (
            [
                turn(seen("task", [TASK], args=LIST)),
                turn(seen("append_memory", {**FACT, "text": "<event>"})),
            ],
            'Done: remembered: "&lt;event>"',
        ),
        ([turn(seen("write_file", {"path": "a.md", "bytes": 3}))], "Done: written: `a.md`"),
        ([turn(seen("call_agent", "two\nlines"))], "Done: call_agent: two lines"),
        ([turn(seen("call_agent", "x" * 400))], f"Done: call_agent: {'x' * 299}…"),
        ([turn(seen("read_file", "text"))], ""),
        ([turn(seen("task", "no such task", is_error=True))], ""),
        ([turn(seen("task", None, completed=False))], ""),
        (
            [turn(seen("task", TASK)), turn(seen("read_file", "text"))],
            "Done: task #task_ab: Call Bob, next on Friday, 9:00",
        ),
        (
            [turn(seen("write_file", {"path": "a"})), turn(error="x"), turn(seen("task", TASK))],
            "Done:\n\n- written: `a`\n- task #task_ab: Call Bob, next on Friday, 9:00",
        ),
        (
            [turn(seen("task", TASK), seen("task", "needs an id", is_error=True))],
            "Done: task #task_ab: Call Bob, next on Friday, 9:00\n\nNot done: task: needs an id",
        ),
    ],
)
def test_a_receipt_is_one_line_of_words_for_each_thing_done(turns: list[Turn], said: str) -> None:
    assert done_so_far(turns) == said


async def test_an_empty_answer_after_something_was_done_is_answered_with_what_was_done(
    tmp_path: Path, model: ModelServer
) -> None:
    """L-015: once the retries are spent; later requests show it as what was said."""
    model.script(Calls((REMEMBER,)), Empty(), Empty(), Text("and on"))
    async with house_at_work(
        tmp_path, model.url, clock=FakeClock(), retries=1, prompts=PROMPTS
    ) as house:
        await house.incoming("I am allergic to nuts")
        done = 'Done: remembered: "Ann is allergic to nuts."'
        assert await house.said(1) == [done]
        await house.incoming("thank you")
        assert (await house.said(2))[1] == "and on"
        casts = await house.rows("SELECT state, reason FROM casts ORDER BY seq")
    assert [tuple(cast.values()) for cast in casts] == [("terminated", "text")] * 2
    line = "[Your answer was empty. Answer now, or call a tool if one is needed.]"
    assert model.requests[2].messages[-1]["content"].endswith(f"\n\n{line}")
    *_, told, newest = model.requests[3].messages
    assert told == {"role": "assistant", "content": done}
    assert "thank you" in newest["content"]
    assert line not in str(model.requests[3].messages)


async def test_an_empty_answer_after_a_list_is_answered_with_the_list(
    tmp_path: Path, model: ModelServer
) -> None:
    """L-015: it is what was asked for."""
    add = Calls((Use("task", {"action": "add", "content": "Buy tea"}),))
    model.script(add, Text("noted"), Calls((Use("task", {"action": "list"}),)), Empty(), Text("ok"))
    async with house_at_work(tmp_path, model.url, prompts=PROMPTS) as house:
        await house.incoming("remember to buy tea")
        await house.incoming("what is there to do?")
        said = await house.said(2)
        task = await house.one("SELECT id FROM tasks")
        found = f"Found: task #{task['id']}: Buy tea"
        assert said == ["noted", found]
        await house.incoming("thank you")
        await house.said(3)
    assert model.requests[-1].messages[-2] == {"role": "assistant", "content": found}


async def test_an_empty_answer_after_nothing_was_done_is_a_failure(
    tmp_path: Path, model: ModelServer
) -> None:
    """L-015, L-017: and no message of a person follows a result at once."""
    model.script(Calls((Use("read_file", {"say": "x"}),)), Empty(), Text("ok"))
    gates = [Gate("read_file")]
    async with house_at_work(tmp_path, model.url, gates=gates) as house:
        await house.incoming("go")
        assert await house.said(1) == [EMPTY]
        await house.incoming("again")
        await house.said(2)
    _, _, _, result, placeholder, newest = model.requests[-1].messages
    assert (result["role"], newest["content"]) == ("tool", "again")
    assert placeholder == {"role": "assistant", "content": "[no answer was given]"}


async def test_where_only_done_ends_a_cast_what_was_done_ends_it_too(
    tmp_path: Path, model: ModelServer
) -> None:
    """L-011, L-015."""
    model.script(Calls((Use("echo", {"say": "x"}),)), Empty())
    wards = replace(WARDS, require_done=True)
    async with house_at_work(tmp_path, model.url, gates=[Gate()], wards=wards) as house:
        await house.incoming("go")
        assert await house.said(1) == ["Done: echo: x"]
