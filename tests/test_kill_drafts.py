"""The daemon is killed while an answer grows: there is one message in the end, with the whole of it."""

import os
import signal
from itertools import count

import pytest

from tests.test_kill_points import AFTER, BEFORE, SENT_MARK
from tests.world.bot import Bot
from tests.world.killing import take_a_breath
from tests.world.model import Drip, ModelServer
from tests.world.proxy import Action, Proxy, Request, pass_after, pass_before
from tests.world.scene import NewBot, NewPerson, NewRoom
from tests.world.user import MatrixUser, Message

pytestmark = pytest.mark.slow

WORDS = "These words come one by one, and a person sees them as they come, until all are there."
ROW, PARTS = (BEFORE, "INSERT INTO outbox ("), (BEFORE, "INSERT INTO outbox_parts")
COMMIT, COMMITTED, MARK = (BEFORE, "COMMIT"), (AFTER, "COMMIT"), (BEFORE, SENT_MARK)
Steps = tuple[tuple[str, str], ...]
STATEMENTS: tuple[Steps, ...] = (
    *((ROW, COMMIT), (ROW, COMMITTED), (PARTS, COMMIT), (PARTS, COMMITTED)),
    *((MARK,), (MARK, COMMIT), (MARK, COMMITTED)),
    *((ROW, COMMITTED, ROW, COMMIT), (ROW, COMMITTED, ROW, COMMITTED)),
    *((PARTS, COMMITTED, PARTS, COMMIT), (PARTS, COMMITTED, PARTS, COMMITTED)),
    *((MARK, COMMITTED, MARK), (MARK, COMMITTED, MARK, COMMIT), (MARK, COMMITTED, MARK, COMMITTED)),
)
REQUESTS = [(number, phase) for number in (1, 2, 3) for phase in ("before", "after")]
"""The draft, an edit, and in most cases the last one."""


def arm(proxy: Proxy, daemon: Bot, number: int, phase: str, what: str = "/send/m.room.") -> None:
    """Kill the daemon around a send of its, counted from 1."""
    sends = count(1)

    def strike(request: Request, *_: object) -> Action:
        if request.method == "PUT" and what in request.path and next(sends) == number:
            proxy.before, proxy.after = pass_before, pass_after
            os.kill(daemon.pid, signal.SIGKILL)
        return None

    if phase == "before":
        proxy.before = strike
    else:
        proxy.after = strike


async def whole(ann: MatrixUser, daemon: Bot, chat: str, known: set[str]) -> None:
    """See one new message of the daemon's that says all in the end."""
    await ann.until(lambda: any(m.body.strip(" *") == WORDS for m in new(ann, daemon, chat, known)))
    await daemon.said_all()
    first, *edits = [
        m for m in await ann.history(chat) if m.event_id in {*_ids(ann, daemon, chat)} - known
    ]
    assert {m.content["m.relates_to"]["event_id"] for m in edits} <= {first.event_id}
    last = edits[-1].content["m.new_content"] if edits else first.content
    assert last["body"].strip() == WORDS
    assert "org.matrix.msc4357.live" not in last


def new(ann: MatrixUser, daemon: Bot, chat: str, known: set[str]) -> list[Message]:
    return [m for m in ann.messages(chat, daemon.user_id) if m.event_id not in known]


def _ids(ann: MatrixUser, daemon: Bot, chat: str) -> list[str]:
    return [m.event_id for m in ann.messages(chat, daemon.user_id)]


@pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "encrypted"])
async def test_a_kill_while_an_answer_grows_leaves_one_message_with_all_of_it(
    person: NewPerson,
    bot: NewBot,
    room: NewRoom,
    proxy: Proxy,
    model: ModelServer,
    encrypted: bool,
) -> None:
    """X-036, X-006: at each statement and each request from the draft to the answer."""
    model.keyed(lambda _: Drip(WORDS, interval=0.15))
    ann = await person("ann")
    daemon = await bot(ann, via=proxy.url)
    chat = await room(ann, daemon, encrypted=encrypted)
    await ann.send(chat, "hello")
    await whole(ann, daemon, chat, set())
    for point in (*STATEMENTS, *REQUESTS):
        known = {m.event_id for m in await ann.history(chat)}
        assert await daemon.stop() == 0
        is_request = isinstance(point[0], int)
        await daemon.start(None if is_request else {"logger": "aiosqlite", "steps": point})
        if is_request:
            arm(proxy, daemon, *point)  # type: ignore[arg-type]
        await take_a_breath(ann, chat)
        await ann.send(chat, f"at {point}")
        assert await daemon.ended() == -signal.SIGKILL, point
        await daemon.start()
        await whole(ann, daemon, chat, known)
