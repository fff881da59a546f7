"""What learning by itself asks of a model: calls and tokens for each hundred messages.

    python -m tests.bench_learning [--turns FILE.jsonl ...]

A person writes to the assistant in several rhythms, on a clock that is moved, and every part of the
write path works as in the daemon: harvest, reconstruction, core. The scripted model picks something
out of every third message, joins nothing, and leaves core memory as it is. Tokens are our own
careful estimate, a third of the bytes. `--turns`: dialogues as `memory import` reads them, with a
`speaker`; else those of tests/bench. Nothing of them is kept.
"""

import asyncio
import json
import re
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path

from tests.bench_reconstruction import block
from tests.bench_runner import options, show
from tests.bench_score import MATERIAL as FOLDER
from tests.bench_score import rows as lines
from tests.world.clock import HeldClock
from tests.world.house import PROMPTS, WITHIN, House, open_house
from tests.world.model import ModelServer, Seen, Step, Text
from tests.world.request_rules import is_for_core, is_for_json, is_for_reconstruction
from wintermute.config.schema import Memory, MemoryHarvest
from wintermute.llm.tokens import estimate
from wintermute.messages import Json, Usage

MATERIAL = FOLDER / "assistant_turns.jsonl"
MESSAGES = 100
ASSISTANT = "assistant"
MINUTE, HOUR, DAY = 60.0, 3_600.0, 86_400.0
SETTLES = 0.02
"""Real seconds in which whoever was woken has begun: nobody tells of what is still to begin."""
EVERY = 3
"""Of so many messages one holds something to be remembered."""
SHORTEST = 12
GOAL = "≤ 8"


@dataclass(frozen=True, slots=True)
class Rhythm:
    """How somebody writes: after each message so many seconds pass, and again from the first."""

    name: str
    pauses: tuple[float, ...]


RHYTHMS = (
    Rhythm("100 in one evening, one a minute", (MINUTE,)),
    Rhythm("20 in a row, then two hours of silence", (MINUTE,) * 19 + (2 * HOUR,)),
    Rhythm("10 in a row, then two hours of silence", (MINUTE,) * 9 + (2 * HOUR,)),
    Rhythm("one every 20 minutes, 30 a day", (20 * MINUTE,) * 29 + (14 * HOUR,)),
    Rhythm("two a day", (5 * MINUTE, DAY)),
)


class Learner:
    """The scripted model, and what it was asked in the background."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.tokens: Counter[str] = Counter()

    def answers(self, seen: Seen) -> Step:
        """By the blocks of the question."""
        if not is_for_json(seen.body):
            return Text("I see. Tell me more whenever you like.")
        question = "\n".join(str(each["content"]) for each in seen.messages)
        stage, answer = self._stage(seen, question)
        said = json.dumps(answer, ensure_ascii=False)
        usage = Usage(estimate(question), estimate(said))
        self.calls[stage] += 1
        self.tokens[stage] += usage.tokens_in + usage.tokens_out
        return Text(said, usage=usage)

    def _stage(self, seen: Seen, question: str) -> tuple[str, Json]:
        if is_for_core(seen.body):
            return "core", {"should_update": False, "core_markdown": None}
        if is_for_reconstruction(seen.body):
            known = [*block(question, "related_memories"), *block(question, "new_contents")]
            return "reconstruction", {"memories": known, "coverage": "complete"}
        said = re.findall(r"^[^\n\[:]+ \(@[^)]*\): (.*)$", question, re.MULTILINE)
        return "harvest", {"contents": self.contents(said)}

    def contents(self, messages: Sequence[str]) -> list[str]:
        """What it picks of the messages of a transcript."""
        return list(messages[::EVERY])


class Talk:
    """Somebody writes, and everything that follows is done before the clock moves on."""

    def __init__(self, house: House, clock: HeldClock) -> None:
        self._house = house
        self._clock = clock

    async def say(self, text: str) -> None:
        """One message, answered."""
        await self._house.say(text)
        await self._done()

    async def passes(self, seconds: float) -> None:
        """Time, in steps that are shorter than any silence that counts."""
        while seconds > 0:
            step = min(seconds, 5 * MINUTE if seconds <= HOUR else HOUR)
            await self._clock.move(step)
            await self._done()
            seconds -= step

    async def _done(self) -> None:
        """Whatever is due by now is over."""
        open_jobs = (
            "SELECT 1 FROM jobs WHERE state IN ('waiting', 'running') AND name <> 'embeddings'"
        )
        self._ring()
        await asyncio.sleep(SETTLES)
        async with asyncio.timeout(WITHIN):
            while await self._house.rows(open_jobs):
                self._ring()  # as the look does that the daemon takes every two seconds
                await asyncio.sleep(SETTLES)

    def _ring(self) -> None:
        for name in ("harvest", "reconstruct", "core"):
            self._house.runner.wake(name)


async def rows(texts: Sequence[str]) -> list[str]:
    """A row for each rhythm, and one for the days on which nobody says anything."""
    return [await _row(rhythm, texts) for rhythm in RHYTHMS]


async def _row(rhythm: Rhythm, texts: Sequence[str]) -> str:
    clock, learner = HeldClock(), Learner()
    with tempfile.TemporaryDirectory() as name:
        async with ModelServer(rules=False) as model:
            model.allow("fold", perhaps=True)
            model.keyed(learner.answers)
            opened = open_house(
                *(Path(name), model.url),
                prompts=PROMPTS,
                clock=clock,
                memory=Memory(backend="fts5"),
                harvest=MemoryHarvest(),
                context_tokens=65_536,
            )
            async with opened as house, house.working():
                talk, pauses = Talk(house, clock), cycle(rhythm.pauses)
                for text in islice(cycle(texts), MESSAGES):
                    await talk.say(text)
                    await talk.passes(next(pauses))
                await talk.passes(DAY)
                calls, tokens = learner.calls.copy(), learner.tokens.copy()
                await talk.passes(DAY)
                idle = sum(learner.calls.values()) - sum(calls.values())
                unread = await house.rows(
                    "SELECT count(*) AS n FROM inbox WHERE kind = 'message' AND seq >"
                    " (SELECT max(upto) FROM harvests)"
                )
    stages = " + ".join(str(calls[stage]) for stage in ("harvest", "reconstruction", "core"))
    return (
        f"| {rhythm.name} | {sum(calls.values())} ({stages}) | {sum(tokens.values()):,}"
        f" | {unread[0]['n']} | {idle} | {GOAL}, 0 |"
    )


def said(files: Sequence[Path]) -> list[str]:
    """What people say in these dialogues."""
    found = [turn for file in files for turn in lines(file)]
    return [
        " ".join(turn["text"].split())
        for turn in found
        if turn["speaker"] != ASSISTANT and len(turn["text"]) >= SHORTEST
    ]


def main() -> None:
    """Print the rows."""
    parser = options(__doc__)
    parser.add_argument("--turns", type=Path, nargs="+", default=[MATERIAL])
    given = parser.parse_args()
    show(asyncio.run(rows(said(given.turns))))


if __name__ == "__main__":
    main()
