"""Figures of answers that grow: `python -m tests.bench_growing`, a part of `make bench`.

By Synapse and daemons; `--only PART` and `--kills N` for some of it. docs/benchmarks.md reports it.
"""

import argparse
import asyncio
import os
import random
import re
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import NamedTuple

from tests.bench import Bench, private_environment, pss, show
from tests.test_drafts import LIVE, went_out
from tests.world.bot import Bot
from tests.world.homeserver import AS_SHIPPED, Homeserver, Login
from tests.world.model import Drip, ModelServer, Seen, Slow, Step, Text
from tests.world.user import MatrixUser, Message

ASKED = re.compile(r"drip (\d+) each (\S+) number (\d+)")
WORD = "word"
THREE_SECONDS, TWO_SECONDS, AT_ONCE, SHORT = (30, 0.1), (20, 0.1), (1, 0.0), (12, 0.15)
"""Words of an answer, and the seconds between them."""
ROOMS = 4
"""Answers that grow when the daemon is killed."""
PAUSE = 5.0
"""Seconds in which a limited bot may send one event; a daemon is idle after them as well."""
DAEMONS, SAID = 3, 5


class SeenGrowing(NamedTuple):
    """One answer as a person saw it: seconds since the question, and what came."""

    first: float
    after_token: float
    last: float
    messages: list[Message]


