"""Why a server refuses, what is asked in other words, and who is asked next (F-038, F-039, F-042, F-043)."""

import asyncio
import json
import tomllib
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from tests.test_llm_models import HELLO, TOOL, asking, backend
from tests.world.clock import cheap
from tests.world.model import Fail, ModelServer, Seen, Step, Text
from tests.world.scene import NewBot, NewPerson, NewRoom
from wintermute.errors import ContentRefused, ModelError, ModelRefused, ModelUnavailable
from wintermute.ids import new_id
from wintermute.llm.backend import Endpoint
from wintermute.llm.failures import (
    Disallowed,
    Failed,
    Outage,
    QuotaSpent,
    Refused,
    TooLarge,
    of_error,
    of_status,
)
from wintermute.messages import Json, Request

ROWS: dict[str, Json] = {
    row["who"]: row
    for row in tomllib.loads((Path(__file__).parent / "refusals.toml").read_text("utf-8"))["rows"]
}
KINDS: dict[str, type[Failed]] = {
    "content": Disallowed,
    "context": TooLarge,
    "pause": QuotaSpent,
    **dict.fromkeys(("passing", "error"), Outage),
}


def failure_of(row: Json, said: Any) -> Failed:
    if row["status"]:
        return of_status(row["status"], said, row.get("headers", {}))
    return of_error(said)


def step(who: str) -> Fail:
    row = ROWS[who]
    return Fail(row["status"], row["body"], row.get("headers", {}))


@pytest.mark.parametrize("who", ROWS)
def test_what_a_provider_refuses_is_what_it_means(who: str) -> None:
    """F-038, F-039, F-043: the same where its answer is a megabyte long."""
    row = ROWS[who]
    for body in (row["body"], *longer(row)):
        said = body if row["status"] else json.loads(body)
        failure = failure_of(row, said)  # the table is read with the first
        with cheap(0.01):
            for _ in range(10):
                failure_of(row, said)
        assert (failure.outcome, type(failure)) == (row["kind"], KINDS.get(row["kind"], Refused))
        assert failure.retry_after == row.get("wait") or row["kind"] == "quota"
        assert len(str(failure)) < 500


@pytest.mark.parametrize(
    "body",
    ["[" * 30_000, '{"a":' * 5_000, '"1s1s1s ' * 3_900, "retry in 1" * 3_000, "x" * 1_000_000],
)
def test_no_body_makes_the_decision_long(body: str) -> None:
    """F-039."""
    of_status(500, "", {})
    with cheap(0.01):
        for _ in range(10):
            assert type(of_status(500, body, {})) is Outage


PADDING = "x" * 1_000_000


def longer(row: Json) -> list[str]:
    body = str(row["body"])
    if "{" not in body:
        return [PADDING + body]
    return [
        body.replace("{", f'{{"ctx": "{PADDING}", ', 1),
        *([f'{body[:-1]}, "ctx": "{PADDING}"}}'] if body.startswith("{") else ()),
    ]


OWN = [
    "openai: no quota, and a time",
    "deepseek: balance",
    "openai: a wrong key",
    "openai: a country",
]
OWN += ["xai: an account without this model", "openai: no such model", "a wrong address"]
OWN += ["openrouter: nobody with tools", "mistral: an id"]


@pytest.mark.parametrize("who", OWN)
async def test_a_refusal_of_the_backends_own_is_answered_by_the_next_one(
    tmp_path: Path, who: str
) -> None:
    """F-039: at once; and where nobody is left, all reasons are told."""
    async with ModelServer() as first, ModelServer() as second:
        backends = {"first": backend(first.url), "second": backend(second.url)}
        first.keyed(lambda _: step(who))
        async with asking(tmp_path, backends) as world:
            assert (await world.models.ask("base", HELLO)).backend == "second"
            refused = world.models.standings["first"] or ("", "")
            assert (refused[0], refused[1][:6]) == (ROWS[who]["kind"], "first ")
            second.script(Fail(401))
            with pytest.raises(ModelRefused, match=r"^first .*; second refuses the key"):
                await world.models.ask("base", HELLO)
            second.script(*[Fail(500)] * 3)
            with pytest.raises(ModelUnavailable, match=r"^first .*; second answered 500"):
                await world.models.ask("base", HELLO)
        assert len(first.requests) == 3


CONTENT = ["xai: the content", "openrouter: moderation of words about a quota", "azure: the prompt"]


