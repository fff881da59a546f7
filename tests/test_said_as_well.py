"""What others say as well is told by words, numbers and negations; what a person typed by its very words."""

from pathlib import Path

import pytest

from tests.world.clock import HeldClock
from tests.world.forgetting import forget_live, forgotten, import_lines, wrote
from tests.world.harvested import Picker, harvested, harvested_facts, talking
from tests.world.house import SCOPE, open_house
from tests.world.redacted import take_back
from tests.world.story import Story

NEVER, CALL = "Never call Ann before ten", "Ann got a call before ten on Monday from Bob"
PAGE = "# SOUL\n\n# TOOLS\n\n# RULE\n{rules}\n# USER\n"


@pytest.mark.parametrize(
    ("said", "other", "fact"),
    [
        ("I, Ann, do not eat fish", "Ann can eat fish soup today", "Ann does not eat fish."),
        (
            "Ann's member number is 1234567",
            "Ann's old member number was 1234599",
            "Ann's member number is 1234567.",
        ),
    ],
    ids=["a not", "a number"],
)
async def test_what_another_message_says_otherwise_does_not_keep_what_is_taken_back(
    story: Story, said: str, other: str, fact: str
) -> None:
    """M-030."""
    picker, clock = Picker(story.model), HeldClock()
    picker.picks(fact)
    async with talking(story.folder, story.model, clock) as house:
        ids = await house.say(said, other, *(f"n{i}" for i in range(18)))
        await harvested(house)
        while await house.deliver():
            pass
        assert [each["text"] for each in await harvested_facts(house)] == [fact]
        await take_back(house, ids[0])
        await forgotten(house)
        assert await harvested_facts(house) == []


async def test_a_bullet_that_a_person_typed_goes_only_if_it_says_just_that(tmp_path: Path) -> None:
    """M-030, M-052: what we wrote goes also where it says no more than what is forgotten."""
    rules = [NEVER, "Bob got a call before ten", "Ann's call was from Bob"]
    async with open_house(tmp_path, None) as house:
        bullets = "".join(f"- {rule}\n" for rule in [*rules, CALL])
        await wrote(house, PAGE.format(rules=bullets), rules[2])
        await import_lines(house, [f'{{"text": "{CALL}", "scope": "{SCOPE}"}}'])
        await forget_live(house, "Monday")
        left = "".join(f"- {rule}\n" for rule in rules[:2])
        assert (tmp_path / "core.md").read_text() == PAGE.format(rules=left)
