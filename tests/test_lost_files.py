"""Databases, logins and keys that are empty, cut, missing, foreign or of another time: nothing is begun anew."""

import shutil
import sqlite3  # noqa: TID251  other programs' files, made from outside
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.world.scene import NewBot, NewPerson, NewRoom
from tests.world.terminal import Terminal
from wintermute.db import driver
from wintermute.db.database import shipped_migrations
from wintermute.db.migrate import migrate
from wintermute.matrix.signing import MARKS
from wintermute.memory.flat_file import GENERATED

COMMANDS = [("memory", "list"), ("memory", "add", "Anna moved to Lyon."), ("status",), ("check",)]


def older(path: Path) -> None:
    """A database as an earlier version left it."""
    path.unlink(missing_ok=True)
    connection = driver.connect(path, read_only=False)
    migrate(connection, path, [step for step in shipped_migrations() if step.number <= 19])
    connection.close()


@pytest.mark.parametrize("begin", [older, lambda path: path.unlink(missing_ok=True)])
def test_ten_commands_at_once_all_store_what_they_were_given(
    terminal: Terminal, begin: Callable[[Path], None]
) -> None:
    """F-054: in a folder without a database, and in one of an earlier version."""
    path = terminal.data / "wintermute.db"
    begin(path)
    was_there = path.exists()
    with ThreadPoolExecutor(10) as pool:
        list(pool.map(lambda n: terminal.says("memory", "add", f"fact number {n}"), range(10)))
    assert len(terminal.says("memory", "list").splitlines()) == 10
    copies = list(terminal.data.glob("wintermute.db.before-*"))
    assert [copy.name for copy in copies] == ["wintermute.db.before-0020"] * was_there
    for copy in copies:
        assert sqlite3.connect(copy).execute("PRAGMA user_version").fetchone() == (19,)


def test_a_copy_from_before_an_upgrade_is_not_replaced(terminal: Terminal) -> None:
    """F-054: it is what somebody may go back to."""
    older(terminal.data / "wintermute.db")
    copy = terminal.data / "wintermute.db.before-0020"
    copy.write_text("the first")
    terminal.says("memory", "list")
    assert copy.read_text() == "the first"


def empty(data: Path) -> None:
    (data / "wintermute.db").write_bytes(b"")
    (data / "MEMORIES.txt").write_text(f"{GENERATED}\nAnna likes tea.\n")


def missing(data: Path) -> None:
    (data / "scopes" / "person:@bob:example.org").mkdir(parents=True)


def without_database(data: Path) -> None:
    (data / "matrix").mkdir()
    (data / "matrix" / "@bot:example.org_ABC.db").write_bytes(b"keys")


def foreign(data: Path, version: int = 0) -> None:
    with sqlite3.connect(data / "wintermute.db") as connection:
        connection.execute("CREATE TABLE recipes (name TEXT)")
        connection.execute(f"PRAGMA user_version={version}")
    connection.close()


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
        (foreign, "some other program's database"),
        (lambda data: foreign(data, 7), "some other program's database"),
        (lambda data: foreign(data, 70_000), "some other program's database"),
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

    def held() -> dict[str, bytes]:
        files = (path for path in terminal.data.rglob("*") if path.is_file())
        return {path.name: path.read_bytes() for path in files if not path.name.endswith("-shm")}

    before = held()
    for words in COMMANDS:
        done = terminal.run(*words)
        said = (done.stdout + done.stderr).decode()
        assert done.returncode != 0, words
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
