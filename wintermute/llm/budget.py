"""The day's ceilings: the worst case of a call is reserved before it is sent, and settled after."""

from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

from wintermute.clock import Clock, stamp
from wintermute.config.schema import Budget as Ceilings
from wintermute.db import Database, Row, Transaction
from wintermute.errors import BudgetSpent
from wintermute.ids import NewId

SUM = "SELECT coalesce(sum(tokens), 0) AS tokens, coalesce(sum(usd), 0) AS usd FROM reservations WHERE day = ?"


@dataclass(frozen=True, slots=True)
class Amount:
    """What calls cost, or may cost at worst. Without a price the USD are 0 (L-087)."""

    tokens: int
    usd: float


@dataclass(frozen=True, slots=True)
class Reservation:
    """Room in the budget of one day for one request to one backend."""

    id: str
    day: date
    role: str
    backend: str
    worst: Amount


class Budget:
    """The table `reservations`: every call of a day, at its worst case until it is settled.

    A row that a crash left unsettled counts like that until its day ends.
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
        """A reservation for today that is not made yet."""
        return Reservation(self._new_id("hold"), self._today(), role, backend, worst)

    async def reserve(self, planned: Reservation) -> None:
        """Make room for one call, or refuse it. Without ceilings there is nothing to do.

        Raises: BudgetSpent when the day's sum could pass a ceiling (L-085).
        """
        if self._limits == Ceilings():
            return
        async with self._database.transaction() as tx:
            row = await tx.row(SUM, (planned.day.isoformat(),))
            self._admit(_amount(row), planned)
            await self._store(tx, planned, planned.worst, call_id=None)

    async def settle(
        self, planned: Reservation, spent: Amount, tx: Transaction, call_id: str
    ) -> None:
        """Put what the call cost in place of its worst case.

        Without ceilings the row is made here, so that one that is set later knows of the whole day.
        """
        await self._store(tx, planned, spent, call_id)

    async def spent_today(self) -> Amount:
        """What counts against the ceilings now."""
        return _amount(await self._database.row(SUM, (self._today().isoformat(),)))

    def _today(self) -> date:
        return self._clock.now().astimezone(self._zone).date()

    def _admit(self, used: Amount, planned: Reservation) -> None:
        """Who costs nothing of a kind is not kept out by its ceiling."""
        ceiling, worst = self._limits, planned.worst
        if (
            ceiling.tokens_per_day is not None
            and used.tokens + worst.tokens > ceiling.tokens_per_day
        ):
            told = (
                f"{used.tokens} of {ceiling.tokens_per_day} tokens are used or reserved"
                f" (llm.budget.tokens_per_day) and this call may take {worst.tokens}"
            )
        elif ceiling.usd_per_day is not None and 0 < worst.usd > ceiling.usd_per_day - used.usd:
            told = (
                f"{used.usd:.4f} of {ceiling.usd_per_day:g} USD are used or reserved"
                f" (llm.budget.usd_per_day) and this call may cost {worst.usd:.4f}"
            )
        else:
            return
        if _beyond(ceiling.tokens_per_day, worst.tokens) or _beyond(ceiling.usd_per_day, worst.usd):
            way = "raise the ceiling in config.yaml, or begin anew with `/new` to ask for less"
            raise BudgetSpent(
                f"{planned.backend} is not asked, for no day has room for it: {told}; {way}", None
            )
        midnight = datetime.combine(planned.day + timedelta(days=1), time(), self._zone)
        way = f"wait for {midnight:%Y-%m-%d %H:%M} or raise the ceiling in config.yaml"
        raise BudgetSpent(
            f"{planned.backend} is not asked, for the day's budget is spent: {told}; {way}",
            midnight.astimezone(UTC),
        )

    async def _store(
        self, tx: Transaction, planned: Reservation, amount: Amount, call_id: str | None
    ) -> None:
        await tx.execute(
            "INSERT INTO reservations (id, call_id, day, role, backend, tokens, usd, settled,"
            " created_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET"
            " call_id = excluded.call_id, tokens = excluded.tokens, usd = excluded.usd,"
            " settled = excluded.settled",
            (
                planned.id,
                call_id,
                planned.day.isoformat(),
                planned.role,
                planned.backend,
                amount.tokens,
                amount.usd,
                call_id is not None,
                stamp(self._clock.now()),
            ),
        )


def _beyond(ceiling: float | None, worst: float) -> bool:
    """Whether no day has room for such a call."""
    return ceiling is not None and worst > ceiling


def _amount(row: Row | None) -> Amount:
    return Amount(row["tokens"], row["usd"]) if row else Amount(0, 0.0)
