"""The daemon is killed at each step of a verification: the person's client sees it cancelled, and trusts nobody."""

import asyncio
import os
import signal
from collections.abc import Callable
from contextlib import suppress

import pytest

from tests.tiers import tiered
from tests.world.bot import Bot
from tests.world.current import CurrentClient, Declined
from tests.world.emojis import EmojiCheck, device_of, in_phase, verifications
from tests.world.proxy import Action, Proxy, Request, pass_after, pass_before
from tests.world.scene import NewBot, NewCurrent, NewRoom

pytestmark = pytest.mark.slow

CASES = {
    " ".join(case): case
    for case in (
        *(("devices", "after", step) for step in ("ready", "accept", "key", "mac")),
        *(("room", "before", step) for step in ("ready", "mac")),
        ("command", "before", "request"),
        *(("command", "after", step) for step in ("request", "start")),
    )
}
"""Whose verification, and at which request for it the daemon dies."""


def dying(proxy: Proxy, daemon: Bot, when: str, wanted: Callable[[Request], bool]) -> None:
    """The daemon dies at a request, before the homeserver hears it or after it has acted."""

    def before(request: Request) -> Action:
        if when == "before" and wanted(request):
            os.kill(daemon.pid, signal.SIGKILL)
            proxy.before = pass_before
        return None

    def after(request: Request, status: int, body: bytes) -> Action:
        if when == "after" and wanted(request):
            os.kill(daemon.pid, signal.SIGKILL)
            proxy.after = pass_after
        return None

    proxy.before, proxy.after = before, after


def is_step(step: str) -> Callable[[Request], bool]:
    """Whether a request says a step of a verification."""
    if step == "request":
        return lambda request: b"m.key.verification.request" in request.body
    return lambda request: f"/m.key.verification.{step}/" in request.path


async def go_through(check: EmojiCheck, daemon: Bot, *, asked: bool) -> None:
    """As a person does whose client may be told at any time that it is over."""
    with suppress(AssertionError, Declined):
        if asked:
            await check.accept()
        else:
            await check.until("ready")
            await check.start()
        await check.emojis()
        await check.confirm()


async def check_of(ann: CurrentClient, daemon: Bot, chat: str, where: str) -> EmojiCheck:
    if where == "command":
        return await ann.incoming(daemon.user_id)
    place = {"room": chat} if where == "room" else {"device": device_of(daemon)}
    return await ann.verify(daemon.user_id, **place)


@pytest.mark.parametrize("point", tiered(CASES, ["devices after key"]))
async def test_a_verification_that_was_interrupted_is_cancelled(
    current: NewCurrent, bot: NewBot, room: NewRoom, proxy: Proxy, point: tuple[str, str, str]
) -> None:
    """X-020: with the code that says that nobody knows it any more."""
    where, when, step = point
    ann = await current("ann")
    daemon = await bot(ann, via=proxy.url)
    await room(ann, daemon, encrypted=True)  # or her client would not know of its identity
    chat = await room(ann, daemon)
    await ann.until_so(lambda: ann.knows(daemon.user_id, device_of(daemon)))
    dying(proxy, daemon, when, is_step(step))
    async with asyncio.TaskGroup() as group:
        if where == "command":
            await ann.send(chat, "/verify")
        if step == "request":
            await daemon.ended()
            await daemon.start()
        check = await check_of(ann, daemon, chat, where)
        group.create_task(go_through(check, daemon, asked=where == "command"))
        if step != "request":
            await daemon.ended()
            await daemon.start()
        await check.until("cancelled")
    assert check.code == "m.unknown_transaction"
    assert not await ann.trusts(daemon.user_id)
    assert (await in_phase(daemon, "cancelled"))["code"] == "m.unknown_transaction"
    [row] = verifications(daemon)
    assert row["txn_id"] == check.seen["transaction"]
    again = await check_of(ann, daemon, chat, "room")
    await again.until("ready")


async def test_a_request_that_was_not_kept_is_heard_again(
    current: NewCurrent, bot: NewBot, room: NewRoom
) -> None:
    """X-020, X-006: it comes with the token that was not kept either."""
    ann = await current("ann")
    daemon = await bot(ann)
    chat = await room(ann, daemon, encrypted=True)
    await ann.until_so(lambda: ann.knows(daemon.user_id, device_of(daemon)))
    assert await daemon.stop() == 0
    check = await ann.verify(daemon.user_id, room=chat)
    steps = [["executing", "INSERT INTO verifications"], ["executing", "COMMIT"]]
    trigger = {"logger": "aiosqlite", "steps": steps}
    await daemon.start(trigger, ready=False)
    assert await daemon.ended() < 0
    assert not verifications(daemon)
    await daemon.start()
    await check.until("ready")
