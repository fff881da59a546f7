"""What of ours is taken away goes with all its edits: in the rooms, and from what we keep (X-054, X-055)."""

import asyncio
from urllib.parse import quote

import pytest

from tests.world.bot import Bot
from tests.world.clock import WITHIN
from tests.world.model import Drip, ModelServer, Reads, Text
from tests.world.person import Person
from tests.world.scene import NewBot, NewPerson, NewRoom
from tests.world.user import CLIENT

V1 = CLIENT.replace("v3", "v1")


async def left_of(ann: Person, chat: str, event_id: str) -> list[object]:
    """The contents that somebody in the room can still get of an event and its edits."""
    room, event = quote(chat), quote(event_id)
    _, shown = await ann.api("GET", f"{CLIENT}/rooms/{room}/event/{event}")
    _, edits = await ann.api("GET", f"{V1}/rooms/{room}/relations/{event}/m.replace?limit=100")
    _, page = await ann.api("GET", f"{CLIENT}/rooms/{room}/messages?dir=b&limit=100")
    about = [e for e in page["chunk"] if event_id in str(e["content"].get("m.relates_to"))]
    return [e["content"] for e in (shown, *edits["chunk"], *about) if e["content"]]


async def nothing_left(daemon: Bot, ann: Person, chat: str, event_id: str) -> None:
    """Until all of them are gone, and nothing is to be sent."""
    async with asyncio.timeout(WITHIN):
        while await left_of(ann, chat, event_id):  # noqa: ASYNC110  the homeserver is asked
            await asyncio.sleep(0.05)
    await daemon.said_all()


@pytest.mark.slow
async def test_a_notice_that_a_person_redacts_leaves_none_of_its_wordings(
    person: NewPerson, bot: NewBot, room: NewRoom, model: ModelServer
) -> None:
    """X-054: in an encrypted room; a kill comes between, and what comes later is no text of it."""
    ann = await person("ann")
    daemon = await bot(ann, start=False)
    daemon.set_clocks()
    await daemon.start()
    chat = await room(ann, daemon, encrypted=True)
    read, gate = ((2048, 5249), (4096, 5249)), asyncio.Semaphore(1)
    model.script(*(Reads(read, gate, None),) * 2, Reads(read, gate, Text("at last")))
    await ann.send(chat, "a long text")
    await model.request_arrived(1)
    daemon.set_clocks(steady=61)
    gate.release()
    notice = await ann.wait_for(chat, lambda message: "tokens read" in message.body)
    gate.release()  # the connection breaks
    await ann.wait_for(chat, lambda message: "attempt 2 of" in message.body)
    assert len(await left_of(ann, chat, notice.event_id)) > 2
    await ann.redact(chat, notice.event_id)
    await nothing_left(daemon, ann, chat, notice.event_id)
    for _ in range(5):
        gate.release()
    await ann.wait_for(chat, lambda message: message.body == "at last")
    await daemon.said_all()
    assert not await left_of(ann, chat, notice.event_id)
    assert not daemon.rows("SELECT 1 FROM outbox WHERE body LIKE '%still waiting%'")
    query = "SELECT 1 FROM outbox_parts WHERE content LIKE '%still waiting%'"
    assert not daemon.rows(query)


@pytest.mark.slow
@pytest.mark.parametrize("encrypted", [False, True])
async def test_an_answer_that_is_taken_back_while_it_grows_leaves_nothing(
    person: NewPerson, bot: NewBot, room: NewRoom, model: ModelServer, encrypted: bool
) -> None:
    """X-054, F-027: its question, or the growing message itself, and thoughts that were no text (X-040)."""
    ann = await person("ann")
    daemon = await bot(ann)
    chat = await room(ann, daemon, encrypted=encrypted)
    words = " ".join(f"secret{n}" for n in range(200))
    thoughts = " ".join(f"secret{n}" for n in range(60))
    model.script(
        Drip(words, interval=0.1),
        Drip(words, interval=0.1),
        Drip(f"{thoughts} </think> All is well."),
    )
    for n, takes in enumerate(("question", "answer", "")):
        before = len(ann.messages(chat, daemon.user_id))
        asked = await ann.send(chat, f"question {n}")
        await ann.until(lambda b=before: len(ann.messages(chat, daemon.user_id)) > b + 1)  # type: ignore[misc]
        shown = ann.messages(chat, daemon.user_id)[before]
        assert "secret" in shown.body
        if takes:
            await ann.redact(chat, asked if takes == "question" else shown.event_id)
        else:
            await ann.wait_for(chat, lambda message: message.body.endswith("All is well."))
        await nothing_left(daemon, ann, chat, shown.event_id)
        assert not daemon.rows("SELECT 1 FROM inbox WHERE state IN ('waiting', 'casting')")
    for table, column in (("outbox", "body"), ("outbox_parts", "content"), ("turns", "utterance")):
        assert not daemon.rows(f"SELECT 1 FROM {table} WHERE {column} LIKE '%secret%'")
