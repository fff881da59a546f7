"""Random days and their nights: what is told and edited, and nights that die, run dry, or meet somebody at work.

Each night is a process of its own (`sleeper.py`). What was ever known is there afterwards, or a
change set says that it went; files are as somebody left them or as a change set has them.
"""

import asyncio
import json
import random
import signal
import string
from collections.abc import Awaitable, Callable
from contextlib import closing
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, get_args

from tests.world.clock import NOON, FakeClock
from tests.world.house import ANN, House
from tests.world.model import Fail, ModelServer, Seen, Slow, Step
from tests.world.shelf import GARDEN, Shelf, page
from tests.world.sleeper import Ranking, Sleep, ended, house_of, start
from tests.world.voices import Careful, Obeying, Voice, languages
from wintermute.changes.change_sets import Reason
from wintermute.db import driver
from wintermute.memory.core import MEMORIES
from wintermute.memory.fact import NewFact, Source
from wintermute.tasks.schedules import PlanRequest

OWNER, BEN = f"person:{ANN}", "person:@ben:test"
THINGS = ("boat", "cat", "car", "shed", "bike")
NIGHT = timedelta(hours=11, seconds=10)
LATE = timedelta(hours=20)
DAY = timedelta(days=1)
MOST_KILLS = 3
SKILL = "How {} is done.\n\n1. Begin.\n2. Wait 12 minutes.\n3. End with {}."
YEARLY = PlanRequest(schedule_type="once", at="2099-03-02T09:00")


