"""Answers of models, read from whatever servers send."""

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wintermute.llm import wire
from wintermute.llm.failures import Empty, Failed, Outage, Refused, TooLarge
from wintermute.llm.wire import Answer, AnswerParser
from wintermute.messages import Call, Usage


def read(*chunks: bytes) -> Answer:
    counter = itertools.count(1)
    gathering = AnswerParser()
    for chunk in chunks:
        gathering.feed(chunk)
    return gathering.answer(lambda prefix: f"{prefix}_{next(counter)}")


def whole(message: Any, finish: str | None = "stop", **more: Any) -> bytes:
    body = {"choices": [{"message": message, "finish_reason": finish}], **more}
    return json.dumps(body).encode()


def stream(*deltas: Any, finish: str | None = "stop", end: str = "data: [DONE]\n\n") -> bytes:
    choices = [{"delta": delta, "finish_reason": None} for delta in deltas]
    choices.append({"delta": {}, "finish_reason": finish})
    events = [f"data: {json.dumps({'choices': [choice]})}\n\n" for choice in choices]
    return ("".join(events) + end).encode()


def tool(name: Any, arguments: Any, **more: Any) -> dict[str, Any]:
    return {"function": {"name": name, "arguments": arguments}, **more}


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("hello", "hello"),
        ([{"type": "text", "text": "two "}, {"type": "image"}, {"text": "parts"}], "two parts"),
        (["bare ", "strings"], "bare strings"),
        ("half \ud83d", "half \ufffd"),
        ("\ud83d\ude00", "\U0001f600"),
        ("bell\x07 and\r\nline", "bell\ufffd and\nline"),
        ("\u202eleft", "\u202eleft"),
    ],
)
def test_text_is_read_and_cleaned(content: Any, text: str) -> None:
    assert read(whole({"content": content})).text == text
    assert read(stream({"content": content})).text == text


def test_a_character_cut_in_halves_by_the_stream_is_whole_again() -> None:
    assert read(stream({"content": "a\ud83d"}, {"content": "\ude00b"})).text == "a\U0001f600b"


def test_invalid_utf8_from_the_model_becomes_replacement_marks() -> None:
    broken = whole({"content": "caf@"}).replace(b"@", b"\xe9")
    assert read(broken).text == "caf\ufffd"


def test_reasoning_is_not_text() -> None:
    delta = {"reasoning_content": "hm", "reasoning": "hm", "content": None}
    assert read(stream(delta, {"content": "yes"})).text == "yes"


CALL = Call("c1", "read_file", '{"path": "a"}')


@pytest.mark.parametrize(
    ("message", "calls"),
    [
        ({"tool_calls": [tool("read_file", '{"path": "a"}', id="c1")]}, (CALL,)),
        ({"tool_calls": [tool("read_file", {"path": "a"}, id="c1")]}, (CALL,)),
        ({"tool_calls": [tool("x", "{}")]}, (Call("call_1", "x", "{}"),)),
        ({"tool_calls": [tool("x", "", id=" ")]}, (Call("call_1", "x", "{}"),)),
        ({"tool_calls": [tool("x", None, id=7)]}, (Call("call_1", "x", "{}"),)),
        ({"tool_calls": [tool("x", "{not json", id="c")]}, (Call("c", "x", "{not json"),)),
        ({"function_call": {"name": "x", "arguments": "{}"}}, (Call("call_1", "x", "{}"),)),
        ({"tool_calls": [tool("call_entity", "{}", id="c")]}, (Call("c", "call_agent", "{}"),)),
        (
            {"tool_calls": [tool("call_entity_batch", "{}", id="c")]},
            (Call("c", "call_agent_batch", "{}"),),
        ),
        (
            {"tool_calls": [tool("a", '{"t": "\\ud83d!"}', id="c")]},
            (Call("c", "a", '{"t": "\ufffd!"}'),),
        ),
    ],
)
def test_calls_are_read_in_every_shape(message: Any, calls: tuple[Call, ...]) -> None:
    """L-004, L-027."""
    message = {"content": None, **message}
    assert read(whole(message)).calls == calls
    assert read(stream(message)).calls == calls


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        ('{"answer": "a"}', '{"answer": "a"}'),
        ('{"x": 0}', '{"answer": 0}'),
        ('"bare"', '{"answer": "bare"}'),
        ("[]", '{"answer": []}'),
        ('{"a": 1, "b": 2}', '{"answer": {"a": 1, "b": 2}}'),
        ("", "{}"),
        ("{broken", "{broken"),
    ],
)
def test_submit_answer_is_done(arguments: str, answer: str) -> None:
    """L-010."""
    message = {"tool_calls": [tool("submit_answer", arguments, id="c")]}
    assert read(whole(message)).calls == (Call("c", "done", answer),)


