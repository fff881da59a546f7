"""What bringing twenty facts together costs beside the model: `python -m tests.bench_reconstruction`.

    python -m tests.bench_reconstruction [--facts 100 10000 100000] [--rounds N]

One scope has all facts, taken in as `memory import` does. In each round the assistant is asked to
remember twenty more, has their vectors made, and works the queue as the job and `memory reconstruct`
do. The scripted model answers at once: it joins the new ones two by two, and as many old ones. What
asking it took is subtracted, our client included; what the embedder took is told apart, for it runs
in a process of its own. Sizes take turns, so that ratios mean something on a busy machine.
"""

import asyncio
import json
import random
import re
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.bench_runner import (
    BACKENDS,
    Backend,
    TimedModels,
    options,
    p95,
    settle_memory,
    show,
    take_in,
)
from tests.bench_search import lines, sentence
from tests.world.house import PROMPTS, SCOPE, House, open_house
from tests.world.model import Calls, ModelServer, Seen, Step, Text, Use
from wintermute.clock import SystemClock
from wintermute.config.schema import Memory
from wintermute.learning.reconstruction import Reconstruction
from wintermute.llm.background import BackgroundModels
from wintermute.llm.embedded import EmbeddedEmbedder
from wintermute.llm.vector import Vector
from wintermute.templates import Template

BATCH = 20
JOINED = 10
"""Old facts that the model joins as well."""
SHORT = 200
WARM = 2
GOAL = "≤ 150 ms, flat"


class TimedEmbedder(EmbeddedEmbedder):
    """Notes how long vectors took, and of how many texts."""

    seconds = 0.0
    texts = 0

    async def embed_query(self, texts: Sequence[str]) -> list[Vector | None]:
        return await self._noted(super().embed_query, texts)

    async def embed_document(self, texts: Sequence[str]) -> list[Vector | None]:
        return await self._noted(super().embed_document, texts)

    async def _noted(self, embed: Callable[..., Any], texts: Sequence[str]) -> list[Vector | None]:
        began = time.perf_counter()
        try:
            made: list[Vector | None] = await embed(texts)
            return made
        finally:
            self.seconds += time.perf_counter() - began
            self.texts += len(texts)


class Asked:
    """The scripted model: remembers what it is told to, and joins what it is shown."""

    def __init__(self, model: ModelServer) -> None:
        self._model = model
        self.texts: list[str] = []

    def answers(self, seen: Seen) -> Step:
        """The server forgets what it was asked, or a long run would hold it all."""
        self._model.requests.clear()
        question = seen.system
        if "\n<new_contents>\n" in question:
            new, old = block(question, "new_contents"), block(question, "related_memories")
            short = [text for text in old if len(text) < SHORT]  # else they grow for ever
            memories = [*pairs(new), *pairs(short[:JOINED])]
            return Text(json.dumps({"memories": memories, "coverage": "complete"}))
        if seen.messages[-1]["role"] == "tool":
            return Text("Noted.")
        return Calls(tuple(Use("append_memory", {"entry": text}) for text in self.texts))


def block(question: str, name: str) -> list[str]:
    """The lines of a block of data."""
    found = re.findall(rf"\n<{name}>\n(.*?)\n</{name}>", question, re.DOTALL)
    return [line.removeprefix("- ") for line in found[-1].splitlines() if line != "- (none)"]


def pairs(texts: Sequence[str]) -> list[str]:
    """The texts, two in one."""
    return [" and ".join(texts[n : n + 2]) for n in range(0, len(texts), 2)]


@dataclass(frozen=True, slots=True)
class Round:
    """Milliseconds of one batch beside the model, with those of the embedder, and of what follows.

    `cpu`: of this process, the scripted model's server included.
    """

    whole: float
    cpu: float
    vectors: float
    texts: int
    after: float
    replaced: int

    @property
    def own(self) -> float:
        """Beside the embedder too."""
        return self.whole - self.vectors


