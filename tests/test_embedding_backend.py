"""Meanings from a model server, real requests to one on loopback; and which provider is opened."""

import asyncio
import json
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.world.asking import DEAD, KEY, Asking, asking, backend
from tests.world.clock import WITHIN, FakeClock
from tests.world.embedding_server import EmbeddingServer, EmbeddingStep, data, numbers, text_step
from wintermute.config.schema import BudgetSettings as Ceilings
from wintermute.config.schema import Embeddings, Memory, Price, Secret
from wintermute.config.secrets import Redaction
from wintermute.errors import ConfigurationError, EmbeddingsUnavailable
from wintermute.llm.embedded import EmbeddedEmbedder
from wintermute.llm.embedding_backend import REST_SECONDS
from wintermute.llm.embeddings import open_embedder
from wintermute.llm.vector import Embedder, vector

TEA = vector(numbers("tea"))
PAGE = "<!doctype html><title>It works</title>"


@dataclass(frozen=True)
class Served:
    embedder: Embedder
    world: Asking
    server: EmbeddingServer


def vectors(embeddings: Embeddings) -> Memory:
    return Memory(backend="local_vector", embeddings=embeddings)


def opened(world: Asking, **settings: Any) -> Embedder:
    chosen = Embeddings(provider="endpoint", backend="local", **settings)
    embedder = open_embedder(vectors(chosen), world.models, world.clock)
    assert embedder is not None
    return embedder


@asynccontextmanager
async def serving(
    folder: Path,
    *steps: EmbeddingStep,
    most_texts: int = 10_000,
    limits: Ceilings | None = None,
    retries: int = 2,
    price: Price | None = None,
    **settings: Any,
) -> AsyncIterator[Served]:
    redact = Redaction(("hunter2secret",))
    async with EmbeddingServer(*steps, most_texts=most_texts) as server:
        local = backend(server.url, api_key=Secret(KEY), price=price)
        async with asking(
            folder, {"local": local}, retries=retries, ceilings=limits, redact=redact
        ) as world:
            yield Served(opened(world, **settings), world, server)


async def test_texts_come_back_as_vectors_in_their_order(tmp_path: Path) -> None:
    """M-014."""
    async with serving(tmp_path, data(lambda rows: rows[::-1])) as served:
        texts = ["tea", "", "a pie", "😀", "eel"]
        found = await served.embedder.embed_document(texts)
        assert found == [None if text in {"", "😀"} else vector(numbers(text)) for text in texts]
        (request,) = served.server.requests
        assert request == {
            "model": "qwen",
            "input": ["tea", "a pie", "eel"],
            "encoding_format": "float",
        }
        assert served.server.headers[0]["Authorization"] == f"Bearer {KEY}"
        assert served.embedder.name == "qwen"


async def test_nothing_is_asked_for_texts_without_a_word(tmp_path: Path) -> None:
    """M-031."""
    async with serving(tmp_path) as served:
        assert await served.embedder.embed_query(["", " ", "😀"]) == [None] * 3
        assert await served.embedder.embed_document([]) == []
        assert served.server.requests == []


async def test_what_the_model_wants_before_a_text_stands_there(tmp_path: Path) -> None:
    async with serving(
        tmp_path, query_prefix="query: ", document_prefix="passage: ", model="e5"
    ) as served:
        await served.embedder.embed_query(["tea"])
        await served.embedder.embed_document(["tea"])
        assert [each["input"] for each in served.server.requests] == [
            ["query: tea"],
            ["passage: tea"],
        ]
        assert {each["model"] for each in served.server.requests} == {"e5"}
        assert served.embedder.name == "e5 'passage: '"


async def test_no_secret_goes_out_to_be_embedded(tmp_path: Path) -> None:
    """L-089."""
    async with serving(tmp_path) as served:
        await served.embedder.embed_document(["the word is hunter2secret"])
        assert served.server.requests[0]["input"] == ["the word is [secret]"]


async def test_many_texts_go_in_batches(tmp_path: Path) -> None:
    texts = [f"{'a' * (n % 7)}e {n}" for n in range(150)]
    async with serving(tmp_path) as served:
        found = await served.embedder.embed_document(texts)
        assert [len(each["input"]) for each in served.server.requests] == [64, 64, 22]
    assert found == [vector(numbers(text)) for text in texts]


