"""Random lives of one conversation: whatever happens, a request begins with the one before it.

People talk, the model uses its tools, tasks fall due, files are edited by hand, nights pass, the
program is started anew. Between folds nothing that was said is said differently.
"""

import random
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.world.clock import HeldClock
from tests.world.house import PROMPTS, House, open_house
from tests.world.model import Calls, ModelServer, Seen, Step, Text, Use, is_for_summary
from tests.world.prefixes import Prefixes
from tests.world.promised import promise
from wintermute.config.schema import Context
from wintermute.tasks.schedules import PlanRequest

WINDOW: dict[str, Any] = {"context_tokens": 14_000, "max_output_tokens": 1_000}
CONTEXT = Context(keep_recent=6, trigger_after_turns=30)
STEPS = {
    "say": 30,
    "minutes": 8,
    "due": 6,
    "edit memories": 5,
    "write a skill": 3,
    "compact": 2,
    "midnight": 2,
    "restart": 3,
}
"""What may happen, each with how often it does among all of them."""
WORDS = ("the", "of", "a", "sea", "boat", "wind", "harbour", "letter", "lamp", "bread", "river")
DAY = 86_400.0
LEAST = 0.95


class Growth:
    """One conversation, and what each request of it kept. `steps` is what was done, to be read."""

    def __init__(self, seed: int, folder: Path, model: ModelServer) -> None:
        self._chance, self._model_chance = random.Random(seed), random.Random(seed)
        self._folder = folder / "data"
        self._notes = folder / "notes"
        self._model = model
        self._clock = HeldClock()
        self._stack = AsyncExitStack()
        self.steps: list[str] = [f"seed {seed}"]
        self.seen = Prefixes(counting=True)
        # Cutting where several long results came within one answer, and a fold is not enough.
        self.seen.allow("fold", "cutting", "tools", perhaps=True)
        self.folds = 0
        """As the record has them."""
        self._acts: dict[str, Callable[[House], Awaitable[str]]] = {
            "say": self._say,
            "minutes": self._minutes,
            "due": self._due,
            "edit memories": self._edit,
            "write a skill": self._skill,
            "compact": self._compact,
            "midnight": self._midnight,
        }
        model.prefixes = self.seen
        model.keyed(self._answer)

    async def run(self, steps: int) -> None:
        """Live, until so much has happened."""
        for made in (self._folder / "skills", self._notes):
            made.mkdir(parents=True)
        (self._notes / "note.txt").write_text(self._words(60))
        house = await self._opened()
        async with self._stack:
            for name in self._chance.choices(list(STEPS), list(STEPS.values()), k=steps):
                if name == "restart":
                    await self._stack.aclose()
                    house, did = await self._opened(), ""
                else:
                    did = await self._acts[name](house)
                self.steps.append(f"{name} {did}")
            self.folds = (await house.one("SELECT count(*) AS n FROM folds"))["n"]
        self.seen.count(self._folder)

    def summary(self) -> str:
        """What was kept, and how often there was a reason not to."""
        counted = Counter("first" if step.first else step.cause for step in self.seen.steps)
        told = ", ".join(f"{count} {cause or 'continued'}" for cause, count in counted.items())
        return (
            f"{self.steps[0]}: {self.seen.share():.1%} kept of {self.words():,} words in"
            f" {len(self.seen.steps)} requests ({told}), {self.folds} folds"
        )

    def problems(self) -> list[str]:
        """What broke off without a fold, with the life it happened in."""
        found = self.seen.problems()
        if self.seen.share() < LEAST:
            found.append(f"less than {LEAST:.0%} was kept")
        folds = sum(step.cause == "fold" for step in self.seen.steps)
        if folds > self.folds:
            found.append(f"{folds} requests began anew after {self.folds} folds")
        return [*found, *self.steps, self.summary()] if found else []

    def words(self) -> int:
        """How much was asked with, between the folds."""
        return sum(step.whole for step in self.seen.steps if step.is_counted)

    async def _opened(self) -> House:
        opened = open_house(
            self._folder,
            self._model.url,
            prompts=PROMPTS,
            clock=self._clock,
            context=CONTEXT,
            roots=[self._notes],
            **WINDOW,
        )
        house = await self._stack.enter_async_context(opened)
        await self._stack.enter_async_context(house.working())
        return house

    # The model -----------------------------------------------------------------------------

    def _answer(self, seen: Seen) -> Step:
        """Words, and before them calls of the tools that change what is in view."""
        if is_for_summary(seen.body):
            return Text("They spoke of the sea, of boats and of bread.")
        if seen.messages[-1]["role"] == "tool" or self._model_chance.random() < 0.5:
            return Text(self._words(self._model_chance.randint(5, 60), self._model_chance))
        calls = [self._use() for _ in range(self._model_chance.randint(1, 2))]
        return Calls(tuple(calls), text=self._words(6, self._model_chance))

    def _use(self) -> Use:
        chance = self._model_chance
        text = f"{self._words(5, chance)} {chance.randrange(10**6)}"
        tasks = {"action": "add", "content": text, "schedule_type": "daily", "at": "09:00"}
        return chance.choice(
            (
                Use("append_memory", {"entry": text}),
                Use("task", tasks),
                Use("task", {"action": "list"}),
                Use(
                    "add_skill", {"skill_name": _name(text), "summary": text, "documentation": text}
                ),
                Use("read_file", {"path": str(self._notes / "note.txt")}),
            )
        )

    def _words(self, count: int, chance: random.Random | None = None) -> str:
        return " ".join((chance or self._chance).choices(WORDS, k=count))

    # Steps: each says what it did ---------------------------------------------------------------

    async def _say(self, house: House) -> str:
        text = self._words(self._chance.randint(2, 50))
        await self._told(house, text)
        return f"{len(text.split())} words"

    async def _compact(self, house: House) -> str:
        await self._told(house, "/compact")
        return ""

    async def _told(self, house: House, text: str) -> None:
        """Something is said, and all is answered."""
        before = len(await house.spoken())
        await house.incoming(text)

        async def answered() -> bool:
            return len(await house.spoken()) > before and await self._is_quiet(house)

        await house.until(answered)

    async def _minutes(self, house: House) -> str:
        await self._pass(house, self._chance.uniform(30, 4000))
        return str(house.clock.now())

    async def _midnight(self, house: House) -> str:
        now = house.clock.now()
        await self._pass(house, DAY - (now.hour * 60 + now.minute) * 60 - now.second + 300)
        return str(house.clock.now())

    async def _due(self, house: House) -> str:
        """A task that somebody made elsewhere, for later: a reminder, or work of its own."""
        when, content = self._chance.randint(1, 30), self._words(4)
        asked = PlanRequest(schedule_type="once", at=f"in {when} minutes")
        if self._chance.random() < 0.4:
            prompt = self._words(10)
            asked = replace(asked, execution_mode="autonomous_notify", ai_prompt=prompt)
        await promise(house, content, asked)
        if self._chance.random() < 0.5:
            await self._say(house)
        await self._pass(house, when * 60 + 90)
        return f"in {when} minutes {asked.execution_mode or ''}"

    async def _pass(self, house: House, seconds: float) -> None:
        """Time goes by; what fell due is said, and work on it comes to its end."""
        await self._clock.move(seconds)
        await house.fire()
        await house.until(lambda: self._is_quiet(house))
        await house.deliver()

    async def _is_quiet(self, house: House) -> bool:
        running = await house.rows("SELECT 1 FROM casts WHERE state = 'running'")
        return not running and not await house.inbox.open_conversations()

    async def _edit(self, house: House) -> str:
        """A person's editor: a line less, a line more, a line changed."""
        path = self._folder / "MEMORIES.txt"
        lines = path.read_text().splitlines() if path.exists() else []
        if lines and self._chance.random() < 0.4:
            lines.pop(self._chance.randrange(len(lines)))
        if lines and self._chance.random() < 0.4:
            lines[self._chance.randrange(len(lines))] += f" {self._words(2)}"
        lines.append(f"{self._words(6)} {self._chance.randrange(10**6)}")
        path.write_text("".join(f"{line}\n" for line in lines))
        return f"{len(lines)} lines"

    async def _skill(self, house: House) -> str:
        name = f"by-hand-{self._chance.randrange(6)}"
        (self._folder / "skills" / f"{name}.md").write_text(
            f"# {self._words(4)}\n\nStep by step.\n"
        )
        return name


def _name(text: str) -> str:
    return "-".join(text.split()[-2:])
