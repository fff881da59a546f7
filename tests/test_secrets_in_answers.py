"""No secret goes to a model, and none comes back from one, whole or in pieces."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.replay import Recorded, events
from tests.world.asking import HELLO, asking, backend
from tests.world.listener import Listening
from tests.world.model import Calls, Events, Fail, ModelServer, Step, Text, Use
from wintermute.config.secrets import HIDDEN, Redaction, StreamRedactor
from wintermute.errors import ModelError
from wintermute.llm.refusals import LONGEST_QUOTE
from wintermute.messages import Call, Json, Request

PLAIN = "hunter2-canary"
ODD = 'cañary "b"\\c'
REDACT = Redaction((PLAIN, ODD))
CANARIES = ("canary", "cañary", "ca\\u00f1ary", "ca\\\\u00f1ary")


def bare(value: object) -> bool:
    """Nothing of a secret is left, in whatever writing."""
    text = json.dumps(value, ensure_ascii=False) if not isinstance(value, str) else value
    return not any(canary in text.lower() for canary in CANARIES)


def call(arguments: str) -> Json:
    function = {"name": "done", "arguments": arguments}
    return {"id": "c1", "type": "function", "function": function}


@pytest.mark.parametrize("secret", [PLAIN, ODD])
async def test_no_secret_leaves_in_a_request(tmp_path: Path, secret: str) -> None:
    """L-050, L-089: from prompt, person, tool or file, and however often it was written as JSON."""
    result = json.dumps({"file": json.dumps({"key": secret})})
    request = Request(
        (
            {"role": "system", "content": f"The key is {secret}."},
            {"role": "user", "content": [{"type": "text", "text": secret}]},
            {"role": "assistant", "content": "", "tool_calls": [call(json.dumps({"a": secret}))]},
            {"role": "tool", "tool_call_id": "c1", "content": result},
        ),
        ({"type": "function", "function": {"name": "done", "description": secret}},),
    )
    async with ModelServer() as server:
        local = {"local": backend(server.url)}
        async with asking(tmp_path, local, redact=REDACT, record=True) as world:
            await world.models.ask("base", request)
            (seen,) = server.requests
            (row,) = await world.rows()
    assert bare(seen.body)
    assert bare(row["request"])
    assert json.dumps(seen.body).count(HIDDEN) == 5
    assert [message["role"] for message in seen.messages] == [m["role"] for m in request.messages]


async def test_what_has_no_secrets_goes_out_as_it_is(tmp_path: Path) -> None:
    async with ModelServer() as server:
        local = {"local": backend(server.url)}
        async with asking(tmp_path, local, redact=REDACT) as world:
            await world.models.ask("base", HELLO)
        assert server.requests[0].messages == list(HELLO.messages)
        assert server.requests[0].body["tools"] == list(HELLO.tools)


def delta(finish: str | None = None, **said: Any) -> Json:
    return {"model": f"m {PLAIN}", "choices": [{"delta": said, "finish_reason": finish}]}


ESCAPED = '{"answer": "\\u0068unter2-c\\u0061nary", "\\u0068unter2-canary": 1}'
SAID: list[tuple[Step, str, tuple[Call, ...]]] = [
    (Text(f"it is {PLAIN}, or {ODD}!"), f"it is {HIDDEN}, or {HIDDEN}!", ()),
    (
        Calls((Use("done", {"answer": [ODD, PLAIN]}, id=PLAIN),), PLAIN),
        HIDDEN,
        (Call(HIDDEN, "done", f'{{"answer": ["{HIDDEN}", "{HIDDEN}"]}}'),),
    ),
    (
        Calls((Use("done", ESCAPED, id="c1"), Use(PLAIN, "{broken \\u0020", id="c2"))),
        "",
        (
            Call("c1", "done", f'{{"answer": "{HIDDEN}", "{HIDDEN}": 1}}'),
            Call("c2", HIDDEN, "{broken \\u0020"),
        ),
    ),
    (Events((delta(content="x"), delta(PLAIN), "[DONE]")), "x", ()),
]


@pytest.mark.parametrize(("step", "text", "calls"), SAID)
async def test_no_secret_comes_back_in_an_answer(
    tmp_path: Path, step: Step, text: str, calls: tuple[Call, ...]
) -> None:
    """L-089: nor into the database."""
    async with ModelServer() as server:
        local = {"local": backend(server.url)}
        async with asking(tmp_path, local, redact=REDACT, record=True) as world:
            server.script(step)
            reply = await world.models.ask("base", HELLO, cast_id="cast_1")
            (row,) = await world.rows()
            (recorded,) = await events(world.database, "cast_1")
    assert (reply.text, reply.calls) == (text, calls)
    assert bare([reply.finish_reason, reply.model])
    assert bare([row[name] for name in row.keys()])  # noqa: SIM118  a row, no dict
    assert isinstance(recorded, Recorded)
    assert recorded.answer == reply


WRONG: list[Step] = [
    Fail(401, f"wrong key {PLAIN}"),
    Fail(500, {"error": {"message": ODD}}),
    Fail(400, {"error": {"message": "x" * (LONGEST_QUOTE - 11) + PLAIN}}),
    Fail(302, "", {"Location": f"http://other/{'x' * (LONGEST_QUOTE - 24)}{PLAIN}"}),
    Events(({"error": {"message": "x" * (LONGEST_QUOTE - 11) + PLAIN}},)),
    Events((delta(content=""), delta(f"{'x' * 30}{PLAIN}"), "[DONE]")),
]


@pytest.mark.parametrize("step", WRONG)
async def test_no_secret_comes_back_in_an_error(
    tmp_path: Path, step: Step, caplog: pytest.LogCaptureFixture
) -> None:
    """L-050, L-089: not even the half of one, where a quote is cut."""
    async with (
        ModelServer() as server,
        asking(tmp_path, {"local": backend(server.url)}, retries=0, redact=REDACT) as world,
    ):
        server.script(step)
        with pytest.raises(ModelError) as caught:
            await world.models.ask("base", HELLO)
        (row,) = await world.rows()
    for told in (str(caught.value), row["detail"], caplog.text):
        assert bare(told)
        assert "hunter" not in told


async def test_drafts_show_no_secret_and_lose_nothing_else(tmp_path: Path) -> None:
    """L-089: the server cuts its text anywhere; an attempt that failed leaves nothing behind."""
    text = f"{'a' * 17}{PLAIN} and hunter2 and {ODD}, hunter"
    heard = Listening()
    pieces = heard.pieces
    async with ModelServer() as server:
        local = {"local": backend(server.url)}
        async with asking(tmp_path, local, redact=REDACT) as world:
            said = (delta(content="one "), delta(content="hunter2-can"))
            cut = Events(said, breaks=True)
            server.script(cut, Text(text))
            reply = await world.models.ask("base", HELLO, listener=heard)
    begun = len(pieces) - pieces[::-1].index("")
    assert pieces[:begun] == ["", "one ", ""]
    assert "".join(pieces[begun:]) == reply.text == REDACT(text)
    assert bare(pieces)


WORDS = ("abab", "bcde", "abc d", "secret", "abcabcabd")
texts = st.lists(st.sampled_from(["a", "b", "ab", "c", "d", " ", *WORDS, HIDDEN]), max_size=12)


@example(["ababc", "x"], ["abab", "bcde"])
@example(["abcab", "c"], ["abcabcabd", "abca"])
@given(st.lists(texts.map("".join), max_size=6), st.lists(st.sampled_from(WORDS), max_size=4))
def test_pieces_show_what_the_whole_would_show(pieces: list[str], secrets: Sequence[str]) -> None:
    """L-089: overlapping secrets, one within another, and `[secret]` itself."""
    redact = Redaction(secrets)
    shown: list[str] = []
    veil = StreamRedactor(redact, shown.append)
    for piece in pieces:
        veil.feed(piece)
    veil.end()
    whole = redact("".join(pieces))
    assert "".join(shown) == whole
    assert redact(whole).count(HIDDEN) >= whole.count(HIDDEN)
    if not secrets:
        assert shown == [piece for piece in pieces if piece]


def test_a_hidden_text_stays_as_it_is() -> None:
    """L-089: also where the password is a part of what stands for it."""
    redact = Redaction(["secret", "cret"])
    assert redact(redact("my secret")) == redact("my secret") == f"my {HIDDEN}"


def test_a_tree_keeps_its_shape() -> None:
    """L-089: names may hold a secret as well, but the frame of a request is no secret."""
    redact = Redaction(["user", "text"])
    tree = [{"role": "user", "content": "the user", "text": None, 1: 2}, True, "text"]
    framed = [{"role": "user", "content": f"the {HIDDEN}", "text": None, 1: 2}, True, HIDDEN]
    whole = [{"role": HIDDEN, "content": f"the {HIDDEN}", HIDDEN: None, 1: 2}, True, HIDDEN]
    assert redact.tree(tree, {"role"}) == framed
    assert redact.tree(tree) == whole
