"""Lookup of nights and decisions by the names that people type, and answers to questions."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import partial
from typing import Literal

from wintermute.changes.decisions import LINES, OPEN, PAGE_LINES, Decision, answered_otherwise
from wintermute.changes.nights import Night
from wintermute.errors import StorageBlocked, WintermuteError
from wintermute.files import run_uncancelled
from wintermute.forgetting.executors import Executors
from wintermute.stores import Stores
from wintermute.wiki.withheld_lines import show_again

NIGHT = re.compile(r"(\d{8}(?:-\d{1,4})?)(?:#(\d{1,6}))?")
RANGE = re.compile(r"(\d{1,6})(?:-(\d{1,6}))?")
LOOKED_THROUGH = 60
"""Nights among which the newest one with decisions is searched."""
WhichHolds = Literal["new", "old", "both", "neither"]
NEWEST = 5
"""Nights that an error lists for somebody who named an unknown one."""
ALL = "all"
ANSWERS: Mapping[str, WhichHolds] = {
    **{"yes": "new", "no": "both", "new": "new"},
    **{"old": "old", "both": "both", "neither": "neither"},
}
"""Answers, and which of two contradicting memories each declares true (M-087)."""
ONLY_YES_OR_NO = "is answered with yes or no"
CHANGED = "its subject has changed or was decided elsewhere, so nothing was done"
ANSWERED = {
    "done": "was done already",
    "refused": "was refused already",
    "outdated": "is no longer open: its subject has changed or was decided elsewhere, or 14 days have"
    " passed",
    "undone": "was taken back",
    "planned": "is still in progress",
}


class NoSuchNight(WintermuteError):
    """Error: there is no such night, or no such item in it."""


class AmbiguousNumber(WintermuteError):
    """Error: the number fits items of several nights, and an older one is still open."""

    def __init__(self, items: Sequence[Decision]) -> None:
        super().__init__(f"it may be {' or '.join(item.id for item in items)}")
        self.items = items


@dataclass(frozen=True, slots=True)
class AnswerResult:
    """Result of an answer. `problem`: why nothing was done; "" if it was done."""

    item: Decision
    problem: str = ""


class Questions:
    """Finds nights and decisions by name, and applies the ones that are approved."""

    def __init__(self, stores: Stores) -> None:
        self._stores = stores

    async def night(self, named: str, scope: str | None = None) -> Night:
        """Find a night by id, or by date: the newest with decisions, in this scope if given.

        Raises: NoSuchNight, listing the newest.
        """
        found = await self._stores.nights.named(named)
        if found is None and (day := _day(named)) is not None:
            of_day = await self._stores.nights.newest(LOOKED_THROUGH, day)
            found = await self.newest_of(of_day, scope)
        if found is None:
            newest = [night.id for night in await self._stores.nights.newest(NEWEST)]
            known = f"the newest are {', '.join(newest)}" if newest else "none has run yet"
            raise NoSuchNight(f"there is no night {named[:40]}: {known}")
        return found

    async def newest_of(self, nights: Sequence[Night], scope: str | None) -> Night | None:
        """Return the first of these nights with decisions in the scope; else the first."""
        for night in nights:
            if await self._stores.decisions.listed(self._stores.database, night.id, scope):
                return night
        return next(iter(nights), None)

    async def item(self, named: str, scope: str | None = None) -> Decision:
        """Find the item `NIGHT#N` of this scope. Raises: NoSuchNight, listing the known ones."""
        match = NIGHT.fullmatch(named.strip().strip("`"))
        if match is None or match[2] is None:
            raise NoSuchNight(f"write it as NIGHT#ITEM, such as 20260504#3, not {named[:40]}")
        night = await self.night(match[1])
        async with self._stores.database.transaction() as tx:
            await self._stores.decisions.outdate(tx)
            items = await self._stores.decisions.listed(tx, night.id, scope)
        found = next((item for item in items if item.n == int(match[2])), None)
        if found is None:
            newest = ", ".join(item.id for item in items[-NEWEST:])
            known = f"the newest are {newest}" if items else "it has none, or they have expired"
            raise NoSuchNight(f"the night {night.id} has no item {match[2]}: {known}")
        return found

    async def lookup(self, word: str, scope: str) -> Decision:
        """Find an item by `NIGHT#N`, or by `N` in the newest night that has one here.

        Raises: NoSuchNight.
        """
        name = word.strip("`#")
        if not is_number(name):
            return await self.item(word, scope)
        await self.open_in(scope)
        return (await self._items_numbered(scope, int(name), int(name), name))[0]

    async def open_in(self, scope: str) -> list[Decision]:
        """Return a scope's open questions, oldest first."""
        async with self._stores.database.transaction() as tx:
            await self._stores.decisions.outdate(tx)
            return await self._stores.decisions.listed(tx, scope=scope, states=OPEN)

    async def named(self, words: Sequence[str], scope: str) -> list[Decision]:
        """Find the questions of a scope that `all`, `3`, `3-7` or `NIGHT#3` name.

        A number refers to the newest night with such an item here, answered or not, so typing it twice never
        reaches another question. Raises: NoSuchNight; SeveralMeant if an older question has that number too.
        """
        waiting, named = await self.open_in(scope), list[Decision]()
        for word in words:
            if word.casefold() == ALL:
                named += waiting
            elif span := RANGE.fullmatch(word.strip("`#")):
                first, last = int(span[1]), int(span[2] or span[1])
                here = await self._items_numbered(scope, first, last, word)
                older = [i for i in waiting if first <= i.n <= last and i.night != here[0].night]
                if older:
                    raise AmbiguousNumber([*older, *here])
                named += here
            else:
                named.append(await self.item(word, scope))
        return list({item.id: item for item in named}.values())

    async def _items_numbered(self, scope: str, first: int, last: int, word: str) -> list[Decision]:
        items = await self._stores.decisions.listed(self._stores.database, scope=scope)
        matching = [item for item in items if first <= item.n <= last]
        if not matching:
            raise NoSuchNight(f"no change or question of a night has the number {word[:20]} here")
        here = [item for item in matching if item.night == matching[-1].night]
        return [item for item in here if item.state == "open"] or here[:1]

    async def apply_answer(self, item: Decision, word: str, executors: Executors) -> AnswerResult:
        """Apply one of `ANSWERS`; other than yes and no only for a contradiction (M-087)."""
        answer = ANSWERS[word]
        if item.kind != "ended" and word not in ("yes", "no"):
            return AnswerResult(item, ONLY_YES_OR_NO)
        return await (
            self.refuse(item) if answer == "both" else self.approve(item, executors, answer)
        )

    async def approve(
        self, item: Decision, executors: Executors, answer: WhichHolds = "new"
    ) -> AnswerResult:
        """Apply a decision if its subject is unchanged (M-079); a no before it can be revised."""
        item = await self._reopen(item)
        if item.state != "open":
            return AnswerResult(item, ANSWERED[item.state])
        keeps_other = item.kind == "ended" and answer != "new"
        wanted = answered_otherwise(item, neither=answer == "neither") if keeps_other else item
        try:
            done = await executors.apply(item, "command", wanted)
        except StorageBlocked:
            raise
        except WintermuteError as problem:
            return AnswerResult(wanted, str(problem))
        if item.scope:
            await self._stores.memories.text(item.scope)
        return AnswerResult(wanted, "" if done else CHANGED)

    async def _reopen(self, item: Decision) -> Decision:
        """Reopen a refused decision, except for lines, which are back in their file."""
        if item.state != "refused" or item.kind == LINES:
            return item
        async with self._stores.database.transaction() as tx:
            await self._stores.decisions.move(tx, item, "open")
        return replace(item, state="open")

    async def refuse(self, item: Decision) -> AnswerResult:
        """Refuse a decision: it is not asked again."""
        if item.state != "open":
            return AnswerResult(item, ANSWERED[item.state])
        async with self._stores.placing.settled(), self._stores.database.transaction() as tx:
            if not await self._stores.decisions.move(tx, item, "refused"):
                return AnswerResult(item, CHANGED)
            if item.kind == PAGE_LINES:  # the lines stay, and models see them again
                files, lines = self._stores.wiki.files, item.plan["lines"]
                await run_uncancelled(partial(show_again, files, lines))
        if item.kind == LINES:  # the lines are written back to their file
            await self._stores.memories.text(item.scope)
        return AnswerResult(item)


def is_number(word: str) -> bool:
    """Decide if a word is an item's number; a night's id is longer."""
    name = word.strip("`#")
    return name.isdecimal() and len(name) < len("20260504")


def _day(named: str) -> date | None:
    try:
        return date.fromisoformat(named)
    except ValueError:
        return None
