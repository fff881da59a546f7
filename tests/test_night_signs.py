"""✅ and ❌ under what a night asks: in an encrypted room, and by somebody else who came in."""

import pytest

from tests.world.bot import Bot
from tests.world.duties import signs
from tests.world.nights import NO, SOON, YES, ended_night, is_morning
from tests.world.person import Person
from tests.world.scene import NewBot, NewPerson, NewRoom
from tests.world.user import Message

pytestmark = pytest.mark.slow


async def question_of(ann: Person, daemon: Bot, chat: str) -> Message:
    """The message of a morning that asks whether a skill may go, with both signs under it."""
    await ann.send(chat, "hello")
    await ann.wait_for_count(chat, daemon.user_id, 1)
    await daemon.said_all()
    assert await daemon.stop() == 0
    await ended_night(daemon, ann)
    await daemon.start()
    said = await ann.wait_for(chat, is_morning)
    await ann.until(lambda: sum(signs(ann, chat).get(said.event_id, {}).values()) >= 2)
    return said


def state(daemon: Bot) -> str:
    (row,) = daemon.rows("SELECT state FROM answered_decisions")
    return str(row["state"])


@pytest.mark.parametrize(
    ("sign", "told", "after"), [(YES, "done:", "done"), (NO, "stays as it is", "refused")]
)
async def test_a_sign_answers_in_an_encrypted_room(
    person: NewPerson, bot: NewBot, room: NewRoom, sign: str, told: str, after: str
) -> None:
    """M-079: the question is encrypted; the sign comes in clear, as clients send it."""
    ann = await person("ann")
    daemon = await bot(ann, dreaming=SOON)
    chat = await room(ann, daemon, encrypted=True)
    said = await question_of(ann, daemon, chat)
    await ann.react(chat, said.event_id, sign)
    answer = await ann.wait_for(chat, lambda each: told in each.body)
    assert said.encrypted
    assert answer.encrypted
    assert state(daemon) == after
    assert (daemon.data / "skills" / "old.md").exists() == (sign == NO)


@pytest.mark.parametrize("allowed", [True, False], ids=["allowed", "not allowed"])
async def test_the_sign_of_somebody_else_answers_nothing(
    person: NewPerson, bot: NewBot, room: NewRoom, *, allowed: bool
) -> None:
    """M-010, M-079: who came into the room says yes to nothing that is its owner's."""
    ann, ben = await person("ann"), await person("ben")
    known = {"allowed_users": [ben.user_id] if allowed else []}
    daemon = await bot(ann, dreaming=SOON, matrix=known)
    chat = await room(ann, daemon)
    said = await question_of(ann, daemon, chat)
    await ann.invite(chat, ben.user_id)
    await ben.join(chat)
    await ben.react(chat, said.event_id, YES)
    await ann.send(chat, "well?", **{"m.mentions": {"user_ids": [daemon.user_id]}})
    await ann.wait_for(chat, lambda each: "well?" in each.body and each.sender == daemon.user_id)
    assert state(daemon) == "open"
    assert (daemon.data / "skills" / "old.md").exists()
