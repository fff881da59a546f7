"""What people say becomes what is true for them: in seven languages, with a careful model and a reckless one."""

import pytest

from tests.world.household import Household
from tests.world.story import Story
from tests.world.voices import Careful, Obeying, Voice, languages

VOICES: dict[str, type[Voice]] = {"careful": Careful, "obeying": Obeying}
QUICK = {("ja", "careful"), ("de", "obeying")}
MATRIX = [
    pytest.param(name, voice, marks=[] if (name, voice) in QUICK else [pytest.mark.slow])
    for name in languages()
    for voice in VOICES
]


@pytest.mark.quick("de-obeying")
@pytest.mark.breaks("tools", perhaps=True)
@pytest.mark.parametrize(("name", "voice"), MATRIX)
async def test_what_people_say_is_true_in_the_end(story: Story, name: str, voice: str) -> None:
    """M-025, M-029, M-037, M-039, M-052, M-056, M-058, M-074: nothing that a person asked for is lost,
    nothing gets in from where it does not belong, and no question holds words of two people (M-010).
    """
    language = languages()[name]
    household = Household(language, VOICES[voice](language), story.model, story.folder)
    assert await household.live() == []