class GrowingBench:
    """A person who asks for answers of some length and pace, and looks when they come."""

    def __init__(self, bench: Bench, ann: MatrixUser, model: ModelServer) -> None:
        self._bench = bench
        self._ann = ann
        self._first_tokens: dict[int, float] = {}
        self._numbers = count(1)
        model.keyed(self._answer)
        model.allow("fold", perhaps=True)

    def _answer(self, seen: Seen) -> Step | None:
        if not (found := ASKED.search(seen.last_user)):
            return None
        words, interval, number = int(found[1]), float(found[2]), int(found[3])
        self._first_tokens[number] = time.monotonic() + interval
        text = " ".join([*[WORD] * (words - 1), f"{WORD}{number}"])
        if not interval:
            return Text(text)
        if seen.body.get("stream"):
            return Drip(text, interval=interval)
        gate = asyncio.Event()
        asyncio.get_running_loop().call_later(words * interval, gate.set)
        return Slow(gate, Text(text))

    async def _ask(self, room: str, words: int, interval: float) -> int:
        number = next(self._numbers)
        await self._ann.send(room, f"drip {words} each {interval} number {number}")
        return number

    def _new(self, room: str, bot: Login) -> Callable[[], list[Message]]:
        """Give what the bot will have said there since now, edits as well."""
        known = len(self._ann.messages(room, bot.user_id))
        return lambda: self._ann.messages(room, bot.user_id)[known:]

    async def _is_whole(self, new: Callable[[], list[Message]], number: int) -> bool:
        def is_last(message: Message) -> bool:
            return LIVE not in message.content and f"{WORD}{number}" in message.body

        with suppress(AssertionError):
            await self._ann.until(lambda: any(map(is_last, new())), within=60)
        return any(map(is_last, new()))

    async def _see(self, room: str, bot: Login, words: int, interval: float) -> SeenGrowing:
        new, began = self._new(room, bot), time.monotonic()
        number = await self._ask(room, words, interval)
        await self._ann.until(lambda: bool(new()), within=60)
        first = time.monotonic()
        assert await self._is_whole(new, number)
        last, token = time.monotonic(), self._first_tokens[number]
        return SeenGrowing(first - began, first - token, last - began, new())

    async def growing(self, name: str, rounds: int, pause: float = 0) -> list[str]:
        """Answers of three seconds, one after the other."""
        config, login = self._bench.config(name)
        async with Bot(config):
            room, seen = await self._bench.room_joined(login), list[SeenGrowing]()
            await self._see(room, login, *AT_ONCE)
            for _ in range(rounds):
                seen.append(await self._see(room, login, *THREE_SECONDS))
                await asyncio.sleep(pause)
        events = [len(each.messages) for each in seen]
        words = sum(each.messages[0].body.startswith(WORD) for each in seen)
        times = " | ".join(map(_spread, list(zip(*seen, strict=True))[:3]))
        return [
            f"| {name} | {times} | {statistics.mean(events):.1f}, most {max(events)} | {words} |"
        ]

    async def edits(self) -> list[str]:
        """Edits by length and pace: of the schedule, and seen where that takes seconds."""
        config, login = self._bench.config("edits")
        rows = []
        async with Bot(config):
            room = await self._bench.room_joined(login)
            for tokens, pace in ((t, p) for t in (100, 1_000, 5_000) for p in (5, 50)):
                steps = range(0, 10 * tokens // pace, max(1, 10 // pace))
                ticks = {tick / 10: f"{WORD} " * max(1, pace // 10) for tick in steps}
                planned = len(went_out(ticks, tokens / pace))  # the draft is none, the end is one
                is_short = tokens <= 20 * pace
                seen = await self._see(room, login, tokens, 1 / pace) if is_short else None
                measured = len(seen.messages) - 1 if seen else "-"
                rows.append(f"| {tokens} tokens, {pace}/s | {planned} | {measured} |")
        return rows

    async def latency(self, rounds: int) -> list[str]:
        """Message to whole answer but for the model's time: streaming, not, and an echo bot, in turn."""
        (on, ours), (off, silent) = (
            self._config(name, streams=name == "on") for name in ("on", "off")
        )
        async with Bot(on), Bot(off), self._bench.echo("echo", model=True) as echo:
            rows, bots = [], {"on": ours, "off": silent, "echo": echo}
            rooms = {x: await self._bench.room(bot, encrypted=False) for x, bot in bots.items()}
            for words, interval in (AT_ONCE, TWO_SECONDS):
                taken: dict[str, list[float]] = {x: [] for x in bots}
                for _ in range(rounds):
                    for x, bot in bots.items():
                        seen = await self._see(rooms[x], bot, words, interval)
                        taken[x].append(1000 * (seen.last - words * interval))
                ms = " | ".join(f"{statistics.median(each):.0f} ms" for each in taken.values())
                pairs = [zip(taken["on"], taken[x], strict=True) for x in ("off", "echo")]
                over = " | ".join(f"{statistics.median(a / b for a, b in p):.2f}" for p in pairs)
                rows.append(f"| model takes {words * interval:.0f} s | {ms} | {over} |")
        return rows

    async def kills(self, kills: int) -> list[str]:
        """Kills while answers grow in some rooms: how many were lost or doubled in the end."""
        (config, login), found = self._bench.config("killed"), Counter[str]()
        async with Bot(config) as bot:
            rooms = [await self._bench.room_joined(login) for _ in range(ROOMS)]
            for n in range(kills):
                new = {room: self._new(room, login) for room in rooms}
                numbers = [await self._ask(room, *SHORT) for room in rooms]
                await asyncio.sleep(random.uniform(0, 1.2 * SHORT[0] * SHORT[1]))
                await bot.kill()
                await bot.start()
                for room, number in zip(rooms, numbers, strict=True):
                    found["lost"] += not await self._is_whole(new[room], number)
                    await bot.said_all()
                    await self._bench.answer(room, login, f"seen {n}")
                    said = [m for m in new[room]() if "m.relates_to" not in m.content][:-1]
                    found["doubled"] += len(said) > 1
                    found["drafts"] += any(LIVE in m.content for m in said)
        counted = " | ".join(str(found[what]) for what in ("drafts", "lost", "doubled"))
        return [f"| {kills} kills | {kills * ROOMS} | {counted} |"]

    async def memory(self, folder: Path) -> list[str]:
        """PSS of daemons of an environment of their own, idle after some answers."""
        found: dict[bool, list[float]] = {True: [], False: []}
        with private_environment(folder / "private") as python:
            for n, streams in ((n, streams) for n in range(DAEMONS) for streams in found):
                config, login = self._config(f"pss-{n}-{streams}", streams=streams)
                async with Bot(config, python=python) as bot:
                    room = await self._bench.room_joined(login)
                    for _ in range(SAID):
                        await self._see(room, login, *TWO_SECONDS)
                    await asyncio.sleep(PAUSE)
                    found[streams].append(pss(bot.pid))
        on, off = map(statistics.median, found.values())
        return [f"| PSS | {on:.1f} MB | {off:.1f} MB | {on - off:+.1f} MB |"]

    def _config(self, name: str, *, streams: bool) -> tuple[Path, Login]:
        return self._bench.config(name.lower(), matrix={"streaming": streams})


def _spread(seconds: Sequence[float]) -> str:
    p95 = sorted(seconds)[int(len(seconds) * 0.95)]
    return f"{statistics.median(seconds):.2f} / {p95:.2f} s"


async def bench(folder: Path, only: Sequence[str], rounds: int, kills: int) -> None:
    """Print the rows of these parts, all by one homeserver and one person."""
    (folder / "synapse").mkdir(parents=True)
    with Homeserver(folder / "synapse", AS_SHIPPED if "limits" in only else None) as homeserver:
        ann = MatrixUser(homeserver.url, homeserver.user("ann"), folder / "ann")
        async with ModelServer(rules=False) as model, ann:
            run = GrowingBench(Bench(folder, homeserver, model, ann, 0), ann, model)
            parts: dict[str, Callable[[], Awaitable[list[str]]]] = {
                "growing": lambda: run.growing("growing", rounds),
                "edits": run.edits,
                "latency": lambda: run.latency(rounds),
                "kills": lambda: run.kills(kills),
                "memory": lambda: run.memory(folder),
                "limits": lambda: run.growing("limits", rounds, PAUSE),
            }
            for part in only:
                show(await parts[part]())


if __name__ == "__main__":
    names = ["growing", "edits", "latency", "kills", "memory", "limits"]
    options = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    options.add_argument("--only", nargs="+", choices=names, default=names)
    options.add_argument("--rounds", type=int, default=20)
    options.add_argument("--kills", type=int, default=20)
    chosen = options.parse_args()
    show([f"load {os.getloadavg()[0]:.1f}"])
    with tempfile.TemporaryDirectory() as name:
        for n, some in enumerate((names[:-1], names[-1:])):
            wanted = [part for part in some if part in chosen.only]
            asyncio.run(bench(Path(name) / str(n), wanted, chosen.rounds, chosen.kills))
