"""What is left of nights: by a budget, by a model that is away, by phases that were interrupted too often."""

from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import pytest

from tests.world.clock import HeldClock
from tests.world.house import ANN, SCOPE, House
from tests.world.model import ModelServer
from tests.world.nights import SmallNight, begin, look, opened, says_at_night, slept
from tests.world.sleeping import Sleep
from tests.world.tidied import Tidied, asked_scopes, numbered_room, pairs, price
from wintermute.changes.change_sets import Change, Reason
from wintermute.config.schema import BudgetSettings as Ceilings
from wintermute.night.night_undo import undo_items
from wintermute.night.pipeline import night_lock

TEA = ("Ann likes tea", "Ann likes green tea")
DAY = 86_400.0
ONE_CALL = 4_200
"""Tokens that a question and its answer may take at worst."""


class Killed(BaseException):
    """As a kill: nothing of ours goes on."""


@dataclass
class Kills:
    """Kills whoever tells it of a phase, so often."""

    phase: str
    times: int
    seen: list[str] = field(default_factory=list)

    def __call__(self, scope: str, phase: str) -> None:
        if phase == self.phase and len(self.seen) < self.times:
            self.seen.append(scope)
            raise Killed


@pytest.mark.parametrize("kills", [1, 2, 3, 4])
async def test_what_was_found_before_kills_is_done_then_or_by_the_next_night(
    sleep: Sleep, kills: int
) -> None:
    """M-063: nothing that was found stays undone for ever, and nothing is planned in a night that is over."""
    await sleep.told(*TEA, at="2026-05-01")
    sleep.merge = lambda texts: max(texts, key=len)
    sleep.clock.advance(DAY)
    night, kill = await sleep.begun(), Kills("contradictions", kills)
    for _ in range(kills):
        with pytest.raises(Killed):
            await sleep.tidying.run_night(night, kill)
    await sleep.tidying.run_night(night, kill)
    items = await sleep.house.stores.decisions.listed(sleep.house.database, night.id)
    assert "planned" not in {item.state for item in items}
    assert [each.text for each in await sleep.house.stores.facts.live(SCOPE)] == (
        [TEA[1]] if kills < 2 else [*TEA]
    )
    await sleep.night()
    assert [each.text for each in await sleep.house.stores.facts.live(SCOPE)] == [TEA[1]]


@pytest.mark.slow
async def test_a_budget_of_the_day_starves_nobody(tmp_path: Path, model: ModelServer) -> None:
    """L-086, L-085: what does not fit into the day is left, and whoever was not asked about comes first."""
    for name in ("one", "many"):
        (tmp_path / name).mkdir()
    one, count = await price(tmp_path / "one", model), 4
    scopes = [*map(numbered_room, range(count))]
    small = SmallNight(asks_model=True, budget=200_000)
    clock = HeldClock()
    async with opened(
        tmp_path / "many",
        model,
        clock,
        night=small,
        budget=Ceilings(tokens_per_day=ONE_CALL + 5 * one),
    ) as house:
        night, number, seen = Tidied(house, clock, small.built[0], model), 0, set[str]()
        for _ in range(2 * count):
            before = len(model.requests)
            for scope in scopes:
                number += 4
                await pairs(house, scope, *range(number, number + 4))
            done = await night.night()
            seen |= set(asked_scopes(model, before))
            assert {tally.status for tally in done.phases} <= {"ok", "left"}
        assert len(seen) == count


async def test_what_phases_did_goes_with_what_can_be_undone_no_more_and_the_night_stays(
    sleep: Sleep,
) -> None:
    """M-065: a night of many people notes hundreds of phases."""
    for n in range(10):
        await sleep.told(f"Person {n} has {n} cats", scope=f"person:@p{n}:test")
    old = await sleep.night()
    assert len(old.phases) > 50
    sleep.clock.advance(timedelta(days=31).total_seconds())
    new = await sleep.night("housekeeping")
    phases = {night.id: len(night.phases) for night in await sleep.nights.newest(2)}
    assert phases == {old.id: 0, new.id: 1}


