"""Refusals of servers: their reason, the request in other words, the next backend (F-038, F-039, F-042, F-043)."""

import asyncio
import json
import tomllib
from contextlib import aclosing, nullcontext
from pathlib import Path

import pytest

from tests.world.asking import HELLO, TOOL, asking, backend
from tests.world.clock import cheap
from tests.world.model import Fail, ModelServer, Seen, Step, Text
from tests.world.scene import Scene
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

FILE = Path(__file__).parent / "refusals.toml"
ROWS: dict[str, Json] = {row["who"]: row for row in tomllib.loads(FILE.read_text("utf-8"))["rows"]}
WAITS: dict[str, type[Failed]] = {"pause": QuotaSpent, "passing": Outage, "error": Outage}
KINDS = {"content": Disallowed, "context": TooLarge, **WAITS}
PADDING = "x" * 1_000_000
LONG = ["[" * 30_000, '{"a":' * 5_000, '"1s1s1s ' * 3_900, "retry in 1" * 3_000, PADDING]


def step(who: str) -> Fail:
    row = ROWS[who]
    return Fail(row["status"], row["body"], row.get("headers", {}))


def decided(row: Json, body: str) -> Failed:
    said = json.loads(body) if not row["status"] else body

    def decide() -> Failed:
        given = row.get("headers", {})
        return of_status(row["status"], said, given) if row["status"] else of_error(said)

    failure = decide()  # the table is read with the first
    with cheap(0.01):
        for _ in range(10):
            decide()
    return failure


@pytest.mark.parametrize("who", ROWS)
def test_what_a_provider_refuses_is_what_it_means(who: str) -> None:
    """F-038, F-039, F-043: within a millisecond, also where its answer is a megabyte long."""
    row = ROWS[who]
    body = row["body"]
    long = body.replace("{", f'{{"ctx": "{PADDING}", ', 1) if "{" in body else PADDING + body
    for failure in (decided(row, body), decided(row, long)):
        kind = row["kind"]
        outcome = f"status_{row['status']}" if kind in WAITS and row["status"] else kind
        assert (failure.outcome, type(failure)) == (outcome, KINDS.get(kind, Refused))
        assert failure.complaint is not None
        assert failure.complaint.kind == kind
        assert failure.retry_after == row.get("wait") or kind == "quota"
        assert len(str(failure)) < 500
        if kind in ("quota", "pause"):  # no plan is to be checked where a time is named
            assert ("check plan" in str(failure)) == (kind == "quota" or "wait" not in row)


@pytest.mark.parametrize("body", LONG)
def test_no_body_makes_the_decision_long(body: str) -> None:
    """F-039."""
    assert type(decided({"status": 500}, body)) is Outage


FINAL = [
    who for who, row in ROWS.items() if row["status"] and row["kind"] not in (*WAITS, "context")
]


@pytest.mark.quick(every=4)
@pytest.mark.parametrize("who", FINAL)
async def test_a_refusal_of_its_own_is_answered_by_the_next_one(tmp_path: Path, who: str) -> None:
    """F-039: where nobody is left, all reasons are told. F-038: of the content, nobody else sees it."""
    async with ModelServer(rules=False) as first, ModelServer() as second:
        backends = {"first": backend(first.url), "second": backend(second.url)}
        first.keyed(lambda _: step(who))
        async with asking(tmp_path, backends) as world:
            if ROWS[who]["kind"] == "content":
                with pytest.raises(ContentRefused, match=r"^first refuses what the request says"):
                    await world.models.ask("base", HELLO)
                assert (world.models.standings, second.requests) == ({}, [])
                first.keyed(lambda _: Fail(401))
                second.script(step(who))
                with pytest.raises(ContentRefused, match=r"^second refuses what the request says"):
                    await world.models.ask("base", HELLO)
                assert world.models.standings["first"][0] == "key"
                return
            second.script(Fail(401))
            with pytest.raises(ModelRefused, match=r"^first .*; second refuses the key"):
                await world.models.ask("base", HELLO)
            assert world.models.standings == {}  # which said it all
            assert (await world.models.ask("base", HELLO)).backend == "second"
            cause, told = world.models.standings["first"]
            assert (cause, told[:6]) == (ROWS[who]["kind"], "first ")
            second.script(*[Fail(500)] * 3)
            with pytest.raises(ModelUnavailable, match=r"^first .*; second answered 500"):
                await world.models.ask("base", HELLO)


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
        server.script(*[step(who)] * (3 if error else 2))
        with pytest.raises(error) if error else nullcontext():
            assert (await world.models.ask("base", HELLO)).text == "echo: hello"
        assert world.clock.slept == slept


def complaining(words: str, param: str | None = None) -> Json:
    return {"error": {"message": words, "param": param, "code": None}}


DETAIL = {"type": "extra_forbidden", "loc": ["body", "parallel_tool_calls"], "msg": "Extra"}
OF_FIELDS: dict[str, list[Json | str]] = {
    "max_tokens": [complaining("use 'max_completion_tokens' instead")],
    "tool_choice": [
        complaining("Thinking mode does not support this tool_choice"),
        complaining("tool choice `required` is not supported with this model"),
    ],
    "parallel_tool_calls": [{"object": "error", "message": {"detail": [DETAIL]}}],
    "stream_options": [complaining("unknown field: stream_options")],
    "return_progress": [
        "['body', 'return_progress']: Extra inputs are not permitted",
        "return_progress: not known",
    ],
    "stream": [complaining("Unsupported value", "stream"), complaining("Unsupported: 'stream'")],
}