@pytest.mark.parametrize(
    "deltas",
    [
        pytest.param(
            [
                [tool("a", '{"n"', id="1", index=0), tool("b", "", id="2", index=1)],
                [tool(None, ": 1}", index=0)],
                [tool(None, "{}", index=1)],
            ],
            id="by index",
        ),
        pytest.param(
            [
                [tool("a", '{"n"', id="1", index=0)],
                [tool("a", ": 1}", id="1", index=0)],
                [tool("b", "{}", id="2", index=0)],
            ],
            id="every call numbered 0, name and id repeated",
        ),
        pytest.param(
            [[tool("a", '{"n": 1}', id="1"), tool("b", "{}", id="2")]], id="without index"
        ),
    ],
)
def test_parts_of_calls_are_put_together(deltas: list[Any]) -> None:
    answer = read(stream(*({"tool_calls": delta} for delta in deltas), finish="tool_calls"))
    assert answer.calls == (Call("1", "a", '{"n": 1}'), Call("2", "b", "{}"))


def test_a_call_without_a_name_is_none() -> None:
    assert read(whole({"content": "so", "tool_calls": [tool("", "{}"), None, "?"]})).calls == ()


@pytest.mark.parametrize("finish", [None, "", 7])
def test_a_missing_finish_reason_means_stop(finish: Any) -> None:
    assert read(whole({"content": "x"}, finish)).finish_reason == "stop"
    assert read(stream({"content": "x"}, finish=finish)).finish_reason == "stop"


def test_names_from_the_server_are_bounded_and_clean() -> None:
    """They stand in every row of the record."""
    long = "\ud83d" + "x" * 5000
    call = tool(long, "{}", id="c")
    answer = read(whole({"content": "x", "tool_calls": [call]}, long, model=long))
    for name in (answer.finish_reason, answer.model, answer.calls[0].name):
        assert name.startswith("\ufffdx")
        assert len(name) <= 200


ASKED = {"prompt_tokens": 9, "completion_tokens": 2}


