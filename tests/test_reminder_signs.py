"""A reminder on its way: it says when it is late, carries signs to act on, and hears those of people."""

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tests.test_reactions import REMINDER
from tests.world.bot import Bot, meet, write_settings
from tests.world.clock import FakeClock
from tests.world.homeserver import Homeserver, Login
from tests.world.model import ModelServer
from tests.world.proxy import Action, Answer, Hang, Proxy, Request
from tests.world.user import MatrixUser, Message
from wintermute.db import Database, open_database
from wintermute.ids import new_id
from wintermute.loom.conversations import Conversations
from wintermute.mailbox.outbox import Late, Outbox
from wintermute.mailbox.rooms import KnownRooms
from wintermute.matrix.client import MatrixClient, open_client
from wintermute.matrix.inbox import OUTBOX_KEY, Policy
from wintermute.matrix.outbox import Sender
from wintermute.matrix.session import Session

Json = dict[str, Any]
Person = Callable[[str], MatrixUser]
NewName = Callable[[str], str]
T = TypeVar("T")
DONE, SNOOZE, TOMORROW, CANCEL = SIGNS = (
    "\N{WHITE HEAVY CHECK MARK}",
    "\N{SLEEPING SYMBOL}",
    "\N{ALARM CLOCK}",
    "\N{CROSS MARK}",
)
NOBODY = Policy("", frozenset(), frozenset(), mention_in_groups=True, commands=frozenset())
MARK = " (was due 2026-05-04 14:00)"
LONG = "\n\n".join(f"Paragraph {n}. " + "Words go on and on. " * 29 + "So." for n in range(30))
GATEWAY = Answer(502, b"Bad Gateway")
FORBIDDEN = Answer(403, {"errcode": "M_FORBIDDEN", "error": "not here"})
encrypted_or_not = pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "encrypted"])


class AtOnce(ThreadPoolExecutor):
    """Runs on the thread that asks: nio binds its models to one database for the whole process, so
    ours must not open its own on another thread while a person's is at work.
    """

    def submit(self, call: Callable[..., T], /, *args: Any, **named: Any) -> Future[T]:
        ended: Future[T] = Future()
        ended.set_result(call(*args, **named))
        return ended


@dataclass
class Post:
    """The half of the daemon that sends, on a database and a key store that outlive it."""

    database: Database
    clock: FakeClock
    client: MatrixClient
    outbox: Outbox
    conversations: Conversations
    sender: Sender

    async def say(self, room: str, body: str, late: Late | None = None) -> None:
        """Something for a room."""
        async with self.database.transaction() as tx:
            conversation = await self.conversations.in_room(tx, room, "room")
            await self.outbox.say(tx, conversation, room, body, kind="event", late=late)
        self.sender.wake()

    async def react(self, room: str, event_id: str, *and_say: str) -> None:
        """The signs on an event, and something else to say in the same transaction."""
        async with self.database.transaction() as tx:
            conversation = await self.conversations.in_room(tx, room, "room")
            await self.outbox.react(tx, conversation, room, event_id, SIGNS)
            for body in and_say:
                await self.outbox.say(tx, conversation, room, body, kind="event")
        self.sender.wake()

    async def rows(self, sql: str) -> list[tuple[object, ...]]:
        return [tuple(row) for row in await self.database.rows(sql)]  # type: ignore[arg-type]  # a row is a sequence too


@asynccontextmanager
async def sending(
    url: str, login: Login, folder: Path, clock: FakeClock, room: str, *, encrypted: bool
) -> AsyncIterator[Post]:
    """Send in a room; what is on its way when the block ends is not waited for."""
    session = Session(login.user_id, login.device_id, login.access_token, "secret")
    asyncio.get_running_loop().set_default_executor(AtOnce())
    async with (
        open_database(folder / "test.db") as database,
        open_client(url, session, folder, new_id, clock, encryption=True) as client,
        asyncio.TaskGroup() as group,
    ):
        known = KnownRooms(database, clock)
        outbox = Outbox(database, clock, new_id)
        conversations = Conversations(database, clock, new_id)
        async with database.transaction() as tx:
            await known.seen(tx, room, encrypted)
        await client.join(room)
        await client.sync(None, full_state=True, wait_s=0)
        await client.upkeep()
        sender = Sender(client, outbox, known, clock, NOBODY)
        running = group.create_task(sender.run())
        yield Post(database, clock, client, outbox, conversations, sender)
        running.cancel()


