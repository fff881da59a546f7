"""The bot's side of verifications in this process, with a homeserver that is a table and a clock that is held."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from tests.world.clock import WITHIN, HeldClock
from tests.world.keys import Device
from tests.world.phone import NEW, Phone
from tests.world.proxy import Action, Answer, Proxy, Request
from tests.world.schema import open_migrated
from wintermute.config.schema import Matrix, QuietHours
from wintermute.ids import new_id
from wintermute.mailbox.inbox import InboxRow
from wintermute.matrix.client import MatrixClient, open_client
from wintermute.matrix.inbox import Policy
from wintermute.matrix.kept_login import Session
from wintermute.matrix.people import People
from wintermute.matrix.sas import OutgoingMessages, Party
from wintermute.matrix.sync_response import VERIFICATION, VerificationMessage
from wintermute.matrix.verifications import Verifications
from wintermute.owner import Owner
from wintermute.stores import Stores

Json = dict[str, Any]
Said = tuple[str, str, Json]
ANN, BOB, EVE, BOT = "@ann:here", "@bob:here", "@eve:here", "@bot:here"
ROOM = "!room:here"
COLUMNS = ("txn_id", "user_id", "device_id", "room_id", "phase", "shown", "code")
POLICY = Policy(Owner(ANN), frozenset({ANN, BOB}), frozenset(), True, frozenset())


class Desk:
    """The bot's side without a daemon. `trouble` is what the homeserver answers instead."""

    def __init__(
        self, proxy: Proxy, client: MatrixClient, stores: Stores, clock: HeldClock
    ) -> None:
        self.clock = clock
        self.stores = stores
        self.client = client
        self.work = Verifications(client, stores, POLICY, clock)
        self.phones: dict[str, Device] = {}
        self.identities: Json = {}
        self.trouble: list[Answer] = []
        self.requests: list[Request] = []
        proxy.before = self._answer

    def _answer(self, request: Request) -> Action:
        if request.path.endswith("/keys/query"):
            devices = {device.user: {device.name: device.keys()} for device in self.phones.values()}
            return Answer(200, {"device_keys": devices, **self.identities})
        self.requests.append(request)
        return self.trouble.pop(0) if self.trouble else Answer(200, {"event_id": "$asked"})

    @property
    def said(self) -> list[Said]:
        """What went out: the type without its prefix, to whom or where, and the content."""
        return [said for request in self.requests for said in read(request)]

    @property
    def kinds(self) -> list[str]:
        """The types alone, with the code of what was cancelled."""
        return [" ".join(filter(None, (kind, c.get("code", "")))) for kind, _, c in self.said]

    def has_said(self, count: int) -> bool:
        """Whether so many messages went out."""
        return len(self.said) >= count

    async def hear(self, *messages: VerificationMessage) -> None:
        """A sync brings these."""
        async with self.stores.database.transaction() as tx:
            for message in messages:
                await self.work.accept(tx, message)

    async def until(self, true: Callable[[], bool]) -> None:
        """Wait until something went out."""
        async with asyncio.timeout(WITHIN):
            while not true():  # noqa: ASYNC110  what it looks at is not only ours
                await asyncio.sleep(0.002)

    async def settled(self) -> None:
        """Wait until nothing is under way."""
        await self.until(lambda: not self.work._open and self.work._begun.empty())

    async def rows(self) -> list[Json]:
        """What is shown at this machine."""
        rows = await self.stores.database.rows("SELECT * FROM verifications ORDER BY began_at")
        return [{name: row[name] for name in COLUMNS} for row in rows]

    async def phase(self, transaction_id: str = "$asked") -> str:
        """How far one has come, and why it ended."""
        return next(
            f"{row['phase']} {row['code']}".strip()
            for row in await self.rows()
            if row["txn_id"] == transaction_id
        )

    def message(
        self, kind: str, content: Json, user: str = ANN, room: str = "", transaction: str = "$asked"
    ) -> VerificationMessage:
        """Something a person says now."""
        sent_ms = int(self.clock.now().timestamp() * 1000)
        return VerificationMessage(kind, user, room, transaction, content, sent_ms)

    def phone(self, *, asks: bool = True, room: str = "", user: str = ANN, mac: str = NEW) -> Phone:
        """A person's client whose keys the homeserver has."""
        phone = Phone(asks, room, user, mac)
        device = Device(user, phone.device)
        self.phones[user] = device
        name = f"ed25519:{phone.device}"
        phone.keys = {name: device.plain()["keys"][name]}
        phone.bot = Party(BOT, "BOTDEVICE", self.client.device_key)
        return phone


def read(request: Request) -> Iterator[Said]:
    """The messages of a verification in a request."""
    if "/sendToDevice/" in request.path:
        kind = request.path.split("/")[5].removeprefix(VERIFICATION)
        for user, devices in request.json["messages"].items():
            yield from ((kind, f"{user} {device}", content) for device, content in devices.items())
    else:
        kind = request.path.split("/")[7].removeprefix(VERIFICATION)
        yield kind, request.path.split("/")[5], request.json


def command(desk: Desk) -> InboxRow:
    """`/verify` in the room."""
    now = desk.clock.now()
    return InboxRow(
        *(1, "$command", "conversation", ROOM, ANN, "ann", "owner", "command", "/verify"),
        *(True, "waiting", None, now, now),
    )


@asynccontextmanager
async def at_desk(
    folder: Path, proxy: Proxy, clock: HeldClock, quiet: QuietHours | None = None
) -> AsyncIterator[Desk]:
    """One run of the bot; the next in the same folder finds what it left."""
    matrix = Matrix(homeserver=proxy.url, user_id=BOT, owner=ANN)
    session = Session(BOT, "BOTDEVICE", "token", "a pickle key")
    async with (
        open_migrated(folder / "wintermute.db") as database,
        open_client(matrix, session, folder, new_id, clock, People(POLICY.allowed)) as client,
        asyncio.TaskGroup() as group,
    ):
        shared = (database, folder, Owner(ANN), clock, new_id)
        stores = Stores.of(*shared, timezone="UTC", quiet=quiet)
        desk = Desk(proxy, client, stores, clock)
        work = group.create_task(desk.work.run())
        yield desk
        work.cancel()


async def talk(desk: Desk, phone: Phone, until: str = "done") -> None:
    """Both say what they have to, and the person compares, until the bot has said something."""
    heard = 0
    out: OutgoingMessages = (("request", phone.request()),)
    while True:
        for kind, content in out:
            await desk.hear(desk.message(kind, content, phone.user, phone.room))
        await desk.until(partial(desk.has_said, heard + 1))
        kind, _, content = desk.said[heard]
        heard += 1
        if kind == until or phone.code:
            return
        out = phone.hear(kind, content)
        if kind == "key":
            out = (*out, *phone.compare(phone.emojis))
