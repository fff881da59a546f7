"""What a wiki of 10,000 pages and 40,000 links costs: `python -m tests.bench_wiki`.

Cold is a process that has seen nothing of the store, with its files in the system's cache; warm is one
that has, and looks at the time of each file again. docs/benchmarks.md reports it.
"""

import asyncio
import gc
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.bench_runner import ms_since, show
from tests.world.wiki import made, page
from wintermute.wiki.store import WikiStore

PAGES, LINKS = 10_000, 4
WORDS = [
    "garden",
    "house",
    "winter",
    "music",
    "letter",
    "journey",
    "bread",
    "river",
    "doctor",
    "school",
    "summer",
    "promise",
]
COLD, WARM, COMMANDS = 5, 21, 5
NAMED = "Garden 4711"


def lay(root: Path, pages: int = PAGES) -> Path:
    """A store as it may be after years: half of it in either folder, code in each page."""
    draw = random.Random(1)
    names = [f"{WORDS[n % len(WORDS)].capitalize()} {n}" for n in range(pages)]
    files: dict[str, str | bytes] = {"meta/Index.md": page("\n".join(map(_link, names[:90])))}
    for n, name in enumerate([*names[:-1], NAMED]):
        links = "\n".join(f"It has to do with {_link(draw.choice(names))}." for _ in range(LINKS))
        said = " ".join(draw.choices(WORDS, k=80))
        folder = ("semantic", "episodic")[n % 2]
        files[f"{folder}/{name}.md"] = page(f"# {name}\n\n{said}\n\n{links}\n\nRun `make {n}`.")
    made(root, files)
    old = time.time_ns() - 10**10
    for path in root.rglob("*"):
        os.utime(path, ns=(old, old))
    return root


def _link(name: str) -> str:
    return f"[[{name}]]"


def timed(work: Callable[[], object], rounds: int) -> tuple[float, float]:
    """Median and best, in milliseconds."""
    took = [_once(work) for _ in range(rounds)]
    return statistics.median(took), min(took)


def _once(work: Callable[[], object]) -> float:
    gc.collect()  # of the one before
    began = time.perf_counter()
    work()
    return ms_since(began)


def asked(store: WikiStore) -> dict[str, Callable[[], object]]:
    """What is measured, by name, as commands and tools do it."""

    def recall() -> object:
        path = store.resolve(NAMED)
        assert isinstance(path, str)
        return store.files.content(path)

    return {
        "resolve": lambda: store.resolve(NAMED),
        "recall: resolve and read": recall,
        "resolve a title that is none, with those that are like it": lambda: (
            store.resolve("Gardn 471"),
            store.tree().names.like("the garden 4711"),
        ),
        "backlinks": lambda: store.graph().backlinks(f"semantic/{NAMED}.md"),
        "orphans": lambda: store.graph().orphans,
        "broken": lambda: store.graph().broken,
        "check": store.problems,
        "search for two words": lambda: store.search("music garden", 10),
    }


def look(root: Path) -> object:
    """The least there is to do: each file's time, by its path."""
    paths = (path for folder in ("semantic", "episodic") for path in _paths(root / folder))
    return max(os.lstat(path).st_mtime_ns for path in paths)


def _paths(folder: Path) -> Iterator[str]:
    return (f"{folder}/{name}" for name in os.listdir(folder))  # noqa: PTH208  as quick as can be


def locked(store: WikiStore, work: Callable[[], object]) -> object:
    """With the lock that each takes."""
    with store.files.reading():
        return work()


def processor(root: Path) -> Iterator[str]:
    """A row for each question: cold, warm, and as a command."""
    warm = asked(store := WikiStore(root))
    for name in warm:
        cold = timed(lambda name=name: locked(other := WikiStore(root), asked(other)[name]), COLD)  # type: ignore[misc]  # bound at once
        locked(store, warm[name])
        again = timed(lambda name=name: locked(store, warm[name]), WARM)  # type: ignore[misc]
        yield f"| {name} | {_shown(*cold)} | {_shown(*again)} |"
    yield f"| the time of each file alone | | {_shown(*timed(lambda: look(root), WARM))} |"


def _shown(median: float, best: float) -> str:
    return f"{median:,.1f} ms ({best:,.1f})"


def command(root: Path, *words: str) -> str:
    """A whole process."""
    line = [sys.executable, "-m", "wintermute", "wiki", words[0], "--store", str(root), *words[1:]]
    took = timed(lambda: subprocess.run(line, stdout=subprocess.DEVNULL, check=False), COMMANDS)
    return f"| `wintermute wiki {' '.join(words)}` | {_shown(*took)} | |"


def memory(root: Path) -> Iterator[str]:
    """What is kept of the store, in MB."""
    tracemalloc.start()
    store = WikiStore(root)
    store.tree()
    yield f"| kept of names and paths alone | {tracemalloc.get_traced_memory()[0] / 2**20:.1f} MB | |"
    store.pages()
    yield f"| with what each page links to | {tracemalloc.get_traced_memory()[0] / 2**20:.1f} MB | |"
    assert store.graph().backlinks("") == ()
    yield f"| with the graph of all links | {tracemalloc.get_traced_memory()[0] / 2**20:.1f} MB | |"
    tracemalloc.stop()


async def rows() -> list[str]:
    """All tables."""
    with tempfile.TemporaryDirectory() as folder:
        root = lay(Path(folder))
        lines = [f"| {PAGES:,} pages, {PAGES * LINKS:,} links | cold | warm |", "|---|---|---|"]
        lines += processor(root)
        for words in (["resolve", NAMED], ["backlinks", NAMED], ["orphans"], ["broken"], ["check"]):
            lines.append(command(root, *words))
        return [*lines, *memory(root)]


if __name__ == "__main__":
    show(asyncio.run(rows()))