def shown(event: Message) -> str:
    """What a client shows of an event: a message's text, a reaction's sign."""
    relation = event.content.get("m.relates_to", {})
    return str(relation.get("key")) if event.type == "m.reaction" else event.body


def said(ann: MatrixUser, room: str, sender: str) -> list[Message]:
    """What Ann has seen of somebody, in order."""
    kinds = ("m.room.message", "m.reaction", "m.room.encrypted")
    return [e for e in ann.events(room) if e.sender == sender and e.type in kinds]


async def wait_for(ann: MatrixUser, room: str, sender: str, count: int) -> list[str]:
    """So many events of a sender, as Ann is shown them."""

    def there() -> bool:
        found = said(ann, room, sender)
        return len(found) >= count and all(e.type != "m.room.encrypted" for e in found)

    await ann.until(there, what=f"{count} events")
    return [shown(event) for event in said(ann, room, sender)]


def is_send(request: Request) -> bool:
    return request.method == "PUT" and "/send/m.room." in request.path


def sign_sent(request: Request, n: int | None = None) -> bool:
    """Whether a request puts our n-th sign, or any, on something."""
    relates = b"m.annotation" in request.body and request.method == "PUT"
    return relates and (n is None or request.path.endswith(f"-{n}"))


@pytest.fixture
async def proxy(homeserver: Homeserver) -> AsyncIterator[Proxy]:
    async with Proxy(homeserver.url) as opened:
        yield opened


@encrypted_or_not
async def test_signs_come_after_everything_else_that_waits(
    encrypted: bool,
    homeserver: Homeserver,
    proxy: Proxy,
    person: Person,
    fresh: NewName,
    tmp_path: Path,
) -> None:
    """T-063, X-015: also when one of them has to wait; encrypted where the room is."""
    login = homeserver.user(fresh("bot"))
    async with person("ann") as ann:
        room = await ann.create_room([login.user_id], encrypted=encrypted)
        seen = asyncio.Event()

        def hold_the_second(request: Request) -> Action:
            messages = [r for r in proxy.requests if is_send(r) and not sign_sent(r)]
            if not sign_sent(request, 1) or len(messages) == 3:
                return None
            seen.set()
            return GATEWAY

        proxy.before = hold_the_second
        async with sending(
            proxy.url, login, tmp_path, FakeClock(), room, encrypted=encrypted
        ) as post:
            await post.say(room, "drink water")
            [reminder] = await ann.wait_for_count(room, login.user_id, 1)
            await post.react(room, reminder.event_id, "it waits")
            async with asyncio.timeout(10):
                await seen.wait()
            await post.say(room, "it came later")
            first, later = ["drink water", "it waits", DONE], ["it came later", SNOOZE]
            everything = [*first, *later, TOMORROW, CANCEL]
            assert await wait_for(ann, room, login.user_id, 7) == everything
            await post.sender.drain(5)
            assert await post.rows("SELECT DISTINCT state FROM outbox") == [("sent",)]
            events = said(ann, room, login.user_id)
            assert {event.encrypted for event in events} == {encrypted}
        [request] = [r for r in proxy.requests if sign_sent(r, 0)]
        kind = "m.room.encrypted" if encrypted else "m.reaction"
        assert f"/send/{kind}/" in request.path
        relation = {"rel_type": "m.annotation", "event_id": reminder.event_id, "key": DONE}
        assert request.json["m.relates_to"] == relation
        assert (OUTBOX_KEY in request.json) is not encrypted


@encrypted_or_not
@pytest.mark.parametrize("again", ["soon", "a day later", "from a new device"])
async def test_a_sign_is_put_once_however_often_it_is_sent(
    again: str,
    encrypted: bool,
    homeserver: Homeserver,
    proxy: Proxy,
    person: Person,
    fresh: NewName,
    tmp_path: Path,
) -> None:
    """T-037, X-013: killed before it heard that the second sign was taken."""
    login, clock, folder = homeserver.user(fresh("bot")), FakeClock(), tmp_path
    async with person("ann") as ann:
        room = await ann.create_room([login.user_id], encrypted=encrypted)
        lost = asyncio.Event()

        def lose_the_second(request: Request, _status: int, _body: bytes) -> Action:
            if not sign_sent(request, 1):
                return None
            lost.set()
            return Hang()

        proxy.after = lose_the_second
        async with sending(proxy.url, login, folder, clock, room, encrypted=encrypted) as post:
            await post.say(room, "drink water")
            [reminder] = await ann.wait_for_count(room, login.user_id, 1)
            await post.react(room, reminder.event_id)
            async with asyncio.timeout(10):
                await lost.wait()
            await post.say(room, "and tea")
        proxy.after = lambda _request, _status, _body: None
        if again == "a day later":
            clock.advance(25 * 3600)
        if again == "from a new device":
            login = homeserver.login(login.user_id.split(":")[0][1:])
        async with sending(proxy.url, login, folder, clock, room, encrypted=encrypted) as post:
            everything = ["drink water", DONE, SNOOZE, "and tea", TOMORROW, CANCEL]
            assert await wait_for(ann, room, login.user_id, 6) == everything
            await post.sender.drain(5)
            parts = "SELECT DISTINCT state, event_id IS NULL FROM outbox_parts"
            assert await post.rows(parts) == [("sent", 0)]
        second = [r for r in proxy.seen("PUT", "/send/") if sign_sent(r, 1)]
        assert len(second) == (2 if again == "soon" else 1)


