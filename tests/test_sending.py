"""What the daemon has to say arrives once, whatever the homeserver and the network do."""

import asyncio
from collections import deque
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from tests.world.bot import Bot, meet, said, write_settings
from tests.world.chats import echoed_each
from tests.world.clock import NOON, WITHIN, HeldClock, promptly
from tests.world.desk import ANN, BOT, POLICY, Desk, at_desk, command
from tests.world.desk import ROOM as HERE
from tests.world.duties import is_send
from tests.world.homeserver import Homeserver
from tests.world.house import ROOM, open_house, open_thread
from tests.world.model import ModelServer, Slow, Text
from tests.world.proxy import Action, Answer, Cut, Hang, Held, Proxy, Request
from tests.world.scene import JS, NIO, NewAnybody, NewName, NewPerson, Scene
from tests.world.sending import Sending, happens
from tests.world.user import MatrixUser, Message
from tests.world.warm import Interpreter
from wintermute.config.schema import Matrix
from wintermute.ids import new_id
from wintermute.mailbox.outbox import LateNote, Outbox, Outgoing
from wintermute.matrix.drafts import Drafts
from wintermute.matrix.outbox import Sender, events_of
from wintermute.matrix.rollback import RollbackDetection
from wintermute.matrix.speaker import LINGER_SECONDS, MatrixSpeaker

SLOW_DOWN = Answer(429, {"errcode": "M_LIMIT_EXCEEDED", "error": "busy", "retry_after_ms": 100})
BROKEN = Answer(500, {"errcode": "M_UNKNOWN", "error": "Internal server error"})
GATEWAY = Answer(502, b"<html><h1>502 Bad Gateway</h1></html>", {"Content-Type": "text/html"})


class Faults:
    """Spoils requests of each room and of /sync, some before and some after they took effect."""

    PLAN: tuple[tuple[Action, Action], ...] = (
        (SLOW_DOWN, None),
        (None, Cut()),
        (None, None),
        (SLOW_DOWN, None),
        (BROKEN, None),
        (None, Cut(5)),
        (None, None),
        (SLOW_DOWN, None),
        (GATEWAY, None),
        (Cut(), None),
        (SLOW_DOWN, None),
        (None, GATEWAY),
    )
    """What happens to the first request, to the second, ...: before, and after, it took effect.

    Pauses double from failure to failure, but are set anew by a request to slow down.
    """

    def __init__(self) -> None:
        self._left: dict[str, deque[tuple[Action, Action]]] = {}

    def before(self, request: Request) -> Action:
        left = self._of(request)
        if not left or left[0][0] is None:
            return None
        return left.popleft()[0]

    def after(self, request: Request, _status: int, _body: bytes) -> Action:
        left = self._of(request)
        return left.popleft()[1] if left else None

    def _of(self, request: Request) -> deque[tuple[Action, Action]]:
        if is_send(request) or request.path.endswith(("/sync", "/join")):
            plan = self.PLAN[:1] if request.path.endswith("/join") else self.PLAN
            return self._left.setdefault(request.path.split("/send/")[0], deque(plan))
        return deque()

    @property
    def all_met(self) -> bool:
        """Whether nothing is left of the plan."""
        return not any(self._left.values())


async def test_each_message_has_one_answer_when_requests_fail_before_or_after_they_took_effect(
    scene: Scene, proxy: Proxy
) -> None:
    """X-012, L-073."""
    faults = Faults()
    ann = await scene.person("ann")
    daemon = await scene.bot(ann, via=proxy.url)
    proxy.before, proxy.after = faults.before, faults.after
    chats = [await scene.room(ann, daemon, encrypted=encrypted) for encrypted in (False, True)]
    for n in range(3):
        for chat in chats:
            await ann.send(chat, f"hello {n}")
    for chat in chats:
        await ann.wait_for_count(chat, daemon.user_id, 3)

    await proxy.down()
    for chat in chats:
        await ann.send(chat, "are you there?")
    await daemon.logged("sync failed")
    await proxy.up()
    async with asyncio.timeout(WITHIN):
        for chat in chats:
            await ann.wait_for_count(chat, daemon.user_id, 4)
    assert faults.all_met
    for chat in chats:
        assert await said(ann, chat, daemon.user_id) == [
            *(f"echo: hello {n}" for n in range(3)),
            "echo: are you there?",
        ]


