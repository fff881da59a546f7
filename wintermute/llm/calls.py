"""The record of every attempt to ask a model: what came of it and what it cost."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from wintermute.clock import Clock, stamp
from wintermute.config.schema import Price
from wintermute.db import Database
from wintermute.ids import NewId
from wintermute.messages import Usage

MILLION = 1_000_000


@dataclass(frozen=True, slots=True)
class Attempt:
    """One request to one backend. `outcome` is `ok` or what went wrong in one word."""

    role: str
    cast_id: str | None
    backend: str
    model: str
    number: int
    outcome: str
    detail: str
    usage: Usage
    usd: float
    ms: int


@dataclass(frozen=True, slots=True)
class Spent:
    """What one role used in a span of time."""

    calls: int
    tokens_in: int
    tokens_out: int
    tokens_cached: int
    usd: float


def cost(usage: Usage, price: Price | None) -> float:
    """USD for these tokens; without a price only tokens count (L-087)."""
    if price is None:
        return 0.0
    cached = price.input if price.cached is None else price.cached
    fresh = usage.tokens_in - usage.tokens_cached
    total = fresh * price.input + usage.tokens_cached * cached + usage.tokens_out * price.output
    return total / MILLION


class ModelCalls:
    """The table `model_calls`."""

    def __init__(self, database: Database, clock: Clock, new_id: NewId) -> None:
        self._database = database
        self._clock = clock
        self._new_id = new_id

    async def record(self, attempt: Attempt) -> None:
        """Keep one attempt. Not to be called inside a transaction."""
        usage = attempt.usage
        async with self._database.transaction() as transaction:
            await transaction.execute(
                "INSERT INTO model_calls (id, cast_id, role, backend, model, attempt, outcome,"
                " detail, tokens_in, tokens_out, tokens_cached, usd, ms, created_at)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    self._new_id("ask"),
                    attempt.cast_id,
                    attempt.role,
                    attempt.backend,
                    attempt.model,
                    attempt.number,
                    attempt.outcome,
                    attempt.detail,
                    usage.tokens_in,
                    usage.tokens_out,
                    usage.tokens_cached,
                    attempt.usd,
                    attempt.ms,
                    stamp(self._clock.now()),
                ),
            )

    async def usage_since(self, moment: datetime) -> Mapping[str, Spent]:
        """What each role used since then, failed attempts included."""
        rows = await self._database.rows(
            "SELECT role, count(*) AS calls, sum(tokens_in) AS tokens_in,"
            " sum(tokens_out) AS tokens_out, sum(tokens_cached) AS tokens_cached, sum(usd) AS usd"
            " FROM model_calls WHERE created_at >= ? GROUP BY role ORDER BY role",
            (stamp(moment),),
        )
        return {
            row["role"]: Spent(
                row["calls"],
                row["tokens_in"],
                row["tokens_out"],
                row["tokens_cached"],
                row["usd"],
            )
            for row in rows
        }
