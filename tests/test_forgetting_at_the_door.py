"""Messages that people delete at their clients leave no trace in any file (M-030, L-048, L-072)."""

import asyncio
from urllib.parse import quote

import pytest

from tests.world.bot import Bot
from tests.world.files import WORD
from tests.world.forgetting import forgotten_by, is_gone
from tests.world.model import Calls, ModelServer, Seen, Step, Text, Use
from tests.world.person import Person
from tests.world.scene import NewBot, NewCurrent, NewPerson, NewRoom
from tests.world.user import CLIENT

LINES = 120
FACT = f"Ann's bird is a {WORD}"


def learns(seen: Seen) -> Step | None:
    """Whatever has the word is remembered, and said again."""
    if WORD not in seen.last_user:
        return None
    if not any(message["role"] == "tool" for message in seen.messages[-1:]):
        return Calls((Use("append_memory", {"entry": FACT, "source": "user_explicit"}),))
    return Text(f"I keep that the bird is a {WORD}")


async def tell_and_wait(ann: Person, daemon: Bot, room: str) -> tuple[str, str]:
    """Ann says it and is answered, long ago by now; both events."""
    said = await ann.send(room, f"My bird is a {WORD} called Hugo")
    answer = await ann.wait_for(room, lambda m: m.body.startswith("I keep that"))
    await ann.send(room, "What a fine day")
    await ann.wait_for(room, lambda m: m.body == "echo: What a fine day")
    await daemon.said_all()
    return said, answer.event_id


@pytest.mark.parametrize(
    ("encrypted", "down"),
    [
        pytest.param(True, False, id="encrypted"),
        pytest.param(False, False, id="plain", marks=pytest.mark.slow),
        pytest.param(True, True, id="encrypted-down", marks=pytest.mark.slow),
        pytest.param(False, True, id="plain-down", marks=pytest.mark.slow),
    ],
)
@pytest.mark.breaks("redaction", "forgetting", perhaps=True)
async def test_what_is_deleted_at_a_second_client_is_gone(
    encrypted: bool,
    down: bool,
    person: NewPerson,
    current: NewCurrent,
    bot: NewBot,
    room: NewRoom,
    model: ModelServer,
) -> None:
    """M-030, L-048: answered long ago; our answer is deleted as well, with the daemon up or down."""
    model.keyed(learns)
    ann = await person("ann")
    daemon = await bot(ann)
    chat = await room(ann, daemon, encrypted=encrypted)
    said, answer = await tell_and_wait(ann, daemon, chat)
    phone = await current(ann, identity=False)
    if down:
        assert await daemon.stop() == 0
    for event_id in (said, answer):
        await phone.redact(chat, event_id)
    if down:
        await daemon.start()
    await is_gone(ann, daemon, chat, model)


@pytest.mark.slow
@pytest.mark.breaks("redaction", "forgetting", perhaps=True)
async def test_what_a_moderator_deletes_behind_a_gap_is_gone(
    person: NewPerson, bot: NewBot, room: NewRoom, model: ModelServer
) -> None:
    """M-030, X-006: of Ann's, by who runs the room; so much was said since that some was left out."""
    model.keyed(learns)
    ann, eve = await person("ann"), await person("eve")
    daemon = await bot(ann, matrix={"allowed_users": [eve.user_id]})
    chat = await room(eve, daemon, ann)
    said = await ann.send(chat, f"{daemon.user_id}: my bird is a {WORD} called Hugo")
    answer = await ann.wait_for(chat, lambda m: m.body.startswith("I keep that"))
    await daemon.said_all()
    assert await daemon.stop() == 0
    for event_id in (said, answer.event_id):
        await eve.redact(chat, event_id)
    await asyncio.gather(*(eve.send(chat, f"line {n}") for n in range(120)))
    await daemon.start()
    await is_gone(ann, daemon, chat, model, f"{daemon.user_id}: ")


async def redact(who: Person, room: str, event_id: str, txn: str) -> int:
    """The homeserver's answer to a redaction."""
    path = f"{CLIENT}/rooms/{quote(room)}/redact/{quote(event_id)}/{txn}"
    status, _ = await who.api("PUT", path, {})
    return status


@pytest.mark.slow
@pytest.mark.breaks("redaction", "forgetting", perhaps=True)
async def test_what_may_not_be_deleted_or_is_not_there_harms_nothing(
    person: NewPerson, bot: NewBot, room: NewRoom, model: ModelServer
) -> None:
    """M-030: by a stranger, of an unknown event, of a redaction, of many lines at once."""
    model.keyed(learns)
    ann, eve = await person("ann"), await person("eve")
    daemon = await bot(ann)
    chat = await room(ann, daemon)
    await ann.invite(chat, eve.user_id)  # who comes later has no power
    await eve.join(chat)
    said = await ann.send(chat, f"{daemon.user_id}: my bird is a {WORD} called Hugo")
    await ann.wait_for(chat, lambda m: m.body.startswith("I keep that"))
    assert await redact(eve, chat, said, "a") == 403
    await redact(ann, chat, "$unknown", "b")
    lines = [await eve.send(chat, f"line {n} of many to be taken back") for n in range(LINES)]
    await daemon.until(
        lambda: bool(daemon.rows("SELECT 1 FROM inbox WHERE event_id = ?", lines[-1]))
    )
    assert await daemon.stop() == 0
    for n, line in enumerate(lines):
        assert await redact(eve, chat, line, f"c{n}") == 200
    await redact(ann, chat, lines[0], "d")
    await daemon.start()
    await forgotten_by(daemon)
    await ann.send(chat, f"{daemon.user_id}: hello")
    await ann.wait_for(chat, lambda m: m.body.startswith("echo: ") and "hello" in m.body)
    assert WORD in str(daemon.rows("SELECT text FROM facts"))
    assert "of many" not in str(daemon.rows("SELECT body, raw FROM inbox"))
    assert WORD in str(daemon.rows("SELECT body FROM inbox WHERE event_id = ?", said))
