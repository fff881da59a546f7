"""Somebody has another identity now: nothing of theirs is answered, nothing goes where they are."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.world.bot import Bot
from tests.world.chats import echoed_each, inbox_states, notices
from tests.world.clock import until
from tests.world.identities import identity_notice, trust
from tests.world.model import ModelServer, Slow, Text
from tests.world.proxy import Action, Answer, Proxy, Request, pass_after
from tests.world.scene import Scene

pytestmark = pytest.mark.slow

Json = dict[str, Any]
Lie = Callable[[Json, str], None]


def sent(proxy: Proxy, room: str) -> list[str]:
    """The session of each encrypted event that was sent to a room."""
    found = proxy.seen("PUT", f"/rooms/{room}/send/m.room.encrypted/")
    return [request.json["session_id"] for request in found]


def given(proxy: Proxy, user: str) -> int:
    """How often a room key went to devices of a user."""
    shares = proxy.seen("PUT", "/sendToDevice/m.room.encrypted/")
    return sum(user in request.json["messages"] for request in shares)


def waiting(daemon: Bot) -> list[str]:
    return [row["body"] for row in daemon.rows("SELECT body FROM outbox WHERE state = 'waiting'")]


async def test_after_a_new_identity_all_waits_until_somebody_trusts_it(
    scene: Scene, proxy: Proxy, model: ModelServer
) -> None:
    """X-035: one notice, readable, in a session of its own; a restart; then all goes on."""
    ann = await scene.current("ann")
    daemon = await scene.bot(ann, via=proxy.url)
    plain, chat = await scene.room(ann, daemon), await scene.room(ann, daemon, encrypted=True)
    await echoed_each(ann, chat, "one")
    gate = asyncio.Event()
    model.script(Slow(gate, Text("two, at last")))
    await ann.send(plain, "two")
    await until(lambda: len(model.requests) == 2)
    await ann.make_identity(anew=True)
    await identity_notice(ann, chat)
    gate.set()
    for text in ("three", "four"):
        await ann.send(chat, text)
    await until(lambda: inbox_states(daemon).count("untrusted") == 2)
    await until(lambda: waiting(daemon) == ["two, at last"])
    await daemon.restart()
    assert inbox_states(daemon).count("untrusted") == 2
    assert waiting(daemon) == ["two, at last"]
    assert len(notices(daemon, "new cryptographic identity")) == 1
    first, of_notice = sent(proxy, chat)
    assert first != of_notice
    assert given(proxy, ann.user_id) == 2

    await trust(daemon, ann.user_id)
    await ann.wait_for(chat, lambda m: m.body == "echo: four")
    await ann.wait_for(plain, lambda m: m.body == "two, at last")
    answers = [m.body for m in ann.messages(chat, daemon.user_id)]
    assert answers[2:] == ["echo: three", "echo: four"]
    assert of_notice not in sent(proxy, chat)[2:]
    await echoed_each(await scene.current(ann), chat, "five")


def no_master_key(answer: Json, user: str) -> None:
    answer["master_keys"].pop(user, None)


def not_signed(answer: Json, user: str) -> None:
    if user in answer["self_signing_keys"]:
        answer["self_signing_keys"][user]["signatures"] = {}


@pytest.mark.parametrize("lie", [no_master_key, not_signed])
async def test_a_homeserver_that_takes_an_identity_away_is_not_believed(
    scene: Scene, lie: Lie, proxy: Proxy
) -> None:
    """X-034, X-035: nothing goes on until it is there again."""
    ann = await scene.current("ann")
    daemon = await scene.bot(ann, via=proxy.url)
    chat = await scene.room(ann, daemon, encrypted=True)
    await echoed_each(ann, chat, "one")

    def lying(request: Request, status: int, body: bytes) -> Action:
        if not request.path.endswith("/keys/query"):
            return None
        answer = json.loads(body)
        lie(answer, ann.user_id)
        return Answer(status, answer)

    proxy.after = lying
    await daemon.restart()
    await ann.wait_for(chat, lambda m: "no longer has" in m.body)
    await ann.send(chat, "two")
    await until(lambda: inbox_states(daemon).count("untrusted") == 1)
    await daemon.restart()
    assert inbox_states(daemon).count("untrusted") == 1
    proxy.after = pass_after
    await daemon.restart()
    await ann.wait_for(chat, lambda m: m.body == "echo: two")
    assert len(notices(daemon, "no longer has")) == 1


async def test_where_somebody_has_changed_the_others_wait_with_them(
    scene: Scene, proxy: Proxy
) -> None:
    """X-035: in the group, and nowhere else."""
    ann, ben = await asyncio.gather(scene.current("ann"), scene.current("ben"))
    daemon = await scene.bot(ann, via=proxy.url, matrix={"allowed_users": [ben.user_id]})
    chat, bens = (
        await scene.room(ann, daemon, encrypted=True),
        await scene.room(ben, daemon, encrypted=True),
    )
    group = await scene.room(ann, daemon, ben, encrypted=True)
    await ann.make_identity(anew=True)
    await identity_notice(ann, chat)
    us = {"m.mentions": {"user_ids": [daemon.user_id]}}
    await ben.send(group, "hello", **us)
    await echoed_each(ben, bens, "one")
    await until(lambda: len(waiting(daemon)) == 1)
    assert sent(proxy, group) == []
    await trust(daemon, ann.user_id)
    answer = await ben.wait_for(group, lambda m: m.sender == daemon.user_id)
    assert answer.body.endswith("hello")
    await echoed_each(ann, chat, "two")
    of_notice, later = sent(proxy, chat)
    assert of_notice != later


@pytest.mark.parametrize(
    "steps",
    [
        [["operation", "INSERT INTO people"], ["executing", "INSERT INTO outbox"]],
        [["operation", "INSERT INTO people"], ["executing", "UPDATE people SET notified"]],
        [["operation", "UPDATE people SET notified"], ["executing", "INSERT INTO outbox_parts"]],
        [["operation", "INSERT INTO outbox_parts"], ["executing", "UPDATE outbox_parts"]],
    ],
)
async def test_a_kill_at_any_step_tells_of_it_once(scene: Scene, steps: list[list[str]]) -> None:
    """X-035."""
    ann = await scene.current("ann")
    daemon = await scene.bot(ann)
    chat = await scene.room(ann, daemon, encrypted=True)
    await echoed_each(ann, chat, "one")
    assert await daemon.stop() == 0
    await ann.make_identity(anew=True)
    await daemon.start({"logger": "aiosqlite", "steps": steps}, ready=False)
    assert await daemon.ended() < 0
    await daemon.start()
    await identity_notice(ann, chat)
    await ann.send(chat, "two")
    await until(lambda: "untrusted" in inbox_states(daemon))
    await daemon.said_all()
    await daemon.restart()
    assert len(notices(daemon, "new cryptographic identity")) == 1
    assert [m.body for m in ann.messages(chat, daemon.user_id)][2:] == []
    await trust(daemon, ann.user_id)
    await ann.wait_for(chat, lambda m: m.body == "echo: two")


async def test_what_changes_again_is_told_again_and_trusted_anew(scene: Scene) -> None:
    """X-035: trusted while nobody was at work, and changed meanwhile."""
    ann = await scene.current("ann")
    daemon = await scene.bot(ann)
    chat = await scene.room(ann, daemon, encrypted=True)
    await echoed_each(ann, chat, "one")
    await ann.make_identity(anew=True)
    await identity_notice(ann, chat)
    assert await daemon.stop() == 0
    await trust(daemon, ann.user_id)
    await ann.make_identity(anew=True)
    await daemon.start()
    await identity_notice(ann, chat)
    await ann.send(chat, "two")
    await until(lambda: "untrusted" in inbox_states(daemon))
    await trust(daemon, ann.user_id)
    await ann.wait_for(chat, lambda m: m.body == "echo: two")
