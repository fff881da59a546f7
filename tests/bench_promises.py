"""What promises cost: the look for what is due, the claim of it, and a thousand at one minute.

    python -m tests.bench_promises

A part of `make bench`; docs/benchmarks.md reports it.
"""

import asyncio
import statistics
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

from tests.bench_runner import ms_since, p95, show
from tests.world.bot import Bot, meet, write_settings
from tests.world.clock import FakeClock
from tests.world.homeserver import Homeserver
from tests.world.house import House, open_house
from tests.world.model import ModelServer
from tests.world.promised import promise, talk
from tests.world.user import MatrixUser
from wintermute.clock import SystemClock, stamp
from wintermute.db import open_database
from wintermute.ids import new_id
from wintermute.owner import Owner
from wintermute.stores import Stores
from wintermute.tasks.schedules import PlanRequest

ROUNDS = 50
TOGETHER = 1_000
ROOMS = 20
ROW = "| {} | {:.2f} ms | {:.2f} ms | {} |"


async def looks(tasks: int) -> list[str]:
    """One look at so many tasks: with nothing due, and with one reminder that is claimed."""
    clock = FakeClock()
    with tempfile.TemporaryDirectory() as name:
        async with open_house(Path(name), None, clock=clock) as house:
            await talk(house)
            await _fill(house, tasks, clock.now() + timedelta(days=365))
            idle = [await _fired(house) for _ in range(ROUNDS)]
            claimed = []
            for _ in range(ROUNDS):
                await promise(house, asked=PlanRequest(schedule_type="once", at="in 1 minute"))
                clock.advance(60)
                claimed.append(await _fired(house))
                await house.deliver()
                await house.fire()
    median = statistics.median
    return [
        ROW.format(f"{tasks:,} tasks, nothing due", median(idle), p95(idle), "≤ 5 ms at 100,000"),
        ROW.format(f"{tasks:,} tasks, one claimed", median(claimed), p95(claimed), "≤ 5 ms"),
    ]


async def thousand() -> list[str]:
    """A thousand reminders of one minute are claimed, all in one look."""
    clock, taken = FakeClock(), []
    for _ in range(5):
        with tempfile.TemporaryDirectory() as name:
            async with open_house(Path(name), None, clock=clock) as house:
                await talk(house)
                await _fill(house, TOGETHER, clock.now())
                taken.append(await _fired(house))
                assert len(await house.spoken()) == TOGETHER
    return [
        ROW.format(f"{TOGETHER:,} claimed at once", statistics.median(taken), max(taken), "≤ 1 s")
    ]


async def _fill(house: House, tasks: int, due: datetime) -> None:
    task = await promise(house, asked=PlanRequest(schedule_type="daily", at="09:00"))
    async with house.database.transaction() as tx:
        await tx.execute("UPDATE tasks SET rule_due = ? WHERE id = ?", (stamp(due), task.id))
        await tx.execute_many(
            "INSERT INTO tasks (id, scope, conversation_id, content, priority, status, created_at,"
            " changed_at, schedule, rule_due, zone) SELECT ?, scope, conversation_id, ?, priority,"
            " status, created_at, changed_at, schedule, rule_due, zone FROM tasks WHERE id = ?",
            [(f"task_{n:08x}", f"thing {n}", task.id) for n in range(1, tasks)],
        )


async def _fired(house: House) -> float:
    began = time.perf_counter()
    await house.fire()
    return ms_since(began)


