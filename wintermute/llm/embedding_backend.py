"""Embeddings from a model server: recorded and within the budget, as every other call."""

import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from wintermute.clock import Clock
from wintermute.config.schema import Embeddings
from wintermute.config.secrets import Redaction
from wintermute.errors import BudgetSpent, EmbeddingsUnavailable
from wintermute.llm.backend import Endpoint
from wintermute.llm.calls import NO_ROOM, Attempt, Budget, ModelCalls, amount
from wintermute.llm.failures import (
    LONGEST_RETRY_AFTER,
    NOTHING,
    Failed,
    Outage,
    Refused,
    TooLarge,
    of_error,
    pause_before,
)
from wintermute.llm.tokens import estimate, plausible_usage
from wintermute.llm.usage import reported
from wintermute.llm.vector import Vector, embeddable, vector
from wintermute.messages import Json, Usage

log = logging.getLogger(__name__)

ROLE = "embeddings"
TEXTS = 64
"""Texts in one request; fewer if the server refuses as many."""
QUERY_SECONDS = 5.0
"""Time limit of a query, as a person waits; after it the search uses words only."""
REST_SECONDS = 30.0
"""Pause of queries after one has failed, so that nobody waits again."""


@dataclass(frozen=True, slots=True)
class EmbeddingReply:
    """The vectors of one answer, in the order of the texts, and the reported usage."""

    vectors: tuple[Vector, ...]
    usage: Usage | None


class RecordedEmbeddings:
    """One embedding backend; each request is within the budget and recorded, without the texts."""

    def __init__(self, endpoint: Endpoint, calls: ModelCalls, budget: Budget, clock: Clock) -> None:
        self._endpoint = endpoint
        self._calls = calls
        self._budget = budget
        self._clock = clock

    @property
    def backend(self) -> str:
        """Its name in the configuration."""
        return self._endpoint.name

    @property
    def model(self) -> str:
        """The model of the backend, unless the configuration names another."""
        return self._endpoint.settings.model

    @property
    def seconds(self) -> float:
        """Time limit of an answer that nobody waits for."""
        return self._endpoint.settings.timeout_s

    async def request(
        self, model: str, texts: Sequence[str], seconds: float, number: int
    ) -> tuple[Vector, ...]:
        """Return a vector for each text. `number`: the number of the attempt.

        Raises: Failed; BudgetSpent before anything is sent.
        """
        settings, estimated = self._endpoint.settings, Usage(sum(map(estimate, texts)))
        planned = self._budget.planned(ROLE, self.backend, amount(estimated, settings.price))
        began, attempt = self._clock.monotonic(), Attempt(ROLE, self.backend, model, number)
        try:
            await self._budget.reserve(planned)
            attempt = replace(attempt, usage=estimated)
            body: Json = {"model": model, "input": list(texts), "encoding_format": "float"}
            read = partial(answer_of, count=len(texts))
            reply = await self._endpoint.fetch("/embeddings", body, seconds, read)
            usage = plausible_usage(reply.usage, estimated, settings.context_tokens * len(texts))
            attempt = replace(attempt, outcome="ok", usage=usage)
        except (Failed, BudgetSpent) as problem:
            outcome, usage = NO_ROOM, NOTHING
            if isinstance(problem, Failed):
                outcome = problem.outcome
                usage = estimated if outcome == "timeout" else problem.usage
                values = (self.backend, outcome, number, len(texts))
                log.warning("embedding failed backend=%s outcome=%s attempt=%d texts=%d", *values)
            attempt = replace(attempt, outcome=outcome, detail=str(problem), usage=usage)
            raise
        finally:
            spent = amount(attempt.usage, settings.price)
            ms = round((self._clock.monotonic() - began) * 1000)
            settle = partial(self._budget.settle, planned, spent)
            await self._calls.record(replace(attempt, usd=spent.usd, ms=ms), settle)
        return reply.vectors


