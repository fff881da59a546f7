"""How long memory takes to take in many facts and to find some of them: `python -m tests.bench_search`.

One scope has all of them. Texts are put together by chance from words of which a few are common, as
in any language; the embedder is the real one. The time of a search includes the vector of what is
asked unless `--known`, which asks for the same once more before.
"""

import asyncio
import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.bench_runner import ms_since, options, show, spread, take_in
from tests.world.schema import open_migrated
from wintermute.clock import SystemClock
from wintermute.config.schema import Memory
from wintermute.ids import new_id
from wintermute.llm.embedded import EmbeddedEmbedder
from wintermute.memory.ranking import Query
from wintermute.owner import Owner
from wintermute.stores import Stores, closing

OWNER = "@ann:test"
SCOPE = f"person:{OWNER}"
WHO = ("Ann", "Bob", "Carla", "my sister", "the dentist", "our neighbour", "a friend from school")
DID = ("bought", "lost", "repaired", "painted", "sold", "borrowed", "found", "forgot", "cooked")
WHAT = ("bicycle", "kitchen table", "piano", "garden fence", "winter coat", "old camera", "boat")
WHERE = ("in Lyon", "near the station", "at the market", "by the lake", "in the cellar", "abroad")
WHY = ("for the wedding", "because of the rain", "after work", "with the children", "for a song")


def sentence(draw: random.Random) -> str:
    """A line that somebody might say."""
    when = f"on the {draw.randint(1, 28)}th"
    name = "".join(draw.choice("abcdefgklmnoprstuvw") for _ in range(6)).capitalize()
    parts = (draw.choice(WHO), draw.choice(DID), "the", draw.choice(WHAT), draw.choice(WHERE))
    return " ".join((*parts, draw.choice(WHY), when, "and called it", name))


def lines(count: int) -> Iterator[str]:
    """As many different ones."""
    draw = random.Random(count)
    for n in range(count):
        text = sentence(draw)
        at = f"2025-{n // 3000 % 12 + 1:02}-{n // 100 % 28 + 1:02}T{n % 24:02}:00:00Z"
        yield f'{{"id": "f{n}", "text": "{text}", "at": "{at}", "speaker": "Ann"}}'


async def measured(count: int, rounds: int) -> list[str]:
    """What the figures are, a line each."""
    told: list[str] = []
    clock = SystemClock()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        async with open_migrated(path / "wintermute.db") as database:
            stores = Stores.of(
                *(database, path, Owner(OWNER), clock, new_id),
                timezone="UTC",
                memory=Memory(backend="local_vector"),
                embedder=EmbeddedEmbedder(clock),
            )
            async with closing(stores):
                began = time.perf_counter()
                await take_in(stores, lines(count))
                took = time.perf_counter() - began
                told.append(f"found by words: {count / took:,.0f} facts/s")
                assert stores.meaning is not None
                began = time.perf_counter()
                await stores.meaning.make()
                took = time.perf_counter() - began
                told.append(f"vectors: {count / took:,.0f} facts/s")
                draw = random.Random(1)
                alone: list[float] = []
                whole: list[float] = []
                for _ in range(rounds):
                    query = Query(f"{sentence(draw)}?", sentence(draw))
                    for times in (whole, alone):
                        began = time.perf_counter()
                        hits = await stores.memories.search(SCOPE, query, 10)
                        times.append(ms_since(began))
                        assert hits
                told += [shown("search, its vector made", whole), shown("with its vector", alone)]
    return told


def shown(name: str, times: list[float]) -> str:
    """Median and p95."""
    return "{}: p50 {}, p95 {}".format(name, *spread(times))


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--facts", type=int, default=6_000)
    parser.add_argument("--rounds", type=int, default=200)
    wanted = parser.parse_args()
    found = asyncio.run(measured(wanted.facts, wanted.rounds))
    show(f"{wanted.facts:,} facts, {line}" for line in found)


if __name__ == "__main__":
    main()
