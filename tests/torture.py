"""Kills the daemon at random, again and again, and counts what it said in the rooms' history.

    python -m tests.torture --kills 300 [--seed N] [--without guests|clocks|restores]

Chats of two people with the bot and a room of all three, in clear and encrypted, in which messages
are answered, reminders fall due and tasks run by themselves. The kills come at a random statement
of our database or of nio's key store, at a random request to the homeserver or the model, or at a
random moment; now and then the homeserver is killed as well. Meanwhile somebody whom nobody asked
comes and goes, clocks are set wrong, and an earlier copy of the data, made at rest or beside the
daemon at work, is put back. Exit 1 when an answer, a reminder, one of its signs or the result of a
run is lost, doubled or read by others, or when in the end something is still open.
"""

import asyncio
import logging
import os
import random
import re
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.world.bot import Bot, Json, meet, write_settings
from tests.world.copied import copied_at_work, put_back
from tests.world.delegating import done, objective
from tests.world.duties import SYSTEM, in_, in_time, once, open_rows, run, sends, signs
from tests.world.homeserver import Homeserver
from tests.world.model import Calls, ModelServer, Seen, Step, Text, Use
from tests.world.proxy import Action, Answer, Proxy, Request, pass_after, pass_before
from tests.world.trials import trial_options
from tests.world.user import CLIENT, MatrixUser
from tests.world.watch import Readers, Watch
from wintermute.changes.change_sets import Reason
from wintermute.conversation import replies
from wintermute.db import open_database
from wintermute.ids import new_id
from wintermute.matrix.outbox import ELSEWHERE
from wintermute.owner import Owner
from wintermute.schedule.firing import REMINDER
from wintermute.stores import Stores
from wintermute.tasks.schedules import PlanRequest
from wintermute.tasks.tasks import REMINDER_REACTIONS

SURVIVAL_SECONDS = 6.0
HOMESERVER_DIES_EVERY = 20
RESTORED_EVERY = 10
DOWN = Answer(503, b"<html>")
SAID_SECONDS = 120.0
ANEW_SECONDS = 30.0
SETTLED_SECONDS = 30.0
GUESTS, CLOCKS, RESTORES = EVENTS = ("guests", "clocks", "restores")
WRONG_BY = (-3 * 86_400.0, -7_200.0, 7_200.0, 3 * 86_400.0)
FAILED = re.compile(r"The run of `\w+` \((run \d+ \w+)\) failed: ")
MESSAGE = re.compile(r"message \d+ word\d+end")


@dataclass(slots=True)
class Place:
    """A room, who talks there, and who can read there now."""

    room: str
    people: tuple[MatrixUser, ...]
    readers: Readers


@dataclass(slots=True)
class Owed:
    """What is to be said, once each: `wanted`, with the room of its message, or "" for what was due.

    `maybe`: asked for by the shell in a time that was lost with the folder; said then or never.
    `unsigned`: reminders said in such a time; who puts their signs died, and knows of them no more.
    """

    wanted: dict[str, str] = field(default_factory=dict)
    maybe: set[str] = field(default_factory=set)
    unsigned: set[str] = field(default_factory=set)


@dataclass(slots=True)
class Keys:
    """Which messages may stay locked for a bot whose data were put back.

    Their key came in the lost time, or was sealed for it in a session that is lost: until the bot
    has begun a new one with the sender (`begun`: how often it had when the copy was put back).
    """

    asked: dict[str, str] = field(default_factory=dict)
    """Each message by its event: what is wanted for it."""
    early: set[str] = field(default_factory=set)
    begun: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Verdict:
    """How much went wrong."""

    lost: int
    doubled: int
    read: int
    open: int

    def __str__(self) -> str:
        return f"lost {self.lost}, doubled {self.doubled}, read by others {self.read}, open {self.open}"

    @property
    def is_good(self) -> bool:
        """Whether nothing did."""
        return not (self.lost or self.doubled or self.read or self.open)


def promised(body: str) -> str:
    """A message as it was promised: without how late it is and where else it was to be said.

    A run may be given up (T-050).
    """
    body = body.removeprefix(ELSEWHERE)
    if failed := FAILED.match(body):
        return f"result of {failed[1]}"
    return in_time(body)


