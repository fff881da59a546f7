"""Chats with the bot at the Matrix door: people come in, speak, read and leave."""

import asyncio
import itertools
import json
import re
from collections.abc import Callable
from itertools import dropwhile

import pytest

from tests.tiers import tiered
from tests.world.bot import Bot
from tests.world.delegating import done, objective, spawn
from tests.world.duties import in_
from tests.world.model import Calls, ModelServer, Seen, Slow, Step, Text, Use
from tests.world.person import Person
from tests.world.proxy import Answer, Request
from tests.world.user import CLIENT, MatrixUser, Message

NOTIFY = {"execution_mode": "autonomous_notify", "ai_prompt": "Look at the prices"}
Model = Callable[[Seen], Step | None]
NUMBERS = itertools.count(1)
LATER = 120
"""Seconds that a test lets pass: however slow the machine is, nothing is due before."""
FACT = "Ann earns 4711 a month"
REMEMBER = Use("append_memory", {"entry": FACT})
SECRET = "you earn 4711 a month"
DOWN = Answer(502, b"<html>")
encrypted_or_not = pytest.mark.parametrize(
    "encrypted", tiered({"plain": False, "encrypted": True}, ["encrypted"])
)


def planning(seconds: float, result: Step | None = None, **mode: str) -> Model:
    """A model that hears `plan oolong` and makes `oolong` a task that falls due so soon.

    `result` is what each run of a task comes to.
    """

    def choose(seen: Seen) -> Step | None:
        if objective(seen):
            return result
        if seen.messages[-1]["role"] == "tool":
            return Text(f"it gave: {seen.messages[-1]['content']}")
        wanted = re.search(r"plan (\w+)$", seen.last_user)
        when = {"schedule_type": "once", "at": in_(seconds), **mode}
        task = {"action": "add", "content": wanted[1], **when} if wanted else {}
        return Calls((Use("task", task),)) if wanted else None

    return choose


async def say_to(person: MatrixUser, chat: str, daemon: Bot, text: str) -> str:
    """Say something to the bot, in whatever chat; the id of that."""
    return await person.send(chat, text, **{"m.mentions": {"user_ids": [daemon.user_id]}})


async def message_from(person: MatrixUser, chat: str, daemon: Bot, start: str) -> Message:
    """The first message of the bot in a chat that begins so."""

    def wanted(message: Message) -> bool:
        return message.sender == daemon.user_id and message.body.startswith(start)

    return await person.wait_for(chat, wanted)


async def heard_from(person: MatrixUser, chat: str, daemon: Bot, start: str) -> str:
    """What the bot says in a chat that begins so."""
    return (await message_from(person, chat, daemon, start)).body


def all_from(person: MatrixUser, chat: str, daemon: Bot) -> list[str]:
    """All that the bot has said in a chat."""
    return [message.body for message in person.messages(chat, daemon.user_id)]


def acting(**uses: Use) -> Model:
    """A model that calls a tool at a word of the message, then says what came of it."""

    def choose(seen: Seen) -> Step | None:
        last = seen.messages[-1]
        if last["role"] == "tool":
            return Text(f"it gave: {last['content']}")
        return next((Calls((use,)) for word, use in uses.items() if word in seen.last_user), None)

    return choose


async def ask_bot(person: Person, chat: str, daemon: Bot, text: str) -> str:
    """What the bot answers in a chat after it was told this; its notices are no answers."""
    sent = await person.send(chat, text, **{"m.mentions": {"user_ids": [daemon.user_id]}})

    def since() -> list[str]:
        events = dropwhile(lambda event: event.event_id != sent, person.events(chat))
        said = (event for event in events if event.sender == daemon.user_id)
        return [event.body for event in said if event.content.get("msgtype") == "m.text"]

    await person.until(lambda: bool(since()), what=f"an answer to {text!r}")
    return since()[0]


def last_request(model: ModelServer) -> str:
    """The last request, as text."""
    return json.dumps(model.requests[-1].body, ensure_ascii=False)