@pytest.mark.slow
async def test_each_message_has_one_answer_when_the_homeserver_goes_away_under_load(
    blank: Path, python: Interpreter, model: ModelServer, tmp_path: Path
) -> None:
    """X-012: stopped politely and killed, both while three rooms are busy."""
    with Homeserver(tmp_path / "synapse", database=blank) as homeserver:
        login, anns = homeserver.user("bot"), homeserver.user("ann")
        config = write_settings(tmp_path / "bot", homeserver.url, login, model.url, anns.user_id)
        async with (
            MatrixUser(homeserver.url, anns, tmp_path / "ann") as ann,
            Bot(config, python) as daemon,
        ):
            chats = [
                await meet(ann, login.user_id, encrypted=encrypted)
                for encrypted in (False, True, False)
            ]
            for kill in (False, True):
                async with asyncio.TaskGroup() as group:
                    for chat in chats:
                        group.create_task(talk(ann, chat, kill))
                    await ann.wait_for(chats[0], partial(has_text, f"echo: {kill} 0"))
                    await asyncio.to_thread(homeserver.stop, kill=kill)
                    await asyncio.to_thread(homeserver.start)
                async with promptly(20):
                    for chat in chats:
                        await ann.wait_for(chat, partial(has_text, f"echo: {kill} 4"))
            wanted = [f"echo: {kill} {n}" for kill in (False, True) for n in range(5)]
            for chat in chats:
                assert await said(ann, chat, login.user_id) == wanted
            assert await daemon.stop() == 0


def has_text(text: str, message: Message) -> bool:
    return message.body == text


async def talk(person: MatrixUser, room: str, mark: object) -> None:
    for n in range(5):
        await person.send(room, f"{mark} {n}")


@pytest.mark.quick("old")
@pytest.mark.parametrize(
    ("new_device", "anybody"),
    [
        pytest.param(False, NIO, id="old"),
        pytest.param(True, NIO, id="new device"),
        pytest.param(True, JS, id="new device-js", marks=pytest.mark.slow),
    ],
    indirect=["anybody"],
)
async def test_what_may_have_been_sent_is_looked_for_before_it_is_sent_again(
    scene: Scene, new_device: bool, anybody: NewAnybody, proxy: Proxy
) -> None:
    """X-013: the homeserver would have forgotten the transaction id."""
    ann = await anybody("ann")
    daemon = await scene.bot(ann, via=proxy.url)
    chats = [await scene.room(ann, daemon, encrypted=encrypted) for encrypted in (False, True)]
    for chat in chats:
        for text in ("one", "two", "three"):
            await ann.send(chat, text)
        await ann.wait_for_count(chat, daemon.user_id, 3)
    assert await daemon.stop() == 0
    # Of each room's three answers the second seems unsent, and the third never was.
    for chat in chats:
        parts = daemon.rows(
            "SELECT outbox_id FROM outbox_parts JOIN outbox ON outbox.id = outbox_id"
            " WHERE room_id = ? ORDER BY seq",
            chat,
        )
        unsend(daemon, parts[1]["outbox_id"])
    if new_device:
        folder = daemon.data / "matrix"
        (folder / "session.json").unlink()
        for store in folder.glob("@*.db"):  # beside it no login is made anew (F-055)
            store.rename(f"{store}.aside")
    else:
        daemon.change("UPDATE outbox_parts SET first_attempt_at = '2026-01-01T00:00:00+00:00'")
    sent_before = len(proxy.seen("PUT", "/send/m.room."))
    await daemon.start()
    for chat in chats:
        await echoed_each(ann, chat, "four")
    for chat in chats:
        answers = await said(ann, chat, daemon.user_id)
        assert answers == [f"echo: {text}" for text in ("one", "two", "three", "four")]
    assert len(proxy.seen("PUT", "/send/m.room.")) == sent_before + 2
    assert not daemon.rows("SELECT 1 FROM outbox_parts WHERE event_id IS NULL")


def unsend(daemon: Bot, outbox_id: str) -> None:
    """As if the daemon had died before it heard that this was sent."""
    assert daemon.change(
        "UPDATE outbox_parts SET state = 'waiting', event_id = NULL WHERE outbox_id = ?", outbox_id
    )
    assert daemon.change("UPDATE outbox SET state = 'waiting' WHERE id = ?", outbox_id)


