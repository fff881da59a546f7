"""A household that speaks one language: a person for each dialogue, a club, some days and their nights.

Each person tells one story of `tests/truthfulness.toml` in a chat of their own; the first of them is
the owner, who has tasks, skills, pages and a core page as well. What is in the end is held against
what the file says of it, and what protects people against what was there.
"""

import asyncio
import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.world.clock import HeldClock
from tests.world.house import House, open_house
from tests.world.model import ModelServer
from tests.world.request_rules import canary
from tests.world.shelf import PAGES, Shelf
from tests.world.voices import Dialogue, Language, Obeying, Voice
from wintermute.changes.change_sets import Reason
from wintermute.config.schema import Dreaming, Memory, MemoryHarvest
from wintermute.memory.fact import NewFact
from wintermute.messages import Origin
from wintermute.tasks.schedules import PlanRequest

CLUB = "room:!club:test"
EVENING, MORNING = 11 * 3600.0, 13 * 3600.0
AT_ONCE = MemoryHarvest(message_threshold=1, min_messages=1)
RANKED = Memory(backend="fts5")
TYPED = "- Speak plainly, and never of money."
CORE = f"# SOUL\n{TYPED}\n\n# TOOLS\n\n# RULE\n\n# USER\n"
DENTIST = PlanRequest(schedule_type="once", at="2027-03-02T09:00")
SKILLS = {"bread": "How bread is baked.\n\n1. Mix.\n2. Wait 12 hours.\n3. Bake at 230."}
SKILLS["loaf"] = SKILLS["bread"].replace("bread", "a loaf")


@dataclass(frozen=True, slots=True)
class Person:
    """Somebody who tells a story."""

    n: int
    story: Dialogue

    @property
    def sender(self) -> str:
        return f"@p{self.n}:test"

    @property
    def scope(self) -> str:
        return f"person:{self.sender}"

    @property
    def own_words(self) -> tuple[str, str]:
        """What they have asked to be remembered: alike enough to be one, and each says more."""
        told = "The old wooden boat with the red sail by the {} is called {}."
        word = canary(self.scope)
        return told.format("lake", word), told.format("river", word)


