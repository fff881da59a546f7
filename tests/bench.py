"""Measures what docs/benchmarks.md reports: `make bench` prints the tables.

Everything runs in one go against one Synapse, ours and the echo bots in turn, so that ratios mean
something on a machine that does other things too. All figures are medians unless they say otherwise.
"""

import asyncio
import os
import statistics
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests import bench_loop, bench_promises, bench_prompt, bench_readers, bench_tokens, bench_wiki
from tests.bench_runner import (
    IDLE_SECONDS,
    Chat,
    chat,
    child_cpu,
    options,
    private_environment,
    pss,
    show,
)
from tests.world.bot import Bot, write_settings
from tests.world.homeserver import Login
from tests.world.killing import take_a_breath

PARTS = (bench_prompt, bench_tokens, bench_loop, bench_promises, bench_readers, bench_wiki)
CROWD, EACH = 56, 9
"""Rooms that are flooded, and messages in each: ten so quick ones are taken for a program (F-048)."""


class Bench:
    """One Synapse, one person, and the bots that are compared."""

    def __init__(self, world: Chat, rounds: int) -> None:
        self._folder, self._homeserver, self._model, self._ann = world
        self._rounds = rounds

    def config(self, name: str, **changes: dict[str, Any]) -> tuple[Path, Login]:
        """A configuration for a fresh bot."""
        login = self._homeserver.user(name)
        ours, model = self._homeserver.url, self._model.url
        settings: dict[str, Any] = {"log": {"level": "info"}} | changes
        folder = self._folder / name
        return write_settings(folder, ours, login, model, self._ann.user_id, **settings), login

    @asynccontextmanager
    async def echo(self, name: str, *, model: bool) -> AsyncIterator[Login]:
        """An echo bot as a process of its own."""
        login = self._homeserver.user(name)
        (self._folder / name).mkdir()
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.world.echo", self._homeserver.url),
            *(login.user_id, login.device_id, login.access_token, str(self._folder / name)),
            *([self._model.url] if model else []),
            stdout=asyncio.subprocess.PIPE,
        )
        assert process.stdout is not None
        await process.stdout.readline()
        try:
            yield login
        finally:
            process.kill()
            await process.wait()

    async def room(self, bot: Login, *, encrypted: bool) -> str:
        """A room with a bot in it, warmed up."""
        room = await self._ann.create_room(invite=[bot.user_id], encrypted=encrypted)
        await self._ann.wait_joined(room, bot.user_id)
        for n in range(3):
            await self.answer(room, bot, f"warm {n}")
        return room

    async def answer(self, room: str, bot: Login, text: str) -> float:
        """Seconds from sending a message to seeing its answer."""
        await take_a_breath(self._ann, room)
        began = time.monotonic()
        await self._ann.send(room, text)
        await self._ann.until(
            lambda: any(text in m.body for m in self._ann.messages(room, bot.user_id)[-3:]),
            within=60,
        )
        return time.monotonic() - began

    async def latency(self, *, encrypted: bool) -> list[str]:
        """Message to answer: ours, an echo bot that does the same, a bare echo bot, in turn."""
        config, login = self.config(f"ours-{encrypted}")
        async with (
            Bot(config),
            self.echo(f"same-{encrypted}", model=True) as same,
            self.echo(f"bare-{encrypted}", model=False) as bare,
        ):
            bots = {"ours": login, "same": same, "bare": bare}
            rooms = {n: await self.room(bot, encrypted=encrypted) for n, bot in bots.items()}
            taken: dict[str, list[float]] = {name: [] for name in bots}
            for n in range(self._rounds):
                for name, bot in bots.items():
                    taken[name].append(await self.answer(rooms[name], bot, f"round {n} {name}"))
        kind = "encrypted" if encrypted else "plain"
        ms = {name: 1000 * statistics.median(times) for name, times in taken.items()}
        over_same, over_bare = (
            statistics.median(a / b for a, b in zip(taken["ours"], taken[name], strict=True))
            for name in ("same", "bare")
        )
        return [
            f"| {kind}: ours | {ms['ours']:.0f} ms | |",
            f"| {kind}: echo bot, same model call, typing, receipt | {ms['same']:.0f} ms"
            f" | ours is {over_same:.2f}x |",
            f"| {kind}: bare echo bot | {ms['bare']:.0f} ms | ours is {over_bare:.2f}x |",
        ]

    async def throughput(self) -> list[str]:
        """500 messages over 20 rooms: ours, then the echo bot with the model call."""
        rows = []
        config, login = self.config("ours-many")
        async with Bot(config) as bot:
            rate, lost, doubled = await self._flood(login)
            await bot.said_all()
        rows.append(f"| ours | {rate:.1f}/s | lost {lost}, doubled {doubled} |")
        async with self.echo("same-many", model=True) as same:
            theirs, lost, doubled = await self._flood(same)
        rows.append(
            f"| echo bot with the model call | {theirs:.1f}/s | lost {lost}, doubled {doubled} |"
        )
        return [*rows, f"| ratio ours / echo bot | {rate / theirs:.2f} | |"]

    async def _flood(self, bot: Login) -> tuple[float, int, int]:
        rooms = [await self.room(bot, encrypted=False) for _ in range(CROWD)]
        return await self.pour_all(rooms, bot)

    async def pour_all(self, rooms: list[str], bot: Login) -> tuple[float, int, int]:
        """Send so many messages into each room: answers a second, and how many were lost or doubled."""
        wanted = Counter((room, f"echo: flood {n}") for room in rooms for n in range(EACH))
        began = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for room in rooms:
                group.create_task(self._pour(room))
        await self._ann.until(lambda: not wanted - self._answers(rooms, bot), within=120)
        seconds = time.monotonic() - began
        found = self._answers(rooms, bot)
        return len(wanted) / seconds, sum((wanted - found).values()), sum((found - wanted).values())

    async def _pour(self, room: str) -> None:
        for n in range(EACH):
            await self._ann.send(room, f"flood {n}")

    def _answers(self, rooms: list[str], bot: Login) -> Counter[tuple[str, str]]:
        return Counter(
            (room, m.body)
            for room in rooms
            for m in self._ann.messages(room, bot.user_id)
            if "flood" in m.body
        )

    async def memory_and_start(self) -> list[str]:
        """PSS from an environment of its own, and how long a start takes on an existing store."""
        config, login = self.config("ours-memory")
        with private_environment(self._folder / "private") as python:
            bot = Bot(config, python=python)
            async with bot:
                first = await self.room_joined(login)
                await asyncio.sleep(IDLE_SECONDS)
                before = pss(bot.pid)
                for n in range(100):
                    await self.answer(first, login, f"remember {n}")
                await asyncio.sleep(IDLE_SECONDS)
                after = pss(bot.pid)
                await bot.stop()
            starts = [await self._start(bot) for _ in range(7)]
        return [
            f"| PSS, encryption on, in a room, before the first model call | {before:.1f} MB | ≤ 60 |",
            f"| PSS, idle after 100 messages | {after:.1f} MB | ≤ 85 |",
            f"| start → first sync, existing store | {statistics.median(starts):.2f} s | ≤ 2 |",
        ]

    async def room_joined(self, bot: Login) -> str:
        """An encrypted room in which nothing was said yet."""
        room = await self._ann.create_room(invite=[bot.user_id], encrypted=True)
        await self._ann.wait_joined(room, bot.user_id)
        return room

    async def _start(self, bot: Bot) -> float:
        began = time.monotonic()
        await bot.start()
        seconds = time.monotonic() - began
        await bot.stop()
        return seconds


def help_cpu() -> list[str]:
    """CPU time of `wintermute --help`."""
    taken = [child_cpu("-m", "wintermute", "--help") for _ in range(15)]
    return [f"| `wintermute --help`, CPU | {1000 * statistics.median(taken):.0f} ms | ≤ 90 |"]


async def bench(rounds: int, only: str | None) -> None:
    """Measure and print, all or the round trips only."""
    async with chat() as world:
        run = Bench(world, rounds)
        print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, {rounds} rounds\n")  # noqa: T201
        if only is None:
            show(help_cpu())
            for part in PARTS:
                show(await part.rows())
            show(await run.memory_and_start())
        show(await run.latency(encrypted=False))
        show(await run.latency(encrypted=True))
        if only is None:
            show(await run.throughput())


if __name__ == "__main__":
    parser = options(__doc__)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--only", choices=["latency"], help="the round trips alone")
    chosen = parser.parse_args()
    asyncio.run(bench(chosen.rounds, only=chosen.only))
