"""What learning by itself costs those who are answered meanwhile, and in memory after a day of it.

    python -m tests.bench_beside [--only latency memory] [--rounds N]

*latency*: from a stored message to its stored answer, in a store of 1,000 facts found by meaning, in
three ways that take turns, fifty messages each: learning is off; each fifth message begins a harvest
that picks one thing, and only answers beside a harvest count; each harvest picks a whole batch, and
core memory follows, so that something of it is at work all the time. The model takes half a second
for each question of theirs and none for an answer. Differences are those of each round, their median.

*memory*: PSS of a daemon of an environment of its own, in an encrypted room, learning on, after 200
messages, for each backend.
"""

import asyncio
import statistics
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from tests.bench_embedder import child_of
from tests.bench_learning import MATERIAL, Learner, said
from tests.bench_runner import (
    Delayed,
    answered,
    options,
    p95,
    private_environment,
    pss,
    show,
    take_in,
)
from tests.bench_search import lines
from tests.world.bot import Bot, write_settings
from tests.world.homeserver import Homeserver
from tests.world.house import PROMPTS, House, open_house
from tests.world.model import ModelServer, Seen, Step, Text
from tests.world.request_rules import is_for_json
from tests.world.user import MatrixUser
from wintermute.clock import SystemClock
from wintermute.config.schema import Memory, MemoryHarvest
from wintermute.llm.embedded import EmbeddedEmbedder

FACTS = 1_000
BLOCK = 50
WARM = 5
TAKES = 0.5
"""Seconds for a question that nobody waits for."""
OFTEN = MemoryHarvest(message_threshold=5)
NEVER = MemoryHarvest(enabled=False)
BUSY = "SELECT 1 FROM jobs WHERE name = 'harvest' AND state IN ('waiting', 'running')"
DAY = 200
SETTLES = 10.0


@dataclass(frozen=True, slots=True)
class Way:
    """How much is learnt meanwhile. `picks`: of each harvest; twenty are a batch at once.

    `beside`: what must be found before or after an answer, else it does not count.
    """

    name: str
    harvest: MemoryHarvest
    picks: int = 0
    beside: str = "SELECT 1"


WAYS = (
    Way("learning off", NEVER),
    Way("while a harvest runs", OFTEN, 1, BUSY),
    Way("learning all the time", OFTEN, 20),
)


class Lazy(Learner):
    """Answers those who wait at once; picks so many things each time."""

    def __init__(self, picks: int) -> None:
        super().__init__()
        self._delayed = Delayed(TAKES)
        self._picks = picks
        self._picked = 0

    def answers(self, seen: Seen) -> Step:
        """By the blocks of the question."""
        step = super().answers(seen)
        if not is_for_json(seen.body):
            return step
        assert isinstance(step, Text)
        return self._delayed(step)

    def contents(self, messages: Sequence[str]) -> list[str]:
        """Each once."""
        self._picked += 1
        words = " ".join(messages)[:100]
        return [f"number {self._picked}.{n} of what Ann said: {words}" for n in range(self._picks)]


async def latency(rounds: int) -> list[str]:
    """All ways in blocks of fifty messages, in turn."""
    texts = said([MATERIAL])
    taken: list[list[list[float]]] = [[] for _ in WAYS]
    asked = [0] * len(WAYS)
    with tempfile.TemporaryDirectory() as name:
        for block in range(max(1, rounds // BLOCK)):
            for n, way in enumerate(WAYS):
                folder = Path(name) / f"{block}.{n}"
                folder.mkdir()
                learner = Lazy(way.picks)
                taken[n].append(await _block(folder, way, learner, texts[: BLOCK + WARM]))
                asked[n] += sum(learner.calls.values())
    return [_row(way, taken[0], taken[n], asked[n]) for n, way in enumerate(WAYS)]


async def _block(folder: Path, way: Way, learner: Lazy, texts: Sequence[str]) -> list[float]:
    """Milliseconds of the answers that count."""
    async with AsyncExitStack() as stack:
        model = await stack.enter_async_context(ModelServer(rules=False))
        model.keyed(learner.answers)
        model.allow("fold", perhaps=True)
        house = await stack.enter_async_context(
            open_house(
                *(folder, model.url),
                prompts=PROMPTS,
                memory=Memory(backend="local_vector"),
                harvest=way.harvest,
                embedder=EmbeddedEmbedder(SystemClock()),
                context_tokens=65_536,
            )
        )
        await take_in(house.stores, lines(FACTS), meaning=True)
        await stack.enter_async_context(house.working())
        times = []
        for text in texts:
            begun = await house.rows(way.beside)
            ms = await answered(house, text)
            if begun or await house.rows(way.beside):
                times.append(ms)
            await _goes_on(house)
        return times[WARM:]


def _row(way: Way, idle: list[list[float]], blocks: list[list[float]], asked: int) -> str:
    ms = [each for block in blocks for each in block]
    pairs = list(zip(idle, blocks, strict=True))
    more = statistics.median(statistics.median(b) - statistics.median(a) for a, b in pairs)
    worse = statistics.median(p95(b) - p95(a) for a, b in pairs)
    return (
        f"| {way.name} | {len(ms)} | {asked} | {statistics.median(ms):.1f} ms ({more:+.1f}) |"
        f" {p95(ms):.1f} ms ({worse:+.1f}) | {max(ms):.0f} ms |"
    )


async def _goes_on(house: House) -> None:
    """A little silence, in which whatever is due begins."""
    for kind in house.runner.job_types:  # as the look does that the daemon takes every two seconds
        kind.wakeup.set()
    await asyncio.sleep(0.1)


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
    parser = options(__doc__)
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
