"""Whom the bot listens to, and where: invitations, groups, strangers, other bots."""

import json

import pytest

from tests.world.bot import said
from tests.world.chats import echoed_each
from tests.world.model import ModelServer, Seen, Step, Text
from tests.world.proxy import Answer, pass_before
from tests.world.scene import Scene
from tests.world.user import MatrixUser
from wintermute.conversation import replies


async def test_only_invitations_of_allowed_people_are_accepted(scene: Scene) -> None:
    """X-001: while the daemon runs and while it does not."""
    ann, bob, eve = await scene.person("ann"), await scene.person("bob"), await scene.person("eve")
    daemon = await scene.bot(ann, matrix={"allowed_users": [bob.user_id]})
    for host in (ann, bob):
        await scene.room(host, daemon)
    unwelcome = [await eve.create_room([daemon.user_id])]
    await left(eve, unwelcome[0], daemon.user_id)
    assert await daemon.stop() == 0

    while_down = [
        await host.create_room([daemon.user_id], preset="private_chat") for host in (ann, bob)
    ]
    unwelcome.append(await eve.create_room([daemon.user_id]))
    await daemon.start()
    for host, chat in zip((ann, bob), while_down, strict=True):
        await host.wait_joined(chat, daemon.user_id)
    await left(eve, unwelcome[1], daemon.user_id)
    await daemon.until(lambda: not daemon.rows("SELECT * FROM invitations WHERE state = 'pending'"))

    await ann.kick(while_down[0], daemon.user_id)  # and asked back
    await ann.until(lambda: daemon.user_id not in ann.members(while_down[0]))
    await ann.invite(while_down[0], daemon.user_id)
    await ann.wait_joined(while_down[0], daemon.user_id)
    await ann.send(while_down[0], "again")
    await ann.wait_for(while_down[0], lambda m: m.body == "echo: again")


@pytest.mark.slow
async def test_where_rooms_are_named_it_stays_in_no_other(scene: Scene) -> None:
    """X-001: `matrix.allowed_rooms`, for the owner too."""
    ann = await scene.person("ann")
    daemon = await scene.bot(ann, start=False)
    named, other = [await ann.create_room([daemon.user_id]) for _ in range(2)]
    config = json.loads(daemon.config.read_text())
    config["matrix"]["allowed_rooms"] = [named]
    daemon.config.write_text(json.dumps(config))
    await daemon.start()
    await ann.wait_joined(named, daemon.user_id)
    await left(ann, other, daemon.user_id)
    await echoed_each(ann, named, "here?")


@pytest.mark.slow
async def test_an_invitation_that_cannot_be_answered_now_holds_up_nobody(scene: Scene) -> None:
    """X-001, X-012: such as one into a room of a server that is gone; it is kept."""
    ann, daemon, chat = await scene.direct(via=scene.proxy.url)
    scene.proxy.before = lambda request: (
        Answer(502, b"<html>gone") if request.path.endswith("/join") else None
    )
    dead = await ann.create_room([daemon.user_id])
    await daemon.logged("invitation waits")
    await echoed_each(ann, chat, "one")
    await daemon.restart()
    await echoed_each(ann, chat, "two")
    scene.proxy.before = pass_before
    await daemon.restart()
    await ann.wait_joined(dead, daemon.user_id)


@pytest.mark.slow
async def test_a_question_asked_before_a_third_person_came_is_answered_to_nobody_else(
    scene: Scene, model: ModelServer
) -> None:
    """F-003, X-031: it was a direct chat when it was said, although we read it later."""
    ann, daemon, chat = await scene.direct()
    bob = await scene.person("bob")
    await daemon.stop()
    await ann.send(chat, "between us?")
    await ann.invite(chat, bob.user_id)
    await ann.send(chat, "not for the bot")
    await daemon.start()
    await ann.wait_for(chat, lambda m: m.body == replies.JOINED)
    scopes = daemon.rows("SELECT scope FROM conversations WHERE room_id = ?", chat)
    assert scopes == [{"scope": f"room:{chat}"}]
    await daemon.kill()
    assert not model.requests


async def left(host: MatrixUser, room: str, user: str) -> None:
    """Wait until a user has declined."""
    await host.until(lambda: is_left(host, room, user), what="the invitation to be declined")


def is_left(host: MatrixUser, room: str, user: str) -> bool:
    memberships = [
        (event.sender, event.content.get("membership"))
        for event in host.events(room)
        if event.type == "m.room.member"
    ]
    assert (user, "join") not in memberships
    return (user, "leave") in memberships


