"""The record of every model request with its cost, and the day's budget.

The worst case of a call is reserved before it is sent, and settled after.
"""

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

from wintermute.clock import Clock, stamp
from wintermute.config.schema import BudgetSettings as Ceilings
from wintermute.config.schema import Price
from wintermute.db import Database, Row, Transaction, put_single, single
from wintermute.db.text_search import OF_BRANCHES, OF_CASTS, OURS_SINCE, SearchableText
from wintermute.db.values import columns, insert, reader
from wintermute.errors import BudgetSpent, QuestionWithdrawn
from wintermute.ids import NewId
from wintermute.llm.failures import NOTHING
from wintermute.llm.provider_fields import without_fields
from wintermute.messages import Json, Reply, Request, Usage

SUM = "SELECT coalesce(sum(tokens), 0) AS tokens, coalesce(sum(usd), 0) AS usd FROM reservations WHERE day = ?"
MILLION = 1_000_000
NO_ROOM = "budget"
"""The outcome of an attempt that was not made because a limit was reached."""
REFUSED = "answers refused"
"""The stored value that counts unusable answers, also repeated ones; never their words."""
WITHDRAWN = "withdrawn"
"""The outcome of an attempt that was not made because its sources had been retracted."""
NOT_MADE = f"('{NO_ROOM}', '{WITHDRAWN}')"
SUMS = (
    f"sum(m.outcome NOT IN {NOT_MADE}) AS calls, sum(m.outcome = '{NO_ROOM}') AS refused,"
    " sum(m.tokens_in) AS tokens_in, sum(m.tokens_out) AS tokens_out,"
    " sum(m.tokens_cached) AS tokens_cached, sum(m.usd) AS usd"
)
BELOW = (
    "WITH RECURSIVE below (id) AS (SELECT :conversation UNION"
    " SELECT v.id FROM below JOIN branches b ON b.conversation_id = below.id"
    "  JOIN casts c ON c.branch_id = b.id JOIN conversations v ON v.parent_cast = c.id)"
)
"""A conversation, and all sub-sessions below it."""
SettleCall = Callable[[Transaction, str], Awaitable[None]]
"""Stores the rows that belong to the attempt with this id."""
UNSAID = Request(())
OF_RECORD = "(request IS NOT NULL OR detail <> '')"  # the condition of its index
MADE_OF = (
    "(SELECT m.rowid FROM model_calls m, json_each(m.sources) s WHERE m.sources IS NOT NULL"
    " AND s.value IN (SELECT value FROM json_each(:sources)))"
)
RECORDED = SearchableText(
    *("model_calls", ("request", "answer", "detail"), "rowid", OF_RECORD),
    of="cast_id IS NULL OR"
    f" (SELECT c.branch_id FROM casts c WHERE c.id = model_calls.cast_id) IN {OF_BRANCHES}",
    ours=OURS_SINCE,
    derived=f"cast_id {OF_CASTS} OR rowid IN {MADE_OF}",
    empties=("request = NULL", "answer = NULL", "detail = ''", "sources = NULL"),
)


@dataclass(frozen=True, slots=True)
class Amount:
    """The cost of calls, or the most they may cost. Without a price the USD are 0 (L-087)."""

    tokens: int
    usd: float


@dataclass(frozen=True, slots=True)
class Reservation:
    """Part of a day's budget, reserved for one request to one backend."""

    id: str
    day: date
    role: str
    backend: str
    worst: Amount


