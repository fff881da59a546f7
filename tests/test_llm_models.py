"""Retries, failover and deadlines, against a real server on loopback."""

import asyncio
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.world.asking import DEAD, HELLO, KEY, TOOL, asking, backend, saying
from tests.world.clock import WITHIN, FakeClock
from tests.world.listener import Listening
from tests.world.model import (
    Calls,
    ContextTooLarge,
    Cut,
    Empty,
    EmptyChoices,
    Events,
    Fail,
    Garbage,
    Hang,
    Html,
    ModelServer,
    NullChoices,
    Plain,
    Slow,
    Step,
    Text,
    Use,
)
from wintermute.config.schema import Llm, Price, Roles, Secret
from wintermute.errors import ContextTooLarge as RequestTooLarge
from wintermute.errors import EmptyReply, ModelError, ModelRefused, ModelUnavailable
from wintermute.ids import new_id
from wintermute.llm.models import Models
from wintermute.messages import Call, Request, Usage


async def test_an_answer_comes_with_all_that_is_known_about_it(tmp_path: Path) -> None:
    async with ModelServer() as server, asking(tmp_path, {"local": backend(server.url)}) as world:
        server.script(Calls((Use("done", {"answer": "hi"}, id="c1"),), "so:", usage=Usage(7, 3, 2)))
        reply = await world.models.ask("base", HELLO, cast_id="cast_1")
        assert (reply.text, reply.finish_reason) == ("so:", "tool_calls")
        assert reply.calls == (Call("c1", "done", '{"answer": "hi"}'),)
        assert (reply.usage, reply.backend, reply.model) == (Usage(7, 3, 2), "local", "qwen")
        (seen,) = server.requests
        assert seen.body == {
            "model": "qwen",
            "messages": list(HELLO.messages),
            "tools": [TOOL],
            "max_tokens": 4096,
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_progress": True,
        }


PASSING: list[tuple[Step, str]] = [
    (Fail(408), "status_408"),
    (Fail(409), "status_409"),
    (Fail(429), "status_429"),
    (Fail(500), "status_500"),
    (Fail(503, "upstream took too long"), "status_503"),
    (Html(), "garbage"),
    (Garbage(), "garbage"),
    (EmptyChoices(), "garbage"),
    (NullChoices(), "error"),
    (Empty(), "empty"),
    (Cut(), "connection"),
    (Cut(after_chunks=0), "connection"),
    (Events(({"choices": [{"delta": {"content": "half"}}]},), breaks=True), "connection"),
]


@pytest.mark.parametrize(
    ("request_", "wish"),
    [
        (HELLO, "Answer now, or call a tool if one is needed."),
        (replace(HELLO, tools=()), "Answer now."),
        (replace(HELLO, must_call=True), "Answer with a call now."),
    ],
)
async def test_an_empty_answer_is_asked_for_anew(
    tmp_path: Path, request_: Request, wish: str
) -> None:
    """L-015: for that attempt alone, and at its end, so that all before it is read from the cache.

    It leaves open how to answer, and is another one each time.
    """
    async with (
        ModelServer(rules=False) as server,
        asking(tmp_path, {"local": backend(server.url)}, retries=4) as world,
    ):
        server.script(Empty(), Empty(), Fail(500), Empty(), Text("at last"), Text("and on"))
        heard = Listening()
        await world.models.ask("base", request_, listener=heard)
        await world.models.ask("base", request_)
        first, second, third, again, fifth, later = (seen.messages for seen in server.requests)
        assert first == again == later == list(HELLO.messages)
        lines = ("Your answer was empty.", "Your last 2 answers were empty.", "Your last 3 answers")
        for urged, line in zip((second, third, fifth), lines, strict=True):
            assert urged[:-1] == first[:-1]
            content = urged[-1]["content"]
            assert content.startswith(f"{first[-1]['content']}\n\n[{line}")
            assert content.endswith(f"empty. {wish}]")
        told = [(wait.attempt, wait.of, wait.problem[:38]) for wait in heard.waits]
        assert told[0] == (1, 5, "")
        empty, failed = "local answered with neither text nor c", "local answered 500: scripted 500"
        assert told[1:5] == [(2, 5, empty)] * 2 + [(3, 5, empty)] * 2
        assert told[5:] == [(4, 5, failed)] * 2 + [(5, 5, empty)] * 2