class Scope:
    """One house whose owner has so many facts."""

    def __init__(self, house: House, memory: Memory, asked: Asked, embedder: TimedEmbedder) -> None:
        self._rounds = 0
        self._house = house
        self._asked = asked
        self._embedder = embedder
        assert isinstance(house.models, TimedModels)
        self._models = house.models
        template = Template(PROMPTS, "RECONSTRUCTION_PROMPT.txt")
        models = BackgroundModels(house.models)
        self._work = Reconstruction(house.stores, models, template, memory)

    async def fill(self, count: int) -> None:
        """Take them in, with their vectors where there are any."""
        await take_in(self._house.stores, lines(count), meaning=True)

    @asynccontextmanager
    async def answering(self) -> AsyncIterator[None]:
        """Chats are answered, and nothing is done that nobody waits for."""
        async with asyncio.TaskGroup() as group:
            task = group.create_task(self._house.answers.run())
            yield
            task.cancel()

    async def round(self, draw: random.Random) -> "Round":
        """Twenty facts are remembered, and brought together."""
        self._asked.texts = [sentence(draw) for _ in range(BATCH)]
        self._rounds += 1
        await self._house.say("please remember all of it", room=f"!round{self._rounds}:test")
        await settle_memory(self._house.stores)
        models, embedder = self._models, self._embedder
        models.seconds = embedder.seconds = 0.0
        embedder.texts = 0
        began, busy = time.perf_counter(), time.process_time()
        done = await self._work.empty_queue(SCOPE, taint=False)
        whole = time.perf_counter() - began - models.seconds
        cpu = time.process_time() - busy
        assert (done.batches, done.kept, done.failed) == (1, 0, 0), done
        made, texts = embedder.seconds, embedder.texts
        began = time.perf_counter()
        await settle_memory(self._house.stores)
        after = time.perf_counter() - began
        return Round(1000 * whole, 1000 * cpu, 1000 * made, texts, 1000 * after, done.replaced)


async def rows(backend: Backend, sizes: Sequence[int], rounds: int) -> list[str]:
    """A row for each size, the sizes in turn."""
    memory, draw = Memory(backend=backend), random.Random(1)
    async with AsyncExitStack() as stack:
        model = await stack.enter_async_context(ModelServer(rules=False))
        asked = Asked(model)
        model.keyed(asked.answers)
        scopes = {}
        for count in sizes:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            embedder = TimedEmbedder(SystemClock())
            opened = open_house(
                *(folder, model.url),
                prompts=PROMPTS,
                memory=memory,
                embedder=embedder if backend == "local_vector" else None,
                models_type=TimedModels,
                context_tokens=65_536,
            )
            house = await stack.enter_async_context(opened)
            scopes[count] = Scope(house, memory, asked, embedder)
            await stack.enter_async_context(scopes[count].answering())
            await scopes[count].fill(count)
        taken: dict[int, list[Round]] = {count: [] for count in sizes}
        for n in range(rounds + WARM):
            for count, scope in scopes.items():
                done = await scope.round(draw)
                if n >= WARM:
                    taken[count].append(done)
    return [_row(backend, count, found) for count, found in taken.items()]


def _row(backend: str, count: int, found: Sequence[Round]) -> str:
    return (
        f"| {backend}, {count:,} facts | {_shown([each.whole for each in found])} |"
        f" {_shown([each.own for each in found])} | {_shown([each.cpu for each in found])} |"
        f" {statistics.median(each.texts for each in found):.0f} |"
        f" {_shown([each.after for each in found])} | {GOAL} |"
    )


def _shown(times: Sequence[float]) -> str:
    return f"{statistics.median(times):.0f} ms (p95 {p95(times):.0f})"


def main() -> None:
    """Print the rows."""
    parser = options(__doc__)
    parser.add_argument("--facts", type=int, nargs="+", default=[100, 10_000, 100_000])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--backend", choices=BACKENDS, action="append")
    given = parser.parse_args()
    for backend in given.backend or BACKENDS:
        show(asyncio.run(rows(backend, given.facts, given.rounds)))


if __name__ == "__main__":
    main()
