"""Transactions are whole or nothing, whatever interrupts them; files that cannot be used are refused."""

import asyncio
import itertools
import random
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tiers import examples
from tests.world.clock import WITHIN, FakeClock
from wintermute.db import (
    Database,
    IntegrityError,
    OperationalError,
    Patience,
    driver,
    open_database,
)
from wintermute.db.database import PAUSE
from wintermute.db.migrate import Migration, migrate, migrations
from wintermute.errors import DatabaseLocked, DatabaseUnusable

ADD = "INSERT INTO notices (key, said_at) VALUES (?, ?)"


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    async with open_database(tmp_path / "test.db") as database:
        yield database


async def keys(database: Database) -> list[str]:
    return [row["key"] for row in await database.rows("SELECT key FROM notices ORDER BY key")]


async def test_a_transaction_is_seen_once_it_is_whole(database: Database) -> None:
    """And only inside before that."""
    async with database.transaction() as tx:
        assert await tx.execute(ADD, ("a", "")) == 1
        assert await tx.execute(ADD, ("b", "")) == 1
        assert len(await tx.rows("SELECT * FROM notices")) == 2
        assert await tx.row("SELECT * FROM notices WHERE key = 'c'") is None
        assert await keys(database) == []
    assert await keys(database) == ["a", "b"]


async def _raising(database: Database, error: type[BaseException]) -> None:
    async with database.transaction() as tx:
        await tx.execute(ADD, ("a", ""))
        raise error


async def _promising(database: Database) -> None:
    async with database.transaction() as tx:
        await tx.execute("PRAGMA defer_foreign_keys=ON")
        await tx.execute(ADD, ("a", ""))
        await tx.execute(
            "INSERT INTO branches (id, conversation_id, reason, created_at)"
            " VALUES ('b', 'nowhere', 'start', '')"
        )


@pytest.mark.parametrize("error", [KeyError, KeyboardInterrupt, GeneratorExit])
async def test_an_exception_leaves_nothing_behind(
    database: Database, error: type[BaseException]
) -> None:
    with pytest.raises(error):
        await _raising(database, error)
    async with database.transaction() as tx:
        await tx.execute(ADD, ("b", ""))
    assert await keys(database) == ["b"]


async def test_of_what_runs_later_nothing_is_left_where_one_is_refused(database: Database) -> None:
    """And nothing behind it runs."""
    for others in (["a"], ["a", "b"]):
        with pytest.raises(IntegrityError):
            await _twice(database, others)
        assert await keys(database) == []


async def _twice(database: Database, others: Sequence[str]) -> None:
    async with database.transaction(late=True) as tx:
        for key in ("a", *others):
            tx.defer(ADD, (key, ""))


async def test_a_refused_statement_can_be_caught_inside(database: Database) -> None:
    """Only that statement is undone."""
    async with database.transaction() as tx:
        await tx.execute(ADD, ("a", ""))
        with pytest.raises(IntegrityError):
            await tx.execute(ADD, ("a", ""))
        await tx.execute(ADD, ("b", ""))
    assert await keys(database) == ["a", "b"]


async def test_a_commit_that_fails_changes_nothing(database: Database) -> None:
    """A foreign key that is checked at the end only."""
    with pytest.raises(IntegrityError):
        await _promising(database)
    async with database.transaction() as tx:
        await tx.execute(ADD, ("b", ""))
    assert await keys(database) == ["b"]


Rows = Callable[[Database, str, asyncio.Event], Coroutine[None, None, None]]


async def _two_rows(database: Database, name: str, ended: asyncio.Event) -> None:
    async with database.transaction() as tx:
        await tx.execute(ADD, (f"{name} a", ""))
        await tx.execute(ADD, (f"{name} b", ""))
    ended.set()


async def _two_at_once(database: Database, name: str, ended: asyncio.Event) -> None:
    """One goes with the other, the beginning with both."""
    async with database.transaction(late=True) as tx:
        tx.defer(ADD, (f"{name} a", ""))
        await tx.execute(ADD, (f"{name} b", ""))
        assert len(await tx.rows("SELECT 1 FROM notices WHERE key GLOB ?", (f"{name} ?",))) == 2
    ended.set()


async def _two_with_the_commit(database: Database, name: str, ended: asyncio.Event) -> None:
    async with database.transaction(late=True) as tx:
        tx.defer(ADD, (f"{name} a", ""))
        tx.defer(ADD, (f"{name} b", ""))
    ended.set()


