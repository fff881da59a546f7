"""Nights begin with what the day left to be learnt: it is read and brought together first (M-055, M-070)."""

from typing import Any

import pytest

from tests.world.harvested import Picker
from tests.world.house import ANN, PROMPTS
from tests.world.model import Fail, ModelServer, Text
from tests.world.reconstructed import BOTH, LYON, ROME, reconstruction
from tests.world.terminal import Terminal, beside, with_model
from tests.world.tidied import OWNER, Tidied, tally
from wintermute.config.schema import Memory, MemoryHarvest
from wintermute.messages import Origin

pytestmark = pytest.mark.opens(prompts=PROMPTS, harvest=MemoryHarvest(), memory=Memory())
RANKED = pytest.mark.opens(memory=Memory(backend="fts5"))

SAID = ["My boat is called Nora", "It is blue", "It is old", "I sail on Sundays", "With Bo"]
NORA = "Ann's boat is called Nora"


@pytest.fixture
def picker(model: ModelServer) -> Picker:
    return Picker(model)


async def talked(night: Tidied, texts: list[str]) -> None:
    """They are said and answered, and nobody is at work any more."""
    async with night.house.working():
        await night.house.say(*texts)


async def test_what_was_said_that_day_is_read_before_anything_else(
    night: Tidied, picker: Picker
) -> None:
    """M-055: one call, its fact is there before the facts are looked at; the next night asks nothing."""
    await talked(night, SAID)
    picker.picks(NORA)
    done = await night.night()
    assert (tally(done, "learn").before, tally(done, "learn").after) == (0, 1)
    assert tally(done, "memories").before == 1
    assert await night.texts() == [NORA]
    assert done.calls == 1
    assert (await night.night()).calls == 0
    assert len(picker.transcripts) == 1


async def test_so_few_messages_wait_for_more(night: Tidied, picker: Picker) -> None:
    """M-025: a night makes no harvest of what silence makes none of."""
    await talked(night, SAID[:4])
    assert (await night.night()).calls == 0
    assert picker.transcripts == []


async def test_what_was_read_at_night_is_not_read_again_by_its_job(
    night: Tidied, picker: Picker
) -> None:
    """M-028: the same words are harvested once, whoever does it."""
    await talked(night, SAID)
    picker.picks(NORA)
    await night.night("learn")
    async with night.house.working():
        night.house.runner.wake("harvest")
        await night.house.say("hello")
    assert len(picker.transcripts) == 1


async def test_an_answer_of_no_use_is_reported_and_not_asked_for_again(
    night: Tidied, picker: Picker
) -> None:
    """M-072: until more is said."""
    picker.usual = lambda: Text("no JSON")
    await talked(night, SAID)
    done = await night.night("learn")
    assert "1 conversation could not be read" in tally(done, "learn").note
    assert len(picker.transcripts) == 2
    assert (await night.night("learn")).calls == 0
    await talked(night, ["And it is fast"])
    picker.usual = lambda: Text('{"contents": ["Ann\'s boat is called Nora"]}')
    await night.night("learn")
    assert await night.texts() == [NORA]


async def test_a_model_that_is_away_is_asked_the_next_night(night: Tidied, picker: Picker) -> None:
    """M-028: no gap; the night goes on without it."""
    picker.usual = lambda: Fail(500)
    await talked(night, SAID)
    done = await night.night()
    assert tally(done, "learn").status == "failed"
    assert tally(done, "export").status == "ok"
    picker.usual = lambda: Text('{"contents": ["Ann\'s boat is called Nora"]}')
    await night.night()
    assert await night.texts() == [NORA]


async def test_each_scope_reads_its_own_conversations(night: Tidied, picker: Picker) -> None:
    """M-010: a room's words are learnt with the room, and nowhere else."""
    club: dict[str, Any] = {"room": "!club:test", "scope": "room:!club:test", "direct": False}
    async with night.house.working():
        await night.house.say(*SAID, **club)
    picker.usual = lambda: Text('{"contents": ["The club\'s boat is called Nora"]}')
    await night.night("learn", OWNER)
    assert picker.transcripts == []
    await night.night("learn")
    assert len(picker.transcripts) == 1
    assert await night.texts("room:!club:test") == ["The club's boat is called Nora"]


