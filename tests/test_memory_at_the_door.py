"""Memories in rooms where only what fits is in a prompt: what the model reads, and what people see of it."""

import asyncio
import sys
from itertools import dropwhile
from pathlib import Path

import pytest

from tests.world.bot import Bot
from tests.world.chats import acting, ask_bot, last_request
from tests.world.clock import WITHIN
from tests.world.missing import NO_MEANING
from tests.world.model import ModelServer, Use
from tests.world.person import Person
from tests.world.scene import NewAnybody, NewBot, NewPerson, NewRoom
from wintermute.llm.embedded import is_installed

TEA, CHESS, DOG = "Ann drinks green tea", "Carl plays chess on Fridays", "My dog is called Bello"
EMBEDDER = "wintermute.llm.embedder"
STORED = acting(
    **{
        word: Use("append_memory", {"entry": fact})
        for word, fact in {"tea": TEA, "chess": CHESS, "dog": DOG}.items()
    }
)


async def ask_in_reply(person: Person, chat: str, daemon: Bot, text: str, event_id: str) -> str:
    """What the bot says to a command that replies to something."""
    sent = await person.send(
        chat, text, **{"m.relates_to": {"m.in_reply_to": {"event_id": event_id}}}
    )

    def since() -> list[str]:
        events = dropwhile(lambda event: event.event_id != sent, person.events(chat))
        return [event.body for event in events if event.sender == daemon.user_id and event.body]

    await person.until(lambda: bool(since()), what=f"an answer to {text!r}")
    return since()[0]


async def test_why_names_what_an_answer_had_and_links_to_where_it_is_from(
    anybody: NewAnybody, bot: NewBot, room: NewRoom, model: ModelServer
) -> None:
    """P-011, issue 18, point 5: about the last answer, or the one that is replied to."""
    ann = await anybody("ann")
    daemon = await bot(ann, memory={"backend": "fts5"})
    chat = await room(ann, daemon, encrypted=True)
    model.keyed(STORED)
    told = await ann.send(chat, "I like my tea green")
    await ann.wait_for_count(chat, daemon.user_id, 1)
    await ask_bot(ann, chat, daemon, "chess is on Fridays")
    await ask_bot(ann, chat, daemon, "/new")
    model.keyed(lambda seen: None)
    answer = await ask_bot(ann, chat, daemon, "Which tea shall I buy?")
    assert (TEA in last_request(model), CHESS in last_request(model)) == (True, False)
    why = await ask_bot(ann, chat, daemon, "/why")
    assert why.startswith(f"**Found for that message**\n- {TEA} (on request, you on [")
    assert f"](https://matrix.to/#/{chat}/{told})" in why
    assert CHESS not in why
    await ask_bot(ann, chat, daemon, "And when is chess?")
    [event] = [each.event_id for each in ann.events(chat) if each.body == answer]
    assert await ask_in_reply(ann, chat, daemon, "/why", event) == why
    assert (
        CHESS
        in (await ask_bot(ann, chat, daemon, "/why")).partition("known in this conversation")[0]
    )
    listed = await ask_bot(ann, chat, daemon, "/memory when is chess")
    assert listed.startswith(f"- {CHESS}")


async def test_what_means_the_same_is_found_and_its_embedder_dies_with_the_daemon(
    person: NewPerson, bot: NewBot, room: NewRoom, model: ModelServer
) -> None:
    """M-008, M-014: in another language, by a process of its own, also after kill -9."""
    if not is_installed():
        pytest.skip(NO_MEANING)
    ann = await person("ann")
    daemon = await bot(ann, memory={"backend": "local_vector"})
    chat = await room(ann, daemon)
    model.keyed(STORED)
    await ask_bot(ann, chat, daemon, "my dog has a name")
    await ask_bot(ann, chat, daemon, "/new")
    model.keyed(lambda seen: None)
    await daemon.restart()  # else what is owed is looked for once a minute
    async with asyncio.timeout(WITHIN):
        while "1 embedding missing" in (await daemon.command("status", "--all"))[1]:
            pass
    await ask_bot(ann, chat, daemon, "Wie heißt er, der Hund?")
    assert DOG in last_request(model)
    if sys.platform == "linux":
        assert "numpy" not in of_process(daemon.pid, "maps")
        children = of_process(daemon.pid, f"task/{daemon.pid}/children").split()
        [embedder] = [int(pid) for pid in children if EMBEDDER in of_process(int(pid), "cmdline")]
        await daemon.kill()
        await ann.until(lambda: not of_process(embedder, "cmdline"), what="the embedder's end")


def of_process(pid: int, name: str) -> str:
    """What the system tells of a process; nothing once it is gone."""
    try:
        return Path(f"/proc/{pid}/{name}").read_text()
    except OSError:
        return ""