WAYS = pytest.mark.parametrize("rows", [_two_rows, _two_at_once, _two_with_the_commit])


async def cancelled_after(
    database: Database, name: str, pauses: Sequence[int], rows: Rows = _two_rows
) -> asyncio.Event:
    """Run a transaction, cancel it after so many turns of the event loop, perhaps again and again."""
    ended = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        task = group.create_task(rows(database, name, ended))
        for pause in pauses:
            for _ in range(pause):
                await asyncio.sleep(0)
            task.cancel()
    async with database.transaction() as tx:  # others never suffer
        await tx.execute(ADD, (f"other {name}", ""))
    return ended


@WAYS
async def test_a_task_cancelled_anywhere_leaves_all_or_nothing(
    database: Database, rows: Rows
) -> None:
    """At every await there is; what was reported as done is there."""
    outcomes = set()
    for steps in itertools.count():
        name = f"{steps:04}"
        ended = await cancelled_after(database, name, [steps], rows)
        found = [key for key in await keys(database) if key.startswith(name)]
        assert len(found) in (0, 2)
        assert found or not ended.is_set()
        assert f"other {name}" in await keys(database)
        outcomes.add((bool(found), ended.is_set()))
        if ended.is_set() and steps > 100:
            break
    assert (False, False) in outcomes


async def test_a_task_cancelled_again_and_again_leaves_all_or_nothing(database: Database) -> None:
    """The second cancellation meets the undoing of the first."""
    rng = random.Random(7)
    for n in range(60):
        await cancelled_after(database, f"{n:04}", [rng.randrange(40) for _ in range(3)])
    found = Counter(key.split()[0] for key in await keys(database))
    assert found.pop("other") == 60
    assert set(found.values()) <= {2}


async def test_waiting_for_the_writer_can_be_cancelled(database: Database) -> None:
    """And whoever waits behind is not held up by it."""
    async with asyncio.TaskGroup() as group, database.transaction() as tx:
        first = group.create_task(_two_rows(database, "first", asyncio.Event()))
        group.create_task(_two_rows(database, "second", asyncio.Event()))
        await asyncio.sleep(0)
        first.cancel()
        await tx.execute(ADD, ("mine", ""))
    assert await keys(database) == ["mine", "second a", "second b"]


async def test_a_reader_never_waits_for_the_writer(database: Database) -> None:
    async with database.transaction() as tx:
        await tx.execute(ADD, ("a", ""))
        async with asyncio.timeout(WITHIN):
            assert await keys(database) == []
            assert await database.row("SELECT * FROM notices") is None
    assert await keys(database) == ["a"]


async def test_a_reader_cannot_write(database: Database) -> None:
    with pytest.raises(OperationalError, match="readonly"):
        await database.rows(ADD, ("a", ""))


async def test_a_second_process_waits_for_its_turn(tmp_path: Path) -> None:
    """The command line writes beside a running daemon."""
    path = tmp_path / "test.db"
    async with open_database(path) as one, open_database(path) as two:
        async with asyncio.TaskGroup() as group:
            for n in range(10):
                group.create_task(_two_rows(one, f"one {n}", asyncio.Event()))
                group.create_task(_two_rows(two, f"two {n}", asyncio.Event()))
        assert len(await keys(one)) == 40
        assert await keys(one) == await keys(two)


class Releasing(FakeClock):
    """A clock on which whoever sleeps makes somebody else let go."""

    def __init__(self) -> None:
        super().__init__()
        self.held = AsyncExitStack()

    async def sleep(self, seconds: float) -> None:
        await super().sleep(seconds)
        await self.held.aclose()


@WAYS
async def test_a_daemon_waits_for_a_lock_until_it_is_to_leave(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, rows: Rows
) -> None:
    """F-008: in one line; the pauses are the clock's, so a watchdog hears of each."""
    path, clock, leaving = tmp_path / "test.db", Releasing(), asyncio.Event()
    async with (
        open_database(path, patience=Patience(clock, leaving)) as daemon,
        open_database(path) as command,
    ):
        await clock.held.enter_async_context(command.transaction())
        await rows(daemon, "late", asyncio.Event())
        assert await keys(daemon) == ["late a", "late b"]
        assert clock.slept == [PAUSE]
        assert [record.levelname for record in caplog.records] == ["WARNING"]
        leaving.set()
        async with command.transaction():
            with pytest.raises(DatabaseLocked, match="let the program that holds it end"):
                await rows(daemon, "never", asyncio.Event())
        assert await keys(daemon) == ["late a", "late b"]


