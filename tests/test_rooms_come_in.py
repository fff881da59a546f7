"""Whom the bot listens to, and where: invitations, groups, strangers, other bots."""

from collections.abc import Callable
from pathlib import Path

from tests.world.bot import Bot, meet, said, write_settings
from tests.world.homeserver import Homeserver
from tests.world.model import ModelServer, Seen, Step, Text
from tests.world.proxy import Answer, Proxy, pass_before
from tests.world.user import MatrixUser

Person = Callable[[str], MatrixUser]
NewName = Callable[[str], str]


async def test_only_invitations_of_allowed_people_are_accepted(
    homeserver: Homeserver, person: Person, fresh: NewName, model: ModelServer, tmp_path: Path
) -> None:
    """X-001: while the daemon runs and while it does not."""
    login = homeserver.user(fresh("bot"))
    bot_id = login.user_id
    async with person("ann") as ann, person("bob") as bob, person("eve") as eve:
        config = write_settings(
            tmp_path / "bot",
            homeserver.url,
            login,
            model.url,
            ann.user_id,
            matrix={"allowed_users": [bob.user_id]},
        )
        async with Bot(config) as bot:
            for host in (ann, bob):
                await meet(host, bot_id)
            unwelcome = [await eve.create_room([bot_id])]
            await left(eve, unwelcome[0], bot_id)
            assert await bot.stop() == 0

            while_down = [
                await host.create_room([bot_id], preset="private_chat") for host in (ann, bob)
            ]
            unwelcome.append(await eve.create_room([bot_id]))
            await bot.start()
            for host, room in zip((ann, bob), while_down, strict=True):
                await host.wait_joined(room, bot_id)
            await left(eve, unwelcome[1], bot_id)
            assert not bot.rows("SELECT * FROM invitations WHERE state = 'pending'")

            await ann.kick(while_down[0], bot_id)  # and asked back
            await ann.until(lambda: bot_id not in ann.members(while_down[0]))
            await ann.invite(while_down[0], bot_id)
            await ann.wait_joined(while_down[0], bot_id)
            await ann.send(while_down[0], "again")
            await ann.wait_for(while_down[0], lambda m: m.body == "echo: again")


async def test_an_invitation_that_cannot_be_answered_now_holds_up_nobody(
    homeserver: Homeserver, person: Person, fresh: NewName, model: ModelServer, tmp_path: Path
) -> None:
    """X-001, X-012: such as one into a room of a server that is gone; it is kept."""
    login = homeserver.user(fresh("bot"))
    async with person("ann") as ann, Proxy(homeserver.url) as proxy:
        config = write_settings(tmp_path / "bot", proxy.url, login, model.url, ann.user_id)
        async with Bot(config) as bot:
            room = await meet(ann, login.user_id)
            proxy.before = lambda request: (
                Answer(502, b"<html>gone") if request.path.endswith("/join") else None
            )
            dead = await ann.create_room([login.user_id])
            await bot.logged("invitation waits")
            await ann.send(room, "one")
            await ann.wait_for(room, lambda m: m.body == "echo: one")
            await bot.restart()
            await ann.send(room, "two")
            await ann.wait_for(room, lambda m: m.body == "echo: two")
            proxy.before = pass_before
            await bot.restart()
            await ann.wait_joined(dead, login.user_id)


async def test_a_question_asked_before_a_third_person_came_is_answered(
    homeserver: Homeserver, person: Person, fresh: NewName, model: ModelServer, tmp_path: Path
) -> None:
    """X-002, X-031: it was a direct chat when it was said, although we read it later."""
    login = homeserver.user(fresh("bot"))
    async with person("ann") as ann, person("bob") as bob:
        config = write_settings(tmp_path / "bot", homeserver.url, login, model.url, ann.user_id)
        async with Bot(config) as bot:
            room = await meet(ann, login.user_id)
            await bot.stop()
            await ann.send(room, "between us?")
            await ann.invite(room, bob.user_id)
            await ann.send(room, "not for the bot")
            await bot.start()
            await ann.wait_for(room, lambda m: m.body == "echo: between us?")
            scopes = bot.rows("SELECT scope FROM conversations WHERE room_id = ?", room)
            assert scopes == [{"scope": f"room:{room}"}]
        assert len(model.requests) == 1


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


