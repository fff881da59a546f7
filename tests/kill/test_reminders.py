"""The daemon is killed at every step of a promise; each is still kept once, with its signs."""

import asyncio
import json
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from itertools import count
from pathlib import Path

import pytest
import pytest_asyncio

from tests.tiers import tiered
from tests.world.bot import Bot, meet
from tests.world.clock import WITHIN
from tests.world.delegating import done, objective
from tests.world.duties import (
    SYSTEM,
    Back,
    asks_model,
    in_,
    in_time,
    is_all_kept,
    is_sign,
    is_text,
    once,
    promise,
    run,
    signs,
)
from tests.world.homeserver import Homeserver
from tests.world.model import ModelServer, Seen, Step
from tests.world.person import Person
from tests.world.proxy import Action, Cut, Proxy, Request, pass_after, pass_before
from tests.world.scene import JS, NIO, NewScene
from wintermute.clock import Clock
from wintermute.schedule.firing import REMINDER
from wintermute.tasks.schedules import PlanRequest
from wintermute.tasks.tasks import REMINDER_REACTIONS

pytestmark = pytest.mark.asyncio(loop_scope="module")

PLAIN, ENCRYPTED = "plain", "encrypted"
BEFORE, AFTER = "executing", "operation"
CLAIM, SETTLED = "INSERT INTO occurrences", "UPDATE occurrences SET state = 'done'"
PARTS, SENT_MARK = "INSERT INTO outbox_parts", "UPDATE outbox_parts SET state"
RUN_ENDS = "UPDATE occurrences SET state = ?, result"
OPEN = "SELECT content FROM tasks WHERE status = 'active' AND next_due IS NOT NULL"
ONCE = ("--schedule-type", "once")
Steps = tuple[tuple[str, str], ...]
Wanted = Callable[[Request], bool]
Held = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Point:
    """Where to die, and what must be in the database then.

    `request`: whether it has been seen by the other side, and which. `first`: what is held of the
    task that was put in first; `rest`: of the others, None where they may be at several places.
    """

    name: str
    first: Held
    rest: Held | None = None
    steps: Steps = ()
    request: tuple[str, Wanted] | None = None


# Of a reminder: its status, occurrence, message, part of it; signs of it that are recorded as sent,
# None before they are promised, which is done together with settling it.
DUE: Held = ("active", None, None, None, None)
CLAIMED: Held = ("active", "claimed", "waiting", None, None)
RENDERED: Held = ("active", "claimed", "waiting", "waiting", None)
DELIVERED: Held = ("completed: delivered", "done", "sent", "sent", 0)
SIGNED: Held = ("completed: delivered", "done", "sent", "sent", 1)

REMINDER_POINTS = (
    Point("before claim commit", DUE, DUE, ((BEFORE, CLAIM), (BEFORE, "COMMIT"))),
    Point("after claim commit", CLAIMED, CLAIMED, ((BEFORE, CLAIM), (AFTER, "COMMIT"))),
    Point("after parts commit", RENDERED, CLAIMED, ((BEFORE, PARTS), (AFTER, "COMMIT"))),
    Point("before send request", RENDERED, CLAIMED, request=("before", is_text)),
    Point("before send response", RENDERED, CLAIMED, request=("after", is_text)),
    Point("after send response", RENDERED, CLAIMED, ((BEFORE, SENT_MARK),)),
    Point("before sent mark", RENDERED, CLAIMED, ((BEFORE, SENT_MARK), (BEFORE, "COMMIT"))),
    Point("before it is settled", RENDERED, CLAIMED, ((BEFORE, SETTLED),)),
    Point("after sent mark", DELIVERED, CLAIMED, ((BEFORE, SENT_MARK), (AFTER, "COMMIT"))),
    Point("before request of a sign", DELIVERED, None, request=("before", is_sign)),
    Point("before response of a sign", DELIVERED, None, request=("after", is_sign)),
    Point("before sent mark of a sign", DELIVERED, None, ((BEFORE, SENT_MARK), (BEFORE, "COMMIT"))),
    Point("after sent mark of a sign", SIGNED, None, ((BEFORE, SENT_MARK), (AFTER, "COMMIT"))),
)
REMINDERS_HELD = """
    SELECT t.content, t.status || iif(t.reason = '', '', ': ' || t.reason), o.state AS o, m.state AS m,
        p.state AS p, (SELECT (SELECT count(*) FROM outbox_parts q WHERE q.outbox_id = s.id AND q.state = 'sent')
            FROM outbox s WHERE s.reacts_to = p.event_id)
    FROM tasks t LEFT JOIN occurrences o ON o.task_id = t.id LEFT JOIN outbox m ON m.id = o.outbox_id
        LEFT JOIN outbox_parts p ON p.outbox_id = m.id"""

