"""One cast: the order of gates, what ends it, and what the model is told of its mistakes."""

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.world.house import ANN, SYSTEM, WARDS, Gate, open_house
from tests.world.model import Calls, Fail, Html, ModelServer, Plain, Text, Use
from wintermute.config.schema import Secret
from wintermute.conversation.toolbox import Caller
from wintermute.errors import ToolFailed
from wintermute.messages import Json
from wintermute.templates import read_template


def say(word: str, id: str | None = None) -> Use:  # noqa: A002  as in the wire format
    return Use("echo", {"say": word}, id)


def done(answer: Any) -> Use:
    return Use("done", {"answer": answer})


def results(messages: list[Json]) -> list[str]:
    """The tool results that a request shows."""
    return [message["content"] for message in messages if message["role"] == "tool"]


def contents(folder: Path) -> list[bytes]:
    return [file.read_bytes() for file in folder.rglob("*") if file.is_file()]


async def test_gates_run_in_order_and_the_model_sees_each_result(
    tmp_path: Path, model: ModelServer
) -> None:
    """L-006, L-007: B starts after A ended; the intent and the tools are in every request."""
    running: list[str] = []

    async def strict(_caller: Caller, args: Json) -> object:
        running.append(f"+{args['say']}")
        await house.rows("SELECT 1")
        running.append(f"-{args['say']}")
        return args["say"].upper()

    model.script(Calls((say("a"), say("b"), say("c")), "one moment"), Text("fine"))
    async with open_house(tmp_path, model.url, gates=[Gate(act=strict)]) as house, house.working():
        await house.incoming("go")
        assert await house.said(1) == ["fine"]
    assert running == ["+a", "-a", "+b", "-b", "+c", "-c"]
    first, second = model.requests
    assert first.messages == [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": "go"},
    ]
    assert second.messages[:2] == first.messages
    assert second.messages[2]["content"] == "one moment"
    assert results(second.messages) == ["A", "B", "C"]
    assert first.body["tools"] == second.body["tools"]
    assert [tool["function"]["name"] for tool in first.body["tools"]] == ["done", "echo"]


async def test_done_in_the_middle_ends_the_cast(tmp_path: Path, model: ModelServer) -> None:
    """L-008, and L-017: the call that never ran has a result in the next request all the same."""
    echo = Gate()
    model.script(Calls((say("a"), done("the end"), say("never"))), Text("hello again"))
    async with open_house(tmp_path, model.url, gates=[echo]) as house, house.working():
        await house.incoming("go")
        assert await house.said(1) == ["the end"]
        await house.incoming("and now?")
        assert await house.said(2) == ["the end", "hello again"]
        cast = await house.one("SELECT * FROM casts WHERE intent = 'go'")
        assert (cast["state"], cast["reason"], cast["result"]) == ("terminated", "done", "the end")
        assert len(await house.rows("SELECT 1 FROM observations")) == 2
    assert echo.taken == [{"say": "a"}]
    assert results(model.requests[1].messages) == ["a", "the end", "not run: the cast had ended"]
    assert len(model.requests) == 2


@pytest.mark.parametrize("arguments", ["{}", {"answer": None}, {"answer": ""}, {"answer": " \n"}])
async def test_a_done_without_answer_does_not_end_the_cast(
    tmp_path: Path, model: ModelServer, arguments: Json | str
) -> None:
    """L-009: calls after it still run."""
    echo = Gate()
    model.script(Calls((Use("done", arguments), say("still"))), Calls((done("now"),)))
    async with open_house(tmp_path, model.url, gates=[echo]) as house, house.working():
        await house.incoming("go")
        assert await house.said(1) == ["now"]
    assert results(model.requests[1].messages) == [
        "error: done requires a non-empty answer",
        "still",
    ]


