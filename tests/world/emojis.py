"""A verification by emoji, as the person at a current client goes through it."""

from collections.abc import Callable
from typing import Protocol

from tests.world.user import Json

ENDS = ("done", "cancelled")


class Client(Protocol):
    """What a verification needs of its client."""

    async def until(self, true: Callable[[], bool], *, what: str) -> None: ...
    async def act(self, number: int, what: str) -> None: ...


class EmojiCheck:
    """One verification by emoji, at the client of one of the two.

    request -> ready (`accept`) -> started (`start`) -> `emojis` -> `confirm` -> done, or cancelled.
    """

    def __init__(self, client: Client, number: int, checks: dict[int, Json]) -> None:
        self._client = client
        self._number = number
        self._checks = checks

    @property
    def seen(self) -> Json:
        """What the client shows: phase, code, cancelled_by, user, device, room, transaction, decimals."""
        return self._checks[self._number]

    @property
    def phase(self) -> str:
        """One of requested, ready, started, done, cancelled."""
        return str(self.seen["phase"])

    @property
    def code(self) -> str | None:
        """Why it was cancelled."""
        code: str | None = self.seen["code"]
        return code

    async def until(self, phase: str) -> None:
        """Wait for a phase; a failure if it ends in another."""
        await self._client.until(lambda: self.phase in (phase, *ENDS), what=phase)
        assert self.phase == phase, self.seen

    async def accept(self) -> None:
        """Say that one is ready."""
        await self._client.act(self._number, "accept")

    async def start(self) -> None:
        """Propose to compare emojis."""
        await self._client.act(self._number, "start")

    async def emojis(self) -> list[tuple[str, str]]:
        """Agree to the other's start, if it was theirs; the seven with their names."""
        await self.until("started")
        await self._client.act(self._number, "look")
        await self._client.until(lambda: self.seen["emojis"] or self.phase in ENDS, what="emojis")
        assert self.seen["emojis"], self.seen
        return [(sign, name) for sign, name in self.seen["emojis"]]

    async def confirm(self) -> None:
        """They are the same."""
        await self._client.act(self._number, "confirm")

    async def mismatch(self) -> None:
        """They are not."""
        await self._client.act(self._number, "mismatch")

    async def cancel(self) -> None:
        """Think better of it."""
        await self._client.act(self._number, "cancel")