async def test_a_message_is_not_taken_for_the_sign_that_went_before_it(
    homeserver: Homeserver, proxy: Proxy, person: Person, fresh: NewName, tmp_path: Path
) -> None:
    """X-013: killed with a sign put and a message not sent, neither of them heard of; keys lost."""
    login, clock, hung = homeserver.user(fresh("bot")), FakeClock(), asyncio.Event()

    def hang(_request: Request) -> Action:
        hung.set()
        return Hang()

    async with person("ann") as ann:
        room = await ann.create_room([login.user_id], encrypted=True)
        proxy.after = lambda request, _s, _b: hang(request) if sign_sent(request) else None
        async with sending(proxy.url, login, tmp_path, clock, room, encrypted=True) as post:
            await post.say(room, "drink water")
            [reminder] = await ann.wait_for_count(room, login.user_id, 1)
            await post.react(room, reminder.event_id)
            async with asyncio.timeout(10):
                await hung.wait()
            await post.say(room, "and tea")
        hung.clear()
        proxy.before = lambda request: hang(request) if is_send(request) else None
        async with sending(proxy.url, login, tmp_path, clock, room, encrypted=True):
            async with asyncio.timeout(10):
                await hung.wait()
        proxy.before = lambda _request: None
        proxy.after = lambda _request, _status, _body: None
        login = homeserver.login(login.user_id.split(":")[0][1:])
        async with sending(proxy.url, login, tmp_path, clock, room, encrypted=True):
            everything = ["drink water", DONE, "and tea", SNOOZE, TOMORROW, CANCEL]
            assert await wait_for(ann, room, login.user_id, 6) == everything


@pytest.mark.parametrize("refusal", ["forbidden", "there already"])
async def test_a_refused_sign_is_let_go(
    refusal: str,
    homeserver: Homeserver,
    proxy: Proxy,
    person: Person,
    fresh: NewName,
    tmp_path: Path,
) -> None:
    """T-063: nobody is told, nothing is stuck, and what is to be said goes on."""
    login = homeserver.user(fresh("bot"))
    async with person("ann") as ann:
        room = await ann.create_room([login.user_id], encrypted=True)
        forbidden, last = refusal == "forbidden", asyncio.Event()

        def refuse(request: Request) -> Action:
            if sign_sent(request, 3):
                last.set()
            return FORBIDDEN if forbidden and sign_sent(request) else None

        proxy.before = refuse
        async with sending(proxy.url, login, tmp_path, FakeClock(), room, encrypted=True) as post:
            await post.say(room, "drink water")
            [reminder] = await ann.wait_for_count(room, login.user_id, 1)
            for _ in range(1 if forbidden else 2):
                last.clear()
                await post.react(room, reminder.event_id)
                async with asyncio.timeout(10):
                    await last.wait()
            await post.say(room, "and tea")
            signs = [] if forbidden else SIGNS
            everything = ["drink water", *signs, "and tea"]
            assert await wait_for(ann, room, login.user_id, len(everything)) == everything
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
    away: Away,
    marked: bool,
    homeserver: Homeserver,
    proxy: Proxy,
    person: Person,
    fresh: NewName,
    tmp_path: Path,
) -> None:
    """T-038: at its very end, once; not when an earlier attempt was taken."""
    login, clock, secret = homeserver.user(fresh("bot")), FakeClock(), away.encrypted
    back = clock.now() + timedelta(minutes=away.minutes)

    def is_away(request: Request) -> Action:
        return GATEWAY if is_send(request) and clock.now() < back else None

    if away.takes_it:
        proxy.after = lambda request, _status, _body: is_away(request)
    else:
        proxy.before = is_away
    async with person("ann") as ann:
        room = await ann.create_room([login.user_id], encrypted=secret)
        async with sending(proxy.url, login, tmp_path, clock, room, encrypted=secret) as post:
            body = LONG if away.long else "drink water"
            await post.say(room, body, Late(clock.now() + timedelta(minutes=5), MARK))
            await post.say(room, "the end")
            await ann.wait_for(room, lambda m: m.body == "the end")
            *parts, _ = [shown(event) for event in said(ann, room, login.user_id)]
            assert len(parts) == (2 if away.long else 1)
            assert "\n\n".join(parts) == body + (MARK if marked else "")


