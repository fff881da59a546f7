"""What nights cost, and what they do to those who talk meanwhile: `python -m tests.bench_asleep`.

    python -m tests.bench_asleep [--only cost recall latency undo memory]
        [--messages 100 1000 10000] [--turns FILE --questions FILE --evidence FILE]
        [--facts 100000]

*cost*: calls and tokens of a day of so many messages and of the night behind it. *recall*: dialogues
with near doubles put in on purpose, searched before nights and after them; a hit that was merged
counts as all it was made of, and takes one place. Without the files it is left out.
*latency*: from a stored message to its stored answer, with no night and beside one whose questions
take half a second each, in turn. *undo*: a night of 500 items is taken back. *memory*: PSS of a
daemon whose owner says `/dream` in a store of so many facts, none of them looked at before.

The scripted model picks something out of every third message, keeps the longest of memories that are
alike, and finds that two others say different things. Tokens are our own estimate.
"""

import asyncio
import json
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from itertools import islice
from pathlib import Path

from tests.bench_learning import EVERY, Learner
from tests.bench_runner import (
    BACKENDS,
    Delayed,
    answered,
    options,
    private_environment,
    pss,
    show,
    spread,
    table_row,
    take_in,
)
from tests.bench_score import rows as lines_of
from tests.bench_score import share_found
from tests.bench_search import lines, sentence
from tests.world.bot import Bot, write_settings
from tests.world.homeserver import Homeserver
from tests.world.house import House
from tests.world.model import ModelServer, Seen, Step, Text
from tests.world.request_rules import is_for_json
from tests.world.sleeping import FTS, Sleep, asked, block, sleeping
from tests.world.user import MatrixUser
from wintermute.config.schema import Dreaming, MemoryHarvest
from wintermute.llm.tokens import estimate
from wintermute.memory.ranking import Query
from wintermute.messages import Json, Usage
from wintermute.night.night_undo import undo_items

TAKES = 0.5
"""Seconds for a question of a night."""
BATCH = 50
DOUBLES = 300
DEPTH = 10
MOST_NIGHTS = 30
ITEMS = 510
"""So many pairs that 500 of them are merged."""
SETTLES = 10.0
DAY = 24 * 3600.0
PARTS = ("cost", "recall", "latency", "undo", "memory")


def of_night(seen: Seen) -> Json | None:
    """What is answered to a question of a night about facts; None: it is about something else."""
    if entries := block(seen, "entries"):
        return {"text": max((e.removeprefix("- ") for e in entries.splitlines()), key=len)}
    return {"action": "keep_both"} if block(seen, "first") else None


class Dreamer(Learner):
    """The scripted model, by day and by night."""

    def _stage(self, seen: Seen, question: str) -> tuple[str, Json]:
        if answer := of_night(seen):
            return "night", answer
        if block(seen, "tasks") or block(seen, "skills"):
            return "night", {"actions": []}
        return super()._stage(seen, question)


def said_at_night(seen: Seen) -> Text:
    """With what it took."""
    said = json.dumps(of_night(seen) or {}, ensure_ascii=False)
    return Text(said, usage=Usage(estimate(asked(seen)), estimate(said)))


async def cost(counts: Sequence[int]) -> list[str]:
    """A row for each number of messages."""
    return [await _cost(count) for count in counts]


async def _cost(count: int) -> str:
    dreamer, draw = Dreamer(), random.Random(count)
    said: list[str] = []
    for n in range(count):
        # What is told twice is told again in passing, some days.
        again = said and n % EVERY == 0 and draw.random() < 0.2
        said.append(f"{draw.choice(said)} today" if again else sentence(draw))
    with tempfile.TemporaryDirectory() as name:
        async with ModelServer(rules=False) as model:
            model.allow("fold", perhaps=True)
            opened = sleeping(*(Path(name), model), harvest=MemoryHarvest(), context_tokens=65_536)
            async with opened as sleep:
                model.keyed(dreamer.answers)
                for n in range(0, count, BATCH):
                    await _hour(sleep, said[n : n + BATCH])
                calls, tokens = sum(dreamer.calls.values()), sum(dreamer.tokens.values())
                facts = len(await sleep.facts())
                nights = [await sleep.night()]
                while any(tally.status == "left" for tally in nights[-1].phases):
                    if len(nights) == MOST_NIGHTS:
                        break
                    nights.append(await sleep.night())
                after = len(await sleep.facts())
    first, more = nights[0], nights[1:]
    return (
        f"| {count:,} messages | {calls:,} | {tokens:,} | {first.calls:,} | {first.tokens:,} |"
        f" {len(more)}: {sum(n.calls for n in more):,} calls, {sum(n.tokens for n in more):,} tokens |"
        f" {facts:,} → {after:,} |"
    )


