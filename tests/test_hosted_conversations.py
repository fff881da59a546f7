"""Whole conversations with ten providers, each as strict as it is (`tests/world/strict.py`)."""

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import count, permutations
from pathlib import Path

import pytest

from tests.world.house import Gate, House, open_house
from tests.world.model import Events, Garbage, ModelServer, Step, Text
from tests.world.strict import PROVIDERS, Asked, Strict, calls_of
from wintermute.config.schema import Backend, Llm, Roles
from wintermute.conversation.toolbox import Caller
from wintermute.llm.failures import Refused, of_status
from wintermute.llm.probes import probe
from wintermute.messages import Json

LEARNT = {
    "deepseek": ["with reasoning_content in answers"],
    "openai": ["with max_completion_tokens", "with reasoning_effort none"],
    "mistral": ["without stream_options"],
    "groq": ["without reasoning of answers"],
}
"""In which words those are asked that refuse those of the API: once for each, after every start."""


@asynccontextmanager
async def talking(folder: Path, *providers: Strict) -> AsyncIterator[tuple[House, list[bool]]]:
    """A house that asks these in turn; a run of its tool takes what to do with the first from the list."""
    plan: list[bool] = []

    async def act(_: Caller, args: Json) -> object:
        if plan:
            providers[0].away = plan.pop()
        return args["say"]

    backends = {each.name: Backend(base_url=each.server.url, model="m") for each in providers}
    llm = Llm(backends=backends, roles=Roles(base=tuple(backends)), max_retries=0)
    async with open_house(folder, None, gates=[Gate(act=act)], llm=llm) as house, house.working():
        yield house, plan


HELLO: Json = {"role": "user", "content": "hello"}
CALL: Json = {"id": "turn1_0", "type": "function", "function": {"name": "Bash", "arguments": ""}}
CALLED: Json = {"role": "assistant", "content": None, "tool_calls": [CALL]}
RESULT: Json = {"role": "tool", "tool_call_id": "turn1_0", "content": "done"}
WRONG: dict[str, list[Json]] = {
    "unanswered": [HELLO, CALLED, HELLO],
    "stray": [HELLO, RESULT],
    "unknown_of_message": [{**HELLO, "reasoning": "Hm"}],
    "empty_content": [HELLO, {"role": "assistant", "content": None}],
}
REFUSALS = [
    pytest.param(name, row, id=f"{name}: {row['source']}")
    for name, its in PROVIDERS.items()
    for row in its["refuses"]
]


@pytest.mark.parametrize(("name", "row"), REFUSALS)
def test_what_a_provider_refuses_it_refuses_here(name: str, row: Json) -> None:
    """F-042: a server that takes everything would show nothing; in its words it is no outage."""
    roles = [{**HELLO, "role": role} for role in row.get("roles", ()) if role != "end"]
    messages = roles or WRONG.get(row["check"], [HELLO, CALLED, RESULT])
    body = {"messages": messages, "tools": [], row.get("field", "frequency_penalty"): "wrong"}
    sent = {"turn1_0": {"reasoning_details": ["of it"]}} if row["check"] == "details" else {}
    asked = Asked(name, body, sent)
    assert [*getattr(asked, row["check"])(row)]
    assert not [*getattr(Asked(name, {"messages": [HELLO]}, {}), row["check"])(row)]
    assert type(of_status(row["status"], row["body"], {})) is Refused


@pytest.mark.parametrize("name", PROVIDERS)
async def test_a_conversation_goes_on_with_every_provider(tmp_path: Path, name: str) -> None:
    """F-040, F-041, F-042: calls, a second one, failover out and in, also amid an answer, a restart."""
    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(ModelServer()) for _ in range(2)]
        other = Strict("gemini" if name == "deepseek" else "deepseek", servers[1])
        strict, numbers = Strict(name, servers[0]), count(1)

        async def say(house: House, by: Strict) -> None:
            n = next(numbers)
            await house.incoming(f"message {n}")
            assert (await house.said(n))[-1] == f"{by.name} says so"

        async with talking(tmp_path, strict, other) as (house, plan):
            await say(house, strict)
            await say(house, strict)
            plan[:] = [True]
            await say(house, other)
            await say(house, other)
            plan[:] = [False]
            await say(house, strict)
            await say(house, strict)
        async with talking(tmp_path, strict, other) as (house, _):
            await say(house, strict)
        for one, another in permutations((strict, other), 2):
            assert another.secret not in json.dumps([each.body for each in one.server.requests])
        last = strict.server.requests[-1].messages
        shown = {call["id"]: each | call for each in last for call in calls_of(each)}
        assert not shown.keys() & other.sent.keys()
        for call_id, fields in strict.sent.items():
            assert fields.items() <= shown[call_id].items() or name == "groq"
        assert strict.refused == 2 * len(LEARNT.get(name, ()))


@pytest.mark.parametrize("name", PROVIDERS)
async def test_check_makes_a_whole_round_and_says_what_it_learnt(name: str) -> None:
    """F-042: a question, calls, results, an answer, and a question whose calls follow these."""
    async with ModelServer() as server:
        strict = Strict(name, server)
        probed = await probe(name, Backend(base_url=server.url, model="m"), 60)
        assert len(server.requests) == 6 + strict.refused
    learnt = LEARNT.get(name, [])
    assert (probed.state, probed.spells, len(strict.sent)) == ("ok", False, 6)
    assert probed.report.endswith(f", asked {'; '.join(learnt)})" if learnt else " (model m)")


DOCUMENTED = [
    pytest.param(name, row, id=f"{name}: {row['source']}")
    for name, its in PROVIDERS.items()
    for row in its.get("documented", ())
]


@pytest.mark.parametrize(("name", "row"), DOCUMENTED)
async def test_a_documented_conversation_is_replayed(
    tmp_path: Path, model: ModelServer, name: str, row: Json
) -> None:
    """F-040: its own example, byte for byte; what it said goes back as it said it."""
    said = [json.loads(each) for each in row["answers"]]
    shown = [json.loads(row["shown"])] if "shown" in row else said
    results = iter(row["results"])

    async def give(_: Caller, __: Json) -> object:
        return next(results)

    names = {call["function"]["name"] for each in shown for call in calls_of(each)}
    gates = [Gate(name, act=give, parameters={"type": "object"}) for name in names]
    sent = {call["id"]: each | call for each in shown for call in calls_of(each)}
    model.keyed(lambda seen: Asked(name, seen.body, sent).refusal())
    model.script(*map(as_sent, said), *[Text("so")] * bool(calls_of(shown[-1])))
    async with open_house(tmp_path, model.url, gates=gates) as house, house.working():
        for n in range(sum(not calls_of(each) for each in shown) + bool(calls_of(shown[-1]))):
            await house.incoming("Well?")
            await house.said(n + 1)
    last = model.requests[-1].messages
    own = [plain(each) for each in last if each["role"] == "assistant"]
    assert own == [plain(each) for each in shown][: len(own)]
    assert [each["content"] for each in last if each["role"] == "tool"] == row["results"]


def as_sent(said: Json | list[Json]) -> Step:
    """A stream, or a message in a whole answer."""
    if isinstance(said, list):
        return Events((*said, "[DONE]"))
    return Garbage(json.dumps({"choices": [{"index": 0, "message": said}]}).encode())


def plain(message: Json) -> Json:
    """Without what says nothing, and without the fields of an answer that calls nothing."""
    if not calls_of(message):
        return {"content": message["content"]}
    return {key: message[key] for key in message if message[key] and key != "role"}
