"""Who can read what the bot says is decided when it is said, by who is in the room then.

Eve is in nobody's `allowed_users`. She comes in without a word, as people do.
"""

import asyncio
import json
from dataclasses import replace

import pytest

from tests.tiers import tiered
from tests.world.chats import (
    DOWN,
    LATER,
    NOTIFY,
    REMEMBER,
    SECRET,
    acting,
    ask_bot,
    bodies,
    down_for_sends,
    echoed_each,
    encrypted_or_not,
    handing_out,
    hears,
    knows,
    last_request,
    planning,
    scope_of,
    slip_in,
    slip_out,
)
from tests.world.clock import until
from tests.world.delegating import done
from tests.world.model import Fail, ModelServer, Slow, Text
from tests.world.proxy import After, Answer, Proxy, Request, pass_after, pass_before
from tests.world.reading import ACCOUNT, ANN, BOB, BOT, EVE, POLICY, room_of
from tests.world.reading import GROUP as GROUP_VIEW
from tests.world.scene import Scene
from wintermute.commands.chat import NO_DETAILS
from wintermute.conversation import replies
from wintermute.mailbox.outbox import NOT_ALONE, TERMINAL
from wintermute.matrix.inbox import RoomView, may_read
from wintermute.matrix.outbox import ELSEWHERE, KEPT_BACK
from wintermute.matrix.trust import not_private

LIMITED = Answer(429, {"errcode": "M_LIMIT_EXCEEDED", "error": "slow", "retry_after_ms": 300})
MINE, OURS = f"person:{ANN}", "room:!room"
OPEN_RULES = ("public", "restricted", "knock_restricted", "org.example.anything", "")


@encrypted_or_not
async def test_who_joins_while_the_model_answers_reads_none_of_it(
    scene: Scene, model: ModelServer, encrypted: bool
) -> None:
    """F-003 a, F-004: the cast ends at once, however long the model would go on."""
    ann, daemon, chat = await scene.direct(encrypted=encrypted)
    eve = await scene.person("eve")
    model.script(Slow(asyncio.Event(), Text(SECRET)))
    await ann.send(chat, "what do I earn?")
    await model.request_arrived(1)
    await slip_in(eve, ann, chat)
    await hears(ann, chat, replies.JOINED)
    [cast] = daemon.rows("SELECT state, reason FROM casts")
    assert (cast["state"], cast["reason"]) == ("truncated", "joined")
    assert scope_of(daemon, chat) == f"room:{chat}"
    await ask_bot(ann, chat, daemon, "and now?")
    await model.request_arrived(2)
    assert "what do I earn" not in last_request(model)


@pytest.mark.slow
@pytest.mark.breaks("edit", perhaps=True)
async def test_a_result_is_kept_for_whom_it_was_made(scene: Scene, model: ModelServer) -> None:
    """F-003 b, F-002: it comes when the chat is private again, and the room heard so once."""
    ann, daemon, chat = await scene.direct(encrypted=True)
    eve, release = await scene.person("eve"), asyncio.Event()
    model.keyed(handing_out(release))
    await ask_bot(ann, chat, daemon, "hand out 4711")
    await model.request_arrived(3)
    sent = await ann.send(chat, "hallo")
    await ann.wait_for(chat, lambda message: message.body == "echo: hallo")
    await ann.edit(chat, sent, "hello")  # a branch of its own, from behind what was handed out
    await ann.wait_for(chat, lambda message: message.body == "* echo: hello")
    await slip_in(eve, ann, chat)
    await until(lambda: scope_of(daemon, chat) == f"room:{chat}")
    release.set()
    await hears(ann, chat, KEPT_BACK)
    assert f"in {chat}: {NOT_ALONE}" in (await daemon.command("status", "--all"))[1]
    assert not knows(ann, chat, "did 4711")
    await slip_out(eve, ann, chat)
    await ann.wait_for(chat, lambda message: "did 4711" in message.body)
    assert bodies(ann, chat).count(KEPT_BACK) == 1
    assert not knows(eve, chat)


