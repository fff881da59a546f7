"""One night of an installation as a process of its own, which may die at any step of it.

    process = start(Sleep(folder, model.url, at, "fts5"), kill=70)
    code = await ended(process)

It is forked from a process that has the program imported.
"""

import asyncio
import multiprocessing
from dataclasses import dataclass
from datetime import datetime
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Literal

from tests.world.clock import WITHIN, FakeClock, HeldClock
from tests.world.house import House, open_house
from tests.world.launch import record
from tests.world.warm import LAZY, modules
from wintermute.config.schema import Dreaming, Memory, MemoryHarvest

Ranking = Literal["fts5", "flat_file"]
FORKS = multiprocessing.get_context("forkserver")
OWED = "SELECT state, not_before FROM jobs WHERE state IN ('waiting', 'running')"
KINDS = ("harvest", "reconstruct", "core", "night", "morning")
A_WHILE = 45 * 60.0
MORNING = 7 * 3600.0
CALM = 8
"""Looks after which nothing comes any more: what was missed is caught up after ten minutes."""


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


def house_of(sleep: Sleep, clock: FakeClock):  # type: ignore[no-untyped-def]  # as `open_house` says
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
    clock = HeldClock(sleep.at)
    async with house_of(sleep, clock) as house, asyncio.timeout(WITHIN), house.working():
        await _pass(house, clock, A_WHILE)
        await clock.move(MORNING)
        await _pass(house, clock, A_WHILE)


async def _pass(house: House, clock: HeldClock, most: float) -> None:
    """Let time pass while nobody works: until nothing is owed, or so many seconds were waited for it.

    It stands still until everybody has looked at what it shows, so that a slow machine misses nothing.
    """
    calm, until = 0, clock.monotonic() + most
    while calm < CALM and clock.monotonic() < until:
        for name in KINDS:
            await _looked(house, name)
        jobs = await house.rows(OWED)
        if any(job["state"] == "running" for job in jobs):
            await asyncio.sleep(0.003)
            await clock.move(0.01)  # for whoever waits for a moment in it
            continue
        await clock.move(120)
        now = clock.now().isoformat()
        owed = any(not job["not_before"] or job["not_before"] <= now for job in jobs)
        calm = 0 if owed else calm + 1


async def _looked(house: House, name: str) -> None:
    """Whoever does such work has looked for it since now: its bell is quiet, and its look is over."""
    bell = next(kind.wakeup for kind in house.runner.job_types if kind.name == name)
    bell.set()
    while bell.is_set():  # noqa: ASYNC110  a bell tells nobody that it was heard
        await asyncio.sleep(0.001)
    async with house.database.transaction():
        pass