class Budget:
    """The table `reservations`: every call of a day, at its worst case until it is settled.

    A row that a crash left unsettled counts in full until its day ends.
    """

    def __init__(
        self, database: Database, clock: Clock, new_id: NewId, limits: Ceilings, timezone: str
    ) -> None:
        self._database = database
        self._clock = clock
        self._new_id = new_id
        self._limits = limits
        self._zone = ZoneInfo(timezone)

    def planned(self, role: str, backend: str, worst: Amount) -> Reservation:
        """Return a reservation for today that is not stored yet."""
        return Reservation(self._new_id("hold"), self._today(), role, backend, worst)

    async def reserve(self, planned: Reservation) -> None:
        """Reserve the cost of one call, or refuse it. Without limits nothing is stored.

        Raises: BudgetSpent when the day's sum could pass a limit (L-085).
        """
        if self._limits == Ceilings():
            return
        async with self._database.transaction() as tx:
            row = await tx.row(SUM, (planned.day.isoformat(),))
            self._admit(_amount(row), planned)
            await self.settle(planned, planned.worst, tx, None)

    async def settle(
        self, planned: Reservation, spent: Amount, tx: Transaction, call_id: str | None
    ) -> None:
        """Replace a call's worst case by its cost. `call_id` None: the call is not made yet.

        Without limits this stores the row, so that a limit set later in the day counts it.
        """
        values = columns(planned, "worst") | columns(spent)
        values |= {"call_id": call_id, "settled": call_id is not None}
        statement = insert(
            "reservations",
            values | {"created_at": self._clock.now()},
            "ON CONFLICT (id) DO UPDATE SET call_id = excluded.call_id, tokens = excluded.tokens,"
            " usd = excluded.usd, settled = excluded.settled",
        )
        tx.defer(*statement)

    async def spent_today(self) -> Amount:
        """Return the sum that counts against today's limits."""
        return _amount(await self._database.row(SUM, (self._today().isoformat(),)))

    def _today(self) -> date:
        return self._clock.now().astimezone(self._zone).date()

    def _admit(self, used: Amount, planned: Reservation) -> None:
        """Check a call against the limits; a call without cost in USD passes that limit."""
        ceiling, worst = self._limits, planned.worst
        if (
            ceiling.tokens_per_day is not None
            and used.tokens + worst.tokens > ceiling.tokens_per_day
        ):
            reason = (
                f"{used.tokens} of {ceiling.tokens_per_day} tokens are used or reserved"
                f" (llm.budget.tokens_per_day) and this call may take {worst.tokens}"
            )
        elif ceiling.usd_per_day is not None and 0 < worst.usd > ceiling.usd_per_day - used.usd:
            reason = (
                f"{used.usd:.4f} of {ceiling.usd_per_day:g} USD are used or reserved"
                f" (llm.budget.usd_per_day) and this call may cost {worst.usd:.4f}"
            )
        else:
            return
        if _beyond(ceiling.tokens_per_day, worst.tokens) or _beyond(ceiling.usd_per_day, worst.usd):
            way = "raise the limit in config.yaml, or start afresh with `/new` to ask for less"
            raise BudgetSpent(
                f"{planned.backend} is not asked, because this call alone is over the day's limit:"
                f" {reason}; {way}",
                None,
            )
        midnight = datetime.combine(planned.day + timedelta(days=1), time(), self._zone)
        way = f"wait for {midnight:%Y-%m-%d %H:%M} or raise the limit in config.yaml"
        raise BudgetSpent(
            f"{planned.backend} is not asked, because the day's budget is spent: {reason}; {way}",
            midnight.astimezone(UTC),
        )


def _beyond(ceiling: float | None, worst: float) -> bool:
    """Return True if the call costs more than a whole day's limit."""
    return ceiling is not None and worst > ceiling


def _amount(row: Row | None) -> Amount:
    return Amount(row["tokens"], row["usd"]) if row else Amount(0, 0.0)


@dataclass(frozen=True, slots=True)
class QuestionSources:
    """The sources of a background request (F-027, M-030).

    `ids`: the events and facts that it shows. `stand`: returns True while all of them are
    unchanged.
    """

    ids: tuple[str, ...]
    stand: Callable[[Transaction], Awaitable[bool]]


@dataclass(frozen=True, slots=True)
class Attempt:
    """One request to one backend. `outcome` is `ok` or the failure in one word.

    `reply` is the answer of a successful one; its `ms` is that of all attempts together.
    """

    role: str
    backend: str
    model: str
    number: int
    outcome: str = "cancelled"
    detail: str = ""
    usage: Usage = NOTHING
    usd: float = 0.0
    ms: int = 0
    request: Request = UNSAID
    cast_id: str | None = None
    reply: Reply | None = None
    sources: QuestionSources | None = None


@dataclass(frozen=True, slots=True)
class RoleUsage:
    """The usage of one role in a span of time."""

    calls: int
    refused: int
    """Attempts not made because a limit of the day was reached (L-086)."""
    tokens_in: int
    tokens_out: int
    tokens_cached: int
    """Tokens of the prompts that came from the server's cache."""
    usd: float

    def __add__(self, other: "RoleUsage") -> "RoleUsage":
        pairs = zip(astuple(self), astuple(other), strict=True)
        return RoleUsage(*(mine + theirs for mine, theirs in pairs))


def amount(usage: Usage, price: Price | None) -> Amount:
    """Return the cost of these tokens; without a price only their number counts (L-087)."""
    tokens = usage.tokens_in + usage.tokens_out
    if price is None:
        return Amount(tokens, 0.0)
    cached = price.input if price.cached is None else price.cached
    fresh = usage.tokens_in - usage.tokens_cached
    total = fresh * price.input + usage.tokens_cached * cached + usage.tokens_out * price.output
    return Amount(tokens, total / MILLION)


