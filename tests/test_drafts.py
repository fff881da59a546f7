"""Answers that grow in Matrix rooms: one message whatever happens, which rings once."""

import asyncio

from tests.world.model import Drip, ModelServer
from tests.world.scene import NewBot, NewPerson, NewRoom
from tests.world.user import Json, Message

WORDS = "These words come one by one, and a person sees them as they come, until all are there."


def edits(events: "list[Message]", event_id: str) -> list[Json]:
    """The contents that edits gave an event, in order."""
    relation = {"rel_type": "m.replace", "event_id": event_id}
    found = [e.content for e in events if e.content.get("m.relates_to") == relation]
    return [content["m.new_content"] for content in found]


async def test_an_answer_grows_and_ends_as_one_message(
    person: NewPerson, bot: NewBot, room: NewRoom, model: ModelServer
) -> None:
    """X-023, X-036."""
    gate = asyncio.Semaphore(5)
    model.script(Drip(WORDS, gate))
    ann = await person("ann")
    daemon = await bot(ann)
    chat = await room(ann, daemon)
    await ann.send(chat, "hello")
    [first] = await ann.wait_for_count(chat, daemon.user_id, 1)
    assert first.body == "These words come one by"
    assert first.content["org.matrix.msc4357.live"] == {}
    for _ in range(20):
        gate.release()
        await asyncio.sleep(0.2)
    await daemon.said_all()
    history = [e for e in await ann.history(chat) if e.sender == daemon.user_id]
    *_, last = edits(history, first.event_id)
    assert last["body"].strip() == WORDS
    assert len(history) > 2
