"""The person at the terminal, as a Matrix client: keys, rooms and messages of their own."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from wintermute.clock import Clock, SystemClock
from wintermute.config.schema import Matrix
from wintermute.demo.kept import write
from wintermute.errors import HomeserverUnavailable, SendRefused
from wintermute.ids import new_id
from wintermute.matrix.client import MatrixClient, open_client
from wintermute.matrix.inbox import OUTBOX_KEY, mapping
from wintermute.matrix.login import logged_in
from wintermute.matrix.people import People
from wintermute.matrix.session import Session
from wintermute.messages import Json
from wintermute.text import harmless

LONG_POLL_SECONDS = 30.0
AGAIN_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Heard:
    """A message of somebody else. `part`: what its sender calls it; `replaces`: what it edits."""

    event_id: str
    sender: str
    text: str
    part: str
    replaces: str | None


class Person:
    """Hears everything from where the last start stopped; says what is typed."""

    def __init__(self, client: MatrixClient, session: Session, since: Path, clock: Clock) -> None:
        self._client = client
        self._since = since
        self._clock = clock
        self._token = since.read_text("utf-8") if since.exists() else None
        self._locked: list[tuple[str, Json]] = []
        self._news = asyncio.Condition()
        self.session = session
        self.heard: asyncio.Queue[Heard] = asyncio.Queue()
        """Messages in the order in which they could be read."""

    async def begin(self) -> None:
        """The first sync: rooms and members are known, and others can encrypt for us."""
        await self._round(full_state=True, wait_s=0)

    async def listen(self) -> None:
        """Sync until cancelled."""
        while True:
            try:
                await self._round(full_state=False, wait_s=LONG_POLL_SECONDS)
            except (HomeserverUnavailable, SendRefused):
                await self._clock.sleep(AGAIN_SECONDS)

    async def until_with(self, room_id: str, user_id: str, within: float) -> None:
        """Wait until somebody is in an encrypted room with us. Raises: TimeoutError."""

        def together() -> bool:
            view = self._client.room(room_id)
            return view.encrypted and user_id in view.members

        async with asyncio.timeout(within), self._news:
            await self._news.wait_for(together)

    async def say(self, room_id: str, text: str) -> str:
        """Send a message, encrypted or not at all; its event id."""
        content = {"msgtype": "m.text", "body": text, "m.mentions": {}}
        return await self._client.send(room_id, content, new_id("said"), encrypted=True)

    async def _round(self, *, full_state: bool, wait_s: float) -> None:
        batch = await self._client.sync(self._token, full_state=full_state, wait_s=wait_s)
        await self._client.upkeep()
        # Whoever knows the password that the demo prints is the person at the terminal.
        await self._client.sign_all_devices()
        came = self._locked + [
            (room.room_id, event) for room in batch.joined for event in room.events
        ]
        self._locked = [
            (room_id, event) for room_id, event in came if not self._read(room_id, event)
        ]
        self._token = batch.next_batch
        await asyncio.to_thread(write, self._since, batch.next_batch)
        async with self._news:
            self._news.notify_all()

    def _read(self, room_id: str, event: Json) -> bool:
        """Take in an event; False while its key is missing."""
        clear = self._client.decrypted(room_id, event)
        if clear is None:
            return False
        message = heard(clear)
        if message is not None and message.sender != self.session.user_id:
            self.heard.put_nowait(message)
        return True


def heard(event: Json) -> Heard | None:
    """The message in an event in clear; None when it is something else."""
    content = event["content"]
    relation = content.get("m.relates_to")
    edits = isinstance(relation, dict) and relation.get("rel_type") == "m.replace"
    shown = content.get("m.new_content") if edits else content
    body = shown.get("body") if isinstance(shown, dict) else None
    if event["type"] != "m.room.message" or not isinstance(body, str):
        return None
    return Heard(
        str(event["event_id"]),
        str(event["sender"]),
        harmless(body),
        str(mapping(content.get(OUTBOX_KEY)).get("id")),
        str(relation.get("event_id")) if edits else None,
    )


@asynccontextmanager
async def present(matrix: Matrix, folder: Path) -> AsyncIterator[Person]:
    """The person of this account, logged in, with keys, and known to others."""
    clock = SystemClock()
    session = await logged_in(matrix, folder)
    async with open_client(matrix, session, folder, new_id, clock, People()) as client:
        person = Person(client, session, folder / "since", clock)
        await person.begin()
        yield person