async def test_in_a_group_the_bot_answers_allowed_people_who_mention_it(scene: Scene) -> None:
    """X-002, X-003, X-004: others are labelled context, at most 20 lines of it."""
    ann, eve = await scene.person("ann"), await scene.person("eve")
    daemon = await scene.bot(ann)
    bot_id, name = daemon.user_id, daemon.user_id[1:].partition(":")[0]
    chat = await scene.room(ann, daemon, eve)
    for n in range(25):
        await ann.send(chat, f"line {n}")
    await pester(eve, chat, bot_id, name)
    await ann.until(lambda: len(ann.messages(chat)) == 30)
    await ann.send(chat, f"{name}: by name")
    await ann.wait_for_count(chat, bot_id, 1)
    sent = await ann.send(chat, "by mention", **{"m.mentions": {"user_ids": [bot_id]}})
    await ann.send(chat, f"{bot_id}, by id")
    await ann.send(chat, "not for you")
    await ann.edit(chat, sent, f"{bot_id}, edited")
    notice = {"msgtype": "m.notice", "m.mentions": {"user_ids": [bot_id]}}
    await ann.send_event(chat, "m.room.message", {"body": f"{bot_id}: notice", **notice})
    await ann.send(chat, f"{bot_id}: /help")
    await ann.wait_for(chat, lambda m: m.sender == bot_id and "/stop" in m.body)

    first, second, _ = [request.last_user for request in scene.model.requests]
    context = first.split("</room_context>")[0].splitlines()
    assert (context[0], len(context)) == ("<room_context>", 21)
    assert ("line 4" in first, "line 24" in first) == (False, True)
    assert eve.user_id in context[-1]
    ends = [request.last_user.rsplit(": ")[-1] for request in scene.model.requests]
    assert ends == ["by name", "by mention", "by id"]
    assert "<room_context>" not in second
    assert len(await said(ann, chat, bot_id)) == 4


async def pester(stranger: MatrixUser, room: str, bot: str, name: str) -> None:
    for text in (f"{bot}: answer me", f"{name}: obey", "/status", f"{bot} /new"):
        await stranger.send(room, text)
    await stranger.send(room, "hey", **{"m.mentions": {"user_ids": [bot]}})


async def test_the_bot_does_not_answer_itself_notices_or_edits_of_older_messages(
    scene: Scene,
) -> None:
    """X-002, X-004: in a direct chat; a message said before a stranger joined stays direct."""
    ann, eve = await scene.person("ann"), await scene.person("eve")
    daemon = await scene.bot(ann)
    bot_id = daemon.user_id
    chat = await scene.room(ann, daemon)
    sent = await ann.send(chat, "first")
    await ann.send(chat, "second")
    await ann.edit(chat, sent, "first, edited")
    await ann.send_event(chat, "m.room.message", {"msgtype": "m.notice", "body": "notice"})
    await ann.react(chat, sent, "\N{THUMBS UP SIGN}")
    await echoed_each(ann, chat, "last")
    answers = ["echo: first", "echo: second", "echo: last"]
    assert await said(ann, chat, bot_id) == answers

    await ann.invite(chat, eve.user_id)
    await eve.join(chat)
    await eve.send(chat, "me?")
    await ann.send(chat, "just to eve")
    await ann.send(chat, f"{bot_id}: and you")
    await ann.wait_for(chat, lambda m: m.body.endswith("and you") and m.sender == bot_id)
    *_, why, _ = await said(ann, chat, bot_id)
    assert f"`{eve.user_id}` can read what is said here" in why
    assert len(await said(ann, chat, bot_id)) == 5


@pytest.mark.slow
async def test_two_bots_in_a_room_come_to_an_end(scene: Scene, model: ModelServer) -> None:
    """X-004: at most three exchanges without a person."""
    ann = await scene.person("ann")
    one, two = [await scene.bot(ann, start=False) for _ in range(2)]
    ids = [one.user_id, two.user_id]
    for daemon, other in ((one, two), (two, one)):
        settings = json.loads(daemon.config.read_text())
        # Every message is for both of them: nothing but the count can stop this.
        settings["matrix"] |= {"allowed_users": [other.user_id], "mention_in_groups": False}
        daemon.config.write_text(json.dumps(settings))
        await daemon.start()

    def chatter(seen: Seen) -> Step:
        return Text(f"{ids[0]} {ids[1]}: what do you think? {len(model.requests)}")

    model.keyed(chatter)
    chat = await ann.create_room(ids, direct=False)
    for bot_id in ids:
        await ann.wait_joined(chat, bot_id)
    await ann.send(chat, "discuss")
    for bot_id in ids:
        await ann.wait_for_count(chat, bot_id, 4)
    for daemon in (one, two):  # all that would still come has come when they answer this
        aside = await scene.room(ann, daemon)
        await ann.send(aside, "/help")
        await ann.wait_for(aside, lambda m: "/stop" in m.body)
    spoken = [len(await said(ann, chat, bot_id)) for bot_id in ids]
    assert spoken == [4, 4]  # to ann, and three times to each other
    assert len(model.requests) == 8


@pytest.mark.slow
async def test_without_encryption_people_come_in_all_the_same(scene: Scene) -> None:
    """F-001: there is no session that would have to end."""
    ann, eve = await scene.person("ann"), await scene.person("eve")
    daemon = await scene.bot(ann, matrix={"encryption": "off"})
    chat, other = await scene.room(ann, daemon), await scene.room(ann, daemon)
    await echoed_each(ann, chat, "one")
    await ann.invite(chat, eve.user_id)
    await daemon.logged("readers changed")
    await echoed_each(ann, other, "two")
