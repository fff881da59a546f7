"""A server is asked in the words that it knows: what its template refuses, it is told otherwise."""

from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.world.asking import HELLO, TOOL, backend
from tests.world.house import house_at_work
from tests.world.model import Fail, ModelServer, Seen, Step, Text
from wintermute.ids import new_id
from wintermute.llm.backend import Endpoint
from wintermute.llm.failures import Outage, Refused
from wintermute.llm.provider_quirks import NOTHING_SAID
from wintermute.messages import Json, Request

GEMMA = {"error": {"message": "System role not supported", "type": "BadRequestError"}}
LLAMA_CPP = {
    "error": {
        "code": 500,
        "message": "\n------------\nWhile executing CallExpression at line 19, column 27 in source:\n"
        "..." + "{{ x }}↵" * 60 + '{{ raise_exception("Conversation roles must alternate user...\n'
        "Error: Jinja Exception: Conversation roles must alternate user/assistant/user/...",
        "type": "server_error",
    }
}
CALLED: Json = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {"id": "c", "type": "function", "function": {"name": "done", "arguments": "{}"}}
    ],
}
RESULT: Json = {"role": "tool", "tool_call_id": "c", "content": "done"}


def system(text: str) -> Json:
    return {"role": "system", "content": text}


def user(text: str) -> Json:
    return {"role": "user", "content": text}


def model_said(text: str) -> Json:
    return {"role": "assistant", "content": text}


def template(seen: Seen, *, has_system: bool = True) -> Step:
    """As templates check it: a person and the model in turn, calls and their results apart."""
    messages = seen.messages
    if messages[0]["role"] == "system":
        if not has_system:
            return Fail(400, GEMMA)
        messages = messages[1:]
    turns = [m["role"] for m in messages if m["role"] != "tool" and not m.get("tool_calls")]
    if any(role != ("user", "assistant")[n % 2] for n, role in enumerate(turns)):
        return Fail(500, LLAMA_CPP)
    return Text("fits")


async def asked(model: ModelServer, *conversations: tuple[Json, ...]) -> list[list[Json]]:
    """What arrived in the end for each, one after the other from one endpoint."""
    found = []
    async with aclosing(Endpoint("a", backend(model.url), new_id)) as endpoint:
        for messages in conversations:
            assert (await endpoint.ask(Request(messages, (TOOL,)))).text == "fits"
            found.append(model.requests[-1].messages)
    return found


async def test_a_template_without_a_system_message_gets_it_with_the_first_one() -> None:
    """Once per start: the second question is asked that way at once."""
    async with ModelServer(rules=False) as model:
        model.keyed(lambda seen: template(seen, has_system=False))
        first = (system("be kind"), user("hello"))
        second = (*first, model_said("hi"), user("and now"))
        shown = await asked(model, first, second)
        assert shown[0] == [user("be kind\n\nhello")]
        assert shown[1] == [user("be kind\n\nhello"), model_said("hi"), user("and now")]
        assert len(model.requests) == 3


async def test_a_template_that_wants_turns_gets_neighbours_as_one_message() -> None:
    """llama.cpp answers 500 with the template first; that is no outage."""
    async with ModelServer(rules=False) as model:
        model.keyed(template)
        twice = (system("be kind"), user("one"), user("two"))
        behind = (system("be kind"), user("one"), CALLED, RESULT, user("two"))
        shown = await asked(model, twice, behind)
        assert shown[0] == [system("be kind"), user("one\n\ntwo")]
        answered = [CALLED, RESULT, model_said(NOTHING_SAID)]
        assert shown[1] == [system("be kind"), user("one"), *answered, user("two")]
        assert len(model.requests) == 3


async def test_a_template_may_refuse_a_system_message_in_the_words_for_turns() -> None:
    """Mistral's first ones count it as a turn."""

    def counted(seen: Seen) -> Step:
        roles = [message["role"] for message in seen.messages]
        alternate = all(r == ("user", "assistant")[n % 2] for n, r in enumerate(roles))
        return Text("fits") if alternate else Fail(500, LLAMA_CPP)

    async with ModelServer(rules=False) as model:
        model.keyed(counted)
        (shown,) = await asked(model, (system("be kind"), user("one"), user("two")))
        assert shown == [user("be kind\n\none\n\ntwo")]


@pytest.mark.parametrize(
    ("answer", "told"),
    [(Fail(500, LLAMA_CPP), "must alternate"), (Fail(400, GEMMA), "System role not supported")],
)
async def test_a_template_that_still_refuses_is_named_and_left(answer: Fail, told: str) -> None:
    """L-035."""
    async with ModelServer(default=lambda _: answer, rules=False) as model:
        async with aclosing(Endpoint("a", backend(model.url), new_id)) as endpoint:
            with pytest.raises(Refused, match=f"a refuses the order of messages .*{told}"):
                await endpoint.ask(HELLO)
            assert endpoint.request_changes == ""
        assert len(model.requests) == 2


@pytest.mark.parametrize("field", ["parallel_tool_calls", "return_progress"])
async def test_a_configured_field_that_is_refused_is_named_and_left(field: str) -> None:
    """L-035: only the person can take it away."""
    answer = Fail(400, {"error": {"message": f"unknown field {field}"}})
    async with ModelServer(default=lambda _: answer) as model:
        settings = backend(model.url, size="small", extra={field: False})
        async with aclosing(Endpoint("a", settings, new_id)) as endpoint:
            with pytest.raises(Refused, match=field):
                await endpoint.ask(replace(HELLO, tools=(TOOL,)))
        assert len(model.requests) == 1


async def test_another_failure_of_a_server_stays_an_outage(model: ModelServer) -> None:
    """L-035."""
    model.script(Fail(500, {"error": {"message": "the system is overloaded"}}))
    async with aclosing(Endpoint("a", backend(model.url), new_id)) as endpoint:
        with pytest.raises(Outage):
            await endpoint.ask(HELLO)


@pytest.mark.parametrize("first", [{}, {"extra": {"temperature": 0.2, "model": "other"}}])
async def test_what_the_configuration_adds_goes_with_each_request_and_replaces_nothing(
    model: ModelServer, first: dict[str, Any]
) -> None:
    extra = {"chat_template_kwargs": {"enable_thinking": False}, "id_slot": 0, **first}
    async with aclosing(Endpoint("a", backend(model.url, extra=extra), new_id)) as endpoint:
        await endpoint.ask(HELLO)
        await endpoint.ask(HELLO, 7)
    for request, most in zip(model.requests, (4096, 7), strict=True):
        assert request.body["chat_template_kwargs"] == {"enable_thinking": False}
        assert (request.body["id_slot"], request.body["model"]) == (0, "qwen")
        assert (request.body["max_tokens"], request.body["stream"]) == (most, True)


async def test_a_room_is_answered_by_a_model_that_knows_no_system_message(tmp_path: Path) -> None:
    """Learnt with the first message, and known for all that follow."""
    async with ModelServer(rules=False) as model:
        model.keyed(lambda seen: template(seen, has_system=False))
        async with house_at_work(tmp_path, model.url) as house:
            await house.ask("hello")
            await house.incoming("and now")
            assert await house.said(2) == ["fits", "fits"]
        assert len(model.requests) == 3
        assert [message["role"] for message in model.requests[-1].messages] == [
            *("user", "assistant", "user")
        ]