@pytest.mark.parametrize(("step", "outcome"), PASSING)
async def test_a_passing_failure_is_tried_again(tmp_path: Path, step: Step, outcome: str) -> None:
    """L-033, L-035."""
    async with ModelServer() as server, asking(tmp_path, {"local": backend(server.url)}) as world:
        server.script(step, step, Text("at last"))
        reply = await world.models.ask("base", HELLO)
        assert reply.text == "at last"
        assert reply.ms == 3000
        assert len(server.requests) == 3
        if outcome != "empty":
            assert server.requests[0].body == server.requests[2].body
        assert await world.outcomes() == [f"local {outcome}"] * 2 + ["local ok"]
        assert [row["attempt"] for row in await world.rows()] == [1, 2, 3]


FINAL: list[tuple[Step, type[ModelError], str]] = [
    (Fail(400, {"error": {"message": "bad field"}}), ModelRefused, "bad field"),
    (Fail(401), ModelRefused, "check its api_key"),
    (Fail(403), ModelRefused, "check its api_key"),
    (Fail(404), ModelRefused, "check its base_url and model"),
    (Fail(422, {"detail": [{"msg": "extra"}]}), ModelRefused, "extra"),
    (Fail(302, "", {"Location": "http://other/v1"}), ModelRefused, "http://other/v1"),
    (ContextTooLarge(), RequestTooLarge, "too large"),
    (Fail(413, "<html>"), RequestTooLarge, "too large"),
    (Fail(400, {"error": {"message": "prompt is too long: 9 > 8"}}), RequestTooLarge, "9 > 8"),
    (Fail(400, {"error": {"type": "exceed_context_size_error"}}), RequestTooLarge, "too large"),
]


@pytest.mark.parametrize(("step", "error", "told"), FINAL)
async def test_a_final_failure_is_told_at_once(
    tmp_path: Path, step: Step, error: type[ModelError], told: str
) -> None:
    """L-035, L-036: one request, and what to do."""
    async with ModelServer() as server, asking(tmp_path, {"local": backend(server.url)}) as world:
        server.script(step)
        with pytest.raises(error, match=told) as caught:
            await world.models.ask("base", HELLO)
        assert str(caught.value).startswith("local ")
        assert "\n" not in str(caught.value)
        assert len(server.requests) == 1
        assert world.clock.slept == []


async def test_waits_double_up_to_a_minute(tmp_path: Path) -> None:
    server = ModelServer(default=lambda _: Fail(500))
    async with server, asking(tmp_path, {"local": backend(server.url)}, retries=8) as world:
        with pytest.raises(ModelUnavailable, match="local answered 500: scripted 500"):
            await world.models.ask("base", HELLO)
        assert world.clock.slept == [1, 2, 4, 8, 16, 32, 60, 60]


async def test_every_backend_is_tried_as_often_as_allowed_and_in_order(tmp_path: Path) -> None:
    """L-034, L-037."""
    async with ModelServer(default=lambda _: Fail(500)) as one, ModelServer() as two:
        two.script(*[Fail(503)] * 3)
        async with asking(tmp_path, {"one": backend(one.url), "two": backend(two.url)}) as world:
            with pytest.raises(ModelUnavailable, match=r"one answered 500.*; two answered 503"):
                await world.models.ask("base", HELLO)
            assert await world.outcomes() == ["one status_500"] * 3 + ["two status_503"] * 3
            reply = await world.models.ask("base", HELLO)
            assert (reply.backend, reply.text) == ("two", "echo: hello")
            assert (len(one.requests), len(two.requests)) == (6, 4)


