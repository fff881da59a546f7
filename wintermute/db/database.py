"""The database: one writer, one reader, and transactions that are done completely or not at all."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing, suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast

import aiosqlite

from wintermute.clock import Clock
from wintermute.db import driver
from wintermute.db.full_text import drop_broken, erase_in_place, others_are_sound
from wintermute.db.migrate import (
    Migration,
    UpgradeCopy,
    check_ours,
    copies,
    expire_copies,
    is_foreign,
    migrate,
    migrations,
    not_ours,
    unseen,
)
from wintermute.db.text_search import TextSearch, open_text_search
from wintermute.errors import (
    DatabaseLocked,
    DatabaseOutdated,
    DatabaseUnusable,
    DiskFull,
    StorageBlocked,
    WintermuteError,
)

log = logging.getLogger(__name__)
driver_log = logging.getLogger("aiosqlite")

NO_ROOM = ("disk is full", "disk I/O error")  # the second if its WAL cannot grow
LOCKED = ("database is locked", "database table is locked", "database schema is locked")
NOT_OURS = ("readonly database", "unable to open database file")
COMMAND_PATIENCE = 10.0  # a person is waiting; `forget` may rewrite the whole file meanwhile
DAEMON_PATIENCE = 1.0  # one attempt, which cannot be cancelled: SIGTERM has to wait for it
PAUSE = 0.2
UPGRADE_LOOKS = 10
GENERATED = b"# generated:"
"""First bytes of a MEMORIES.txt that Wintermute wrote (M-016)."""
Parameters = Sequence[Any] | Mapping[str, Any]
Statement = tuple[str, Parameters]
BEGIN = "BEGIN IMMEDIATE"
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Patience:
    """A daemon's waiting for a lock of another program: until it is asked to stop."""

    clock: Clock
    leaving: asyncio.Event


class Row(Protocol):
    """One result row; columns by name."""

    def __getitem__(self, key: str | int) -> Any: ...

    def keys(self) -> list[str]: ...


class Writer(aiosqlite.Connection):
    """The writing connection: several statements share one call of its thread."""

    async def together(self, statements: Sequence[Statement]) -> tuple[list[Row], int]:
        """Run statements in order until one fails; return the rows of the last one, and its row count."""
        found = await self._execute(_one_by_one, self._conn, statements)  # type: ignore[no-untyped-call]  # aiosqlite's
        return cast("tuple[list[Row], int]", found)


def _one_by_one(connection: Any, statements: Sequence[Statement]) -> tuple[list[Row], int]:
    for sql, parameters in statements:
        step = partial(connection.execute, sql, parameters)
        driver_log.debug("executing %s", step)  # as aiosqlite logs a single statement
        cursor = step()
        rows = cursor.fetchall()
        driver_log.debug("operation %s completed", step)
    return rows, cursor.rowcount


class Transaction:
    """An open write transaction. Stores take it as an argument, so that rows change together."""

    def __init__(self, connection: Writer, unlocked: Callable[..., Awaitable[Any]]) -> None:
        """`unlocked` waits for locks of other processes, which can only occur when it begins."""
        self._connection = connection
        self._unlocked = unlocked
        self._later: list[Statement] = [(BEGIN, ())]

    async def flush(self) -> None:
        """Run the deferred statements now."""
        if self._later:
            await self._run(*self._later.pop())

    def defer(self, sql: str, parameters: Parameters = ()) -> None:
        """Defer a statement to the next one, or to the commit; its result is not returned."""
        self._later.append((sql, parameters))

    async def execute(self, sql: str, parameters: Parameters = ()) -> int:
        """Run one statement; return the number of rows it changed."""
        return (await self._run(sql, parameters))[1]

    async def _run(self, sql: str, parameters: Parameters) -> tuple[list[Row], int]:
        statements, self._later = [*self._later, (sql, parameters)], []
        attempt = partial(self._connection.together, statements)
        if statements[0][0] != BEGIN:
            return await attempt()
        return cast("tuple[list[Row], int]", await self._unlocked(attempt, logged=True))

    @asynccontextmanager
    async def rollback_unless(
        self, condition: Callable[[], Awaitable[bool]]
    ) -> AsyncIterator[None]:
        """Keep the changes of the block only if `condition` returns True at its end."""
        await self.execute("SAVEPOINT tried")
        yield
        if not await condition():
            await self.execute("ROLLBACK TO tried")
        await self.execute("RELEASE tried")

    async def execute_many(self, sql: str, rows: Sequence[Parameters]) -> None:
        """Run one statement for each row, in one call of the driver's thread."""
        if rows:
            await self.flush()
            await self._connection.executemany(sql, rows)

    async def rows(self, sql: str, parameters: Parameters = ()) -> list[Row]:
        """Return all rows of a query, as this transaction sees them."""
        return (await self._run(sql, parameters))[0]

    async def row(self, sql: str, parameters: Parameters = ()) -> Row | None:
        """Return the first row of a query, or None."""
        found = await self.rows(sql, parameters)
        return found[0] if found else None

    async def scalars(self, sql: str, parameters: Parameters = ()) -> list[Any]:
        """Return the first column of all rows of a query."""
        return [row[0] for row in await self.rows(sql, parameters)]

    async def exists(self, sql: str, parameters: Parameters = ()) -> bool:
        """Check whether a query returns a row."""
        return bool(await self.rows(sql, parameters))


