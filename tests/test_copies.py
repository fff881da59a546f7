"""The value by which a copy is noticed: at the homeserver, in the database and beside the keys (F-009)."""

import asyncio
import shutil
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest
from peewee import SqliteDatabase

from tests.world.bot import Bot, Json
from tests.world.clock import FakeClock
from tests.world.copied import RESTORED, counted_messages, noticed, talk
from tests.world.homeserver import Homeserver
from tests.world.killing import kill_at_send
from tests.world.model import ModelServer
from tests.world.proxy import Action, Answer, Proxy, Request, pass_before
from tests.world.scene import NewName, Scene
from tests.world.schema import open_migrated
from tests.world.warm import Interpreter
from wintermute.config.schema import Matrix
from wintermute.errors import HomeserverUnavailable, KeyStoreBlocked
from wintermute.ids import new_id
from wintermute.matrix.client import MatrixClient, open_client
from wintermute.matrix.kept_login import Session, load
from wintermute.matrix.key_store import MOST_EPOCHS, classify_epoch, newest_in, value_in
from wintermute.matrix.people import People
from wintermute.matrix.rollback import ACTIVE_SECONDS, RollbackDetection, RollbackStore

OURS, OTHER = "epoch_0123456789abcdef", "epoch_fedcba9876543210"
BEFORE, AFTER = "executing", "operation"
PART = "/account_data/dev.wintermute.epoch."


@pytest.mark.parametrize(
    ("served", "here", "beside_keys", "expected"),
    [
        ("", (), (), "none"),
        ("", (OURS,), (OURS,), "none"),
        (OURS, (OURS, OTHER), (OURS,), "ours"),
        (OURS, (OURS,), None, "ours"),
        (OURS, (), (), "foreign"),
        (OURS, (OURS,), (OTHER,), "foreign"),
        (OURS, (OTHER,), (OURS,), "foreign"),
        (OURS, (OTHER,), None, "foreign"),
    ],
)
def test_a_value_is_ours_when_both_files_know_it(
    served: str, here: tuple[str, ...], beside_keys: tuple[str, ...] | None, expected: str
) -> None:
    """F-009: the two are copied apart; without encryption there is one."""
    kept = None if beside_keys is None else frozenset(beside_keys)
    assert classify_epoch(served, frozenset(here), kept) == expected


@pytest.mark.parametrize(
    "content",
    [
        None,
        [],
        "epoch",
        {},
        {"epoch": None},
        {"epoch": [OURS]},
        {"epoch": {"epoch": OURS}},
        {"epoch": 7},
        {"epoch": OURS + "\n"},
        {"epoch": OURS.upper()},
        {"epoch": "x" * 10_000},
    ],
)
def test_account_data_that_is_not_ours_is_none(content: object) -> None:
    """F-009: also in a sync, beside that of other devices."""
    assert value_in(content) == ""
    name = "dev.wintermute.epoch.DEVICE"
    assert (
        newest_in({"account_data": {"events": [{"type": name, "content": content}]}}, "D") is None
    )
    events = [
        7,
        {"type": name, "content": content},
        {"type": name, "content": {"epoch": OURS}},
        {"type": f"{name}2", "content": {"epoch": OTHER}},
    ]
    assert newest_in({"account_data": {"events": events}}, name) == {"epoch": OURS}
    assert newest_in({"account_data": content}, name) is None


@dataclass(frozen=True, slots=True)
class Strike:
    """Where to die while the value changes: at a statement, or around the request."""

    logger: str = ""
    steps: tuple[tuple[str, str], ...] = ()
    request: str = ""


STRIKES = {
    "before-the-keys-have-it": Strike("peewee", ((BEFORE, "INSERT OR IGNORE INTO wintermute_n"),)),
    "before-the-database-has-it": Strike("aiosqlite", ((BEFORE, "INSERT INTO epochs"),)),
    "before-it-is-committed": Strike(
        "aiosqlite", ((BEFORE, "INSERT INTO epochs"), (BEFORE, "COMMIT"))
    ),
    "before-the-homeserver-has-it": Strike(request="before"),
    "after-the-homeserver-has-it": Strike(request="after"),
}


