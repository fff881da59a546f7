"""One night of an installation as a process of its own, which may die at any step of it.

    process = start(Sleep(folder, model.url, at, "fts5"), kill=70)
    code = await ended(process)

It is forked from a process that has the program imported.
"""

import asyncio
import multiprocessing
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Literal

from tests.world.clock import WITHIN, FakeClock
from tests.world.house import House, open_house
from tests.world.launch import record
from tests.world.warm import LAZY, modules
from wintermute.config.schema import Dreaming, Memory, MemoryHarvest

Ranking = Literal["fts5", "flat_file"]
FORKS = multiprocessing.get_context("forkserver")
AT_WORK = "SELECT 1 FROM jobs WHERE state = 'running'"
OVER = "SELECT 1 FROM nights WHERE date = ? AND state <> 'running'"
TOLD = "SELECT 1 WHERE NOT EXISTS (SELECT 1 FROM nights WHERE told_at IS NULL)"
MORNING = 7 * 3600.0


@dataclass(frozen=True, slots=True)
class Sleep:
    """Where and when. `budget`: tokens of a night; None: as many as it takes."""

    folder: Path
    url: str
    at: datetime
    backend: Ranking
    budget: int | None = None

    @property
    def tape(self) -> Path:
        """What was done, a line each."""
        return self.folder.parent / "tape"


def start(sleep: Sleep, kill: int = 0) -> ForkServerProcess:
    """Begin it. `kill`: before which of its steps it dies; 0: it does not."""
    FORKS.set_forkserver_preload([__name__, *LAZY, *modules()])
    process = FORKS.Process(target=_work, args=(sleep, kill))
    process.start()
    return process


async def ended(process: ForkServerProcess) -> int:
    """Its exit code, once it is over."""
    await asyncio.to_thread(process.join, WITHIN)
    if process.is_alive():
        process.kill()
        raise TimeoutError("the night does not end")
    return process.exitcode or 0


def house_of(sleep: Sleep, clock: FakeClock) -> AbstractAsyncContextManager[House]:
    """The installation."""
    return open_house(
        *(sleep.folder, sleep.url),
        clock=clock,
        memory=Memory(backend=sleep.backend),
        harvest=MemoryHarvest(message_threshold=1, min_messages=1),
        dreaming=Dreaming(budget_tokens=sleep.budget),
    )


def _work(sleep: Sleep, kill: int) -> None:
    tape, folder = str(sleep.tape), str(sleep.folder)
    record({"tape": tape, "folder": folder, "first": "", "step": "", "at": kill})
    asyncio.run(_sleep(sleep))


async def _sleep(sleep: Sleep) -> None:
    clock = FakeClock(sleep.at)
    async with house_of(sleep, clock) as house, asyncio.timeout(WITHIN), house.working():
        day = sleep.at.astimezone(house.stores.tasks.zone).date()
        await _until(house, clock, OVER, day.isoformat())
        clock.advance(MORNING)
        await _until(house, clock, TOLD)


async def _until(house: House, clock: FakeClock, sql: str, *values: str) -> None:
    """Let time pass, while nobody works, until there is such a row."""
    while True:
        for kind in house.runner.kinds:
            kind.bell.set()
        await asyncio.sleep(0.003)
        if not await house.rows(AT_WORK):
            if await house.rows(sql, *values):
                return
            clock.advance(60)
