"""How much fits into a window: by the configuration, by what its server says, and by what we need."""

import asyncio
from dataclasses import replace

import pytest
from aiohttp import web

from tests.world.asking import DEAD, backend, saying
from tests.world.clock import promptly
from tests.world.model import ContextTooLarge, Empty, Fail, Hang, ModelServer, Step, Text
from tests.world.stub import PROPS, stub_serving
from wintermute.config.schema import Secret
from wintermute.errors import ContextTooLarge as RequestTooLarge
from wintermute.errors import ModelUnavailable
from wintermute.llm.context_windows import (
    FixedPart,
    ServerWindow,
    compare_windows,
    is_private,
    judge_fixed_part,
    limit_in,
    server_window,
    too_small,
)
from wintermute.llm.probes import count_fixed_part, known_fixed_part
from wintermute.llm.tokens import Counted
from wintermute.messages import Json, Usage

OTHER: Json = {"id": "other", "max_model_len": 7}
SHOWN: Json = {
    "parameters": 'stop                           "<|im_end|>"\nnum_ctx                        8192',
    "model_info": {"general.architecture": "qwen2", "qwen2.context_length": 32768},
}
SERVERS: dict[str, tuple[dict[str, object], ServerWindow | None]] = {
    "llama.cpp counts per slot": ({"/props": PROPS}, ServerWindow(4096)),
    "llama.cpp in its list": (
        {"/v1/models": {"data": [{"id": "any", "meta": {"n_ctx": 2048, "n_ctx_train": 32768}}]}},
        ServerWindow(2048),
    ),
    "llama.cpp of before": (
        {"/v1/models": {"data": [{"id": "any", "meta": {"n_ctx_train": 32768}}]}},
        ServerWindow(32768, at_most=True),
    ),
    "vLLM": (
        {"/v1/models": {"data": [OTHER, {"id": "qwen", "max_model_len": 16384}]}},
        ServerWindow(16384),
    ),
    "another model of vLLM": ({"/v1/models": {"data": [OTHER, OTHER]}}, None),
    "LM Studio": (
        {
            "/v1/models": {"data": [{"id": "qwen"}]},
            "/api/v0/models": {
                "data": [{"id": "qwen", "max_context_length": 32768, "loaded_context_length": 4096}]
            },
        },
        ServerWindow(4096),
    ),
    "LM Studio before it is loaded": (
        {"/api/v0/models": {"data": [{"id": "qwen", "max_context_length": 32768}]}},
        ServerWindow(32768, at_most=True),
    ),
    "Ollama with a model loaded": (
        {"/api/ps": {"models": [{"name": "qwen:latest", "context_length": 4096}]}},
        ServerWindow(4096),
    ),
    "Ollama with a number of its own": ({"/api/show": SHOWN}, ServerWindow(8192)),
    "Ollama without": (
        {"/api/show": {"model_info": SHOWN["model_info"]}},
        ServerWindow(32768, at_most=True),
    ),
    "nobody says anything": ({}, None),
    "a web page": ({"/props": "<html>", "/v1/models": "<html>", "/api/ps": "data: 1"}, None),
    "lists and numbers": ({"/props": "[1]", "/v1/models": "7", "/api/show": '"x"'}, None),
    "too deep": ({"/props": "[" * 100_000}, None),
    "garbage where numbers should be": (
        {
            "/props": {"default_generation_settings": {"n_ctx": "many"}},
            "/v1/models": {"data": [{"id": "qwen", "max_model_len": -1, "meta": [1]}, None, 7]},
            "/api/v0/models": {"data": {"id": "qwen"}},
            "/api/ps": {"models": [{"name": "qwen", "context_length": True}]},
            "/api/show": {"parameters": ["num_ctx 7"], "model_info": {"a.context_length": 10**30}},
        },
        None,
    ),
    "a number that is no window": ({"/props": {"default_generation_settings": {"n_ctx": 0}}}, None),
    "an error": ({"/props": web.Response(status=500, text='{"n_ctx": 1}')}, None),
    "somewhere else": ({"/props": web.HTTPFound("http://192.0.2.1/props")}, None),
}