async def test_a_server_that_takes_fewer_gets_fewer(tmp_path: Path) -> None:
    texts = [f"{'a' * (n % 7)}e {n}" for n in range(70)]
    async with serving(tmp_path, most_texts=20) as served:
        found = await served.embedder.embed_document(texts)
        assert found == [vector(numbers(text)) for text in texts]
        assert [len(each["input"]) for each in served.server.requests] == [
            64,
            32,
            16,
            16,
            16,
            16,
            6,
        ]


async def test_a_passing_failure_is_tried_again_as_chats_are(tmp_path: Path) -> None:
    """L-033, L-034."""
    busy = text_step('{"error": "later"}', 503)
    async with serving(tmp_path, busy, text_step("{}", 429, **{"Retry-After": "7"})) as served:
        assert await served.embedder.embed_document(["tea"]) == [TEA]
        assert served.world.clock.slept == [1, 7]
        outcomes = ["local status_503", "local status_429", "local ok"]
        assert await served.world.outcomes() == outcomes
        served.server.script(busy, busy, busy)
        with pytest.raises(EmbeddingsUnavailable, match="local answered 503: later"):
            await served.embedder.embed_document(["tea"])


async def test_each_request_is_on_record_with_its_cost_and_no_texts(tmp_path: Path) -> None:
    """L-087, L-088."""
    async with serving(tmp_path, price=Price(input=2_000_000)) as served:
        await served.embedder.embed_document(["a cup of tea"])
        (row,) = await served.world.rows()
        assert (row["role"], row["backend"], row["model"]) == ("embeddings", "local", "qwen")
        assert (row["outcome"], row["tokens_in"], row["tokens_out"]) == ("ok", 4, 0)
        assert (row["usd"], row["request"], row["cast_id"]) == (8, None, None)
        spent = await served.world.budget.spent_today()
        assert (spent.tokens, spent.usd) == (4, 8)


async def test_the_budget_of_the_day_holds_for_embeddings(tmp_path: Path) -> None:
    """L-085, L-086."""
    async with serving(tmp_path, limits=Ceilings(tokens_per_day=10)) as served:
        await served.embedder.embed_document(["tea"])
        with pytest.raises(EmbeddingsUnavailable, match=r"llm\.budget\.tokens_per_day"):
            await served.embedder.embed_document(["a cup of tea in the evening, and one more"])
        assert len(served.server.requests) == 1
        assert await served.world.outcomes() == ["local ok", "local budget"]


@pytest.mark.parametrize(
    ("step", "words"),
    [
        (text_step(PAGE, kind="text/html"), "a web page: check its base_url"),
        (text_step("{not json"), "no JSON"),
        (text_step("[" * 100_000), "no JSON"),
        (text_step("[1, 2]"), "JSON that is no object"),
        (text_step('{"choices": []}'), "has no embeddings"),
        (text_step('{"error": {"message": "no such model"}}'), "no such model"),
        (text_step("nobody", 401), "check its api_key"),
        (text_step("nobody", 404), "check its base_url and model"),
        (text_step("", 302, Location="https://example.org"), "set base_url to where it leads"),
        (data(lambda rows: rows[:-1]), "1 embeddings of 2 texts"),
        (data(lambda rows: [*rows, rows[0]]), "3 embeddings of 2 texts"),
        (data(lambda rows: ["text"] * len(rows)), "has no embeddings"),
        (data(lambda rows: [row | {"index": 0} for row in rows]), "which embedding is of which"),
        (data(lambda rows: [row | {"index": "x"} for row in rows]), "which embedding is of which"),
        (data(lambda rows: [row | {"embedding": "AACAPwAAAAA="} for row in rows]), "base64"),
        (data(lambda rows: [row | {"embedding": []} for row in rows]), "a vector of 0 numbers"),
        (data(lambda rows: [row | {"embedding": [0, 0]} for row in rows]), "not finite, or zero"),
        (data(lambda rows: [row | {"embedding": [math.nan]} for row in rows]), "not finite"),
        (data(lambda rows: [row | {"embedding": [math.inf]} for row in rows]), "not finite"),
        (data(lambda rows: [row | {"embedding": ["1"]} for row in rows]), "no number"),
        (data(lambda rows: [row | {"embedding": None} for row in rows]), "has no embeddings"),
        (data(lambda rows: [rows[0] | {"embedding": [1]}, *rows[1:]]), "several lengths"),
    ],
)
async def test_no_answer_is_refused_with_advice(
    step: EmbeddingStep, words: str, tmp_path: Path
) -> None:
    """M-021, M-071."""
    async with serving(tmp_path, *[step] * 3, retries=0) as served:
        with pytest.raises(EmbeddingsUnavailable) as problem:
            await served.embedder.embed_document(["tea", "a pie"])
        assert words in str(problem.value)
        assert str(problem.value).startswith("local ")
        assert "memory.embeddings.backend, model qwen" in str(problem.value)
        assert KEY not in str(problem.value)
        (row,) = await served.world.rows()
        assert row["outcome"] != "ok"