class Database:
    """The program's own database file. Readers never wait for the writer."""

    def __init__(
        self,
        path: Path,
        writer: Writer,
        reader: aiosqlite.Connection,
        patience: Patience | None,
        *,
        knows_vectors: bool,
    ) -> None:
        self._path = path
        self._writer = writer
        self._reader = reader
        self._patience = patience
        self._knows_vectors = knows_vectors
        self._lock = asyncio.Lock()

    @property
    def knows_vectors(self) -> bool:
        """True if sqlite-vec is loaded; without it there is no search by embeddings here."""
        return self._knows_vectors

    @asynccontextmanager
    async def transaction(self, *, late: bool = False) -> AsyncIterator[Transaction]:
        """Make all statements of the block durable together, or none.

        Do not nest it within one task: the inner one would wait for the outer for ever. `late`: it begins with its
        first statement, so the block must read nothing before that which a command could change.

        Raises: StorageBlocked, and then nothing is changed.
        """
        async with self._lock:
            tx = Transaction(self._writer, self._unlocked)
            try:
                if not late:
                    await tx.flush()
                yield tx
                await tx.execute("COMMIT")
            except BaseException as error:
                # Queued behind statements still running in the driver's thread: after a COMMIT it
                # does nothing, otherwise it undoes the whole transaction.
                await asyncio.shield(self._writer.rollback())
                if isinstance(error, driver.OperationalError):
                    self._raise_blocked(error)
                raise

    def _raise_blocked(self, error: Exception) -> None:
        """Raise the error for a driver's error, if waiting may help."""
        blocked = _blocked(self._path, error)
        if blocked is None and self._patience and _says(error, NOT_OURS):  # it was, at the start
            blocked = StorageBlocked(f"{_cannot(self._path, 'written', error)}: make it writable")
        if blocked is not None:
            raise blocked from error

    async def _unlocked(self, attempt: Callable[[], Awaitable[T]], *, logged: bool = False) -> T:
        """Return the result of an attempt once no other program holds the file, and log the wait once.

        Raises: DatabaseLocked without patience, or when the program is to stop.
        """
        waits = False
        while True:
            try:
                result = await attempt()
            except driver.OperationalError as error:
                patience = self._patience
                if patience is None or patience.leaving.is_set() or not _says(error, LOCKED):
                    self._raise_blocked(error)
                    raise
                if logged and not waits:
                    log.warning("database locked by another program file=%s", self._path.name)
                waits = True
                await patience.clock.sleep(PAUSE)
            else:
                if logged and waits:
                    log.info("database free again file=%s", self._path.name)
                return result

    async def scrub(self) -> bool:
        """Rewrite the file and truncate its WAL, so that neither keeps erased text.

        `secure_delete` alone leaves copies where rows moved from page to page. Returns False if another connection
        prevents it; then call it again later.
        """
        async with self._lock:
            try:
                await self._writer.execute("VACUUM")
            except driver.OperationalError:
                return False
            found = await self._writer.execute_fetchall("PRAGMA wal_checkpoint(TRUNCATE)")
        return bool(next(iter(found))[0] == 0)

    async def unused_bytes(self) -> tuple[int, int]:
        """Return the unused bytes of the file, and its size."""
        names = ("freelist_count", "page_count", "page_size")
        free, pages, size = [(await self.scalars(f"PRAGMA {name}"))[0] for name in names]
        return free * size, pages * size

    async def cut_log(self) -> None:
        """Checkpoint and truncate the WAL, which still holds what was just erased."""
        async with self._lock:
            await self._writer.execute_fetchall("PRAGMA wal_checkpoint(TRUNCATE)")

    def text_search(self) -> AbstractAsyncContextManager[TextSearch]:
        """Open a search for texts in all tables; for a large file it runs in a process of its own."""
        return open_text_search(self._path)

    async def copies(self) -> list[UpgradeCopy]:
        """Return the copies from before upgrades that still exist, oldest first."""
        return await asyncio.to_thread(copies, self._path)

    async def expire_copies(self, now: datetime) -> None:
        """Delete expired copies."""
        await asyncio.to_thread(expire_copies, self._path, now)

    async def version(self) -> int:
        """Return a number that changes with every commit of any process."""
        (found,) = await self.rows("PRAGMA data_version")
        return int(found[0])

    async def rows(self, sql: str, parameters: Parameters = ()) -> list[Row]:
        """Return all rows of a query over committed data."""
        read = partial(self._reader.execute_fetchall, sql, cast("Iterable[Any]", parameters))
        return cast("list[Row]", list(await self._unlocked(read)))

    async def row(self, sql: str, parameters: Parameters = ()) -> Row | None:
        """Return the first row of a query over committed data, or None."""
        found = await self.rows(sql, parameters)
        return found[0] if found else None

    async def scalars(self, sql: str, parameters: Parameters = ()) -> list[Any]:
        """Return the first column of all rows of a query."""
        return [row[0] for row in await self.rows(sql, parameters)]

    async def exists(self, sql: str, parameters: Parameters = ()) -> bool:
        """Check whether a query returns a row."""
        return bool(await self.rows(sql, parameters))


