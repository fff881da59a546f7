"""The half of the daemon that sends, on a real homeserver, without the rest of it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from tests.world.clock import WITHIN, FakeClock
from tests.world.homeserver import Homeserver
from tests.world.schema import open_migrated
from wintermute.config.schema import Matrix
from wintermute.db import Database
from wintermute.errors import HomeserverUnavailable
from wintermute.ids import new_id
from wintermute.loom.conversations import Conversations
from wintermute.mailbox.outbox import LateNote, Outbox
from wintermute.matrix.client import MatrixClient, open_client
from wintermute.matrix.drafts import Drafts
from wintermute.matrix.inbox import Policy
from wintermute.matrix.kept_login import Session
from wintermute.matrix.outbox import Sender
from wintermute.matrix.people import People
from wintermute.matrix.rollback import RollbackDetection
from wintermute.owner import Owner
from wintermute.stores import Stores

T = TypeVar("T")
DONE, SNOOZE, TOMORROW, CANCEL = SIGNS = (
    "\N{WHITE HEAVY CHECK MARK}",
    "\N{SLEEPING SYMBOL}",
    "\N{ALARM CLOCK}",
    "\N{CROSS MARK}",
)
ANN = "@ann:test"
NOBODY = Policy(Owner(""), frozenset(), frozenset(), mention_in_groups=True, commands=frozenset())


class AtOnce(ThreadPoolExecutor):
    """Runs on the thread that asks: nio binds its models to one database for the whole process, so
    ours must not open its own on another thread while a person's is at work.
    """

    def submit(self, call: Callable[..., T], /, *args: Any, **named: Any) -> Future[T]:
        ended: Future[T] = Future()
        ended.set_result(call(*args, **named))
        return ended


async def listening(client: MatrixClient, token: str) -> None:
    """The half that hears who is in the rooms."""
    while True:
        try:
            token = (await client.sync(token, full_state=False, wait_s=30)).next_batch
        except HomeserverUnavailable:
            await asyncio.sleep(0.05)


@dataclass
class Post:
    """The half of the daemon that sends, on a database and a key store that outlive it."""

    database: Database
    clock: FakeClock
    client: MatrixClient
    outbox: Outbox
    conversations: Conversations
    sender: Sender

    async def say(self, room: str, body: str, late: LateNote | None = None) -> None:
        """Something for a room."""
        async with self.database.transaction() as tx:
            conversation = await self.conversations.in_room(tx, room, "room")
            await self.outbox.enqueue(tx, conversation, body, kind="event", late=late, meant_for="")
        self.sender.wake()

    async def react(self, room: str, event_id: str, *and_say: str) -> None:
        """The signs on an event, and something else to say in the same transaction."""
        async with self.database.transaction() as tx:
            conversation = await self.conversations.in_room(tx, room, "room")
            await self.outbox.react(tx, conversation, room, event_id, SIGNS)
            for body in and_say:
                await self.outbox.enqueue(tx, conversation, body, kind="event", meant_for="")
        self.sender.wake()

    async def rows(self, sql: str) -> list[tuple[object, ...]]:
        return [tuple(row) for row in await self.database.rows(sql)]  # type: ignore[arg-type]  # a row is a sequence too


@dataclass
class Sending:
    """Starts the half of the daemon that sends, each time on what the last one left."""

    homeserver: Homeserver
    url: str
    name: str
    folder: Path
    clock: FakeClock = field(default_factory=FakeClock)

    def __post_init__(self) -> None:
        self._login = self.homeserver.user(self.name)

    @property
    def user_id(self) -> str:
        """Who it is in its rooms."""
        return self._login.user_id

    def log_in_again(self) -> None:
        """On a new device, without the keys of the old one."""
        self._login = self.homeserver.login(self.name)

    @asynccontextmanager
    async def __call__(
        self, room: str, *, encrypted: bool = False, kind: type[Outbox] = Outbox
    ) -> AsyncIterator[Post]:
        """Send in a room; what is on its way when the block ends is not waited for."""
        login, clock = self._login, self.clock
        session = Session(login.user_id, login.device_id, login.access_token, "secret")
        matrix = Matrix(homeserver=self.url, user_id=login.user_id, owner=ANN)
        asyncio.get_running_loop().set_default_executor(AtOnce())
        async with (
            open_migrated(self.folder / "test.db") as database,
            open_client(matrix, session, self.folder, new_id, clock, People()) as client,
            asyncio.TaskGroup() as group,
        ):
            stores = Stores.of(database, self.folder, Owner(ANN), clock, new_id, timezone="UTC")
            stores = replace(stores, outbox=kind(database, clock, new_id))
            async with database.transaction() as tx:
                await stores.known.store_room(tx, room, encrypted)
            await client.join(room)
            batch = await client.sync(None, full_state=True, wait_s=0)
            await client.upkeep()
            copies = RollbackDetection(client, database, clock, new_id)
            sender = Sender(client, stores, copies, clock, NOBODY, Drafts(clock, shows=True))
            running = [group.create_task(sender.run())]
            running.append(group.create_task(listening(client, batch.next_batch)))
            yield Post(database, clock, client, stores.outbox, stores.conversations, sender)
            for task in running:
                task.cancel()


async def happens(event: asyncio.Event) -> None:
    """Wait for what a hook of the proxy sees."""
    async with asyncio.timeout(WITHIN):
        await event.wait()