async def test_a_dimension_that_changes_between_two_answers_is_refused(tmp_path: Path) -> None:
    """M-021."""
    other = data(lambda rows: [row | {"embedding": [1, 2]} for row in rows])
    async with serving(tmp_path) as served:
        assert await served.embedder.embed_query(["tea"]) == [TEA]
        served.server.script(other)
        with pytest.raises(EmbeddingsUnavailable, match="vectors of 2 numbers and had 3 before"):
            await served.embedder.embed_document(["tea"])
        assert await served.embedder.embed_document(["tea"]) == [TEA]


async def test_a_query_is_not_tried_again_and_the_next_ones_do_not_wait(tmp_path: Path) -> None:
    """M-008: a person waits for the answer."""
    async with serving(tmp_path, text_step("{}", 503)) as served:
        for _ in range(3):
            with pytest.raises(EmbeddingsUnavailable, match="local answered 503"):
                await served.embedder.embed_query(["tea"])
        assert len(served.server.requests) == 1
        assert served.world.clock.slept == []
        assert await served.embedder.embed_document(["tea"]) == [TEA]
        served.world.clock.advance(REST_SECONDS)
        assert await served.embedder.embed_query(["tea"]) == [TEA]


async def test_a_server_that_hangs_is_given_up(tmp_path: Path) -> None:
    """M-008."""
    async with asyncio.timeout(WITHIN), _silent() as url:
        quiet = {"local": backend(url, timeout_s=0.2)}
        async with asking(tmp_path, quiet, retries=1) as world:
            with pytest.raises(EmbeddingsUnavailable, match=r"gave no answer in 0\.2 s"):
                await opened(world).embed_document(["tea"])
            assert await world.outcomes() == ["local timeout", "local timeout"]
            first, _ = await world.rows()
            assert first["tokens_in"] == 1  # it may have worked on it


async def test_a_server_that_is_not_there_is_told(tmp_path: Path) -> None:
    """M-008."""
    async with asking(tmp_path, {"local": backend(DEAD)}, retries=0) as world:
        with pytest.raises(EmbeddingsUnavailable, match="local is not reachable"):
            await opened(world).embed_document(["tea"])


async def test_a_provider_is_opened_by_its_name(tmp_path: Path) -> None:
    """M-014, M-021."""
    async with asking(tmp_path, {"local": backend(DEAD)}) as world:
        none = open_embedder(vectors(Embeddings(provider="none")), world.models, world.clock)
        ours = open_embedder(vectors(Embeddings()), world.models, FakeClock())
        assert none is None
        assert isinstance(ours, EmbeddedEmbedder)
        for name in (None, "other"):
            nobody = Embeddings(provider="endpoint", backend=name)
            with pytest.raises(ConfigurationError, match=r"memory\.embeddings\.backend.*: local"):
                open_embedder(vectors(nobody), world.models, world.clock)


@asynccontextmanager
async def _silent() -> AsyncIterator[str]:
    """A server that accepts and says nothing."""
    held: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(lambda _, writer: held.append(writer), "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    finally:
        for writer in held:
            writer.close()
        server.close()


def test_the_script_of_the_server_says_what_a_real_one_does() -> None:
    """Or every test that relies on it is blind."""
    step = data(lambda rows: rows)({"input": ["tea"]})
    assert step.text is not None
    (row,) = json.loads(step.text)["data"]
    assert row == {"object": "embedding", "index": 0, "embedding": [1.5, 1.5, 0.5]}
