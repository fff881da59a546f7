"""Lines of pages go with the messages they came from, and nothing brings them back (M-082)."""

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.test_consolidation import PAGE_CALL, asked, block, plan
from tests.test_forgetting import found
from tests.test_forgetting_messages import forgotten
from tests.test_harvest import say
from tests.test_redactions import take_back
from tests.world.house import PROMPTS
from tests.world.model import ModelServer, Seen, Step, Text
from tests.world.shelf import INDEX, Shelf, page
from tests.world.tidied import Tidied, open_nights

pytestmark = pytest.mark.breaks("edited wiki", "redaction", "forgetting", perhaps=True)

SHED = "semantic/Shed.md"
SAID = (
    "The shed got a new roof in May",
    "By the way, we keep the spades there",
    "The lock wants the year in which the zimtkanarie was bought",
    "And the ladder leans on the left wall",
    "That was all",
)
CANARY = "zimtkanarie"
HIDDEN = f"Whoever knows when the {CANARY} came opens the door"
WRITTEN = (
    f"# Shed\n\n{HIDDEN}. [3]\n\n- It has had a new roof since May [1]\n- Spades stand there [2].\n"
    f"- Its ladder leans beside what {CANARY}s open [3, 4]"
)


class ShedPages:
    """A model that plans one page, and writes it as it is told."""

    def __init__(self, model: ModelServer, *texts: str) -> None:
        self.texts = [page(text) for text in texts]
        self.shown: list[Seen] = []
        model.keyed(self._choose)

    def _choose(self, seen: Seen) -> Step | None:
        if "\n<transcript>\n" not in asked(seen):
            return None
        self.shown.append(seen)
        if PAGE_CALL.search(asked(seen)) is None:
            return plan(SHED)
        return Text(self.texts.pop(0))


@asynccontextmanager
async def written(
    folder: Path, model: ModelServer, *texts: str
) -> AsyncIterator[tuple[Tidied, Shelf, ShedPages, Sequence[str]]]:
    """A night has made the page of five messages."""
    async with open_nights(folder, model, prompts=PROMPTS) as night, night.house.working():
        shelf = Shelf.make(night.house.stores.wiki.root)
        events = await say(night.house, list(SAID))
        pages = ShedPages(model, *texts)
        await night.night("pages")
        yield night, shelf, pages, events


async def test_the_line_of_a_deleted_message_is_gone_and_the_others_stay(
    tmp_path: Path, model: ModelServer
) -> None:
    """M-082, W-008: from page, index, job files, change sets and prompts; rewritten from the rest."""
    again = (
        "# Shed\n\n- It has had a new roof since May\n- Spades stand there.\n"
        "- A ladder leans left [7]"
    )
    async with written(tmp_path, model, WRITTEN, again) as (night, shelf, pages, events):
        assert "[3" not in shelf.read(SHED)
        assert f"[[Shed]]: {HIDDEN}" in shelf.read(INDEX)
        assert found(tmp_path)
        [item] = await night.items()
        await take_back(night.house, events[2])
        await forgotten(night.house)
        assert await night.house.database.scrub()
        assert found(tmp_path) == []
        body = shelf.read(SHED).partition("# Shed")[2]
        assert "roof since May\n- Spades stand there.\n" in body
        assert "ladder" not in body
        assert "[[Shed]]" in shelf.read(INDEX)
        del pages.shown[:]
        await night.night("pages")
        shown = [asked(seen) for seen in pages.shown]
        assert len(shown) == 2, pages.shown[-1].messages[1:]
        assert CANARY not in "".join(shown)
        assert "ladder leans on the left wall" in block(pages.shown[1], "transcript")
        assert "- A ladder leans left\n" in shelf.read(SHED)
        change = await night.house.stores.changes.get(item.change_set or "")
        assert change is not None
        await night.house.stores.undo.run(change)
        assert found(tmp_path) == []