async def test_a_backend_that_has_failed_for_long_gives_way_to_the_next_one(tmp_path: Path) -> None:
    """L-034, F-060: or a message would be set aside for others before anybody could answer it."""
    async with ModelServer(default=lambda _: Fail(500)) as one, ModelServer() as two:
        backends = {"one": backend(one.url), "two": backend(two.url)}
        async with asking(tmp_path, backends, retries=8) as world:
            reply = await world.models.ask("base", HELLO)
            assert (reply.backend, world.clock.slept) == ("two", [1, 2, 4, 8])


@pytest.mark.parametrize(
    ("headers", "slept"),
    [
        ({"Retry-After": "7"}, [7.0]),
        ({"Retry-After": "0"}, [1.0]),
        ({"Retry-After": "-5"}, [1.0]),
        ({"Retry-After": "soon"}, [1.0]),
        ({"Retry-After": "nan"}, [1.0]),
        ({"Retry-After": "30"}, [30.0]),
        (
            {
                "Retry-After": "Mon, 04 May 2026 12:00:09 GMT",
                "Date": "Mon, 04 May 2026 12:00:00 GMT",
            },
            [9.0],
        ),
    ],
)
async def test_retry_after_holds(
    tmp_path: Path, headers: dict[str, str], slept: list[float]
) -> None:
    async with ModelServer() as server, asking(tmp_path, {"local": backend(server.url)}) as world:
        server.script(Fail(429, headers=headers))
        await world.models.ask("base", HELLO)
        assert world.clock.slept == slept


async def test_a_long_retry_after_means_the_next_backend_at_once(tmp_path: Path) -> None:
    async with ModelServer() as one, ModelServer() as two:
        one.script(Fail(429, headers={"Retry-After": "120"}))
        async with asking(tmp_path, {"one": backend(one.url), "two": backend(two.url)}) as world:
            assert (await world.models.ask("base", HELLO)).backend == "two"
            assert world.clock.slept == []


async def test_a_model_that_stays_silent_is_not_an_outage(tmp_path: Path) -> None:
    """L-015."""
    async with ModelServer(default=lambda _: Empty()) as server:
        backends = {"one": backend(server.url), "two": backend(server.url)}
        async with asking(tmp_path, backends, retries=1) as world:
            with pytest.raises(EmptyReply, match="neither text nor calls"):
                await world.models.ask("base", HELLO)
            assert len(server.requests) == 4
            assert (await world.rows())[0]["tokens_in"] == 100
            server.script(Fail(500), Fail(500))
            with pytest.raises(ModelUnavailable):
                await world.models.ask("base", HELLO)


async def test_a_request_too_large_goes_to_a_larger_model_only(tmp_path: Path) -> None:
    async with ModelServer() as server:
        backends = {
            "small": backend(server.url, context_tokens=4096),
            "same": backend(server.url, context_tokens=4096),
            "large": backend(server.url, context_tokens=8192),
        }
        async with asking(tmp_path, backends) as world:
            server.script(ContextTooLarge(), Text("fits"))
            assert (await world.models.ask("base", HELLO)).backend == "large"
            server.script(ContextTooLarge(), *[Fail(500)] * 3)
            with pytest.raises(RequestTooLarge, match="small"):
                await world.models.ask("base", HELLO)


@pytest.mark.parametrize("step", [Hang(), Slow(asyncio.Event(), Text(""))])
async def test_an_answer_has_to_begin_in_time(tmp_path: Path, step: Step) -> None:
    """L-023, F-017; see test_llm_backend for the rest of its deadlines."""
    async with ModelServer(default=lambda _: step) as server:
        settings = {"local": backend(server.url, first_token_s=0.2)}
        async with asking(tmp_path, settings, retries=0) as world:
            with pytest.raises(ModelUnavailable, match=r"did not begin an answer in 0\.2 s"):
                await world.models.ask("base", HELLO)
            assert await world.outcomes() == ["local timeout"]


async def test_an_answer_that_came_too_late_is_asked_for_again(tmp_path: Path) -> None:
    """L-035."""
    async with ModelServer() as server:
        hasty = {"local": backend(server.url, first_token_s=0.3)}
        async with asking(tmp_path, hasty) as world:
            server.script(Hang(), Text("in time"))
            assert (await world.models.ask("base", HELLO)).text == "in time"
            assert await world.outcomes() == ["local timeout", "local ok"]


