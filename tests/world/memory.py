"""A memory on a real database and real files, with a clock that stands still."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.world.clock import FakeClock
from tests.world.schema import open_migrated
from wintermute.changes.change_sets import Cause, ChangeSets, Reason
from wintermute.changes.decisions import Decisions
from wintermute.changes.placing import Placing
from wintermute.changes.undo import Undo, Undone
from wintermute.db import Database, Error, Transaction, is_broken, open_database
from wintermute.ids import new_id
from wintermute.memory.core import Places
from wintermute.memory.fact import AddOutcome, Fact, Source
from wintermute.memory.facts import Facts
from wintermute.memory.flat_file import FlatFile
from wintermute.owner import Owner

OWNER = "@ann:test"
ANN = "person:@ann:test"
ROOM = "room:!abc:test"


def because(cause: Cause = "tool", scope: str = ANN) -> Reason:
    """Some reason."""
    return Reason(cause, scope)


@dataclass(frozen=True, slots=True)
class Memory:
    """All that remembers."""

    database: Database
    clock: FakeClock
    changes: ChangeSets
    facts: Facts
    places: Places
    flat: FlatFile
    undo: Undo
    decisions: Decisions

    @property
    def file(self) -> Path:
        """The owner's memories file."""
        return self.places.memories(ANN)

    def file_lines(self) -> list[str]:
        """What stands in the owner's file."""
        return [line for line in self.file.read_text("utf-8").splitlines() if line.strip()]

    async def add(
        self, text: str, source: Source = "user_explicit", scope: str = ANN
    ) -> tuple[Fact, AddOutcome]:
        """Store one fact in a transaction of its own."""
        async with self.database.transaction() as tx:
            return await self.facts.add(tx, because(scope=scope), text, source, scope=scope)

    async def retire(self, *texts: str, scope: str = ANN) -> None:
        """Retire facts by their text."""
        ids = [fact.id for fact in await self.facts.live(scope) if fact.text in texts]
        async with self.database.transaction() as tx:
            await self.facts.supersede(tx, because(scope=scope), (), dict.fromkeys(ids))

    async def texts(self, scope: str = ANN) -> list[str]:
        """What is live."""
        return [fact.text for fact in await self.facts.live(scope)]

    async def take_back(self) -> Undone:
        """Undo the newest change set."""
        newest = await self.changes.newest(["fact"])
        assert newest is not None
        return await self.undo.apply(newest)


@asynccontextmanager
async def memory_in(folder: Path, clock: FakeClock | None = None) -> AsyncIterator[Memory]:
    """A memory whose database and files lie in a folder."""
    clock = clock or FakeClock()
    async with open_migrated(folder / "test.db") as database:
        changes = ChangeSets(database, clock, new_id)
        facts = Facts(database, changes, clock, new_id)
        places = Places(folder, Owner(OWNER))
        decisions = Decisions(database, clock)
        flat = FlatFile(database, facts, places, changes, decisions)
        undo = Undo(database, changes, {"fact": facts}, Placing(database, changes, {}, folder))
        yield Memory(database, clock, changes, facts, places, flat, undo, decisions)


async def words_are_sound(tx: Transaction) -> bool:
    """Whether the index of words is in order and has exactly the facts that are kept."""
    kept, there = "SELECT seq FROM facts WHERE retired_at IS NULL", "SELECT rowid FROM facts_fts"
    try:
        await tx.execute("INSERT INTO facts_fts (facts_fts) VALUES ('integrity-check')")
        return {*await tx.scalars(kept)} == {*await tx.scalars(there)}
    except Error as problem:
        if is_broken(problem):
            return False
        raise


async def index_is_sound(data: Path) -> bool:
    """Whether the index is what the rows say, as another program sees it."""
    async with open_database(data / "wintermute.db") as database, database.transaction() as tx:
        await tx.execute("INSERT INTO facts_fts (facts_fts) VALUES ('integrity-check')")
        kept = await tx.scalars("SELECT seq FROM facts WHERE retired_at IS NULL ORDER BY seq")
        return kept == await tx.scalars("SELECT rowid FROM facts_fts ORDER BY rowid")