@encrypted_or_not
async def test_an_answer_that_waited_for_the_homeserver_is_judged_when_it_is_sent(
    scene: Scene, model: ModelServer, proxy: Proxy, encrypted: bool
) -> None:
    """F-003 c, F-002: the daemon was killed meanwhile; in another chat of hers Ann has it at once."""
    ann, daemon, chat = await scene.direct(encrypted=encrypted, via=proxy.url)
    eve = await scene.person("eve")
    model.script(Text(SECRET))
    proxy.before = down_for_sends
    await ann.send(chat, "what do I earn?")
    await until(lambda: bool(daemon.rows("SELECT 1 FROM outbox")))
    await daemon.kill()
    await slip_in(eve, ann, chat)
    other = await ann.create_room([daemon.user_id], encrypted=encrypted)
    proxy.before = pass_before
    await daemon.start()
    await hears(ann, chat, KEPT_BACK)
    await hears(ann, other, ELSEWHERE + SECRET)
    assert not knows(ann, chat)
    assert not knows(eve, chat)


def limited_for_sends(request: Request) -> Answer | None:
    return LIMITED if "/send/" in request.path else None


@pytest.mark.slow
async def test_a_message_that_waited_for_the_model_is_not_answered_to_who_came_in(
    scene: Scene, model: ModelServer
) -> None:
    """F-003 d, F-004: the model is asked nothing of it any more."""
    ann, daemon, chat = await scene.direct()
    eve = await scene.person("eve")
    model.keyed(lambda seen: Fail(503))
    await ann.send(chat, "is 4711 much?")
    await until(lambda: bool(daemon.rows("SELECT 1 FROM inbox WHERE not_before IS NOT NULL")))
    model.keyed(lambda seen: Text(SECRET))
    asked_before = len(model.requests)
    await slip_in(eve, ann, chat)
    await until(lambda: scope_of(daemon, chat) == f"room:{chat}")
    await daemon.restart()  # what waits is tried again at once
    await hears(ann, chat, replies.JOINED)
    assert len(model.requests) == asked_before


@pytest.mark.slow
async def test_who_came_in_is_known_before_a_gap_can_be_filled(scene: Scene) -> None:
    """F-004: the homeserver tells that she joined, and nothing for long of what was said before."""
    ann, daemon, chat = await scene.direct(via=scene.proxy.url)
    eve = await scene.person("eve")
    scene.model.keyed(lambda seen: Fail(503))
    await ann.send(chat, "is 4711 much?")
    await until(lambda: bool(daemon.rows("SELECT 1 FROM inbox WHERE not_before IS NOT NULL")))
    scene.model.keyed(lambda seen: Text(SECRET))
    asked_before = len(scene.model.requests)
    scene.proxy.after = with_a_gap(chat)
    scene.proxy.before = lambda request: DOWN if request.path.endswith("/messages") else None
    await slip_in(eve, ann, chat)
    await until(lambda: scope_of(daemon, chat) == f"room:{chat}")
    await until(lambda: bool(scene.proxy.seen("GET", "/messages")))
    scene.proxy.before, scene.proxy.after = pass_before, pass_after
    await daemon.restart()  # what waits is tried again at once
    await hears(ann, chat, replies.JOINED)
    assert len(scene.model.requests) == asked_before


def with_a_gap(chat: str) -> After:
    """Each sync that brings something of a room says that there was more before it."""

    def change(request: Request, status: int, body: bytes) -> Answer | None:
        if status != 200 or not request.path.endswith("/sync"):
            return None
        answer = json.loads(body)
        if told := answer.get("rooms", {}).get("join", {}).get(chat, {}).get("timeline"):
            told["limited"] = True
        return Answer(status, answer)

    return change