class Torture:
    """The world and the chances in it."""

    def __init__(
        self,
        chance: random.Random,
        homeserver: Homeserver,
        people: list[MatrixUser],
        bot: Bot,
        ways: list[Proxy | Watch],
        watch: Watch,
        without: Collection[str],
    ) -> None:
        self._chance = chance
        self._homeserver = homeserver
        *self._people, self._guest = people
        self._bot = bot
        self._ways = ways
        self._watch = watch
        self._without = without
        self._places: list[Place] = []
        self._owed = Owed()
        self._keys = Keys()
        self.counts: Counter[str] = Counter()
        self.ways: Counter[str] = Counter()

    async def furnish(self) -> None:
        """Chats of two, and rooms of three, in clear and encrypted."""
        bot, (ann, ben) = self._bot.user_id, self._people
        talks: list[tuple[MatrixUser, ...]] = [(ann,), (ben,), (ann, ben)]
        for people in talks:
            for encrypted in (False, True):
                host, *guests = people
                room = await meet(host, bot, *guests, encrypted=encrypted)
                inside = dict.fromkeys((bot, *(person.user_id for person in people)), "join")
                self._places.append(Place(room, people, Readers(inside)))

    def behave(self, seen: Seen) -> Step:
        """Write a file, then echo; a run of a task ends with a result."""
        self._watch.note(seen)
        if asked := objective(seen):
            return done(f"result of {asked.splitlines()[0]}")
        if seen.messages[-1]["role"] == "user":
            # Skills are everybody's: nothing of a scope goes in there.
            arguments = {"path": "data/skills/note.md", "content": f"note {len(self._watch.asked)}"}
            return Calls((Use("write_file", arguments),))
        said = MESSAGE.findall(seen.last_user)
        return Text(f"echo: {said[-1]}" if said else "I see.")

    async def say(self, place: Place | None = None) -> None:
        """One message, in a random room unless one is named."""
        place = place or self._chance.choice(self._places)
        who = self._chance.choice(place.people)
        scope = self._watch.scope(place.room, place.readers)
        word = self._watch.word(scope, f"person:{who.user_id}", room=place.room)
        text = self._next("message", word)
        self._owed.wanted[f"echo: {text}"] = place.room
        is_early = not self._is_anew(who)
        mention = {"m.mentions": {"user_ids": [self._bot.user_id]}}
        event_id = await who.send(place.room, text, **mention)
        self._keys.asked[event_id] = f"echo: {text}"
        if is_early:
            self._keys.early.add(event_id)

    def _is_anew(self, who: MatrixUser) -> bool:
        """Whether a restored bot has begun anew with somebody, who then gives it a new room key."""
        before = self._keys.begun.get(who.user_id)
        if before is not None and who.begun_by(self._bot.user_id) > before:
            del self._keys.begun[who.user_id]
            who.begin_sessions()
        return who.user_id not in self._keys.begun

    async def promise(self, latest: float = 5) -> None:
        """Reminders, and now and then a run, due soon; some at one moment."""
        place = self._chance.choice([place for place in self._places if len(place.people) == 1])
        owner = place.people[0].user_id
        scope, at = f"person:{owner}", in_(self._chance.uniform(2, latest))
        count = self._chance.randint(1, 3)
        names = [self._next("reminder", self._watch.word(scope)) for _ in range(count)]
        asked = {name: once(at) for name in names}
        self._owed.wanted |= {f"{REMINDER}{name}": "" for name in names}
        if self._chance.random() < 0.25:
            name = self._next("run", self._watch.word(scope))
            asked[name] = run(at, name)
            self._owed.wanted[f"result of {name}"] = ""
        await self._keep(place.room, scope, asked)

    async def _keep(self, room: str, scope: str, asked: dict[str, PlanRequest]) -> None:
        data = self._bot.data
        async with open_database(data / "wintermute.db") as database:
            owner = scope.removeprefix("person:")
            stores = Stores.of(
                database, data, Owner(owner), SYSTEM, new_id, timezone="Europe/Berlin"
            )
            async with database.transaction() as tx:
                held = await stores.conversations.of_room(tx, room)
                home = held.id if held else await stores.conversations.in_room(tx, room, scope)
                why = Reason("command", scope)
                for name, each in asked.items():
                    await stores.tasks.add(
                        tx, why, name, scope=scope, request=each, conversation_id=home
                    )

    def _next(self, kind: str, word: str) -> str:
        self.counts[kind] += 1
        return f"{kind} {self.counts[kind]} {word}"

    # What happens --------------------------------------------------------------------------

    async def kill_once(self) -> None:
        """Start the daemon, let people talk and tasks fall due, and end it somewhere."""
        way = self._chance.choice(["statement", "statement", "key store", "request", "moment"])
        self.ways[way] += 1
        await self.say()
        await self.promise()
        await self._come_or_go()
        self._set_clocks(self._chance.choice([0.0, 0.0, 0.0, *WRONG_BY]))
        await self._bot.start(self._trigger(way), ready=False)
        if way == "request":
            self._arm(self._bot.pid)
        limit = self._chance.uniform(0.5, 4) if way == "moment" else SURVIVAL_SECONDS
        if self._chance.random() < 0.5:
            await self.say()
        await self._come_or_go()
        self._set_clocks(0.0)
        try:
            await self._bot.ended(limit)
        except TimeoutError:
            await self._bot.kill()
        for each in self._ways:
            each.before, each.after = pass_before, pass_after

    async def _come_or_go(self) -> None:
        """Somebody whom nobody listens to comes into a room, or goes; without a word."""
        if GUESTS in self._without or self._chance.random() < 0.6:
            return
        place = self._chance.choice(self._places)
        inside = place.readers.members.get(self._guest.user_id) == "join"
        await (self._go(place) if inside else self._come(place))

    async def _come(self, place: Place) -> None:
        guest, at = self._guest.user_id, f"{CLIENT}/rooms/{place.room}"
        status, told = await place.people[0].api("POST", f"{at}/invite", {"user_id": guest})
        assert status == 200, told
        await self._guest.api("POST", f"{at}/join", {})
        place.readers = Readers({**place.readers.members, guest: "join"})
        self.counts["visit"] += 1

    async def _go(self, place: Place) -> None:
        await self._guest.api("POST", f"{CLIENT}/rooms/{place.room}/leave", {})
        place.readers = Readers({**place.readers.members, self._guest.user_id: "leave"})

    def _set_clocks(self, ahead: float) -> None:
        if CLOCKS not in self._without:
            self.counts["wrong clock"] += ahead != 0
            self._bot.set_clocks(wall=ahead)

    def _trigger(self, way: str) -> Json | None:
        phase = self._chance.choice(["executing", "operation"])
        if way == "statement":
            return {"logger": "aiosqlite", "steps": [[phase, ""]] * self._chance.randint(1, 150)}
        if way == "key store":
            return {"logger": "peewee", "steps": [["executing", ""]] * self._chance.randint(1, 250)}
        return None

    def _arm(self, pid: int) -> None:
        way = self._chance.choice(self._ways)
        left = self._chance.randint(1, 12)

        def strike(_request: Request, *_answer: object) -> Action:
            nonlocal left
            left -= 1
            if left == 0:
                os.kill(pid, signal.SIGKILL)
            return None

        if self._chance.random() < 0.5:
            way.before = strike
        else:
            way.after = strike

    async def crash_homeserver(self) -> None:
        """The homeserver dies as well, while the daemon is at work, and comes back."""
        await self.promise()
        await self._bot.start()
        with suppress(TimeoutError):
            await self._bot.ended(self._chance.uniform(0.5, 5))
        await asyncio.to_thread(self._homeserver.stop, kill=True)
        await asyncio.to_thread(self._homeserver.start)
        await self._bot.kill()

    async def restore(self) -> None:
        """Copy the data, live on for a while, and put the copy back.

        What was promised before the copy is said once in all, and so is what was asked in the lost
        time, then or afterwards; only what the shell asked for then is lost with the folder.
        """
        if RESTORES in self._without:
            return
        at_rest = self._chance.random() < 0.4
        await (self._rest() if at_rest else self._work())
        kept, said = {*self._owed.wanted}, await self._reminders()
        copy = await copied_at_work(self._bot)
        if at_rest:
            await self._bot.start()
        await self._live_on(until_said=self._chance.random() < 0.5)
        await self._bot.kill()
        for each in self._ways:
            each.before, each.after = pass_before, pass_after
        put_back(self._bot, copy)
        await asyncio.sleep(0.5)  # what was on its way when it died
        await self._forget(kept, said)
        self.counts[f"{'rest' if at_rest else 'work'} copy restore"] += 1

    async def _rest(self) -> None:
        """All is said, nobody else is there, and the daemon is stopped."""
        await self._all_go()  # what is held while somebody is there would be waited for
        await self._bot.start()
        await self._all_said()
        await self._bot.stop()

    async def _work(self) -> None:
        """The daemon runs, and much is due, being answered, or waiting for the homeserver."""
        await self._come_or_go()
        await self._bot.start()
        if self._chance.random() < 0.6:
            until = time.monotonic() + self._chance.uniform(1, 8)
            self._watch.before = lambda request: (
                DOWN if sends(request) and time.monotonic() < until else None
            )
        for _ in range(self._chance.randint(1, 3)):
            await self.say()
            await self.promise(latest=12)
        await self._come_or_go()
        await asyncio.sleep(self._chance.uniform(0, 6))

    async def _live_on(self, *, until_said: bool) -> None:
        """The time that will be lost."""
        for place in self._chance.sample(self._places, self._chance.randint(0, len(self._places))):
            await self.say(place)
        await self.promise()
        await self._come_or_go()
        if until_said:
            await self._all_go()
            await self._all_said()
        else:
            await asyncio.sleep(self._chance.uniform(0, 8))

    async def _forget(self, kept: set[str], said: set[str]) -> None:
        """What nobody can know any more once a copy was put back."""
        lost = {what for what, room in self._owed.wanted.items() if not room} - kept
        self._owed.maybe |= lost
        for what in lost:
            del self._owed.wanted[what]
        self._owed.unsigned |= await self._reminders() - said
        self._keys.early |= {*self._keys.asked}
        for person in self._people:
            self._keys.begun[person.user_id] = person.begun_by(self._bot.user_id)

    async def _reminders(self) -> set[str]:
        """The events of all reminders that were said."""
        rooms = [await place.people[0].history(place.room) for place in self._places]
        return {m.event_id for room in rooms for m in room if m.body.startswith(REMINDER)}

    async def _all_go(self) -> None:
        for place in self._places:
            await self._go(place)

    # The verdict ---------------------------------------------------------------------------

    async def verdict(self) -> Verdict:
        """What went wrong, after a last run in peace in which everybody is answered."""
        await self._all_go()
        await self._bot.start()
        await self._wait(lambda: all(map(self._is_anew, self._people)), ANEW_SECONDS)
        await self._all_said()
        self._keys.begun.clear()
        for place in self._places:
            await self.say(place)
        await self._all_said()
        lost, doubled = await self._counted()
        leaks = self._watch.leaks([*self._people, self._guest])
        await self._wait(lambda: not open_rows(self._bot), SETTLED_SECONDS)
        left = open_rows(self._bot)
        print("\n".join([*leaks, *(f"open: {each}" for each in left)]), flush=True)  # noqa: T201
        await self._bot.stop()
        return Verdict(lost, doubled, len(leaks), len(left))

    async def _counted(self) -> tuple[int, int]:
        """What is lost and what is too much, in the rooms' history."""
        locked = self._locked()
        wanted: Counter[object] = Counter({*self._owed.wanted} - locked)
        maybe: set[object] = {*self._owed.maybe, *locked}
        found: Counter[object] = Counter()
        told: Counter[str] = Counter()
        for place in self._places:
            host = place.people[0]
            history = [m for m in await host.history(place.room) if m.sender == self._bot.user_id]
            found += Counter(promised(m.body) for m in history)
            told[place.room] = sum(m.body in (replies.JOINED, replies.LEFT) for m in history)
            reminders = [m.event_id for m in history if m.body.startswith(REMINDER)]
            signed = {(event, key): event for event in reminders for key in REMINDER_REACTIONS}
            maybe |= {sign for sign, event in signed.items() if event in self._owed.unsigned}
            wanted += Counter({*signed} - maybe)
            found += _signs(host, place.room)
        missing = wanted - found
        unsaid = Counter(self._owed.wanted.get(str(what), "") for what in missing.elements())
        doubled = Counter({w: n - 1 for w, n in found.items() if w in wanted or w in maybe})
        self._tell("not there", missing)
        self._tell("doubled", doubled)
        self.counts["locked message"] = len(locked)
        return (unsaid - told).total(), (+doubled).total()  # who was told so says it again

    def _locked(self) -> set[str]:
        """What is owed to messages whose keys a restored bot cannot have; its status names them."""
        rows = self._bot.rows("SELECT event_id FROM inbox WHERE state = 'locked'")
        locked = {str(row["event_id"]) for row in rows} & self._keys.early
        return {self._keys.asked[event_id] for event_id in locked}

    async def _all_said(self) -> None:
        """Wait until everybody has everything, as long as that can be expected to come."""

        def is_said() -> bool:
            found: Counter[object] = Counter()
            signs_due = told = signed = 0
            for place in self._places:
                person, unsigned = place.people[0], self._owed.unsigned
                messages = person.messages(place.room)
                found += Counter(promised(m.body) for m in messages)
                told += sum(m.body in (replies.JOINED, replies.LEFT) for m in messages)
                reminders = {m.event_id for m in messages if m.body.startswith(REMINDER)}
                signs_due += len(REMINDER_REACTIONS) * len(reminders - unsigned)
                signed += sum(sign[0] not in unsigned for sign in _signs(person, place.room))
            missing = Counter[object]({*self._owed.wanted} - self._locked()) - found
            return missing.total() <= told and signed >= signs_due

        await self._wait(is_said, SAID_SECONDS)

    async def _wait(self, true: Callable[[], bool], seconds: float) -> None:
        """Until something is so, or cannot be expected any more."""
        deadline = time.monotonic() + seconds
        while not true() and time.monotonic() < deadline:  # noqa: ASYNC110  of several clients
            await asyncio.sleep(0.5)

    def _tell(self, name: str, wrong: Counter[object]) -> None:
        for what, times in (+wrong).items():
            print(f"{name} {times}: {what}", flush=True)  # noqa: T201


