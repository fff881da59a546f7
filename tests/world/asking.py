"""Models that a test asks directly, with the calls and the budget that they keep."""

from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.world.clock import FakeClock
from tests.world.model import ModelServer
from tests.world.schema import open_migrated
from wintermute.config.schema import Backend, BudgetSettings, Llm, Price, Roles
from wintermute.config.schema import BudgetSettings as Ceilings
from wintermute.config.secrets import UNHIDDEN, Redaction
from wintermute.db import Database, Row
from wintermute.errors import BudgetSpent
from wintermute.ids import new_id
from wintermute.llm.calls import Budget, ModelCalls
from wintermute.llm.models import Models
from wintermute.messages import Request

TOOL = {"type": "function", "function": {"name": "done", "parameters": {"type": "object"}}}
KEY = "sk-canary-5f1c"
DEAD = "http://127.0.0.1:9/v1"
PRICE = Price(input=10.0, cached=1.0, output=30.0)
LONGEST = 100
NOTES_EACH_SUM = """
CREATE TRIGGER sums_{0} AFTER {0} ON reservations BEGIN
    INSERT INTO sums SELECT sum(tokens), sum(usd) FROM reservations;
END
"""


def saying(text: str) -> Request:
    """Make a request with this message of a person."""
    system = {"role": "system", "content": "be kind"}
    return Request((system, {"role": "user", "content": text}), (TOOL,))


HELLO = saying("hello")


def backend(url: str, **settings: Any) -> Backend:
    """Make the settings of a backend at this address."""
    return Backend(base_url=url, model="qwen", **settings)


@dataclass(frozen=True)
class Asking:
    """Models with what they keep of their calls."""

    models: Models
    clock: FakeClock
    calls: ModelCalls
    budget: Budget
    database: Database

    async def rows(self) -> list[Row]:
        return await self.database.rows("SELECT * FROM model_calls ORDER BY rowid")

    async def outcomes(self) -> list[str]:
        return [f"{row['backend']} {row['outcome']}" for row in await self.rows()]


@asynccontextmanager
async def asking(
    folder: Path,
    backends: Mapping[str, Backend],
    retries: int = 2,
    roles: Roles | None = None,
    ceilings: Ceilings | None = None,
    zone: str = "UTC",
    record: bool = False,
    redact: Redaction = UNHIDDEN,
    clock: FakeClock | None = None,
) -> AsyncIterator[Asking]:
    """Open models on a new database; their retries wait on a clock that jumps."""
    llm = Llm(
        backends=backends,
        roles=roles or Roles(base=tuple(backends)),
        max_retries=retries,
        budget=ceilings or Ceilings(),
        record=record,
    )
    clock = clock or FakeClock()

    async with open_migrated(folder / "test.db") as database:
        calls = ModelCalls(database, clock, new_id, record)
        budget = Budget(database, clock, new_id, llm.budget, zone)
        models = Models(llm, database, clock, new_id, zone, redact, chance=lambda: 0.0)
        async with aclosing(models):
            yield Asking(models, clock, calls, budget, database)


def paid(url: str, **settings: Any) -> Backend:
    """Make a backend whose tokens have a price."""
    return backend(url, max_output_tokens=LONGEST, **{"price": PRICE, **settings})


async def gone() -> tuple[int, str]:
    """The port and address of a server that is not there."""
    async with ModelServer() as server:
        return server.port, server.url


@asynccontextmanager
async def limited(
    folder: Path, url: str, tokens: int | None = None, usd: float | None = None, **settings: Any
) -> AsyncIterator[Asking]:
    """One priced backend under these ceilings; the table `sums` has every sum there ever was."""
    ceilings = BudgetSettings(tokens_per_day=tokens, usd_per_day=usd)
    backends = {"local": paid(url)}
    async with asking(folder, backends, retries=0, ceilings=ceilings, **settings) as world:
        async with world.database.transaction() as tx:
            await tx.execute("CREATE TABLE IF NOT EXISTS sums (tokens INTEGER, usd REAL)")
            for change in ("INSERT", "UPDATE"):
                await tx.execute(f"DROP TRIGGER IF EXISTS sums_{change}")
                await tx.execute(NOTES_EACH_SUM.format(change))
        yield world


async def is_answered(world: Asking) -> bool:
    """Ask once; false when the budget refuses."""
    try:
        await world.models.ask("base", HELLO)
    except BudgetSpent:
        return False
    return True
