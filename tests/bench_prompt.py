"""What a system prompt costs: the time to put a large one together.

    python -m tests.bench_prompt

A part of `make bench`; docs/benchmarks.md reports it.
"""

import asyncio
import tempfile
import time
from pathlib import Path

from tests.bench_runner import Backend, ms_since, show, spread, table_row
from tests.world.house import PROMPTS, SCOPE, House, open_house
from wintermute.changes.change_sets import Reason
from wintermute.clock import SystemClock
from wintermute.config.schema import Memory
from wintermute.llm.embedded import EmbeddedEmbedder
from wintermute.memory.ranking import Query
from wintermute.prompt.assemble import assemble
from wintermute.prompt.context_builder import MemoryQuery
from wintermute.prompt.tool_names import TOOLS

WHY = Reason("command", SCOPE)
FACTS, TASKS, SKILLS = 10_000, 1_000, 200
ROUNDS = 200


async def rows() -> list[str]:
    """A prompt with many facts, tasks and skills, unchanged and after each change of one fact."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ranked = [await _ranked(folder / "ranked", backend) for backend in ("fts5", "local_vector")]
        async with open_house(folder, None, prompts=PROMPTS) as house:
            await _fill(house)
            prompt = assemble(await house.gather.all_parts(SCOPE, TOOLS))
            taken = [await _timed(house) for _ in range(ROUNDS)]
            changed = []
            for n in range(20):
                await _remember(house, [f"Ann's newest thing is number {n}"])
                changed.append(await _timed(house))
    size = f"{FACTS:,} facts, {TASKS:,} tasks, {SKILLS} skills ({len(prompt):,} characters)"
    return [
        table_row(size, *spread(taken), "p95 ≤ 20 ms"),
        table_row("the same, after a new fact", *spread(changed), "-"),
        *ranked,
    ]


async def _ranked(folder: Path, backend: Backend) -> str:
    """A prompt with those of as many facts that fit a message; the vector of the query included."""
    place, clock = folder / backend, SystemClock()
    place.mkdir(parents=True)
    embedder = EmbeddedEmbedder(clock) if backend == "local_vector" else None
    memory = Memory(backend=backend)
    async with open_house(place, None, prompts=PROMPTS, memory=memory, embedder=embedder) as house:
        await _fill(house)
        if house.stores.meaning is not None:
            await house.stores.meaning.make()
        taken = [
            await _timed(house, MemoryQuery(Query(f"in which box is thing {47 * n % FACTS} kept?")))
            for n in range(ROUNDS)
        ]
    name = f"{FACTS:,} facts of which those that fit are shown, `{backend}`"
    return table_row(name, *spread(taken), "p95 ≤ 25 ms")


async def _fill(house: House) -> None:
    for start in range(0, FACTS, 500):
        numbers = range(start, start + 500)
        await _remember(
            house, [f"Ann keeps thing {n} in box {n % 97} of the cellar" for n in numbers]
        )
    async with house.database.transaction() as tx:
        for n in range(TASKS):
            text = f"Bring back thing number {n}"
            await house.stores.tasks.add(tx, WHY, text, scope=SCOPE, priority=n % 10 + 1)
    for n in range(SKILLS):
        await house.stores.skills.write(WHY, f"skill{n}", f"How to do thing {n}", "Step by step.")


async def _remember(house: House, texts: list[str]) -> None:
    async with house.database.transaction() as tx:
        for text in texts:
            await house.stores.facts.add(tx, WHY, text, "user_explicit", scope=SCOPE)


async def _timed(house: House, asked: MemoryQuery | None = None) -> float:
    began = time.perf_counter()
    parts = await house.gather.all_parts(SCOPE, TOOLS, asked)
    assemble(parts)
    assert not asked or parts.memories
    return ms_since(began)


if __name__ == "__main__":
    show(asyncio.run(rows()))
