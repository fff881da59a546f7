"""The daemon is killed while an answer grows: there is one message in the end, with the whole of it."""

import signal

import pytest

from tests.world.drafts import LIVE, WORDS, GrowingTalk, only_edits
from tests.world.killing import AFTER, BEFORE, PARTS, ROW, SENT_MARK, kill_at_send, take_a_breath
from tests.world.model import Drip, ModelServer
from tests.world.proxy import Proxy
from tests.world.scene import Scene

pytestmark = pytest.mark.slow

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


async def whole(talk: GrowingTalk) -> None:
    """See one new message of the daemon's that says all in the end."""
    await talk.person.until(lambda: WORDS in (s.strip("* ") for s in talk.texts()[talk.known :]))
    first, *edits = (await talk.history())[talk.known :]
    only_edits(edits, first)
    last = edits[-1].content["m.new_content"] if edits else first.content
    assert last["body"].strip() == WORDS
    assert LIVE not in last
    talk.known += 1 + len(edits)


@pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "encrypted"])
async def test_a_kill_while_an_answer_grows_leaves_one_message_with_all_of_it(
    scene: Scene, proxy: Proxy, model: ModelServer, encrypted: bool
) -> None:
    """X-036, X-006: at each statement and each request from the draft to the answer."""
    model.keyed(lambda _: Drip(WORDS, interval=0.15))
    talk = await GrowingTalk.of(scene, model, via=proxy.url, encrypted=encrypted)
    daemon, chat = talk.daemon, talk.chat
    await talk.person.send(chat, "hello")
    await whole(talk)
    for steps in STATEMENTS:
        assert await daemon.stop() == 0
        await daemon.start({"logger": "aiosqlite", "steps": steps})
        await strike(talk, str(steps))
    for number, phase in REQUESTS:
        kill_at_send(proxy, daemon, number, phase)
        await strike(talk, f"request {number} {phase}")


async def strike(talk: GrowingTalk, point: str) -> None:
    """Ask a daemon that dies of it, and the next one answers."""
    await take_a_breath(talk.person, talk.chat)
    await talk.person.send(talk.chat, f"at {point}")
    assert await talk.daemon.ended() == -signal.SIGKILL, point
    await talk.daemon.start()
    await whole(talk)
