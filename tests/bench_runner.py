"""One runner for all benches: options, time, medians, the rows they print, and the worlds they measure."""

import argparse
import asyncio
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from importlib.metadata import distribution, requires
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from packaging.requirements import Requirement

from tests.world.homeserver import Homeserver
from tests.world.house import SCOPE, House
from tests.world.model import ModelServer, Slow, Text
from tests.world.user import MatrixUser
from wintermute.changes.change_sets import Reason
from wintermute.llm.models import Models
from wintermute.memory.exchange import Import
from wintermute.messages import Reply
from wintermute.stores import Stores

OURS = "wintermute"
IDLE_SECONDS = 5.0
Backend = Literal["fts5", "local_vector"]
BACKENDS: tuple[Backend, ...] = get_args(Backend)


def options(about: str | None) -> argparse.ArgumentParser:
    """Describe a bench by the first line of its module."""
    return argparse.ArgumentParser(description=(about or "").split("\n", maxsplit=1)[0])


def show(rows: Iterable[str]) -> None:
    """Print rows as soon as they are there."""
    for each in rows:
        print(each, flush=True)  # noqa: T201


def table_row(*cells: object) -> str:
    """Return the cells as a row of a Markdown table."""
    return f"| {' | '.join(map(str, cells))} |"


def ms_since(began: float) -> float:
    """Return the milliseconds since a moment of `time.perf_counter`."""
    return 1000 * (time.perf_counter() - began)


def p95(values: Sequence[float]) -> float:
    """Return the value that only one in twenty exceeds."""
    return sorted(values)[int(len(values) * 0.95)]


def spread(ms: Sequence[float], digits: int = 1) -> tuple[str, str]:
    """Return the median and the p95 as two cells."""
    return f"{statistics.median(ms):.{digits}f} ms", f"{p95(ms):.{digits}f} ms"


def pss(pid: int | str = "self") -> float:
    """Return the proportional set size of a process in MB."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    found = re.search(r"^Pss:\s+(\d+) kB", text, re.MULTILINE)
    assert found is not None
    return int(found[1]) / 1024


def child_cpu(*arguments: str) -> float:
    """Return the CPU seconds that this interpreter needs for the arguments."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


class TimedModels(Models):
    """Models that note how long they were asked, our client included."""

    seconds = 0.0

    async def ask(self, *args: Any, **kwargs: Any) -> Reply:
        return await self._noted(super().ask, *args, **kwargs)

    async def ask_in_background(self, *args: Any, **kwargs: Any) -> Reply:
        return await self._noted(super().ask_in_background, *args, **kwargs)

    async def _noted(self, ask: Callable[..., Any], *args: Any, **kwargs: Any) -> Reply:
        began = time.perf_counter()
        try:
            reply: Reply = await ask(*args, **kwargs)
            return reply
        finally:
            self.seconds += time.perf_counter() - began


async def take_in(stores: Stores, lines: Iterable[str], *, meaning: bool = False) -> None:
    """Import facts as `memory import` does; make their vectors if `meaning` and there are any."""
    reading = Import(stores.database, stores.facts, stores.changes, SCOPE, stores.tasks.zone)
    await reading.store_lines(iter(lines), Reason("import", SCOPE))
    if meaning:
        await settle_memory(stores)


async def settle_memory(stores: Stores) -> None:
    """Do what the job `embeddings` does after each change."""
    await stores.memories.refresh()
    if stores.meaning is not None:
        await stores.meaning.make()


class Delayed:
    """Answers that take some seconds each."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._opening: set[asyncio.Task[None]] = set()

    def __call__(self, answer: Text) -> Slow:
        gate = asyncio.Event()
        task = asyncio.get_running_loop().create_task(self._open(gate))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)
        return Slow(gate, answer)

    async def _open(self, gate: asyncio.Event) -> None:
        await asyncio.sleep(self._seconds)
        gate.set()


async def answered(house: House, text: str) -> float:
    """Return the milliseconds from a stored message to its stored answer."""
    began = time.perf_counter()
    await house.say(text)
    return ms_since(began)


class Chat(NamedTuple):
    """A homeserver, a model and a person, each fresh."""

    folder: Path
    homeserver: Homeserver
    model: ModelServer
    ann: MatrixUser


@asynccontextmanager
async def chat(limits: dict[str, Any] | None = None) -> AsyncIterator[Chat]:
    """Start them in a folder that goes with them."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "synapse").mkdir()
        with Homeserver(folder / "synapse", limits) as homeserver:
            ann = MatrixUser(homeserver.url, homeserver.user("ann"), folder / "ann")
            async with ModelServer(rules=False) as model, ann:
                yield Chat(folder, homeserver, model, ann)


class private_environment:  # noqa: N801  used as a block
    """A copy of this interpreter and of what runs with the program; no other process maps it.

    What only the demo and the tests need is left out: some of it is used when it is there (cffi).
    """

    def __init__(self, folder: Path, *extras: str) -> None:
        self._folder = folder
        self._extras = extras

    def __enter__(self) -> str:
        subprocess.run(
            [sys.executable, "-m", "venv", "--copies", "--without-pip", self._folder], check=True
        )
        theirs = next(self._folder.glob("lib/python3*/site-packages"))
        for name in runtime_packages(*self._extras):
            for file in distribution(name).files or ():
                if ".." not in file.parts and (source := Path(str(file.locate()))).is_file():
                    (theirs / file).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy2(source, theirs / file)  # with its time, or it is compiled anew
        return str(self._folder / "bin" / "python")

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._folder)


def runtime_packages(*extras: str) -> set[str]:
    """The names of the program's own distribution and of all that it needs, with these extras."""
    found: set[str] = set()
    wanted = [Requirement(OURS)]
    while wanted:
        package = wanted.pop()
        found.add(package.name)
        for line in _ours(extras) if package.name == OURS else requires(package.name) or ():
            needed = Requirement(line)
            wanted_by = [{"extra": extra} for extra in ("", *package.extras)]
            if needed.marker is None or any(map(needed.marker.evaluate, wanted_by)):
                wanted += [] if needed.name in found else [needed]
    return found


def _ours(extras: Iterable[str]) -> list[str]:
    """The program's own requirements as they are written now: an editable installation may be older."""
    project = tomllib.loads(Path("pyproject.toml").read_text("utf-8"))["project"]
    of_extras = [project["optional-dependencies"][extra] for extra in extras]
    return [*project["dependencies"], *(line for lines in of_extras for line in lines)]