async def test_in_a_group_the_bot_answers_allowed_people_who_mention_it(
    homeserver: Homeserver, person: Person, fresh: NewName, model: ModelServer, tmp_path: Path
) -> None:
    """X-002, X-003, X-004: others are labelled context, at most 20 lines of it."""
    name = fresh("bot")
    login = homeserver.user(name)
    bot_id = login.user_id
    async with person("ann") as ann, person("eve") as eve:
        config = write_settings(tmp_path / "bot", homeserver.url, login, model.url, ann.user_id)
        async with Bot(config):
            room = await meet(ann, bot_id, eve)
            for n in range(25):
                await ann.send(room, f"line {n}")
            await pester(eve, room, bot_id, name)
            await ann.until(lambda: len(ann.messages(room)) == 30)
            await ann.send(room, f"{name}: by name")
            await ann.wait_for_count(room, bot_id, 1)
            sent = await ann.send(room, "by mention", **{"m.mentions": {"user_ids": [bot_id]}})
            await ann.send(room, f"{bot_id}, by id")
            await ann.send(room, "not for you")
            await ann.edit(room, sent, f"{bot_id}, edited")
            notice = {"msgtype": "m.notice", "m.mentions": {"user_ids": [bot_id]}}
            await ann.send_event(room, "m.room.message", {"body": f"{bot_id}: notice", **notice})
            await ann.send(room, f"{bot_id}: /help")
            await ann.wait_for(room, lambda m: m.sender == bot_id and "/stop" in m.body)

            first, second, _ = [request.last_user for request in model.requests]
            context = first.split("</room_context>")[0].splitlines()
            assert (context[0], len(context)) == ("<room_context>", 21)
            assert ("line 4" in first, "line 24" in first) == (False, True)
            assert eve.user_id in context[-1]
            ends = [request.last_user.rsplit(": ")[-1] for request in model.requests]
            assert ends == ["by name", "by mention", "by id"]
            assert "<room_context>" not in second
            assert len(await said(ann, room, bot_id)) == 4


async def pester(stranger: MatrixUser, room: str, bot: str, name: str) -> None:
    for text in (f"{bot}: answer me", f"{name}: obey", "/status", f"{bot} /new"):
        await stranger.send(room, text)
    await stranger.send(room, "hey", **{"m.mentions": {"user_ids": [bot]}})


async def test_the_bot_does_not_answer_itself_notices_or_edits_of_older_messages(
    homeserver: Homeserver, person: Person, fresh: NewName, model: ModelServer, tmp_path: Path
) -> None:
    """X-002, X-004: in a direct chat; a message said before a stranger joined stays direct."""
    login = homeserver.user(fresh("bot"))
    bot_id = login.user_id
    async with person("ann") as ann, person("eve") as eve:
        config = write_settings(tmp_path / "bot", homeserver.url, login, model.url, ann.user_id)
        async with Bot(config):
            room = await meet(ann, bot_id)
            sent = await ann.send(room, "first")
            await ann.send(room, "second")
            await ann.edit(room, sent, "first, edited")
            await ann.send_event(room, "m.room.message", {"msgtype": "m.notice", "body": "notice"})
            await ann.react(room, sent, "\N{THUMBS UP SIGN}")
            await ann.send(room, "last")
            await ann.wait_for(room, lambda m: m.body == "echo: last")
            answers = ["echo: first", "echo: second", "echo: last"]
            assert await said(ann, room, bot_id) == answers

            await ann.invite(room, eve.user_id)
            await eve.join(room)
            await eve.send(room, "me?")
            await ann.send(room, "just to eve")
            await ann.send(room, f"{bot_id}: and you")
            await ann.wait_for(room, lambda m: m.body.endswith("and you") and m.sender == bot_id)
            assert len(await said(ann, room, bot_id)) == 4


async def test_two_bots_in_a_room_come_to_an_end(
    homeserver: Homeserver, person: Person, fresh: NewName, model: ModelServer, tmp_path: Path
) -> None:
    """X-004: at most three exchanges without a person."""
    logins = [homeserver.user(fresh("bot")) for _ in range(2)]
    ids = [login.user_id for login in logins]

    def chatter(seen: Seen) -> Step:
        return Text(f"{ids[0]} {ids[1]}: what do you think? {len(model.requests)}")

    model.keyed(chatter)
    async with person("ann") as ann:
        configs = [
            write_settings(
                tmp_path / f"bot{n}",
                homeserver.url,
                logins[n],
                model.url,
                ann.user_id,
                # Every message is for both of them: nothing but the count can stop this.
                matrix={"allowed_users": [ids[1 - n]], "mention_in_groups": False},
            )
            for n in range(2)
        ]
        async with Bot(configs[0]) as one, Bot(configs[1]) as two:
            room = await ann.create_room(ids, direct=False)
            for bot_id in ids:
                await ann.wait_joined(room, bot_id)
            await ann.send(room, "discuss")
            for bot_id in ids:
                await ann.wait_for_count(room, bot_id, 4)
            for bot in (one, two):  # all that would still come has come when they answer this
                other = await meet(ann, logins[bot is two].user_id)
                await ann.send(other, "/help")
                await ann.wait_for(other, lambda m: "/stop" in m.body)
            spoken = [len(await said(ann, room, bot_id)) for bot_id in ids]
            assert spoken == [4, 4]  # to ann, and three times to each other
            assert len(model.requests) == 8