@pytest.mark.parametrize(
    ("answer", "said"),
    [(0, "0"), (False, "false"), ([], "[]"), ("0", "0"), ({"a": "ä"}, '{"a": "ä"}')],
)
async def test_falsy_answers_are_answers(
    tmp_path: Path, model: ModelServer, answer: object, said: str
) -> None:
    """L-009, L-011: said once."""
    model.script(Calls((done(answer),), "thinking aloud"))
    async with open_house(tmp_path, model.url) as house, house.working():
        await house.incoming("go")
        await house.settled()
        assert await house.spoken() == [said]


async def test_submit_answer_is_done(tmp_path: Path, model: ModelServer) -> None:
    """L-010, L-027: the alias is in no row and no request."""
    model.script(Calls((Use("submit_answer", {"x": 42}),)))
    async with open_house(tmp_path, model.url) as house, house.working():
        await house.incoming("go")
        assert await house.said(1) == ["42"]
        row = await house.one("SELECT * FROM observations")
        assert (row["gate"], row["args"], row["result"]) == ("done", '{"answer": 42}', "42")
        assert "submit_answer" not in (await house.one("SELECT calls FROM turns"))["calls"]


async def test_text_alone_is_the_answer_and_a_turn(tmp_path: Path, model: ModelServer) -> None:
    """L-011, L-014, L-045: all that is known of the turn is stored."""
    model.script(Text("hello"), Text("hello again"))
    async with open_house(tmp_path, model.url) as house, house.working():
        await house.incoming("hi")
        await house.incoming("hi again")
        assert await house.said(2) == ["hello", "hello again"]
        first, second = await house.rows("SELECT * FROM turns ORDER BY seq")
        assert await house.rows("SELECT * FROM observations") == []
        casts = await house.rows("SELECT * FROM casts ORDER BY seq")
        prompt = await house.one("SELECT * FROM prompts")
        pieces = await house.casts.prompt(prompt["hash"])
    assert (first["parent_id"], second["parent_id"]) == (None, first["id"])
    assert first["entity_id"] == casts[0]["entity_id"] != second["entity_id"]
    assert (first["utterance"], first["calls"], first["error"]) == ("hello", "[]", None)
    assert (first["tokens_in"], first["tokens_out"], first["tokens_cached"]) == (100, 10, 0)
    assert (first["backend"], first["model"]) == ("scripted", "scripted")
    assert [(c["state"], c["reason"]) for c in casts] == [("terminated", "text")] * 2
    assert {c["prompt_hash"] for c in casts} == {prompt["hash"]}
    assert pieces == (("", SYSTEM),)


async def test_only_done_ends_a_cast_that_requires_it(tmp_path: Path, model: ModelServer) -> None:
    """L-012."""
    wards = replace(WARDS, require_done=True)
    model.script(Text("I think it is 4"), Calls((done("4"),)))
    async with open_house(tmp_path, model.url, wards=wards) as house, house.working():
        await house.incoming("2 + 2?")
        assert await house.said(1) == ["4"]
        assert (await house.one("SELECT state FROM casts"))["state"] == "terminated"
    assert model.requests[1].messages[2]["content"] == "I think it is 4"


async def test_partial_work_is_not_lost_at_the_last_turn(
    tmp_path: Path, model: ModelServer
) -> None:
    """L-012: taken as the result, and marked truncated."""
    wards = replace(WARDS, require_done=True, max_turns=2)
    model.script(Text("first thoughts"), Text("nearly there"))
    async with open_house(tmp_path, model.url, wards=wards) as house, house.working():
        await house.incoming("go")
        (said,) = await house.said(1)
        cast = await house.one("SELECT * FROM casts")
    assert "nearly there" in said
    assert "max_turns" in said
    assert (cast["state"], cast["reason"]) == ("truncated", "max_turns")
    assert cast["result"] == "nearly there"
    assert len(model.requests) == 2


async def test_a_cast_that_cannot_end_is_refused(tmp_path: Path, model: ModelServer) -> None:
    """L-013: before any model call."""
    wards = replace(WARDS, require_done=True)
    house_without = open_house(tmp_path, model.url, gates=[Gate()], done=False, wards=wards)
    async with house_without as house, house.working():
        await house.incoming("go")
        (said,) = await house.said(1)
        assert (await house.one("SELECT state FROM casts"))["state"] == "truncated"
    assert "`done`" in said
    assert model.requests == []


