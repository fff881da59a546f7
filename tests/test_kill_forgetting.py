"""Forgetting is killed at each of its statements: the run after that ends as one that was not killed."""

import asyncio
import json
import logging
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from tests.test_forgetting import SCOPE, WORD, deliver, found
from tests.test_forgetting_messages import SAID, learn, wrote
from tests.test_redactions import take_back
from tests.world.clock import HeldClock
from tests.world.house import PROMPTS, House, open_house
from tests.world.launch import read
from tests.world.model import ModelServer
from wintermute.changes.change_sets import Reason

WRITES = ("BEGIN", "UPDATE", "INSERT", "DELETE", "COMMIT", "VACUUM", "PRAGMA wal")
CORE = f"# USER\n- Has a {WORD} bird\n- Likes tea\n"


class Copier(logging.Handler):
    """Copies a folder before each statement that writes there: what a kill at that moment leaves.

    Once where nothing has reached a file since the statement before: within a transaction that is
    usual.
    """

    def __init__(self, folder: Path, into: Path) -> None:
        super().__init__()
        self._folder = folder
        self._into = into
        self._last: dict[str, bytes] = {}
        self.before: list[tuple[str, Path]] = []
        self.copies: list[Path] = []

    def emit(self, record: logging.LogRecord) -> None:
        phase, statement = read(record)
        if phase != "executing" or not statement.lstrip().startswith(WRITES):
            return
        files = {p.name: p.read_bytes() for p in self._folder.iterdir() if p.is_file()}
        files.pop("wintermute.db-shm", None)  # made anew from the log
        if files != self._last:
            self._last = files
            self.copies.append(self._into / str(len(self.copies)))
            shutil.copytree(self._folder, self.copies[-1])
        self.before.append((statement, self.copies[-1]))


@contextmanager
def copying(folder: Path, into: Path) -> Iterator[Copier]:
    """Copy it for as long as the block lasts."""
    log, copier = logging.getLogger("aiosqlite"), Copier(folder, into)
    level, told = log.level, log.propagate
    log.setLevel(logging.DEBUG)
    log.propagate = False
    log.addHandler(copier)
    try:
        yield copier
    finally:
        log.removeHandler(copier)
        log.setLevel(level)
        log.propagate = told


@asynccontextmanager
async def opened(folder: Path, model: ModelServer, clock: HeldClock) -> AsyncIterator[House]:
    async with AsyncExitStack() as stack:
        opening = open_house(*(folder, model.url), prompts=PROMPTS, record=True, clock=clock)
        yield await stack.enter_async_context(opening)


async def talked(folder: Path, model: ModelServer, clock: HeldClock) -> None:
    """Ann says it, says half of it again, and deletes the first message, which is owed then."""
    async with opened(folder, model, clock) as house:
        async with house.working():
            await wrote(house, CORE, f"Has a {WORD} bird")
            gone = await learn(house, model, SAID, f"The bird is a {WORD}")
            await learn(house, model, "The bird sings at night", "The bird sings at night")
            await house.incoming("/memory")
            await house.said(3)
            await deliver(house)
            old = await house.stores.facts.live(SCOPE)
            async with house.database.transaction() as tx:
                both = f"The bird is a {WORD} and sings at night"
                await house.stores.facts.replace(
                    tx,
                    Reason("tool", SCOPE),
                    SCOPE,
                    [f.id for f in old],
                    [(both, "dreaming_merge")],
                )
            await house.incoming("Tell me of the bird")
            await house.said(4)
            await deliver(house)
            await house.settled()
        await take_back(house, gone)
    assert set(found(folder)) >= {"core.md", "MEMORIES.txt", "wintermute.db"}


async def ended(folder: Path, model: ModelServer, clock: HeldClock) -> str:
    """Run to the end of what is owed, the rewriting of the file as well; what is there then."""
    jobs = "SELECT name, state, args, progress FROM jobs WHERE name IN ('forget', 'scrub')"
    async with opened(folder, model, clock) as house, house.working():
        async with asyncio.timeout(30):
            while await house.rows(f"{jobs} AND state <> 'done'"):
                await clock.move(61)
                for name in ("forget", "scrub"):
                    house.runner.ring(name)
                await asyncio.sleep(0)
        tables = [
            await house.rows(f"SELECT {columns} FROM {table} ORDER BY seq")
            for table, columns in (
                ("facts", "text, origins, retired_at, replaced_by"),
                ("inbox", "event_id, state, body, raw"),
                ("casts", "intent, result, block"),
                ("turns", "utterance, calls, block"),
                ("observations", "args, result"),
                ("outbox", "body"),
            )
        ]
        tables.append(await house.rows(f"{jobs} ORDER BY name"))
    assert found(folder) == []
    files = [(folder / name).read_text() for name in ("core.md", "MEMORIES.txt")]
    return json.dumps([tables, files], indent=1)


async def series(tmp_path: Path, model: ModelServer) -> tuple[Copier, str]:
    """A folder as it was before each statement, and what is there at the end without a kill."""
    clock = HeldClock()
    live, into = tmp_path / "live", tmp_path / "killed"
    live.mkdir()
    into.mkdir()
    await talked(live, model, clock)
    with copying(live, into) as copier:
        wanted = await ended(live, model, clock)
    return copier, wanted


def before(copier: Copier, start: str) -> Path:
    """The folder as it was before the first statement that begins so."""
    return next(folder for statement, folder in copier.before if statement.startswith(start))


@pytest.mark.breaks("forgetting", perhaps=True)
async def test_a_killed_forgetting_ends_as_one_that_was_not(
    tmp_path: Path, model: ModelServer
) -> None:
    """M-030: with some records gone, with the facts gone, and before the file is rewritten."""
    copier, wanted = await series(tmp_path, model)
    for start in ("UPDATE outbox SET body", "UPDATE edited_files", "VACUUM"):
        assert await ended(before(copier, start), model, HeldClock()) == wanted, start


@pytest.mark.slow
@pytest.mark.breaks("forgetting", perhaps=True)
async def test_forgetting_may_be_killed_at_any_statement(
    tmp_path: Path, model: ModelServer
) -> None:
    """M-030: before each statement of it and of the rewriting: same state, no word in any file."""
    copier, wanted = await series(tmp_path, model)
    assert len(copier.before) > 150
    for folder in copier.copies:
        after = next(statement for statement, where in copier.before if where == folder)
        assert await ended(folder, model, HeldClock()) == wanted, after
