"""Nights: what nobody used for long comes to rest, and is found and woken by who looks for it (M-060)."""

from datetime import timedelta
from pathlib import Path

import pytest

from tests.world.clock import FakeClock
from tests.world.house import PROMPTS
from tests.world.model import ModelServer
from tests.world.tidied import DAY, OWNER, Tidied, open_nights, tally
from wintermute.clock import stamp
from wintermute.commands.memories import MemoryCommands
from wintermute.config.schema import Memory
from wintermute.memory.fact import Source
from wintermute.memory.ranking import Query
from wintermute.night.pipeline import loss_limit_reason

LONG_AGO = timedelta(days=91)
MANY = [f"The {word} stands in the shed" for word in ("boat", "lamp", "ladder", "plough", "kayak")]


async def used(night: Tidied, fact: str, times: int, ago: timedelta) -> None:
    """It was of use on so many days, the last one so long ago."""
    at = stamp(night.clock.now() - ago)
    async with night.house.database.transaction() as tx:
        await tx.execute(
            "UPDATE facts SET accesses = ?, accessed_at = ? WHERE id = ?", (times, at, fact)
        )


async def at_rest(night: Tidied) -> list[str]:
    rows = await night.house.rows("SELECT text FROM facts WHERE archived ORDER BY seq")
    return [row["text"] for row in rows]


@pytest.mark.opens(prompts=PROMPTS)
async def test_what_was_not_used_for_ninety_days_is_in_no_list_or_prompt_and_comes_back_when_found(
    night: Tidied,
) -> None:
    """M-060: found by whoever looks, which wakes it; a prompt neither has nor wakes it."""
    await night.remember("Ann keeps her old skates in the attic", ago=LONG_AGO)
    await night.remember("Bo", "Cars are loud", "Ida sings", "Rain fell", "Max runs")
    done = await night.night()
    assert await at_rest(night) == ["Ann keeps her old skates in the attic"]
    assert (tally(done, "stale").before, tally(done, "stale").after) == (6, 5)
    assert night.model.requests == []
    stores = night.house.stores
    [item] = await night.items("done")
    assert (item.kind, item.loses) == ("rest", 1)

    shown = await MemoryCommands(stores).listed(OWNER, "")
    assert "skates" not in shown
    assert "1 set aside, because they were not used for long" in shown
    assert "skates" not in await stores.memories.text(OWNER)
    asked = Query("Where are the skates?")
    assert await stores.memories.search(OWNER, asked, 5, awake=True) == []
    assert await at_rest(night) == ["Ann keeps her old skates in the attic"]
    assert "skates" in await MemoryCommands(stores).listed(OWNER, "skates")
    assert await at_rest(night) == []
    assert "skates" in await MemoryCommands(stores).listed(OWNER, "")
    row = await night.house.one("SELECT accesses FROM facts WHERE text LIKE '%skates%'")
    assert row["accesses"] == 1


@pytest.mark.parametrize(
    ("times", "ago", "rests"),
    [(0, 91, True), (2, 91, True), (3, 91, False), (2, 89, False), (2, 60, False)],
)
async def test_it_rests_by_its_use_and_not_by_its_age(
    night: Tidied, times: int, ago: int, *, rests: bool
) -> None:
    """M-060: 90 days without use, and fewer than three uses ever."""
    [fact] = await night.remember("Ann likes skates", ago=timedelta(days=400))
    await used(night, fact, times, timedelta(days=ago - 1))
    await night.night("stale")
    assert bool(await at_rest(night)) == rests


async def test_the_persons_own_words_and_what_was_made_of_them_never_rest(night: Tidied) -> None:
    """M-060: protected in any generation of merges."""
    await night.remember("Ann is allergic to nuts", source="user_explicit", ago=LONG_AGO)
    merged: Source = "dreaming_merge"
    await night.remember("Ann eats no nuts", source=merged, ago=LONG_AGO, protected=True)
    await night.night("stale")
    assert await at_rest(night) == []
    assert await night.items() == []


async def test_too_many_at_once_are_one_question_each_and_none_rests_without_a_yes(
    night: Tidied,
) -> None:
    """M-081, M-079: five of six would be more than the guard allows; not asked again unchanged."""
    await night.remember(*MANY, ago=LONG_AGO)
    await night.remember("Ann likes tea")
    await night.night("stale")
    asked = await night.items("open")
    assert len(asked) == 5
    assert await at_rest(night) == []
    await night.night("stale")
    assert len(await night.items()) == 5
    assert await night.yes(asked[0])
    assert await at_rest(night) == [MANY[0]]


