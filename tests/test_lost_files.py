"""Databases, logins and keys that are empty, cut, missing, foreign or of another time: nothing is begun anew."""

import shutil
import sqlite3  # noqa: TID251  other programs' files, made from outside
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.world.scene import NewBot, NewPerson, NewRoom
from tests.world.schema import LATER
from tests.world.terminal import Terminal
from tests.world.warm import Interpreter
from wintermute.db import driver
from wintermute.db.database import shipped_migrations
from wintermute.db.migrate import migrate, schema_id
from wintermute.matrix.signing import MARKS
from wintermute.memory.flat_file import GENERATED

BEFORE = f"wintermute.db.before-{LATER:04d}"
COMMANDS = [("memory", "list"), ("memory", "add", "Anna moved to Lyon."), ("status",), ("check",)]


@pytest.mark.parametrize("was_there", [True, False])
def test_ten_commands_at_once_all_store_what_they_were_given(
    terminal: Terminal, later_python: Interpreter, was_there: bool
) -> None:
    """F-054: in a folder without a database, and in one of an earlier version."""
    terminal = Terminal(terminal.folder, later_python)
    if not was_there:
        (terminal.data / "wintermute.db").unlink()
    with ThreadPoolExecutor(10) as pool:
        list(pool.map(lambda n: terminal.says("memory", "add", f"fact number {n}"), range(10)))
    assert len(terminal.says("memory", "list").splitlines()) == 10
    copies = list(terminal.data.glob("wintermute.db.before-*"))
    assert [copy.name for copy in copies] == [BEFORE] * was_there
    for copy in copies:
        assert sqlite3.connect(copy).execute("PRAGMA user_version").fetchone() == (LATER - 1,)


def test_a_copy_from_before_an_upgrade_is_not_replaced(
    terminal: Terminal, later_python: Interpreter
) -> None:
    """F-054: it is what somebody may go back to."""
    copy = terminal.data / BEFORE
    copy.write_text("the first")
    Terminal(terminal.folder, later_python).says("memory", "list")
    assert copy.read_text() == "the first"


def empty(data: Path) -> None:
    (data / "wintermute.db").write_bytes(b"")
    (data / "MEMORIES.txt").write_text(f"{GENERATED}\nAnna likes tea.\n")


def missing(data: Path) -> None:
    (data / "scopes" / "person:@bob:example.org").mkdir(parents=True)


def without_database(data: Path) -> None:
    (data / "matrix").mkdir()
    (data / "matrix" / "@bot:example.org_ABC.db").write_bytes(b"keys")


def foreign(data: Path, version: int = 0, application: int = 0) -> None:
    """A file of another program, or with version 54 of the Wintermute before this schema."""
    with sqlite3.connect(data / "wintermute.db", isolation_level=None) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("CREATE TABLE conversations (id TEXT PRIMARY KEY)")
        connection.execute(f"PRAGMA user_version={version}")
        connection.execute(f"PRAGMA application_id={application}")
    connection.close()


def in_its_log(data: Path) -> None:
    """A file of another program that was killed before it left its log."""
    foreign(data)
    connection = sqlite3.connect(data / "wintermute.db", isolation_level=None)
    connection.execute("DROP TABLE conversations")
    connection.execute("VACUUM")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.execute("CREATE TABLE recipes (name TEXT)")
    for name in ("", "-wal"):
        shutil.copy(data / f"wintermute.db{name}", data / f"kept{name}")
    connection.close()
    for name in ("", "-wal"):
        (data / f"kept{name}").replace(data / f"wintermute.db{name}")