async def test_a_file_outside_of_its_folder_is_never_put_in_place(
    tmp_path: Path, model: ModelServer, caplog: pytest.LogCaptureFixture
) -> None:
    """M-063: whatever an item says; it is told once, and put back."""
    clock = HeldClock()
    async with opened(tmp_path, model, clock) as house:
        await begin(house, "Sells the car?")
        await slept(house, clock, 11.2)
        async with house.database.transaction() as tx:
            change = Change("skill", "../out", None, {"text": "no"})
            await house.stores.changes.record(
                tx, Reason("night", f"person:{ANN}"), [change], placed=False
            )
    async with opened(tmp_path, model, clock) as house:
        for _ in range(5):
            clock.advance(60)
            await look(house)
        tried = [each for each in caplog.messages if "half in place" in each]
        assert len(tried) == 1
    assert not (tmp_path / "out.md").exists()


async def test_a_command_that_was_killed_beside_a_daemon_is_gone_on_with_soon(
    house: House, clock: HeldClock
) -> None:
    """M-063: not only at its next start; while the command is at work it is left alone."""
    await begin(house, "Likes tea", "Likes tea, again")
    await look(house)
    store = house.stores.nights
    async with night_lock(house.stores.data_dir):
        async with house.database.transaction() as tx:
            begun = await store.begin(tx, clock.now().date(), "command")
        await look(house)
        assert len(await store.running(house.database)) == 1
    assert begun is not None
    clock.advance(60)
    await look(house)
    assert await store.running(house.database) == []
    done = await store.named(begun.id)
    assert done is not None
    assert done.state == "done"
    assert "merged" in await says_at_night(house, "/night")


async def test_what_somebody_put_back_is_decided_by_no_later_night_alone(sleep: Sleep) -> None:
    """M-079: "no, keep both" holds as well when a third one says what both say."""
    await sleep.told("Lena lives in Graz with two cats", "Lena in Graz has two cats")
    sleep.merge = lambda texts: max(texts, key=len)
    sleep.compare = lambda first, second: '{"action": "keep_both"}'
    await sleep.night()
    (item,) = await sleep.items()
    assert item.state == "done"
    await undo_items(sleep.house.stores, [item], whole=False)
    await sleep.told("Lena lives in Graz with two cats since 2015")
    for _ in range(3):
        await sleep.night()
    assert len(await sleep.house.stores.facts.live(SCOPE)) == 3
    states = {item.state for item in await sleep.items()}
    assert states == {"undone", "open"}


async def test_a_budget_that_is_too_small_for_one_question_says_so(
    tmp_path: Path, model: ModelServer
) -> None:
    """M-093, issue 21, 7: it is no night like others, and waiting does not help."""
    small = SmallNight(asks_model=True, budget=10)
    clock = HeldClock()
    async with opened(tmp_path, model, clock, night=small) as house:
        await begin(house, "Likes tea", "Likes tea, again")
        await slept(house, clock, 11.2)
        said = await says_at_night(house, "/night")
        assert "one question alone may take" in said
        assert "raise dreaming.budget" in said
        asked = await dreamt(house)
        assert asked.startswith("Done, and nothing was changed: the rest waits for the next night.")
        assert "Why: one question alone may take" in asked


async def dreamt(house: House) -> str:
    """Ask for a night, wait for its end, and return what its owner reads of it."""
    before = len(await house.spoken())
    async with house.working():
        await house.incoming("/dream")
        await house.said(before + 1)
    await look(house)
    return (await house.spoken())[-1]


async def test_a_later_night_whose_merge_went_with_an_older_one_says_so(sleep: Sleep) -> None:
    """M-065, M-076: what an undo takes back on its way is taken back in the report as well."""
    since = " since 2015"
    sleep.merge = lambda texts: (
        f"In Graz Lena lives with two cats{since if since in ' '.join(texts) else ''}"
    )
    await sleep.told("Lena lives in Graz with two cats", "Lena in Graz has two cats")
    first = await sleep.night()
    await sleep.told("Lena lives in Graz with two cats since 2015")
    await sleep.night()
    older, newer = await sleep.items()
    assert (older.state, newer.state) == ("done", "done")
    items = await sleep.house.stores.decisions.listed(sleep.house.database, first.id)
    await undo_items(sleep.house.stores, items, whole=True)
    assert {item.state for item in await sleep.items()} == {"undone"}
    assert len(await sleep.house.stores.facts.live(SCOPE)) == 3
