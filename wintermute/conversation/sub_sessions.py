"""What rooms and commands may do about the work that conversations have handed out."""

from collections.abc import Collection
from typing import Protocol

from wintermute.db import Transaction


class SubSessions(Protocol):
    """The sub-sessions that outlive the cast which spawned them."""

    async def end(
        self, tx: Transaction, conversation_id: str, *, only: str | None = None, after: int = 0
    ) -> list[str]:
        """End what a conversation's turns after this place have spawned (L-062); its ids.

        `only`: just the one of this id.
        """
        ...

    async def take_back(
        self, tx: Transaction, conversation_id: str, events: Collection[str]
    ) -> None:
        """End what a conversation has handed out for these events; nobody is told of it (F-027)."""
        ...
