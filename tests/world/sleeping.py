"""A house whose nights are run by a test: facts that are there, a model that answers about them by script.

async with sleeping(tmp_path, model) as sleep:
    await sleep.told("Ann likes tea", "Ann likes green tea")
    sleep.merge = lambda texts: "Ann likes green tea"
    night = await sleep.night()
"""

import json
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import date, datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from tests.world.clock import HeldClock
from tests.world.house import PROMPTS, SCOPE, ZONE, House, open_house
from tests.world.model import ModelServer, Seen, Step, Text
from wintermute.changes.change_sets import Change, Reason
from wintermute.changes.decisions import Decision
from wintermute.changes.nights import Night, Nights
from wintermute.changes.undo import Undone
from wintermute.config.schema import Dreaming, Memory
from wintermute.memory.archive import archive
from wintermute.memory.exchange import exported
from wintermute.memory.fact import Fact, NewFact, Source, state_of
from wintermute.night.phases import night_pipeline
from wintermute.night.pipeline import NightPipeline
from wintermute.work.data_folder import DataFolder

FTS = Memory(backend="fts5")
SHOWN = re.compile(r"\d{4}-\d\d-\d\d, [^:]+: ")
Merge = Callable[[list[str]], "str | Step"]
Compare = Callable[[str, str], "str | Step"]
MARCH, APRIL, MAY = "2026-03-01", "2026-04-01", "2026-05-01"
FIRST, SECOND = (json.dumps({"action": f"keep_{each}"}) for each in ("first", "second"))


def block(seen: Seen, name: str) -> str:
    """What a question shows there."""
    found = re.findall(rf"\n<{name}>\n(.*?)\n</{name}>", asked(seen), re.DOTALL)
    return str(found[-1]) if found else ""


def asked(seen: Seen) -> str:
    """A question, without what was answered to it."""
    return seen.system


def nothing(_texts: list[str]) -> str:
    return "I cannot."


def neither(_first: str, _second: str) -> str:
    return "I cannot."