@RANKED
async def test_the_queue_of_raw_facts_is_worked(night: Tidied) -> None:
    """M-070: every night; what came of it was not made by the night."""
    night.model.reconstructs = True
    night.model.keyed(lambda seen: Text(f'{{"memories": ["{NORA}"], "coverage": "complete"}}'))
    await night.remember(NORA)
    async with night.house.database.transaction() as tx:
        await tx.execute("UPDATE facts SET queued = 1")
    await night.night("learn")
    assert len(night.model.requests) == 1
    rows = await night.house.rows("SELECT queued FROM facts WHERE retired_at IS NULL")
    assert rows == [{"queued": 0}]
    assert (await night.night("learn")).calls == 0


BEN = "@ben:test"
NAMED = "2 brought together with others (wintermute memory history shows them)"


async def test_what_learning_brought_together_is_named(
    terminal: Terminal, model: ModelServer
) -> None:
    """M-055, M-073: the report says so, and where it can be read what went."""
    with_model(terminal, model, "fts5")
    model.reconstructs = True
    for text in (LYON, ROME):
        terminal.says("memory", "add", text)
    model.script(reconstruction(BOTH))
    assert (await beside(terminal, "night", "run")).returncode == 0
    assert [fact["text"] for fact in terminal.json("memory", "list")] == [BOTH]
    phases = {phase["name"]: phase for phase in terminal.json("night", "report")["phases"]}
    assert phases["learn"]["note"] == NAMED
    assert NAMED in terminal.says("night", "report")
    assert f": {ROME}" in terminal.says("memory", "history")


@RANKED
async def test_a_chat_is_told_what_was_learnt_there_even_if_the_model_went_away_then(
    night: Tidied, picker: Picker, model: ModelServer
) -> None:
    """M-055, M-010: by numbers, each chat of its own."""
    model.reconstructs = True
    await talked(night, [LYON, ROME, *SAID[:3]])
    picker.picks(LYON, ROME)
    model.script(reconstruction(BOTH), Fail(500))
    [foreign] = await night.remember("A page says that Ann lives in Bonn")
    async with night.house.database.transaction() as tx:
        await tx.execute("UPDATE facts SET queued = 1, taint = 1 WHERE id = ?", (foreign,))
    learnt = tally(await night.night("learn"), "learn")
    assert learnt.status == "failed"
    assert learnt.note.startswith(f"2 memories learnt, {NAMED}; ")
    assert "learnt" not in tally(await night.night("learn"), "learn").note
    await talked(night, ["/night 2026-05-05", "/night"])
    first, second = (await night.house.spoken())[-2:]
    assert f"- learn failed: {learnt.note}" in first
    assert "learnt" not in second


@RANKED
@pytest.mark.parametrize(("who", "origin"), [(ANN, "owner"), (BEN, "other")])
async def test_who_asks_for_a_night_reads_what_it_learnt_there(
    night: Tidied, picker: Picker, model: ModelServer, who: str, origin: Origin
) -> None:
    """M-055, M-010: by numbers, each of their own chat alone."""
    theirs: dict[str, Any] = {"sender": who, "room": f"!with {who}", "origin": origin}
    model.reconstructs = True
    async with night.house.working():
        await night.house.say(LYON, ROME, *SAID[:3], **theirs)
    await talked(night, ["hello"])
    picker.picks(LYON, ROME)
    model.script(reconstruction(BOTH))
    await night.night()
    async with night.house.working():
        await night.house.say("/night", **theirs)
        await night.house.say("/night", room="!other:test", sender="@eve:test", origin="other")
    assert f"- learn: 2 memories learnt, {NAMED}" in (await night.house.spoken(theirs["room"]))[-1]
    assert "learnt" not in (await night.house.spoken("!other:test"))[-1]