Step = tuple[str, int]
PROGRAM = st.lists(
    st.tuples(st.sampled_from(["write", "read", "pause", "fail", "cancel"]), st.integers(0, 30)),
    max_size=6,
)


@settings(max_examples=examples(40))
@given(programs=st.lists(PROGRAM, min_size=1, max_size=8))
def test_transactions_behave_as_if_one_came_after_the_other(programs: list[list[Step]]) -> None:
    """Each counts up by one from what it reads first, whatever else it and the others do."""
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(_interleaved(Path(folder) / "test.db", programs))


async def _interleaved(path: Path, programs: list[list[Step]]) -> None:
    done: list[str] = []
    async with open_database(path) as database:
        async with database.transaction() as tx:
            await tx.execute("INSERT INTO single_values (name, value) VALUES ('n', 0)")
        async with asyncio.TaskGroup() as group:
            for number, program in enumerate(programs):
                group.create_task(_program(database, f"{number}", program, done))
        found = Counter(key.split()[0] for key in await keys(database))
        row = await database.row("SELECT value FROM single_values")
    wrote = {n: sum(step == "write" for step, _ in programs[int(n)]) for n in done}
    assert found == {name: count for name, count in wrote.items() if count}
    assert row is not None
    assert row["value"] == len(done)


async def _program(database: Database, name: str, program: list[Step], done: list[str]) -> None:
    with suppress(KeyError):
        async with database.transaction() as tx:
            row = await tx.row("SELECT value FROM single_values")
            assert row is not None
            for n, (step, number) in enumerate(program):
                if step == "write":
                    await tx.execute(ADD, (f"{name} {n}", ""))
                elif step == "read":
                    await database.rows("SELECT * FROM notices")
                elif step == "pause":
                    for _ in range(number):
                        await asyncio.sleep(0)
                elif step == "fail":
                    raise KeyError
                else:
                    async with asyncio.TaskGroup() as group:  # one of its waits is cancelled
                        group.create_task(tx.rows("SELECT 1")).cancel()
            await tx.execute("UPDATE single_values SET value = ?", (row["value"] + 1,))
        done.append(name)


@pytest.mark.parametrize("name", ["a?mode=ro", "b#c", "d%20e", "f g", "ü & 'quotes' \"x\"", "a:b"])
async def test_a_path_may_have_any_name(tmp_path: Path, name: str) -> None:
    path = tmp_path / name / f"{name}.db"
    path.parent.mkdir()
    for _ in range(2):
        async with open_database(path) as database, database.transaction() as tx:
            await tx.execute("INSERT INTO notices VALUES (?, '') ON CONFLICT DO NOTHING", (name,))
    assert files(path.parent) == {path.name}
    assert path.stat().st_mode & 0o777 == 0o600
    async with open_database(path, read_only=True) as database:
        assert await keys(database) == [name]
        with pytest.raises(OperationalError):
            async with database.transaction() as tx:
                await tx.execute(ADD, ("b", ""))


async def test_both_connections_have_what_the_design_asks_for(tmp_path: Path) -> None:
    wanted = {
        "journal_mode": "wal",
        "synchronous": 2,
        "foreign_keys": 1,
        "recursive_triggers": 1,
        "secure_delete": 1,
        "trusted_schema": 0,
        "busy_timeout": 10000,
    }
    async with open_database(tmp_path / "test.db") as database:
        for name, value in wanted.items():
            async with database.transaction() as tx:
                row = await tx.row(f"PRAGMA {name}")
            assert row is not None
            assert row[0] == value
        reading = await database.row("PRAGMA query_only")
    assert reading is not None
    assert reading[0] == 1


async def refusal(path: Path, *, read_only: bool = False) -> str:
    with pytest.raises(DatabaseUnusable) as caught:
        async with open_database(path, read_only=read_only):
            pass
    assert "\n" not in str(caught.value)
    return str(caught.value)


def files(folder: Path) -> set[str]:
    return {file.name for file in folder.iterdir()}


async def filled(path: Path) -> None:
    async with open_database(path) as database, database.transaction() as tx:
        for n in range(2000):
            await tx.execute(ADD, (f"{n} {'x' * 100}", ""))


def garbage_header(content: bytes) -> bytes:
    return b"no database" * 20 + content[220:]


def garbage_page(content: bytes) -> bytes:
    return content[:40960] + b"\xff" * 8192 + content[49152:]