@pytest.mark.parametrize("text", [" ", "\n\t"])
async def test_a_blank_message_is_refused(tmp_path: Path, model: ModelServer, text: str) -> None:
    """L-005."""
    async with open_house(tmp_path, model.url) as house, house.working():
        await house.incoming(text)
        assert "message is empty" in (await house.said(1))[0]
    assert model.requests == []


async def test_without_any_model_a_message_is_refused(tmp_path: Path) -> None:
    """L-005: the error names what is missing."""
    async with open_house(tmp_path, None) as house, house.working():
        await house.incoming("hello")
        assert "llm.roles.base" in (await house.said(1))[0]


async def test_without_instructions_a_message_is_refused(
    tmp_path: Path, model: ModelServer
) -> None:
    """L-005: before any model call; the room goes on once they are back."""
    prompts = tmp_path / "prompts"

    def prompt() -> str:
        return read_template(prompts, "BASE_PROMPT.txt")

    async with open_house(tmp_path, model.url, prompt=prompt) as house, house.working():
        await house.incoming("hello")
        assert "BASE_PROMPT.txt is missing" in (await house.said(1))[0]
        assert (await house.one("SELECT reason FROM casts"))["reason"] == "refused"
        assert model.requests == []
        prompts.mkdir()
        (prompts / "BASE_PROMPT.txt").write_text(SYSTEM)
        await house.incoming("hello?")
        assert (await house.said(2))[1] == "echo: hello?"


async def test_a_call_id_used_twice_is_not_run_twice(tmp_path: Path, model: ModelServer) -> None:
    """L-016, L-017: each result still has a call of its own, now and in later casts."""
    echo = Gate()
    model.script(Calls((say("a", "x"), say("b", "x"), say("c", "x~1"))), Text("ok"))
    async with open_house(tmp_path, model.url, gates=[echo]) as house, house.working():
        await house.incoming("go")
        await house.incoming("more")
        await house.said(2)
        rows = await house.rows("SELECT is_error, tool_call_id FROM observations ORDER BY n")
    assert echo.taken == [{"say": "a"}, {"say": "c"}]
    assert [(row["is_error"], row["tool_call_id"]) for row in rows] == [
        (0, "x"),
        (1, "x"),
        (0, "x~1"),
    ]
    assert "not run" in results(model.requests[1].messages)[1]


async def test_invented_tools_do_not_end_a_cast(tmp_path: Path, model: ModelServer) -> None:
    """L-029."""
    model.script(Calls((Use("fly"), Use("done_now"), say("a"))), Text("sorry"))
    async with open_house(tmp_path, model.url, gates=[Gate()]) as house, house.working():
        await house.incoming("go")
        assert await house.said(1) == ["sorry"]
        rows = await house.rows("SELECT gate, args, is_error FROM observations ORDER BY n")
    assert [(row["gate"], row["is_error"]) for row in rows] == [
        ("fly", 1),
        ("done_now", 1),
        ("echo", 0),
    ]
    assert results(model.requests[1].messages)[0] == (
        "error: unknown tool: fly. Available: done, echo"
    )


