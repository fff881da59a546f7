"""Whose turn it is in a night that may not do everything: the owner first, and nobody starves."""

import random
from pathlib import Path

import pytest

from tests.world.clock import FakeClock
from tests.world.model import ModelServer
from tests.world.nights import OWNER, SmallNight, opened
from tests.world.tidied import Tidied, asked_scopes, numbered_room, pairs, price, tally
from wintermute.changes.nights import Night


@pytest.fixture
def tmp_path(tmp_path: Path) -> Path:
    """With folders for two houses."""
    for name in ("one", "many"):
        (tmp_path / name).mkdir()
    return tmp_path


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
    scopes = [OWNER, *map(numbered_room, range(count))]
    endless = {OWNER, *chance.sample(scopes, chance.randint(1, count))}
    small = SmallNight(asks_model=True, budget=one * questions + one // 2)
    async with opened(tmp_path / "many", model, FakeClock(), night=small) as house:
        night, number = Tidied(house, FakeClock(), small.built[0], model), 0
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
            seen = asked_scopes(model, before)
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
        night = Tidied(house, FakeClock(), small.built[0], model)
        await pairs(house, OWNER, *range(9))
        for n, wants in enumerate((9, 1, 9)):
            await pairs(house, numbered_room(n), *range(wants))
        before = len(model.requests)
        done = await night.night()
        seen = asked_scopes(model, before)
        counts = [seen.count(scope) for scope in (OWNER, *map(numbered_room, range(3)))]
        assert counts == [6, 2, 1, 3]
        assert statuses(done, OWNER, *map(numbered_room, range(3))) == [
            "left",
            "left",
            "ok",
            "left",
        ]


async def test_a_night_of_one_phase_is_nobodys_turn(tmp_path: Path, model: ModelServer) -> None:
    """Issue 21, 2: nor is one that was left before anything was asked."""
    one = await price(tmp_path / "one", model)
    small = SmallNight(asks_model=True, budget=one * 2 + one // 2)
    async with opened(tmp_path / "many", model, FakeClock(), night=small) as house:
        night = Tidied(house, FakeClock(), small.built[0], model)
        await pairs(house, OWNER, *range(9))
        for n in range(3):
            await pairs(house, numbered_room(n), *range(9))
        turns = []
        for phase in ("", "twice", "", ""):
            before = len(model.requests)
            await night.night(phase)
            turns += [
                scope for scope in asked_scopes(model, before) if not phase and scope != OWNER
            ]
        assert turns == [numbered_room(0), numbered_room(1), numbered_room(2)]


async def test_a_dry_run_has_the_shares_of_a_night(tmp_path: Path, model: ModelServer) -> None:
    """M-073: what it shows is what a night of the same tokens would come to."""
    one = await price(tmp_path / "one", model)
    small = SmallNight(asks_model=True, budget=one * 6 + one // 2)
    async with opened(tmp_path / "many", model, FakeClock(), night=small) as house:
        clock = FakeClock()
        night = Tidied(house, clock, small.built[0], model)
        await pairs(house, OWNER, *range(9))
        await pairs(house, numbered_room(0), *range(9))
        before, now = len(model.requests), house.checked.now()
        dry, _ = await night.tidying.preview(
            Night("20260504", now.date(), "command", "running", now)
        )
        tried = asked_scopes(model, before)
        before = len(model.requests)
        done = await night.night()
        assert asked_scopes(model, before) == tried == [OWNER] * 3 + [numbered_room(0)] * 3
        assert (
            statuses(dry, OWNER, numbered_room(0))
            == statuses(done, OWNER, numbered_room(0))
            == ["left"] * 2
        )