@asynccontextmanager
async def open_database(
    path: Path,
    *,
    read_only: bool = False,
    patience: Patience | None = None,
    extensions: bool = True,
) -> AsyncIterator[Database]:
    """Open the file, bring its schema up to date, close it at the end.

    With `read_only` nothing is created or migrated, transactions fail, and an older file is refused. With `patience`
    later calls wait for locks of other programs. `extensions` False: sqlite-vec is not loaded.

    Raises: DatabaseUnusable, with what to do, for a corrupt, foreign or too new file; StorageBlocked.
    """
    seconds = COMMAND_PATIENCE if patience is None else DAEMON_PATIENCE
    open_one = partial(driver.connect, path, patience=seconds, extensions=extensions)
    try:
        known = await asyncio.to_thread(_prepare, path, open_one, read_only=read_only)
    except driver.Error as error:
        raise _unusable(path, error) from error
    writer = Writer(partial(open_one, read_only=read_only), iter_chunk_size=64)
    async with writer, aiosqlite.Connection(partial(open_one, read_only=True), 64) as reader:
        yield Database(path, writer, reader, patience, knows_vectors=known)


async def check_writable(path: Path) -> None:
    """Check that an existing file can be written now. Raises: DatabaseLocked, DatabaseUnusable."""
    try:
        await asyncio.to_thread(_begin, path)
    except driver.Error as error:
        raise _unusable(path, error) from error