@dataclass
class Sleep:
    """Facts, nights, and what the model was shown: `merged` as lists of texts, `pairs` with their days."""

    house: House
    clock: HeldClock
    tidying: NightPipeline
    model: ModelServer
    merge: Merge = nothing
    compare: Compare = neither
    merged: list[list[str]] = field(default_factory=list)
    pairs: list[tuple[str, str]] = field(default_factory=list)

    def answer(self, seen: Seen) -> Step | None:
        if entries := block(seen, "entries"):
            texts = [line.removeprefix("- ") for line in entries.splitlines()]
            self.merged.append(texts)
            found = self.merge(texts)
            return Text(json.dumps({"text": found})) if isinstance(found, str) else found
        if not block(seen, "first"):
            return None
        first, second = block(seen, "first"), block(seen, "second")
        self.pairs.append((first, second))
        answer = self.compare(SHOWN.sub("", first), SHOWN.sub("", second))
        return Text(answer) if isinstance(answer, str) else answer

    @property
    def calls(self) -> int:
        """How often the model was asked."""
        return len(self.merged) + len(self.pairs)

    async def told(
        self,
        *texts: str,
        source: Source = "harvest",
        at: str | None = None,
        scope: str = SCOPE,
        taint: bool = False,
        until: datetime | None = None,
        speaker: str | None = "Ann",
    ) -> list[str]:
        """Facts that were learnt, on that day at noon unless it names a time; their ids."""
        moment = (
            datetime.fromisoformat(f"{at if 'T' in at else f'{at}T12:00'}+00:00") if at else None
        )
        new = [
            NewFact(
                *(scope, text, source, speaker, (f"$of {text}",)),
                at=moment,
                valid_to=until,
                taint=taint,
            )
            for text in texts
        ]
        async with self.house.database.transaction() as tx:
            taken = await self.house.stores.facts.take(tx, new)
        return [each.fact.id for each in taken]

    async def night(self, phase: str = "", scope: str = "") -> Night:
        """A whole one, a day later."""
        self.clock.advance(24 * 3600.0)
        return await self.tidying.run_night(await self.begun(phase, scope))

    async def begun(self, phase: str = "", scope: str = "") -> Night:
        day = self.clock.now().astimezone(ZoneInfo(ZONE)).date()
        async with self.house.database.transaction() as tx:
            night = await self.nights.begin(tx, day, "asked", scope, phase)
        assert night is not None
        return night

    async def preview(self) -> tuple[Night, list[Decision]]:
        now = self.clock.now()
        return await self.tidying.preview(Night("dry", date.min, "asked", "running", now))

    @property
    def nights(self) -> Nights:
        return self.house.stores.nights

    async def items(self) -> list[Decision]:
        return await self.house.stores.decisions.listed(self.house.database)

    async def kinds(self) -> list[tuple[str, str]]:
        """Each item's kind and state."""
        return [(item.kind, item.state) for item in await self.items()]

    async def say_yes(self, item: Decision) -> bool:
        """As a person does."""
        return await self.tidying.executors.apply(item, "command")

    async def remembered(self, scope: str = SCOPE) -> list[str]:
        return sorted(fact.text for fact in await self.facts(scope))

    async def facts(self, scope: str = SCOPE) -> list[Fact]:
        return await self.house.stores.facts.live(scope)

    async def fact(self, text: str, scope: str = SCOPE) -> Fact:
        """The newest with this text, whatever became of it."""
        row = await self.house.one(
            "SELECT id FROM facts WHERE text = ? AND scope = ? ORDER BY seq DESC LIMIT 1",
            *(text, scope),
        )
        found = await self.house.stores.facts.get(row["id"])
        assert found is not None
        return found

    async def export(self) -> list[str]:
        """What `memory export` prints of all."""
        facts = self.house.stores.facts
        return await exported(facts, await facts.scopes())

    async def undone(self, items: Sequence[str] | None = None) -> list[Undone]:
        """All nights are taken back, the newest first."""
        sets = await self.house.rows(
            "SELECT id FROM change_sets WHERE cause = 'night' ORDER BY seq DESC"
        )
        found = [await self.house.stores.changes.get(row["id"]) for row in sets]
        return [await self.house.stores.undo.apply(each, items) for each in found if each]

    async def rested(self, fact_id: str) -> None:
        """A night lets it rest, by its change set."""
        was = await self.house.stores.facts.get(fact_id)
        assert was is not None
        change = Change("fact", was.id, state_of(was), state_of(replace(was, archived=True)))
        async with self.house.database.transaction() as tx:
            await archive(tx, [fact_id])
            await self.house.stores.changes.record(tx, Reason("night", SCOPE), [change])

    async def retire(self, fact_id: str) -> None:
        async with self.house.database.transaction() as tx:
            await self.house.stores.facts.supersede(
                tx, Reason("command", SCOPE), (), dict.fromkeys([fact_id])
            )


@asynccontextmanager
async def sleeping(
    folder: Path,
    model: ModelServer,
    memory: Memory = FTS,
    dreaming: Dreaming = Dreaming(enabled=False),  # noqa: B008  a frozen value
    **more: Any,
) -> AsyncIterator[Sleep]:
    """A house at night; nothing is at work in it but what a test begins."""
    clock, built = HeldClock(), list[NightPipeline]()

    def night(own: DataFolder) -> NightPipeline:
        built.append(night_pipeline(own))
        return built[-1]

    settings: dict[str, Any] = {"prompts": PROMPTS, "clock": clock, "memory": memory}
    async with open_house(
        folder, model.url, night=night, dreaming=dreaming, **(settings | more)
    ) as house:
        sleep = Sleep(house, clock, built[-1], model)
        model.keyed(sleep.answer)
        yield sleep
