"""The daemon is killed at every point of DESIGN §3; each message still has exactly one answer."""

import os
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.tiers import tiered
from tests.world.bot import Bot
from tests.world.homeserver import Homeserver
from tests.world.killing import AFTER, BEFORE, SENT_MARK, take_a_breath
from tests.world.model import Calls, ModelServer, Seen, Step, Text, Use
from tests.world.person import Person
from tests.world.proxy import Action, Proxy, Request, pass_after, pass_before
from tests.world.scene import JS, NIO, NewScene

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.always]


Steps = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Point:
    """Where to die, and what must be in the database then.

    `steps` are statements of our database, or of nio's key store for `logger="peewee"`; `request`
    is (whose proxy, before or after the other side acted, method, part of the path).
    """

    name: str
    steps: Steps = ()
    logger: str = "aiosqlite"
    request: tuple[str, str, str, str] | None = None
    inbox: str | None = "waiting"
    turns: int = 0
    observation: str | None = None
    outbox: str | None = None
    part: str | None = None
    invitation: str | None = None
    in_new_room: bool = False


def before(statement: str) -> Steps:
    """The commit of a statement is not made."""
    return (BEFORE, statement), (BEFORE, "COMMIT")


def after(statement: str) -> Steps:
    """The commit of a statement is made."""
    return (BEFORE, statement), (AFTER, "COMMIT")


def in_new_room(name: str, invitation: str | None, steps: Steps = (), join: str = "") -> Point:
    """A point on the way into a room, perhaps around the request to join."""
    request = ("matrix", join, "POST", "/join") if join else None
    point = Point(name, steps, request=request, inbox=None, invitation=invitation)
    return replace(point, in_new_room=True)


def casting(
    name: str, steps: Steps, turns: int = 0, observation: str | None = None, model: str = ""
) -> Point:
    """A point while the answer is being made, perhaps around the request to the model."""
    request = ("model", model, "POST", "/chat/completions") if model else None
    held: dict[str, Any] = {"inbox": "casting", "observation": observation}
    return Point(name, steps, request=request, turns=turns, **held)


def answered(
    name: str,
    steps: Steps = (),
    send: str = "",
    outbox: str = "waiting",
    part: str | None = "waiting",
) -> Point:
    """A point after the answer was promised, perhaps around the request that sends it."""
    request = ("matrix", send, "PUT", "/send/m.room") if send else None
    held: dict[str, Any] = {
        "inbox": "answered",
        "observation": "completed",
        "outbox": outbox,
        "part": part,
    }
    return Point(name, steps, request=request, turns=2, **held)


SYNC = ("matrix", "after", "GET", "/sync")
INBOX, INVITED, JOINED = "INSERT INTO inbox", "INSERT INTO invitations", "UPDATE invitations"
CAST, TURN, OUTBOX = "INSERT INTO casts", "INSERT INTO turns", "INSERT INTO outbox ("
STARTED, COMPLETED = "INSERT INTO observations", "UPDATE observations"
POINTS = (
    Point("before sync response", request=SYNC, inbox=None),
    Point("after sync response", ((BEFORE, INBOX),), inbox=None),
    Point("before inbox commit", before(INBOX), inbox=None),
    Point("after inbox commit", after(INBOX)),
    in_new_room("before invitation commit", None, before(INVITED)),
    in_new_room("after invitation commit", "pending", after(INVITED)),
    in_new_room("before join", "pending", join="before"),
    in_new_room("after join", "pending", join="after"),
    in_new_room("after join mark", "joined", after(JOINED)),
    Point("before cast commit", before(CAST)),
    casting("after cast commit", after(CAST)),
    casting("before model request", (), model="before"),
    casting("before model response", (), model="after"),
    casting("after model response", ((BEFORE, TURN),)),
    casting("after turn commit", after(TURN), 1),
    casting("before gate start", ((BEFORE, STARTED),), 1),
    casting("after gate start", after(STARTED), 1, "started"),
    casting("after gate effect", ((BEFORE, COMPLETED),), 1, "started"),
    casting("before gate completion", before(COMPLETED), 1, "started"),
    casting("after gate completion", after(COMPLETED), 1, "completed"),
    casting("before outbox commit", before(OUTBOX), 2, "completed"),
    answered("after outbox commit", after(OUTBOX), part=None),
    answered("after parts commit", after("INSERT INTO outbox_parts")),
    answered("before send request", send="before"),
    answered("before send response", send="after"),
    answered("after send response", ((BEFORE, SENT_MARK),)),
    answered("before sent mark", before(SENT_MARK)),
    answered("after sent mark", after(SENT_MARK), outbox="sent", part="sent"),
)
MATTER_MOST = ("before-inbox-commit", "before-outbox-commit", "before-send-response")
"""Between the token and the message, between the answer and its mark, and sent without knowing it."""
KEY_POINT = Point(
    "between nio's commits of a room key",
    logger="peewee",
    steps=((BEFORE, 'INTO "olmsessions"'), (BEFORE, 'INTO "megolminboundsessions"')),
    inbox=None,
)