def of_a_later_life(data: Path) -> None:
    """A copy is put back over a database that was killed at work, and its log stays."""
    path, page = data / "wintermute.db", 4096
    living = driver.connect(path, read_only=False)
    migrate(living, path, shipped_migrations())
    living.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    shutil.copy(path, data / "copy")
    living.execute("CREATE TABLE later (x)")
    for _ in range(3):
        living.executemany("INSERT INTO later VALUES (?)", [("x" * page,)] * 300)
        living.execute("PRAGMA wal_checkpoint(PASSIVE)")
        living.execute("DELETE FROM later")
    for name in ("-wal", "-shm"):
        shutil.copy(data / f"wintermute.db{name}", data / f"kept{name}")
    living.close()
    (data / "copy").replace(path)
    for name in ("-wal", "-shm"):
        (data / f"kept{name}").replace(data / f"wintermute.db{name}")


@pytest.mark.parametrize(
    ("harm", "told"),
    [
        (empty, "is empty, but"),
        (missing, "is missing, but"),
        (without_database, "@bot:example.org_ABC.db belongs to it"),
        (foreign, "is from an earlier Wintermute or another program"),
        (in_its_log, "is from an earlier Wintermute or another program"),
        (lambda data: foreign(data, 54), "is from an earlier Wintermute or another program"),
        (lambda data: foreign(data, 1, 7), "is from an earlier Wintermute or another program"),
        (
            lambda data: foreign(data, 9, schema_id(shipped_migrations())),
            "was written by a newer Wintermute (schema 9",
        ),
        (of_a_later_life, "does not go with wintermute.db-wal and wintermute.db-shm"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_every_command_refuses_a_lost_database_and_leaves_all_as_it_is(
    terminal: Terminal, harm: Callable[[Path], None], told: str
) -> None:
    """F-055, F-067."""
    for file in terminal.data.glob("wintermute.db*"):
        file.unlink()
    harm(terminal.data)

    def held() -> dict[str, tuple[bytes, int]]:
        files = [path for path in terminal.data.rglob("*") if path.is_file()]
        has_log = any(path.name.endswith("-wal") for path in files)
        return {
            path.name: (path.read_bytes(), path.stat().st_mtime_ns)
            for path in files
            if not (has_log and path.name.endswith("-shm"))
        }

    before = held()
    for words in COMMANDS:
        done = terminal.run(*words)
        said = (done.stdout + done.stderr).decode()
        assert done.returncode == 2 or words == ("check",), words
        assert told in said, (words, said)
        assert "Traceback" not in said
    assert held() == before


@pytest.mark.slow
async def test_a_login_is_not_begun_anew_beside_its_keys(
    person: NewPerson, bot: NewBot, room: NewRoom
) -> None:
    """F-055: the file of a login that is missing or cut, and keys that are empty; put back, it goes on.

    After a logout, those who wrote meanwhile hear that it could not be read.
    """
    ann = await person("ann")
    daemon = await bot(ann)
    chat = await room(ann, daemon, encrypted=True)
    folder = daemon.data / "matrix"
    session, [store] = folder / "session.json", folder.glob("@*.db")
    for file, content, told in [
        (session, None, "session.json is missing: put it back"),
        (session, b"{", "session.json cannot be read"),
        (store, b"", f"{store.name} is empty, but the homeserver has keys"),
    ]:
        await daemon.stop()
        whole = file.read_bytes()
        file.unlink()
        if content is not None:
            file.write_bytes(content)
        await daemon.start(ready=False)
        assert await daemon.ended() == 2
        assert told in daemon.log[-1]
        _, checked = await daemon.command("check")
        assert told in checked
        _, stated = await daemon.command("status", "--all")
        assert told.partition(":")[0].partition(",")[0] in stated
        file.write_bytes(whole)
        await daemon.start()
    await daemon.stop()
    key = (folder / MARKS).rename(folder / "moved")
    for verb in ("check", "status"):
        assert f"{MARKS} is missing: restore it" in (await daemon.command(verb))[1]
    key.rename(folder / MARKS)
    assert (await daemon.command("matrix", "logout"))[0] == 0
    await ann.send(chat, "nobody can read this")
    await daemon.start()
    await ann.wait_for(chat, lambda m: m.body.startswith("My encryption keys were lost"))
    await ann.send(chat, "hello")
    await ann.wait_for(chat, lambda m: m.body == "echo: hello")