@pytest.mark.slow
@pytest.mark.parametrize("strike", STRIKES.values(), ids=STRIKES)
async def test_who_is_killed_while_the_value_changes_is_no_copy(
    scene: Scene, strike: Strike, proxy: Proxy
) -> None:
    """F-009: nor is who is simply started again."""
    ann, daemon, chat = await scene.direct(encrypted=True, via=proxy.url)
    await talk(ann, chat, "one")
    assert await daemon.stop() == 0
    if strike.request:
        kill_at_send(proxy, daemon, 1, strike.request, PART)
    steps = [list(step) for step in strike.steps]
    trigger: Json | None = {"logger": strike.logger, "steps": steps} if steps else None
    await daemon.start(trigger, ready=False)
    assert await daemon.ended() == -signal.SIGKILL
    for _ in range(2):
        await daemon.start()
        await talk(ann, chat, f"{daemon.pid}")
        assert await daemon.stop() == 0
    assert noticed(daemon) == 0
    assert not [text for text in await counted_messages(ann, chat, daemon) if RESTORED in text]


@pytest.mark.slow
async def test_an_old_value_or_garbage_is_replaced_and_nobody_is_told(
    scene: Scene, homeserver: Homeserver
) -> None:
    """F-009: a late write landed, the homeserver went back, or somebody wrote there by hand."""
    ann, daemon, chat = await scene.direct(encrypted=True)
    first = served(homeserver, daemon)
    for content in (first, {"epoch": [1]}, {"epoch": "x" * 50_000}, {}):
        assert await daemon.stop() == 0
        serve(homeserver, daemon, content)
        await daemon.start()
        assert value_in(served(homeserver, daemon)) not in ("", first["epoch"])
    serve(homeserver, daemon, first)
    await talk(ann, chat, "hello")
    assert noticed(daemon) == 0


@pytest.mark.slow
async def test_a_second_foreign_value_ends_the_daemon_and_the_next_start_goes_on(
    scene: Scene, homeserver: Homeserver
) -> None:
    """F-009: somebody else speaks with the same keys."""
    ann, daemon, chat = await scene.direct(encrypted=True)
    await talk(ann, chat, "one")
    before = value_in(served(homeserver, daemon))
    serve(homeserver, daemon, {"epoch": OURS})
    await daemon.logged("restore or second copy detected")
    await talk(ann, chat, "two")
    assert value_in(served(homeserver, daemon)) not in (before, OURS)
    assert "make sure that only one runs" in (await daemon.command("status", "--all"))[1]
    serve(homeserver, daemon, {"epoch": OTHER})
    assert await daemon.ended() == 2
    assert "Stop one copy" in daemon.log[-1]

    await daemon.start()
    await talk(ann, chat, "three")
    assert not [text for text in await counted_messages(ann, chat, daemon) if RESTORED in text]


@pytest.mark.slow
async def test_a_copy_that_starts_at_the_same_time_is_noticed_by_the_first_sync(
    scene: Scene, homeserver: Homeserver, proxy: Proxy
) -> None:
    """F-009: it put its value there after ours, and before we heard anything."""
    ann, daemon, chat = await scene.direct(encrypted=True, via=proxy.url)
    await talk(ann, chat, "one")
    assert await daemon.stop() == 0

    def put_between(request: Request) -> Action:
        if request.path.endswith("/sync"):
            proxy.before = pass_before
            serve(homeserver, daemon, {"epoch": OTHER})
        return None

    proxy.before = put_between
    await daemon.start()
    await daemon.logged("restore or second copy detected")
    assert value_in(served(homeserver, daemon)) != OTHER
    await talk(ann, chat, "two")


def place(daemon: Bot) -> tuple[str, str]:
    """Where the value stands at the homeserver, and the token with which it is written."""
    session = load(daemon.data / "matrix")
    assert session is not None
    kind = f"dev.wintermute.epoch.{session.device_id}"
    return (f"/_matrix/client/v3/user/{session.user_id}/account_data/{kind}", session.access_token)


def served(homeserver: Homeserver, daemon: Bot) -> Json:
    path, token = place(daemon)
    return homeserver.request("GET", path, token=token)


def serve(homeserver: Homeserver, daemon: Bot, content: Json) -> None:
    path, token = place(daemon)
    homeserver.request("PUT", path, content, token)


