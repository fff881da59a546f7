"""Messages that people take back at their clients, as the homeserver passes that on (F-027)."""

import asyncio
import json
from dataclasses import dataclass

import pytest

from tests.world.bot import Bot, said
from tests.world.chats import echoed_each
from tests.world.copied import copied, put_back
from tests.world.delegating import call, objective, spawn
from tests.world.model import Calls, Fail, Hang, ModelServer, Seen, Slow, Step, Text
from tests.world.person import Person
from tests.world.redacted import PASSWORD_WORD, SECRET, is_told
from tests.world.scene import JS, NIO, NewAnybody, NewBot, NewPerson, Scene
from tests.world.user import CLIENT

ENCRYPTION = {"type": "m.room.encryption", "state_key": ""}
MEGOLM = {"algorithm": "m.megolm.v1.aes-sha2"}


def is_kept(daemon: Bot) -> bool:
    """Whether the inbox has anything of it."""
    return PASSWORD_WORD in json.dumps(daemon.rows("SELECT body, raw FROM inbox"))


async def taken_back(daemon: Bot, event_id: str) -> None:
    """Wait until the daemon knows that it was."""
    query = "SELECT 1 FROM inbox WHERE event_id = ? AND state = 'ignored' AND body || raw = ''"
    await daemon.until(lambda: bool(daemon.rows(query, event_id)))


async def chat_of_version(ann: Person, daemon: Bot, version: str, *, encrypted: bool) -> str:
    """A direct chat in a room of a certain version."""
    wish = {
        "room_version": version,
        "preset": "trusted_private_chat",
        "is_direct": True,
        "invite": [daemon.user_id],
        "initial_state": [ENCRYPTION | {"content": MEGOLM}] if encrypted else [],
    }
    status, answer = await ann.api("POST", f"{CLIENT}/createRoom", wish)
    assert status == 200, answer
    chat: str = answer["room_id"]
    await ann.wait_joined(chat, daemon.user_id)
    return chat


@dataclass(frozen=True)
class Chat:
    """Ann, her chat with the bot, and what the model was asked."""

    ann: Person
    daemon: Bot
    room: str
    model: ModelServer

    async def take_back(self, event_id: str) -> None:
        """Ann takes a message back, and the daemon knows it."""
        await self.ann.redact(self.room, event_id)
        await taken_back(self.daemon, event_id)

    async def talk(self, text: str) -> None:
        """Ann says something and is answered; the model hears of nothing that she took back."""
        await self.ann.send(self.room, text)
        await self.ann.wait_for(self.room, lambda m: m.body == f"echo: {text}")
        assert not is_told(self.model.requests[-1])
        assert not is_kept(self.daemon)


async def before_its_turn(chat: Chat) -> None:
    """The bot is busy with what was said before."""
    gate = asyncio.Event()
    chat.model.script(Slow(gate, Text("thought")))
    await chat.ann.send(chat.room, "think")
    await chat.model.request_arrived(1)
    sent = await chat.ann.send(chat.room, f"{SECRET} 1")
    query = "SELECT 1 FROM inbox WHERE event_id = ?"
    await chat.daemon.until(lambda: bool(chat.daemon.rows(query, sent)))
    await chat.take_back(sent)
    gate.set()
    await chat.ann.wait_for(chat.room, lambda m: m.body == "thought")
    assert not any(map(is_told, chat.model.requests))


async def while_it_is_answered(chat: Chat) -> None:
    """What it has handed out is at work."""
    sent = await chat.ann.send(chat.room, f"{SECRET} 2")
    await chat.model.request_arrived(4)
    await chat.take_back(sent)
    await chat.talk("hello")
    assert not chat.daemon.rows("SELECT 1 FROM sub_sessions WHERE state <> 'ended'")
    assert not chat.daemon.rows("SELECT 1 FROM casts WHERE state = 'running'")


