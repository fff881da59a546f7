"""Harvest by a real daemon: what is said in real rooms is picked out once."""

import json

import pytest

from tests.world.harvested import EARLY, harvested_by, is_echo, is_harvest, learnt_by, transcript
from tests.world.model import ModelServer, Seen, Step, Text
from tests.world.scene import NewBot, NewPerson, NewRoom

PICKED = {"contents": ["The user keeps bees.", "The user says hello to bees."]}


def picks(seen: Seen) -> Step | None:
    if not is_harvest(seen):
        return None
    return Text(json.dumps(PICKED if "I keep bees" in transcript(seen) else {"contents": []}))


@pytest.mark.quick("encrypted")
@pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "encrypted"])
async def test_what_two_people_say_belongs_to_each_of_them(
    person: NewPerson, bot: NewBot, room: NewRoom, model: ModelServer, *, encrypted: bool
) -> None:
    """M-010, M-012, M-025: and a room's is the room's."""
    ann, ben = await person("ann"), await person("ben")
    daemon = await bot(ann, memory_harvest=EARLY, matrix={"allowed_users": [ben.user_id]})
    model.keyed(picks)
    chats = {
        ann: await room(ann, daemon, encrypted=encrypted),
        ben: await room(ben, daemon, encrypted=encrypted),
    }
    for who, chat in chats.items():
        for text in ("hello", f"I keep bees, says {who.user_id}", "bye"):
            await who.send(chat, text)
            await who.wait_for(chat, is_echo(text))
    await harvested_by(daemon, 2)
    scopes = [fact["scope"] for fact in learnt_by(daemon)]
    assert sorted(scopes) == sorted(2 * [f"person:{ann.user_id}", f"person:{ben.user_id}"])
    shown = [transcript(seen) for seen in model.requests if is_harvest(seen)]
    assert len(shown) == 2
    assert not any(ann.user_id in text and ben.user_id in text for text in shown)


@pytest.mark.slow
async def test_a_message_that_was_deleted_before_it_is_read_is_in_no_transcript(
    person: NewPerson, bot: NewBot, room: NewRoom, model: ModelServer
) -> None:
    """M-030."""
    ann = await person("ann")
    daemon = await bot(ann, memory_harvest=EARLY)
    model.allow("redaction", perhaps=True)
    model.keyed(picks)
    chat = await room(ann, daemon)
    sent = {}
    for text in ("hello", "CANARY is my secret"):
        sent[text] = await ann.send(chat, text)
        await ann.wait_for(chat, is_echo(text))
    await ann.redact(chat, sent["CANARY is my secret"])
    await daemon.until(lambda: not daemon.rows("SELECT 1 FROM inbox WHERE body LIKE 'CANARY%'"))
    for text in ("I keep bees", "bye"):
        await ann.send(chat, text)
        await ann.wait_for(chat, is_echo(text))
    await harvested_by(daemon)
    (shown,) = (transcript(seen) for seen in model.requests if is_harvest(seen))
    assert "I keep bees" in shown
    assert "CANARY" not in shown
