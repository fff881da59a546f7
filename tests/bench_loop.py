"""What one cast costs beside the model, however much was said before, and what many casts leave.

    python -m tests.bench_loop

A part of `make bench`; docs/benchmarks.md reports it.
"""

import asyncio
import ctypes
import json
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pysqlite3

from tests.bench_runner import TimedModels, ms_since, options, pss, show, spread, table_row
from tests.world.house import ANN, PROMPTS, ROOM, WARDS, House, house_at_work, open_house
from tests.world.model import ModelServer, Seen, Step, Text, is_for_summary
from wintermute.config.schema import SubSessionSettings
from wintermute.llm.models import Models
from wintermute.messages import Call, Json, Reply, Request, Usage

SIZES = (10, 1_000, 50_000)
ROUNDS = 200
CASTS = 10_000
NODES = 1_000
WARM = 500
SUMMARY = "Ann and the assistant talked about tea, trains and the garden, and nothing is open."
USUAL = Usage(2500, 12, 0)
WINDOW: Json = {"context_tokens": 32_768, "max_output_tokens": 1024}


def answers(model: ModelServer, seen: Seen) -> Step:
    """A short answer with believable usage, or a summary; the server forgets what it was asked."""
    model.requests.clear()
    text = SUMMARY if is_for_summary(seen.body) else "Noted, I will keep that in mind."
    return Text(text, usage=USUAL)


async def overhead() -> list[str]:
    """From a stored message to its stored answer, less what asking the model took."""
    async with AsyncExitStack() as stack:
        model = await stack.enter_async_context(ModelServer())
        model.keyed(partial(answers, model))
        houses = {}
        for turns in SIZES:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            house = await stack.enter_async_context(
                open_house(folder, model.url, prompts=PROMPTS, models_type=TimedModels, **WINDOW)
            )
            await stack.enter_async_context(house.working())
            await _fill(house, turns)
            houses[turns] = house
        whole: dict[int, list[float]] = {turns: [] for turns in SIZES}
        asked: list[float] = []
        for n in range(ROUNDS + 5):
            for turns, house in houses.items():
                beside, model_took = await _answered(house, n)
                if n >= 5:
                    whole[turns].append(beside)
                    asked.append(model_took)
    goal = "p95 ≤ 25 ms"
    sizes = [table_row(f"{turns:,} turns before", *spread(ms), goal) for turns, ms in whole.items()]
    return [table_row("asking the model itself", *spread(asked), ""), *sizes]


async def _answered(house: House, n: int) -> tuple[float, float]:
    models = house.models
    assert isinstance(models, TimedModels)
    models.seconds = 0.0
    began = time.perf_counter()
    await house.say(f"Remember the garden, please, {n}")
    asked = 1000 * models.seconds
    return ms_since(began) - asked, asked


async def _fill(house: House, turns: int) -> None:
    """So many earlier turns, folded as the loop would have left them: the last twenty in view."""
    async with house.database.transaction() as tx:
        conversation = await house.conversations.in_room(tx, ROOM, f"person:{ANN}")
        branch = await house.conversations.current_branch(tx, conversation)
        parent, fold_at = None, None
        for n in range(turns):
            text = f"Message {n} about the garden and what grows there"
            cast = await house.casts.start(tx, branch, f"$old{n}", text, "owner", WARDS.record())
            said = Reply(
                f"Answer {n}, as short as it was", (), "stop", Usage(2500, 12), "m", "m", 9
            )
            turn = await house.casts.add_turn(tx, cast, parent, said, None)
            await house.casts.end(tx, cast.id, "terminated", "text", said.text)
            parent = turn.id
            if n == turns - 20:
                fold_at = turn.id
        if fold_at and turns > 20:
            await house.stores.folds.add(
                tx, branch, fold_at, SUMMARY, after=None, tokens_before=9000, tokens_after=30
            )


