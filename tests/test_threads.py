"""Threads: each is a conversation of its own, which begins at its root and has the readers of its room."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tests.test_who_reads import encrypted_or_not, slip_in, slip_out, until
from tests.tiers import tiered
from tests.world.bot import Bot
from tests.world.model import ModelServer, Slow, Text
from tests.world.person import Person
from tests.world.scene import JS, NIO, NewAnybody, NewBot, NewPerson, NewRoom, Scene
from tests.world.user import Message
from wintermute.conversation import words

Json = dict[str, Any]
SECRET = "4711 euros"
OF_ROOM = "SELECT id, thread_id, scope FROM conversations WHERE room_id = ? ORDER BY thread_id"


def under(root: str, last: str = "") -> Json:
    """The content of a message in a thread, as clients make it."""
    relation = {"rel_type": "m.thread", "event_id": root, "is_falling_back": True}
    return {"m.relates_to": {**relation, "m.in_reply_to": {"event_id": last or root}}}


def place(message: Message) -> tuple[str, str]:
    """The thread that a message is in, and what it replies to; "" for none."""
    relation = message.content.get("m.relates_to", {})
    thread = relation["event_id"] if relation.get("rel_type") == "m.thread" else ""
    assert not thread or relation["is_falling_back"] is True
    return thread, relation.get("m.in_reply_to", {}).get("event_id", "")


async def hears(person: Person, chat: str, text: str) -> Message:
    return await person.wait_for(chat, lambda message: message.body == text)


async def ask(person: Person, chat: str, text: str, root: str = "", **more: Any) -> Message:
    """Say something, in a thread with a `root`; the answer of a model that repeats it."""
    sent = await person.send(chat, text, **(under(root) if root else {}), **more)
    found = await person.wait_for(
        chat,
        lambda m: m.sender != person.user_id and m.body.startswith("echo: ") and text in m.body,
    )
    assert place(found) == ((root, sent) if root else place(found))
    return found


def seen(model: ModelServer) -> list[str]:
    """All that the model was asked last, but for its instructions."""
    said = [str(message["content"]) for message in model.requests[-1].messages[1:]]
    return [text.partition("\n\n<context>")[0] for text in said]


@pytest.mark.parametrize("client", tiered({"nio": NIO, "js": JS}, ["js"]))
@encrypted_or_not
async def test_a_thread_goes_on_from_its_root_and_the_room_does_not_see_it(
    scene: Scene, bot: NewBot, room: NewRoom, model: ModelServer, encrypted: bool, client: str
) -> None:
    """X-025, X-042: below a question, below an answer, within a thread; `/new` and what it leaves."""
    ann = await scene.at(client)("ann")
    daemon = await bot(ann)
    chat = await room(ann, daemon, encrypted=encrypted)
    one = await ask(ann, chat, "one")
    assert place(one) == ("", "")
    root = await ann.send(chat, "two")
    await hears(ann, chat, "echo: two")
    await ask(ann, chat, "three")
    await ask(ann, chat, "below two", root)
    assert seen(model) == ["one", "echo: one", "two", "echo: two", "below two"]
    inner = await ask(ann, chat, "more", root)
    await ask(ann, chat, "four")
    assert seen(model)[-3:] == ["three", "echo: three", "four"]
    await ask(ann, chat, "below one", one.event_id)
    assert seen(model) == ["one", "echo: one", "below one"]
    sent = await ann.send(chat, "nested", **under(inner.event_id))
    answer = await hears(ann, chat, "echo: nested")
    assert place(answer) == (root, sent)
    assert seen(model)[-3:] == ["more", "echo: more", "nested"]
    await ann.send(chat, "/new", **under(root))
    await ann.wait_for(
        chat, lambda m: place(m)[0] == root and "branch" in m.body or "new" in m.body
    )
    await ask(ann, chat, "anew", root)
    assert seen(model) == ["anew"]
    await ask(ann, chat, "five")
    assert seen(model)[-3:] == ["four", "echo: four", "five"]
    assert len(daemon.rows(OF_ROOM, chat)) == 3
