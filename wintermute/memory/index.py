"""The full-text index (FTS5) of all facts, kept in the transactions that change the facts.

It exists with every backend, so that a search by words always works. It is derived: damage is repaired by a rebuild
from the rows.
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
"""Name of this part in the status."""
STEP = 2_000
"""Facts that are read at once during a rebuild."""
COLUMNS = 'fts5 (scope, words, detail = column, tokenize = "unicode61 remove_diacritics 2")'
LACKS = (
    "SELECT 1 WHERE (SELECT count(*) FROM facts_fts_docsize)"
    " <> (SELECT count(*) FROM facts WHERE retired_at IS NULL)"
)
ROWS = "SELECT f.seq, f.scope, f.text, f.speaker, f.created_at, f.retired_at FROM facts f"

log = logging.getLogger(__name__)


def scope_word(scope: str) -> str:
    """Return a scope as one token of the index."""
    return "s" + hashlib.blake2b(scope.encode(), digest_size=10).hexdigest()


class WordIndex:
    """Owns `facts_fts`; a row there has the number of its fact.

    A fact has a row while it is not retired, even after it ended.
    """

    def __init__(self, health: Health | None = None) -> None:
        """`health`: gets a report of each repair."""
        self._health = health
        self._proven = False

    async def ensure_complete(self, database: Database) -> None:
        """Check once that the index has as many facts as the table, else rebuild it; 20 ms at 100,000."""
        if self._proven:
            return
        if await self._lacks(database):
            async with database.transaction() as tx:
                if await self._lacks(tx):  # nobody else was faster
                    await self.repair(tx, "it lacked some of them")
        self._proven = True

    async def repair(self, tx: Transaction, reason: object) -> None:
        """Rebuild the damaged index, and report it to the status."""
        log.warning("index of words built anew reason=%s", reason)
        built = await self.rebuild(tx)
        if self._health is not None:
            report = f"built anew from {built} memories: {one_line(str(reason))}"
            await self._health.note_in(tx, PART, "ok", report)

    async def reindex(self, tx: Transaction, ids: Iterable[str]) -> None:
        """Index the present rows of these facts."""
        if named := list(ids):
            found = f"{ROWS} JOIN json_each(?) w ON f.id = w.value"
            rows = await tx.rows(found, (json.dumps(named),))
            await self.drop(tx, [row["seq"] for row in rows])
            await self._add(tx, rows)

    async def drop(self, tx: Transaction, seqs: Iterable[int]) -> None:
        """Remove these facts from the index."""
        numbers = [(seq,) for seq in seqs]
        try:
            await tx.execute_many("DELETE FROM facts_fts WHERE rowid = ?", numbers)
        except Error as problem:
            await self._mend(tx, problem)
        else:
            if numbers and not ERASES:
                await tx.execute("INSERT INTO facts_fts (facts_fts) VALUES ('optimize')")

    async def optimize(self, tx: Transaction) -> None:
        """Merge the segments of the index for faster reading."""
        try:
            await tx.execute("INSERT INTO facts_fts (facts_fts) VALUES ('optimize')")
        except Error as problem:
            await self._mend(tx, problem)

    async def counts(self, database: Database) -> dict[str, int]:
        """Count the indexed facts of each scope; empty if the index cannot be read."""
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
        """Rebuild the whole index; return the number of facts."""
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
        """Rebuild the index after a failed write; the rebuild includes the new rows."""
        if not is_broken(problem):
            raise problem
        await self.repair(tx, problem)

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