@pytest.mark.parametrize("n", [0, -1])
async def test_what_a_refusal_names_is_left_out_until_the_next_start(n: int) -> None:
    """F-022, F-042: once per start, told in words, and never against the configuration."""

    def strict(seen: Seen) -> Step:
        if seen.body.get("reasoning_effort") != "none":
            return step("openai: tools want no reasoning")
        refused = (said[n] for name, said in OF_FIELDS.items() if name in seen.body)
        return next((Fail(422, each) for each in refused), Text("fits"))

    asked = Request(HELLO.messages, (TOOL,), must_call=True)
    async with ModelServer(default=strict, rules=False) as model:
        settings = backend(model.url, size="small", extra={"temperature": 0.2})
        async with aclosing(Endpoint("a", settings, new_id)) as endpoint:
            both = await asyncio.gather(endpoint.ask(asked), endpoint.ask(asked))
            assert [answer.text for answer in both] == ["fits", "fits"]
            before = len(model.requests)
            assert (await endpoint.ask(asked)).text == "fits"
            body = model.requests[-1].body
            assert (len(model.requests), body["temperature"]) == (before + 1, 0.2)
            assert endpoint.request_changes == (
                "with max_completion_tokens; with reasoning_effort none; without"
                " parallel_tool_calls, return_progress, stream, stream_options, tool_choice"
            )
        before = len(model.requests)
        wanting = backend(model.url, extra={"reasoning_effort": "high"})
        async with aclosing(Endpoint("b", wanting, new_id)) as endpoint:
            with pytest.raises(Refused, match="Function tools with reasoning_effort"):
                await endpoint.ask(asked)
        assert len(model.requests) == before + 1


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
            assert endpoint.request_changes.endswith("with earlier tool calls as text")
            said = model.requests[-1].messages
            model.script(step(who))
            with pytest.raises(Refused):  # there is nothing earlier to be told otherwise
                await endpoint.ask(Request(NOW, (TOOL,)))
        assert len(model.requests) == (5 if who.startswith("gemini") else 4)  # a placeholder first
        one, call, result, so, two, *now = said
        assert (one["content"], so["content"], two["content"]) == ("one", "so", "two")
        assert (len(now[0]["tool_calls"]), now[1]["role"]) == (1, "tool")
        assert call == message("assistant", '[Here I called `read_file` with {"path": "a"}]')
        assert result["role"] == "user"
        assert result["content"].splitlines()[1:] == ["> said", "> &lt;event kind='x'>", "> ]"]


async def test_the_owner_hears_once_which_model_refuses_until_it_answers_again(
    scene: Scene, model: ModelServer
) -> None:
    """F-039: once for each cause, also over a restart; `/status` names it, and what was learnt (F-042)."""
    now: list[Step] = [step("openai: a wrong key")]
    async with ModelServer(default=lambda _: now[0], rules=False) as paid:
        urls = {"paid": paid.url, "spare": model.url}
        backends = {name: {"base_url": url, "model": name} for name, url in urls.items()}
        ann = await scene.person("ann")
        daemon = await scene.bot(ann, llm={"backends": backends, "roles": {"base": [*urls]}})
        chat = await scene.room(ann, daemon)

        async def says(text: str, more: int) -> list[str]:
            before = len(ann.messages(chat, daemon.user_id))
            await ann.send(chat, text)
            said = await ann.wait_for_count(chat, daemon.user_id, before + more)
            return sorted(each.body for each in said[-more:])

        answer, notice = await says("one", 2)
        assert answer == "echo: one"
        assert notice.startswith("paid refuses the key (401: Incorrect API key provided")
        assert await says("two", 1) == ["echo: two"]
        await daemon.restart()
        assert await says("three", 1) == ["echo: three"]
        now[0] = step("deepseek: balance")
        assert (await says("four", 2))[1].startswith("paid has no quota left (402: Insuff")
        assert (
            "**backend paid** (warn): paid has no quota left" in (await says("/status all", 1))[0]
        )
        now[0] = Fail(400, {"error": {"message": "unknown field: stream_options"}})
        paid.script(now[0], Text("here again"))
        assert await says("five", 1) == ["here again"]
        await daemon.until(
            lambda: bool(daemon.rows("SELECT 1 FROM health WHERE detail LIKE 'answ%, %'"))
        )
        assert "answers, asked without stream_options" in (await says("/status all", 1))[0]
        now[0] = step("openai: a wrong key")
        assert (await says("six", 2))[1].startswith("paid refuses the key")
        config = json.loads(daemon.config.read_text())
        config["llm"]["roles"]["base"] = [config["llm"]["backends"].pop("paid") and "spare"]
        daemon.config.write_text(json.dumps(config))
        await daemon.restart()
        assert (
            "**backend paid** (ok): no longer in config.yaml" in (await says("/status all", 1))[0]
        )
