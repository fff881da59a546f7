"""What servers send, sent to the real client by a scripted one."""

import json
from contextlib import aclosing

import pytest

from tests.hosted_servers import HOSTED
from tests.leaked_markup import LEAKED
from tests.servers import LOCAL, Sent
from tests.world.asking import backend
from tests.world.model import Fail, Garbage, ModelServer, Step
from wintermute.ids import new_id
from wintermute.llm.backend import Endpoint
from wintermute.llm.failures import Failed
from wintermute.llm.wire import Answer, AnswerParser
from wintermute.messages import Json, Request

SENT = (*LOCAL, *HOSTED, *LEAKED)

CASES = [pytest.param(sent, id=sent.name) for sent in SENT]


def offered(name: str) -> Json:
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}


HELLO = Request(
    ({"role": "system", "content": "be kind"}, {"role": "user", "content": "hello"}),
    (offered("read_file"), offered("done")),
)


def step(sent: Sent) -> Step:
    if sent.status != 200:
        return Fail(sent.status, sent.data.decode())
    streamed = isinstance(sent.body, tuple)
    return Garbage(sent.data, "text/event-stream" if streamed else "application/json")


def test_each_row_has_a_name_of_its_own() -> None:
    names = {sent.name for sent in SENT}
    assert len(names) == len(SENT)


@pytest.mark.parametrize("sent", CASES)
async def test_what_a_server_sends_is_what_it_means(model: ModelServer, sent: Sent) -> None:
    """F-018, F-019, F-020, L-015, L-035."""
    model.script(step(sent))
    async with aclosing(Endpoint("a", backend(model.url), new_id)) as endpoint:
        if sent.failure is None:
            agrees(await endpoint.ask(HELLO), sent)
        else:
            with pytest.raises(Failed) as caught:
                await endpoint.ask(HELLO)
            assert type(caught.value) is sent.failure, caught.value


@pytest.mark.parametrize("sent", SENT, ids=lambda sent: sent.name)
def test_where_its_bytes_are_cut_makes_no_difference(sent: Sent) -> None:
    def outcome(*chunks: bytes) -> object:
        gathering = AnswerParser()
        try:
            for chunk in chunks:
                gathering.feed(chunk)
            return gathering.answer(lambda prefix: prefix)
        except Failed as failure:
            return type(failure), str(failure)

    in_bytes = (sent.data[at : at + 1] for at in range(len(sent.data)))
    assert outcome(*in_bytes) == outcome(sent.data)


def agrees(answer: Answer, sent: Sent) -> None:
    calls = tuple((call.name, json.loads(call.arguments)) for call in answer.calls)
    assert (answer.text.strip(), calls) == (sent.text, sent.calls)
    assert answer.finish_reason == sent.finish
    assert len({call.id for call in answer.calls}) == len(calls)
    if sent.usage:
        assert answer.usage
        assert (answer.usage.tokens_in, answer.usage.tokens_out) == sent.usage
