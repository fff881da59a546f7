"""The model server of the tests notices bad requests, or every test that relies on it is blind."""

from pathlib import Path
from typing import Any

import pytest

from tests.world.asking import HELLO, asking, backend
from tests.world.model import VIOLATION, ModelServer, broken_rules
from wintermute.errors import ModelUnavailable
from wintermute.messages import Request

SYSTEM = {"role": "system", "content": "# Core Instructions\ns"}
USER = {"role": "user", "content": "u"}
SAID = {"role": "assistant", "content": "a"}


def calling(*ids: str) -> dict[str, Any]:
    return {"role": "assistant", "tool_calls": [{"id": call} for call in ids]}


def result(call: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call, "content": "r"}


GOOD = [
    [SYSTEM, USER],
    [SYSTEM, USER, SAID, USER],
    [SYSTEM, USER, calling("1", "2"), result("2"), result("1")],
    [SYSTEM, USER, calling("1"), result("1"), calling("1"), result("1"), SAID, USER],
]
BAD = [
    ([USER], "system prompt is not first"),
    ([], "system prompt is not first"),
    ([SYSTEM, SAID, USER], "not the user's"),
    ([SYSTEM], "not the user's"),
    ([SYSTEM, USER, calling("1")], "end of the request before the result of 1"),
    ([SYSTEM, USER, calling("1"), USER], "user before the result of 1"),
    ([SYSTEM, USER, calling("1"), calling("2"), result("1")], "assistant before the result of 1"),
    ([SYSTEM, USER, result("1")], "result for 1"),
    ([SYSTEM, USER, calling("1"), result("1"), result("1")], "result for 1"),
    ([SYSTEM, USER, calling("1", "1"), result("1"), result("1")], "two calls named 1"),
]


@pytest.mark.parametrize("messages", GOOD)
def test_a_good_request_breaks_no_rule(messages: list[Any]) -> None:
    assert broken_rules({"messages": messages, "tools": [1]}) == []
    assert broken_rules({"messages": messages}) == ["no tools"]


@pytest.mark.parametrize(("messages", "rule"), BAD)
def test_a_bad_request_breaks_its_rule(messages: list[Any], rule: str) -> None:
    """L-006, L-017."""
    assert rule in str(broken_rules({"messages": messages, "tools": [1]}))


async def test_a_bad_request_fails_the_test_that_sent_it(tmp_path: Path) -> None:
    async def careless_test() -> None:
        server = ModelServer()
        async with server, asking(tmp_path, {"m": backend(server.url)}, retries=0) as world:
            with pytest.raises(ModelUnavailable, match=VIOLATION):
                await world.models.ask("base", Request((USER,), HELLO.tools))

    with pytest.raises(AssertionError, match="request 1: the system prompt"):
        await careless_test()
