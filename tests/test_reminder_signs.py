"""A reminder on its way: it says when it is late, carries signs to act on, and hears those of people."""

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest

from tests.world.chats import LATER
from tests.world.clock import SYSTEM
from tests.world.duties import in_, is_send, is_sign, once, promise, signs
from tests.world.homeserver import Homeserver
from tests.world.proxy import Action, Answer, Hang, Proxy, Request, pass_after, pass_before
from tests.world.reading import REMINDER_ROWS
from tests.world.scene import NewBot, NewName, NewPerson, NewRoom
from tests.world.sending import CANCEL, DONE, SIGNS, SNOOZE, TOMORROW, Sending, happens
from tests.world.user import MatrixUser, Message
from wintermute.mailbox.outbox import LateNote

MARK = " (was due 2026-05-04 14:00)"
LONG = "\n\n".join(f"Paragraph {n}. " + "Words go on and on. " * 29 + "So." for n in range(30))
GATEWAY = Answer(502, b"Bad Gateway")
FORBIDDEN = Answer(403, {"errcode": "M_FORBIDDEN", "error": "not here"})
encrypted_or_not = pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "encrypted"])
BUSY = Answer(429, {"errcode": "M_LIMIT_EXCEEDED", "error": "busy", "retry_after_ms": 100})
"""Comes in place of the answer: it is asked for again soon, however often it was lost."""


@pytest.fixture
def sending(homeserver: Homeserver, proxy: Proxy, fresh: NewName, tmp_path: Path) -> Sending:
    """Sends through the proxy, with a clock that goes on when it waits."""
    return Sending(homeserver, proxy.url, fresh("bot"), tmp_path)


def shown_as(event: Message) -> str:
    """What a client shows of an event: a message's text, a reaction's sign."""
    relation = event.content.get("m.relates_to", {})
    return str(relation.get("key")) if event.type == "m.reaction" else event.body


def events_from(ann: MatrixUser, room: str, sender: str) -> list[Message]:
    """What Ann has seen of somebody, in order."""
    kinds = ("m.room.message", "m.reaction", "m.room.encrypted")
    return [e for e in ann.events(room) if e.sender == sender and e.type in kinds]


async def wait_for(ann: MatrixUser, room: str, sender: str, count: int) -> list[str]:
    """So many events of a sender, as Ann is shown them."""

    def there() -> bool:
        found = events_from(ann, room, sender)
        return len(found) >= count and all(e.type != "m.room.encrypted" for e in found)

    await ann.until(there, what=f"{count} events")
    return [shown_as(event) for event in events_from(ann, room, sender)]


def sign_sent(request: Request, n: int | None = None) -> bool:
    """Whether a request puts our n-th sign, or any, on something."""
    relates = b"m.annotation" in request.body and request.method == "PUT"
    return relates and (n is None or request.path.endswith(f"-{n}"))


@encrypted_or_not
async def test_signs_come_after_everything_else_that_waits(
    encrypted: bool, person: NewPerson, proxy: Proxy, sending: Sending
) -> None:
    """T-063, F-028: also when one of them has to wait; in clear in an encrypted room too, unmarked."""
    ann = await person("ann")
    chat = await ann.create_room([sending.user_id], encrypted=encrypted)
    seen = asyncio.Event()

    def hold_the_second(request: Request) -> Action:
        messages = [r for r in proxy.requests if is_send(r) and not sign_sent(r)]
        if not sign_sent(request, 1) or len(messages) == 3:
            return None
        seen.set()
        return GATEWAY

    proxy.before = hold_the_second
    async with sending(chat, encrypted=encrypted) as post:
        await post.say(chat, "drink water")
        [reminder] = await ann.wait_for_count(chat, sending.user_id, 1)
        await post.react(chat, reminder.event_id, "it waits")
        await happens(seen)
        await post.say(chat, "it came later")
        first, later = ["drink water", "it waits", DONE], ["it came later", SNOOZE]
        everything = [*first, *later, TOMORROW, CANCEL]
        assert await wait_for(ann, chat, sending.user_id, 7) == everything
        await post.sender.drain(5)
        assert await post.rows("SELECT DISTINCT state FROM outbox") == [("sent",)]
        events = events_from(ann, chat, sending.user_id)
        assert {e.encrypted for e in events if e.type != "m.reaction"} == {encrypted}
    [request] = [r for r in proxy.requests if sign_sent(r, 0)]
    assert "/send/m.reaction/" in request.path
    relation = {"rel_type": "m.annotation", "event_id": reminder.event_id, "key": DONE}
    assert request.json == {"m.relates_to": relation}


