"""What was learnt by itself goes with the message it was learnt from, and only that (M-030)."""

import json
from pathlib import Path

import pytest

from tests.world.clock import HeldClock
from tests.world.files import files_with
from tests.world.forgetting import deliver, edit_of, forgotten
from tests.world.harvested import Picker, harvested, harvested_facts
from tests.world.house import House
from tests.world.model import Text
from tests.world.redacted import take_back
from tests.world.remembering import worded
from wintermute.config.schema import MemoryHarvest

OFTEN = MemoryHarvest(message_threshold=2, min_messages=1)
QUARTER = 16 * 60.0
BIRD, NAME = "I have a zimtkanarie", "Hugo sings at night"
BOTH = "The zimtkanarie is Hugo."
HUGO = "Hugo sings."


async def take_back_at_last(house: House, clock: HeldClock, *events: str) -> None:
    """Ann deletes these, and all that is owed for it is done."""
    await deliver(house)
    await clock.move(1)
    await take_back(house, *events)
    await forgotten(house)


async def harvested_texts(house: House) -> list[str]:
    return sorted(fact["text"] for fact in await harvested_facts(house))


@pytest.mark.breaks("redaction", "forgetting", perhaps=True)
async def test_what_is_derived_again_from_the_rest_is_there_once_and_the_deleted_is_not_read_again(
    picker: Picker,
) -> None:
    """M-028, M-030: the cursor goes back to what else the memory came from."""
    picker.picks(BOTH, HUGO)
    picker.usual = lambda: Text(json.dumps({"contents": [HUGO, "Hugo sings at night."]}))
    async with picker.talking(harvest=OFTEN) as house:
        bird, *_ = await house.say(BIRD, NAME)
        await harvested(house)
        assert await harvested_texts(house) == sorted([BOTH, HUGO])
        await take_back_at_last(house, picker.clock, bird)
        await picker.clock.move(QUARTER)
        await harvested(house, 2)
        assert await harvested_texts(house) == ["Hugo sings at night.", HUGO]
        rows = await house.rows("SELECT text, count(*) AS n FROM facts GROUP BY text")
        assert {row["n"] for row in rows} == {1}
    one, two = picker.transcripts
    assert (BIRD in one, NAME in one) == (True, True)
    assert (BIRD in two, NAME in two) == (False, True)


@pytest.mark.breaks("redaction", "forgetting", "edit", perhaps=True)
async def test_what_only_an_edited_message_says_as_well_goes_too(picker: Picker) -> None:
    """M-030: an edit is a message like any other, and says only half of it."""
    async with picker.talking(harvest=OFTEN) as house:
        bird, name = await house.say(BIRD, "Hugo sings")
        await harvested(house)
        picker.picks(BOTH)
        await house.say(NAME, edits=name)
        await house.say(f"{BIRD}, yes")
        await harvested(house, 2)
        (row,) = await house.rows("SELECT event_id FROM inbox WHERE body = ?", f"{BIRD}, yes")
        await take_back_at_last(house, picker.clock, bird, row["event_id"])
        assert await harvested_texts(house) == []


@pytest.mark.breaks("redaction", "forgetting", "edit", perhaps=True)
async def test_what_a_noted_edit_said_goes_when_the_edit_alone_is_deleted(picker: Picker) -> None:
    """F-027, M-030: what its message said before is read instead."""
    picker.picks("Ann has a zimtkanarie.")
    picker.usual = lambda: Text(json.dumps({"contents": ["Ann has a dog."]}))
    rare = MemoryHarvest(message_threshold=3, min_messages=1)
    async with picker.talking(harvest=rare) as house:
        first, _ = await house.say("I have a dog", "hello")
        assert not await worded(house, edit_of(first, BIRD, house))
        await house.say("bye")
        await harvested(house)
        assert await harvested_texts(house) == ["Ann has a zimtkanarie."]
        await take_back_at_last(house, picker.clock, "$edit")
        assert await harvested_texts(house) == []
        await picker.clock.move(QUARTER)
        await harvested(house, 2)
        assert await harvested_texts(house) == ["Ann has a dog."]
    assert BIRD in picker.transcripts[0]
    assert "I have a dog" in picker.transcripts[1]


@pytest.mark.breaks("redaction", "forgetting", perhaps=True)
async def test_no_recording_has_a_short_deleted_message(picker: Picker, tmp_path: Path) -> None:
    """M-030, L-048: of a harvest, which belongs to no answer."""
    async with picker.talking(harvest=OFTEN, record=True) as house:
        short, _ = await house.say("zimtkanari", "hello")
        await harvested(house)
        assert picker.transcripts[0].count("zimtkanari") > 1
        await take_back_at_last(house, picker.clock, short)
        assert await house.database.scrub()
        assert files_with(tmp_path, "zimtkanari") == []