class World:
    """One person, her rooms, and the daemon between two proxies; killed and started again and again."""

    def __init__(self, ann: Person, bot: Bot, proxies: dict[str, Proxy], encrypted: bool) -> None:
        self.ann = ann
        self.bot = bot
        self.encrypted = encrypted
        self.bot_id = bot.user_id
        self._proxies = proxies
        self.rooms: list[str] = []
        self.said: list[str] = []

    @property
    def room(self) -> str:
        """Where she talks now."""
        return self.rooms[-1]

    async def new_room(self) -> None:
        """Make a room and invite the bot."""
        self.rooms.append(
            await self.ann.create_room(invite=[self.bot_id], encrypted=self.encrypted)
        )

    async def move(self) -> None:
        """Make a room that the bot comes into, and no more."""
        await self.bot.start()
        await self.new_room()
        await self.ann.wait_joined(self.room, self.bot_id)
        await self.bot.stop()

    async def say(self) -> str:
        """Send the next message, once the bot is there to read it."""
        await self.ann.wait_joined(self.room, self.bot_id)
        self.said.append(f"message {len(self.said)}")
        await take_a_breath(self.ann, self.room)
        await self.ann.send(self.room, self.said[-1])
        return self.said[-1]

    async def answer(self, text: str) -> None:
        """Wait for the answer to a message."""
        await self.ann.wait_for(self.room, lambda message: message.body == f"echo: {text}")

    async def strike(self, point: Point) -> None:
        """Kill the daemon at a point, look at what it left, start it again, see the answer."""
        trigger = {"logger": point.logger, "steps": point.steps} if point.steps else None
        await self.bot.start(trigger)
        if point.request is not None:
            self.arm(*point.request)
        text: str | None = None
        if point.in_new_room:
            await self.new_room()
        else:
            text = await self.say()
        assert await self.bot.ended() == -signal.SIGKILL
        self._assert_held(point, text)
        await self.bot.start()
        await self.answer(text or await self.say())
        await self.bot.said_all()
        assert await self.bot.stop() == 0

    def arm(self, whose: str, phase: str, method: str, part: str) -> None:
        """Kill the daemon around a request of its."""
        proxy = self._proxies[whose]

        def strike(seen: Request, *answer: object) -> Action:
            brings = not seen.path.endswith("/sync") or b"timeline" in bytes(str(answer), "utf-8")
            if seen.method == method and part in seen.path and brings:
                proxy.before, proxy.after = pass_before, pass_after
                os.kill(self.bot.pid, signal.SIGKILL)
            return None

        if phase == "before":
            proxy.before = strike
        else:
            proxy.after = strike

    async def assert_answered_once(self) -> None:
        """Each of her messages has one answer in the history of its room, and nothing else was said."""
        histories = [await self.ann.history(room) for room in self.rooms]
        answers = Counter(
            message.body
            for history in histories
            for message in history
            if message.sender == self.bot_id
        )
        assert answers == Counter([f"echo: {text}" for text in self.said])

    def _assert_held(self, point: Point, text: str | None) -> None:
        """The rows are as the point says."""
        invited = self.bot.rows("SELECT state FROM invitations WHERE room_id = ?", self.room)
        assert invited == ([{"state": point.invitation}] if point.invitation else [])
        if text is None:
            return
        rows = self.bot.rows(
            "SELECT i.state AS inbox, o.state AS outbox, p.state AS part FROM inbox i"
            " LEFT JOIN outbox o ON o.answers = i.event_id"
            " LEFT JOIN outbox_parts p ON p.outbox_id = o.id WHERE i.body = ?",
            text,
        )
        held: dict[str, Any] = {"inbox": point.inbox, "outbox": point.outbox, "part": point.part}
        assert rows == ([held] if point.inbox else [])
        work = self.bot.rows(
            "SELECT count(DISTINCT t.id) AS turns, max(o.state) AS observation FROM casts c"
            " JOIN turns t ON t.cast_id = c.id LEFT JOIN observations o ON o.turn_id = t.id"
            " WHERE c.intent = ?",
            text,
        )
        assert work == [{"turns": point.turns, "observation": point.observation}]


def behave(seen: Seen) -> Step:
    """Write a file first, then echo: one gate with an effect in every cast."""
    if seen.messages[-1]["role"] == "user":
        arguments = {"path": "note.md", "content": seen.last_user}
        return Calls((Use("write_file", arguments),))
    return Text(f"echo: {seen.last_user}")


