"""Killed at each statement of a talk that folds twice while gates run: nothing is lost or doubled.

    python -m tests.kill.test_casts FOLDER MODEL_URL MOST FIRST STEP

runs the talk once whole, then once for each statement, or for MOST of them at even distances: a
process dies just before it, another one goes on. It prints what was found each time. Of all these
it takes the FIRST and every STEP-th after it. Processes are
forked from one that has everything in memory, so one such life takes a tenth of a second.
"""

import asyncio
import json
import logging
import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from tests.world.homeserver import die_with_parent
from tests.world.house import Gate, House, open_house
from tests.world.launch import read
from tests.world.model import (
    Calls,
    ModelServer,
    Seen,
    Step,
    Text,
    Use,
    broken_rules,
    is_for_summary,
)
from wintermute.config.schema import Context
from wintermute.conversation.toolbox import Caller
from wintermute.conversation.view import messages
from wintermute.loom.reader import LoomReader
from wintermute.messages import Json

pytestmark = pytest.mark.slow

TEXTS = [f"message {n}: " + "many words " * 20 for n in range(3)]
EACH = sys.maxsize
PARTS = 2
"""As many tests share all statements, so that workers can."""
CONTEXT = Context(keep_recent=1, trigger_after_turns=2)
TOOLS = [{"type": "function", "function": {"name": "done"}}]


class Killer(logging.Handler):
    """Ends this process before the n-th statement that changes the database; counts them."""

    def __init__(self, n: int | None) -> None:
        super().__init__()
        self.seen = 0
        self._n = n

    def emit(self, record: logging.LogRecord) -> None:
        phase, statement = read(record)
        if phase != "executing" or statement.startswith(("SELECT", "PRAGMA")):
            return
        self.seen += 1
        if self.seen == self._n:
            os.kill(os.getpid(), signal.SIGKILL)


def behave(seen: Seen) -> Step:
    """Sums up; else uses a tool for each message, and answers when there is a result."""
    if is_for_summary(seen.body):
        return Text(f"a summary of {len(seen.messages[0]['content'])} characters", usage=None)
    if seen.messages[-1]["role"] == "user":
        return Calls((Use("mail", {"say": seen.last_user[:9]}),))
    return Text(f"answer to {seen.last_user[:9]}")


async def mail(folder: Path, _caller: Caller, args: Json) -> object:
    """An effect outside of the database, which must not happen twice."""
    with (folder / "sent").open("a") as sent:
        sent.write(f"{args['say']}\n")
    return "sent"


async def talk(folder: Path, url: str) -> list[str]:
    """Say what was not said yet, wait for all answers; what is wrong then."""
    gate = Gate("mail", partial(mail, folder), durable=False)
    async with open_house(folder, url, gates=[gate], context=CONTEXT) as house:
        async with house.working():
            for n, text in enumerate(TEXTS):
                await house.say(text, event_id=f"${n}")
        return [problem async for problem in _wrong(house, folder)]


async def _wrong(house: House, folder: Path) -> AsyncIterator[str]:
    sent = Counter((folder / "sent").read_text().split("\n")[:-1])
    if any(times > 1 for times in sent.values()):
        yield f"sent twice: {sent}"
    answers = await house.rows("SELECT answers, body FROM outbox ORDER BY seq")
    wanted = [{"answers": f"${n}", "body": f"answer to message {n}"} for n in range(len(TEXTS))]
    if answers != wanted:
        yield f"answers: {answers}"
    (branch,) = await house.rows("SELECT id FROM branches")
    story = await LoomReader(house.database).story(branch["id"])
    turns = [turn for cast in story["casts"] for turn in cast["turns"]]
    if [turn["parent_id"] for turn in turns] != [None, *[turn["id"] for turn in turns[:-1]]]:
        yield "the turns are no chain"
    if [(cast["state"], len(cast["turns"])) for cast in story["casts"]] != [("terminated", 2)] * 3:
        yield f"casts: {story['casts']}"
    places = {turn["id"]: n for n, turn in enumerate(turns, 1)}
    folds = await house.rows("SELECT to_turn, turns, summary FROM folds ORDER BY seq")
    if any(places[fold["to_turn"]] != fold["turns"] or not fold["summary"] for fold in folds):
        yield f"half a fold: {folds}"
    if len(folds) < 2:
        yield f"too few folds: {folds}"
    past = await house.casts.past(branch["id"], await house.stores.folds.newest(branch["id"]))
    broken = broken_rules({"messages": list(messages("s", past)), "tools": TOOLS})
    if broken:
        yield f"the view: {broken}"


def life(folder: Path, url: str, n: int | None) -> tuple[int, list[str]]:
    """A process that talks and dies before its n-th statement; how it ended, and what was wrong."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        logging.getLogger("aiosqlite").addHandler(Killer(n))
        problems = asyncio.run(talk(folder, url))
        os.write(writing, json.dumps(problems).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        told = pipe.read()
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status), json.loads(told or b"[]")


def lives(folder: Path, url: str, most: int, first: int = 1, step: int = 1) -> Iterator[Json]:
    """The whole talk, then one that is killed at each of its statements, or at `most` of them; of
    these the `first` and every `step`-th after it.
    """
    counting = Killer(None)
    logging.getLogger("aiosqlite").addHandler(counting)
    problems = asyncio.run(talk(_made(folder / "whole"), url))
    logging.getLogger("aiosqlite").removeHandler(counting)
    yield {"n": 0, "statements": counting.seen, "problems": problems}
    every = max(1, counting.seen // most)
    for n in count(every * first, every * step):
        place = _made(folder / str(n))
        died, _ = life(place, url, n)
        if died == 0:
            return
        went_on, problems = life(place, url, None)
        yield {"n": n, "codes": [died, went_on], "problems": problems}


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


@pytest.mark.parametrize("first", range(1, PARTS + 1))
async def test_a_kill_at_any_statement_loses_and_doubles_nothing(
    tmp_path: Path, first: int, request: pytest.FixtureRequest
) -> None:
    """L-042, L-045, L-051: turns readable, one answer each, folds whole, no effect twice.

    With `--every 1` at each statement, otherwise at every fourth.
    """
    every = 1 if int(request.config.getoption("every")) == 1 else 4
    await _killed(tmp_path, EACH, first * every, PARTS * every)


async def test_a_kill_at_some_statements_loses_and_doubles_nothing(tmp_path: Path) -> None:
    """L-051: the same at a dozen of them, spread over the talk."""
    await _killed(tmp_path, 12)


async def _killed(tmp_path: Path, most: int, first: int = 1, step: int = 1) -> None:
    async with ModelServer() as model:
        model.keyed(behave)
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "tests.kill.test_casts", str(tmp_path), model.url),
            *map(str, (most, first, step)),
            stdin=asyncio.subprocess.PIPE,  # the lifeline
            stdout=asyncio.subprocess.PIPE,
        )
        assert process.stdout is not None
        found = [json.loads(line) async for line in process.stdout]
        assert await process.wait() == 0
    assert found[0]["problems"] == []
    assert len(found) > min(most, found[0]["statements"]) / step * 0.9
    wrong = [each for each in found[1:] if each["problems"] or each["codes"] != [-9, 0]]
    assert wrong == []


if __name__ == "__main__":
    threading.Thread(target=die_with_parent, daemon=True).start()
    source = logging.getLogger("aiosqlite")
    source.setLevel(logging.DEBUG)
    source.propagate = False
    for each in lives(Path(sys.argv[1]), sys.argv[2], *map(int, sys.argv[3:])):
        print(json.dumps(each), flush=True)  # noqa: T201  what the test reads