async def test_an_answer_that_was_cut_short_is_an_answer(tmp_path: Path) -> None:
    """L-035: no failure, and no second attempt."""
    async with ModelServer() as server, asking(tmp_path, {"local": backend(server.url)}) as world:
        server.script(Text("half a sen", finish="length"))
        reply = await world.models.ask("base", HELLO)
        assert (reply.text, reply.finish_reason) == ("half a sen", "length")
        assert len(server.requests) == 1


async def test_a_server_that_is_not_there_is_an_outage(tmp_path: Path) -> None:
    async with asking(tmp_path, {"local": backend(DEAD)}, retries=1) as world:
        with pytest.raises(
            ModelUnavailable, match=r"local is not reachable \(nothing answers at 127\.0\.0\.1:9"
        ):
            await world.models.ask("base", HELLO)
        assert await world.outcomes() == ["local connection"] * 2


async def test_a_server_that_never_streams_works(tmp_path: Path) -> None:
    async with ModelServer() as server, asking(tmp_path, {"local": backend(server.url)}) as world:
        server.script(Plain(Text("all at once")), Plain(Calls((Use("done", {"answer": 1}),))))
        assert (await world.models.ask("base", HELLO)).text == "all at once"
        assert (await world.models.ask("base", HELLO)).calls[0].name == "done"


async def test_half_characters_in_a_request_do_not_stop_it(tmp_path: Path) -> None:
    async with ModelServer() as server, asking(tmp_path, {"local": backend(server.url)}) as world:
        assert (await world.models.ask("base", saying("name \udcff"))).text == "echo: name ?"


SAID = {"choices": [{"delta": {"content": "whole"}, "finish_reason": "stop"}]}


@pytest.mark.parametrize("step", [Events((SAID,)), Events((SAID, "[DONE]"), stay=True)])
async def test_the_end_of_the_answer_is_enough(tmp_path: Path, step: Step) -> None:
    """A connection that breaks or stays open after the last word costs no answer."""
    async with ModelServer() as server, asking(tmp_path, {"local": backend(server.url)}) as world:
        server.script(step)
        async with asyncio.timeout(WITHIN):
            assert (await world.models.ask("base", HELLO)).text == "whole"
        assert len(server.requests) == 1


async def test_a_connection_serves_more_than_one_question(tmp_path: Path) -> None:
    async with ModelServer() as server, asking(tmp_path, {"local": backend(server.url)}) as world:
        for _ in range(3):
            await world.models.ask("base", HELLO)
        assert len({seen.peer for seen in server.requests}) == 1


async def test_usage_and_cost_are_recorded(tmp_path: Path) -> None:
    """L-087."""
    price = Price(input=2.0, cached=0.5, output=10.0)
    async with ModelServer() as server:
        backends = {
            "priced": backend(server.url, price=price),
            "uncached": backend(server.url, price=Price(input=2.0, output=10.0)),
            "free": backend(server.url),
        }
        roles = Roles(base=("priced",), compaction=("uncached",), harvest=("free",))
        async with asking(tmp_path, backends, roles=roles) as world:
            start = world.clock.now()
            usage = Usage(1000, 100, 400)
            for role in ("base", "compaction", "harvest", "dreaming"):
                server.script(Text("x", usage=usage))
                await world.models.ask(role, HELLO, cast_id="cast_1")
            spent = await world.calls.usage_since(start)
            assert {role: round(used.usd, 9) for role, used in spent.items()} == {
                "base": 0.0024,
                "compaction": 0.003,
                "harvest": 0.0,
                "dreaming": 0.0024,
            }
            assert spent["base"].tokens_in == 1000
            (first, *_) = await world.rows()
            assert (first["cast_id"], first["model"], first["request"]) == ("cast_1", "qwen", None)
            world.clock.advance(1)
            assert await world.calls.usage_since(world.clock.now()) == {}


