"""What was learnt from several messages is derived again from those that are left (M-030)."""

import json
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from tests.world.clock import NOON, HeldClock, until_so
from tests.world.copier import before, copying
from tests.world.forgetting import deliver, forgotten
from tests.world.harvested import Picker, harvested, harvested_facts, talking
from tests.world.house import PROMPTS, SCOPE, House, open_house
from tests.world.redacted import take_back
from wintermute.config.schema import MemoryHarvest
from wintermute.memory.fact import Fact
from wintermute.memory.origins import CurrentVersion, plan_retraction

BEES = ("I have bees", "my bees are nice")


async def tell_and_harvest(house: House, first: Sequence[str], n: int = 20) -> list[str]:
    """So many messages, of which these are the first, were said, read and answered."""
    said = await house.say(*first, *(f"n{i}" for i in range(n - len(first))))
    await harvested(house)
    await deliver(house)
    return said


@pytest.mark.slow
@pytest.mark.breaks("forgetting", perhaps=True)
async def test_a_memory_is_derived_again_from_the_one_message_left(picker: Picker) -> None:
    """At once, whatever was said since; what the assistant answered may repeat what is gone."""
    picker.picks("Ann keeps bees.")
    async with picker.talking() as house:
        gone, left, *_ = await tell_and_harvest(house, BEES)
        await house.say("one more")
        await deliver(house)
        (upto,) = await house.rows("SELECT upto FROM harvests")
        picker.picks("Ann's bees are nice.")
        await take_back(house, gone)
        await forgotten(house)
        await harvested(house, 2)
        (fact,) = await harvested_facts(house)
        assert (fact["text"], json.loads(fact["origins"])) == ("Ann's bees are nice.", [left])
        assert await house.rows("SELECT upto FROM harvests") == [upto]
        change = await house.rows("SELECT cause FROM change_sets ORDER BY seq DESC LIMIT 1")
        assert change == [{"cause": "harvest"}]
        await house.say(*(f"more {n}" for n in range(19)))
        await harvested(house, 3)
    one, two, three = picker.transcripts
    assert "echo: my bees are nice" in one
    assert two == "[Monday, 2026-05-04]\nAnn (@ann:test): my bees are nice\n</transcript>\n"
    assert "bees" not in three
    assert three.count("Ann (@ann:test): ") == 20


@pytest.mark.breaks("forgetting", perhaps=True)
async def test_what_a_person_took_back_is_not_derived_again(picker: Picker, tmp_path: Path) -> None:
    """Neither in the same words nor in another case; not even where it goes with the message."""
    picker.picks("Ann keeps bees.", "Ann owns a boat.")
    both = ("My bees and the boat that I own", "The boat I own is called like my bees")
    opened = open_house(
        tmp_path, picker.model.url, prompts=PROMPTS, clock=picker.clock, harvest=MemoryHarvest()
    )
    async with opened as house, house.working():
        gone, left, *_ = await tell_and_harvest(house, both)
        await house.say("look")
        assert "boat" in (tmp_path / "MEMORIES.txt").read_text()
        (tmp_path / "MEMORIES.txt").write_text("Ann keeps bees.\n")
        await house.say("look again")
        await deliver(house)
        assert [fact["text"] for fact in await harvested_facts(house)] == ["Ann keeps bees."]
        picker.picks("Ann keeps bees.", "Ann OWNS a boat", "Ann's boat has a name.")
        await take_back(house, gone)
        await forgotten(house)
        await harvested(house, 2)
        texts = [fact["text"] for fact in await harvested_facts(house)]
        assert texts == ["Ann keeps bees.", "Ann's boat has a name."]
        assert [json.loads(fact["origins"]) for fact in await harvested_facts(house)] == [
            [left]
        ] * 2
        assert await house.rows("SELECT * FROM harvest_repeats") == []


@pytest.mark.slow
@pytest.mark.breaks("forgetting", perhaps=True)
async def test_it_is_derived_again_while_something_is_still_to_be_sent(picker: Picker) -> None:
    """What goes is not taken for what a person took back; the new one stays when it is purged."""
    picker.picks("Ann keeps bees.")
    async with picker.talking() as house:
        gone, left, *_ = await tell_and_harvest(house, BEES)
        await house.say("/memory")
        picker.picks("Ann keeps bees.")
        await take_back(house, gone)
        house.runner.wake("forget")
        await harvested(house, 2)
        assert len(await house.rows("SELECT 1 FROM facts")) == 2
        assert [json.loads(fact["origins"]) for fact in await harvested_facts(house)] == [[left]]

        async def put_off() -> bool:
            query = "SELECT 1 FROM jobs WHERE name = 'forget' AND state = 'waiting'"
            return bool(await house.rows(f"{query} AND not_before IS NOT NULL"))

        await until_so(put_off)
        await deliver(house)
        await picker.clock.move(2)
        await forgotten(house)
        assert len(await house.rows("SELECT 1 FROM facts")) == 1
        assert [json.loads(fact["origins"]) for fact in await harvested_facts(house)] == [[left]]


@pytest.mark.breaks("forgetting", perhaps=True)
async def test_without_harvest_nothing_is_derived_again(picker: Picker) -> None:
    picker.picks("Ann keeps bees.")
    async with picker.talking() as house:
        gone, *_ = await tell_and_harvest(house, BEES)
    async with picker.talking(harvest=MemoryHarvest(enabled=False)) as house:
        await take_back(house, gone)
        await forgotten(house)
    async with picker.talking() as house:
        await picker.clock.move(timedelta(hours=1).total_seconds())
        house.runner.wake("harvest")
        await house.say("And now?")
        assert await harvested_facts(house) == []
    assert len(picker.transcripts) == 1