@pytest.mark.parametrize("name", SERVERS)
async def test_each_server_says_its_window_in_its_own_way(name: str) -> None:
    answers, window = SERVERS[name]
    async with stub_serving(answers) as stub:
        settings = backend(stub.url, api_key=Secret("sk-1234"))
        assert await server_window(settings) == window
        assert stub.keys == {"Bearer sk-1234"}


async def test_a_server_below_a_path_is_asked_below_it() -> None:
    async with stub_serving({"/lab/props": PROPS}) as stub:
        settings = backend(stub.url.replace("/v1", "/lab/v1"))
        assert await server_window(settings) == ServerWindow(4096)
        assert stub.asked == ["GET /lab/props"]


@pytest.mark.slow
async def test_a_server_that_hangs_is_not_waited_for_and_one_that_is_away_is_nothing() -> None:
    """What it would have said elsewhere still counts."""
    listed = {"data": [{"id": "qwen", "max_model_len": 9000}]}
    async with (
        stub_serving({"/props": asyncio.Event(), "/v1/models": listed}) as stub,
        promptly(20),
    ):
        assert await server_window(backend(stub.url)) == ServerWindow(9000)
    assert await server_window(backend(DEAD)) is None


@pytest.mark.parametrize(
    ("url", "private"),
    [
        ("http://127.0.0.1:8080/v1", True),
        ("http://localhost:8080/v1", True),
        ("http://192.168.1.5/v1", True),
        ("http://[::1]:80/v1", True),
        ("https://nobody.invalid/v1", False),
        ("https://8.8.8.8/v1", False),
        ("http://192.0.2.1/v1", False),
        ("http://[::ffff:10.0.0.1]/v1", True),
        ("http://[nonsense/v1", False),
    ],
)
async def test_only_servers_of_this_house_are_asked_about_themselves_and_how_far_they_read(
    url: str, private: bool
) -> None:
    """Issue 17."""
    settings = backend(url)
    assert await is_private(settings) is private
    assert not await is_private(replace(settings, proxy="http://127.0.0.1:9"))  # F-053


@pytest.mark.parametrize(
    "url",
    [
        *("http://192.0.2.1:8080/v1", "http://[2001:db8::1]/v1", "https://nobody.invalid/v1"),
        "http://127.0.0.1:99999/v1",
    ],
)
async def test_no_server_on_a_public_address_is_asked(url: str) -> None:
    """There is nobody at these addresses: a question would take its two seconds."""
    async with promptly(1.9):
        assert await server_window(backend(url)) is None


@pytest.mark.parametrize(
    ("text", "window"),
    [
        ("This model's maximum context length is 8192 tokens. However, you requested 9000", 8192),
        ("the request exceeds the available context size (4096 tokens), try increasing it", 4096),
        ('{"type":"exceed_context_size_error","n_prompt_tokens":1407,"n_ctx":256}', 256),
        ("Requested tokens (2285) exceed context window of 2048", 2048),
        ("the model is loaded with context length of only 7866 tokens, which is not enough", 7866),
        ("prompt is too long: 200001 tokens > 200000 maximum", 200_000),
        ("Prompt contains 40000 tokens, too large for model with 32768 maximum context", 32_768),
        ("exceeds the maximum number of tokens allowed (1048576).", 1_048_576),
        ("`inputs` tokens + `max_new_tokens` must be <= 4096. Given: 5000", 4096),
        ("the request exceeds the available context size. try increasing the context size", None),
        ("context length is 0 tokens", None),
        ("too long", None),
    ],
)
def test_the_window_is_read_from_how_servers_refuse(text: str, window: int | None) -> None:
    assert limit_in(text) == window


SMALL = backend(DEAD, context_tokens=8192)


@pytest.mark.parametrize(
    ("fixed", "state", "told"),
    [
        (FixedPart(3000), "ok", "take 3000 tokens (measured) of the 6144 that context_tokens:"),
        (FixedPart(5249), "warn", "so 895 remain for a conversation"),
        (FixedPart(6144), "fail", "so no message fits"),
        (FixedPart(5580, None, True), "warn", "so 564 remain for a conversation"),
        (FixedPart(5590, None, True), "fail", "about 5590 tokens (estimated) of the 6144"),
    ],
)
def test_the_fixed_part_is_compared_with_its_room(fixed: FixedPart, state: str, told: str) -> None:
    """L-090: counted or estimated."""
    found = judge_fixed_part("local", SMALL, fixed)
    assert (found.state, told in found.text) == (state, True), found
    if state != "ok":
        assert "raise llm.backends.local.context_tokens" in found.text