@pytest.mark.quick("soon-plain", "a day later-encrypted")
@encrypted_or_not
@pytest.mark.parametrize("again", ["soon", "a day later", "from a new device"])
async def test_a_sign_is_put_once_however_often_it_is_sent(
    again: str, encrypted: bool, person: NewPerson, proxy: Proxy, sending: Sending
) -> None:
    """T-037, X-013: killed before it heard that the second sign was taken."""
    ann = await person("ann")
    chat = await ann.create_room([sending.user_id], encrypted=encrypted)
    lost = asyncio.Event()

    def lose_the_second(request: Request, _status: int, _body: bytes) -> Action:
        if not sign_sent(request, 1):
            return None
        lost.set()
        return Hang()

    proxy.after = lose_the_second
    async with sending(chat, encrypted=encrypted) as post:
        await post.say(chat, "drink water")
        [reminder] = await ann.wait_for_count(chat, sending.user_id, 1)
        await post.react(chat, reminder.event_id)
        await happens(lost)
        await post.say(chat, "and tea")
    proxy.after = pass_after
    if again == "a day later":
        sending.clock.advance(25 * 3600)
    if again == "from a new device":
        sending.log_in_again()
    async with sending(chat, encrypted=encrypted) as post:
        everything = ["drink water", DONE, SNOOZE, "and tea", TOMORROW, CANCEL]
        assert await wait_for(ann, chat, sending.user_id, 6) == everything
        await post.sender.drain(5)
        parts = "SELECT DISTINCT state, event_id IS NULL FROM outbox_parts"
        assert await post.rows(parts) == [("sent", 0)]
    second = [r for r in proxy.seen("PUT", "/send/") if sign_sent(r, 1)]
    assert len(second) == (2 if again == "soon" else 1)


@pytest.mark.slow
async def test_a_message_is_not_taken_for_the_sign_that_went_before_it(
    person: NewPerson, proxy: Proxy, sending: Sending
) -> None:
    """X-013: killed with a sign put and a message not sent, neither of them heard of; keys lost."""
    hung = asyncio.Event()

    def hang(_request: Request) -> Action:
        hung.set()
        return Hang()

    ann = await person("ann")
    chat = await ann.create_room([sending.user_id], encrypted=True)
    proxy.after = lambda request, _s, _b: hang(request) if sign_sent(request) else None
    async with sending(chat, encrypted=True) as post:
        await post.say(chat, "drink water")
        [reminder] = await ann.wait_for_count(chat, sending.user_id, 1)
        await post.react(chat, reminder.event_id)
        await happens(hung)
        await post.say(chat, "and tea")
    hung.clear()
    proxy.before = lambda request: hang(request) if is_send(request) else None
    async with sending(chat, encrypted=True):
        await happens(hung)
    proxy.before, proxy.after = pass_before, pass_after
    sending.log_in_again()
    async with sending(chat, encrypted=True):
        everything = ["drink water", DONE, "and tea", SNOOZE, TOMORROW, CANCEL]
        assert await wait_for(ann, chat, sending.user_id, 6) == everything


@pytest.mark.slow
@pytest.mark.parametrize("refusal", ["forbidden", "there already"])
async def test_a_refused_sign_is_let_go(
    refusal: str, person: NewPerson, proxy: Proxy, sending: Sending
) -> None:
    """T-063: nobody is told, nothing is stuck, and what is to be said goes on."""
    ann = await person("ann")
    chat = await ann.create_room([sending.user_id], encrypted=True)
    forbidden, last = refusal == "forbidden", asyncio.Event()

    def refuse(request: Request) -> Action:
        if sign_sent(request, 3):
            last.set()
        return FORBIDDEN if forbidden and sign_sent(request) else None

    proxy.before = refuse
    async with sending(chat, encrypted=True) as post:
        await post.say(chat, "drink water")
        [reminder] = await ann.wait_for_count(chat, sending.user_id, 1)
        for _ in range(1 if forbidden else 2):
            last.clear()
            await post.react(chat, reminder.event_id)
            await happens(last)
        await post.say(chat, "and tea")
        signs = [] if forbidden else SIGNS
        everything = ["drink water", *signs, "and tea"]
        assert await wait_for(ann, chat, sending.user_id, len(everything)) == everything
        await post.sender.drain(5)
        assert await post.rows("SELECT DISTINCT state, problem FROM outbox") == [("sent", None)]
        refused = "SELECT count(*) FROM outbox_parts WHERE event_id IS NULL"
        assert await post.rows(refused) == [(4,)]


@dataclass(frozen=True)
class Away:
    """For how long after its time (in minutes) nobody hears that the homeserver takes a reminder."""

    minutes: int
    takes_it: bool = False
    encrypted: bool = False
    long: bool = False


@pytest.mark.quick("in time")
@pytest.mark.parametrize(
    ("away", "marked"),
    [
        (Away(0), False),
        (Away(4), False),
        (Away(6), True),
        (Away(6, encrypted=True, long=True), True),
        (Away(6, takes_it=True), False),
    ],
    ids=["in time", "a little late", "late", "long", "taken in time"],
)
async def test_a_reminder_says_that_it_is_late(
    away: Away, marked: bool, person: NewPerson, proxy: Proxy, sending: Sending
) -> None:
    """T-038: at its very end, once; not when an earlier attempt was taken."""
    clock = sending.clock
    back = clock.now() + timedelta(minutes=away.minutes)

    def is_away(request: Request) -> Action:
        return GATEWAY if is_send(request) and clock.now() < back else None

    if away.takes_it:
        proxy.after = lambda request, _status, _body: is_away(request)
    else:
        proxy.before = is_away
    ann = await person("ann")
    chat = await ann.create_room([sending.user_id], encrypted=away.encrypted)
    async with sending(chat, encrypted=away.encrypted) as post:
        body = LONG if away.long else "drink water"
        await post.say(chat, body, LateNote(clock.now() + timedelta(minutes=5), MARK))
        await post.say(chat, "the end")
        await ann.wait_for(chat, lambda m: m.body == "the end")
        *parts, _ = [shown_as(event) for event in events_from(ann, chat, sending.user_id)]
        assert len(parts) == (2 if away.long else 1)
        assert "\n\n".join(parts) == body + (MARK if marked else "")


