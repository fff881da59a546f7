"""What a second look at reminders in rooms found: signs that come early, closing, who is in a room."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.world.chats import LATER
from tests.world.clock import NOON
from tests.world.duties import in_, is_send, is_sign, once, promise, signs
from tests.world.homeserver import Homeserver
from tests.world.house import ROOM, HeldClock, House, open_house
from tests.world.promised import ask
from tests.world.promised import promise as task_of
from tests.world.proxy import Action, Answer, Hang, Proxy, Request, pass_after, pass_before
from tests.world.reading import (
    ACCOUNT,
    ANN,
    BOB,
    EVE,
    POLICY,
    kind_and_body,
    message_event,
    room_of,
)
from tests.world.reading import GROUP as GROUP_VIEW
from tests.world.scene import NewBot, NewName, NewPerson, NewRoom
from tests.world.sending import DONE, Sending, happens
from wintermute.mailbox.outbox import TERMINAL, Late, Outbox, Outgoing
from wintermute.matrix.inbox import RoomView, may_read
from wintermute.matrix.outbox import events_of
from wintermute.tasks.schedules import NOTHING

MINE, OURS = f"person:{ANN}", "room:!room"
BUSY = Answer(429, {"errcode": "M_LIMIT_EXCEEDED", "error": "busy", "retry_after_ms": 100})
"""Comes in place of the answer: it is asked for again soon, however often it was lost."""
GATEWAY = Answer(502, b"Bad Gateway")


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    async with open_house(tmp_path, None, clock=HeldClock()) as house, house.working():
        yield house


@pytest.mark.slow
@pytest.mark.parametrize(
    ("encrypted", "killed"),
    [
        pytest.param(False, False, id="plain-at work"),
        pytest.param(False, True, id="plain-killed", marks=pytest.mark.slow),
        pytest.param(True, False, id="encrypted-at work", marks=pytest.mark.slow),
        pytest.param(True, True, id="encrypted-killed"),
    ],
)
async def test_a_sign_counts_that_comes_before_we_hear_that_the_reminder_was_taken(
    encrypted: bool, killed: bool, person: NewPerson, bot: NewBot, room: NewRoom, proxy: Proxy
) -> None:
    """T-063, X-012: the answers to our requests are lost, and the reminder is in the room."""
    ann = await person("ann")
    daemon = await bot(ann, via=proxy.url)
    chat = await room(ann, daemon, encrypted=encrypted)
    lost = BUSY if killed else GATEWAY
    proxy.after = lambda request, _status, _body: lost if is_send(request) else None
    await promise(daemon, ann.user_id, chat, {"drink water": once(in_(LATER))})
    daemon.pass_time(LATER)
    [reminder] = await ann.wait_for_count(chat, daemon.user_id, 1)
    if killed:
        await daemon.kill()
    await ann.react(chat, reminder.event_id, DONE)
    if killed:
        await daemon.start()
    await daemon.until(lambda: bool(daemon.rows("SELECT 1 FROM inbox WHERE kind = 'command'")))
    assert daemon.rows("SELECT DISTINCT state FROM outbox_parts") == [{"state": "waiting"}]
    proxy.after = pass_after
    await ann.wait_for(chat, lambda m: m.body == "Done: drink water")
    await ann.until(lambda: len(signs(ann, chat).get(reminder.event_id, {})) == 4)
    texts = [m.body for m in ann.messages(chat, daemon.user_id)]
    assert texts == ["⏰ drink water", "Done: drink water"]
    assert daemon.rows("SELECT status, reason FROM tasks") == [
        {"status": "completed", "reason": "done"}
    ]


@pytest.mark.slow
async def test_an_answer_does_not_wait_with_a_sign_that_has_to(
    person: NewPerson, bot: NewBot, room: NewRoom, proxy: Proxy
) -> None:
    """T-063: the homeserver takes no more signs for a minute, and messages at once."""
    later = Answer(429, {"errcode": "M_LIMIT_EXCEEDED", "error": "", "retry_after_ms": 60_000})
    proxy.before = lambda request: later if is_sign(request) else None
    ann = await person("ann")
    daemon = await bot(ann, via=proxy.url)
    chat = await room(ann, daemon)
    await promise(daemon, ann.user_id, chat, {"drink water": once(in_(LATER))})
    daemon.pass_time(LATER)
    await daemon.logged("send delayed")
    await ann.send(chat, "and now?")
    await ann.wait_for(chat, lambda m: m.body.endswith("and now?") and m.sender != ann.user_id, 45)
    assert len([request for request in proxy.requests if is_sign(request)]) == 1


class CountedOutbox(Outbox):
    """Counts how often it is asked who has something to say."""

    looks = 0

    async def conversations_waiting(self) -> list[tuple[str, str]]:
        self.looks += 1
        return await super().conversations_waiting()


@pytest.mark.slow
async def test_while_it_closes_the_sender_rests(
    person: NewPerson, homeserver: Homeserver, proxy: Proxy, fresh: NewName, tmp_path: Path
) -> None:
    """L-023: one room waits for the homeserver, and what waits in another keeps nobody busy."""
    hung = asyncio.Event()

    def hang(request: Request) -> Action:
        if not is_send(request):
            return None
        hung.set()
        return Hang()

    proxy.before = hang
    ann = await person("ann")
    sending = Sending(homeserver, proxy.url, fresh("bot"), tmp_path)
    chat = await ann.create_room([sending.user_id])
    async with sending(chat, kind=CountedOutbox) as post, asyncio.TaskGroup() as group:
        assert isinstance(post.outbox, CountedOutbox)
        await post.say(chat, "one")
        await happens(hung)
        draining = group.create_task(post.sender.drain(0.3))
        await asyncio.sleep(0)
        await post.say("!elsewhere", "two")
        before = post.outbox.looks
        await draining
        assert post.outbox.looks - before <= 2


async def test_what_is_stuck_says_how_late_it_is_when_it_is_let_go(tmp_path: Path) -> None:
    """T-043, X-030: what fell due while we were not heard in a room is part of the mark."""
    async with open_house(tmp_path, None, clock=HeldClock()) as house:
        async with house.database.transaction() as tx:
            talk = await house.conversations.in_room(tx, ROOM, MINE)
            late = Late(NOON, " (was due 08:00)")
            outbox_id = await house.outbox.enqueue(
                tx, talk, "tea", kind="event", late=late, meant_for=""
            )
        await house.outbox.stuck(outbox_id, "M_FORBIDDEN")
        async with house.database.transaction() as tx:
            await house.outbox.relabel(tx, outbox_id, Late(NOON, " (was due 08:00, 2 missed)"), "")
            await house.outbox.release(tx, ROOM)
        house.clock.advance(1)  # type: ignore[attr-defined]  # a clock of tests
        assert await house.deliver() == ["tea (was due 08:00, 2 missed)"]


OPEN_RULES = ("public", "restricted", "knock_restricted", "org.example.anything", "")


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


def test_a_command_is_known_in_a_group_however_it_is_written() -> None:
    """X-002: as it is where two talk; phones begin a line with a capital."""
    for body in ("/Stop", "/STOP it"):
        assert kind_and_body(message_event(body), GROUP_VIEW) == ("command", body)
    assert kind_and_body(message_event("/Shrug"), GROUP_VIEW) == ("context", "/Shrug")


@pytest.mark.parametrize("form", ["`{}`", "{}.", "({})", "#{}", "{}"])
async def test_an_id_is_taken_as_people_copy_it(house: House, form: str) -> None:
    """T-009: with what stands around it; a slip gets a hint."""
    task = await task_of(house, "tea", NOTHING, room=ROOM)
    for wanted in (form.format(task.id), form.format(task.id.upper())):
        assert await ask(house, f"/tasks pause {wanted}") == "Paused until `/tasks resume 1`: tea"
        assert await ask(house, f"/tasks resume {wanted}") == "Active again: tea"
    slip = task.id[:-1] + ("0" if task.id[-1] != "0" else "1")
    assert f"did you mean {task.id}?" in await ask(house, f"/tasks DONE {form.format(slip)}")


async def test_undo_says_what_a_task_is_again(house: House) -> None:
    """T-063: "as it was before" tells nobody whether it is still to be done."""
    task = await task_of(house, "tea", NOTHING, room=ROOM)
    for verb, before in (("pause", "active"), ("done", "active"), ("cancel", None)):
        await ask(house, f"/tasks {verb} {task.id}")
        said = f"the task is {before} again: tea" if before else "the task is back: tea"
        assert await ask(house, "/undo") == f"- {said}"


async def test_what_was_seen_in_its_room_is_still_to_be_sent(tmp_path: Path) -> None:
    """X-011: it can be answered; it is said when its sender is told, or has looked for it."""
    async with open_house(tmp_path, None) as house:
        async with house.database.transaction() as tx:
            talk = await house.conversations.in_room(tx, ROOM, MINE)
            outbox_id = await house.outbox.enqueue(tx, talk, "tea", kind="event", meant_for="")
        [part] = await house.outbox.store_parts(outbox_id, [("wm-1", {})], "DEVICE")
        async with house.database.transaction() as tx:
            await house.outbox.seen(tx, "wm-1", "$one")
            await house.outbox.seen(tx, "wm-2", "$two")
            assert (await house.outbox.sent_event(tx, ROOM, "$one")) is not None
        assert await house.rows("SELECT 1 FROM outbox WHERE state = 'sent'") == []
        assert await house.next_outgoing() is not None
        await house.outbox.sent(part, "$one")
        async with house.database.transaction() as tx:
            await house.outbox.seen(tx, "wm-1", "$forged")
        [sent] = await house.rows("SELECT event_id FROM outbox_parts WHERE state = 'sent'")
        assert sent == {"event_id": "$one"}


@pytest.mark.slow
async def test_what_is_meant_for_one_person_finds_another_room_when_somebody_came_in(
    person: NewPerson, bot: NewBot, room: NewRoom, proxy: Proxy
) -> None:
    """T-013, M-010: between the promise and its sending; nobody has spoken in the other room."""
    ann, bob = await person("ann"), await person("bob")
    daemon = await bot(ann, via=proxy.url)
    chat = await room(ann, daemon)
    proxy.before = lambda request: BUSY if is_send(request) else None
    await ann.send(chat, "hello")
    await daemon.logged("send delayed")
    await promise(daemon, ann.user_id, chat, {"see the doctor": once(in_(LATER))})
    daemon.pass_time(LATER)
    await daemon.until(lambda: bool(daemon.rows("SELECT 1 FROM occurrences")))
    await ann.invite(chat, bob.user_id)
    await ann.send(chat, "Bob is coming")
    await daemon.until(lambda: bool(daemon.rows("SELECT 1 FROM inbox WHERE body LIKE 'Bob%'")))
    proxy.before = pass_before
    await daemon.logged("kept back")
    other = await room(ann, daemon)
    await ann.wait_for(other, lambda m: m.body.startswith("⏰ see the doctor"))
    texts = [m.body for m in ann.messages(chat, daemon.user_id)]
    assert not [text for text in texts if "doctor" in text]


def test_a_reminder_shows_as_it_was_written() -> None:
    """T-046: no mark of Markdown is lost in it."""
    late = Late(NOON, " (was due 09:00)")
    row = Outgoing(1, "out_1", ROOM, "event", "⏰ Cut 2*3*4 <b>boards</b>", late)
    [(_, content)] = events_of(row)
    assert content["body"] == row.body
    assert "formatted_body" not in content