def _signs(person: MatrixUser, room: str) -> Counter[tuple[str, str]]:
    return Counter(
        {(event, key): n for event, keys in signs(person, room).items() for key, n in keys.items()}
    )


async def torture(kills: int, seed: int, without: Collection[str]) -> int:
    """Do it; the exit code."""
    began = time.monotonic()
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        trial = await _prepared(stack, folder, random.Random(seed), without)
        for n in range(1, kills + 1):
            await trial.kill_once()
            if n % HOMESERVER_DIES_EVERY == 0:
                await trial.crash_homeserver()
                print(f"{n} kills, {time.monotonic() - began:.0f} s", flush=True)  # noqa: T201
            if n % RESTORED_EVERY == 0:
                await trial.restore()
        verdict = await trial.verdict()
    counts = ", ".join(f"{n} {kind}s" for kind, n in trial.counts.items())
    print(  # noqa: T201
        f"seed {seed}: {kills} kills ({', '.join(f'{n} {way}' for way, n in trial.ways.items())}), "
        f"{counts}, without {' '.join(without) or 'nothing'}: {verdict}, "
        f"{time.monotonic() - began:.0f} s"
    )
    return 0 if verdict.is_good else 1


async def _prepared(
    stack: AsyncExitStack, folder: Path, chance: random.Random, without: Collection[str]
) -> Torture:
    """The world, open until the stack is closed."""
    (folder / "synapse").mkdir()
    homeserver = stack.enter_context(Homeserver(folder / "synapse"))
    people = [
        await stack.enter_async_context(
            MatrixUser(homeserver.url, homeserver.user(name), folder / name)
        )
        for name in ("ann", "ben", "eve")
    ]
    allowed = frozenset(person.user_id for person in people[:2])
    model = await stack.enter_async_context(ModelServer())
    model.allow("restored copy", perhaps=True)
    matrix = await stack.enter_async_context(Proxy(homeserver.url))
    llm = await stack.enter_async_context(Proxy(model.url.removesuffix("/v1")))
    login = homeserver.user("bot")
    watch = Watch(matrix, login.user_id, allowed)
    settings = {"allowed_users": sorted(allowed - {people[0].user_id})}
    backend = (f"{llm.url}/v1", people[0].user_id)
    bot = Bot(write_settings(folder / "bot", matrix.url, login, *backend, matrix=settings))
    if CLOCKS not in without:
        bot.set_clocks()
    await stack.enter_async_context(bot)
    trial = Torture(chance, homeserver, people, bot, [watch, llm], watch, without)
    model.keyed(trial.behave)
    await trial.furnish()
    await bot.kill()
    return trial


def main() -> None:
    """Parse and run."""
    options = trial_options(__doc__, kills=300)
    options.add_argument("--without", action="append", choices=EVENTS, default=[])
    chosen = options.parse_args()
    logging.getLogger("nio").setLevel(logging.ERROR)  # the watchers' word on every outage
    sys.exit(asyncio.run(torture(chosen.kills, chosen.seed, chosen.without)))


if __name__ == "__main__":
    main()