async def test_a_reminder_says_that_it_is_late_after_a_restart(
    homeserver: Homeserver, proxy: Proxy, person: Person, fresh: NewName, tmp_path: Path
) -> None:
    """T-038: under the transaction id of the first attempt."""
    login, clock, asked = homeserver.user(fresh("bot")), FakeClock(), asyncio.Event()

    def hang(request: Request) -> Action:
        if not is_send(request):
            return None
        asked.set()
        return Hang()

    proxy.before = hang
    async with person("ann") as ann:
        room = await ann.create_room([login.user_id])
        async with sending(proxy.url, login, tmp_path, clock, room, encrypted=False) as post:
            late = Late(clock.now() + timedelta(minutes=5), MARK)
            await post.say(room, "drink water", late)
            async with asyncio.timeout(10):
                await asked.wait()
        clock.advance(6 * 60)
        proxy.before = lambda _request: None
        async with sending(proxy.url, login, tmp_path, clock, room, encrypted=False):
            [told] = await ann.wait_for_count(room, login.user_id, 1)
            assert told.body == "drink water" + MARK
    first, second = [request for request in proxy.requests if is_send(request)]
    assert first.path == second.path
    assert (first.json["body"], second.json["body"]) == ("drink water", told.body)


@encrypted_or_not
async def test_the_sign_of_a_person_is_a_command_once(
    encrypted: bool,
    homeserver: Homeserver,
    person: Person,
    fresh: NewName,
    model: ModelServer,
    tmp_path: Path,
) -> None:
    """T-063, X-026: each once, also after a restart or arriving twice; not of strangers, and
    taking one back does nothing."""
    login = homeserver.user(fresh("bot"))
    async with person("ann") as ann, person("eve") as eve:
        config = write_settings(tmp_path / "bot", homeserver.url, login, model.url, ann.user_id)
        async with Bot(config) as bot:
            room = await meet(ann, login.user_id, eve, encrypted=encrypted)
            asked = await ask(ann, room, login.user_id, "drink water")
            [reminder] = [m.event_id for m in ann.messages(room, login.user_id)]
            assert await bot.stop() == 0
            assert [bot.change(sql) for sql in REMINDER] == [1, 1]
            [token] = [row["token"] for row in bot.rows("SELECT token FROM sync_token")]
            await bot.start()
            await eve.react(room, reminder, CANCEL)
            await ann.react(room, asked, CANCEL)
            snooze = await ann.react(room, reminder, SNOOZE)
            done = await ann.react(room, reminder, DONE + "\ufe0f")
            await ask(ann, room, login.user_id, "one")
            await ann.redact(room, done)
            await ann.react(room, reminder, DONE)
            await ask(ann, room, login.user_id, "two")
            assert await bot.stop() == 0
            assert bot.change("UPDATE sync_token SET token = ?", token)  # all comes once more
            tomorrow = await ann.react(room, reminder, TOMORROW)
            await bot.start()
            await ask(ann, room, login.user_id, "three")
            heard = bot.rows(
                "SELECT event_id, body, sender FROM inbox WHERE kind = 'command' ORDER BY seq"
            )
            assert heard == [
                {"event_id": event_id, "body": f"/tasks {sign} task_1", "sender": ann.user_id}
                for event_id, sign in ((snooze, "snooze"), (done, "done"), (tomorrow, "tomorrow"))
            ]


async def ask(ann: MatrixUser, room: str, bot: str, text: str) -> str:
    """Say something in a group, and wait for the answer; the id of what was said."""
    asked = await ann.send(room, f"{bot}: {text}")
    await ann.wait_for(room, lambda m: m.sender == bot and m.body.endswith(f": {text}"))
    return asked