@pytest.mark.parametrize(
    ("answer", "tokens"),
    [
        (Text("ok", usage=Usage(1500, 1)), 1500),
        (Text("ok", usage=None), 1322),
        (Text("ok", usage=Usage(10**8, 1)), 1322),
        (Text("ok", usage=Usage(3, 1)), 1322),
        (Empty("length", usage=Usage(1500, 1)), 1500),
        (Fail(400), 1322),
        (Fail(500), 1322),
    ],
)
async def test_the_fixed_part_is_counted_by_the_server_where_its_count_can_be(
    model: ModelServer, answer: Step, tokens: int
) -> None:
    """One token may be too little for an answer; a server may count only what was new to it."""
    model.script(answer)
    asked, local = saying("word " * 760), backend(model.url)
    found = known_fixed_part(local, asked, await count_fixed_part("local", local, asked, 60))
    assert found == (FixedPart(tokens, None, tokens != 1500))
    assert [request.body["max_tokens"] for request in model.requests] == [1]


async def test_a_fixed_part_that_does_not_fit_says_so_and_silence_ends(model: ModelServer) -> None:
    model.script(ContextTooLarge(), Hang())
    with pytest.raises(RequestTooLarge, match=r"set llm\.backends\.local\.context_tokens to 4096"):
        await count_fixed_part("local", backend(model.url), saying("hi"), 60)
    with pytest.raises(ModelUnavailable, match=r"did not read its instructions in 0\.3 s"):
        await count_fixed_part("local", backend(model.url), saying("hi"), 0.3)


@pytest.mark.parametrize(
    ("counted", "found"),
    [
        ((0, 0), FixedPart(1322, None, True)),
        ((4000, 3000), FixedPart(992)),
        ((4000, 8000), FixedPart(2644)),
        ((4000, 40), FixedPart(1322, None, True)),
        ((4000, 40_000), FixedPart(1322, None, True)),
    ],
)
def test_without_asking_it_is_by_what_was_reported_of_other_requests(
    counted: tuple[float, float], found: FixedPart
) -> None:
    """L-090."""
    assert known_fixed_part(SMALL, saying("word " * 760), Counted(*counted)) == found


@pytest.mark.parametrize(
    ("limits", "fixed", "named", "unnamed"),
    [
        ({"max_output_tokens": 500}, FixedPart(1700), "lower max_output_tokens", "empty"),
        ({"max_output_tokens": 1900}, FixedPart(1700), "leave max_output_tokens empty", "lower"),
        ({}, FixedPart(9999), "raise llm", "max_output_tokens:"),
        ({}, FixedPart(9999, 1000), "or set size: small", "lower"),
        ({}, FixedPart(9999, 1536), "raise llm", "size: small"),
        ({"size": "small"}, FixedPart(1700, 1000), "raise llm", "size: small"),
    ],
)
def test_advice_names_what_helps(limits: Json, fixed: FixedPart, named: str, unnamed: str) -> None:
    """A longest answer that nobody wrote goes down with the window, not by itself."""
    text = judge_fixed_part("local", backend(DEAD, context_tokens=2048, **limits), fixed).text
    advice = text.partition(" -> ")[2]
    assert (named in advice, unnamed in advice) == (True, False), advice


@pytest.mark.parametrize(
    ("said", "state", "told"),
    [
        (ServerWindow(4096), "fail", "takes 4096 tokens, config.yaml says context_tokens: 8192"),
        (ServerWindow(8192), "ok", "8192"),
        (ServerWindow(131_072), "ok", "131072"),
        (ServerWindow(4096, at_most=True), "warn", "the model was made for 4096 tokens"),
        (ServerWindow(9000, at_most=True), "ok", "9000"),
    ],
)
def test_what_a_server_says_is_compared_with_ours(
    said: ServerWindow, state: str, told: str
) -> None:
    found = compare_windows("local", SMALL, said)
    assert (found.state, told in found.text) == (state, True), found


def test_a_server_with_the_window_we_were_told_needs_a_larger_one() -> None:
    assert "leaves 6144 of them" in too_small("local", SMALL, 8192)