@pytest.mark.slow
@pytest.mark.parametrize("at_once", [False, True], ids=["one-after-the-other", "at-once"])
async def test_of_two_daemons_on_copies_of_one_folder_the_one_that_stays_hears_everybody(
    scene: Scene, python: Interpreter, *, at_once: bool
) -> None:
    """F-009: the other ends with a line that helps, before anybody has a session with it."""
    ann, daemon, chat = await scene.direct(encrypted=True)
    await talk(ann, chat, "one")
    if at_once:
        assert await daemon.stop() == 0
    twin = daemon.config.parent.with_name("twin")
    shutil.copytree(daemon.config.parent, twin)
    other = Bot(twin / "config.yaml", python)
    try:
        starts = (daemon.start(), other.start()) if at_once else (other.start(),)
        await asyncio.gather(*starts)
        ended = daemon if await first_to_end(daemon, other) else other
        assert await ended.ended() == 2
        assert "Stop one copy" in ended.log[-1]
        for text in ("two", "three"):
            await talk(ann, chat, text)
    finally:
        if other.running:
            await other.stop()


@pytest.mark.slow
async def test_another_copy_shows_in_the_rooms_where_no_value_can_be_kept(
    scene: Scene, python: Interpreter, proxy: Proxy
) -> None:
    """F-009: by an event with our mark that we never promised."""
    ann = await scene.person("ann")
    proxy.before = lambda r: Answer(403, {"errcode": "M_FORBIDDEN"}) if PART in r.path else None
    daemon = await scene.bot(ann, via=proxy.url)
    chat = await scene.room(ann, daemon)
    await talk(ann, chat, "one")
    twin = daemon.config.parent.with_name("twin")
    shutil.copytree(daemon.config.parent, twin)
    async with Bot(twin / "config.yaml", python):
        await talk(ann, chat, "two")
        await daemon.logged("restore or second copy detected")
    await talk(ann, chat, "three")
    assert noticed(daemon) == 1
    assert "make sure that only one runs" in (await daemon.command("status", "--all"))[1]


async def first_to_end(daemon: Bot, other: Bot) -> bool:
    """Wait until one of two has logged that there is another; whether it was the first."""
    await daemon.until(lambda: any("Stop one copy" in line for line in daemon.log + other.log))
    return any("Stop one copy" in line for line in daemon.log)


@pytest.mark.slow
async def test_a_homeserver_restored_to_an_older_state_makes_no_copy_of_us(
    blank: Path, python: Interpreter, fresh: NewName, model: ModelServer, tmp_path: Path
) -> None:
    """F-009: nobody is told anything, and everything goes on."""
    with Homeserver(tmp_path / "synapse", database=blank) as server:
        async with Scene(server, python, fresh, tmp_path, model.url) as scene:
            ann, daemon, chat = await scene.direct(encrypted=False)
            await talk(ann, chat, "one")
            server.stop()
            shutil.copy(tmp_path / "synapse" / "homeserver.db", tmp_path / "older.db")
            server.start()
            await daemon.restart()
            await talk(ann, chat, "two")
            assert await daemon.stop() == 0
            server.stop()
            for file in (tmp_path / "synapse").glob("homeserver.db*"):
                file.unlink()
            shutil.copy(tmp_path / "older.db", tmp_path / "synapse" / "homeserver.db")
            server.start()
            await daemon.start()
            await talk(ann, chat, "three")
            assert noticed(daemon) == 0


@dataclass(frozen=True, slots=True)
class Watch:
    """The part of a daemon that keeps the value new, with a clock that jumps."""

    client: MatrixClient
    copies: RollbackDetection
    store: RollbackStore
    clock: FakeClock
    proxy: Proxy

    def asked(self) -> list[str]:
        """What was asked of the homeserver about the value."""
        return [r.method for r in self.proxy.requests if PART in r.path]


@pytest.fixture
async def watch(
    homeserver: Homeserver, proxy: Proxy, fresh: NewName, tmp_path: Path
) -> AsyncIterator[Watch]:
    login, clock = homeserver.user(fresh("bot")), FakeClock()
    session = Session(login.user_id, login.device_id, login.access_token, "secret")
    matrix = Matrix(homeserver=proxy.url, user_id=login.user_id, owner="@ann:test")
    async with (
        open_migrated(tmp_path / "test.db") as database,
        open_client(matrix, session, tmp_path, new_id, clock, People()) as client,
    ):
        store = RollbackStore(database, clock)
        yield Watch(client, RollbackDetection(client, database, clock, new_id), store, clock, proxy)