PARAGRAPH = "The quick brown fox jumps over the lazy dog, number {}. " * 8
LONG = "\n\n".join(PARAGRAPH.format(*[n] * 8) for n in range(55))
RICH = (
    "# Head\n\n- one\n- **two**\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n```python\nx = 1\n```\n\n"
    "> wise\n\n[site](https://example.org) [bad](javascript:alert) <b>raw</b> ![cat](https://x/y.png)"
    " @room"
)


async def test_an_answer_is_shown_as_people_of_a_current_client_expect(scene: Scene) -> None:
    """X-007, X-008, X-009, X-010; a surrogate from the model is no harm."""
    gate = asyncio.Event()
    scene.model.script(
        Slow(gate, Text("one")), Text(RICH), Text(LONG), Text("half \ud83d a smile\0"), Text("ok")
    )
    ann, daemon, chat = await scene.direct(encrypted=True, matrix={"streaming": False})
    assert ":" not in chat
    await typing_and_receipt(ann, chat, daemon.user_id, gate)

    await ann.send(chat, "show")
    rich = (await ann.wait_for_count(chat, daemon.user_id, 2))[1].content
    html = rich["formatted_body"]
    for tag in ("<h1>", "<li>", "<strong>", "<table>", "<pre>", "<blockquote>", "<a href="):
        assert tag in html
    assert "<b>raw" not in html
    assert "javascript:" not in html.replace("(javascript:alert)", "")
    assert "<img" not in html
    assert "@room" not in rich["body"] + html
    assert rich["body"].startswith("# Head")

    await ann.send(chat, "tell")
    await ann.send(chat, "go on")
    await ann.wait_for(chat, lambda m: m.body.startswith("half"))
    parts = await said(ann, chat, daemon.user_id)
    assert len(parts) >= 5
    assert "\n\n".join(parts[2:-1]).split() == LONG.split()
    assert all(len(part.encode()) <= 10_000 for part in parts)
    await ann.send(chat, "fine?")
    await ann.wait_for(chat, lambda m: m.body == "ok")


async def typing_and_receipt(ann: MatrixUser, chat: str, bot: str, gate: asyncio.Event) -> None:
    sent = await ann.send(chat, "hello")
    await ann.until(lambda: bot in ann.typing(chat), what="typing")
    await ann.until(lambda: ann.receipts(chat).get(bot) == sent, what="the receipt")
    gate.set()
    await ann.wait_for_count(chat, bot, 1)
    async with promptly(2):  # by itself it would end later
        await ann.until(lambda: bot not in ann.typing(chat), what="the end of typing")


async def test_conversations_of_one_room_are_sent_beside_each_other_below_one_typing_sign(
    tmp_path: Path,
) -> None:
    """L-073, X-007: of a thread and of its room."""
    goes_on = asyncio.Event()
    async with Proxy("http://127.0.0.1:9") as proxy, at_desk(tmp_path, proxy, HeldClock()) as desk:
        answer = proxy.before

        def holds(request: Request) -> Action:
            found = answer(request)
            is_first = is_send(request) and request.json["body"] == "first"
            return Held(goes_on, found) if is_first and isinstance(found, Answer) else found

        def bodies() -> list[str]:
            return [request.json["body"] for request in desk.requests if is_send(request)]

        def typing() -> list[bool]:
            return [r.json["typing"] for r in desk.requests if "/typing/" in r.path]

        proxy.before = holds
        copies = RollbackDetection(desk.client, desk.stores.database, desk.clock, new_id)
        drafts = Drafts(desk.clock, shows=True)
        sender = Sender(desk.client, desk.stores, copies, desk.clock, POLICY, drafts)
        settings = Matrix(homeserver="", user_id=BOT, owner=ANN)
        parts = (desk.client, desk.stores, sender, POLICY, settings, desk.clock, drafts)
        speaker = MatrixSpeaker(*parts)
        one, other = await two_conversations(desk)
        async with asyncio.TaskGroup() as group:
            work = [group.create_task(part.run()) for part in (sender, speaker)]
            await desk.until(lambda: sorted(bodies()) == ["first", "other"])
            speaker.attend(row := replace(command(desk), conversation_id=one))
            speaker.attend(beside := replace(command(desk), conversation_id=other))
            await desk.until(lambda: typing() == [True, True])
            speaker.rest(row)
            goes_on.set()
            await desk.until(lambda: bodies()[2:] == ["second"])
            await asyncio.sleep(2 * LINGER_SECONDS)
            assert typing() == [True, True]
            speaker.rest(beside)
            await desk.until(lambda: typing() == [True, True, False])
            for task in work:
                task.cancel()