class NightLife:
    """One installation and its nights; `steps` is what happened, to be read."""

    def __init__(self, seed: int, folder: Path, model: ModelServer) -> None:
        self._chance = random.Random(seed)
        self._folder = folder / "data"
        self._model = model
        self._backend: Ranking = self._chance.choice(get_args(Ranking))
        self._voices: tuple[Voice, ...] = tuple(
            kind(languages()["en"]) for kind in (Careful, Careful, Obeying)
        )
        self._day = 0
        self._tape = 400
        self._known: dict[str, str] = {}
        self._left: dict[str, str] = {}
        """What people left, by its place: files, and tasks by their ids."""
        self._written: dict[str, set[str]] = {}
        self._outage = 0
        self._visits = 0
        self._gates: list[asyncio.Event] = []
        self._rung = asyncio.Event()
        self.found: list[str] = []
        self.steps = [f"seed {seed} {self._backend}"]
        self._died = 0
        model.reconstructs = model.updates_core = True
        model.allow("edited core", "edited wiki", "forgetting", "tools", perhaps=True)
        model.keyed(self._answer)

    async def run(self, nights: int) -> None:
        """Live so many days and nights."""
        self._folder.mkdir()
        async with asyncio.TaskGroup() as group:
            visitors = group.create_task(self._visits_come())
            await self._days(nights)
            visitors.cancel()
        self._look_at_nights(nights)

    async def _days(self, nights: int) -> None:
        for self._day in range(nights):
            async with house_of(self._sleep(), FakeClock(self._noon)) as house:
                if self._day == 0:
                    await self._furnish(house)
                did = await self._live(house)
                await house.stores.memories.text(OWNER)
            self._remember()
            self.steps.append(f"day {self._day}: {did}")
            await self._night()
            self.found += [f"night {self._day}: {each}" for each in self._half_written()]
            async with house_of(self._sleep(LATE), FakeClock(self._noon + LATE)) as house:
                await house.stores.memories.text(OWNER)
            self._look()

    def problems(self) -> list[str]:
        """What was wrong, with the life it happened in."""
        return [*self.found, *self.steps] if self.found else []

    def summary(self) -> str:
        """How much there was to go wrong."""
        gone = sum(bool(row["retired_at"]) or bool(row["ended"]) for row in self._facts())
        return f"{self.steps[0]}: {self._died} nights died, {len(self._known)} facts, {gone} past"

    @property
    def _noon(self) -> datetime:
        return NOON + self._day * DAY

    # Days --------------------------------------------------------------------------------------

    async def _furnish(self, house: House) -> None:
        shelf = Shelf.make(self._folder / "wiki")
        self._left[f"wiki/{GARDEN}"] = shelf.read(GARDEN)
        async with asyncio.TaskGroup() as group:
            rooms = group.create_task(house.rooms.run())
            await house.incoming("hello")
            await house.said(1)
            rooms.cancel()

    async def _live(self, house: House) -> str:
        deeds: list[Callable[[House], Awaitable[str]]] = [
            *(self._tell, self._tell_twice, self._move, self._make_task, self._edit)
        ]
        return ", ".join([await each(house) for each in self._chance.choices(deeds, k=4)])

    async def _tell(self, house: House) -> str:
        thing = self._chance.choice(THINGS)
        return await self._take(house, f"Ann's {thing} is called {self._word()}.")

    async def _tell_twice(self, house: House) -> str:
        thing, word = self._chance.choice(THINGS), self._word()
        await self._take(house, f"Ann's {thing} is called {word}.")
        return await self._take(house, f"Ann's {thing} by the lake is called {word}.")

    async def _move(self, house: House) -> str:
        return await self._take(house, f"Ann lives in {self._word().title()}")

    async def _take(self, house: House, text: str) -> str:
        source: Source = self._chance.choice(("user_explicit", "harvest"))
        scope = OWNER if self._chance.random() < 0.8 else BEN
        async with house.database.transaction() as tx:
            new = NewFact(scope, text, source, at=self._noon, queued=self._chance.random() < 0.3)
            await house.stores.facts.take(tx, [new])
        return f"{scope} {source} {text}"

    async def _make_task(self, house: House) -> str:
        text = f"Repair the {self._chance.choice(THINGS)} with {self._word()}"
        request = [{"request": YEARLY}] if self._chance.random() < 0.3 else [{}]
        async with house.database.transaction() as tx:
            why = Reason(self._chance.choice(("tool", "command")), OWNER)
            more: dict[str, Any] = request[0]
            task = await house.stores.tasks.add(tx, why, text, scope=OWNER, **more)
        self._left[f"task {task.id}"] = text
        return text

    async def _edit(self, _: House) -> str:
        return self._save()

    def _save(self) -> str:
        """Somebody saves a file of theirs, or a list that is one."""
        word = self._word()
        places = [f"wiki/{GARDEN}", f"skills/{self._chance.choice(THINGS)}.md"]
        place = self._chance.choice([*places, MEMORIES] if self._listed else places)
        path = self._folder / place
        path.parent.mkdir(exist_ok=True)
        if place == MEMORIES:
            with path.open("a") as file:
                file.write(f"Ann wrote {word} by hand.\n")
            self._known[f"by hand {word}"] = word
            return f"{place} {word}"
        text = page(f"# Garden\n\nWith {word}.") if "wiki" in place else SKILL.format(word, word)
        new = path.with_suffix(".new")
        new.write_text(text)
        new.replace(path)
        self._left[place] = text
        self._written.setdefault(place, set()).add(text)
        return f"{place} {word}"

    @property
    def _listed(self) -> bool:
        return self._backend == "flat_file"

    def _word(self) -> str:
        return "".join(self._chance.choices(string.ascii_lowercase, k=10))

    # Nights ------------------------------------------------------------------------------------

    def _sleep(self, late: timedelta = NIGHT) -> Sleep:
        budget = 3000 if self._chance.random() < 0.2 else None
        return Sleep(self._folder, self._model.url, self._noon + late, self._backend, budget)

    async def _night(self) -> None:
        """Until it is over: killed so often, with a model that is away, with a visitor."""
        kills = self._chance.choice((0, 0, 1, 1, 1, MOST_KILLS))
        self._outage = self._chance.choice((0, 0, 0, 2, 1000))
        self._visits = self._chance.choice((0, 0, 1, 2))
        late = self._chance.choice((NIGHT, NIGHT, NIGHT, LATE))
        said = f"kills {kills}, outage {self._outage}, visits {self._visits}, late {late}"
        for n in range(kills + 1):
            at = self._chance.randint(1, self._tape) if n < kills else 0
            sleep = self._sleep(late + timedelta(minutes=n))
            code = await ended(start(sleep, at))
            if code not in (0, -signal.SIGKILL):
                self.found.append(f"night {self._day} ended with {code}")
            self._died += code == -signal.SIGKILL
            said += f", step {at} of {self._tape}: {code}"
            if code == 0:
                self._tape = max(100, len(sleep.tape.read_text().splitlines()))
                break
        self.steps.append(f"night {self._day}: {said}")

    def _answer(self, seen: Seen) -> Step | None:
        if self._outage:
            self._outage -= 1
            return Fail(503)
        step = self._chance.choice(self._voices)(seen)
        if step is None or not self._visits:
            return step
        self._visits -= 1
        self._gates.append(asyncio.Event())
        self._rung.set()
        return Slow(self._gates[-1], step)

    async def _visits_come(self) -> None:
        """Whoever is at the door comes in, one after the other."""
        while True:
            await self._rung.wait()
            self._rung.clear()
            for gate in self._gates:
                await self._visit()
                gate.set()
            self._gates.clear()

    async def _visit(self) -> None:
        """Somebody works at files and tasks while the model thinks."""
        if self._chance.random() < 0.3 and (task := self._any_task()):
            text = f"Call somebody about {self._word()}"
            await asyncio.to_thread(self._reword, task, text)
            self._left[f"task {task}"] = text
            self.steps.append(f"task {task} {text}")
        else:
            self.steps.append(f"edited meanwhile: {self._save()}")

    def _any_task(self) -> str | None:
        names = [name.split()[1] for name in self._left if name.startswith("task ")]
        return self._chance.choice(names) if names else None

    def _reword(self, task: str, text: str) -> None:
        with closing(driver.connect(self._folder / "wintermute.db", read_only=False)) as connection:
            connection.execute("PRAGMA busy_timeout = 20000")
            connection.execute("UPDATE tasks SET content = ? WHERE id = ?", (text, task))
            connection.commit()

    # What is so afterwards ---------------------------------------------------------------------

    def _rows(self, sql: str) -> list[dict[str, Any]]:
        with closing(driver.connect(self._folder / "wintermute.db", read_only=True)) as connection:
            found = connection.execute(sql)
            names = [column[0] for column in found.description]
            return [dict(zip(names, row, strict=True)) for row in found.fetchall()]

    def _facts(self) -> list[dict[str, Any]]:
        return self._rows("SELECT id, scope, text, retired_at, ended FROM facts ORDER BY seq")

    def _remember(self) -> None:
        for row in self._facts():
            if not row["retired_at"] and not row["ended"]:
                self._known[row["id"]] = row["text"]

    def _look(self) -> None:
        changes = self._rows("SELECT kind, item, before, after FROM changes")
        found = [*self._lost_facts(changes), *self._lost_texts(changes)]
        self.found += [f"night {self._day}: {each}" for each in found]

    def _lost_facts(self, changes: list[dict[str, Any]]) -> list[str]:
        facts = self._facts()
        live = {row["id"] for row in facts if not row["retired_at"] and not row["ended"]}
        named = {row["item"] for row in changes if row["kind"] == "fact"}
        texts = " ".join(row["text"] for row in facts)
        lost = [
            f"went unnamed: {text}"
            for name, text in self._known.items()
            if name not in live | named and not (name.startswith("by hand") and text in texts)
        ]
        if self._listed:
            path = self._folder / MEMORIES
            shown = path.read_text() if path.exists() else ""
            owned = [row for row in facts if row["id"] in live and row["scope"] == OWNER]
            lost += [
                f"not in the list: {each['text']}" for each in owned if each["text"] not in shown
            ]
            lost += [
                f"in the list alone: {line}"
                for line in shown.splitlines()
                if line and line not in {each["text"] for each in owned}
            ]
        return lost

    def _lost_texts(self, changes: list[dict[str, Any]]) -> list[str]:
        """What people left is there, or a change set has what it was."""
        was = " ".join(str(row["before"]) for row in changes)
        tasks = {row["id"]: row["content"] for row in self._rows("SELECT id, content FROM tasks")}
        lost = []
        for place, text in self._left.items():
            path = self._folder / place
            now = tasks.get(place[5:]) if place.startswith("task ") else path.read_text()
            if now != text and json.dumps(text)[1:-1] not in was and text not in was:
                lost.append(f"{place} was {text!r} and is {now!r}")
        return lost

    def _half_written(self) -> list[str]:
        """Files that are neither what somebody saved nor what a change set has."""
        changes = self._rows("SELECT item, after FROM changes WHERE after IS NOT NULL")
        after = {json.loads(row["after"]).get("text") for row in changes}
        odd = []
        for place, texts in self._written.items():
            now = (self._folder / place).read_text()
            if now not in texts | after:
                odd.append(f"{place} is what nobody wrote: {now!r}")
        parts = sorted(self._folder.rglob("*.part"))
        return [*odd, *(f"left over: {path.name}" for path in parts)]

    def _look_at_nights(self, nights: int) -> None:
        rows = self._rows("SELECT date, state FROM nights WHERE why IN ('schedule', 'late')")
        dates = [row["date"] for row in rows]
        first = NOON.date() + DAY
        wanted = [(first + n * DAY).isoformat() for n in range(nights)]
        self.found += [] if sorted(dates) == wanted else [f"nights of {dates}, not of {wanted}"]
        self.found += [f"not over: {row}" for row in rows if row["state"] == "running"]
        items = self._rows("SELECT night, n FROM answered_decisions WHERE state = 'planned'")
        self.found += [f"still planned: {row}" for row in items]