@pytest.mark.slow
@encrypted_or_not
async def test_the_answer_of_a_command_that_waited_is_not_shown_to_who_came_in(
    scene: Scene, model: ModelServer, proxy: Proxy, encrypted: bool
) -> None:
    """F-003 e: the homeserver asked us to slow down, and Ben is allowed to talk with us too."""
    ann, ben, daemon = await scene.shared(via=proxy.url)
    chat = await scene.room(ann, daemon, encrypted=encrypted)
    model.keyed(acting(remember=REMEMBER))
    await ask_bot(ann, chat, daemon, "remember it")
    proxy.before = limited_for_sends
    await ann.send(chat, "/memory")
    await until(lambda: bool(daemon.rows("SELECT 1 FROM outbox WHERE state = 'waiting'")))
    await slip_in(ben, ann, chat)
    await ben.until(lambda: ben.user_id in ann.members(chat))
    proxy.before = pass_before
    await hears(ann, chat, KEPT_BACK)
    assert not knows(ben, chat, "- Ann earns")
    await ann.kick(chat, ben.user_id)
    await ann.wait_for(chat, lambda message: "- Ann earns 4711" in message.body)


@pytest.mark.slow
async def test_an_invitation_that_was_declined_erases_nothing(scene: Scene) -> None:
    """F-001, F-014, X-031: while she is invited the bot says once why it is silent."""
    ann, daemon, chat = await scene.direct()
    eve = await scene.person("eve")
    await ask_bot(ann, chat, daemon, "my cat is Rex")
    await ann.invite(chat, eve.user_id)
    await until(lambda: scope_of(daemon, chat) == f"room:{chat}")
    for text in ("one", "two"):
        await ann.send(chat, text)
    await ann.wait_for(chat, lambda message: "has been invited" in message.body)
    await ask_bot(ann, chat, daemon, "who am I?")
    assert "Rex" not in last_request(scene.model)
    told = [body for body in bodies(ann, chat) if "has been invited" in body]
    assert len(told) == 1
    assert f"`{eve.user_id}`" in told[0]
    assert "mention" in told[0]
    await eve.leave(chat)
    await until(lambda: scope_of(daemon, chat) == f"person:{ann.user_id}")
    await ask_bot(ann, chat, daemon, "and my cat?")
    assert ("Rex" in last_request(scene.model), "who am I" in last_request(scene.model)) == (
        True,
        False,
    )


async def test_why_a_chat_is_no_longer_private_is_told_to_whose_it_was(scene: Scene) -> None:
    """F-014: Ben never was alone there; details of the owner are not for him either (F-002)."""
    ann, ben, daemon = await scene.shared()
    chat = await scene.room(ann, daemon)
    await ask_bot(ann, chat, daemon, "hello")
    await slip_in(ben, ann, chat)
    await ask_bot(ben, chat, daemon, "good evening")
    assert not [body for body in bodies(ben, chat) if "our direct chat" in body]
    await ask_bot(ann, chat, daemon, "/status all")
    status = await ann.wait_for(chat, lambda message: "**outbox**" in message.body)
    assert ("to be sent" in status.body, NO_DETAILS in status.body) == (False, True)
    await ann.wait_for(chat, lambda message: "our direct chat" in message.body)


ALONE = room_of(ANN)
INVITED = room_of(ANN, invited=(EVE,))


@pytest.mark.parametrize(
    ("view", "was", "words"),
    [
        (ALONE, True, ()),
        (room_of(ANN, EVE), False, ()),
        (INVITED, True, ("`@eve:far` has been invited", "declined or taken back")),
        (
            room_of(ANN, invited=(EVE, BOB)),
            True,
            ("`@bob:home`, `@eve:far` have been invited", "declined or taken back"),
        ),
        (room_of(ANN, EVE), True, ("`@eve:far` can read", "Once we are alone here")),
        (
            replace(ALONE, join_rule="public"),
            False,
            ("Anybody may join", "Once its settings say that people join by invitation only"),
        ),
        (
            replace(ALONE, history="world_readable"),
            False,
            ("Anybody may read", "Once its settings say that only members can read its history"),
        ),
    ],
)
def test_why_a_chat_is_not_private_says_what_ends_that(
    view: RoomView, was: bool, words: tuple[str, ...]
) -> None:
    """F-014: to an allowed person who was alone with us here, or may think so."""
    said = not_private(view, BOT, ANN, POLICY, was=was)
    assert bool(said) == bool(words)
    assert [word for word in words if word not in said] == []
    assert not_private(view, BOT, EVE, POLICY, was=True) == ""
    heard = not_private(view, BOT, ANN, replace(POLICY, mention_in_groups=False), was=was)
    assert ("mention me or reply to me" in said, "mention" in heard) == (bool(words), False)