async def come_in(guest: Person, host: Person, chat: str) -> None:
    """Come into a chat and say something there."""
    await host.invite(chat, guest.user_id)
    await guest.join(chat)
    await guest.send(chat, "Good evening")


def handing_out(release: asyncio.Event) -> Model:
    """A model that hands out what it is asked to, and says what came back."""

    def choose(seen: Seen) -> Step | None:
        if objective(seen):
            return Slow(release, done(f"did {objective(seen)}"))
        if "<event" in seen.last_user:
            return Text(f"told: {seen.last_user}")
        if seen.messages[-1]["role"] == "tool":
            return Text("under way")
        wanted = re.search("hand out (.*)", seen.last_user)
        return Calls((spawn(wanted[1]),)) if wanted else None

    return choose


def bodies(person: Person, chat: str) -> list[str]:
    """List the texts of all messages that somebody sees in a chat."""
    return [event.body for event in person.messages(chat)]


def knows(person: Person, chat: str, word: str = "4711") -> bool:
    """Whether somebody has read a word in a chat."""
    return any(word in body for body in bodies(person, chat))


async def slip_in(guest: Person, host: Person, chat: str) -> None:
    """Come in and say nothing."""
    await host.invite(chat, guest.user_id)
    await guest.join(chat)


async def slip_out(guest: Person, host: Person, chat: str) -> None:
    """Leave, and wait until the others see it."""
    await guest.leave(chat)
    await host.until(lambda: guest.user_id not in host.members(chat))


async def hears(person: Person, chat: str, text: str) -> Message:
    """Wait until somebody is told this in a chat; the message."""
    return await person.wait_for(chat, lambda message: message.body == text)


def scope_of(daemon: Bot, chat: str) -> str:
    """Read the scope of the conversation in a chat."""
    [row] = daemon.rows("SELECT scope FROM conversations WHERE room_id = ?", chat)
    return str(row["scope"])


def down_for_sends(request: Request) -> Answer | None:
    """Refuse whatever sends an event."""
    return DOWN if "/send/" in request.path else None


async def echoed_each(person: Person, room: str, *texts: str) -> None:
    """Say each, and wait for its echo: what came before it in the room is stored then."""
    for text in texts:
        await person.send(room, text)
        await person.wait_for(room, lambda m, text=text: m.body == f"echo: {text}")  # type: ignore[misc]  # mypy sees no default


def inbox_states(daemon: Bot) -> list[str]:
    """List the state of each message in the inbox, oldest first."""
    return [row["state"] for row in daemon.rows("SELECT state FROM inbox ORDER BY seq")]


def notices(daemon: Bot, words: str) -> list[str]:
    """List the notices that have these words."""
    rows = daemon.rows("SELECT body FROM outbox WHERE kind = 'notice' ORDER BY seq")
    return [row["body"] for row in rows if words in row["body"]]


async def answered_with(person: Person, room: str, bot: str, text: str) -> None:
    """Wait for a message of the bot that ends so."""
    await person.wait_for(room, lambda m: m.sender == bot and m.body.endswith(text))


def half_an_hour_later(daemon: Bot) -> None:
    """Make the message that waits for its key half an hour old."""
    [row] = daemon.rows(
        "SELECT strftime('%Y-%m-%dT%H:%M:%S.000000+00:00', 'now', '-30 minutes') AS t"
    )
    daemon.change("UPDATE inbox SET received_at = ? WHERE state = 'locked'", row["t"])


def undecryptable(daemon: Bot) -> int:
    """Count the messages that could not be decrypted."""
    rows = daemon.rows("SELECT value FROM single_values WHERE name = 'undecryptable'")
    return sum(row["value"] for row in rows)


async def send_in_clear(person: Person, room: str, text: str) -> None:
    """Send without encryption, whatever this person's client thinks of the room."""
    path = f"{CLIENT}/rooms/{room}/send/m.room.message/clear-{next(NUMBERS)}"
    status, told = await person.api("PUT", path, {"msgtype": "m.text", "body": text})
    assert status == 200, told