async def test_missing_usage_is_estimated(tmp_path: Path) -> None:
    """L-087."""
    async with ModelServer() as server, asking(tmp_path, {"local": backend(server.url)}) as world:
        server.script(Text("x" * 300, usage=None))
        reply = await world.models.ask("base", saying("y" * 3000))
        assert reply.usage.tokens_out == 100
        assert 1000 < reply.usage.tokens_in < 1200
        (row,) = await world.rows()
        assert (row["tokens_in"], row["tokens_out"]) == (reply.usage.tokens_in, 100)


async def test_a_cancelled_question_is_recorded(tmp_path: Path) -> None:
    """L-023: `/stop` ends a running call."""
    async with ModelServer() as server, asking(tmp_path, {"local": backend(server.url)}) as world:
        server.script(Hang())
        async with asyncio.TaskGroup() as group:
            task = group.create_task(world.models.ask("base", HELLO))
            await server.request_arrived(1)
            task.cancel()
        assert await world.outcomes() == ["local cancelled"]


async def test_fifty_rooms_are_answered_at_once(tmp_path: Path) -> None:
    async with ModelServer() as server, asking(tmp_path, {"local": backend(server.url)}) as world:
        gate = asyncio.Event()
        server.keyed(lambda seen: Slow(gate, Text(f"for {seen.last_user}")))
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(world.models.ask("base", saying(f"room {n}"))) for n in range(50)
            ]
            await server.request_arrived(50)
            gate.set()
        assert [task.result().text for task in tasks] == [f"for room {n}" for n in range(50)]


async def test_keys_appear_in_no_error_and_no_row(tmp_path: Path) -> None:
    """L-050."""
    async with ModelServer() as server:
        settings = {"local": backend(server.url, api_key=Secret(KEY))}
        async with asking(tmp_path, settings, retries=0) as world:
            server.script(Fail(401, f"wrong key {KEY}"), Fail(500, f"Bearer {KEY}"))
            for _ in range(2):
                with pytest.raises(ModelError, match=r"\[secret\]") as caught:
                    await world.models.ask("base", HELLO)
                assert KEY not in "".join(traceback.format_exception(caught.value))
            assert server.requests[0].headers["authorization"] == f"Bearer {KEY}"
            for row in await world.rows():
                assert KEY not in row["detail"]
                assert "[secret]" in row["detail"]


@pytest.mark.parametrize(
    "settings", [{"api_key": Secret("schlüssel")}, {"api_key": Secret("two\nlines")}]
)
async def test_an_unsendable_key_is_refused(tmp_path: Path, settings: dict[str, Any]) -> None:
    async with asking(tmp_path, {"local": backend(DEAD, **settings)}) as world:
        with pytest.raises(ModelRefused, match="local has an api_key"):
            await world.models.ask("base", HELLO)


async def test_an_address_that_is_none_is_refused(tmp_path: Path) -> None:
    async with asking(tmp_path, {"local": backend("http://[::1/v1")}) as world:
        with pytest.raises(ModelRefused, match="local has no valid base_url"):
            await world.models.ask("base", HELLO)


async def test_a_role_without_any_model_says_what_to_set(tmp_path: Path) -> None:
    """L-005."""
    async with asking(tmp_path, {"local": backend(DEAD)}, roles=Roles()) as world:
        with pytest.raises(ModelRefused, match=r"llm\.roles\.base"):
            await world.models.ask("dreaming", HELLO)
        with pytest.raises(ModelRefused):
            world.models.window("base")


def test_the_window_is_that_of_the_first_backend(tmp_path: Path) -> None:
    """L-038: an answer still fits, and half of it stays for the request."""
    backends = {
        "a": backend(DEAD, context_tokens=5000, max_output_tokens=1000),
        "b": backend(DEAD, context_tokens=5000, max_output_tokens=4096),
    }
    llm = Llm(backends=backends, roles=Roles(base=("a", "b"), harvest=("b",)))
    unused: Any = None
    models = Models(llm, unused, FakeClock(), new_id, "UTC")
    assert [models.window(role) for role in ("base", "dreaming", "harvest")] == [4000, 4000, 2500]
    assert models.window("base", "b") == 2500
    assert models.names == ("a", "b")