_spent = reader(RoleUsage)


class ModelCalls:
    """The store of model requests: the table `model_calls`."""

    def __init__(
        self, database: Database, clock: Clock, new_id: NewId, record: bool = False
    ) -> None:
        self._database = database
        self._clock = clock
        self._new_id = new_id
        self._record = record

    async def require(self, sources: QuestionSources) -> None:
        """Raise QuestionWithdrawn if the sources have changed. Not inside a transaction."""
        async with self._database.transaction() as tx:
            if not await sources.stand(tx):
                raise QuestionWithdrawn("what the question is made of was taken back or changed")

    async def record(self, attempt: Attempt, settle: SettleCall) -> None:
        """Store one attempt and its cost, together. Not to be called inside a transaction.

        Its texts are stored only while its sources are unchanged: a later `forget` would not find
        them.
        """
        call_id, sources = self._new_id("ask"), attempt.sources
        values = columns(attempt, "number", "usage", "reply", "sources") | columns(attempt.usage)
        async with self._database.transaction(late=True) as tx:
            now = self._clock.now()
            is_kept = self._record and attempt.reply is not None
            if is_kept and sources is not None:
                is_kept = await sources.stand(tx)
            request = replace(attempt.request, messages=without_fields(attempt.request.messages))
            values |= {
                "id": call_id,
                "attempt": attempt.number,
                "request": request if is_kept else None,
                "answer": replace(attempt.reply, kept="") if attempt.reply and is_kept else None,
                "sources": sources.ids if is_kept and sources else None,
            }
            tx.defer(*insert("model_calls", values | {"created_at": now}))
            await settle(tx, call_id)

    async def refused(self, role: str, reason: str) -> None:
        """Count an unusable answer. `reason`: that of the last one, for the status."""
        async with self._database.transaction() as tx:
            last = await single(tx, REFUSED) or {"times": 0}
            last |= {"role": role, "reason": reason, "at": stamp(self._clock.now())}
            await put_single(tx, REFUSED, last | {"times": last["times"] + 1})

    async def of_record(self, tx: Transaction) -> list[str]:
        """Return the casts that have recorded requests."""
        query = (
            f"SELECT DISTINCT cast_id FROM model_calls WHERE cast_id IS NOT NULL AND {OF_RECORD}"
        )
        return await tx.scalars(query)

    async def usage_since(
        self, moment: datetime, until: datetime | None = None
    ) -> Mapping[str, RoleUsage]:
        """Return each role's usage since then, with failed attempts; `until` is excluded."""
        rows = await self._database.rows(
            f"SELECT m.role, {SUMS} FROM model_calls m WHERE m.created_at >= :moment"
            " AND (:until IS NULL OR m.created_at < :until) GROUP BY m.role ORDER BY m.role",
            {"moment": stamp(moment), "until": until and stamp(until)},
        )
        return {row["role"]: _spent(row) for row in rows}

    async def by_backend(self, tx: Transaction, since: datetime) -> Mapping[str, RoleUsage]:
        """Sum up each backend's usage since then, of all roles."""
        rows = await tx.rows(
            f"SELECT m.backend, {SUMS} FROM model_calls m WHERE m.created_at >= ?"
            " GROUP BY m.backend ORDER BY m.backend",
            (stamp(since),),
        )
        return {row["backend"]: _spent(row) for row in rows}

    async def of_conversation(
        self, tx: Transaction, conversation_id: str
    ) -> Mapping[str, RoleUsage]:
        """Sum up each backend's usage by the casts of a conversation and of its sub-sessions."""
        rows = await tx.rows(
            f"{BELOW} SELECT m.backend, {SUMS} FROM below JOIN branches b"
            " ON b.conversation_id = below.id JOIN casts c ON c.branch_id = b.id"
            " JOIN model_calls m ON m.cast_id = c.id GROUP BY m.backend ORDER BY m.backend",
            {"conversation": conversation_id},
        )
        return {row["backend"]: _spent(row) for row in rows}


async def attempts(database: Database, cast_ids: Sequence[str]) -> list[Json]:
    """Return all attempts of these casts, oldest first; `request` and `answer` if recorded."""
    rows = await database.rows(
        "SELECT * FROM model_calls WHERE cast_id IN (SELECT value FROM json_each(?))"
        " ORDER BY created_at, rowid",
        (json.dumps(list(cast_ids)),),
    )
    result: list[Json] = []
    for row in rows:
        attempt: Json = {name: row[name] for name in row.keys()}  # noqa: SIM118  not a dict
        for body in ("request", "answer"):
            attempt[body] = json.loads(attempt[body]) if attempt[body] else None
        result.append(attempt)
    return result