class BackendEmbedder:
    """An OpenAI-compatible `/embeddings`. Its connections are closed with those of `Models`."""

    def __init__(
        self,
        recorded: RecordedEmbeddings,
        settings: Embeddings,
        retries: int,
        redact: Redaction,
        clock: Clock,
        chance: Callable[[], float],
    ) -> None:
        self._recorded = recorded
        self._settings = settings
        self._model = settings.model or recorded.model
        self._retries = retries
        self._redact = redact
        self._clock = clock
        self._chance = chance
        self._texts = TEXTS
        self._dimension: int | None = None
        self._paused_until = clock.monotonic()
        self._last_problem = ""

    @property
    def name(self) -> str:
        """The model, with the document prefix, as another prefix makes other vectors."""
        prefix = self._settings.document_prefix
        return f"{self._model} {prefix!r}" if prefix else self._model

    async def warm(self, seconds: float = 0.0) -> None:
        """Do nothing: the server is always running, or not ours to start."""

    async def embed_query(self, texts: Sequence[str]) -> list[Vector | None]:
        if self._clock.monotonic() < self._paused_until:
            raise EmbeddingsUnavailable(self._last_problem)
        try:
            return await self._embed(texts, self._settings.query_prefix or "", QUERY_SECONDS, 0)
        except EmbeddingsUnavailable as problem:
            self._last_problem = str(problem)
            self._paused_until = self._clock.monotonic() + REST_SECONDS
            raise

    async def embed_document(self, texts: Sequence[str]) -> list[Vector | None]:
        prefix, seconds = self._settings.document_prefix or "", self._recorded.seconds
        return await self._embed(texts, prefix, seconds, self._retries)

    async def aclose(self) -> None:
        """Do nothing: `Models` has the connections."""

    async def _embed(
        self, texts: Sequence[str], prefix: str, seconds: float, retries: int
    ) -> list[Vector | None]:
        result: list[Vector | None] = [None] * len(texts)
        indexed = [
            (n, prefix + self._redact(text))
            for n, text in enumerate(map(embeddable, texts))
            if text is not None
        ]
        while indexed:
            part = indexed[: self._texts]
            try:
                sent = [text for _, text in part]
                made = await self._ask_with_retries(sent, seconds, retries)
            except Failed as failure:
                if len(part) > 1 and _is_too_much(failure):
                    self._texts = len(part) // 2
                    continue
                raise EmbeddingsUnavailable(self._advised(str(failure))) from None
            except BudgetSpent as problem:
                raise EmbeddingsUnavailable(str(problem)) from None
            self._check_dimension(made)
            for (n, _), each in zip(part, made, strict=True):
                result[n] = each
            del indexed[: len(part)]
        return result

    async def _ask_with_retries(
        self, texts: Sequence[str], seconds: float, retries: int
    ) -> tuple[Vector, ...]:
        """Ask until it answers or the retries are used up, as for chats (L-033, L-034)."""
        number = 1
        while True:
            try:
                return await self._recorded.request(self._model, texts, seconds, number)
            except Outage as failure:
                wish = failure.retry_after or 0.0
                if number > retries or wish > LONGEST_RETRY_AFTER:
                    raise
            await self._clock.sleep(pause_before(number, wish, self._chance()))
            number += 1

    def _check_dimension(self, made: Sequence[Vector]) -> None:
        """Raise EmbeddingsUnavailable if the dimension has changed (M-021)."""
        (dimension,) = {each.dimension for each in made}
        if self._dimension is not None and dimension != self._dimension:
            problem = f"has vectors of {dimension} numbers and had {self._dimension} before"
            raise EmbeddingsUnavailable(self._advised(f"{self._recorded.backend} {problem}"))
        self._dimension = dimension

    def _advised(self, problem: str) -> str:
        return f"{problem} (memory.embeddings.backend, model {self._model}: look at both)"


def answer_of(answer: bytes, count: int) -> EmbeddingReply:
    """Parse the answer to `count` texts.

    Raises: Failed with the cost, if it is not a valid answer.
    """
    document = _decoded(answer)
    usage = reported(document)
    try:
        return EmbeddingReply(tuple(_vectors(document, count)), usage)
    except Refused as failure:
        raise Refused(failure.outcome, str(failure), usage=usage or NOTHING) from None


def _decoded(answer: bytes) -> Json:
    try:
        document = json.loads(answer)
    except (ValueError, RecursionError):
        description = "a web page" if answer.lstrip()[:1] == b"<" else "something that is no JSON"
        raise Refused("garbage", f"answered with {description}: check its base_url") from None
    if not isinstance(document, dict):
        raise Refused("garbage", "answered with JSON that is no object: check its base_url")
    if document.get("error") and not document.get("data"):
        raise of_error(document["error"])
    return document


def _vectors(document: Json, count: int) -> list[Vector]:
    rows = document.get("data")
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise Refused("garbage", "has no embeddings in its answer: does this model make them?")
    if len(rows) != count:
        raise Refused("garbage", f"made {len(rows)} embeddings of {count} texts")
    vectors = [_vector(row.get("embedding")) for row in _ordered(rows)]
    if len({each.dimension for each in vectors}) > 1:
        raise Refused("garbage", "made embeddings of several lengths in one answer")
    return vectors


def _ordered(rows: list[Json]) -> list[Json]:
    places: list[Any] = [row.get("index") for row in rows]
    if all(place is None for place in places):
        return rows
    if any(type(place) is not int for place in places) or sorted(places) != list(range(len(rows))):
        raise Refused("garbage", "does not say which embedding is of which text")
    return sorted(rows, key=lambda row: int(row["index"]))


def _vector(embedding: Any) -> Vector:
    if isinstance(embedding, str):
        reason = "wrote an embedding as base64 although it was asked for numbers"
        raise Refused("garbage", f"{reason}: turn that off in its server")
    if not isinstance(embedding, list):
        raise Refused("garbage", "has no embeddings in its answer: does this model make them?")
    try:
        return vector(embedding)
    except EmbeddingsUnavailable as problem:
        raise Refused("garbage", f"made {problem}") from None


def _is_too_much(failure: Failed) -> bool:
    """Return True if fewer texts may be accepted: servers limit the texts of a request."""
    return isinstance(failure, TooLarge) or "batch" in str(failure).lower()