async def test_a_reminder_says_that_it_is_late_after_a_restart(
    person: NewPerson, proxy: Proxy, sending: Sending
) -> None:
    """T-038: under the transaction id of the first attempt."""
    asked = asyncio.Event()

    def hang(request: Request) -> Action:
        if not is_send(request):
            return None
        asked.set()
        return Hang()

    proxy.before = hang
    ann = await person("ann")
    chat = await ann.create_room([sending.user_id])
    async with sending(chat) as post:
        late = LateNote(sending.clock.now() + timedelta(minutes=5), MARK)
        await post.say(chat, "drink water", late)
        await happens(asked)
    sending.clock.advance(6 * 60)
    proxy.before = pass_before
    async with sending(chat):
        [told] = await ann.wait_for_count(chat, sending.user_id, 1)
        assert told.body == "drink water" + MARK
    first, second = [request for request in proxy.requests if is_send(request)]
    assert first.path == second.path
    assert (first.json["body"], second.json["body"]) == ("drink water", told.body)


@pytest.mark.quick("plain")
@encrypted_or_not
async def test_the_sign_of_a_person_is_a_command_once(
    encrypted: bool, person: NewPerson, bot: NewBot, room: NewRoom
) -> None:
    """T-063, X-026: each once, also after a restart or arriving twice; not of strangers, and
    taking one back does nothing."""
    ann, eve = await person("ann"), await person("eve")
    daemon = await bot(ann)
    chat = await room(ann, daemon, eve, encrypted=encrypted)
    asked = await ask_in_group(ann, chat, daemon.user_id, "drink water")
    [reminder] = [m.event_id for m in ann.messages(chat, daemon.user_id)]
    assert await daemon.stop() == 0
    assert [daemon.change(sql) for sql in REMINDER_ROWS] == [1, 1]
    [token] = [
        row["value"]
        for row in daemon.rows("SELECT value FROM single_values WHERE name = 'sync token'")
    ]
    await daemon.start()
    await eve.react(chat, reminder, CANCEL)
    await ann.react(chat, asked, CANCEL)
    snooze = await ann.react(chat, reminder, SNOOZE)
    done = await ann.react(chat, reminder, DONE + "\ufe0f")
    await ask_in_group(ann, chat, daemon.user_id, "one")
    await ann.redact(chat, done)
    await ann.react(chat, reminder, DONE)
    await ask_in_group(ann, chat, daemon.user_id, "two")
    assert await daemon.stop() == 0
    assert daemon.change(
        "UPDATE single_values SET value = ? WHERE name = 'sync token'", token
    )  # all comes once more
    tomorrow = await ann.react(chat, reminder, TOMORROW)
    await daemon.start()
    await ask_in_group(ann, chat, daemon.user_id, "three")
    heard = daemon.rows(
        "SELECT event_id, body, sender FROM inbox WHERE kind = 'command' ORDER BY seq"
    )
    assert heard == [
        {"event_id": event_id, "body": f"/tasks {sign} task_1", "sender": ann.user_id}
        for event_id, sign in ((snooze, "snooze"), (done, "done"), (tomorrow, "tomorrow"))
    ]


async def ask_in_group(ann: MatrixUser, room: str, bot: str, text: str) -> str:
    """Say something in a group, and wait for the answer; the id of what was said."""
    asked = await ann.send(room, f"{bot}: {text}")
    await ann.wait_for(room, lambda m: m.sender == bot and m.body.endswith(f": {text}"))
    return asked


@pytest.mark.slow
async def test_signs_that_fail_wait_longer_each_time(
    person: NewPerson, bot: NewBot, room: NewRoom, proxy: Proxy
) -> None:
    """T-063, X-012: each attempt asks for a sync, which rings for all that waits."""
    ann, times = await person("ann"), list[float]()
    daemon = await bot(ann, via=proxy.url)
    chat = await room(ann, daemon)
    third = asyncio.Event()

    def fail(request: Request) -> Action:
        if not sign_sent(request):
            return None
        times.append(SYSTEM.monotonic())
        if len(times) == 3:
            third.set()
        return GATEWAY

    proxy.before = fail
    await promise(daemon, ann.user_id, chat, {"tea": once(in_(1))})
    await happens(third)
    assert times[2] - times[0] > 2.5  # one second, and two


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