@pytest.mark.parametrize(
    ("reported", "usage"),
    [
        ({"prompt_tokens": 9, "completion_tokens": 2}, Usage(9, 2, 0)),
        (
            {
                "prompt_tokens": 9,
                "completion_tokens": 2,
                "prompt_tokens_details": {"cached_tokens": 4},
            },
            Usage(9, 2, 4),
        ),
        (
            {"prompt_tokens": 9, "completion_tokens": 2, "prompt_cache_hit_tokens": 90},
            Usage(9, 2, 9),
        ),
        ({"prompt_tokens": "9", "completion_tokens": None}, None),
        ({"prompt_tokens": -1}, None),
        ({"prompt_tokens": 10**9, "completion_tokens": 10**9 + 1}, Usage(10**9, 0, 0)),
        ({"prompt_tokens": 10**30, "completion_tokens": 10**30}, None),
        ({"prompt_tokens": True, "completion_tokens": 2.0}, None),
        ({"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 10**30}}, Usage(9, 0, 0)),
        (None, None),
        ([], None),
    ],
)
def test_usage_is_read_or_known_to_be_missing(reported: Any, usage: Usage | None) -> None:
    assert read(whole({"content": "x"}, usage=reported)).usage == usage


@pytest.mark.parametrize(
    ("told", "usage"),
    [
        # llama.cpp today, before it counted cached tokens in `usage`, and in its first year
        ({"usage": {**ASKED, "prompt_tokens_details": {"cached_tokens": 7}}}, Usage(9, 2, 7)),
        ({"usage": ASKED, "timings": {"cache_n": 7, "prompt_n": 2}}, Usage(9, 2, 7)),
        ({"usage": ASKED, "timings": {"prompt_n": 2, "predicted_n": 2}}, Usage(9, 2, 7)),
        ({"usage": ASKED, "timings": {"cache_n": 0, "prompt_n": 2}}, Usage(9, 2, 0)),
        ({"timings": {"cache_n": 7, "prompt_n": 2, "predicted_n": 2}}, Usage(9, 2, 7)),
        ({"usage": ASKED, "timings": {"cache_n": 70, "prompt_n": -2}}, Usage(9, 2, 9)),
        ({"usage": ASKED, "timings": ["cache_n"]}, Usage(9, 2, 0)),
        # DeepSeek, Mistral, Moonshot
        ({"usage": {**ASKED, "prompt_cache_hit_tokens": 7}}, Usage(9, 2, 7)),
        ({"usage": {**ASKED, "prompt_token_details": {"cached_tokens": 7}}}, Usage(9, 2, 7)),
        ({"usage": {**ASKED, "num_cached_tokens": 7}}, Usage(9, 2, 7)),
        ({"usage": {**ASKED, "cached_tokens": 7}}, Usage(9, 2, 7)),
        ({"choices": [{"usage": {**ASKED, "cached_tokens": 7}}]}, Usage(9, 2, 7)),
        # OpenAI's other words
        (
            {
                "usage": {
                    "input_tokens": 9,
                    "output_tokens": 2,
                    "input_tokens_details": {"cached_tokens": 7},
                }
            },
            Usage(9, 2, 7),
        ),
        # Anthropic's words: what was in the cache is not among the input; some gateways count it there
        (
            {
                "usage": {
                    "input_tokens": 1,
                    "output_tokens": 2,
                    "cache_read_input_tokens": 5,
                    "cache_creation_input_tokens": 3,
                }
            },
            Usage(9, 2, 5),
        ),
        (
            {"usage": {"prompt_tokens": 1, "completion_tokens": 2, "cache_read_input_tokens": 8}},
            Usage(9, 2, 8),
        ),
        ({"usage": {**ASKED, "cache_read_input_tokens": 7}}, Usage(9, 2, 7)),
        ({"usage": {**ASKED, "prompt_tokens_details": None, "cached_tokens": "7"}}, Usage(9, 2, 0)),
    ],
)
def test_cached_tokens_are_read_in_the_words_of_each_server(
    told: dict[str, Any], usage: Usage
) -> None:
    """L-085: never more than all that was read."""
    (choice,) = told.get("choices", [{}])
    body = {**told, "choices": [{**choice, "message": {"content": "x"}}]}
    assert read(json.dumps(body).encode()).usage == usage


def test_the_last_usage_of_a_stream_counts() -> None:
    first = {"choices": [{"delta": {"content": "x"}}], "usage": {"prompt_tokens": 1}}
    last = {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 2}}
    events = "".join(f"data: {json.dumps(event)}\n\n" for event in (first, last))
    assert read(f"{events}data: [DONE]\n\n".encode()).usage == Usage(5, 2, 0)


def test_comments_other_fields_and_line_ends_do_not_matter() -> None:
    noise = b": waiting\r\nevent: message\r\nid: 3\r\nretry: 5\r\n\r\n"
    assert read(noise + stream({"content": "x"}).replace(b"\n", b"\r\n")).text == "x"


def test_the_end_of_a_stream_needs_no_newline() -> None:
    assert read(stream({"content": "x"}, finish=None, end="data: [DONE]")).text == "x"


CUT_CALL = {"tool_calls": [tool("x", '{"half": ')]}
GARBAGE: list[tuple[bytes, type[Failed], str]] = [
    (b"", Outage, "garbage"),
    (b"<!doctype html><p>hello", Outage, "garbage"),
    (b"\x00\xff", Outage, "garbage"),
    (b"[" * 200_000, Outage, "garbage"),
    (b"[]", Outage, "garbage"),
    (b'"text"', Outage, "garbage"),
    (b"{}", Outage, "garbage"),
    (b'{"choices": null}', Outage, "garbage"),
    (b'{"choices": []}', Outage, "garbage"),
    (b'{"choices": "x"}', Outage, "garbage"),
    (b"data: {broken\n\n", Outage, "garbage"),
    (b"data: [DONE]\n\n", Outage, "garbage"),
    (b'{"choices": [null]}', Empty, "empty"),
    (whole(None), Empty, "empty"),
    (whole({"content": " \n"}), Empty, "empty"),
    (whole({"content": "", "tool_calls": []}), Empty, "empty"),
    (stream({"role": "assistant"}), Empty, "empty"),
    (stream({"reasoning_content": "hm"}), Empty, "empty"),
    (stream({"content": "<think>never closed"}), Empty, "empty"),
    (stream({"content": " "}, finish=None, end=""), Outage, "connection"),
    (stream({"content": "a"}, finish="abort"), Outage, "connection"),
    (stream({"content": "a", **CUT_CALL}, finish=None, end=""), Outage, "connection"),
    (b'{"error": {"message": "busy"}}', Outage, "error"),
    (b'{"error": "busy", "choices": null}', Outage, "error"),
    (b'{"error": "upstream took too long"}', Outage, "error"),
    (b'{"error": {"code": 429, "message": "slow down"}}', Outage, "status_429"),
    (b'{"error": {"code": 401, "message": "no"}}', Refused, "key"),
    (b'{"error": {"code": "insufficient_quota"}}', Refused, "quota"),
    (b'{"error": {"code": "context_length_exceeded"}}', TooLarge, "context"),
    (b'data: {"error": {"message": "exceeds the available context size"}}\n', TooLarge, "context"),
]


@pytest.mark.parametrize(("body", "kind", "outcome"), GARBAGE)
def test_what_is_no_answer_has_a_name(body: bytes, kind: type[Failed], outcome: str) -> None:
    """L-015, L-035."""
    with pytest.raises(Failed) as caught:
        read(body)
    assert (type(caught.value), caught.value.outcome) == (kind, outcome)


def test_an_empty_answer_still_tells_what_it_cost() -> None:
    with pytest.raises(Empty) as caught:
        read(whole({}, usage={"prompt_tokens": 3, "completion_tokens": 1}))
    assert caught.value.usage == Usage(3, 1, 0)


def test_an_endless_answer_is_given_up() -> None:
    gathering = AnswerParser()
    block = b"data: " + b"x" * (1024 * 1024)
    for _ in range(wire.MOST_BYTES // len(block)):
        gathering.feed(block)
    with pytest.raises(Outage, match="more than"):
        gathering.feed(block)


@given(st.lists(st.integers(0, 400), max_size=12))
def test_where_the_bytes_are_cut_does_not_matter(cuts: list[int]) -> None:
    data = stream({"content": "grüße \U0001f600"}, {"tool_calls": [tool("a", '{"n": 1}', id="1")]})
    edges = [0, *sorted(cuts), len(data)]
    chunks = [data[start:end] for start, end in itertools.pairwise(edges)]
    assert read(*chunks) == read(data)


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["choices", "message", "delta", "content", "tool_calls", "function", "name", "arguments", "function_call", "error", "usage", "index", "id", "code"]), inner), max_leaves=30))  # fmt: skip
def test_no_json_value_surprises_the_reader(value: Any) -> None:
    for data in (json.dumps(value).encode(), f"data: {json.dumps(value)}\n\n".encode()):
        try:
            assert isinstance(read(data), Answer)
        except Failed as failure:
            assert failure.outcome  # noqa: PT017  either is fine; anything else is a bug


def test_a_part_with_an_id_of_its_own_but_no_name_goes_on_with_its_call() -> None:
    """Releases of vLLM made up an id for each part of a call."""
    gathering = AnswerParser()
    for part in (
        {"id": "a", "function": {"name": "echo", "arguments": '{"say": '}},
        {"id": "b", "function": {"arguments": '"x"}'}},
    ):
        delta = {"choices": [{"delta": {"tool_calls": [{"index": 0, **part}]}}]}
        gathering.feed(b"data: " + json.dumps(delta).encode() + b"\n\n")
    gathering.feed(b"data: [DONE]\n\n")
    (call,) = gathering.answer(lambda prefix: prefix).calls
    assert (call.id, call.name, call.arguments) == ("a", "echo", '{"say": "x"}')
