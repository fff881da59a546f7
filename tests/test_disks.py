"""Disks that are full, locked or spoilt: we wait and say so, nothing is lost, nobody reads a traceback."""

import asyncio
import os
import resource
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path

import pytest

from tests.world.bot import Bot, bare_settings, said
from tests.world.clock import promptly
from tests.world.copied import talk
from tests.world.logins import expire
from tests.world.model import ModelServer, Slow, Text
from tests.world.proxy import Answer, Proxy, pass_before
from tests.world.scene import NewBot, NewPerson, NewRoom
from tests.world.terminal import Terminal
from tests.world.warm import Interpreter
from wintermute.db import LONGEST_LOG, open_database
from wintermute.matrix.outbox import KEPT_BACK

HOLD = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=60)
connection.execute(f"BEGIN {sys.argv[2]}")
connection.execute("SELECT count(*) FROM sqlite_schema").fetchall()
print("held", flush=True)
sys.stdin.read()
"""
GATEWAY = Answer(502, b"<html>")
pytestmark = pytest.mark.skipif(
    not hasattr(resource, "prlimit"), reason="limits of a process that runs"
)


@asynccontextmanager
async def locked(file: Path, how: str = "IMMEDIATE") -> AsyncIterator[None]:
    """Another process has a database, as a backup job may, until the block is left.

    `how`: IMMEDIATE writes, EXCLUSIVE lets nobody read, DEFERRED only reads.
    """
    words = (sys.executable, "-c", HOLD, str(file), how)
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*words, stdin=pipe, stdout=pipe)
    assert process.stdin is not None
    assert process.stdout is not None
    assert await process.stdout.readline() == b"held\n"
    try:
        yield
    finally:
        process.stdin.close()
        await process.wait()


@asynccontextmanager
async def full(daemon: Bot) -> AsyncIterator[None]:
    """No file of a process can be written to."""
    resource.prlimit(daemon.pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    try:
        yield
    finally:
        if daemon.running:
            limits = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
            resource.prlimit(daemon.pid, resource.RLIMIT_FSIZE, limits)


def key_store(daemon: Bot) -> Path:
    [file] = (daemon.data / "matrix").glob("@*.db")
    return file


def log_lines(daemon: Bot, text: str) -> list[str]:
    return [line for line in daemon.log if text in line]


def has_kept_calm(daemon: Bot, pid: int) -> bool:
    return daemon.pid == pid and daemon.running and not log_lines(daemon, "Traceback")


@pytest.mark.slow
@pytest.mark.parametrize("killed", [False, True])
async def test_a_full_disk_is_waited_for(
    person: NewPerson, bot: NewBot, room: NewRoom, model: ModelServer, killed: bool
) -> None:
    """F-008: in one line, by the same process, with an answer under way and one that comes."""
    ann = await person("ann")
    daemon = await bot(ann)
    pid, chat, gate = daemon.pid, await room(ann, daemon), asyncio.Event()
    model.script(Slow(gate, Text("never heard")))
    await ann.send(chat, "hello")
    await model.request_arrived(1)
    async with full(daemon):
        gate.set()
        await daemon.logged("waits until it can be written")
        await ann.send(chat, "more")
        await asyncio.sleep(5)  # an attempt more
        if killed:
            await daemon.kill()
    if killed:
        await daemon.start()
    await ann.wait_for(chat, lambda m: m.body == "echo: more")
    assert await said(ann, chat, daemon.user_id) == ["echo: hello", "echo: more"]
    assert killed or has_kept_calm(daemon, pid)
    [told] = log_lines(daemon, "waits until it can be written")
    assert "make room on its disk" in told


@pytest.mark.slow
async def test_a_database_is_waited_for_however_long(
    person: NewPerson, bot: NewBot, room: NewRoom
) -> None:
    """F-008: several attempts; by one attempt more or less nothing changes (run once with 75 s)."""
    ann = await person("ann")
    daemon = await bot(ann)
    pid, chat = daemon.pid, await room(ann, daemon)
    began = len(daemon.log)
    async with locked(daemon.data / "wintermute.db"):
        await ann.send(chat, "hello")
        await asyncio.sleep(5)
    await ann.wait_for(chat, lambda m: m.body == "echo: hello")
    assert has_kept_calm(daemon, pid)
    assert len([line for line in daemon.log[began:] if " WARNING " in line]) == 1


@pytest.mark.slow
async def test_a_daemon_ends_while_its_database_is_locked(
    person: NewPerson, bot: NewBot, room: NewRoom, model: ModelServer
) -> None:
    """F-008: within the 20 seconds of a stop, also with an answer under way; it is given later."""
    ann = await person("ann")
    daemon = await bot(ann)
    chat = await room(ann, daemon)
    gate = asyncio.Event()
    model.script(Slow(gate, Text("never heard")))
    await ann.send(chat, "hello")
    await model.request_arrived(1)
    async with locked(daemon.data / "wintermute.db"):
        await ann.send(chat, "more")
        await daemon.logged("database locked by another program")
        for command in ("status", "check"):
            code, told = await daemon.command(command)
            assert (code, "let the program that holds it end" in told) == (1, True)
        async with promptly(20):
            assert await daemon.stop() == 0
    assert not log_lines(daemon, "Traceback")
    await daemon.start()
    await ann.wait_for(chat, lambda m: m.body == "echo: more")
    assert await said(ann, chat, daemon.user_id) == ["echo: hello", "echo: more"]


async def test_a_corrupt_database_is_found_before_the_first_login(
    python: Interpreter, tmp_path: Path
) -> None:
    """F-008, issue 14 point 6: nobody has to wait for a homeserver that is away to be told."""
    config = bare_settings(tmp_path / "bot")
    (tmp_path / "bot" / "data" / "wintermute.db").write_bytes(b"no database" * 1000)
    await Bot(config, python).command("--help")  # what the tests start commands with is warm then
    async with promptly(2):
        code, told = await Bot(config, python).command("run")
    assert (code, told.count("\n")) == (2, 1)
    assert "move the file aside" in told


@pytest.mark.slow
@pytest.mark.parametrize("killed", [False, pytest.param(True, marks=pytest.mark.slow)])
async def test_a_key_that_cannot_be_stored_is_not_lost(
    person: NewPerson, bot: NewBot, room: NewRoom, killed: bool
) -> None:
    """F-007: a backup job holds the key store while the key of a new session comes."""
    ann = await person("ann")
    daemon = await bot(ann)
    pid = daemon.pid
    old, new = [await room(ann, daemon, encrypted=True) for _ in range(2)]
    await talk(ann, old, "old")  # by then that the new room is encrypted is stored
    async with locked(key_store(daemon)):
        await ann.send(old, "no key needed")
        await ann.wait_for(old, lambda m: m.body == "echo: no key needed")
        await ann.send(new, "new")
        await daemon.logged("key store blocked")
        await ann.send(new, "newer")
        await daemon.until(lambda: bool(keys_of(daemon, "fail")))
        for verb in ("status", "check"):
            told = (await daemon.command(verb))[1].splitlines()
            [line] = [line for line in told if line.startswith("fail  keys")]
            assert "let the program that has locked it end" in line
        if killed:
            await daemon.kill()
    if killed:
        await daemon.start()
    await ann.wait_for(new, lambda m: m.body == "echo: newer")
    assert await said(ann, new, daemon.user_id) == ["echo: new", "echo: newer"]
    assert killed or has_kept_calm(daemon, pid)
    assert len(log_lines(daemon, "key store blocked")) == 1
    await daemon.until(lambda: bool(keys_of(daemon, "ok")))
    await ann.send(new, "still")
    await ann.wait_for(new, lambda m: m.body == "echo: still")


@pytest.mark.slow
async def test_who_came_in_is_known_although_no_key_can_be_stored(
    person: NewPerson, bot: NewBot, room: NewRoom, model: ModelServer, proxy: Proxy
) -> None:
    """F-003, F-007: answers that failed are tried again meanwhile, each in its room."""
    ann, eve = await person("ann"), await person("eve")
    daemon = await bot(ann, via=proxy.url)
    chat, other, new = [await room(ann, daemon, encrypted=n == 2) for n in range(3)]
    model.keyed(lambda seen: Text("you earn 4711 a month"))
    proxy.before = lambda request: GATEWAY if "/send/" in request.path else None
    for where in (chat, other):
        await ann.send(where, "what do I earn?")
    await daemon.until(lambda: len(daemon.rows("SELECT 1 FROM outbox")) == 2)
    async with locked(key_store(daemon)):
        await ann.send(new, "a key comes")
        await daemon.logged("key store blocked")
        await ann.invite(chat, eve.user_id)
        await eve.join(chat)
        await daemon.logged("readers changed")
        proxy.before = pass_before
        await ann.wait_for(chat, lambda m: m.body == KEPT_BACK)
        await ann.wait_for(other, lambda m: "4711" in m.body)
        assert keys_of(daemon, "fail")
    await ann.wait_for(new, lambda m: "4711" in m.body)
    assert not any("4711" in message.body for message in eve.messages(chat))


@pytest.mark.slow
@pytest.mark.parametrize("how", ["DEFERRED", "IMMEDIATE"])
async def test_plain_rooms_are_answered_although_no_epoch_can_be_kept(
    person: NewPerson, bot: NewBot, room: NewRoom, model: ModelServer, how: str
) -> None:
    """F-007, F-009: a backup job has the key store at a start; what is encrypted waits for it."""
    ann = await person("ann")
    daemon = await bot(ann)
    plain, sealed = [await room(ann, daemon, encrypted=encrypted) for encrypted in (False, True)]
    for chat in (plain, sealed):
        await talk(ann, chat, "one")
    assert await daemon.stop() == 0
    async with locked(key_store(daemon), how):
        await daemon.start()
        pid, began = daemon.pid, len(daemon.log)
        await ann.send(sealed, "sealed")
        await model.request_arrived(3)
        for text in ("two", "three"):
            await talk(ann, plain, text)
        await daemon.until(
            lambda: bool(daemon.rows("SELECT 1 FROM outbox WHERE state = 'waiting'"))
        )
        await daemon.until(lambda: bool(keys_of(daemon, "fail")))
        told = (await daemon.command("status", "--all"))[1].splitlines()
        [line] = [line for line in told if line.startswith("fail")]
        assert line.startswith("fail  keys")
        assert "let the program that has locked it end" in line
        assert await said(ann, sealed, daemon.user_id) == ["echo: one"]
    await ann.wait_for(sealed, lambda m: m.body == "echo: sealed")
    assert await said(ann, sealed, daemon.user_id) == ["echo: one", "echo: sealed"]
    assert await said(ann, plain, daemon.user_id) == [f"echo: {n}" for n in ("one", "two", "three")]
    assert has_kept_calm(daemon, pid)
    [warning] = [line for line in daemon.log[began - 5 :] if " WARNING " in line]
    assert "key store blocked" in warning


def keys_of(daemon: Bot, state: str) -> list[dict[str, object]]:
    return daemon.rows("SELECT 1 FROM health WHERE part = 'keys' AND state = ?", state)


@asynccontextmanager
async def exclusively(daemon: Bot) -> AsyncIterator[None]:
    """Not even to be read."""
    async with locked(key_store(daemon), "EXCLUSIVE"):
        yield


@asynccontextmanager
async def no_byte_left(daemon: Bot) -> AsyncIterator[None]:
    """The folder of the key store is a disk of its own, and full."""
    filler = daemon.data / "matrix" / "filler"
    with suppress(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)
    yield
    filler.unlink()


@pytest.mark.slow
@pytest.mark.parametrize("trouble", [exclusively, no_byte_left, full], ids=lambda f: f.__name__)
async def test_no_trouble_of_the_disk_loses_a_key(
    person: NewPerson,
    bot: NewBot,
    room: NewRoom,
    own_disk: Callable[[Path], None],
    trouble: Callable[[Bot], AbstractAsyncContextManager[None]],
) -> None:
    """F-007: what a new person's keys need is written again when it can be, both ways."""
    ann, bob = await person("ann"), await person("bob")
    daemon = await bot(ann, start=False, matrix={"allowed_users": [bob.user_id]})
    if trouble is no_byte_left:
        own_disk(daemon.data / "matrix")
    await daemon.start()
    pid = daemon.pid
    chats = [(who, await room(who, daemon, encrypted=True)) for who in (ann, bob)]
    known = "SELECT 1 FROM rooms WHERE encrypted"  # else its own database is blocked first
    await daemon.until(lambda: len(daemon.rows(known)) == len(chats))
    async with trouble(daemon):
        for who, chat in chats:
            await who.send(chat, "one")
        await daemon.logged("key store blocked")
        for who, chat in chats:
            await who.send(chat, "two")
        await asyncio.sleep(3)
    for who, chat in chats:
        await who.wait_for(chat, lambda m: m.body == "echo: two")
        assert await said(who, chat, daemon.user_id) == ["echo: one", "echo: two"]
    assert has_kept_calm(daemon, pid)
    await daemon.until(lambda: bool(keys_of(daemon, "ok")))


