"""Messages that are taken back leave no trace: nothing that was made of them only (M-030, L-048)."""

import asyncio
import json
from pathlib import Path

import pytest

from tests.test_forgetting import SCOPE, deliver, found, take
from tests.test_redactions import take_back
from tests.world.house import PROMPTS, House, open_house
from tests.world.model import Calls, ModelServer, Text, Use
from wintermute.changes.change_sets import Reason
from wintermute.commands.memories import NOT_ASKED, UNVOUCHED
from wintermute.memory.fact import key

WORD = "zimtkanarie"
SAID = f"My bird is a {WORD} called Hugo"


async def forgotten(house: House) -> None:
    """Wait until nothing is left to be forgotten."""

    query = "SELECT 1 FROM jobs WHERE name = 'forget' AND state <> 'done'"
    async with asyncio.timeout(20):
        house.runner.ring("forget")
        while await house.rows(query):
            await house.settled()


async def learn(house: House, model: ModelServer, text: str, entry: str) -> str:
    """Ann says it, and it is remembered from that; the id of her message."""
    before = len(await house.spoken())
    model.script(
        Calls((Use("append_memory", {"entry": entry, "source": "user_explicit"}),)),
        Text(f"I keep: {text}!"),
    )
    event_id = await house.incoming(text)
    await house.said(before + 1)
    await deliver(house)
    return event_id


async def wrote(house: House, page: str, *ours: str) -> None:
    """The core is this page; these bullets of it no person typed."""
    pages = house.stores.core_pages
    why = Reason("reconstruction", SCOPE)
    assert await pages.replace(why, page, await pages.found(SCOPE), [key(each) for each in ours])


@pytest.mark.breaks("forgetting")
async def test_a_message_answered_long_ago_leaves_no_trace(
    tmp_path: Path, model: ModelServer
) -> None:
    """M-030, L-048: facts, answers, prompts, core, recordings; what has nothing to do with it stays."""
    async with (
        open_house(tmp_path, model.url, prompts=PROMPTS, record=True) as house,
        house.working(),
    ):
        page = f"# USER\n- Has a {WORD} bird\n- The bird is a {WORD}\n- Likes tea\n"
        await wrote(house, page, f"Has a {WORD} bird")
        gone = await learn(house, model, SAID, f"The bird is a {WORD}")
        await house.incoming("What a fine day")
        await house.incoming("/memory")
        await house.said(3)
        await deliver(house)
        await house.incoming("Tell me of the bird")
        await house.said(4)
        await deliver(house)
        assert {"wintermute.db-wal", "MEMORIES.txt"} <= set(found(tmp_path))
        await take_back(house, gone)
        await forgotten(house)
        assert (tmp_path / "core.md").read_text() == "# USER\n- Likes tea\n"
        assert await house.database.scrub()
        assert found(tmp_path) == []
        assert await house.stores.facts.live(SCOPE) == []
        bodies = [row["body"] for row in await house.rows("SELECT body FROM inbox ORDER BY seq")]
        assert bodies == ["", "What a fine day", "/memory", "Tell me of the bird"]
        await house.incoming("Do you remember?")
        await house.said(5)
        assert WORD not in json.dumps(model.requests[-1].body).lower()


async def test_what_another_message_says_as_well_stays(tmp_path: Path, model: ModelServer) -> None:
    """M-030: it has other evidence, and is not known from the deleted message any more."""
    fact = f"The bird is a {WORD}"
    async with open_house(tmp_path, model.url, prompts=PROMPTS) as house, house.working():
        gone = await learn(house, model, SAID, fact)
        other = await learn(house, model, f"As I said, the bird is a {WORD}", fact)
        assert [f.origins for f in await house.stores.facts.live(SCOPE)] == [(gone, other)]
        await take_back(house, gone)
        await forgotten(house)
        assert [f.origins for f in await house.stores.facts.live(SCOPE)] == [(other,)]
        rows = await house.rows("SELECT body FROM inbox ORDER BY seq")
        assert [row["body"] for row in rows] == ["", f"As I said, the bird is a {WORD}"]


async def test_a_merged_memory_is_made_anew_from_what_is_left(
    tmp_path: Path, model: ModelServer
) -> None:
    """M-030: what was merged with it is there again, and queued."""
    async with open_house(tmp_path, model.url, prompts=PROMPTS) as house, house.working():
        gone = await learn(house, model, SAID, f"The bird is a {WORD}")
        await learn(house, model, "The bird sings at night", "The bird sings at night")
        old = await house.stores.facts.live(SCOPE)
        async with house.database.transaction() as tx:
            both = f"The bird is a {WORD} and sings at night"
            await house.stores.facts.replace(
                tx, Reason("tool", SCOPE), SCOPE, [f.id for f in old], [(both, "dreaming_merge")]
            )
        await take_back(house, gone)
        await forgotten(house)
        rows = await house.rows("SELECT text, queued FROM facts")
        assert rows == [{"text": "The bird sings at night", "queued": 1}]
        assert await house.database.scrub()
        assert found(tmp_path) == []


async def test_words_are_shown_and_forgotten_once_they_are_confirmed(
    tmp_path: Path, model: ModelServer
) -> None:
    """M-030: the question itself goes as well; what is unknown or of others is unknown."""
    async with open_house(tmp_path, model.url, prompts=PROMPTS) as house, house.working():
        await learn(house, model, SAID, f"The bird is a {WORD}")
        lines = [
            json.dumps(
                {"text": "Bob is fond of tea", "id": "fact_bobs", "scope": "person:@bob:test"}
            )
        ]
        await take(house, lines)
        await house.incoming("/forget fact_bobs")
        await house.incoming("/forget yes")
        await house.incoming(f"/forget {WORD}")
        said = await house.said(4)
        assert said[1:3] == ["I know no memory `fact_bobs` here.", NOT_ASKED]
        assert f"The bird is a {WORD} (`fact_" in said[3]
        await deliver(house)
        assert len(await house.stores.facts.live(SCOPE)) == 1
        await house.incoming("/forget yes")
        assert (await house.said(5))[4].startswith("I forget it for good")
        await deliver(house)
        await forgotten(house)
        assert await house.database.scrub()
        assert found(tmp_path) == []
        assert len(await house.stores.facts.live("person:@bob:test")) == 1


async def test_a_session_nobody_vouches_for_has_nothing_of_the_owners_forgotten(
    tmp_path: Path, model: ModelServer
) -> None:
    """X-034: neither by an id nor by confirming what the owner was shown."""
    async with open_house(tmp_path, model.url, prompts=PROMPTS) as house, house.working():
        await learn(house, model, SAID, f"The bird is a {WORD}")
        [fact] = await house.stores.facts.live(SCOPE)
        await house.incoming(f"/forget {WORD}")
        for said in (fact.id, WORD, "yes"):
            await house.incoming(f"/forget {said}", origin="other")
        assert (await house.said(5))[2:] == [UNVOUCHED] * 3
        await house.incoming(f"/forget {fact.id}")
        await house.said(6)
        await deliver(house)
        await forgotten(house)
        assert await house.stores.facts.live(SCOPE) == []