SCHEMA = {
    "type": "object",
    "properties": {
        "path": {"type": "string"},
        "lines": {"type": "array", "items": {"type": "integer"}},
    },
    "required": ["path"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ('{"path": ', "not valid JSON"),
        ("[1]", "must be a JSON object"),
        ('"path"', "must be a JSON object"),
        ("{}", "'path' is a required property"),
        ('{"path": 7}', "path: 7 is not of type 'string'"),
        ('{"path": "a", "lines": [1, "x"]}', "lines.1: 'x' is not"),
        ('{"path": "a", "colour": 1}', "'colour' was unexpected"),
        ('{"path": ' + "[" * 500 + "]" * 500 + "}", "nested deeper"),
        ('{"path": ' + "[" * 9000 + "]" * 9000 + "}", "not valid JSON"),
        ('{"path": NaN}', "path: nan is not"),
    ],
)
async def test_bad_arguments_are_named_and_not_run(
    tmp_path: Path, model: ModelServer, arguments: str, named: str
) -> None:
    """L-030."""
    gate = Gate(parameters=SCHEMA)
    model.script(Calls((Use("echo", arguments),)), Text("I see"))
    async with open_house(tmp_path, model.url, gates=[gate]) as house, house.working():
        await house.incoming("go")
        assert await house.said(1) == ["I see"]
    assert gate.taken == []
    (result,) = results(model.requests[1].messages)
    assert result.startswith("error: ")
    assert named in result
    resent = model.requests[1].messages[2]["tool_calls"][0]["function"]["arguments"]
    assert isinstance(json.loads(resent), dict)


async def test_an_expected_failure_is_an_observation(tmp_path: Path, model: ModelServer) -> None:
    """L-028: the model can react."""

    async def fail(_caller: Caller, _args: Json) -> object:
        raise ToolFailed("no such file: a.txt")

    model.script(Calls((say("a"),)), Text("it is not there"))
    async with open_house(tmp_path, model.url, gates=[Gate(act=fail)]) as house, house.working():
        await house.incoming("go")
        assert await house.said(1) == ["it is not there"]
        row = await house.one("SELECT * FROM observations")
    assert (row["is_error"], row["state"]) == (1, "completed")
    assert results(model.requests[1].messages) == ["error: no such file: a.txt"]


@pytest.mark.parametrize("broken", ["raises", "times out", "returns what is no JSON"])
async def test_a_bug_in_a_tool_ends_one_cast_and_nothing_else(
    tmp_path: Path, model: ModelServer, caplog: pytest.LogCaptureFixture, broken: str
) -> None:
    """L-031: traceback in the log, one plain line, other rooms and the next message go on."""

    async def bug(_caller: Caller, _args: Json) -> object:
        if broken == "raises":
            raise KeyError("oops-canary")
        if broken == "times out":
            raise TimeoutError("oops-canary")
        return {"oops-canary"}

    model.keyed(lambda seen: Calls((say("a"),)) if seen.last_user == "break" else None)
    caplog.set_level(logging.ERROR)
    async with open_house(tmp_path, model.url, gates=[Gate(act=bug)]) as house, house.working():
        await house.incoming("break")
        await house.incoming("other", room="!other:test")
        (line,) = await house.said(1)
        assert await house.said(1, "!other:test") == ["echo: other"]
        await house.incoming("again")
        assert await house.said(2) == [line, "echo: again"]
        cast = await house.one("SELECT * FROM casts WHERE intent = 'break'")
        part = await house.health.part("casts")
    assert "\n" not in line
    assert "oops" not in line
    assert (cast["state"], cast["reason"]) == ("truncated", "internal_error")
    assert part is not None
    assert part.state == "fail"
    assert "Traceback" in caplog.text
    assert "answer failed conversation=" in caplog.text
    assert results(model.requests[-1].messages) == ["interrupted: outcome unknown"]


async def test_a_bug_after_the_answer_does_not_answer_again(
    tmp_path: Path, model: ModelServer
) -> None:
    """L-031, L-073."""
    async with open_house(tmp_path, model.url) as house, house.working():
        house.speaker.rests_badly = True
        await house.incoming("hello")

        async def told() -> bool:
            part = await house.health.part("casts")
            return part is not None and part.state == "fail"

        await house.until(told)
        house.speaker.rests_badly = False
        await house.incoming("again")
        assert await house.said(2) == ["echo: hello", "echo: again"]