@pytest.mark.slow
@pytest.mark.breaks("forgetting", perhaps=True)
async def test_it_is_derived_again_after_any_kill(picker: Picker, tmp_path: Path) -> None:
    """Before it is unlearnt, when it is, before it is purged, and before the job is over."""
    live = tmp_path / "live"
    live.mkdir()
    (tmp_path / "killed").mkdir()
    picker.picks("Ann keeps bees.")
    async with AsyncExitStack() as stack:
        house = await stack.enter_async_context(
            open_house(
                live, picker.model.url, prompts=PROMPTS, clock=picker.clock, harvest=MemoryHarvest()
            )
        )
        async with house.working():
            gone, left, *_ = await tell_and_harvest(house, BEES)
        await take_back(house, gone)
    with copying(live, tmp_path / "killed") as copier:
        async with picker.talking(folder=live) as house:
            await forgotten(house)
            await harvested(house, 2)
    starts = ("UPDATE facts SET retired_at", "UPDATE outbox SET body", "DELETE FROM facts")
    for start in (*starts, "UPDATE jobs SET args = '{}', progress"):
        picker.picks("Ann's bees are nice.")
        async with talking(before(copier, start), picker.model, HeldClock()) as house:
            await forgotten(house)
            await harvested(house, 2)
            (fact,) = await harvested_facts(house)
            assert (fact["text"], json.loads(fact["origins"])) == ("Ann's bees are nice.", [left])
            assert len(await house.rows("SELECT * FROM facts")) == 1, start


@pytest.mark.slow
@pytest.mark.breaks("forgetting", perhaps=True)
async def test_a_blank_message_says_nothing_that_could_keep_a_memory(picker: Picker) -> None:
    """It was blanked by `/forget` of something else that it said."""
    picker.picks("Ann keeps bees.", "Ann owns a boat.")
    said = ("I have bees, Ann keeps them", "My boat is one that Ann owns, she keeps it")
    async with picker.talking() as house:
        gone, _, *_ = await tell_and_harvest(house, said)
        boat = next(f for f in await house.stores.facts.live(SCOPE) if "boat" in f.text)
        await house.say(f"/forget {boat.id}")
        await deliver(house)
        await forgotten(house)
        await take_back(house, gone)
        await forgotten(house)
        assert await harvested_facts(house) == []


def fact(name: str, text: str, *origins: str, heir: str | None = None, over: bool = False) -> Fact:
    made = Fact(name, SCOPE, text, "harvest", "Ann", origins, NOON, NOON, replaced_by=heir)
    return replace(made, retired_at=NOON) if over or heir else made


WORDINGS = {f"$e{n}": CurrentVersion(f"$e{n}", f"about {n}") for n in range(5)}
BLANK = {"$e1": CurrentVersion("$e1", "")}
MERGED = (
    fact("boat", "Ann owns a boat", "$e1", heir="both", over=True),
    fact("bees", "Ann keeps bees", "$e0", "$e2", heir="both", over=True),
)
CASES = {
    "of the message alone": (fact("a", "x y z", "$e0"), (), WORDINGS, "gone", "", ""),
    "of others as well": (fact("a", "x y z", "$e0", "$e1"), (), WORDINGS, "gone", "", "$e1"),
    "others say it": (fact("a", "about", "$e0", "$e1"), (), WORDINGS, "kept", "", ""),
    "the other one is blank": (fact("a", "about", "$e0", "$e1"), (), BLANK, "gone", "", ""),
    "it was imported, too": (fact("a", "x y z", "$e0", "imported"), (), BLANK, "kept", "", ""),
    "the other one was edited": (
        *(fact("a", "x y z", "$e0", "$edit"), ()),
        *({"$edit": CurrentVersion("$e1", "as it reads")}, "gone", "", "$e1"),
    ),
    "a person took it back": (
        *(fact("a", "x y z", "$e0", "$e1", over=True), (), WORDINGS, "gone", "", ""),
    ),
    "it was merged": (
        fact("both", "Ann owns a boat and keeps bees", "$e0", "$e1", "$e2", "$e3"),
        *(MERGED, WORDINGS, "gone", "boat", "$e2 $e3"),
    ),
    "a part that came of it, too, stands without it": (
        fact("both", "Ann owns a boat and says x", "$e0", "$e1"),
        (fact("part", "about", "$e0", "$e1", heir="both", over=True),),
        *(WORDINGS, "gone", "part", ""),
    ),
    "a person took the merged one back": (
        fact("both", "Ann owns a boat and keeps bees", "$e0", "$e1", "$e2", over=True),
        *(MERGED, WORDINGS, "gone", "", ""),
    ),
}


@pytest.mark.parametrize(
    ("asked", "parts", "kept", "fate", "back", "again"), CASES.values(), ids=CASES
)
def test_what_becomes_of_a_memory_whose_message_is_deleted(
    asked: Fact,
    parts: Sequence[Fact],
    kept: dict[str, CurrentVersion],
    fate: str,
    back: str,
    again: str,
) -> None:
    """Of `$e0`; the message of an edit is read again as a whole, and a part by what is left of it."""
    found = [*(each for each in parts if "$e0" in each.origins), asked]
    done = plan_retraction(found, parts, {"$e0"}, kept)
    assert (asked in done.kept, asked in done.gone) == (fate == "kept", fate == "gone")
    assert [each.id for each in done.back] == back.split()
    assert done.again == set(again.split())