async def lateness(rooms: int) -> list[str]:
    """The same thousand through a daemon and a homeserver without limits: how late is each?"""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "synapse").mkdir()
        with Homeserver(folder / "synapse") as homeserver:
            async with (
                MatrixUser(homeserver.url, homeserver.user("ann"), folder / "ann") as ann,
                ModelServer() as model,
            ):
                login = homeserver.user("bot")
                about = (folder / "bot", homeserver.url, login, model.url, ann.user_id)
                config = write_settings(*about, log={"level": "debug"})
                async with Bot(config) as bot:
                    found = [await meet(ann, login.user_id) for _ in range(rooms)]
                    for room in found:
                        await ann.send(room, "hello")
                        await ann.wait_for(room, lambda message: message.body.endswith("hello"))
                    due = await _promised(folder / "bot" / "data", ann.user_id, found)
                    await bot.until(lambda: _all_done(bot), within=600)
                    claimed, sent = _late(bot, due)
                    _assert_in_order(bot)
    return [
        f"| {TOGETHER:,} in {rooms} rooms: claimed | {max(claimed):.2f} s after they were due | ≤ 1 s and the look |",
        f"| the same: in their rooms | median {statistics.median(sent):.1f} s, last {max(sent):.1f} s"
        f" ({TOGETHER / max(sent):.0f} a second) | as fast as the homeserver takes them |",
    ]


def _all_done(bot: Bot) -> bool:
    """Looked at with each line of its log: it has one for everything that is due."""
    return not bot.rows(
        "SELECT 1 FROM tasks WHERE status = 'active' AND next_due IS NOT NULL UNION ALL"
        " SELECT 1 FROM outbox WHERE state = 'waiting' AND reacts_to IS NULL"
    )


async def _promised(data: Path, owner: str, rooms: list[str]) -> datetime:
    due = (datetime.now(UTC) + timedelta(seconds=20)).replace(microsecond=0)  # noqa: TID251  a real one
    async with open_database(data / "wintermute.db") as database:
        stores = Stores.of(
            database, data, Owner(owner), SystemClock(), new_id, timezone="Europe/Berlin"
        )
        async with database.transaction() as tx:
            homes = {
                room: await stores.conversations.in_room(tx, room, f"person:{owner}")
                for room in rooms
            }
            await tx.execute_many(
                "INSERT INTO tasks (id, scope, conversation_id, content, priority, status,"
                " created_at, changed_at, schedule, rule_due, zone) VALUES"
                " (?, ?, ?, ?, 5, 'active', ?, ?, ?, ?, 'Europe/Berlin')",
                [
                    (
                        f"task_{n:08x}",
                        f"person:{owner}",
                        homes[rooms[n % len(rooms)]],
                        f"thing {n}",
                        *[stamp(due)] * 2,
                        '{"kind": "once", "at": "' + due.isoformat() + '"}',
                        stamp(due),
                    )
                    for n in range(TOGETHER)
                ],
            )
    return due


def _late(bot: Bot, due: datetime) -> tuple[list[float], list[float]]:
    rows = bot.rows(
        "SELECT c.claimed_at, o.sent_at FROM occurrences c JOIN outbox o ON o.id = c.outbox_id"
    )
    assert len(rows) == TOGETHER
    return (
        [(datetime.fromisoformat(row["claimed_at"]) - due).total_seconds() for row in rows],
        [(datetime.fromisoformat(row["sent_at"]) - due).total_seconds() for row in rows],
    )


def _assert_in_order(bot: Bot) -> None:
    rows = bot.rows(
        "SELECT room_id, body FROM outbox WHERE body LIKE '⏰ thing %' ORDER BY sent_at, seq"
    )
    last: dict[str, int] = {}
    for row in rows:
        n = int(row["body"].split()[-1])
        assert n > last.get(row["room_id"], -1), row
        last[row["room_id"]] = n


async def rows() -> list[str]:
    """All tables."""
    lines = ["| look | median | p95 | goal |", "|---|---|---|---|"]
    for tasks in (10, 1_000, 100_000):
        lines += await looks(tasks)
    lines += [*await thousand(), "", "| lateness | measured | goal |", "|---|---|---|"]
    for rooms in (1, ROOMS):
        lines += await lateness(rooms)
    return lines


if __name__ == "__main__":
    show(asyncio.run(rows()))
