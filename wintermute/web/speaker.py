"""Placeholder until the branch `core` is merged."""

import asyncio
from dataclasses import dataclass, replace

from wintermute.llm.backend import Wait
from wintermute.loom.conversations import Conversation
from wintermute.mailbox.inbox import Waiting
from wintermute.messages import Quote

WEB = "web:"


@dataclass(frozen=True, slots=True)
class Making:
    """An answer being made. `answers`: the event it answers; `gates`: tools used so far."""

    answers: str
    text: str = ""
    gates: tuple[str, ...] = ()
    waiting: Wait | None = None
    since: float = 0.0
    version: int = 0


class WebSpeaker:
    """Placeholder until the branch `core` is merged."""

    def __init__(self) -> None:
        self._count = 0
        self.changed_ = asyncio.Event()
        self._making: dict[str, Making] = {}
        self._touched: dict[str, int] = {}
        self._waiters: list[asyncio.Event] = []

    def making(self, conversation_id: str) -> Making | None:
        """Give the answer that is being made there."""
        return self._making.get(conversation_id)

    def touched(self, conversation_id: str) -> int:
        """Count what happened to the messages of a conversation."""
        return self._touched.get(conversation_id, 0)

    async def changed(self, seen: int) -> int:
        """Wait until something happened after number `seen`; the newest number."""
        while self._count <= seen:
            bell = asyncio.Event()
            self._waiters.append(bell)
            await bell.wait()
        return self._count

    def _touch(self, conversation_id: str = "") -> None:
        self._count += 1
        if conversation_id:
            self._touched[conversation_id] = self._count
        waiters, self._waiters = self._waiters, []
        for bell in waiters:
            bell.set()

    def serves(self, room_id: str) -> bool:
        return True

    def fits(self, conversation: Conversation) -> bool:
        return True

    def room_for(self, scope: str, *, encrypted: bool) -> str | None:
        return None

    def attend(self, row: Waiting) -> None:
        self._making[row.conversation_id] = Making(row.event_id)
        self._touch(row.conversation_id)

    def rest(self, row: Waiting) -> None:
        self._making.pop(row.conversation_id, None)
        self._touch(row.conversation_id)

    def draft(self, conversation_id: str, piece: str) -> None:
        making = self._making[conversation_id]
        text = making.text + piece if piece else ""
        self._making[conversation_id] = replace(making, text=text, waiting=None)
        self._touch()

    def wait(self, conversation_id: str, wait: Wait) -> None:
        self._touch()

    def gate(self, conversation_id: str, name: str) -> None:
        making = self._making[conversation_id]
        self._making[conversation_id] = replace(making, gates=(*making.gates, name))
        self._touch()

    def speak(self, conversation_id: str) -> None:
        self._touch(conversation_id)

    async def quote(self, row: Waiting) -> Quote | None:
        return None
