"""Memories searched and written by several programs at once: a daemon, and commands beside it."""

import asyncio
import json
import sys

import pytest

from tests.world.house import PROMPTS, House, open_house
from tests.world.memory import index_is_sound
from tests.world.model import ModelServer
from tests.world.ranked import remember_fact
from tests.world.terminal import OWNER, Terminal, beside, keep_by
from wintermute.clock import SystemClock
from wintermute.config.schema import Memory
from wintermute.memory.ranking import Query

LINES, ROUNDS = 600, 12


def imported(terminal: Terminal, name: str) -> str:
    file = terminal.folder / f"{name}.jsonl"
    lines = ({"id": f"{name}{n}", "text": f"{name} number {n} is white"} for n in range(LINES))
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return str(file)


async def live_on(house: House) -> None:
    """Store, search and take back, as a daemon does, until it has been enough."""
    for n in range(ROUNDS):
        stored = await remember_fact(house, f"Tea number {n} is green", OWNER)
        hits = await house.stores.memories.search(OWNER, Query(f"green tea number {n}"), 50)
        assert stored in {hit.fact.id for hit in hits}
        await house.stores.memories.text(OWNER)
        await asyncio.sleep(0)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["flat_file", "fts5"])
async def test_commands_beside_it_are_safe(
    terminal: Terminal, model: ModelServer, way: str
) -> None:
    """M-065, M-069, issue 18: two that import, some that search, and one that answers."""
    keep_by(terminal, way)
    memory = Memory(backend=way)  # type: ignore[arg-type]  # one of them
    house = open_house(
        terminal.data, model.url, prompts=PROMPTS, memory=memory, owner="@you:example.org"
    )
    files = [imported(terminal, name) for name in ("Milk", "Salt")]
    search: tuple[str, ...] = ("memory", "search", "green tea", "--k", "50", "--json")
    async with house as opened:
        commands = [*(("memory", "import", file) for file in files), *[search] * 3]
        async with asyncio.TaskGroup() as group:
            group.create_task(live_on(opened))
            tasks = [group.create_task(beside(terminal, *words)) for words in commands]
        done = [task.result() for task in tasks]
        assert [(each.returncode, each.stderr) for each in done] == [(0, b"")] * len(done)
        found = json.loads((await beside(terminal, *search)).stdout)["hits"]
        assert len(found) == ROUNDS
        live = [fact.text for fact in await opened.stores.facts.live(OWNER)]
        assert len(live) == len(set(live)) == 2 * LINES + ROUNDS
        for name in ("Milk", "Salt"):
            hits = await opened.stores.memories.search(OWNER, Query(f"{name} number 7"), 1)
            assert [hit.fact.id for hit in hits] == [f"{name}7"]
    assert await index_is_sound(terminal.data)


async def test_no_program_finds_what_is_undone(terminal: Terminal, model: ModelServer) -> None:
    """M-020, M-065: at the very next search, whoever changed it."""
    keep_by(terminal, "fts5")
    house = open_house(
        terminal.data,
        model.url,
        prompts=PROMPTS,
        memory=Memory(backend="fts5"),
        owner="@you:example.org",
    )
    async with house as opened:
        search = opened.stores.memories.search
        added = await beside(terminal, "memory", "add", "Likes tea", "--json")
        stored = json.loads(added.stdout)["id"]
        [hit] = await search(OWNER, Query("tea"), 5)
        assert hit.fact.id == stored
        steps = ((("undo", "--last"), 0), (("add", "Likes tea"), 1), (("rebuild-index",), 1))
        for words, n in steps:
            done = await beside(terminal, "memory", *words)
            assert done.returncode == 0, done.stderr
            assert len(await search(OWNER, Query("tea"), 5)) == n
        [hit] = await search(OWNER, Query("tea"), 5)
        done = await beside(terminal, "memory", "forget", hit.fact.id)
        assert await search(OWNER, Query("tea"), 5) == []
    assert await index_is_sound(terminal.data)


EDITOR = """
import os, pathlib, random, sys, time
file = pathlib.Path(sys.argv[1])
for n in range(int(sys.argv[2])):
    text = file.read_text() if file.exists() else ""
    time.sleep(random.random() / 50)
    text += f"Pen number {n} is blue\\n"
    if n % 2:
        file.with_suffix(".tmp").write_text(text)
        os.replace(file.with_suffix(".tmp"), file)
    else:
        with file.open("w") as opened:
            time.sleep(random.random() / 200)
            opened.write(text)
    time.sleep(random.random() / 50)
"""
"""Appends a line to what it has read, and saves: in place, or as a new file."""


@pytest.mark.parametrize(
    ("way", "rounds"),
    [("flat_file", 3), ("fts5", 3), pytest.param("flat_file", 100, marks=pytest.mark.slow)],
)
async def test_a_command_a_daemon_and_an_editor_write_at_once_and_nothing_is_gone(
    terminal: Terminal, model: ModelServer, way: str, rounds: int
) -> None:
    """F-066: what each of the three wrote is remembered; with `fts5` nobody reads the file."""
    keep_by(terminal, way)
    file = terminal.data / "MEMORIES.txt"
    house = open_house(
        *(terminal.data, model.url),
        clock=SystemClock(),
        prompts=PROMPTS,
        memory=Memory(backend=way),  # type: ignore[arg-type]  # one of them
        owner="@you:example.org",
    )
    async with house as opened:
        memories = opened.stores.memories
        await remember_fact(opened, "The first of all", OWNER)
        await memories.text(OWNER)

        async def daemon() -> None:
            for n in range(rounds):
                await remember_fact(opened, f"Tea number {n} is green", OWNER)
                await memories.text(OWNER)

        async def commands() -> None:
            for n in range(rounds):
                done = await beside(terminal, "memory", "add", f"Milk number {n} is white")
                assert done.returncode == 0

        async def editor() -> None:
            words = (sys.executable, "-c", EDITOR, str(file), str(rounds))
            assert await (await asyncio.create_subprocess_exec(*words)).wait() == 0

        async with asyncio.TaskGroup() as group:
            for work in (daemon, commands, *([editor] if way == "flat_file" else [])):
                group.create_task(work())
        written = file.read_text().splitlines()
        shown = (await memories.text(OWNER)).splitlines()
        live = {fact.text for fact in await opened.stores.facts.live(OWNER)}
    kinds = {"Tea": "green", "Milk": "white"} | ({"Pen": "blue"} if way == "flat_file" else {})
    said = {f"{kind} number {n} is {how}" for kind, how in kinds.items() for n in range(rounds)}
    assert said | {"The first of all"} == live
    if way == "flat_file":
        assert sorted(file.read_text().splitlines()) == sorted(live)
    else:
        assert written[1:] == shown  # no older list was put in its place
        assert len(shown) == min(50, len(live))
    assert not [*terminal.data.glob(".MEMORIES*")]
