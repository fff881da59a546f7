"""One writer, one reader, and transactions that cannot be half done."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any, Protocol, cast

import aiosqlite

from wintermute.db import driver
from wintermute.db.migrate import Copy, Migration, copies, expire_copies, migrate, migrations
from wintermute.errors import DatabaseUnusable, DiskFull, WintermuteError

NO_ROOM = ("disk is full", "disk I/O error")  # the second when its log cannot grow
NOT_OURS = ("readonly database", "unable to open database file")
Parameters = Sequence[Any] | Mapping[str, Any]


class Row(Protocol):
    """One result row; columns by name."""

    def __getitem__(self, key: str | int) -> Any: ...

    def keys(self) -> list[str]: ...


class Transaction:
    """An open write transaction. Stores take it as an argument, so that rows change together."""

    def __init__(self, connection: aiosqlite.Connection) -> None:
        self._connection = connection

    async def execute(self, sql: str, parameters: Parameters = ()) -> int:
        """Run one statement; the number of rows it changed."""
        # Not closed: that would be a second way through the driver's thread for nothing.
        cursor = await self._connection.execute(sql, cast("Iterable[Any]", parameters))
        return cursor.rowcount

    async def execute_many(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        """Run one statement for each row, in one go through the driver's thread."""
        if rows:
            await self._connection.executemany(sql, rows)

    async def rows(self, sql: str, parameters: Parameters = ()) -> list[Row]:
        """All rows of a query, as this transaction sees them."""
        found = await self._connection.execute_fetchall(sql, cast("Iterable[Any]", parameters))
        return cast("list[Row]", list(found))

    async def row(self, sql: str, parameters: Parameters = ()) -> Row | None:
        """The first row of a query, or None."""
        found = await self.rows(sql, parameters)
        return found[0] if found else None


class Database:
    """The program's own database file. Readers never wait for the writer."""

    def __init__(
        self, path: Path, writer: aiosqlite.Connection, reader: aiosqlite.Connection
    ) -> None:
        self._path = path
        self._writer = writer
        self._reader = reader
        self._lock = asyncio.Lock()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        """All statements inside become durable together, or none does.

        Not to be nested within one task: the inner one would wait for the outer for ever.
        """
        async with self._lock:
            tx = Transaction(self._writer)
            try:
                await tx.execute("BEGIN IMMEDIATE")
                yield tx
                await tx.execute("COMMIT")
            except BaseException as error:
                # Queued behind what the driver's thread still runs, cancelled or not: after a
                # COMMIT it does nothing, else nothing of this transaction remains.
                await asyncio.shield(self._writer.rollback())
                if isinstance(error, driver.OperationalError) and _is_full(error):
                    raise _unusable(self._path, error) from error
                raise

    async def scrub(self) -> bool:
        """Rewrite the file and cut its log, so that nothing erased stays in either.

        `secure_delete` alone leaves copies where rows have moved from page to page. False when
        another connection is in the way; then this is to be done again.
        """
        async with self._lock:
            try:
                await self._writer.execute("VACUUM")
            except driver.OperationalError:
                return False
            found = await self._writer.execute_fetchall("PRAGMA wal_checkpoint(TRUNCATE)")
        return bool(next(iter(found))[0] == 0)

    async def copies(self) -> list[Copy]:
        """The copies from before upgrades that are still there, oldest first."""
        return await asyncio.to_thread(copies, self._path)

    async def expire_copies(self, before: datetime) -> None:
        """Delete the copies that were made before then."""
        await asyncio.to_thread(expire_copies, self._path, before)

    async def version(self) -> int:
        """A number that is another one after every commit, whoever made it."""
        (found,) = await self.rows("PRAGMA data_version")
        return int(found[0])

    async def rows(self, sql: str, parameters: Parameters = ()) -> list[Row]:
        """All rows of a query over what is committed."""
        found = await self._reader.execute_fetchall(sql, cast("Iterable[Any]", parameters))
        return cast("list[Row]", list(found))

    async def row(self, sql: str, parameters: Parameters = ()) -> Row | None:
        """The first row of a query over what is committed, or None."""
        found = await self.rows(sql, parameters)
        return found[0] if found else None


@asynccontextmanager
async def open_database(path: Path, *, read_only: bool = False) -> AsyncIterator[Database]:
    """Open the file, bring its schema up to date, close it at the end.

    With `read_only` nothing is made or migrated, and transactions fail.

    Raises: DatabaseUnusable, with what to do, for a corrupt, foreign or too new file; DiskFull.
    """
    try:
        await asyncio.to_thread(_prepare, path, read_only)
    except driver.Error as error:
        raise _unusable(path, error) from error
    open_one = partial(driver.connect, path)
    writer = aiosqlite.Connection(partial(open_one, read_only=read_only), iter_chunk_size=64)
    async with writer, aiosqlite.Connection(partial(open_one, read_only=True), 64) as reader:
        yield Database(path, writer, reader)


def shipped_migrations() -> list[Migration]:
    """The numbered SQL files beside this module, in order."""
    folder = resources.files("wintermute.db") / "migrations"
    return migrations({item.name: item.read_text("utf-8") for item in folder.iterdir()})


def _prepare(path: Path, read_only: bool) -> None:
    if read_only and not path.exists():
        raise DatabaseUnusable(
            f"{path} does not exist: start the daemon once with `wintermute run`"
        )
    connection = driver.connect(path, read_only=read_only)
    try:
        problem = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        if problem != "ok":
            raise _unusable(path, problem)
        if not read_only:
            path.chmod(0o600)
            migrate(connection, path, shipped_migrations())
    finally:
        connection.close()


def _unusable(path: Path, problem: object) -> WintermuteError:
    """The error for what the driver or a check said, with what to do."""
    if isinstance(problem, WintermuteError):
        return problem
    told = " ".join(str(problem).split())
    begin = f"database {path} cannot be"
    if _is_full(problem):
        return DiskFull(f"{begin} written ({told}): make room on its disk, then start again")
    if any(text in told for text in NOT_OURS):
        return DatabaseUnusable(
            f"{begin} opened ({told}): the file and its folder must be writable for the user who "
            "runs Wintermute"
        )
    return DatabaseUnusable(
        f"{begin} used ({told}): stop Wintermute, move the file aside and put "
        f"the newest copy in its place (backups and {path.name}.before-* are beside it)"
    )


def _is_full(problem: object) -> bool:
    return any(text in str(problem) for text in NO_ROOM)
