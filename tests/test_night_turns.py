"""Whose turn it is in a night that may not do everything: the owner first, and nobody starves."""

import random
import re
from pathlib import Path

import pytest

from tests.world.clock import FakeClock
from tests.world.house import House
from tests.world.model import ModelServer, Text
from tests.world.nights import AGAIN, OWNER, SmallNight, opened, remember
from tests.world.tidied import Tidied, tally
from wintermute.changes.nights import Night

SCOPE = re.compile(r"in (\S+) is liked")


def named(n: int) -> str:
    return f"room:!{n:02}:test"


async def pairs(house: House, scope: str, *numbers: int) -> None:
    """So many questions for a night."""
    said = [f"Thing {number} in {scope} is liked" for number in numbers]
    await remember(house, *(each for text in said for each in (text, text + AGAIN)), scope=scope)


def asked(model: ModelServer, since: int = 0) -> list[str]:
    """About which scopes, in this order."""
    texts = (str(seen.messages[-1]["content"]) for seen in model.requests[since:])
    return [found[1] for text in texts if (found := SCOPE.search(text))]


@pytest.fixture
def tmp_path(tmp_path: Path) -> Path:
    """With folders for two houses."""
    for name in ("one", "many"):
        (tmp_path / name).mkdir()
    return tmp_path


async def price(folder: Path, model: ModelServer) -> int:
    """Tokens of one question, and of its answer: none is told by the server."""
    model.keyed(lambda _: Text("Yes.", usage=None))
    small = SmallNight(asks_model=True)
    async with opened(folder, model, FakeClock(), night=small) as house:
        await pairs(house, named(0), 1)
        night = await Tidied(house, FakeClock(), small.built[0]).night()
    assert night.calls == 1
    return night.tokens


def statuses(night: Night, *scopes: str) -> list[str]:
    return [tally(night, "twice", scope).status for scope in scopes]


@pytest.mark.quick("2", "4")
@pytest.mark.parametrize("seed", range(6))
async def test_with_few_tokens_every_scope_comes_to_its_turn(
    tmp_path: Path, model: ModelServer, seed: int
) -> None:
    """Issue 21, 2: some have more to do every day than a night may; the others wait for no more than
    so many nights as there are scopes, and nobody twice as long as another.
    """
    chance = random.Random(seed)
    one, count = await price(tmp_path / "one", model), chance.randint(3, 7)
    questions = chance.randint(2, count)
    scopes = [OWNER, *map(named, range(count))]
    endless = {OWNER, *chance.sample(scopes, chance.randint(1, count))}
    small = SmallNight(asks_model=True, budget=one * questions + one // 2)
    async with opened(tmp_path / "many", model, FakeClock(), night=small) as house:
        night, number = Tidied(house, FakeClock(), small.built[0]), 0
        for scope in scopes:
            await pairs(house, scope, *range(chance.randint(1, 4)))
        last = dict.fromkeys(scopes, 0)
        for n in range(1, 3 * count + 1):
            before = len(model.requests)
            for scope in sorted(endless):
                number += 6
                await pairs(house, scope, *range(number, number + 6))
            done = await night.night()
            assert done.tokens <= one * questions + one // 2
            seen = asked(model, before)
            assert seen[0] == OWNER
            for scope in seen:
                last[scope] = n
            for scope in endless:
                assert n - last[scope] <= count, (scope, last)
        idle = {scope for scope in scopes if scope not in endless}
        final = await night.night()
        assert statuses(final, *sorted(idle)) == ["ok"] * len(idle)


async def test_what_is_left_is_shared_by_those_who_wait_and_what_one_leaves_is_the_others(
    tmp_path: Path, model: ModelServer
) -> None:
    """Issue 21, 7: half of it the owner's, the rest in equal parts; who needs little leaves it."""
    one = await price(tmp_path / "one", model)
    small = SmallNight(asks_model=True, budget=one * 12 + one // 2)
    async with opened(tmp_path / "many", model, FakeClock(), night=small) as house:
        night = Tidied(house, FakeClock(), small.built[0])
        await pairs(house, OWNER, *range(9))
        for n, wants in enumerate((9, 1, 9)):
            await pairs(house, named(n), *range(wants))
        before = len(model.requests)
        done = await night.night()
        seen = asked(model, before)
        counts = [seen.count(scope) for scope in (OWNER, *map(named, range(3)))]
        assert counts == [6, 2, 1, 3]
        assert statuses(done, OWNER, *map(named, range(3))) == ["left", "left", "ok", "left"]


async def test_a_night_of_one_phase_is_nobodys_turn(tmp_path: Path, model: ModelServer) -> None:
    """Issue 21, 2: nor is one that was left before anything was asked."""
    one = await price(tmp_path / "one", model)
    small = SmallNight(asks_model=True, budget=one * 2 + one // 2)
    async with opened(tmp_path / "many", model, FakeClock(), night=small) as house:
        night = Tidied(house, FakeClock(), small.built[0])
        await pairs(house, OWNER, *range(9))
        for n in range(3):
            await pairs(house, named(n), *range(9))
        turns = []
        for phase in ("", "twice", "", ""):
            before = len(model.requests)
            await night.night(phase)
            turns += [scope for scope in asked(model, before) if not phase and scope != OWNER]
        assert turns == [named(0), named(1), named(2)]


async def test_a_dry_run_has_the_shares_of_a_night(tmp_path: Path, model: ModelServer) -> None:
    """M-073: what it shows is what a night of the same tokens would come to."""
    one = await price(tmp_path / "one", model)
    small = SmallNight(asks_model=True, budget=one * 6 + one // 2)
    async with opened(tmp_path / "many", model, FakeClock(), night=small) as house:
        clock = FakeClock()
        night = Tidied(house, clock, small.built[0])
        await pairs(house, OWNER, *range(9))
        await pairs(house, named(0), *range(9))
        before, now = len(model.requests), house.checked.now()
        dry, _ = await night.tidying.preview(
            Night("20260504", now.date(), "command", "running", now)
        )
        tried = asked(model, before)
        before = len(model.requests)
        done = await night.night()
        assert asked(model, before) == tried == [OWNER] * 3 + [named(0)] * 3
        assert statuses(dry, OWNER, named(0)) == statuses(done, OWNER, named(0)) == ["left"] * 2
