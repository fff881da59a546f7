"""A verification by emoji, as the person at a current client goes through it."""

import asyncio
import re
from collections.abc import Callable
from typing import Protocol

from tests.world.bot import Bot
from tests.world.clock import WITHIN
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


def device_of(daemon: Bot) -> str:
    """Which device the bot is."""
    named = (re.search(r" ready device=(\S+)", line) for line in daemon.log)
    return next(found[1] for found in named if found)


def verifications(daemon: Bot) -> list[Json]:
    """How the bot sees its verifications."""
    return daemon.rows("SELECT * FROM verifications ORDER BY began_at")


async def until_row(daemon: Bot, true: Callable[[Json], bool]) -> Json:
    """The bot's newest verification, once something is true of it."""
    async with asyncio.timeout(WITHIN):
        while not (found := verifications(daemon)) or not true(found[-1]):  # noqa: ASYNC110  another process
            await asyncio.sleep(0.02)
    return found[-1]


async def in_phase(daemon: Bot, phase: str) -> Json:
    """Wait until the bot's newest verification is in this phase; its row."""
    return await until_row(daemon, lambda row: row["phase"] == phase)