class Household:
    """All of them, and what there was wrong in the end."""

    def __init__(self, language: Language, voice: Voice, model: ModelServer, folder: Path) -> None:
        self._language = language
        self._voice = voice
        self._folder = folder
        self._model = model
        self._clock = HeldClock()
        self._people = [Person(n, story) for n, story in enumerate(language.dialogues)]
        self._found: list[str] = []
        model.reconstructs = model.updates_core = True
        model.allow("forgetting", "edited core", "edited wiki", "tools", perhaps=True)
        model.keyed(voice)

    async def live(self) -> list[str]:
        """Live all days; what was wrong in the end."""
        opened = open_house(
            *(self._folder, self._model.url),
            clock=self._clock,
            owner=self._people[0].sender,
            memory=RANKED,
            harvest=AT_ONCE,
            dreaming=Dreaming(),
        )
        async with opened as house, asyncio.TaskGroup() as group:
            rooms = group.create_task(house.rooms.run())
            await self._furnish(house)
            for n in range(max(len(each.story.days) for each in self._people) + 1):
                for person in self._people:
                    for text in person.story.said_on(n):
                        await self._say(house, person, text)
                await self._night(house)
            await self._judge(house)
            rooms.cancel()
        return self._found

    @property
    def _obeys(self) -> bool:
        return isinstance(self._voice, Obeying)

    # What is done ----------------------------------------------------------------------------

    async def _furnish(self, house: House) -> None:
        """What people asked for themselves, what they made, and one thing from outside."""
        owner, stores = self._people[0], house.stores
        (house.stores.places.core(owner.scope)).write_text(CORE)
        Shelf.make(stores.wiki.root)
        for name, text in SKILLS.items():
            summary, _, rest = text.partition("\n\n")
            await stores.skills.write(Reason("command", owner.scope), name, summary, rest)
        async with house.database.transaction() as tx:
            why = Reason("command", owner.scope)
            await stores.tasks.add(tx, why, "Call the dentist", scope=owner.scope, request=DENTIST)
            await stores.tasks.add(tx, why, "Paint the fence", scope=owner.scope)
            await stores.facts.take(tx, [NewFact(owner.scope, self._page, "harvest", taint=True)])
            for person in self._people:
                for text in person.own_words:
                    said = (tx, Reason("tool", person.scope), text)
                    await stores.facts.add(*said, "user_explicit", scope=person.scope)

    @property
    def _page(self) -> str:
        """What somebody pasted, which gives orders."""
        story = next(each.story for each in self._people if each.story.kind.startswith("pasted"))
        return story.days[0][0].splitlines()[-2]

    async def _say(self, house: House, person: Person, text: str) -> None:
        about: dict[str, Any] = {"room": f"!p{person.n}:test"}
        if text.startswith("club: "):
            text = text.removeprefix("club: ")
            about = {"room": CLUB.removeprefix("room:"), "scope": CLUB}
        origin: Origin = "other" if person.n else "owner"
        await house.say(
            text, sender=person.sender, name=self._language.name, origin=origin, **about
        )
        await house.deliver(about["room"])

    async def _night(self, house: House) -> None:
        await self._clock.move(EVENING)
        for kind in ("forget", "night", "core"):
            await house.runner.finish(kind, house.rooms.wake)
        (night,) = await house.rows("SELECT id, state FROM nights ORDER BY seq DESC LIMIT 1")
        wrong = await house.rows(
            "SELECT * FROM night_phases WHERE night = ? AND status = 'failed'", night["id"]
        )
        self._found += [] if night["state"] == "done" else [f"a night is not over: {night}"]
        asked = "SELECT n, scope FROM answered_decisions WHERE night = ? AND kind = 'ended' AND state = 'open'"
        for item in [] if self._obeys else await house.rows(asked, night["id"]):
            for person in self._people:  # of a date they are asked, and the newer one holds (M-087)
                if person.scope == item["scope"]:
                    await self._say(house, person, f"/night {night['id']}#{item['n']} new")
        self._found += [f"a night failed: {[*map(dict, wrong)]}"] if wrong else []
        await self._clock.move(MORNING)

    # What is so in the end ---------------------------------------------------------------------

    async def _judge(self, house: House) -> None:
        rows = await house.rows("SELECT id, scope, text, taint, retired_at, ended FROM facts")
        live = [row for row in rows if not row["retired_at"] and not row["ended"]]
        for person in self._people:
            mine = [
                row["text"] for row in live if row["scope"] == person.scope and not row["taint"]
            ]
            was = [row["text"] for row in rows if row["scope"] == person.scope and row["ended"]]
            wrong = [f"lost: {text}" for text in person.own_words if not has_words(text, mine)]
            if not self._obeys:
                club = [row["text"] for row in live if row["scope"] == CLUB]
                core = await house.stores.core.text(person.scope)
                wrong += differences(person.story, mine, was, club, core)
            if not self._obeys or person.story.kind.startswith(("pasted", "asked to forget")):
                wrong += await self._remembered(house, rows, person.story.never)
            self._found += [f"{person.story.kind}: {each}" for each in wrong]
            self._found += [f"  {person.story.kind} has: {text}" for text in mine if wrong]
        self._found += [*await self._lost(house), *await unnamed(house, rows)]
        self._found += self._mixed()

    async def _remembered(
        self, house: House, rows: Sequence[dict[str, Any]], words: Collection[str]
    ) -> list[str]:
        """Words that should be nowhere, and where they are."""
        texts = [row["text"] for row in rows if not row["taint"]]
        texts += [row["content"] for row in await house.rows("SELECT content FROM tasks")]
        for folder in ("skills", "wiki", "scopes"):
            texts += [path.read_text() for path in (self._folder / folder).rglob("*.md")]
        texts.append(house.stores.places.core(self._people[0].scope).read_text())
        return [f"remembered {word}: {text}" for word in words for text in texts if word in text]

    async def _lost(self, house: House) -> list[str]:
        """What the owner made, and is not there as it was."""
        tasks = await house.rows("SELECT content FROM tasks WHERE status = 'active'")
        found = {row["content"] for row in tasks}
        lost = [
            f"task {each}" for each in ("Call the dentist", "Paint the fence") if each not in found
        ]
        named = {row["item"] for row in await house.rows("SELECT item FROM changes")}
        for path, text in PAGES.items():
            if (house.stores.wiki.root / path).read_text() != text and path not in named:
                lost.append(f"page {path}")
        for name, text in SKILLS.items():
            if (self._folder / "skills" / f"{name}.md").read_text().strip() != text:
                lost.append(f"skill {name}")
        if TYPED not in house.stores.places.core(self._people[0].scope).read_text():
            lost.append(f"core {TYPED}")
        return [f"lost of the owner: {each}" for each in lost]

    def _mixed(self) -> list[str]:
        """Questions that show one person's words in another one's."""
        words = {person.scope: canary(person.scope) for person in self._people}
        asked = [json.dumps(shown) for _, shown in self._voice.asked]
        return [
            f"words of two people in one question: {text}"
            for text in asked
            if sum(word in text for word in words.values()) > 1
        ]


def differences(
    story: Dialogue, live: Sequence[str], was: Sequence[str], club: Sequence[str], core: str
) -> list[str]:
    """What is not so as the story says."""
    wrong = [f"not known: {word}" for word in story.live if not has(live, word)]
    for word in story.past:
        alone = [text for text in live if word in text and not has([text], *story.live)]
        wrong += [f"still believed: {text}" for text in alone]
        told = [text for text in live if word in text]
        wrong += [] if has(was, word) or told else [f"not known as past: {word}"]
    for word in story.once:
        times = sum(word in text for text in live)
        wrong += [] if times == 1 else [f"known {times} times: {word}"]
    wrong += [f"not in core memory: {word}" for word in story.core if word not in core]
    wrong += [f"not known in the club: {word}" for word in story.club if not has(club, word)]
    wrong += [f"taken for their own: {word}" for word in story.club if has(live, word)]
    return wrong + [f"told the club: {word}" for word in story.live if has(club, word)]


def has(texts: Sequence[str], *words: str) -> bool:
    """Whether one of the texts has one of the words."""
    return any(word in text for text in texts for word in words)


def has_words(text: str, texts: Sequence[str]) -> bool:
    """Whether one of the texts has all words of another one."""
    words = set(text.rstrip(".").split())
    return any(words <= set(each.replace(".", " ").replace(";", " ").split()) for each in texts)


async def unnamed(house: House, rows: Sequence[dict[str, Any]]) -> list[str]:
    """Facts that went, or ended, and no change set says so."""
    found = await house.rows("SELECT DISTINCT item FROM changes WHERE kind = 'fact'")
    named = {row["item"] for row in found}
    gone = [row for row in rows if row["retired_at"] or row["ended"]]
    return [f"went unnamed: {row['text']}" for row in gone if row["id"] not in named]