async def _hour(sleep: Sleep, said: Sequence[str]) -> None:
    """What is said in an hour, and what is owed after it."""
    house = sleep.house
    async with house.working():
        for text in said:
            await house.incoming(text)
        await house.settled()
    sleep.clock.advance(3600.0)
    for name in ("harvest", "reconstruct", "core"):
        await house.runner.finish(name, house.rooms.wake)


async def recall(turns: Path, questions: Path, evidence: Path) -> list[str]:
    """A row before the nights, one after them, and one without doubles."""
    told, draw = lines_of(turns), random.Random(11)
    doubles = [
        {**each, "id": f"{each['id']}~", "text": f"{each['text']} Really."}
        for each in draw.sample([t for t in told if len(t["text"]) > 40], DOUBLES)
    ]
    right = {row["id"]: frozenset(row["evidence"]) for row in lines_of(evidence)}
    wanted = lines_of(questions)
    found = [await _recall("without doubles", told, wanted, right, 0)]
    both = await _recall("with doubles", [*told, *doubles], wanted, right, MOST_NIGHTS)
    return [*found, both]


async def _recall(
    name: str,
    told: Sequence[Json],
    wanted: Sequence[Json],
    right: dict[str, frozenset[str]],
    nights: int,
) -> str:
    with tempfile.TemporaryDirectory() as folder:
        async with (
            ModelServer(rules=False) as model,
            sleeping(Path(folder), model, context_tokens=65_536) as sleep,
        ):
            model.keyed(said_at_night)
            await take_in(sleep.house.stores, [json.dumps(each) for each in told])
            before = await _found(sleep.house, wanted, right), await _count(sleep.house)
            if not nights:
                return f"| {name} | {before[0]:.4f} | {before[1]:,} | - | - | - |"
            run = [await sleep.night()]
            while len(run) < nights and any(tally.status == "left" for tally in run[-1].phases):
                run.append(await sleep.night())
            after = await _found(sleep.house, wanted, right), await _count(sleep.house)
    return (
        f"| {name} | {before[0]:.4f} | {before[1]:,} | {after[0]:.4f} | {after[1]:,} |"
        f" {len(run)} nights, {sum(night.calls for night in run)} calls |"
    )


async def _count(house: House) -> int:
    row = await house.one(
        "SELECT count(*) AS n FROM facts WHERE retired_at IS NULL AND valid_to IS NULL"
    )
    return int(row["n"])


async def _found(house: House, wanted: Sequence[Json], right: dict[str, frozenset[str]]) -> float:
    """The share of the evidence in the first ten hits."""
    of_merged: dict[str, set[str]] = {}
    for row in await house.rows(
        "SELECT id, replaced_by FROM facts WHERE replaced_by IS NOT NULL ORDER BY seq"
    ):
        parts = of_merged.pop(row["id"], set()) | {row["id"].removesuffix("~")}
        of_merged.setdefault(row["replaced_by"], set()).update(parts)
    shares = []
    for each in wanted:
        query = Query(each["query"], each.get("before", ""))
        hits = await house.stores.memories.search(each["scope"], query, DEPTH)
        names: list[str] = []
        for hit in hits:
            names += of_merged.get(hit.fact.id, {hit.fact.id.removesuffix("~")})
        shares.append(share_found(right[each["id"]], names, len(names)))
    return statistics.mean(shares)