@pytest.mark.parametrize("who", [*CONTENT, "deepseek: a risk, without a code"])
async def test_a_refusal_of_content_goes_to_nobody_else(tmp_path: Path, who: str) -> None:
    """F-038."""
    async with ModelServer() as first, ModelServer() as second:
        backends = {"first": backend(first.url), "second": backend(second.url)}
        first.script(step(who))
        async with asking(tmp_path, backends) as world:
            with pytest.raises(ContentRefused, match=r"^first refuses what the request says \(4"):
                await world.models.ask("base", HELLO)
            assert world.models.standings == {}
        assert (len(first.requests), len(second.requests)) == (1, 0)


@pytest.mark.parametrize(
    ("who", "slept", "error"),
    [
        ("gemini: a quota for three seconds", [3.0, 3.0], None),
        ("openai: a rate, with its time", [20.0, 20.0], None),
        ("gemini: a quota, its time in words", [], ModelUnavailable),
        ("gemini: a quota without a time", [1.0, 2.0], ModelRefused),
        ("openai: no quota, and a time", [], ModelRefused),
        ("openai: a limit of its own", [], ModelRefused),
    ],
)
async def test_a_quota_with_a_time_is_a_pause(
    tmp_path: Path, who: str, slept: list[float], error: type[ModelError] | None
) -> None:
    """F-043: final by its code alone, or without any time once the retries are spent."""
    async with ModelServer() as server, asking(tmp_path, {"a": backend(server.url)}) as world:
        refusals = [step(who)] * 3 if error else [step(who)] * 2
        server.script(*refusals)
        if error is None:
            assert (await world.models.ask("base", HELLO)).text == "echo: hello"
        else:
            with pytest.raises(ModelError) as caught:
                await world.models.ask("base", HELLO)
            assert type(caught.value) is error
        assert world.clock.slept == slept


def refusing(message: str, param: str | None = None) -> Fail:
    return Fail(400, {"error": {"message": message, "param": param, "code": None}})


def strict(seen: Seen) -> Step:
    """As a model of OpenAI's of 2026 answers, and one that knows little beside."""
    if seen.body.get("reasoning_effort") != "none":
        return step("openai: tools want no reasoning")
    if "max_tokens" in seen.body:
        told = "Unsupported parameter: 'max_tokens' is not supported. Use 'max_completion_tokens'."
        return refusing(told, "max_tokens")
    if "tool_choice" in seen.body:
        return refusing("Thinking mode does not support this tool_choice")
    if "parallel_tool_calls" in seen.body:
        loc = {"type": "extra_forbidden", "loc": ["body", "parallel_tool_calls"], "msg": "Extra"}
        return Fail(422, {"object": "error", "message": {"detail": [loc]}})
    if "stream" in seen.body:
        return refusing("Unsupported value", "stream")
    return Text("fits")


async def test_what_a_refusal_names_is_left_out_or_said_otherwise_until_the_next_start() -> None:
    """F-042: told in words, and never against the configuration."""
    asked = Request(HELLO.messages, (TOOL,), must_call=True)
    async with ModelServer(default=strict, rules=False) as model:
        settings = backend(model.url, size="small", extra={"temperature": 0.2})
        async with aclosing(Endpoint("a", settings, new_id)) as endpoint:
            assert (await endpoint.ask(asked)).text == "fits"
            assert (len(model.requests), model.requests[-1].body["temperature"]) == (6, 0.2)
            assert (await endpoint.ask(asked)).text == "fits"
            assert len(model.requests) == 7
            assert endpoint.learnt == (
                "with max_completion_tokens; with reasoning_effort none;"
                " without parallel_tool_calls, stream, tool_choice"
            )
        wanting = backend(model.url, extra={"reasoning_effort": "high"})
        async with aclosing(Endpoint("b", wanting, new_id)) as endpoint:
            with pytest.raises(Refused, match="Function tools with reasoning_effort"):
                await endpoint.ask(asked)
        assert len(model.requests) == 8


async def test_two_questions_at_once_learn_the_same_of_one_server() -> None:
    """F-042: the second is asked again too, though the first has learnt it meanwhile."""
    async with (
        ModelServer(default=strict, rules=False) as model,
        aclosing(Endpoint("a", backend(model.url), new_id)) as endpoint,
    ):
        answers = await asyncio.gather(*(endpoint.ask(HELLO) for _ in range(3)))
    assert [answer.text for answer in answers] == ["fits"] * 3


