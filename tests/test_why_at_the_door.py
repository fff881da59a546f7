"""`/why` in a real room: a memory that was picked up leads to the messages it came from."""

import json
from urllib.parse import quote

import pytest

from tests.world.chats import ask_bot
from tests.world.harvested import harvested_by, is_harvest, transcript
from tests.world.model import ModelServer, Seen, Step, Text
from tests.world.scene import NewBot, NewPerson, NewRoom

pytestmark = pytest.mark.slow

BEES = "The bees came from Lyon by train"
HIVES = "There are four hives of bees"
BOTH = "The bees came from Lyon by train, and there are four hives of bees"


def learns(seen: Seen) -> Step | None:
    """Picks up what was said last, and makes one memory of both."""
    shown = seen.system
    if is_harvest(seen):
        picked = [fact for fact in (BEES, HIVES) if fact in transcript(seen)]
        return Text(json.dumps({"contents": picked}))
    if "<new_contents>" in shown:
        return Text(json.dumps({"memories": [BOTH], "coverage": "complete"}))
    return None


@pytest.mark.breaks("edit", perhaps=True)
async def test_a_memory_leads_to_who_said_it_also_after_an_edit_and_a_merge(
    person: NewPerson, bot: NewBot, room: NewRoom, model: ModelServer
) -> None:
    """P-011, M-025, issue 19 point 7: all messages, each with who, when and where."""
    ann, ben = await person("ann"), await person("ben")
    often = {"enabled": True, "message_threshold": 3, "min_messages": 3}
    allowed = {"allowed_users": [ben.user_id]}
    daemon = await bot(ann, memory={"backend": "fts5"}, memory_harvest=often, matrix=allowed)
    model.reconstructs = True
    model.keyed(learns)
    chat = await room(ann, daemon, ben, encrypted=True)
    mentions = {"m.mentions": {"user_ids": [daemon.user_id]}}
    first = await ann.send(chat, "The bees came by train", **mentions)
    await ann.wait_for_count(chat, daemon.user_id, 1)
    relation = {"m.relates_to": {"rel_type": "m.replace", "event_id": first}}
    anew = {"m.new_content": {"msgtype": "m.text", "body": BEES, **mentions}}
    await ann.send(chat, f"* {BEES}", **anew, **relation, **mentions)
    await daemon.until(lambda: bool(daemon.rows("SELECT 1 FROM inbox WHERE body = ?", BEES)), 15)
    second = await ben.send(chat, HIVES, **mentions)
    await harvested_by(daemon)
    await ask_bot(ann, chat, daemon, "/new")
    await ask_bot(ann, chat, daemon, "What about the bees?")
    why = (await ask_bot(ann, chat, daemon, "/why")).splitlines()
    place = quote(chat, safe="!:")
    links = {name: f"(https://matrix.to/#/{place}/{name})" for name in (first, second)}
    assert len(why) == 3
    for line, fact, who, event in ((why[2], BEES, "you", first), (why[1], HIVES, "ben", second)):
        assert line.startswith(f"- {fact} (picked up, "), why
        assert links[event] in line, why
        assert who in line
    code, told = await daemon.command("memory", "reconstruct")
    assert (code, told.splitlines()[0]) == (0, "batches 1, kept 0, replaced 2, failed 0")
    await ask_bot(ben, chat, daemon, "/new")
    await ask_bot(ben, chat, daemon, "And now, what about the bees?")
    [_, merged] = (await ask_bot(ben, chat, daemon, "/why")).splitlines()
    assert merged.startswith(f"- {BOTH} (picked up, ")
    assert all(link in merged for link in links.values()), merged
    assert "you on [" in merged
