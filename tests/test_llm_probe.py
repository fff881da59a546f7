"""What `wintermute check` says about a model."""

import json
import re

import pytest

from tests.world.model import Calls, Empty, Fail, Hang, ModelServer, Step, Text, Use
from wintermute.config.schema import Backend
from wintermute.errors import ModelError, ModelRefused, ModelUnavailable
from wintermute.llm.probes import probe


@pytest.mark.parametrize(
    ("step", "why"), [(Text("ok"), "answered in words"), (Empty("length"), "no end")]
)
async def test_a_model_that_calls_nothing_is_named_with_its_time(step: Step, why: str) -> None:
    """F-042."""
    async with ModelServer() as server:
        server.script(step)
        probed = await probe("local", Backend(base_url=server.url, model="qwen"), 60)
        said = r"local answered in \d+\.\d s \(model qwen\); tool calls not tried: it .*"
        assert re.fullmatch(said + why + ".*", probed.report)  # the first one loads openai
        assert server.requests[0].body["max_tokens"] == 256
        assert (probed.state, probed.spells, len(server.requests)) == ("warn", None, 1)


async def test_in_which_other_words_a_model_had_to_be_asked_is_told() -> None:
    """F-042."""
    async with ModelServer(rules=False) as server:
        server.script(Fail(400, "unknown field: stream_options"), Text("ok"))
        probed = await probe("local", Backend(base_url=server.url, model="qwen"), 60)
    assert " s (model qwen, asked without stream_options);" in probed.report


CALL = {"name": "done", "arguments": {"answer": "ok"}}


@pytest.mark.parametrize(
    ("step", "spells"),
    [
        (Calls((Use("done", {"answer": "ok"}),)), False),
        (Text(json.dumps(CALL)), True),
        (Text(f"```json\n{json.dumps(CALL)}\n```"), True),
        (Text(f"{{{json.dumps(CALL)}}}"), True),
        (Text(f"<tool_call>{json.dumps(CALL)}</tool_call>"), None),  # read as one everywhere
        (Text(f"Here: {json.dumps(CALL)}"), None),
    ],
)
async def test_a_model_that_writes_calls_as_text_is_seen(step: Step, spells: bool | None) -> None:
    """Issue 17."""
    async with ModelServer() as server:
        server.script(step)
        probed = await probe("local", Backend(base_url=server.url, model="qwen"), 60)
    assert probed.spells is spells


@pytest.mark.parametrize(
    ("step", "error", "told"),
    [
        (Fail(404), ModelRefused, "local does not know this model or address"),
        (Fail(500), ModelUnavailable, "local answered 500"),
    ],
)
async def test_a_model_that_fails_says_what_to_do(
    step: Step, error: type[ModelError], told: str
) -> None:
    async with ModelServer() as server:
        server.script(step)
        with pytest.raises(error, match=told):
            await probe("local", Backend(base_url=server.url, model="qwen"), 60)
        assert len(server.requests) == 1


async def test_a_model_that_does_not_begin_is_given_up(model: ModelServer) -> None:
    """F-017: a question outside of a cast has `loop.max_seconds`."""
    model.script(Hang())
    with pytest.raises(ModelUnavailable, match=r"local gave no answer in 0\.3 s"):
        await probe("local", Backend(base_url=model.url, model="qwen"), 0.3)
