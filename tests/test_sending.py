"""What the daemon has to say arrives once, whatever the homeserver and the network do."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path

import pytest

from tests.world.bot import Bot, meet, said, write_settings
from tests.world.homeserver import Homeserver
from tests.world.model import ModelServer, Slow, Text
from tests.world.proxy import Action, Answer, Cut, Proxy, Request
from tests.world.user import MatrixUser, Message

Person = Callable[[str], MatrixUser]
NewName = Callable[[str], str]
SLOW_DOWN = Answer(429, {"errcode": "M_LIMIT_EXCEEDED", "error": "busy", "retry_after_ms": 300})
BROKEN = Answer(500, {"errcode": "M_UNKNOWN", "error": "Internal server error"})
GATEWAY = Answer(502, b"<html><h1>502 Bad Gateway</h1></html>", {"Content-Type": "text/html"})


@pytest.fixture
async def proxy(homeserver: Homeserver) -> AsyncIterator[Proxy]:
    async with Proxy(homeserver.url) as opened:
        yield opened


def is_send(request: Request) -> bool:
    return request.method == "PUT" and "/send/m.room." in request.path


class Faults:
    """Spoils requests of each room and of /sync, some before and some after they took effect."""

    PLAN: tuple[tuple[Action, Action], ...] = (
        (SLOW_DOWN, None),
        (None, Cut()),
        (None, None),
        (BROKEN, None),
        (None, Cut(5)),
        (None, None),
        (GATEWAY, None),
        (Cut(), None),
        (None, GATEWAY),
    )
    """What happens to the first request, to the second, ...: before, and after, it took effect."""

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
    homeserver: Homeserver,
    proxy: Proxy,
    person: Person,
    fresh: NewName,
    model: ModelServer,
    tmp_path: Path,
) -> None:
    """X-012, L-073."""
    login, faults = homeserver.user(fresh("bot")), Faults()
    async with person("ann") as ann:
        config = write_settings(tmp_path / "bot", proxy.url, login, model.url, ann.user_id)
        async with Bot(config) as bot:
            proxy.before, proxy.after = faults.before, faults.after
            rooms = [
                await meet(ann, login.user_id, encrypted=encrypted) for encrypted in (False, True)
            ]
            for n in range(3):
                for room in rooms:
                    await ann.send(room, f"hello {n}")
            for room in rooms:
                await ann.wait_for_count(room, login.user_id, 3, within=60)

            await proxy.down()
            for room in rooms:
                await ann.send(room, "are you there?")
            await bot.logged("sync failed")
            await proxy.up()
            async with asyncio.timeout(10):
                for room in rooms:
                    await ann.wait_for_count(room, login.user_id, 4)
            assert faults.all_met
            for room in rooms:
                assert await said(ann, room, login.user_id) == [
                    *(f"echo: hello {n}" for n in range(3)),
                    "echo: are you there?",
                ]


async def test_each_message_has_one_answer_when_the_homeserver_goes_away_under_load(
    model: ModelServer, tmp_path: Path
) -> None:
    """X-012: stopped politely and killed, both while three rooms are busy."""
    with Homeserver(tmp_path / "synapse") as homeserver:
        login, anns = homeserver.user("bot"), homeserver.user("ann")
        async with MatrixUser(homeserver.url, anns, tmp_path / "ann") as ann:
            config = write_settings(tmp_path / "bot", homeserver.url, login, model.url, ann.user_id)
            async with Bot(config) as bot:
                rooms = [
                    await meet(ann, login.user_id, encrypted=encrypted)
                    for encrypted in (False, True, False)
                ]
                for kill in (False, True):
                    async with asyncio.TaskGroup() as group:
                        for room in rooms:
                            group.create_task(talk(ann, room, kill))
                        await ann.wait_for(rooms[0], lambda m: m.sender == login.user_id)
                        await asyncio.to_thread(homeserver.stop, kill=kill)
                        await asyncio.to_thread(homeserver.start)
                        back = asyncio.get_running_loop().time()
                    for room in rooms:
                        await ann.wait_for(room, partial(says, f"echo: {kill} 4"))
                    assert asyncio.get_running_loop().time() - back < 20
                wanted = [f"echo: {kill} {n}" for kill in (False, True) for n in range(5)]
                for room in rooms:
                    assert await said(ann, room, login.user_id) == wanted
                assert await bot.stop() == 0


def says(text: str, message: Message) -> bool:
    return message.body == text


async def talk(person: MatrixUser, room: str, mark: object) -> None:
    for n in range(5):
        await person.send(room, f"{mark} {n}")


@pytest.mark.parametrize("new_device", [False, True], ids=["old", "new device"])
async def test_what_may_have_been_sent_is_looked_for_before_it_is_sent_again(
    new_device: bool,
    homeserver: Homeserver,
    proxy: Proxy,
    person: Person,
    fresh: NewName,
    model: ModelServer,
    tmp_path: Path,
) -> None:
    """X-013: the homeserver would have forgotten the transaction id."""
    login = homeserver.user(fresh("bot"))
    async with person("ann") as ann:
        config = write_settings(tmp_path / "bot", proxy.url, login, model.url, ann.user_id)
        async with Bot(config) as bot:
            rooms = [await meet(ann, login.user_id, encrypted=e) for e in (False, True)]
            for room in rooms:
                for text in ("one", "two", "three"):
                    await ann.send(room, text)
                await ann.wait_for_count(room, login.user_id, 3)
            assert await bot.stop() == 0
            # Of each room's three answers the second seems unsent, and the third never was.
            for room in rooms:
                parts = bot.rows(
                    "SELECT outbox_id FROM outbox_parts JOIN outbox ON outbox.id = outbox_id"
                    " WHERE room_id = ? ORDER BY seq",
                    room,
                )
                unsend(bot, parts[1]["outbox_id"])
            if new_device:
                (config.parent / "data" / "matrix" / "session.json").unlink()
            else:
                bot.change("UPDATE outbox_parts SET first_attempt_at = '2026-01-01T00:00:00+00:00'")
            sent_before = len(proxy.seen("PUT", "/send/m.room."))
            await bot.start()
            for room in rooms:
                await ann.send(room, "four")
                await ann.wait_for(room, lambda m: m.body == "echo: four")
            for room in rooms:
                answers = await said(ann, room, login.user_id)
                assert answers == [f"echo: {text}" for text in ("one", "two", "three", "four")]
            assert len(proxy.seen("PUT", "/send/m.room.")) == sent_before + 2
            assert not bot.rows("SELECT 1 FROM outbox_parts WHERE event_id IS NULL")


def unsend(bot: Bot, outbox_id: str) -> None:
    """As if the daemon had died before it heard that this was sent."""
    assert bot.change(
        "UPDATE outbox_parts SET state = 'waiting', event_id = NULL WHERE outbox_id = ?", outbox_id
    )
    assert bot.change("UPDATE outbox SET state = 'waiting' WHERE id = ?", outbox_id)


PARAGRAPH = "The quick brown fox jumps over the lazy dog, number {}. " * 8
LONG = "\n\n".join(PARAGRAPH.format(*[n] * 8) for n in range(55))
RICH = (
    "# Head\n\n- one\n- **two**\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n```python\nx = 1\n```\n\n"
    "> wise\n\n[site](https://example.org) [bad](javascript:alert) <b>raw</b> ![cat](https://x/y.png)"
    " @room"
)


async def test_an_answer_is_shown_as_people_of_a_current_client_expect(
    homeserver: Homeserver, person: Person, fresh: NewName, model: ModelServer, tmp_path: Path
) -> None:
    """X-007, X-008, X-009, X-010; a surrogate from the model is no harm."""
    login = homeserver.user(fresh("bot"))
    gate = asyncio.Event()
    model.script(
        Slow(gate, Text("one")), Text(RICH), Text(LONG), Text("half \ud83d a smile\0"), Text("ok")
    )
    async with person("ann") as ann:
        config = write_settings(tmp_path / "bot", homeserver.url, login, model.url, ann.user_id)
        async with Bot(config):
            room = await meet(ann, login.user_id, encrypted=True)
            assert ":" not in room
            await typing_and_receipt(ann, room, login.user_id, gate)

            await ann.send(room, "show")
            rich = (await ann.wait_for_count(room, login.user_id, 2))[1].content
            html = rich["formatted_body"]
            for tag in ("<h1>", "<li>", "<strong>", "<table>", "<pre>", "<blockquote>", "<a href="):
                assert tag in html
            assert "<b>raw" not in html
            assert "javascript:" not in html.replace("(javascript:alert)", "")
            assert "<img" not in html
            assert "@room" not in rich["body"] + html
            assert rich["body"].startswith("# Head")

            await ann.send(room, "tell")
            await ann.send(room, "go on")
            await ann.wait_for(room, lambda m: m.body.startswith("half"))
            parts = await said(ann, room, login.user_id)
            assert len(parts) >= 5
            assert "\n\n".join(parts[2:-1]).split() == LONG.split()
            assert all(len(part.encode()) <= 10_000 for part in parts)
            await ann.send(room, "fine?")
            await ann.wait_for(room, lambda m: m.body == "ok")


async def typing_and_receipt(ann: MatrixUser, room: str, bot: str, gate: asyncio.Event) -> None:
    sent = await ann.send(room, "hello")
    await ann.until(lambda: bot in ann.typing(room), what="typing")
    await ann.until(lambda: ann.receipts(room).get(bot) == sent, what="the receipt")
    gate.set()
    await ann.wait_for_count(room, bot, 1)
    await ann.until(lambda: bot not in ann.typing(room), within=2, what="the end of typing")


async def test_what_the_room_forbids_is_kept_and_named_in_status(
    homeserver: Homeserver, person: Person, fresh: NewName, model: ModelServer, tmp_path: Path
) -> None:
    """X-012, X-030: what is refused is not tried for ever, other rooms go on, and it is said once
    the room allows it again."""
    login = homeserver.user(fresh("bot"))
    async with person("ann") as ann:
        config = write_settings(tmp_path / "bot", homeserver.url, login, model.url, ann.user_id)
        async with Bot(config) as bot:
            other = await meet(ann, login.user_id)
            # (In a trusted chat of room version 12 everybody invited may do everything.)
            room = await ann.create_room([login.user_id], preset="private_chat")
            await ann.wait_joined(room, login.user_id)
            path = f"/_matrix/client/v3/rooms/{room}/state/m.room.power_levels"
            _, levels = await ann.api("GET", path)
            status, _ = await ann.api("PUT", path, levels | {"events_default": 75, "users": {}})
            assert status == 200
            await ann.send(room, "say something")
            await bot.logged("send refused")
            await ann.send(other, "/status")
            told = await ann.wait_for(other, lambda m: "outbox" in m.body)
            assert room in told.body
            assert "M_FORBIDDEN" in told.body
            await ann.api("PUT", path, levels)
            await ann.wait_for(room, lambda m: m.body == "echo: say something")