def called(call_id: str, name: str) -> Json:
    function = {"name": name, "arguments": '{"path": "a"}'}
    call = {"id": call_id, "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def message(role: str, content: str, **more: str) -> Json:
    return {"role": role, "content": content, **more}


EARLIER = (message("user", "one"), called("c1", "read_file"))
RESULT = message("tool", "said\n<event kind='x'>\n]", tool_call_id="c1")
NOW = (message("user", "two"), called("c2", "done"), message("tool", "ok", tool_call_id="c2"))


@pytest.mark.parametrize("who", ["gemini: a signature", "mistral: an id"])
async def test_calls_of_earlier_casts_are_told_as_text_where_nothing_else_helps(who: str) -> None:
    """F-042, L-071: those of the cast at work stay calls, and a result cannot pass for ours."""

    def picky(seen: Seen) -> Step:
        earlier = [each for each in seen.messages if each.get("tool_calls")][:-1]
        return step(who) if earlier else Text("fits")

    async with ModelServer(default=picky, rules=False) as model:
        async with aclosing(Endpoint("a", backend(model.url), new_id)) as endpoint:
            request = Request((*EARLIER, RESULT, message("assistant", "so"), *NOW), (TOOL,))
            assert (await endpoint.ask(request)).text == "fits"
            assert (await endpoint.ask(request)).text == "fits"
            assert endpoint.learnt == "with earlier tool calls as text"
        assert len(model.requests) == 3
        one, call, result, so, *now = model.requests[-1].messages
        assert (one["content"], so["content"], now) == ("one", "so", [*NOW])
        assert call == message("assistant", '[Here I called `read_file` with {"path": "a"}]')
        assert result["role"] == "user"
        assert result["content"].splitlines()[1:] == ["> said", "> &lt;event kind='x'>", "> ]"]


async def test_a_complaint_about_calls_of_the_cast_at_work_is_no_reason_to_ask_for_ever() -> None:
    """F-042: there is nothing earlier to be told otherwise."""
    async with ModelServer(default=lambda _: step("mistral: an id"), rules=False) as model:
        async with aclosing(Endpoint("a", backend(model.url), new_id)) as endpoint:
            with pytest.raises(Refused, match="Tool call id"):
                await endpoint.ask(Request(NOW, (TOOL,)))
        assert len(model.requests) == 1


async def test_the_owner_hears_once_which_model_refuses_until_it_answers_again(
    person: NewPerson, bot: NewBot, room: NewRoom, model: ModelServer
) -> None:
    """F-039: once for each cause, also over a restart; `/status` names it, and what was learnt (F-042)."""
    now: list[Step] = [step("openai: a wrong key")]
    async with ModelServer(default=lambda _: now[0], rules=False) as paid:
        urls = {"paid": paid.url, "spare": model.url}
        backends = {name: {"base_url": url, "model": name} for name, url in urls.items()}
        ann = await person("ann")
        daemon = await bot(ann, llm={"backends": backends, "roles": {"base": [*urls]}})
        chat = await room(ann, daemon)
        expected = 0

        async def says(text: str, more: int) -> list[str]:
            nonlocal expected
            expected += more
            await ann.send(chat, text)
            said = await ann.wait_for_count(chat, daemon.user_id, expected)
            return sorted(each.body for each in said[-more:])

        answer, notice = await says("one", 2)
        assert answer == "echo: one"
        assert notice.startswith("paid refuses the key (401: Incorrect API key provided")
        assert await says("two", 1) == ["echo: two"]
        await daemon.restart()
        assert await says("three", 1) == ["echo: three"]
        now[0] = step("deepseek: balance")
        assert (await says("four", 2))[1].startswith("paid has no quota left (402: Insuff")
        assert "**backend paid** (warn): paid has no quota left" in (await says("/status", 1))[0]
        now[0] = Fail(400, {"error": {"message": "unknown field: stream_options"}})
        paid.script(now[0], Text("here again"))
        assert await says("five", 1) == ["here again"]
        await daemon.until(
            lambda: bool(daemon.rows("SELECT 1 FROM health WHERE detail LIKE 'answ%, %'"))
        )
        assert "answers, asked without stream_options" in (await says("/status", 1))[0]
        now[0] = step("openai: a wrong key")
        assert (await says("six", 2))[1].startswith("paid refuses the key")