def _begin(path: Path) -> None:
    with closing(driver.connect(path, read_only=False, patience=DAEMON_PATIENCE)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("ROLLBACK")


def shipped_migrations() -> list[Migration]:
    """Return the numbered SQL files beside this module, in order."""
    folder = resources.files("wintermute.db") / "migrations"
    return migrations({item.name: item.read_text("utf-8") for item in folder.iterdir()})


def _prepare(path: Path, open_one: Callable[..., Any], *, read_only: bool) -> bool:
    """Check the file and bring it up to date; return True if sqlite-vec is loaded for it.

    Raises: DatabaseUnusable; driver.Error.
    """
    is_broken = False
    if is_missing(path):
        if read_only:
            raise DatabaseUnusable(
                f"{path} does not exist: start the daemon once with `wintermute run`"
            )
    else:
        check_ours(path, shipped_migrations())
        # A writer merges the WAL beside the file into it when it closes, even a foreign one. So a
        # reader checks the file first, unless a rollback journal has to be applied.
        half_done = path.with_name(f"{path.name}-journal").exists()
        with closing(open_one(read_only=not half_done)) as connection:
            is_broken = _only_derived_broken(path, connection)
            if read_only:
                _await_upgrade(path, connection)
                return driver.knows_vectors(connection)
    with closing(open_one(read_only=False)) as connection:
        if is_broken:  # derived tables are no reason to refuse the file
            drop_broken(connection)
            if problem := _problem(connection):
                raise _unusable(path, problem)
        path.chmod(0o600)
        migrate(connection, path, shipped_migrations())
        erase_in_place(connection)
        return driver.knows_vectors(connection)


def _only_derived_broken(path: Path, connection: Any) -> bool:
    """Check an existing file; True: only a derived table is broken.

    Raises: DatabaseUnusable; StorageBlocked.
    """
    problem = _problem(connection)
    if problem and (not others_are_sound(connection) or _foreign_wal(path)):
        raise _unusable(path, problem)
    if is_foreign(connection, shipped_migrations()):
        raise not_ours(path)
    return bool(problem)


def _await_upgrade(path: Path, connection: Any) -> None:
    """Wait for another process that creates or upgrades the file. Raises: DatabaseOutdated."""
    newest = shipped_migrations()
    for _ in range(UPGRADE_LOOKS):
        if not unseen(connection, path, newest):
            return
        time.sleep(PAUSE)  # noqa: TID251  in a thread of its own
    raise DatabaseOutdated(
        f"database {path} is from an earlier version: start the daemon, which upgrades it"
    )


def is_missing(path: Path) -> bool:
    """Check whether there is no database yet.

    Raises: DatabaseUnusable if there was one: other files beside it belong to it (F-055).
    """
    if _has_content(path):
        return False
    folder = path.parent
    beside = [
        *folder.glob("matrix/@*.db"),
        *folder.glob("scopes/*"),
        *folder.glob(f"{path.name}-wal"),
        *(copy.path for copy in copies(path)),
    ]
    memories = folder / "MEMORIES.txt"
    with suppress(OSError), memories.open("rb") as file:
        if file.readline().startswith(GENERATED):
            beside.append(memories)
    if not beside or _has_content(path):  # another process just made it
        return not _has_content(path)
    raise DatabaseUnusable(
        f"{path} is {'empty' if path.exists() else 'missing'}, but {beside[0]} belongs to it: stop"
        f" Wintermute and {_how_to_restore(path)}"
    )


def _how_to_restore(path: Path) -> str:
    """Describe how to restore a lost file, with the copies there are."""
    kept = ", ".join(copy.path.name for copy in reversed(copies(path)))
    return (
        f"put a copy back as {path.name} ({f'{kept}, or ' if kept else ''}one of your backup). Without"
        f" one, move {path.parent} aside, run `wintermute init {path.parent.parent}`, and"
        " `wintermute memory import FILE` with the old MEMORIES.txt"
    )


def _has_content(path: Path) -> bool:
    return path.exists() and path.stat().st_size > 0


def _foreign_wal(path: Path) -> str:
    """Return the error for a WAL of a later run beside a whole file; "" if that is not the case (F-067).

    SQLite applies any WAL it finds, also one written after a copy of the file was made.
    """
    beside = [
        file for end in ("-wal", "-shm") if (file := path.with_name(path.name + end)).exists()
    ]
    if not beside or not driver.is_whole_alone(path):
        return ""
    names = " and ".join(file.name for file in beside)
    return (
        f"database {path} does not go with {names}, which a later run left there: stop"
        f" Wintermute, move all of them aside, copy {path.name} there again and start"
    )


def _problem(connection: Any) -> object | None:
    """Return what a quick check of the whole file finds wrong, if anything."""
    try:
        found = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    except driver.Error as error:
        return error
    return None if found == "ok" else found


def _unusable(path: Path, problem: object) -> WintermuteError:
    """Return the error for a problem of the driver or of a check, with what to do."""
    if isinstance(problem, WintermuteError):
        return problem
    if _says(problem, NOT_OURS):
        return DatabaseUnusable(
            f"{_cannot(path, 'opened', problem)}: the file and its folder must be writable for the "
            "user who runs Wintermute"
        )
    if blocked := _blocked(path, problem):
        return blocked
    return DatabaseUnusable(
        _foreign_wal(path)
        or f"{_cannot(path, 'used', problem)}: stop Wintermute, move the file aside, with what else"
        f" is called {path.name}-, and {_how_to_restore(path)}"
    )


def _blocked(path: Path, problem: object) -> StorageBlocked | None:
    """Return the error if the file cannot be written at the moment only; else None."""
    cannot = _cannot(path, "written", problem)
    if _says(problem, NO_ROOM):
        return DiskFull(f"{cannot}: make room on its disk")
    if _says(problem, LOCKED):
        return DatabaseLocked(f"{cannot}: let the program that holds it end, then try again")
    return None


def _cannot(path: Path, what: str, problem: object) -> str:
    return f"database {path} cannot be {what} ({' '.join(str(problem).split())})"


def is_broken(problem: Exception) -> bool:
    """Check whether a statement failed because a derived table is damaged, not because of the disk."""
    return isinstance(problem, driver.Error) and not _says(problem, (*NO_ROOM, *LOCKED, *NOT_OURS))


def _says(problem: object, texts: Iterable[str]) -> bool:
    return any(text in str(problem) for text in texts)