def cut_in_a_page(content: bytes) -> bytes:
    return content[: len(content) // 2 + 100]


def cut_after_a_page(content: bytes) -> bytes:
    return content[:8192]


@pytest.mark.parametrize(
    "harm",
    [garbage_header, garbage_page, cut_in_a_page, cut_after_a_page],
    ids=lambda f: f.__name__,
)
async def test_a_damaged_file_is_refused_with_what_to_do(
    tmp_path: Path, harm: Callable[[bytes], bytes]
) -> None:
    """And left as it is."""
    path = tmp_path / "test.db"
    await filled(path)
    path.write_bytes(harm(path.read_bytes()))
    before = path.read_bytes()
    told = await refusal(path)
    assert str(path) in told
    assert "move the file aside" in told
    assert path.read_bytes() == before


async def test_a_missing_file_is_made_by_the_daemon_only(tmp_path: Path) -> None:
    path = tmp_path / "test.db"
    assert "wintermute run" in await refusal(path, read_only=True)
    assert files(tmp_path) == set()


async def test_a_folder_that_is_not_there_is_told(tmp_path: Path) -> None:
    assert str(tmp_path) in await refusal(tmp_path / "nowhere" / "test.db")


async def test_another_programs_database_is_left_alone(tmp_path: Path) -> None:
    """Bad input: a file that SQLite can open is not yet one of ours."""
    path = tmp_path / "theirs.db"
    connection = driver.connect(path, read_only=False)
    connection.execute("CREATE TABLE recipes (name TEXT)")
    connection.close()
    assert "from an earlier Wintermute or another program" in await refusal(path)


async def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "test.db"
    await filled(path)
    connection = driver.connect(path, read_only=False)
    connection.execute("PRAGMA user_version=9999")
    connection.close()
    assert "newer Wintermute" in await refusal(path)


FIRST = Migration(1, "0001_a.sql", "CREATE TABLE a (x); INSERT INTO a VALUES (1);")
SECOND = Migration(2, "0002_b.sql", "ALTER TABLE a ADD COLUMN y; UPDATE a SET y = 2;")
BROKEN = Migration(
    3, "0003_c.sql", "CREATE TABLE c (x); DROP TABLE a; INSERT INTO nowhere SELECT 1;"
)


def contents(path: Path) -> tuple[int, list[str], list[tuple[int, ...]]]:
    connection = driver.connect(path, read_only=True)
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    tables = [row[0] for row in connection.execute("SELECT name FROM sqlite_schema ORDER BY 1")]
    rows = [tuple(row) for row in connection.execute("SELECT * FROM a")]
    connection.close()
    return version, tables, rows


def migrated(path: Path, *steps: Migration) -> None:
    connection = driver.connect(path, read_only=False)
    try:
        migrate(connection, path, list(steps))
    finally:
        connection.close()


def test_steps_are_taken_once_and_a_copy_is_kept(tmp_path: Path) -> None:
    """The copy is what was there before, for its owner alone; a fresh file needs none."""
    path = tmp_path / "test.db"
    migrated(path, FIRST)
    assert contents(path) == (1, ["a"], [(1,)])
    assert list(tmp_path.glob("*before*")) == []
    for _ in range(2):
        migrated(path, FIRST, SECOND)
        assert contents(path) == (2, ["a"], [(1, 2)])
    (copy,) = tmp_path.glob("*.before-0002")
    assert contents(copy) == (1, ["a"], [(1,)])
    assert copy.stat().st_mode & 0o777 == 0o600


def test_a_broken_step_changes_nothing(tmp_path: Path) -> None:
    """The steps before it stay; when it is mended it is taken."""
    path = tmp_path / "test.db"
    migrated(path, FIRST)
    for _ in range(2):
        with pytest.raises(OperationalError, match="nowhere"):
            migrated(path, FIRST, SECOND, BROKEN)
        assert contents(path) == (2, ["a"], [(1, 2)])
    migrated(path, FIRST, SECOND, Migration(3, "0003_c.sql", "CREATE TABLE c (x)"))
    assert contents(path) == (3, ["a", "c"], [(1, 2)])


def test_migration_files_are_known_by_their_names() -> None:
    files = {
        "0002_b.sql": "b",
        "0001_a.sql": "a",
        "__init__.py": "",
        "2_c.sql": "",
        "0003_d.txt": "",
    }
    assert [step.number for step in migrations(files)] == [1, 2]