async def latency(rounds: int) -> list[str]:
    """Both ways in blocks of fifty messages, in turn."""
    taken: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(max(1, rounds // BATCH)):
        for beside in taken:
            taken[beside] += await _beside(beside)
    return [
        table_row(
            "beside a night" if beside else "no night", len(ms), *spread(ms), f"{max(ms):.0f} ms"
        )
        for beside, ms in taken.items()
    ]


async def _beside(night: bool) -> list[float]:
    delayed, begun = Delayed(TAKES), asyncio.Event()

    def answers(seen: Seen) -> Step:
        if not is_for_json(seen.body):
            return Text("I see. Tell me more whenever you like.")
        begun.set()
        return delayed(said_at_night(seen))

    draw, texts = random.Random(7), list(lines(1_000))
    pairs = [json.loads(text) for text in texts[:200]]
    texts += [json.dumps({**p, "id": p["id"] + "~", "text": p["text"] + " today"}) for p in pairs]
    with tempfile.TemporaryDirectory() as name:
        async with AsyncExitStack() as stack:
            model = await stack.enter_async_context(ModelServer(rules=False))
            model.allow("fold", perhaps=True)
            opened = sleeping(Path(name), model, context_tokens=65_536)
            sleep = await stack.enter_async_context(opened)
            model.keyed(answers)
            await take_in(sleep.house.stores, texts)
            await stack.enter_async_context(sleep.house.working())
            group = await stack.enter_async_context(asyncio.TaskGroup())
            tidying = group.create_task(sleep.night()) if night else None
            if tidying:
                await begun.wait()
            times = []
            for _ in range(BATCH):
                times.append(await answered(sleep.house, sentence(draw)))
                await asyncio.sleep(0.1)
            if tidying:
                assert not tidying.done(), "the night was too short"
                tidying.cancel()
            return times[5:]


async def undo() -> list[str]:
    """Seconds for a night of five hundred merges, and whether all is as it was."""
    told = [json.loads(line) for line in lines(ITEMS * 6)]
    told += [
        {**each, "id": f"{each['id']}~", "text": f"{each['text']} today"} for each in told[:ITEMS]
    ]
    dreaming = Dreaming(enabled=False, budget_tokens=10_000_000)
    with tempfile.TemporaryDirectory() as name:
        async with (
            ModelServer(rules=False) as model,
            sleeping(Path(name), model, FTS, dreaming, context_tokens=65_536) as sleep,
        ):
            model.keyed(said_at_night)
            await take_in(sleep.house.stores, [json.dumps(each) for each in told])
            before = await sleep.export()
            began = time.perf_counter()
            night = await sleep.night(phase="dedup")
            took = time.perf_counter() - began
            items = await sleep.house.stores.decisions.listed(sleep.house.database, night.id)
            done = [item for item in items if item.state == "done"]
            began = time.perf_counter()
            back = await undo_items(sleep.house.stores, done, whole=True)
            undone = time.perf_counter() - began
            same = "the same" if await sleep.export() == before else "NOT the same"
    return [
        f"| {len(done)} items of {night.calls} calls | {took:.1f} s | {len(back.items)} back in"
        f" {undone:.2f} s | export is {same} |"
    ]


async def memory(facts: int) -> list[str]:
    """PSS of a daemon before a night, during it, and behind it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "synapse").mkdir()
        with (
            Homeserver(folder / "synapse") as homeserver,
            private_environment(folder / "private", "meaning") as python,
        ):
            return [
                await _asleep(folder, homeserver, python, backend, facts) for backend in BACKENDS
            ]


async def _asleep(
    folder: Path, homeserver: Homeserver, python: str, backend: str, facts: int
) -> str:
    name = backend.replace("_", "-")
    async with ModelServer(rules=False) as model:
        dreamer = Dreamer()
        model.keyed(dreamer.answers)
        model.allow("fold", perhaps=True)
        login, ann = homeserver.user(name), homeserver.user(f"ann-of-{name}")
        config = write_settings(
            *(folder / backend, homeserver.url, login, model.url, ann.user_id),
            memory={"backend": backend},
        )
        bot = Bot(config, python=python)
        known = folder / f"{backend}.jsonl"
        known.write_text("\n".join(islice(lines(facts), facts)) + "\n")
        async with MatrixUser(homeserver.url, ann, folder / f"of-{backend}") as person:
            ran = await asyncio.create_subprocess_exec(
                *(python, "-m", "wintermute", "--config", str(config)),
                *("memory", "import", str(known)),
                stdout=asyncio.subprocess.DEVNULL,
            )
            assert await ran.wait() == 0
            async with bot:
                room = await person.create_room(invite=[login.user_id], encrypted=True)
                await person.wait_joined(room, login.user_id)
                await person.send(room, "hello")
                await person.wait_for_count(room, login.user_id, 1)
                await asyncio.sleep(SETTLES)
                before = pss(bot.pid)
                await person.send(room, "/dream")
                most, began = before, time.perf_counter()
                while not bot.rows("SELECT 1 FROM nights WHERE state = 'done'"):
                    most = max(most, pss(bot.pid))
                    await asyncio.sleep(0.2)
                took = time.perf_counter() - began
                await asyncio.sleep(SETTLES)
                after = pss(bot.pid)
                row = bot.rows("SELECT calls, tokens FROM nights")[0]
    return (
        f"| {backend}, {facts:,} facts | {before:.1f} MB | {most:.1f} MB | {after:.1f} MB |"
        f" {took:.0f} s, {row['calls']} calls |"
    )


def main() -> None:
    """Print the rows."""
    parser = options(__doc__)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--messages", nargs="+", type=int, default=[100, 1_000, 10_000])
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--facts", type=int, default=100_000)
    for name in ("turns", "questions", "evidence"):
        parser.add_argument(f"--{name}", type=Path)
    given = parser.parse_args()
    if "cost" in given.only:
        show(asyncio.run(cost(given.messages)))
    if "recall" in given.only and given.turns:
        show(asyncio.run(recall(given.turns, given.questions, given.evidence)))
    if "latency" in given.only:
        show(asyncio.run(latency(given.rounds)))
    if "undo" in given.only:
        show(asyncio.run(undo()))
    if "memory" in given.only:
        show(asyncio.run(memory(given.facts)))


if __name__ == "__main__":
    main()
