"""One cast: the order of gates, what ends it, and what the model is told of its mistakes."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from tests.world.house import ANN, SYSTEM, Gate
from tests.world.model import Calls, Fail, Html, Plain, Text, Use
from tests.world.story import Story
from wintermute.config.schema import Secret
from wintermute.conversation.toolbox import Caller
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


async def test_gates_run_in_order_and_the_model_sees_each_result(story: Story) -> None:
    """L-006, L-007: B starts after A ended; the intent and the tools are in every request."""
    running: list[str] = []

    async def strict(_caller: Caller, args: Json) -> object:
        running.append(f"+{args['say']}")
        await house.rows("SELECT 1")
        running.append(f"-{args['say']}")
        return args["say"].upper()

    story.model.script(Calls((say("a"), say("b"), say("c")), "one moment"), Text("fine"))
    async with story.at_work(gates=[Gate(act=strict)]) as house:
        await house.incoming("go")
        assert await house.said(1) == ["fine"]
    assert running == ["+a", "-a", "+b", "-b", "+c", "-c"]
    first, second = story.model.requests
    assert first.messages == [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": "go"},
    ]
    assert second.messages[:2] == first.messages
    assert second.messages[2]["content"] == "one moment"
    assert results(second.messages) == ["A", "B", "C"]
    assert first.body["tools"] == second.body["tools"]
    assert [tool["function"]["name"] for tool in first.body["tools"]] == ["echo"]


async def test_text_alone_is_the_answer_and_a_turn(story: Story) -> None:
    """L-011, L-014, L-045: all that is known of the turn is stored."""
    story.model.script(Text("hello"), Text("hello again"))
    async with story.at_work() as house:
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


async def test_without_instructions_a_message_is_refused(story: Story) -> None:
    """L-005: before any model call; the room goes on once they are back."""
    prompts = story.folder / "prompts"

    def prompt() -> str:
        return read_template(prompts, "BASE_PROMPT.txt")

    async with story.at_work(prompt=prompt) as house:
        assert "BASE_PROMPT.txt is missing" in await house.ask("hello")
        assert (await house.one("SELECT reason FROM casts"))["reason"] == "refused"
        assert story.model.requests == []
        prompts.mkdir()
        (prompts / "BASE_PROMPT.txt").write_text(SYSTEM)
        await house.incoming("hello?")
        assert (await house.said(2))[1] == "echo: hello?"


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ('{"path": ', "not valid JSON"),
        ('{"path": ' + "[" * 500 + "]" * 500 + "}", "nested deeper"),
        ('{"path": ' + "[" * 9000 + "]" * 9000 + "}", "not valid JSON"),
    ],
)
async def test_unreadable_arguments_are_told_and_mended(
    story: Story, arguments: str, named: str
) -> None:
    """L-030; other mistakes: `rules/observations.yaml`."""
    gate = Gate()
    story.model.script(Calls((Use("echo", arguments),)), Text("I see"))
    async with story.at_work(gates=[gate]) as house:
        await house.incoming("go")
        assert await house.said(1) == ["I see"]
    assert gate.taken == []
    (result,) = results(story.model.requests[1].messages)
    assert result.startswith("error: ")
    assert named in result
    resent = story.model.requests[1].messages[2]["tool_calls"][0]["function"]["arguments"]
    assert isinstance(json.loads(resent), dict)


@pytest.mark.parametrize("broken", ["raises", "times out", "returns what is no JSON"])
async def test_a_bug_in_a_tool_ends_one_cast_and_nothing_else(
    story: Story, caplog: pytest.LogCaptureFixture, broken: str
) -> None:
    """L-031: traceback in the log, one plain line, other rooms and the next message go on."""

    async def bug(_caller: Caller, _args: Json) -> object:
        if broken == "raises":
            raise KeyError("oops-canary")
        if broken == "times out":
            raise TimeoutError("oops-canary")
        return {"oops-canary"}

    story.model.keyed(lambda seen: Calls((say("a"),)) if seen.last_user == "break" else None)
    caplog.set_level(logging.ERROR)
    async with story.at_work(gates=[Gate(act=bug)]) as house:
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
    assert results(story.model.requests[-1].messages) == ["interrupted: outcome unknown"]


async def test_a_bug_after_the_answer_does_not_answer_again(story: Story) -> None:
    """L-031, L-073."""
    async with story.at_work() as house:
        house.speaker.rests_badly = True
        await house.incoming("hello")

        async def told() -> bool:
            part = await house.health.part("casts")
            return part is not None and part.state == "fail"

        await house.until(told)
        house.speaker.rests_badly = False
        await house.incoming("again")
        assert await house.said(2) == ["echo: hello", "echo: again"]


async def test_long_results_are_whole_in_the_loom_only(story: Story) -> None:
    """L-026."""
    text = "a" * 30_000 + "b" * 30_000

    async def long(_caller: Caller, _args: Json) -> object:
        return text

    story.model.script(Calls((say("x"),)), Text("long"))
    async with story.at_work(gates=[Gate(act=long)]) as house:
        await house.ask("go")
        row = await house.one("SELECT result FROM observations")
    assert json.loads(row["result"]) == text
    (shown,) = results(story.model.requests[1].messages)
    assert "[truncated: 50000 of 60000 characters shown]" in shown
    assert shown.startswith("aaa")
    assert shown.endswith("bbb")
    assert len(shown) < 50_100


async def test_tags_of_ours_from_others_reach_the_model_escaped(story: Story) -> None:
    """L-070, L-071: in messages and results; an event of ours keeps its own."""
    event = '<event kind="task_error" id="1">disk full</event>'
    story.model.script(Calls((say("</memory> x"),)), Text("ok"), Text("ok"))
    async with story.at_work(gates=[Gate()]) as house:
        await house.ask("<EVENT kind=x> & </cathedral> <eventful> <b>")
        await house.incoming(event, kind="event", origin="system")
        await house.said(2)
        kinds = await house.rows("SELECT kind FROM inbox ORDER BY seq")
    messages = story.model.requests[2].messages
    assert messages[1]["content"] == "&lt;EVENT kind=x> & &lt;/cathedral> <eventful> <b>"
    assert results(messages) == ["&lt;/memory> x"]
    assert messages[-1] == {"role": "user", "content": event}
    assert [row["kind"] for row in kinds] == ["message", "event"]


async def test_a_group_message_says_who_speaks(story: Story) -> None:
    """X-002: with what was said before, which is not answered."""
    async with story.at_work() as house:
        for text in ("first\nsecond", "third"):
            await house.incoming(text, kind="context", direct=False, scope="room", name="Bob")
        await house.incoming("and you?", direct=False, scope="room")
        await house.said(1)
    assert story.model.requests[0].messages[1]["content"] == (
        f"<room_context>\nBob ({ANN}): first\n  second\nBob ({ANN}): third\n</room_context>\n"
        f"Ann ({ANN}): and you?"
    )


async def test_secrets_stay_where_they_are(story: Story, caplog: pytest.LogCaptureFixture) -> None:
    """L-050: a server that repeats our key gets it into no row, line or message."""
    key = "sk-canary-77"
    caplog.set_level(logging.DEBUG, "wintermute")
    story.model.script(
        Fail(401, {"error": {"message": f"bad key {key}"}}), Plain(Text("ok")), Html()
    )
    async with story.at_work(api_key=Secret(key)) as house:
        for text in ("one", "two"):
            await house.incoming(text)
        said = await house.said(2)
        assert said[1] == "ok"
        assert "api_key" in said[0]
    assert all(
        request.headers["authorization"] == f"Bearer {key}" for request in story.model.requests
    )
    assert key not in caplog.text
    assert not any(key.encode() in content for content in contents(story.folder))
    assert key not in json.dumps([request.body for request in story.model.requests])
