"""The words of all facts in a full-text index (FTS5), kept in the transactions that change the facts.

It is there whatever else is asked for meaning, so that words always find something. Derived: what
is wrong with it is mended by building it anew from the rows.
"""

import asyncio
import hashlib
import json
import logging
from collections.abc import Iterable, Sequence

from wintermute.clock import moment
from wintermute.db import ERASES, Database, Error, Row, Transaction, is_broken
from wintermute.db.full_text import dropping, erasing
from wintermute.health.health import Health
from wintermute.memory.words import words_of
from wintermute.text import one_line

PART = "memory index"
"""What the status calls it."""
STEP = 2_000
"""Facts that are read at once while all of it is built anew."""
COLUMNS = 'fts5 (scope, words, detail = column, tokenize = "unicode61 remove_diacritics 2")'
LACKS = (
    "SELECT 1 WHERE (SELECT count(*) FROM facts_fts_docsize)"
    " <> (SELECT count(*) FROM facts WHERE retired_at IS NULL)"
)
ROWS = "SELECT f.seq, f.scope, f.text, f.speaker, f.created_at, f.retired_at FROM facts f"

log = logging.getLogger(__name__)


def scope_word(scope: str) -> str:
    """A scope as one token of the index."""
    return "s" + hashlib.blake2b(scope.encode(), digest_size=10).hexdigest()


class WordIndex:
    """Owns `facts_fts`; a row there has the number of its fact.

    A row of a fact is there while the fact is kept, true or no longer true.
    """

    def __init__(self, health: Health | None = None) -> None:
        """`health`: who is told when it had to be mended."""
        self._health = health
        self._proven = False

    async def prove(self, database: Database) -> None:
        """See once that it has as many facts as are kept, else build it anew; 20 ms at 100,000."""
        if self._proven:
            return
        if await self._lacks(database):
            async with database.transaction() as tx:
                if await self._lacks(tx):  # nobody else was faster
                    await self.mend(tx, "it had not all of them")
        self._proven = True

    async def mend(self, tx: Transaction, reason: object) -> None:
        """Build it anew because it is not as it should be, and tell the status."""
        log.warning("index of words built anew reason=%s", reason)
        built = await self.rebuild(tx)
        if self._health is not None:
            told = f"built anew from {built} memories: {one_line(str(reason))}"
            await self._health.note_in(tx, PART, "ok", told)

    async def renew(self, tx: Transaction, ids: Iterable[str]) -> None:
        """Let it say of these facts what their rows say now."""
        if named := list(ids):
            found = f"{ROWS} JOIN json_each(?) w ON f.id = w.value"
            rows = await tx.rows(found, (json.dumps(named),))
            await self.drop(tx, [row["seq"] for row in rows])
            await self._add(tx, rows)

    async def drop(self, tx: Transaction, seqs: Iterable[int]) -> None:
        """Find these facts no longer."""
        numbers = [(seq,) for seq in seqs]
        try:
            await tx.execute_many("DELETE FROM facts_fts WHERE rowid = ?", numbers)
        except Error as problem:
            await self._mend(tx, problem)
        else:
            if numbers and not ERASES:
                await tx.execute("INSERT INTO facts_fts (facts_fts) VALUES ('optimize')")

    async def optimize(self, tx: Transaction) -> None:
        """Put its parts together, as it is best read."""
        try:
            await tx.execute("INSERT INTO facts_fts (facts_fts) VALUES ('optimize')")
        except Error as problem:
            await self._mend(tx, problem)

    async def counts(self, database: Database) -> dict[str, int]:
        """Of how many facts of each scope it knows the words; empty where it cannot be read."""
        query = (
            "SELECT f.scope, count(*) AS n FROM facts_fts w JOIN facts f ON f.seq = w.rowid"
            " GROUP BY f.scope"
        )
        try:
            return {row["scope"]: row["n"] for row in await database.rows(query)}
        except Error as problem:
            if is_broken(problem):
                return {}
            raise

    async def rebuild(self, tx: Transaction) -> int:
        """Build all of it anew; of how many facts."""
        if await tx.exists("SELECT 1 FROM sqlite_schema WHERE name = 'facts_fts'"):
            for statement in dropping("facts_fts"):
                await tx.execute(statement)
        await tx.execute(f"CREATE VIRTUAL TABLE facts_fts USING {COLUMNS}")
        if ERASES:
            await tx.execute(erasing("facts_fts"))
        last = built = 0
        query = f"{ROWS} WHERE f.retired_at IS NULL AND f.seq > ? ORDER BY f.seq LIMIT ?"
        while rows := await tx.rows(query, (last, STEP)):
            await self._insert(tx, rows)
            last, built = rows[-1]["seq"], built + len(rows)
        return built

    async def _add(self, tx: Transaction, rows: Sequence[Row]) -> None:
        try:
            await self._insert(tx, rows)
        except Error as problem:
            await self._mend(tx, problem)

    async def _insert(self, tx: Transaction, rows: Sequence[Row]) -> None:
        entries = await asyncio.to_thread(_entries, rows)
        await tx.execute_many(
            "INSERT INTO facts_fts (rowid, scope, words) VALUES (?, ?, ?)", entries
        )

    async def _mend(self, tx: Transaction, problem: Exception) -> None:
        """What it could not take, it takes with all the others."""
        if not is_broken(problem):
            raise problem
        await self.mend(tx, problem)

    async def _lacks(self, source: Database | Transaction) -> bool:
        try:
            return await source.exists(LACKS)
        except Error as problem:
            if is_broken(problem):
                return True
            raise


def _entries(rows: Iterable[Row]) -> list[tuple[int, str, str]]:
    return [
        (
            row["seq"],
            scope_word(row["scope"]),
            words_of(row["text"], row["speaker"] or "", moment(row["created_at"])),
        )
        for row in rows
        if row["retired_at"] is None
    ]