@pytest_asyncio.fixture(
    loop_scope="module",
    scope="module",
    params=[(False, NIO), (True, NIO)],
    ids=["plain", "encrypted"],
)
async def world(
    request: pytest.FixtureRequest,
    homeserver: Homeserver,
    new_scene: NewScene,
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[World]:
    """The same person and data folder for all points of a kind."""
    folder: Path = tmp_path_factory.mktemp("killed")
    encrypted, client = request.param
    async with AsyncExitStack() as stack:
        model = await stack.enter_async_context(ModelServer())
        model.keyed(behave)
        proxies = {
            "matrix": await stack.enter_async_context(Proxy(homeserver.url)),
            "model": await stack.enter_async_context(Proxy(model.url.removesuffix("/v1"))),
        }
        scene = new_scene(folder, f"{proxies['model'].url}/v1")
        await stack.enter_async_context(scene)
        ann = await scene.at(client)("ann")
        (folder / "notes").mkdir()
        roots = {"files": {"roots": [str(folder / "notes")]}}
        bot = await scene.bot(ann, via=proxies["matrix"].url, tools=roots)
        here = World(ann, bot, proxies, encrypted)
        await here.new_room()
        await here.answer(await here.say())
        await bot.said_all()
        await bot.stop()
        yield here
        await here.assert_answered_once()


@pytest.mark.parametrize(
    "point", tiered({point.name.replace(" ", "-"): point for point in POINTS}, MATTER_MOST)
)
async def test_a_killed_daemon_answers_the_message_once_after_its_restart(
    world: World, point: Point
) -> None:
    """X-011, X-001, L-051."""
    await world.strike(point)


@pytest.mark.slow
async def test_a_kill_between_the_commits_of_a_room_key_loses_no_key(world: World) -> None:
    """X-011: nio stores an Olm session and the room key it carried one after the other."""
    await world.move()
    if world.encrypted:
        await world.strike(KEY_POINT)


@pytest.mark.slow
@pytest.mark.parametrize("world", [(True, JS)], ids=["encrypted-js"], indirect=True)
async def test_a_killed_daemon_answers_a_current_client_once(world: World) -> None:
    """X-011, X-018: at the points that matter most, and where the key of a room is kept."""
    most = [point for point in POINTS if point.name.replace(" ", "-") in MATTER_MOST]
    for point in most:
        await world.strike(point)
    await world.move()
    await world.strike(KEY_POINT)


@pytest.mark.quick("request-first-start")
@pytest.mark.parametrize(
    ("phase", "first", "client"),
    [
        pytest.param("before", True, NIO, id="request-first-start"),
        pytest.param("before", False, NIO, id="request-top-up"),
        pytest.param("after", True, NIO, id="response-first-start"),
        pytest.param("after", False, NIO, id="response-top-up"),
        pytest.param("after", False, JS, id="response-top-up-js", marks=pytest.mark.slow),
    ],
)
async def test_a_kill_around_a_key_upload_leaves_a_bot_that_speaks(
    homeserver: Homeserver,
    new_scene: NewScene,
    tmp_path: Path,
    phase: str,
    first: bool,
    client: str,
) -> None:
    """X-011, X-016: and the homeserver takes its next keys, over another restart."""
    async with (
        ModelServer() as model,
        Proxy(homeserver.url) as proxy,
        new_scene(tmp_path, model.url) as scene,
    ):
        ann, bob = await scene.at(client)("ann"), await scene.person("bob")
        allowed = {"allowed_users": [bob.user_id]}
        bot = await scene.bot(ann, via=proxy.url, start=False, matrix=allowed)
        here = World(ann, bot, {"matrix": proxy}, encrypted=True)
        await strike_upload(here, phase, first=first)
        there = World(bob, bot, {}, encrypted=True)
        await there.new_room()
        await there.answer(await there.say())  # takes another one
        await bot.restart()
        for world in (here, there):
            await world.answer(await world.say())
        assert not [line for line in bot.log if "keys refused" in line or "failed" in line]


async def strike_upload(world: World, phase: str, *, first: bool) -> None:
    """Kill a new daemon at its first upload of keys, or at the one after a key was used."""
    if not first:
        await world.bot.start()
        await world.new_room()
    world.arm("matrix", phase, "POST", "/keys/upload")
    if first:
        await world.bot.start(ready=False)
    else:
        await world.say()
    assert await world.bot.ended() == -signal.SIGKILL
    await world.bot.start()
    if first:
        await world.new_room()
        await world.say()
    await world.answer(world.said[-1])


async def test_no_message_was_answered_twice(world: World) -> None:
    """X-011: counted in the rooms' history, after this kill and all before it."""
    await world.strike(next(point for point in POINTS if point.name == "before sent mark"))
    await world.assert_answered_once()