async def growth() -> list[str]:
    """PSS of a process before and after many casts, its model server in another one."""
    async with ModelServer() as model:
        model.keyed(partial(answers, model))
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "tests.bench_loop", "--casts", str(CASTS), "--model", model.url),
            stdout=asyncio.subprocess.PIPE,
        )
        assert process.stdout is not None
        rows: list[str] = []
        first: float | None = None
        async for line in process.stdout:
            casts, size = int(line.split()[0]), float(line.split()[1])
            first = first or size
            beside = " | ".join(line.decode().split()[2:])
            rows.append(
                f"| after {casts:,} casts | {size:.1f} MB | {size - first:+.1f} MB | {beside} |"
            )
            print(rows[-1], file=sys.stderr, flush=True)  # noqa: T201  it takes minutes
        await process.wait()
    return rows


async def grow(casts: int, model: str) -> None:
    """What `growth` runs in the other process."""
    with tempfile.TemporaryDirectory() as name:
        async with house_at_work(Path(name), model, prompts=PROMPTS, **WINDOW) as house:
            await _many(house, WARM)
            for done in range(0, casts + 1, casts // 10):
                print(done, pss(), sys.getallocatedblocks(), _sqlite_mb(), flush=True)  # noqa: T201
                await _many(house, casts // 10 if done < casts else 0)


async def _many(house: House, casts: int) -> None:
    for n in range(casts):
        await house.say(f"Remember the garden, please, {n}")
        house.speaker.noted.clear()  # what the stand-in for a room noted
        house.speaker.drafts.clear()


def _sqlite_mb() -> str:
    """MB that SQLite has, its caches of pages above all."""
    used = ctypes.CDLL(pysqlite3._sqlite3.__file__).sqlite3_memory_used
    used.restype = ctypes.c_int64
    return f"{used() / 1e6:.2f}"


class AtOnce(Models):
    """Answers without asking: the room hands out a graph, its parts are done at once."""

    async def ask(self, role: str, request: Request, **_: Any) -> Reply:
        calls: tuple[Call, ...] = ()
        if "# Objective" in str(request.messages[0]["content"]):
            calls = (Call("done", "done", '{"answer": "So it is."}'),)
        elif request.messages[-1]["content"] == "go":
            calls = tuple(Call(f"call{n}", "spawn_sub_session", _node(n)) for n in range(NODES))
        return Reply("" if calls else "Begun.", calls, "stop", USUAL, "none", "none", 0)


def _node(n: int) -> str:
    """Ten at a time, each waiting for two of the ten before it; the last waits for ten."""
    needs = range(n - 10, n) if n == NODES - 1 else [n - 10, n - 9 - n % 10]
    names = [f"part{needed}" for needed in needs if n >= 10]
    return json.dumps({"objective": f"Do part {n}", "name": f"part{n}", "depends_on": names})


async def workflow() -> list[str]:
    """A large graph: spawned by one turn, then worked off, with a model that takes no time."""
    with tempfile.TemporaryDirectory() as name:
        async with house_at_work(
            Path(name),
            "http://127.0.0.1:9/v1",
            models_type=AtOnce,
            sub_sessions=SubSessionSettings(),
            context_tokens=1_000_000,
        ) as house:
            began = time.perf_counter()
            await house.incoming("go")
            spawned = await _spoken(house, 1)
            ended = await _spoken(house, 2)  # the report
    whole = f"{ended - began:.1f} s | {1000 * (ended - began) / NODES:.1f} ms"
    return [
        f"| {NODES:,} nodes spawned in one turn | {spawned - began:.1f} s"
        f" | {1000 * (spawned - began) / NODES:.1f} ms each |",
        f"| spawned, run, done and reported | {whole} each |",
    ]


async def _spoken(house: House, n: int) -> float:
    """When so much was said."""
    while len(await house.spoken()) < n:
        house.speaker.changed.clear()
        await house.speaker.changed.wait()
    return time.perf_counter()


async def rows() -> list[str]:
    """All tables."""
    return [*await overhead(), *await growth(), *await workflow()]


def main() -> None:
    """Print the rows, or be the process that grows."""
    parser = options(__doc__)
    parser.add_argument("--casts", type=int)
    parser.add_argument("--model")
    asked = parser.parse_args()
    if asked.casts:
        asyncio.run(grow(asked.casts, asked.model))
    else:
        show(asyncio.run(rows()))


if __name__ == "__main__":
    main()
