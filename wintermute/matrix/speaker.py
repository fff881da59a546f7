"""Small signs of life in a room: read, writing, done. They may fail without harm."""

import asyncio
import logging
from dataclasses import dataclass

from wintermute.errors import HomeserverUnavailable, LoginRefused, SendRefused
from wintermute.mailbox.outbox import TERMINAL
from wintermute.matrix.client import MatrixClient
from wintermute.matrix.inbox import Policy, may_read
from wintermute.matrix.outbox import Sender
from wintermute.matrix.past import Past
from wintermute.messages import Quote

log = logging.getLogger(__name__)

REFRESH_SECONDS = 20.0  # a typing sign fades after 30
LINGER_SECONDS = 0.5  # the answer goes out first, and the next message may follow at once


@dataclass(frozen=True, slots=True)
class _Wanted:
    typing: bool
    event_id: str


class MatrixSpeaker:
    """Shows in the room what a worker wants shown; nobody waits for it."""

    def __init__(self, client: MatrixClient, sender: Sender, policy: Policy, past: Past) -> None:
        self._client = client
        self._past = past
        self._policy = policy
        self._sender = sender
        self._wanted: dict[str, _Wanted] = {}
        self._bells: dict[str, asyncio.Event] = {}
        self._changed: asyncio.Queue[str] = asyncio.Queue()

    def serves(self, room_id: str) -> bool:
        """All but what was typed at a terminal."""
        return room_id != TERMINAL

    def fits(self, room_id: str, scope: str) -> bool:
        """A person's own is for a direct chat with them (T-013); who came in may not have spoken yet."""
        view = self._client.room(room_id)
        return room_id != TERMINAL and may_read(view, scope, self._client.account, self._policy)

    def room_for(self, scope: str, *, encrypted: bool) -> str | None:
        """A room in which nobody has spoken yet may do (T-013)."""
        return self._client.room_for(scope, self._policy, encrypted)

    def attend(self, room_id: str, event_id: str) -> None:
        """Mark the event as read and write on its room."""
        self._want(room_id, _Wanted(True, event_id))

    def rest(self, room_id: str) -> None:
        """Write no more."""
        self._want(room_id, _Wanted(False, self._wanted[room_id].event_id))

    def draft(self, room_id: str, piece: str) -> None:
        """Nothing: a Matrix room gets the whole answer."""

    def gate(self, room_id: str, name: str) -> None:
        """Nothing: the typing sign goes on."""

    def speak(self, room_id: str) -> None:
        """Something for a room is in the outbox."""
        self._sender.wake()

    async def quote(self, room_id: str, event_id: str) -> Quote | None:
        """An earlier message of a room."""
        return await self._past.quote(room_id, event_id)

    def _want(self, room_id: str, wanted: _Wanted) -> None:
        self._wanted[room_id] = wanted
        self._changed.put_nowait(room_id)

    async def run(self) -> None:
        """Show what is wanted, until cancelled."""
        async with asyncio.TaskGroup() as rooms:
            while True:
                room_id = await self._changed.get()
                if room_id in self._bells:
                    self._bells[room_id].set()
                else:
                    self._bells[room_id] = asyncio.Event()
                    rooms.create_task(self._follow(room_id))

    async def _follow(self, room_id: str) -> None:
        bell, typing, read = self._bells[room_id], False, ""
        while True:
            bell.clear()
            wanted = self._wanted[room_id]
            if not wanted.typing and await self._rung(bell, LINGER_SECONDS):
                continue
            try:
                if wanted.event_id != read:
                    read = wanted.event_id
                    await self._client.read(room_id, wanted.event_id)
                if wanted.typing or typing:
                    await self._client.typing(room_id, on=wanted.typing)
                    typing = wanted.typing
            except (HomeserverUnavailable, SendRefused, LoginRefused) as error:
                log.debug("sign not shown room=%s reason=%s", room_id, error)
            if wanted.typing:
                await self._rung(bell, REFRESH_SECONDS)
            elif not bell.is_set():
                del self._bells[room_id]
                return

    async def _rung(self, bell: asyncio.Event, seconds: float) -> bool:
        """Wait for the next change, so long at most; whether one came."""
        try:
            async with asyncio.timeout(seconds):
                return await bell.wait()
        except TimeoutError:
            return False
