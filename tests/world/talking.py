"""A conversation with a real model: a house behind a relay, and what came of each message.

    async with talking(folder, relay) as talk:
        heard = await talk.say("hello")
        heard.answers, heard.calls, heard.requests

Nothing is said here about how good an answer is: that differs between machines.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from tests.world.house import PROMPTS, ROOM, House, house_at_work
from tests.world.relay import Passed, Relay
from wintermute.clock import SystemClock
from wintermute.config.schema import Backend, Context, SubSessionSettings
from wintermute.loom.records import Wards
from wintermute.messages import Json

PATIENCE = 7200.0
"""Seconds for one message: a slow machine reads a first request for minutes."""
WARDS = Wards(max_turns=6, max_seconds=PATIENCE, max_tokens=1_000_000, require_done=False)
CALLS = (
    "SELECT turns.seq, gate, args, is_error FROM observations JOIN turns ON turns.id = turn_id"
    " WHERE turns.seq > ? ORDER BY observations.seq"
)


class LaterClock(SystemClock):
    """The clock of the machine, with time between messages that nobody waits for."""

    def __init__(self) -> None:
        super().__init__()
        self._passed = 0.0

    def now(self) -> datetime:
        return super().now() + timedelta(seconds=self._passed)

    def monotonic(self) -> float:
        return super().monotonic() + self._passed

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self._passed += seconds


@dataclass(frozen=True, slots=True)
class Asked:
    """One call that the model made."""

    name: str
    arguments: Json
    failed: bool


@dataclass(frozen=True, slots=True)
class Heard:
    """What came of one message."""

    answers: list[str]
    calls: list[Asked]
    requests: list[Passed]
    ended: str
    """How the newest cast ended: `terminated`, or `truncated` before its end."""

    @property
    def done(self) -> set[str]:
        """The tools that were used without a mistake."""
        return {call.name for call in self.calls if not call.failed}


@dataclass(frozen=True, slots=True)
class Manner:
    """How a model is asked: keys of its backend, the layout, and whether work can be handed out."""

    layout: str = "append"
    size: str = "full"
    more: Json = field(default_factory=dict)

    @property
    def backend(self) -> dict[str, Any]:
        """The keys of the backend; those that are not built yet are refused by name."""
        wanted: Json = {
            "context_tokens": 16384,
            "max_output_tokens": 512,
            "first_token_s": PATIENCE,
            "timeout_s": PATIENCE,
            "size": self.size,
        } | self.more
        unknown = sorted(set(wanted) - {known.name for known in fields(Backend)})
        assert not unknown, f"no keys of a backend: {unknown}"
        return wanted

    @property
    def handing_out(self) -> SubSessionSettings:
        """As an empty installation has it."""
        return SubSessionSettings() if self.size == "full" else SubSessionSettings(max_depth=0)


@dataclass(frozen=True)
class Talk:
    """One installation and its rooms."""

    house: House
    clock: LaterClock
    relay: Relay

    async def say(self, text: str, room: str = ROOM) -> Heard:
        """Say something and wait until all is answered."""
        before, passed = await self.house.spoken(room), len(self.relay.passed)
        newest = await self._newest_turn()
        await self.house.incoming(text, room=room)
        await self._settled(room, len(before))
        rows = await self.house.rows(CALLS, newest)
        casts = await self.house.rows("SELECT state FROM casts ORDER BY seq DESC LIMIT 1")
        return Heard(
            (await self.house.spoken(room))[len(before) :],
            [Asked(row["gate"], _arguments(row["args"]), bool(row["is_error"])) for row in rows],
            self.relay.passed[passed:],
            str(casts[0]["state"]) if casts else "",
        )

    async def _newest_turn(self) -> int:
        row = await self.house.one("SELECT coalesce(max(seq), 0) AS newest FROM turns")
        return int(row["newest"])

    async def _settled(self, room: str, before: int) -> None:
        """Until there is an answer and nothing is open, however long that takes."""
        changed = self.house.speaker.changed
        async with asyncio.timeout(PATIENCE):
            while True:
                changed.clear()
                answered = len(await self.house.spoken(room)) > before
                if answered and not await self.house.inbox.open_conversations():
                    return
                await changed.wait()


def _arguments(text: str | None) -> Json:
    found = json.loads(text or "{}")
    return found if isinstance(found, dict) else {}


@asynccontextmanager
async def talking(folder: Path, relay: Relay, manner: Manner | None = None) -> AsyncIterator[Talk]:
    """An installation in a folder, empty unless one was there, that asks through a relay."""
    manner = manner or Manner()
    layout: dict[str, Any] = {"layout": manner.layout}
    clock = LaterClock()
    async with house_at_work(
        folder,
        relay.url,
        prompts=PROMPTS,
        clock=clock,
        wards=WARDS,
        context=Context(**layout),
        sub_sessions=manner.handing_out,
        **manner.backend,
    ) as house:
        yield Talk(house, clock, relay)
