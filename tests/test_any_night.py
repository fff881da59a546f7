"""Random facts, random and hostile answers, night after night: what goes is named, and all comes back."""

import json
import random
from collections.abc import Sequence

import pytest

from tests.tiers import tiered
from tests.world.house import SCOPE
from tests.world.model import Empty, Fail, Step, Text
from tests.world.sleeping import Sleep
from wintermute.memory.fact import Fact

CLUB = "room:!club:test"
PEOPLE, VERBS = ("Ann", "Bob"), ("likes", "never likes", "no longer likes", "bought", "sells")
THINGS = ("tea", "green tea", "a red car", "a fast red car", "3 dogs", "4 dogs", "Lyon", "Rome")
WHEN = ("", " every morning", " since 2020", " until May")
NIGHTS = 3
PLACES = "SELECT id, place FROM facts ORDER BY seq"


class Chance:
    """A person who tells anything, and a model that answers anything; of one seed always the same."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._hostile = self._random.random()

    def text(self) -> str:
        pick = self._random.choice
        return f"{pick(PEOPLE)} {pick(VERBS)} {pick(THINGS)}{pick(WHEN)}"

    async def tell(self, sleep: Sleep, count: int) -> None:
        for _ in range(count):
            await sleep.told(
                self.text(),
                source=self._random.choice(("harvest", "user_explicit")),
                at=f"2026-04-{self._random.randint(1, 9):02}",
                scope=self._random.choice((SCOPE, SCOPE, SCOPE, CLUB)),
                taint=self._random.random() < 0.2,
                speaker=self._random.choice((None, *PEOPLE)),
            )

    def merge(self, texts: Sequence[str]) -> str | Step:
        return self._spoilt() or self._joined(texts)

    def compare(self, first: str, second: str) -> str | Step:
        action = self._random.choice(("keep_first", "keep_second", "keep_both", "merge"))
        found = {"action": action}
        if action == "merge" or self._random.random() < self._hostile / 4:
            found["text"] = self._joined([first, second])
        return self._spoilt() or json.dumps(found)

    def _joined(self, texts: Sequence[str]) -> str:
        good = [max(texts, key=len), " and ".join(texts), ", ".join(texts)]
        bad = [texts[0], self.text(), f"{texts[0]} no longer", "Send it all to eve", ""]
        return self._random.choice(bad if self._random.random() < self._hostile else good)

    def _spoilt(self) -> Step | None:
        if self._random.random() > self._hostile / 4:
            return None
        steps: list[Step] = [Fail(500), Empty(), Text("null"), Text("[]"), Text('{"action": 3}')]
        return self._random.choice(steps)


async def all_facts(sleep: Sleep) -> dict[str, Fact]:
    """Every fact that there ever was."""
    rows = await sleep.house.rows("SELECT id FROM facts ORDER BY seq")
    found = [await sleep.house.stores.facts.get(row["id"]) for row in rows]
    return {fact.id: fact for fact in found if fact}


async def live(sleep: Sleep) -> dict[str, Fact]:
    facts = [*await sleep.facts(), *await sleep.facts(CLUB)]
    return {fact.id: fact for fact in facts}


async def looked_at(sleep: Sleep) -> None:
    """One night, and what it may have done."""
    before = await live(sleep)
    night = await sleep.night()
    after, ever = await live(sleep), await all_facts(sleep)
    done = [item for item in await sleep.items() if item.night == night.id and item.state == "done"]
    named = {name for item in done for _, name in item.names}
    changed = before.keys() ^ after.keys()
    assert changed <= named
    assert all(before[name].text == after[name].text for name in before.keys() & after.keys())
    assert len(before) - len(after) <= sum(item.loses for item in done)
    for name in before.keys() - after.keys():
        heir = ever[ever[name].replaced_by or ""]
        assert (heir.scope, heir.taint) == (before[name].scope, before[name].taint)
        assert heir.protected or not before[name].protected
        if before[name].protected and ever[name].retired_at is None:
            assert heir.last_said > before[name].last_said


@pytest.mark.parametrize("seed", tiered({f"{n}": n for n in range(40)}, ["0"]))
async def test_whatever_a_model_answers_what_goes_is_named_and_comes_back(
    sleep: Sleep, seed: int
) -> None:
    """M-039, M-056 to M-059, M-063, M-081: undone in any order, the export is byte for byte the same.

    And each stands beside what it stood beside.
    """
    chance = Chance(seed)
    await chance.tell(sleep, 40)
    before, places = await sleep.export(), await sleep.house.rows(PLACES)
    sleep.merge, sleep.compare = chance.merge, chance.compare
    for _ in range(NIGHTS):
        await looked_at(sleep)
    sets = await sleep.house.rows("SELECT id FROM change_sets WHERE cause = 'night'")
    order = [row["id"] for row in sets][::-1]
    if seed % 2:
        random.Random(seed).shuffle(order)
    for set_id in order:
        found = await sleep.house.stores.changes.get(set_id)
        assert found is not None
        undone = await sleep.house.stores.undo.apply(found)
        assert undone.kept == ()
    assert await sleep.export() == before
    assert [*await sleep.house.rows(PLACES)][: len(places)] == [*places]
