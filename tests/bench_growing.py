"""Figures of answers that grow: `python -m tests.bench_growing`, a part of `make bench`.

By Synapse and daemons; `--only PART` and `--kills N` for some of it. docs/benchmarks.md reports it.
"""

import asyncio
import os
import random
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from tests.bench import Bench
from tests.bench_runner import chat, options, p95, private_environment, pss, show
from tests.world.bot import Bot
from tests.world.drafts import LIVE, went_out
from tests.world.homeserver import AS_SHIPPED, Login
from tests.world.killing import take_a_breath
from tests.world.model import Drip, ModelServer, Seen, Slow, Step, Text
from tests.world.user import MatrixUser, Message

THREE_SECONDS, TWO_SECONDS, AT_ONCE, SHORT = (30, 0.1), (20, 0.1), (1, 0.0), (12, 0.15)
"""Words of an answer, and the seconds between them."""
ROOMS = 4
"""Answers that grow when the daemon is killed."""
PAUSE = 5.0
"""Seconds in which a limited bot may send one event; a daemon is idle after them as well."""


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
        self._asked: dict[str, tuple[int, float]] = {}
        self._token_at = 0.0
        model.keyed(self._answer)
        model.allow("fold", perhaps=True)

    def _answer(self, seen: Seen) -> Step | None:
        if seen.last_user not in self._asked:
            return None
        words, interval = self._asked[seen.last_user]
        self._token_at = time.monotonic() + interval
        text = " ".join([*["word"] * (words - 1), seen.last_user])
        if seen.body.get("stream"):
            return Drip(text, interval=interval)
        gate = asyncio.Event()
        asyncio.get_running_loop().call_later(words * interval, gate.set)
        return Slow(gate, Text(text))

    async def _ask(self, room: str, words: int, interval: float) -> str:
        question = f"word{len(self._asked)}."
        self._asked[question] = words, interval
        await self._ann.send(room, question)
        return question

    def _new(self, room: str, bot: Login) -> Callable[[], list[Message]]:
        known = len(self._ann.messages(room, bot.user_id))
        return lambda: self._ann.messages(room, bot.user_id)[known:]

    async def _is_whole(self, new: Callable[[], list[Message]], question: str) -> bool:
        def is_last(message: Message) -> bool:
            return LIVE not in message.content and message.body.rstrip().endswith(question)

        with suppress(AssertionError):
            await self._ann.until(lambda: any(map(is_last, new())), within=60)
        return any(map(is_last, new()))

    async def _see(self, room: str, bot: Login, words: int, interval: float) -> SeenGrowing:
        await take_a_breath(self._ann, room)
        new, began = self._new(room, bot), time.monotonic()
        question = await self._ask(room, words, interval)
        await self._ann.until(lambda: bool(new()), within=60)
        first = time.monotonic()
        assert await self._is_whole(new, question)
        last = time.monotonic()
        return SeenGrowing(first - began, first - self._token_at, last - began, new())

    async def growing(self, name: str, rounds: int, pause: float) -> list[str]:
        """Answers of three seconds, one after the other."""
        config, login = self._bench.config(name)
        async with Bot(config):
            room, seen = await self._bench.room_joined(login), list[SeenGrowing]()
            await self._see(room, login, *AT_ONCE)
            for _ in range(rounds):
                seen.append(await self._see(room, login, *THREE_SECONDS))
                await asyncio.sleep(pause)
        events = [len(each.messages) for each in seen]
        words = sum(each.messages[0].body.startswith("word") for each in seen)
        times = " | ".join(map(_spread, list(zip(*seen, strict=True))[:3]))
        many = f"{statistics.mean(events):.1f}, most {max(events)}"
        return [f"| {name} | {times} | {many} | {words} of {rounds} |"]

    async def edits(self) -> list[str]:
        """Edits by length and pace: of the schedule, and seen where that takes seconds."""
        (config, login), rows = self._bench.config("edits"), []
        async with Bot(config):
            room = await self._bench.room_joined(login)
            for tokens, pace in ((t, p) for t in (100, 1_000, 5_000) for p in (5, 50)):
                steps = range(0, 10 * tokens // pace, max(1, 10 // pace))
                ticks = {tick / 10: "word " * max(1, pace // 10) for tick in steps}
                planned = len(went_out(ticks, tokens / pace))  # the draft is none, the end is one
                measured = "-"
                if tokens <= 20 * pace:
                    seen = await self._see(room, login, tokens, 1 / pace)
                    measured = str(len(seen.messages) - 1)
                rows.append(f"| {tokens} tokens, {pace}/s | {planned} | {measured} |")
        return rows

    async def latency(self, rounds: int) -> list[str]:
        """Message to whole answer but for the model's time: streaming, not, and an echo bot, in turn."""
        (on, ours), (off, silent) = self._config("on"), self._config("off", streams=False)
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
        config, login = self._bench.config("killed")
        lost, said = 0, list[Message]()
        async with Bot(config) as bot:
            rooms = [await self._bench.room_joined(login) for _ in range(ROOMS)]
            for _ in range(kills):
                await take_a_breath(self._ann, rooms[0])
                asked = [(self._new(x, login), await self._ask(x, *SHORT)) for x in rooms]
                await asyncio.sleep(random.uniform(0, 1.2 * SHORT[0] * SHORT[1]))
                await bot.kill()
                await bot.start()
                lost += sum([not await self._is_whole(*each) for each in asked])
                await bot.said_all()
            for room in rooms:
                said += [m for m in await self._ann.history(room) if m.sender == login.user_id]
        first = [m for m in said if "m.relates_to" not in m.content]
        drafts = sum(LIVE in m.content for m in first)
        doubled = len(first) - (kills * ROOMS - lost)
        return [f"| {kills} | {kills * ROOMS}, {drafts} with a draft | {lost} | {doubled} |"]

    async def memory(self, folder: Path) -> list[str]:
        """PSS of daemons of an environment of their own, idle after some answers."""
        found: dict[bool, list[float]] = {True: [], False: []}
        with private_environment(folder / "private") as python:
            for n, streams in enumerate([True, False] * 3):
                config, login = self._config(f"pss-{n}", streams=streams)
                async with Bot(config, python=python) as bot:
                    room = await self._bench.room_joined(login)
                    for _ in range(5):
                        await self._see(room, login, *TWO_SECONDS)
                    await asyncio.sleep(PAUSE)
                    found[streams].append(pss(bot.pid))
        on, off = map(statistics.median, found.values())
        return [f"| PSS | {on:.1f} MB | {off:.1f} MB | {on - off:+.1f} MB |"]

    def _config(self, name: str, *, streams: bool = True) -> tuple[Path, Login]:
        return self._bench.config(name, matrix={"streaming": streams})


def _spread(seconds: Sequence[float]) -> str:
    return f"{statistics.median(seconds):.2f} / {p95(seconds):.2f} s"


async def bench(part: str, rounds: int, kills: int) -> None:
    """Print the rows of a part, with a homeserver of its own."""
    async with chat(AS_SHIPPED if part == "limits" else None) as world:
        run = GrowingBench(Bench(world, 0), world.ann, world.model)
        match part:
            case "growing" | "limits":
                show(await run.growing(part, rounds, PAUSE * (part == "limits")))
            case "edits":
                show(await run.edits())
            case "latency":
                show(await run.latency(rounds))
            case "kills":
                show(await run.kills(kills))
            case "memory":
                show(await run.memory(world.folder))


if __name__ == "__main__":
    parts = ["growing", "limits", "edits", "latency", "kills", "memory"]
    parser = options(__doc__)
    parser.add_argument("--only", nargs="+", choices=parts, default=parts)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--kills", type=int, default=20)
    chosen = parser.parse_args()
    show([f"load {os.getloadavg()[0]:.1f}"])
    for each in chosen.only:
        asyncio.run(bench(each, chosen.rounds, chosen.kills))
