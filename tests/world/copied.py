"""An earlier copy of a daemon's data folder, put back as the README says."""

import asyncio
import shutil
import sqlite3  # noqa: TID251  a look from outside, with another library than the daemon's
import tempfile
from collections import Counter
from contextlib import closing
from pathlib import Path

from tests.world.bot import Bot, said
from tests.world.person import Person

RESTORED = "I was restored from a backup"


def copied(daemon: Bot, name: str = "copy") -> Path:
    """A copy of the data folder, as `cp -a` makes it."""
    copy = daemon.data.with_name(name)
    shutil.copytree(daemon.data, copy)
    return copy


async def copied_at_work(daemon: Bot, name: str = "copy") -> Path:
    """A copy, made with `cp` beside whatever runs; as often as it takes to get a sound one."""
    copy = daemon.data.with_name(name)
    while True:
        shutil.rmtree(copy, ignore_errors=True)
        done = await asyncio.create_subprocess_exec("cp", "-a", daemon.data, copy)
        if await done.wait() == 0 and _is_sound(copy):
            return copy


def _is_sound(folder: Path) -> bool:
    """Whether `check` would find the databases of a copy whole; they are looked at in another copy."""
    with tempfile.TemporaryDirectory() as place:
        files = [f for f in folder.rglob("*.db*") if f.suffix in (".db", ".db-wal", ".db-journal")]
        for file in files:
            shutil.copy(file, place)
        try:
            return all(map(_is_whole, Path(place).glob("*.db")))
        except sqlite3.DatabaseError:
            return False


def _is_whole(file: Path) -> bool:
    with closing(sqlite3.connect(file)) as connection:
        return connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def put_back(daemon: Bot, copy: Path) -> None:
    """The copy in the place of the data folder of a stopped daemon."""
    assert not daemon.running
    shutil.rmtree(daemon.data)
    shutil.copytree(copy, daemon.data)


def make_due(daemon: Bot) -> None:
    """The tasks of a stopped daemon fall due now; a second time in the same second, anew."""
    daemon.change(
        "UPDATE tasks SET rule_due = strftime('%Y-%m-%dT%H:%M:%f000+00:00', 'now')"
        " WHERE status = 'active'"
    )


async def talk(person: Person, chat: str, text: str) -> None:
    """Say something that is answered."""
    await person.send(chat, text)
    await person.wait_for(chat, lambda m: echoed(m.body) == text)


async def remind(person: Person, chat: str, content: str) -> None:
    """Ask for a reminder far from now."""
    await person.send(chat, f"/remind 2031-01-01 10:00 {content}")
    await person.wait_for(chat, lambda m: "I'll remind" in m.body and content in m.body)


def echoed(said: str) -> str:
    """Which message this answers; "" for anything else. What else the model was told stands before it."""
    return said.splitlines()[-1].rpartition(": ")[2] if said.startswith("echo: ") else ""


async def counted_messages(person: Person, chat: str, daemon: Bot) -> Counter[str]:
    """What the bot ever said in a room, and how often, oldest first."""
    return Counter(await said(person, chat, daemon.user_id))


def noticed(daemon: Bot) -> int:
    """How often these data were found to be a copy."""
    return len(daemon.rows("SELECT 1 FROM rollbacks"))