async def test_the_value_changes_at_the_start_and_before_the_first_message_of_ten_active_minutes(
    watch: Watch,
) -> None:
    """F-009: nothing while idle, and one small request for all that is said meanwhile."""
    await watch.copies.check_at_start()
    await watch.copies.check_at_start()
    assert watch.asked() == ["GET", "PUT"]
    for _ in range(3):
        await watch.copies.before_sending(encrypted=True)
    assert watch.asked() == ["GET", "PUT"]
    watch.clock.advance(ACTIVE_SECONDS)
    assert watch.asked() == ["GET", "PUT"]
    for _ in range(3):
        await watch.copies.before_sending(encrypted=True)
    assert watch.asked() == ["GET", "PUT", "PUT"]
    assert len(await watch.store.values(watch.client.account.device_id)) == 2
    assert watch.client.epochs.beside_keys == await watch.store.values(
        watch.client.account.device_id
    )


@pytest.mark.slow
async def test_an_outage_makes_no_new_values_and_the_last_thousand_are_known(watch: Watch) -> None:
    """F-009: what is pending is offered again."""
    await watch.copies.check_at_start()
    device = watch.client.account.device_id
    [first] = await watch.store.values(device)
    await watch.proxy.down()
    watch.clock.advance(ACTIVE_SECONDS)
    for _ in range(3):
        with pytest.raises(HomeserverUnavailable):
            await watch.copies.before_sending(encrypted=True)
    await watch.proxy.up()
    await watch.copies.before_sending(encrypted=True)
    assert len(await watch.store.values(device)) == 2
    for _ in range(MOST_EPOCHS - 2):
        value = new_id("epoch")
        watch.client.epochs.store_beside_keys(value)
        await watch.store.add(device, value)
    assert first in await watch.store.values(device)
    await watch.copies.renew_epoch()
    known = await watch.store.values(device)
    assert (len(known), first in known) == (MOST_EPOCHS, False)
    assert watch.client.epochs.beside_keys == known


@contextmanager
def read_by_others(client: MatrixClient) -> Iterator[None]:
    """Another program reads the key store, as a backup job does: nobody can commit."""
    client._nio.store.database.timeout = 0.01
    backup = SqliteDatabase(client._nio.store.database_path)
    backup.begin()
    backup.execute_sql("SELECT count(*) FROM sqlite_schema").fetchall()
    try:
        yield
    finally:
        backup.rollback()
        backup.close()


async def test_only_what_is_encrypted_waits_for_a_key_store_that_is_blocked(
    watch: Watch, caplog: pytest.LogCaptureFixture
) -> None:
    """F-007, F-009: also ten minutes later; the value changes before the next encrypted message."""
    for expected in (["GET"], ["GET", "PUT"]):
        with read_by_others(watch.client):
            for _ in range(2):
                await watch.copies.check_at_start()
                await watch.copies.before_sending(encrypted=False)
                with pytest.raises(KeyStoreBlocked, match="let the program that has locked it end"):
                    await watch.copies.before_sending(encrypted=True)
            assert watch.asked() == expected
            assert "database is locked" in watch.client.keys.store.trouble
        await watch.copies.before_sending(encrypted=True)
        assert watch.asked() == [*expected, "PUT"]
        assert watch.client.keys.store.trouble == ""
        watch.clock.advance(ACTIVE_SECONDS)
    assert len([r for r in caplog.records if "key store blocked" in r.getMessage()]) == 2


async def test_what_a_start_could_not_keep_is_made_up_for(watch: Watch) -> None:
    """F-009: by the next round, not only when something is said."""
    with read_by_others(watch.client):
        await watch.copies.check_at_start()
    await watch.client.upkeep()
    await watch.copies.check_at_start()
    assert watch.asked() == ["GET", "GET", "PUT"]


async def test_nothing_is_sealed_or_heard_by_a_copy_whose_key_store_is_blocked(
    watch: Watch,
) -> None:
    """F-007, F-009: it is noticed first, however long that takes."""
    await watch.copies.check_at_start()
    epochs, renewal = watch.client.epochs, watch.client.keys.rotation
    await epochs.upload(OTHER)
    again = RollbackDetection(watch.client, watch.copies._database, watch.clock, new_id)
    with read_by_others(watch.client):
        for _ in range(2):
            with pytest.raises(KeyStoreBlocked):
                await again.check_at_start()
            assert renewal.is_due
            session = SimpleNamespace(id="begun before", use_time=0)
            watch.client._nio.olm.session_store.add("curve", session)
            assert renewal.session("curve") is None
            with pytest.raises(KeyStoreBlocked):
                await watch.client.upkeep()
    await again.check_at_start()
    assert renewal.is_due
    assert await epochs.fetch() not in ("", OTHER)
