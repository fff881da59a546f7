"""The way back to the pages: what is being said in each conversation, and that something changed."""

import asyncio
from dataclasses import dataclass

from wintermute.llm.backend import Wait


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
        self._changed = asyncio.Event()

    def making(self, conversation_id: str) -> Making | None:
        """Give the answer that is being made there."""
        return None

    async def changed(self, seen: int) -> int:
        """Wait until something happened after number `seen`; the newest number."""
        await self._changed.wait()
        return self._count
