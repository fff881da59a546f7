"""What learning by itself costs those who are answered meanwhile, and in memory after a day of it.

    python -m tests.bench_beside [--only latency memory] [--rounds N]

*latency*: from a stored message to its stored answer, with learning off and on in turn, a store of
1,000 facts found by meaning. Where it is on, something of it is at work all the time: each fifth
message begins a harvest, what that picks is a batch at once, and core memory follows; the model
takes half a second for each of these questions and none for an answer.

*memory*: PSS of a daemon of an environment of its own, in an encrypted room, learning on, after 200
messages, for each backend.
"""

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from tests.bench import private_environment, pss, show
from tests.bench_embedder import child_of
from tests.bench_learning import MATERIAL, Learner, said
from tests.bench_search import lines
from tests.world.bot import Bot, write_settings
from tests.world.homeserver import Homeserver
from tests.world.house import ANN, PROMPTS, House, open_house
from tests.world.model import ModelServer, Seen, Slow, Step, Text
from tests.world.request_rules import is_for_json
from tests.world.user import MatrixUser
from wintermute.changes.change_sets import Reason
from wintermute.clock import SystemClock
from wintermute.config.schema import Memory, MemoryHarvest
from wintermute.llm.embedded import EmbeddedEmbedder
from wintermute.memory.exchange import Import

SCOPE = f"person:{ANN}"
FACTS = 1_000
BLOCK = 50
WARM = 5
TAKES = 0.5
"""Seconds for a question that nobody waits for."""
OFTEN = MemoryHarvest(message_threshold=5)
NEVER = MemoryHarvest(enabled=False)
DAY = 200
SETTLES = 10.0


class Lazy(Learner):
    """Answers those who wait at once; picks twenty things each time, so that each time is a batch."""

    def __init__(self, gates: set[asyncio.Task[None]]) -> None:
        super().__init__()
        self._gates = gates
        self._picked = 0

    def answers(self, seen: Seen) -> Step:
        """By the blocks of the question."""
        step = super().answers(seen)
        if not is_for_json(seen.body):
            return step
        gate = asyncio.Event()
        task = asyncio.get_running_loop().create_task(self._opens(gate))
        self._gates.add(task)
        task.add_done_callback(self._gates.discard)
        assert isinstance(step, Text)
        return Slow(gate, step)

    def contents(self, messages: Sequence[str]) -> list[str]:
        """Twenty, each once."""
        self._picked += 1
        words = " ".join(messages)[:100]
        return [f"number {self._picked}.{n} of what Ann said: {words}" for n in range(20)]

    async def _opens(self, gate: asyncio.Event) -> None:
        await asyncio.sleep(TAKES)
        gate.set()


async def latency(rounds: int) -> list[str]:
    """Both ways in blocks of fifty messages, in turn."""
    texts = said([MATERIAL])
    taken: dict[bool, list[float]] = {False: [], True: []}
    asked = 0
    with tempfile.TemporaryDirectory() as name:
        for n in range(2 * max(1, rounds // BLOCK)):
            learning = n % 2 == 1
            async with AsyncExitStack() as stack:
                model = await stack.enter_async_context(ModelServer(rules=False))
                learner = Lazy(set())
                model.keyed(learner.answers)
                model.allow("fold", perhaps=True)
                folder = Path(name) / str(n)
                folder.mkdir()
                house = await stack.enter_async_context(
                    open_house(
                        *(folder, model.url),
                        prompts=PROMPTS,
                        memory=Memory(backend="local_vector"),
                        harvest=OFTEN if learning else NEVER,
                        embedder=EmbeddedEmbedder(SystemClock()),
                        context_tokens=65_536,
                    )
                )
                await _fill(house)
                await stack.enter_async_context(house.working())
                times = [await _answered(house, text) for text in texts[: BLOCK + WARM]]
                taken[learning] += times[WARM:]
                asked += sum(learner.calls.values())
    idle, busy = taken[False], taken[True]
    rows = [
        f"| {name} | {statistics.median(ms):.1f} ms | {_p95(ms):.1f} ms | {max(ms):.0f} ms | - |"
        for name, ms in (("learning off", idle), ("learning all the time", busy))
    ]
    worse = f"{statistics.median(busy) - statistics.median(idle):+.1f} ms"
    rows.append(f"| difference | {worse} | {_p95(busy) - _p95(idle):+.1f} ms | | p95 ≤ +10 ms |")
    return [*rows, f"| questions in the background meanwhile | {asked} | | | |"]


async def _fill(house: House) -> None:
    stores = house.stores
    reading = Import(house.database, stores.facts, stores.changes, SCOPE, stores.tasks.zone)
    await reading.run(lines(FACTS), Reason("import", SCOPE))
    await stores.memories.refresh()
    assert stores.meaning is not None
    await stores.meaning.make()


async def _answered(house: House, text: str) -> float:
    """Milliseconds; and a little silence, in which whatever is due begins."""
    began = time.perf_counter()
    await house.incoming(text)
    await house.settled()
    taken = 1000 * (time.perf_counter() - began)
    for kind in house.runner.kinds:  # as the look does that the daemon takes every two seconds
        kind.bell.set()
    await asyncio.sleep(0.1)
    return taken


def _p95(values: Sequence[float]) -> float:
    return sorted(values)[int(len(values) * 0.95)]


async def memory() -> list[str]:
    """A row for each backend."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "synapse").mkdir()
        with (
            Homeserver(folder / "synapse") as homeserver,
            private_environment(folder / "private", "meaning") as python,
        ):
            return [
                await _day(folder, homeserver, python, backend)
                for backend in ("flat_file", "fts5", "local_vector")
            ]


async def _day(folder: Path, homeserver: Homeserver, python: str, backend: str) -> str:
    learner, name = Learner(), backend.replace("_", "-")
    async with ModelServer(rules=False) as model:
        model.keyed(learner.answers)
        model.allow("fold", perhaps=True)
        login, ann = homeserver.user(name), homeserver.user(f"ann-of-{name}")
        config = write_settings(
            *(folder / backend, homeserver.url, login, model.url, ann.user_id),
            memory={"backend": backend},
            memory_harvest={"enabled": True},
        )
        bot = Bot(config, python=python)
        async with MatrixUser(homeserver.url, ann, folder / f"of-{backend}") as person, bot:
            room = await person.create_room(invite=[login.user_id], encrypted=True)
            await person.wait_joined(room, login.user_id)
            await asyncio.sleep(SETTLES)
            before = pss(bot.pid)
            texts = said([MATERIAL])
            for n in range(DAY):
                await person.send(room, texts[n % len(texts)])
                await person.wait_for_count(room, login.user_id, n + 1)
            await asyncio.sleep(SETTLES)
            after = pss(bot.pid)
            child = child_of(bot.pid)
            beside = f"{pss(child):.1f} MB" if child else "-"
            facts = bot.rows("SELECT count(*) AS n FROM facts WHERE retired_at IS NULL")[0]["n"]
    calls = ", ".join(f"{count} {stage}" for stage, count in sorted(learner.calls.items()))
    return f"| {backend} | {before:.1f} MB | {after:.1f} MB | {beside} | {facts} | {calls} |"


def main() -> None:
    """Print the rows."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--only", nargs="+", choices=["latency", "memory"])
    parser.add_argument("--rounds", type=int, default=300)
    given = parser.parse_args()
    wanted = given.only or ["latency", "memory"]
    if "latency" in wanted:
        show(asyncio.run(latency(given.rounds)))
    if "memory" in wanted:
        show(asyncio.run(memory()))


if __name__ == "__main__":
    main()