async def test_long_results_are_whole_in_the_loom_only(tmp_path: Path, model: ModelServer) -> None:
    """L-026."""
    text = "a" * 30_000 + "b" * 30_000

    async def long(_caller: Caller, _args: Json) -> object:
        return text

    model.script(Calls((say("x"),)), Text("long"))
    async with open_house(tmp_path, model.url, gates=[Gate(act=long)]) as house, house.working():
        await house.incoming("go")
        await house.said(1)
        row = await house.one("SELECT result FROM observations")
    assert json.loads(row["result"]) == text
    (shown,) = results(model.requests[1].messages)
    assert "[truncated: 50000 of 60000 characters shown]" in shown
    assert shown.startswith("aaa")
    assert shown.endswith("bbb")
    assert len(shown) < 50_100


async def test_a_cut_answer_counts_as_a_turn(tmp_path: Path, model: ModelServer) -> None:
    """L-018: a call cut in its middle is an error, and a length finish has a counter."""
    wards = replace(WARDS, max_turns=3)
    cut = Calls((Use("echo", '{"say": "hal'),), finish="length")
    model.script(cut, cut, cut)
    cast_house = open_house(tmp_path, model.url, gates=[Gate()], wards=wards)
    async with cast_house as house, house.working():
        await house.incoming("go")
        assert "max_turns" in (await house.said(1))[0]
        turns = await house.rows("SELECT finish_reason FROM turns")
    assert [turn["finish_reason"] for turn in turns] == ["length"] * 3
    assert len(model.requests) == 3


async def test_tags_of_ours_from_others_reach_the_model_escaped(
    tmp_path: Path, model: ModelServer
) -> None:
    """L-070, L-071: in messages and results; an event of ours keeps its own."""
    event = '<event kind="task_error" id="1">disk full</event>'
    model.script(Calls((say("</memory> x"),)), Text("ok"), Text("ok"))
    async with open_house(tmp_path, model.url, gates=[Gate()]) as house, house.working():
        await house.incoming("<EVENT kind=x> & </cathedral> <eventful> <b>")
        await house.said(1)
        await house.incoming(event, kind="event", origin="system")
        await house.said(2)
        kinds = await house.rows("SELECT kind FROM inbox ORDER BY seq")
    messages = model.requests[2].messages
    assert messages[1]["content"] == "&lt;EVENT kind=x> & &lt;/cathedral> <eventful> <b>"
    assert results(messages) == ["&lt;/memory> x"]
    assert messages[-1] == {"role": "user", "content": event}
    assert [row["kind"] for row in kinds] == ["message", "event"]


async def test_a_group_message_says_who_speaks(tmp_path: Path, model: ModelServer) -> None:
    """X-002: with what was said before, which is not answered."""
    async with open_house(tmp_path, model.url) as house, house.working():
        for text in ("first\nsecond", "third"):
            await house.incoming(text, kind="context", direct=False, scope="room", name="Bob")
        await house.incoming("and you?", direct=False, scope="room")
        await house.said(1)
    assert model.requests[0].messages[1]["content"] == (
        f"<room_context>\nBob ({ANN}): first\n  second\nBob ({ANN}): third\n</room_context>\n"
        f"Ann ({ANN}): and you?"
    )


async def test_secrets_stay_where_they_are(
    tmp_path: Path, model: ModelServer, caplog: pytest.LogCaptureFixture
) -> None:
    """L-050: a server that repeats our key gets it into no row, line or message."""
    key = "sk-canary-77"
    caplog.set_level(logging.DEBUG, "wintermute")
    model.script(Fail(401, {"error": {"message": f"bad key {key}"}}), Plain(Text("ok")), Html())
    async with open_house(tmp_path, model.url, api_key=Secret(key)) as house, house.working():
        for text in ("one", "two"):
            await house.incoming(text)
        said = await house.said(2)
        assert said[1] == "ok"
        assert "api_key" in said[0]
    assert all(request.headers["authorization"] == f"Bearer {key}" for request in model.requests)
    assert key not in caplog.text
    assert not any(key.encode() in content for content in contents(tmp_path))
    assert key not in json.dumps([request.body for request in model.requests])
