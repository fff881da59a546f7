"""What the loop needs of models: so little that a record can stand in for them (L-088)."""

from typing import Protocol

from wintermute.llm.backend import UNHEARD, Listener
from wintermute.messages import Reply, Request


class Answering(Protocol):
    """Whoever answers requests. See `llm.models.Models`."""

    async def ask(
        self,
        role: str,
        request: Request,
        *,
        backend: str | None = None,
        cast_id: str | None = None,
        listener: Listener = UNHEARD,
    ) -> Reply:
        """An answer. Raises: ModelError."""
        ...

    def window(self, role: str, backend: str | None = None) -> int:
        """Tokens a request may have, so that an answer still fits."""
        ...

    def tokens(self, role: str, request: Request, backend: str | None = None) -> int:
        """How many a request has."""
        ...