async def afterwards(chat: Chat) -> None:
    """Its answer is in the room."""
    sent = await chat.ann.send(chat.room, f"{SECRET} 3")
    await chat.ann.wait_for(chat.room, lambda m: m.body == "noted")
    await chat.daemon.said_all()
    await chat.take_back(sent)
    await chat.talk("bye")


def hand_out(seen: Seen) -> Step | None:
    """The second secret leads to work; any other is noted."""
    if objective(seen):
        return Hang()
    if seen.last_user == f"{SECRET} 2":
        return Calls((spawn("look around"), call("look here")))
    return Text("noted") if PASSWORD_WORD in seen.last_user else None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("version", "encrypted"),
    [
        pytest.param("10", False, id="10-plain"),
        pytest.param("11", True, id="11-encrypted", marks=pytest.mark.slow),
    ],
)
@pytest.mark.breaks("redaction", perhaps=True)
async def test_a_message_can_be_taken_back_at_any_time(
    version: str, encrypted: bool, person: NewPerson, bot: NewBot, model: ModelServer
) -> None:
    """F-027: nothing is said of it, and the rest goes on."""
    model.keyed(hand_out)
    ann = await person("ann")
    daemon = await bot(ann)
    room = await chat_of_version(ann, daemon, version, encrypted=encrypted)
    chat = Chat(ann, daemon, room, model)
    await before_its_turn(chat)
    await while_it_is_answered(chat)
    await afterwards(chat)
    bodies = await said(ann, room, daemon.user_id)
    assert bodies == ["thought", "echo: hello", "noted", "echo: bye"]


@pytest.mark.parametrize(
    ("encrypted", "anybody"),
    [
        pytest.param(True, NIO, id="encrypted"),
        pytest.param(True, JS, id="encrypted-js", marks=pytest.mark.slow),
        pytest.param(False, NIO, id="plain", marks=pytest.mark.slow),
    ],
    indirect=["anybody"],
)
async def test_what_is_taken_back_while_the_bot_is_off_is_never_asked(
    scene: Scene, encrypted: bool, anybody: NewAnybody, model: ModelServer
) -> None:
    """F-027: what it had waiting, and what comes without its text; one kill later as well."""
    ann, daemon, chat = await scene.met(await anybody("ann"), encrypted=encrypted)
    await echoed_each(ann, chat, "before")
    model.script(Hang())
    asked = await ann.send(chat, SECRET)
    await model.request_arrived(2)
    waits = await ann.send(chat, f"{SECRET} too")
    await daemon.until(lambda: bool(daemon.rows("SELECT 1 FROM inbox WHERE event_id = ?", waits)))
    await daemon.kill()
    new = await ann.send(chat, f"{SECRET} again")
    for event_id in (asked, waits, new):
        await ann.redact(chat, event_id)
    await daemon.start()
    await taken_back(daemon, waits)
    await daemon.kill()
    await daemon.start()
    await echoed_each(ann, chat, "after")
    assert [is_told(seen) for seen in model.requests] == [False, True, False]
    assert not is_kept(daemon)
    assert not daemon.rows("SELECT 1 FROM inbox WHERE event_id = ?", new)
    assert await said(ann, chat, daemon.user_id) == ["echo: before", "echo: after"]


@pytest.mark.slow
async def test_what_waits_for_a_model_that_is_away_is_taken_back(scene: Scene) -> None:
    """F-027, L-034: nobody hears of it when the model is there again."""
    ann, daemon, chat = await scene.direct(llm={"max_retries": 0})
    scene.model.script(Fail(503))
    gone = await ann.send(chat, SECRET)
    await daemon.until(lambda: bool(daemon.rows("SELECT 1 FROM inbox WHERE not_before > 0")))
    await ann.redact(chat, gone)
    await echoed_each(ann, chat, "hello")
    assert [is_told(seen) for seen in scene.model.requests] == [True, False]
    assert await said(ann, chat, daemon.user_id) == ["echo: hello"]