@pytest.mark.slow
@pytest.mark.parametrize("first", [True, False])
async def test_no_login_is_made_that_could_not_be_kept(
    person: NewPerson,
    bot: NewBot,
    room: NewRoom,
    proxy: Proxy,
    own_disk: Callable[[Path], None],
    first: bool,
) -> None:
    """F-008, F-011: a full disk at the first start, or when the homeserver wants another login."""
    ann = await person("ann")
    daemon = await bot(ann, start=False, via=proxy.url)
    own_disk(daemon.data / "matrix")
    if not first:
        await daemon.start()
    async with no_byte_left(daemon):
        if first:
            await daemon.start(ready=False)
        else:
            expire(proxy)
        await daemon.logged("waits until it can be written")
        assert len(proxy.seen("POST", "/login")) == (0 if first else 1)
    chat = await room(ann, daemon)
    await ann.send(chat, "hello")
    await ann.wait_for(chat, lambda m: m.body == "echo: hello")
    assert len({request.json.get("device_id") for request in proxy.seen("POST", "/login")}) == (
        1 if first else 2
    )
    assert has_kept_calm(daemon, daemon.pid)
    [told] = log_lines(daemon, "waits until it can be written")
    assert "make room on its disk" in told


@pytest.mark.slow
async def test_what_is_blocked_at_the_start_is_waited_for(
    person: NewPerson, bot: NewBot, room: NewRoom
) -> None:
    """F-007, F-008: no advice to restore a backup; it ends when asked, and starts when it can."""
    ann = await person("ann")
    daemon = await bot(ann)
    chat = await room(ann, daemon, encrypted=True)
    assert await daemon.stop() == 0
    await ann.send(chat, "hello")
    async with exclusively(daemon):
        await daemon.start(ready=False)
        await daemon.logged("waits until it can be written")
        assert "let the program that has locked it end" in daemon.log[-1]
        assert await daemon.stop() == 0
        await daemon.start(ready=False)
    await ann.wait_for(chat, lambda m: m.body == "echo: hello")
    assert not log_lines(daemon, "Traceback")


