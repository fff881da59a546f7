"""How tests of tasks make them, and look at what came of them."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.world.clock import FakeClock
from tests.world.house import ANN, PROMPTS, ROOM, House, open_house
from tests.world.model import ModelServer
from wintermute.changes.change_sets import Reason
from wintermute.config.schema import SubSessionSettings
from wintermute.mailbox.outbox import TERMINAL
from wintermute.tasks.schedules import PlanRequest
from wintermute.tasks.tasks import EVERYWHERE, Target, Task

MORNING = datetime(2026, 3, 2, 7, 0, tzinfo=UTC)
"""A Monday, 08:00 in Berlin."""
AT_NINE = PlanRequest(schedule_type="once", at="2026-03-02T09:00")
DAILY = PlanRequest(schedule_type="daily", at="09:00")
GROUP = "!group:test"
BY_BEN: dict[str, Any] = {"sender": "@ben:test", "name": "Ben", "origin": "other"}
IN_GROUP: dict[str, Any] = {"room": GROUP, "scope": f"room:{GROUP}", "direct": False}
LIMITS = SubSessionSettings()
GROUP_SCOPE = f"room:{ROOM}"


async def talk(house: House, room: str = ROOM, scope: str = f"person:{ANN}") -> str:
    """A conversation in a room."""
    async with house.database.transaction() as tx:
        return await house.conversations.in_room(tx, room, scope)


async def promise(
    house: House,
    content: str = "Call Anna",
    asked: PlanRequest = AT_NINE,
    scope: str = f"person:{ANN}",
    room: str | None = ROOM,
) -> Task:
    """A task, as made in that room; None: on the command line."""
    of_room = scope if scope != EVERYWHERE else f"person:{ANN}"
    made_in = await talk(house, room, of_room) if room else None
    async with house.database.transaction() as tx:
        return await house.stores.tasks.add(
            tx,
            Reason("command", scope),
            content,
            scope=scope,
            request=asked,
            conversation_id=made_in,
        )


async def now(house: House, task: Task) -> Task:
    """The task as it is stored."""
    return await house.stores.tasks.get(task.id, None)


async def do(house: House, action: str, task: Task, *more: Any) -> Task:
    """One change of it, by the person at the command line."""
    async with house.database.transaction() as tx:
        act = getattr(house.stores.tasks, action)
        done: Task = await act(tx, Target(task.id, None, Reason("command", task.scope)), *more)
        return done


async def occurrences(house: House) -> list[tuple[str, str, int]]:
    """Due moment in UTC, state and misses of each."""
    rows = await house.rows("SELECT due_at, state, missed FROM occurrences ORDER BY seq")
    return [(row["due_at"][:16], row["state"], row["missed"]) for row in rows]


def after(clock: FakeClock, when: str) -> None:
    """Let time pass until it is this in Berlin, before the last Sunday of March."""
    then = datetime.fromisoformat(f"{when}+01:00")
    clock.advance((then - clock.now() + clock.ahead).total_seconds())


async def fire_at(house: House, when: str) -> None:
    """Let time pass until it is this in Berlin, and fire what is due then."""
    assert isinstance(house.clock, FakeClock)
    after(house.clock, when)
    await house.fire()


async def deliver_all(house: House) -> None:
    """Deliver what waits, and let the ledger hear of it."""
    await house.deliver()
    await house.fire()


def check(mode: str = "autonomous_notify", **more: str) -> PlanRequest:
    """A daily check of prices."""
    at = {"schedule_type": "daily", "at": "09:00"} | more
    return PlanRequest(**at, execution_mode=mode, ai_prompt="Compare the prices.")  # type: ignore[arg-type]  # all text


@dataclass(frozen=True)
class Morning:
    """A Monday morning, a scripted model, and a folder for houses with all tools."""

    folder: Path
    model: ModelServer
    clock: FakeClock = field(default_factory=lambda: FakeClock(MORNING))

    def house(self, **more: Any) -> AbstractAsyncContextManager[House]:
        """Open a house whose rooms rest."""
        settings: dict[str, Any] = {"sub_sessions": LIMITS, "clock": self.clock} | more
        return open_house(self.folder, self.model.url, prompts=PROMPTS, **settings)

    @asynccontextmanager
    async def at_work(self, **more: Any) -> AsyncIterator[House]:
        """Open a house whose rooms work as long as the block lasts."""
        async with self.house(**more) as house, house.working():
            yield house

    async def due(self, house: House, asked: PlanRequest | None = None, **more: Any) -> Task:
        """Promise to look at prices, and look at what is due at nine."""
        task = await promise(house, "Price check", asked or check(), **more)
        after(self.clock, "2026-03-02T09:00")
        await house.fire()
        return task


async def ended(house: House, states: int = 1) -> None:
    """Wait until so many occurrences are over."""

    async def over() -> bool:
        row = await house.one("SELECT count(*) AS n FROM occurrences WHERE state <> 'claimed'")
        return bool(row["n"] >= states)

    await house.until(over)


async def at_terminal(house: House) -> None:
    """Begin a conversation at the terminal."""
    async with house.database.transaction() as tx:
        await house.conversations.in_room(tx, TERMINAL, f"person:{ANN}", "terminal")