@pytest.mark.slow
async def test_who_came_while_we_were_down_is_seen_at_the_start(scene: Scene) -> None:
    """F-001: also beyond one page of messages; and the private branch goes on when they are gone."""
    ann, daemon, chat = await scene.direct()
    eve = await scene.person("eve")
    await ask_bot(ann, chat, daemon, "my cat is Rex")
    await daemon.stop()
    await slip_in(eve, ann, chat)
    await daemon.start()
    await until(lambda: scope_of(daemon, chat) == f"room:{chat}")
    await daemon.stop()
    await slip_out(eve, ann, chat)
    await daemon.start()
    await ask_bot(ann, chat, daemon, "and my cat?")
    assert "Rex" in last_request(scene.model)


OPENED = {
    "public": ("m.room.join_rules", {"join_rule": "public"}, "Anybody may join"),
    "restricted": (
        "m.room.join_rules",
        {"join_rule": "knock_restricted", "allow": []},
        "Anybody may join",
    ),
    "world-readable": (
        "m.room.history_visibility",
        {"history_visibility": "world_readable"},
        "Anybody may read",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("opened", tiered(OPENED, ["public"]))
async def test_a_room_that_others_may_read_is_never_private(
    scene: Scene, model: ModelServer, opened: tuple[str, dict[str, object], str]
) -> None:
    """F-003: it says so once; what was said in private goes on when it is private again."""
    kind, content, why = opened
    ann, daemon, chat = await scene.direct()
    model.keyed(acting(remember=REMEMBER))
    await ask_bot(ann, chat, daemon, "remember it")
    _, before = await ann.api("GET", f"/_matrix/client/v3/rooms/{chat}/state/{kind}")
    await ann.api("PUT", f"/_matrix/client/v3/rooms/{chat}/state/{kind}", content)
    await until(lambda: scope_of(daemon, chat) == f"room:{chat}")
    await ann.send(chat, "hello?")
    await ann.wait_for(chat, lambda message: why in message.body)
    await ask_bot(ann, chat, daemon, "what do I earn?")
    assert "4711" not in last_request(model)
    await ann.api("PUT", f"/_matrix/client/v3/rooms/{chat}/state/{kind}", before)
    await until(lambda: scope_of(daemon, chat) == f"person:{ann.user_id}")
    await ask_bot(ann, chat, daemon, "and now?")
    assert "4711" in last_request(model)


@pytest.mark.slow
async def test_a_rule_counts_from_when_it_was_made(scene: Scene, model: ModelServer) -> None:
    """F-001, F-003: what was said before it, while we were down, was said in private."""
    ann, daemon, chat = await scene.direct()
    await daemon.stop()
    await ann.send(chat, "is 4711 much?", **{"m.mentions": {"user_ids": [daemon.user_id]}})
    rules = f"/_matrix/client/v3/rooms/{chat}/state/m.room.join_rules"
    await ann.api("PUT", rules, {"join_rule": "public"})
    await daemon.start()
    await hears(ann, chat, replies.JOINED)
    assert not model.requests


class LateKeys:
    """Keeps back what devices are sent until it is told to let it through."""

    def __init__(self) -> None:
        self.kept: list[object] = []
        self.open = False

    def after(self, request: Request, status: int, body: bytes) -> Answer | None:
        if not request.path.endswith("/sync") or status != 200:
            return None
        answer = json.loads(body)
        events = answer.setdefault("to_device", {}).setdefault("events", [])
        self.kept += events
        answer["to_device"]["events"] = self.kept if self.open else []
        self.kept = [] if self.open else self.kept
        return Answer(200, answer)


@pytest.mark.slow
async def test_what_was_said_in_private_stays_so_when_its_key_comes_late(scene: Scene) -> None:
    """F-001, F-003, X-021: it is read when Eve is there already, and answered to nobody."""
    ann, daemon, chat = await scene.direct(encrypted=True, via=scene.proxy.url)
    eve, keys = await scene.person("eve"), LateKeys()
    scene.proxy.after = keys.after
    await ann.send(chat, "is 4711 much?", **{"m.mentions": {"user_ids": [daemon.user_id]}})
    await until(lambda: bool(daemon.rows("SELECT 1 FROM inbox WHERE state = 'locked'")))
    await slip_in(eve, ann, chat)
    await until(lambda: scope_of(daemon, chat) == f"room:{chat}")
    keys.open = True
    await ann.invite(chat, daemon.user_id.replace("bot", "nobody"))  # ends the long poll
    await hears(ann, chat, replies.JOINED)
    assert not scene.model.requests


@pytest.mark.slow
async def test_nobody_is_asked_who_may_read(scene: Scene, proxy: Proxy) -> None:
    """F-002: /sync has told, at a start as well; a message costs its sending and the signs of life."""
    ann, daemon, chat = await scene.direct(encrypted=True, via=proxy.url)
    await ask_bot(ann, chat, daemon, "hello")
    await daemon.restart()
    await ask_bot(ann, chat, daemon, "hello again")
    assert not proxy.seen("GET", "members")
    proxy.requests.clear()
    await ask_bot(ann, chat, daemon, "and again")
    await until(lambda: not daemon.rows("SELECT 1 FROM outbox WHERE state = 'waiting'"))
    wanted = ("/sync", "/typing/", "/receipt/", "/send/m.room.encrypted/")
    others = [r.path for r in proxy.requests if not any(part in r.path for part in wanted)]
    assert (others, len(proxy.seen("PUT", "/send/"))) == ([], 1)


@pytest.mark.slow
async def test_what_a_group_said_acts_on_nobodys_own_memory(scene: Scene) -> None:
    """F-004: Ben asks and leaves before the model is back; Ann alone is left with the bot."""
    ann, ben, daemon = await scene.shared()
    chat = await scene.room(ann, daemon, ben)
    scene.model.script(Slow(asyncio.Event(), Text("never")))
    await ben.send(chat, "remember this", **{"m.mentions": {"user_ids": [daemon.user_id]}})
    await scene.model.request_arrived(1)
    await ben.leave(chat)
    await hears(ann, chat, replies.LEFT)
    scene.model.script(Slow(asyncio.Event(), Text("never")), Text("hello Ann"))
    assert scope_of(daemon, chat) == f"person:{ann.user_id}"
    assert len(scene.model.requests) == 1


@pytest.mark.slow
async def test_the_result_of_a_run_is_in_no_request_of_the_group(scene: Scene) -> None:
    """F-002, F-004: it was kept back, so nobody there was told of it, the model neither."""
    ann, daemon, chat = await scene.direct()
    eve, release = await scene.person("eve"), asyncio.Event()
    scene.model.keyed(planning(LATER, Slow(release, done("they earn 4711")), **NOTIFY))
    await ann.send(chat, "plan water")
    await ann.wait_for(chat, lambda m: m.body.startswith("it gave: "))
    daemon.pass_time(LATER)
    await scene.model.request_arrived(3)
    await slip_in(eve, ann, chat)
    await until(lambda: scope_of(daemon, chat) == f"room:{chat}")
    release.set()
    await hears(ann, chat, KEPT_BACK)
    await ask_bot(ann, chat, daemon, "what is new?")
    assert "4711" not in last_request(scene.model)
    assert not knows(eve, chat)


@pytest.mark.slow
async def test_without_encryption_people_come_and_go_as_well(scene: Scene) -> None:
    """F-001: joined, left, put out and asked in again, over a restart."""
    ann, eve = await scene.person("ann"), await scene.person("eve")
    daemon = await scene.bot(ann, matrix={"encryption": "off"})
    chat = await ann.create_room([daemon.user_id], preset="private_chat")
    await ann.wait_joined(chat, daemon.user_id)
    await ask_bot(ann, chat, daemon, "one")
    await slip_in(eve, ann, chat)
    await slip_out(eve, ann, chat)
    await ann.kick(chat, daemon.user_id)
    await daemon.restart()
    await ann.invite(chat, daemon.user_id)
    await ann.wait_joined(chat, daemon.user_id)
    await echoed_each(ann, chat, "two")


async def test_what_was_encrypted_does_not_go_to_a_chat_that_is_not(scene: Scene) -> None:
    """F-002, X-015: it waits for an encrypted one."""
    ann, eve = await scene.person("ann"), await scene.person("eve")
    daemon = await scene.bot(ann, via=scene.proxy.url)
    plain, chat = await scene.room(ann, daemon), await scene.room(ann, daemon, encrypted=True)
    await ask_bot(ann, plain, daemon, "hello")
    scene.model.script(Text(SECRET))
    scene.proxy.before = limited_for_sends
    await ann.send(chat, "what do I earn?")
    await until(lambda: bool(daemon.rows("SELECT 1 FROM outbox WHERE state = 'waiting'")))
    await slip_in(eve, ann, chat)
    await until(lambda: scope_of(daemon, chat) == f"room:{chat}")
    scene.proxy.before = pass_before
    await hears(ann, chat, KEPT_BACK)
    assert not knows(ann, plain)
    await slip_out(eve, ann, chat)
    await hears(ann, chat, SECRET)


async def test_who_was_invited_for_a_moment_costs_no_answer(scene: Scene) -> None:
    """F-001, F-004: the question is put again in the branch that goes on, and stays in view."""
    ann, daemon, chat = await scene.direct()
    eve = await scene.person("eve")
    scene.model.script(Slow(asyncio.Event(), Text("never")))
    await ann.send(chat, "my code is 4711")
    await scene.model.request_arrived(1)
    await daemon.kill()
    await ann.invite(chat, eve.user_id)
    await eve.leave(chat)
    await daemon.start()
    await hears(ann, chat, "echo: my code is 4711")
    await ask_bot(ann, chat, daemon, "what was it?")
    assert "my code is 4711" in last_request(scene.model)


@pytest.mark.parametrize(
    ("view", "scope", "expected"),
    [
        (room_of(ANN), MINE, True),
        (room_of(BOB), MINE, False),
        (room_of(ANN, BOB), MINE, False),
        (room_of(ANN, invited=(EVE,)), MINE, False),
        (room_of(), MINE, False),
        (room_of(EVE), f"person:{EVE}", False),
        (GROUP_VIEW, OURS, True),
        (room_of(ANN), OURS, True),
        (room_of(BOB, EVE), OURS, True),
        (room_of(EVE), OURS, False),
        (room_of(invited=(ANN,)), OURS, False),
        *((replace(room_of(ANN), join_rule=rule), MINE, True) for rule in ("private", "knock")),
        *((replace(room_of(ANN), join_rule=rule), MINE, False) for rule in OPEN_RULES),
        *((replace(room_of(ANN), join_rule=rule), OURS, True) for rule in OPEN_RULES),
        *((replace(room_of(ANN), history=kind), MINE, True) for kind in ("invited", "joined")),
        *((replace(room_of(ANN), history=kind), MINE, False) for kind in ("world_readable", "")),
        (room_of(ANN), "room:!other", False),
        (room_of(ANN), "global", False),
        (RoomView("!room", {}, frozenset(), encrypted=False), OURS, False),
        (RoomView(TERMINAL, {}, frozenset(), encrypted=False), MINE, False),
    ],
)
def test_what_is_promised_is_said_to_whom_it_is_promised(
    view: RoomView, scope: str, expected: bool
) -> None:
    """T-013, A-3, F-003: to nobody in an empty room, to strangers alone in none, in private behind doors."""
    assert may_read(view, scope, ACCOUNT, POLICY) is expected


@pytest.mark.parametrize(("view", "scope"), [(room_of(ANN), MINE), (GROUP_VIEW, OURS)])
def test_nothing_is_said_in_a_room_that_is_not_allowed_any_more(view: RoomView, scope: str) -> None:
    """A-3: where nobody is listened to, nobody could answer."""
    for rooms, expected in ((frozenset({"!room"}), True), (frozenset({"!other"}), False)):
        assert may_read(view, scope, ACCOUNT, replace(POLICY, rooms=rooms)) is expected
