"""Reports of nights as somebody reads them who does not know what a phase is: at the shell and in a chat."""

import shutil
from datetime import timedelta
from pathlib import Path

import pytest

from tests.world.clock import SYSTEM, HeldClock
from tests.world.duties import Back
from tests.world.house import PROMPTS, House
from tests.world.model import ModelServer
from tests.world.nights import SmallNight, begin, house_at, night_at, opened, says_at_night, slept
from tests.world.sleeping import Sleep
from tests.world.terminal import Terminal
from wintermute.commands.night import GONE
from wintermute.config.schema import Dreaming
from wintermute.night.pipeline import night_lock
from wintermute.text import plain

ASKED = ("Sells the car?", "Sells the boat?")


@pytest.fixture
def home(terminal: Terminal) -> Terminal:
    shutil.copytree(PROMPTS, terminal.data / "prompts")
    return terminal


def nights_line(home: Terminal) -> str:
    """What `status` says of nights."""
    lines = home.run("status", "--all").stdout.decode().splitlines()
    return next(line for line in lines if "nights:" in line)


async def test_no_is_said_at_the_shell_as_well(home: Terminal, model: ModelServer) -> None:
    """M-079: nothing is changed, and it is answered."""
    name = await night_at(home, model, SmallNight(), *ASKED)
    assert home.says("night", "refuse", f"{name}#1") == f"{name}#1 stays as it is\n"
    assert home.refuses("night", "refuse", f"{name}#1").endswith("was refused already")
    said = home.says("night", "report")
    assert f"{name}#1  refused" in said
    assert "\n1 question; 0 calls, 0 tokens\n" in said
    assert sorted(fact["text"] for fact in home.json("memory", "list")) == sorted(ASKED)


async def test_who_said_no_may_think_better_of_it(house: House, clock: HeldClock) -> None:
    """M-079: the night does not ask again, and the person may still say yes."""
    await begin(house, "Sells the car?")
    await slept(house, clock, 11.2)
    assert "stays as it is" in await says_at_night(house, "/night no 1")
    assert "was refused already" in await says_at_night(house, "/night no 1")
    assert "done: set aside" in await says_at_night(house, "/night yes 1")
    assert "was done already" in await says_at_night(house, "/night yes 1")


async def test_a_date_shows_the_night_that_did_something_and_names_the_others(
    home: Terminal, model: ModelServer
) -> None:
    """M-073: somebody ran one more, to which nothing was left; what is asked is not hidden by it."""
    older = await night_at(home, model, SmallNight(), ASKED[0], clock=Back(timedelta(days=2)))
    name = await night_at(home, model, SmallNight(), "Likes tea", "Likes tea, again")
    empty = home.json("night", "run", "--phase", "export")["id"]
    assert empty == f"{name}-2"
    day = home.json("night", "report", name)["date"]
    assert home.json("night", "report", day)["id"] == name
    said = home.says("night", "report", day).splitlines()
    assert said[0].startswith(f"{name}, asked, done")
    assert said[-2:] == [f"also of {day}: {empty}", f"still asked by other nights: {older}#1"]
    newest = home.says("night", "report").splitlines()
    assert newest[0].startswith(f"{empty}, command, done")
    assert newest[-1] == f"still asked by other nights: {older}#1"


async def test_a_command_tells_what_it_finished_of_another_night(
    home: Terminal, model: ModelServer
) -> None:
    """M-063: what was killed is named, with what became of it, before the own one."""
    async with house_at(home, model, SmallNight()) as house:
        store = house.stores.nights
        async with house.database.transaction() as tx:
            left = await store.begin(tx, SYSTEM.now().date(), "schedule")
    assert left is not None
    told = nights_line(home)
    assert "was interrupted: the daemon or `wintermute night run` finishes it" in told
    async with night_lock(home.data):
        assert "running since" in nights_line(home)
    said = home.says("night", "run")
    assert said.startswith(f"{left.id} was interrupted, and is finished now\n")
    assert f"\n{left.id}-2\n" in said
    assert "; next " in nights_line(home)


async def test_the_next_night_is_that_of_another_date_where_the_hour_was_moved(
    tmp_path: Path, model: ModelServer
) -> None:
    """M-054: each date once."""
    clock = HeldClock()
    async with opened(tmp_path, model, clock) as house:
        await begin(house)
        await slept(house, clock, 11.2)
        assert "next 2026-05-06 01:00" in await says_at_night(house, "/status all")
    async with opened(tmp_path, model, clock, Dreaming(hour=23)) as house:
        assert "next 2026-05-06 23:00" in await says_at_night(house, "/status all")


async def test_what_the_guard_held_back_says_why(house: House, clock: HeldClock) -> None:
    """M-081: a question that was no question by itself needs a reason."""
    known = [f"Likes tea {n}" for n in range(5)]
    await begin(house, *known, *(f"{each}, again" for each in known))
    await slept(house, clock, 11.2)
    said = await says_at_night(house, "/night")
    assert f"- twice: {plain('needs your approval: 5 of 10 memories would go at once')}" in said
    assert said.count("waits for your yes or no") == 5


async def test_what_was_forgotten_is_counted_and_not_shown(house: House, clock: HeldClock) -> None:
    """M-035, M-078: its number stays."""
    await begin(house, "Likes tea with honey", "Likes tea with honey, again", "Has a dog")
    await slept(house, clock, 11.2)
    await says_at_night(house, "/forget tea honey")
    while await house.deliver():
        pass
    await says_at_night(house, "/forget yes")
    said = await says_at_night(house, "/night")
    assert "`1` merged: words were forgotten" in said
    assert "tea" not in said.replace("/night", "")
    assert await says_at_night(house, "/night undo 1") == GONE
    assert "`1` merged: words were forgotten" in await says_at_night(house, "/night")


async def test_who_reads_while_a_night_is_under_way_is_told_so(
    house: House, clock: HeldClock
) -> None:
    """M-078: an older one is shown, and not for the one at work."""
    await begin(house, "Likes tea", "Likes tea, again")
    await slept(house, clock, 11.2)
    store = house.stores.nights
    async with house.database.transaction() as tx:
        begun = await store.begin(tx, clock.now().date(), "command")
    assert begun is not None
    said = await says_at_night(house, "/night")
    assert said.startswith("**Night of 2026-05-05** (`20260505`): ended")
    assert f"The night `{begun.id}` is running since" in said


async def test_the_reason_names_the_times_where_both_are_of_one_day(sleep: Sleep) -> None:
    """M-058, M-078."""
    sleep.compare = lambda first, second: '{"action": "keep_second"}'
    await sleep.told("Lena lives in the old house in Graz", at="2026-05-01T09:00")
    await sleep.told("Lena lives in the new house in Linz", at="2026-05-01T15:30")
    night = await sleep.night()
    (item,) = await sleep.house.stores.decisions.listed(sleep.house.database, night.id)
    assert item.reason == "said 2026-05-01, 11:00, then 17:30"
