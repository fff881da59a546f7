"""A message in a real Matrix room gets an answer."""

import pytest

from tests.world.scene import JS, NIO, NewAnybody, Scene


@pytest.mark.parametrize(
    ("encrypted", "anybody"),
    [(False, NIO), (True, NIO), (True, JS)],
    ids=["plain", "encrypted", "encrypted-js"],
    indirect=["anybody"],
)
async def test_a_message_is_answered_once_and_in_order(
    scene: Scene, encrypted: bool, anybody: NewAnybody
) -> None:
    """X-001, X-002, X-015, X-018."""
    ann = await anybody("ann")
    daemon = await scene.bot(ann)
    chat = await scene.room(ann, daemon, encrypted=encrypted)
    for n in range(3):
        await ann.send(chat, f"hello {n}")
    answers = await ann.wait_for_count(chat, daemon.user_id, 3)
    assert [answer.body for answer in answers] == [f"echo: hello {n}" for n in range(3)]
    assert all(answer.encrypted == encrypted for answer in answers)
    assert await daemon.stop() == 0