# Of a run: the status of its task, occurrence, cast, turns of it, message.
WAITING: Held = ("active", "claimed", None, 0, None)
BEGUN: Held = ("active", "claimed", "running", 0, None)
WORKED: Held = ("active", "claimed", "running", 1, None)
ENDED: Held = ("completed: delivered", "done", "terminated", 1, "waiting")
CAST, TURN = "INSERT INTO casts", "INSERT INTO turns"

RUN_POINTS = (
    (
        Point("before cast commit", WAITING, None, ((BEFORE, CAST), (BEFORE, "COMMIT"))),
        Point("after cast commit", BEGUN, None, ((BEFORE, CAST), (AFTER, "COMMIT"))),
        Point("before model request", BEGUN, request=("before", asks_model)),
    ),
    (
        Point("before model response", BEGUN, request=("after", asks_model)),
        Point("before turn commit", BEGUN, None, ((BEFORE, TURN), (BEFORE, "COMMIT"))),
    ),
    (
        Point("after turn commit", WORKED, None, ((BEFORE, TURN), (AFTER, "COMMIT"))),
        Point("before end commit", WORKED, None, ((BEFORE, RUN_ENDS), (BEFORE, "COMMIT"))),
        Point("after end commit", ENDED, None, ((BEFORE, RUN_ENDS), (AFTER, "COMMIT"))),
    ),
)
"""As many in a row as a run may be interrupted; each row with a run of its own."""
RUNS = {points[0].name.replace(" ", "-"): points for points in RUN_POINTS}
MINUTES_AGO = Back(timedelta(minutes=5))
"""Promised by this clock, a task is due as soon as the daemon looks."""
RUNS_HELD = """
    SELECT t.content, t.status || iif(t.reason = '', '', ': ' || t.reason), o.state AS o, c.state AS c,
        (SELECT count(*) FROM turns WHERE cast_id = c.id), m.state AS m
    FROM tasks t LEFT JOIN occurrences o ON o.task_id = t.id LEFT JOIN casts c ON c.id = o.cast_id
        LEFT JOIN outbox m ON m.id = o.outbox_id"""


class World:
    """One person, her two direct chats, and the daemon between two proxies; killed again and again."""

    def __init__(self, ann: Person, bot: Bot, proxies: dict[str, Proxy]) -> None:
        self.ann = ann
        self.bot = bot
        self.proxies = proxies
        self._bot_id = bot.user_id
        self._numbers = count(1)
        self._rooms: dict[str, str] = {}
        self._said: dict[str, list[str]] = {PLAIN: [], ENCRYPTED: []}

    async def furnish(self) -> None:
        """Meet the bot in both rooms, and begin a conversation in each."""
        for room, encrypted in ((PLAIN, False), (ENCRYPTED, True)):
            self._rooms[room] = await meet(self.ann, self._bot_id, encrypted=encrypted)
        assert await self.bot.stop() == 0
        for room in self._rooms:
            await self.put_in(room, {})

    def names(self, kind: str, n: int) -> list[str]:
        """So many new names."""
        return [f"{kind} {next(self._numbers)}" for _ in range(n)]

    async def put_in(self, room: str, asked: dict[str, PlanRequest], clock: Clock = SYSTEM) -> None:
        """Promise something in one of her chats."""
        await promise(self.bot, self.ann.user_id, self._rooms[room], asked, clock)

    async def die(self, point: Point) -> None:
        """Start the daemon, and kill it at a point."""
        trigger = {"logger": "aiosqlite", "steps": point.steps} if point.steps else None
        await self.bot.start(trigger, ready=False)
        if point.request is not None:
            self._arm(*point.request)
        try:
            assert await self.bot.ended() == -signal.SIGKILL, point.name
        except TimeoutError:
            raise AssertionError(f"it never came to this: {point.name}") from None

    def _arm(self, phase: str, wanted: Wanted) -> None:
        def strike(request: Request, *_answer: object) -> Action:
            if wanted(request):
                for proxy in self.proxies.values():
                    proxy.before, proxy.after = pass_before, pass_after
                os.kill(self.bot.pid, signal.SIGKILL)
            return None

        for proxy in self.proxies.values():
            if phase == "before":
                proxy.before = strike
            else:
                proxy.after = strike

    async def walk(self, points: tuple[Point, ...], names: list[str], held: str) -> None:
        """Kill the daemon at one point after the other on the way of the same tasks."""
        for point in points:
            await self.die(point)
            first, *others = self._held(names, held)
            assert first == point.first, point.name
            assert point.rest is None or set(others) <= {point.rest}, point.name
        await self.bot.start()
        await self.keep(names)
        assert await self.bot.stop() == 0
        assert {row[:2] for row in self._held(names, held)} == {("completed: delivered", "done")}

    def _held(self, names: list[str], held: str) -> list[Held]:
        rows = {row.pop("content"): tuple(row.values()) for row in self.bot.rows(held)}
        return [rows[name] for name in names]

    async def keep(self, names: list[str]) -> None:
        """Wait until all of this is done, said and signed."""

        def done_() -> bool:
            open_ = {row["content"] for row in self.bot.rows(OPEN)}
            return is_all_kept(self.bot) and not open_ & {*names}

        await self.bot.until(done_)

    async def shell(self, *words: str) -> str:
        """What a verb wrote that must not fail."""
        code, wrote = await self.bot.command(*words)
        assert code == 0, wrote
        return wrote

    async def counted(self, room: str, *bodies: str) -> list[str]:
        """Look whether this has been said since the last time, each once, and nothing else was.

        In the order in which it was said.
        """
        self._said[room] += bodies
        for each, room_id in self._rooms.items():
            found = [m for m in await self.ann.history(room_id) if m.sender == self._bot_id]
            assert Counter(in_time(m.body) for m in found) == Counter(self._said[each])
            signed = {
                m.event_id: Counter([*REMINDER_REACTIONS])
                for m in found
                if m.body.startswith(REMINDER)
            }
            await self.ann.until(partial(self._is_signed, room_id, signed), what=f"{signed}")
        seen = self.ann.messages(self._rooms[room], self._bot_id)
        return [in_time(m.body) for m in seen[-len(bodies) :]]

    def _is_signed(self, room_id: str, signed: dict[str, Counter[str]]) -> bool:
        return signs(self.ann, room_id) == signed