@pytest.mark.slow
@pytest.mark.parametrize("encrypted", [False, True])
@pytest.mark.breaks("redaction", perhaps=True)  # or it is taken back before the answer is asked for
async def test_lines_of_a_group_and_edits_are_taken_back(scene: Scene, encrypted: bool) -> None:
    """F-027: a stranger's line, by whoever runs the group; an edit alone, and what was edited."""
    ann, eve = await scene.person("ann"), await scene.person("eve")
    daemon = await scene.bot(ann)
    chat = await scene.room(ann, daemon, eve, encrypted=encrypted)
    line = await eve.send(chat, f"{PASSWORD_WORD} says eve")
    await eve.send(chat, "fine says eve")
    first = await ann.send(chat, f"{daemon.user_id}: what is it?")
    seen = await scene.model.request_arrived(1)
    assert is_told(seen)
    await ann.wait_for_count(chat, daemon.user_id, 1)
    await ann.redact(chat, line)
    await taken_back(daemon, line)
    scene.model.script(Text("edited"), Text("again"))
    edit = await ann.edit(chat, first, f"{daemon.user_id}: what is {PASSWORD_WORD}?")
    assert is_told(await scene.model.request_arrived(2))
    await ann.wait_for(chat, lambda m: m.body == "* edited")
    await daemon.said_all()
    await ann.redact(chat, edit)
    await taken_back(daemon, edit)
    await ann.send(chat, f"{daemon.user_id}: hello")
    await ann.wait_for(chat, lambda m: m.body == "again")
    assert not is_told(scene.model.requests[-1])
    assert "fine says eve" not in str(
        scene.model.requests[-1].messages
    )  # it stood before the first text
    assert not is_kept(daemon)


@pytest.mark.slow
@pytest.mark.breaks("redaction")
async def test_what_was_taken_back_since_a_copy_was_made_is_not_answered(scene: Scene) -> None:
    """F-027, F-009: it waited in the copy; nobody is told what it was, either."""
    ann, daemon, chat = await scene.direct(llm={"max_retries": 0})
    await echoed_each(ann, chat, "before")
    scene.model.script(Fail(503))
    gone = await ann.send(chat, SECRET)
    await daemon.until(lambda: bool(daemon.rows("SELECT 1 FROM inbox WHERE not_before > 0")))
    assert await daemon.stop() == 0
    copy = copied(daemon)
    await daemon.start()
    await ann.wait_for_count(chat, daemon.user_id, 2)
    await daemon.said_all()
    await ann.redact(chat, gone)
    await taken_back(daemon, gone)
    assert await daemon.stop() == 0
    sent = len(scene.model.requests)
    put_back(daemon, copy)
    await daemon.start()
    await echoed_each(ann, chat, "after")
    assert not any(map(is_told, scene.model.requests[sent:]))
    assert not is_kept(daemon)
    bodies = await said(ann, chat, daemon.user_id)
    assert sum(PASSWORD_WORD in body for body in bodies) == 1  # the answer that was given before


@pytest.mark.slow
async def test_a_redaction_behind_a_gap_counts(scene: Scene, model: ModelServer) -> None:
    """F-027, X-006: so much was said while the bot was off that the homeserver left some out."""
    ann, eve = await scene.person("ann"), await scene.person("eve")
    daemon = await scene.bot(ann)
    chat = await scene.room(ann, daemon, eve)
    model.script(Hang())
    gone = await ann.send(chat, f"{daemon.user_id}: {SECRET}")
    await model.request_arrived(1)
    await daemon.kill()
    await ann.redact(chat, gone)
    await asyncio.gather(*(eve.send(chat, f"line {n}") for n in range(120)))
    await daemon.start()
    await taken_back(daemon, gone)
    await ann.send(chat, f"{daemon.user_id}: hello")
    await ann.wait_for_count(chat, daemon.user_id, 1)
    assert [is_told(seen) for seen in model.requests] == [True, False]
