"""The record of every attempt to ask a model: what came of it and what it cost."""

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime

from wintermute.clock import Clock, stamp
from wintermute.config.schema import Price
from wintermute.db import Database, Row, Transaction
from wintermute.db.traces import holds
from wintermute.ids import NewId
from wintermute.messages import Call, Reply, Request, Usage

MILLION = 1_000_000
NO_ROOM = "budget"
"""The outcome of an attempt that was not made, for a ceiling was reached."""
Settle = Callable[[Transaction, str], Awaitable[None]]
"""Stores what belongs to the attempt with this id."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One request to one backend. `outcome` is `ok` or what went wrong in one word.

    `reply` is what came of one that went well; its `ms` is that of the whole question.
    """

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
    request: Request
    reply: Reply | None


@dataclass(frozen=True, slots=True)
class Recorded:
    """One question and its answer, as they were kept (L-088)."""

    role: str
    outcome: str
    request: Request
    answer: Reply


@dataclass(frozen=True, slots=True)
class Spent:
    """What one role used in a span of time."""

    calls: int
    refused: int
    """Attempts not made, for a ceiling of the day was reached (L-086)."""
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

    def __init__(
        self, database: Database, clock: Clock, new_id: NewId, record: bool = False
    ) -> None:
        self._database = database
        self._clock = clock
        self._new_id = new_id
        self._record = record

    async def record(self, attempt: Attempt, settle: Settle) -> None:
        """Keep one attempt and what it cost, together. Not to be called inside a transaction."""
        usage = attempt.usage
        call_id = self._new_id("ask")
        async with self._database.transaction() as tx:
            await tx.execute(
                "INSERT INTO model_calls (id, cast_id, role, backend, model, attempt, outcome,"
                " detail, tokens_in, tokens_out, tokens_cached, usd, ms, request, answer,"
                " created_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    call_id,
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
                    *self._bodies(attempt),
                    stamp(self._clock.now()),
                ),
            )
            await settle(tx, call_id)

    def _bodies(self, attempt: Attempt) -> tuple[str | None, str | None]:
        if not self._record or attempt.reply is None:
            return None, None
        return json.dumps(asdict(attempt.request)), json.dumps(asdict(attempt.reply))

    async def recorded(self, cast_id: str) -> tuple[Recorded, ...]:
        """The questions of a cast that were answered and kept, oldest first."""
        rows = await self._database.rows(
            "SELECT role, outcome, request, answer FROM model_calls WHERE cast_id = ?"
            " AND outcome = 'ok' AND request IS NOT NULL ORDER BY created_at, rowid",
            (cast_id,),
        )
        return tuple(_recorded(row) for row in rows)

    async def forget(self, tx: Transaction, cast_ids: Sequence[str], traces: Sequence[str]) -> int:
        """Blank what was kept of the questions of these casts, and of what holds one of the `traces`.

        Returns how many that was.
        """
        return await tx.execute(
            "UPDATE model_calls SET request = NULL, answer = NULL, detail = ''"
            " WHERE (request IS NOT NULL OR detail <> '') AND"
            " (cast_id IN (SELECT value FROM json_each(:casts))"
            f" OR {holds('request', 'answer', 'detail')})",
            {"casts": json.dumps(list(cast_ids)), "traces": json.dumps(list(traces))},
        )

    async def usage_since(self, moment: datetime) -> Mapping[str, Spent]:
        """What each role used since then, failed attempts included."""
        rows = await self._database.rows(
            "SELECT role, sum(outcome <> :no_room) AS calls,"
            " sum(outcome = :no_room) AS refused, sum(tokens_in) AS tokens_in,"
            " sum(tokens_out) AS tokens_out, sum(tokens_cached) AS tokens_cached, sum(usd) AS usd"
            " FROM model_calls WHERE created_at >= :moment GROUP BY role ORDER BY role",
            {"moment": stamp(moment), "no_room": NO_ROOM},
        )
        return {
            row["role"]: Spent(
                row["calls"],
                row["refused"],
                row["tokens_in"],
                row["tokens_out"],
                row["tokens_cached"],
                row["usd"],
            )
            for row in rows
        }


def _recorded(row: Row) -> Recorded:
    asked, said = json.loads(row["request"]), json.loads(row["answer"])
    calls = tuple(Call(**call) for call in said.pop("calls"))
    usage = Usage(**said.pop("usage"))
    return Recorded(
        row["role"],
        row["outcome"],
        Request(tuple(asked["messages"]), tuple(asked["tools"])),
        Reply(calls=calls, usage=usage, **said),
    )