def behave(seen: Seen) -> Step:
    """A run ends with its result."""
    return done(f"result of {objective(seen).splitlines()[0]}")


@pytest_asyncio.fixture(loop_scope="module", scope="module", params=[NIO])
async def world(
    request: pytest.FixtureRequest,
    homeserver: Homeserver,
    new_scene: NewScene,
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[World]:
    """The same person and data folder for all tests."""
    folder: Path = tmp_path_factory.mktemp("killed")
    async with AsyncExitStack() as stack:
        model = await stack.enter_async_context(ModelServer())
        model.keyed(behave)
        proxies = {
            "matrix": await stack.enter_async_context(Proxy(homeserver.url)),
            "model": await stack.enter_async_context(Proxy(model.url.removesuffix("/v1"))),
        }
        scene = new_scene(folder, f"{proxies['model'].url}/v1")
        await stack.enter_async_context(scene)
        ann = await scene.at(request.param)("ann")
        here = World(ann, await scene.bot(ann, via=proxies["matrix"].url), proxies)
        await here.furnish()
        yield here


@pytest.mark.slow
@pytest.mark.parametrize("room", [PLAIN, ENCRYPTED])
async def test_reminders_killed_at_every_step_of_their_way_are_said_once(
    world: World, room: str
) -> None:
    """X-011, T-035, T-037, T-041, T-063: three that are due at one moment."""
    await _killed_on_their_way(world, room, REMINDER_POINTS)


@pytest.mark.quick("nio-encrypted")
@pytest.mark.parametrize("room", [PLAIN, ENCRYPTED])
async def test_reminders_killed_where_it_matters_most_are_said_once(
    world: World, room: str
) -> None:
    """X-011, T-037: before they are promised, sent and not known to be, and before their signs are."""
    most = {"before claim commit", "before send response", "after sent mark"}
    points = tuple(point for point in REMINDER_POINTS if point.name in most)
    assert len(points) == len(most)
    await _killed_on_their_way(world, room, points)


@pytest.mark.slow
@pytest.mark.parametrize("world", [JS], indirect=True)
async def test_reminders_are_said_once_to_a_current_client(world: World) -> None:
    """X-011, X-018, T-063: killed where it is sent and not known to be."""
    points = tuple(point for point in REMINDER_POINTS if point.name == "before send response")
    await _killed_on_their_way(world, ENCRYPTED, points)


async def _killed_on_their_way(world: World, room: str, points: tuple[Point, ...]) -> None:
    names = world.names("reminder", 3)
    at = in_(-1) if room == ENCRYPTED else in_(2)  # found at the start, and rung for
    await world.put_in(room, {name: once(at) for name in names}, MINUTES_AGO)
    await world.walk(points, names, REMINDERS_HELD)
    bodies = [f"{REMINDER}{name}" for name in names]
    assert await world.counted(room, *bodies) == bodies


@pytest.mark.parametrize("points", tiered(RUNS, ("after-turn-commit",)))
async def test_a_run_killed_on_its_way_posts_its_result_once(
    world: World, points: tuple[Point, ...]
) -> None:
    """X-011, T-037, T-047: cast, result and message are one story."""
    names = world.names("run", 1)
    await world.put_in(ENCRYPTED, {name: run(in_(-1), name) for name in names}, MINUTES_AGO)
    await world.walk(points, names, RUNS_HELD)
    await world.counted(ENCRYPTED, *(f"result of {name}" for name in names))


@pytest.mark.slow
async def test_a_series_goes_on_after_kills_and_no_moment_is_said_twice(world: World) -> None:
    """T-037, T-043: three moments missed are one event; the next one has its own."""
    [name] = world.names("series", 1)
    begun = Back(timedelta(seconds=4 * 60 - 6))
    await world.put_in(
        PLAIN, {name: PlanRequest(schedule_type="interval", interval_seconds=60)}, begun
    )
    [first] = world.bot.rows("SELECT rule_due FROM tasks WHERE content = ?", name)
    await world.die(
        Point("claim of what was missed", DUE, None, ((BEFORE, CLAIM), (AFTER, "COMMIT")))
    )
    await world.die(Point("next claim", DUE, None, ((BEFORE, CLAIM), (BEFORE, "COMMIT"))))
    await world.bot.start()
    await world.bot.until(lambda: len(_series(world, name)) == 2 and is_all_kept(world.bot))
    assert await world.bot.stop() == 0
    world.bot.change("UPDATE tasks SET status = 'paused' WHERE content = ?", name)
    claimed = _series(world, name)
    await world.counted(PLAIN, *[f"{REMINDER}{name}"] * len(claimed))
    [last] = world.bot.rows("SELECT max(due_at) AS due_at FROM occurrences")
    passed = datetime.fromisoformat(last["due_at"]) - datetime.fromisoformat(first["rule_due"])
    assert sum(claimed) == passed / timedelta(minutes=1) + 1


def _series(world: World, name: str) -> list[int]:
    """For how many due moments each occurrence of a task stands."""
    rows = world.bot.rows(
        "SELECT max(o.missed, 1) AS n FROM occurrences o JOIN tasks t ON t.id = o.task_id"
        " WHERE t.content = ? AND o.state <> 'missed'",
        name,
    )
    return [row["n"] for row in rows]


@pytest.mark.slow
async def test_what_falls_due_without_a_homeserver_is_said_once_in_due_order(world: World) -> None:
    """T-038: the one that was taken although nobody said so is not sent a second time."""
    names = world.names("outage", 4)
    at = [in_(-1), in_(-1), in_(2), in_(3)]
    asked = {name: once(when) for name, when in zip(names, at, strict=True)}
    await world.put_in(ENCRYPTED, dict(reversed(asked.items())), MINUTES_AGO)
    matrix, cut = world.proxies["matrix"], asyncio.Event()

    def lose(request: Request, *_answer: object) -> Action:
        if is_text(request):
            cut.set()
            return Cut()
        return None

    matrix.after = lose
    await world.bot.start()
    async with asyncio.timeout(WITHIN):
        await cut.wait()
    await matrix.down()
    matrix.after = pass_after
    waits = "SELECT 1 FROM outbox WHERE state = 'waiting'"
    await world.bot.until(lambda: len(world.bot.rows(waits)) == len(names))
    await matrix.up()
    await world.keep(names)
    assert await world.bot.stop() == 0
    names[:2] = names[1::-1]  # due at one moment: as they were put in
    bodies = [f"{REMINDER}{name}" for name in names]
    assert await world.counted(ENCRYPTED, *bodies) == bodies


@pytest.mark.slow
@pytest.mark.alone
async def test_a_second_daemon_is_refused_and_the_shell_works_beside_the_first(
    world: World,
) -> None:
    """T-039, T-040: what is promised there is said within five seconds, what is paused is not."""
    held, name = world.names("beside", 2)
    await world.bot.start()
    at = in_(4)
    added = await world.shell("task", "add", held, *ONCE, "--at", at, "--json")
    await world.shell("task", "pause", json.loads(added)["id"])
    await world.shell("task", "add", name, *ONCE, "--at", max(at, in_(2)))
    second = Bot(world.bot.config)
    await second.start(ready=False)
    assert await second.ended() == 1
    assert "uses the data folder" in second.log[-1]
    await world.keep([name])
    assert await world.bot.stop() == 0
    await world.counted(ENCRYPTED, f"{REMINDER}{name}")  # said where she met the bot last
    [row] = world.bot.rows(
        "SELECT o.due_at, m.sent_at FROM occurrences o JOIN outbox m ON m.id = o.outbox_id"
        " WHERE o.content = ?",
        name,
    )
    late = datetime.fromisoformat(row["sent_at"]) - datetime.fromisoformat(row["due_at"])
    assert timedelta(0) <= late < timedelta(seconds=5)