@pytest.mark.slow
async def test_a_command_beside_a_locked_database_gives_up(terminal: Terminal) -> None:
    """F-008: in one line that says what to do; nobody waits at a keyboard for ever."""
    added = "memory", "add", "Anna lives in Lyon"
    assert terminal.run(*added).returncode == 0
    async with locked(terminal.data / "wintermute.db"):
        done = await asyncio.to_thread(terminal.run, *added)
    told = done.stderr.decode()
    assert (done.returncode, told.count("\n")) == (1, 1)
    assert "let the program that holds it end, then try again" in told


async def test_a_log_that_a_reader_keeps_long_is_named_and_shrinks_again(
    terminal: Terminal,
) -> None:
    """F-068: with its file and its size, as long as somebody reads."""
    file = terminal.data / "wintermute.db"
    log = file.with_name("wintermute.db-wal")
    async with open_database(file) as database:
        async with locked(file, "DEFERRED"):
            terminal.says("memory", "add", "Has a dog")
            os.truncate(log, 65 << 20)  # what nobody could write back
            for command in ("check", "status"):
                assert f"{log} has 65 MB: " in terminal.run(command).stdout.decode()
        for name in ("x" * (5 << 20), "y"):  # more than a log is to hold, and the next change
            async with database.transaction() as tx:
                await tx.execute("INSERT INTO single_values (name, value) VALUES (?, 1)", (name,))
        assert log.stat().st_size <= LONGEST_LOG