async def test_a_flood_of_old_facts_becomes_a_few_items(night: Tidied) -> None:
    """M-060, M-081: sixty of them are two questions, not sixty."""
    await night.remember(*(f"Box number {n} holds old papers" for n in range(60)), ago=LONG_AGO)
    await night.night("stale")
    assert [len(item.before) for item in await night.items("open")] == [50, 10]


async def test_an_undo_wakes_it_and_the_next_night_lets_it_be(night: Tidied) -> None:
    """M-060: undo brings it back; what was taken back is not done again."""
    await night.remember("Ann likes skates", ago=LONG_AGO)
    await night.night("stale")
    [item] = await night.items("done")
    await night.take_back(item)
    assert await at_rest(night) == []
    await night.night("stale")
    assert await at_rest(night) == []


async def test_what_is_used_after_it_was_asked_about_does_not_come_to_rest(night: Tidied) -> None:
    """M-079: looked at again when a person says yes."""
    ids = await night.remember(*MANY, ago=LONG_AGO)
    await night.night("stale")
    [first, *_] = await night.items("open")
    await used(night, ids[0], 1, timedelta())
    assert not await night.yes(first)
    assert await at_rest(night) == []


async def test_what_is_said_again_is_awake_and_an_export_tells_what_is_not(night: Tidied) -> None:
    """M-060, M-068: a person who tells it once more has a use for it."""
    await night.remember("Ann likes skates", "Ann likes tea", ago=LONG_AGO)
    await night.night("stale")
    assert await at_rest(night) == ["Ann likes skates", "Ann likes tea"]
    await night.remember("ann likes skates")
    assert await at_rest(night) == ["Ann likes tea"]


async def test_a_list_that_is_read_whole_has_what_was_at_rest(tmp_path: Path) -> None:
    """M-077: another backend loses nothing; and with a list nothing comes to rest."""
    clock = FakeClock()
    async with ModelServer() as model:
        async with open_nights(tmp_path, model, clock) as night:
            await night.remember("Ann likes skates", ago=LONG_AGO)
            await night.night("stale")
            assert "skates" not in await night.house.stores.memories.text(OWNER)
        async with open_nights(tmp_path, model, clock, memory=Memory()) as night:
            assert "skates" in await night.house.stores.memories.text(OWNER)
            clock.advance(200 * DAY)
            done = await night.night()
            assert await at_rest(night) == []
            assert done.tally(OWNER, "stale") is None


async def test_the_file_of_memories_follows_what_comes_to_rest(night: Tidied) -> None:
    """M-061, M-060: written after the facts were tidied."""
    await night.remember("Ann likes skates", ago=LONG_AGO)
    await night.remember("Bo drinks tea")
    file = night.house.stores.places.memories(OWNER)
    await night.house.stores.memories.text(OWNER)
    assert "skates" in file.read_text("utf-8")
    await night.night()
    assert "tea" in file.read_text("utf-8")
    assert "skates" not in file.read_text("utf-8")


async def test_what_is_awake_is_found_among_hundreds_that_are_at_rest(night: Tidied) -> None:
    """M-060: what is at rest takes no place in a prompt, however much of it fits."""
    [awake] = await night.remember("The boat is called Nora", ago=LONG_AGO)
    await night.remember(*(f"The boat has called at harbour {n}" for n in range(500)))
    async with night.house.database.transaction() as tx:
        await tx.execute("UPDATE facts SET archived = 1 WHERE id <> ?", (awake,))
    memories, asked = night.house.stores.memories, Query("What is the boat called?")
    found = await memories.search(OWNER, asked, 5, awake=True)
    assert [hit.fact.id for hit in found] == [awake]
    assert len(await memories.search(OWNER, asked, 5)) == 5


def test_three_a_night_are_too_many_in_the_end() -> None:
    """M-081: what is always allowed in one night is not in seven."""
    assert loss_limit_reason(3, 5, 0) == ""
    assert loss_limit_reason(3, 30, 6) == ""
    assert "in seven nights" in loss_limit_reason(3, 21, 9)
    assert "at once" in loss_limit_reason(4, 19, 0)
