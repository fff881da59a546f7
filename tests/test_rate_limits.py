"""A homeserver with the limits it is shipped with: what people wait for goes first, all of it comes, and signs follow slower."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.world.bot import said
from tests.world.clock import promptly
from tests.world.duties import in_, once, promise
from tests.world.homeserver import AS_SHIPPED, Homeserver
from tests.world.model import Drip, ModelServer, Text
from tests.world.scene import NewName, Scene
from tests.world.user import Message
from tests.world.warm import Interpreter
from wintermute.matrix.outbox import BURST, RateLimiter

SLOWED = "asks us to slow down"
PARAGRAPH = "The quick brown fox jumps over the lazy dog, number {}. " * 8
LONG = "\n\n".join(PARAGRAPH.format(*[n] * 8) for n in range(240))


@pytest.fixture(scope="module")
def limited(blank: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Homeserver]:
    """A Synapse that takes ten events of a user at once, and then one in five seconds."""
    with Homeserver(tmp_path_factory.mktemp("limited"), AS_SHIPPED, database=blank) as server:
        yield server


@pytest.fixture
async def scene(
    limited: Homeserver, python: Interpreter, fresh: NewName, model: ModelServer, tmp_path: Path
) -> AsyncIterator[Scene]:
    """People, bots and rooms there."""
    async with Scene(limited, python, fresh, tmp_path, model.url) as opened:
        yield opened


def answers(question: str, message: Message) -> bool:
    return message.body.startswith("echo: ") and question in message.body


@pytest.mark.slow
async def test_the_signs_of_reminders_never_make_an_answer_wait(scene: Scene) -> None:
    """T-063: in whatever room they are; only the homeserver itself can, until it has said that it limits."""
    ann = await scene.person("ann")
    daemon = await scene.bot(ann)
    chats = [await scene.room(ann, daemon, encrypted=encrypted) for encrypted in (False, True)]
    due = once(in_(2))
    for chat, contents in zip(chats, (("one", "two"), ("three",)), strict=True):
        await promise(daemon, ann.user_id, chat, dict.fromkeys(contents, due))
    await ann.wait_for_count(chats[0], daemon.user_id, 2)
    await ann.wait_for_count(chats[1], daemon.user_id, 1)
    await daemon.logged(SLOWED)
    for question, chat in zip(("why?", "how?", "when?"), (*chats, chats[0]), strict=True):
        await asyncio.sleep(5)  # what the homeserver allows us: one event
        async with promptly(3):
            await ann.send(chat, question)
            await ann.wait_for(chat, partial(answers, question))
    assert 4 <= sum(e.type == "m.reaction" for chat in chats for e in ann.events(chat)) < 12
    assert sum(SLOWED in line for line in daemon.log) <= len(chats)


@pytest.mark.slow
async def test_a_long_answer_comes_whole_and_in_order(scene: Scene, model: ModelServer) -> None:
    """X-012: while the homeserver lets one part of it through in five seconds."""
    model.script(Text(LONG))
    ann = await scene.person("ann")
    daemon = await scene.bot(ann, matrix={"streaming": False})
    chat = await scene.room(ann, daemon, encrypted=True)
    await ann.send(chat, "tell")
    await ann.wait_for_count(chat, daemon.user_id, 12)
    await daemon.said_all()
    parts = await said(ann, chat, daemon.user_id)
    assert "\n\n".join(parts).split() == LONG.split()
    assert any(SLOWED in line for line in daemon.log)


@pytest.mark.slow
@pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "encrypted"])
async def test_an_answer_that_grows_ends_in_time(
    scene: Scene, model: ModelServer, encrypted: bool
) -> None:
    """X-023, X-039: its edits leave room for the end of it, and are refused once a minute at most."""
    text = "word " * 300
    ann = await scene.person("ann")
    daemon = await scene.bot(ann)
    chat = await scene.room(ann, daemon, encrypted=encrypted)
    model.script(Drip(f"{text}end", interval=0.15))
    await ann.send(chat, "tell")
    await daemon.until(lambda: bool(daemon.rows("SELECT 1 FROM outbox WHERE kind = 'reply'")))
    async with promptly(6):
        await ann.wait_for(chat, lambda m: m.body.endswith("end"))
    assert sum(SLOWED in line for line in daemon.log) <= 1
    assert 5 < len(ann.messages(chat, daemon.user_id)) < 30


def signs_at(pace: RateLimiter, now: float) -> int:
    """How many signs may go at this time."""
    count = 0
    while count < 100 and not pace.reaction_delay(now):
        count += 1
    return count


def test_signs_go_freely_where_nobody_limits_them() -> None:
    pace = RateLimiter()
    assert [signs_at(pace, now) for now in (1000.0, 1000.0)] == [100, 100]


def test_after_a_refusal_signs_leave_something_for_answers() -> None:
    """T-063: the homeserver's own count never reaches its limit by signs alone."""
    pace = RateLimiter()
    pace.reaction_delay(1000.0)
    pace.note_limit(1000.0)
    assert pace.reaction_delay(1000.0) == 20
    assert pace.reaction_delay(1019.0) == pytest.approx(1)
    assert signs_at(pace, 1020.1) == 1
    assert signs_at(pace, 1025.2) == 1
    for _ in range(3):
        pace.count(1025.2)
    assert pace.reaction_delay(1025.2) == pytest.approx(20, abs=1)
    assert signs_at(pace, 1e6) == BURST - 3
    assert signs_at(pace, 1e6 + 5.1) == 1


def test_messages_that_went_through_count_however_many_they_are() -> None:
    pace = RateLimiter()
    for _ in range(200):  # nobody has limited these
        pace.count(0.0)
    pace.note_limit(0.0)
    for _ in range(30):
        pace.count(0.0)
    assert pace.reaction_delay(0.0) == pytest.approx(5 * (40 - 6))
    pace.note_limit(0.0)
    assert pace.reaction_delay(0.0) == pytest.approx(5 * (40 - 6))