async def two_conversations(desk: Desk) -> tuple[str, str]:
    """A room with something to say in two of its conversations: two texts in the first."""
    stores = desk.stores
    async with stores.database.transaction() as tx:
        one = await stores.conversations.in_room(tx, HERE, f"person:{ANN}")
    other = await open_thread(stores, HERE)
    async with stores.database.transaction() as tx:
        for conversation, text in ((one, "first"), (one, "second"), (other, "other")):
            await stores.outbox.enqueue(tx, conversation, text, meant_for="")
    return one, other


async def test_what_the_room_forbids_is_kept_and_named_in_status(scene: Scene) -> None:
    """X-012, X-030: what is refused is not tried for ever, other rooms go on, and it is said once
    the room allows it again."""
    ann, daemon, other = await scene.direct()
    # (In a trusted chat of room version 12 everybody invited may do everything.)
    chat = await ann.create_room([daemon.user_id], preset="private_chat")
    await ann.wait_joined(chat, daemon.user_id)
    path = f"/_matrix/client/v3/rooms/{chat}/state/m.room.power_levels"
    _, levels = await ann.api("GET", path)
    status, _ = await ann.api("PUT", path, levels | {"events_default": 75, "users": {}})
    assert status == 200
    await ann.send(chat, "say something")
    await daemon.logged("send refused")
    await ann.send(other, "/status")
    told = await ann.wait_for(other, lambda m: "outbox" in m.body)
    assert chat in told.body
    assert "M_FORBIDDEN" in told.body
    await ann.api("PUT", path, levels)
    await ann.wait_for(chat, lambda m: m.body == "echo: say something")


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
            talk = await house.conversations.in_room(tx, ROOM, f"person:{ANN}")
            late = LateNote(NOON, " (was due 08:00)")
            outbox_id = await house.outbox.enqueue(
                tx, talk, "tea", kind="event", late=late, meant_for=""
            )
        await house.outbox.mark_refused(outbox_id, "M_FORBIDDEN")
        async with house.database.transaction() as tx:
            await house.outbox.relabel(
                tx, outbox_id, LateNote(NOON, " (was due 08:00, 2 missed)"), ""
            )
            await house.outbox.release(tx, ROOM)
        house.clock.advance(1)  # type: ignore[attr-defined]  # a clock of tests
        assert await house.deliver() == ["tea (was due 08:00, 2 missed)"]


async def test_what_was_seen_in_its_room_is_still_to_be_sent(tmp_path: Path) -> None:
    """X-011: it can be answered; it is said when its sender is told, or has looked for it."""
    async with open_house(tmp_path, None) as house:
        async with house.database.transaction() as tx:
            talk = await house.conversations.in_room(tx, ROOM, f"person:{ANN}")
            outbox_id = await house.outbox.enqueue(tx, talk, "tea", kind="event", meant_for="")
        [part] = await house.outbox.store_parts(outbox_id, [("wm-1", {})], "DEVICE")
        async with house.database.transaction() as tx:
            await house.outbox.note_event(tx, "wm-1", "$one")
            await house.outbox.note_event(tx, "wm-2", "$two")
            assert (await house.outbox.sent_event(tx, ROOM, "$one")) is not None
        assert await house.rows("SELECT 1 FROM outbox WHERE state = 'sent'") == []
        assert await house.next_outgoing() is not None
        await house.outbox.mark_sent(part, "$one")
        async with house.database.transaction() as tx:
            await house.outbox.note_event(tx, "wm-1", "$forged")
        [sent] = await house.rows("SELECT event_id FROM outbox_parts WHERE state = 'sent'")
        assert sent == {"event_id": "$one"}


def test_a_reminder_shows_as_it_was_written() -> None:
    """T-046: no mark of Markdown is lost in it."""
    late = LateNote(NOON, " (was due 09:00)")
    row = Outgoing(1, "out_1", ROOM, "event", "⏰ Cut 2*3*4 <b>boards</b>", late)
    [(_, content)] = events_of(row)
    assert content["body"] == row.body
    assert "formatted_body" not in content
