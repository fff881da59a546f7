"""Kills the daemon at random, again and again, and counts what it said in the rooms' history.

    python -m tests.torture --kills 300 [--seed N] [--without guests|clocks|restores]

Chats of two people with the bot and a room of all three, in clear and encrypted, in which messages
are answered, reminders fall due and tasks run by themselves. The kills come at a random statement
of our database or of nio's key store, at a random request to the homeserver or the model, or at a
random moment; now and then the homeserver is killed as well. Meanwhile somebody whom nobody asked
comes and goes, clocks are set wrong, and an earlier copy of the data is put back. Exit 1 when an
answer, a reminder, one of its signs or the result of a run is lost, doubled or read by others.
"""

import argparse
import asyncio
import logging
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Collection
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.world.bot import Bot, Json, meet, write_settings
from tests.world.delegating import done, objective
from tests.world.duties import SYSTEM, in_, in_time, kept, once, run, signs
from tests.world.homeserver import Homeserver
from tests.world.model import Calls, ModelServer, Seen, Step, Text, Use
from tests.world.proxy import Action, Proxy, Request, pass_after, pass_before
from tests.world.user import CLIENT, MatrixUser
from tests.world.watch import Readers, Watch
from wintermute.changes.records import Reason
from wintermute.commands.stores import Stores
from wintermute.conversation import words
from wintermute.db import open_database
from wintermute.ids import new_id
from wintermute.matrix.outbox import ELSEWHERE
from wintermute.schedule.words import REMINDER
from wintermute.tasks.asked import Asked
from wintermute.tasks.records import SIGNS

SURVIVAL_SECONDS = 6.0
HOMESERVER_DIES_EVERY = 20
RESTORED_EVERY = 25
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
        self.wanted: dict[str, str] = {}
        """All that is to be said, each with the room of its message, or "" for what was due."""
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
        self.wanted[f"echo: {text}"] = place.room
        await who.send(place.room, text, **{"m.mentions": {"user_ids": [self._bot.user_id]}})

    async def promise(self) -> None:
        """Reminders, and now and then a run, due soon; some at one moment."""
        place = self._chance.choice([place for place in self._places if len(place.people) == 1])
        owner = place.people[0].user_id
        scope, at = f"person:{owner}", in_(self._chance.uniform(2, 5))
        count = self._chance.randint(1, 3)
        names = [self._next("reminder", self._watch.word(scope)) for _ in range(count)]
        asked = {name: once(at) for name in names}
        self.wanted |= {f"{REMINDER}{name}": "" for name in names}
        if self._chance.random() < 0.25:
            name = self._next("run", self._watch.word(scope))
            asked[name] = run(at, name)
            self.wanted[f"result of {name}"] = ""
        await self._keep(place.room, scope, asked)

    async def _keep(self, room: str, scope: str, asked: dict[str, Asked]) -> None:
        data = self._bot.data
        async with open_database(data / "wintermute.db") as database:
            owner = scope.removeprefix("person:")
            stores = Stores(database, data, owner, SYSTEM, new_id, timezone="Europe/Berlin")
            async with database.transaction() as tx:
                held = await stores.conversations.of_room(tx, room)
                home = held.id if held else await stores.conversations.in_room(tx, room, scope)
                why = Reason("command", scope)
                for name, each in asked.items():
                    await stores.tasks.add(
                        tx, why, name, scope=scope, asked=each, conversation_id=home
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
        """Copy the data, live on until all is answered, and put the copy back."""
        if RESTORES in self._without:
            return
        for place in self._places:  # what is held while somebody is there would be waited for
            await self._go(place)
        await self._bot.start()
        await self._all_said()
        await self._bot.stop()
        copy = self._bot.data.with_name("copy")
        shutil.copytree(self._bot.data, copy)
        await self._bot.start()
        for place in self._places:
            await self.say(place)
        await self._all_said()
        await self._bot.kill()
        shutil.rmtree(self._bot.data)
        copy.rename(self._bot.data)
        self.counts["restore"] += 1

    # The verdict ---------------------------------------------------------------------------

    async def verdict(self) -> tuple[int, int, int]:
        """What is lost, what is too much and what others read, after a last run in peace."""
        for place in self._places:
            await self._go(place)
        await self._bot.start()
        await self._all_said()
        wanted: Counter[object] = Counter([*self.wanted])
        found: Counter[object] = Counter()
        told: Counter[str] = Counter()
        for place in self._places:
            host = place.people[0]
            history = [m for m in await host.history(place.room) if m.sender == self._bot.user_id]
            found += Counter(promised(m.body) for m in history)
            told[place.room] = sum(m.body in (words.JOINED, words.LEFT) for m in history)
            reminders = [m.event_id for m in history if m.body.startswith(REMINDER)]
            wanted += Counter((event, key) for event in reminders for key in SIGNS)
            found += _signs(host, place.room)
        missing = wanted - found
        unsaid = Counter(self.wanted.get(str(what), "") for what in missing.elements())
        lost = (unsaid - told).total()  # who was told so says it again
        doubled = sum(max(0, n - wanted[what]) for what, n in found.items() if what in wanted)
        self._tell("not there", missing)
        self._tell("doubled", Counter({w: n - wanted[w] for w, n in found.items() if w in wanted}))
        leaks = self._watch.leaks([*self._people, self._guest])
        print("\n".join(leaks), flush=True)  # noqa: T201
        await self._bot.until(lambda: kept(self._bot))
        await self._bot.stop()
        return lost, doubled, len(leaks)

    async def _all_said(self) -> None:
        """Wait until everybody has everything, as long as that can be expected to come."""

        def is_said() -> bool:
            found: Counter[object] = Counter()
            signs_due = told = signed = 0
            for place in self._places:
                texts = [promised(m.body) for m in place.people[0].messages(place.room)]
                found += Counter(texts)
                told += sum(text in (words.JOINED, words.LEFT) for text in texts)
                signs_due += len(SIGNS) * sum(text.startswith(REMINDER) for text in texts)
                signed += _signs(place.people[0], place.room).total()
            missing = Counter[object]([*self.wanted]) - found
            return missing.total() <= told and signed >= signs_due

        deadline = time.monotonic() + 120
        while not is_said() and time.monotonic() < deadline:  # noqa: ASYNC110  of several clients
            await asyncio.sleep(0.5)

    def _tell(self, name: str, wrong: Counter[object]) -> None:
        for what, times in (+wrong).items():
            print(f"{name} {times}: {what}", flush=True)  # noqa: T201


def _signs(person: MatrixUser, room: str) -> Counter[object]:
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
        lost, doubled, read = await trial.verdict()
    counts = ", ".join(f"{n} {kind}s" for kind, n in trial.counts.items())
    print(  # noqa: T201
        f"seed {seed}: {kills} kills ({', '.join(f'{n} {way}' for way, n in trial.ways.items())}), "
        f"{counts}, without {' '.join(without) or 'nothing'}: lost {lost}, doubled {doubled}, "
        f"read by others {read}, {time.monotonic() - began:.0f} s"
    )
    return 1 if lost or doubled or read else 0


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
    options = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    options.add_argument("--kills", type=int, default=300)
    options.add_argument("--seed", type=int, default=random.randrange(10**6))
    options.add_argument("--without", action="append", choices=EVENTS, default=[])
    chosen = options.parse_args()
    logging.getLogger("nio").setLevel(logging.ERROR)  # the watchers' word on every outage
    sys.exit(asyncio.run(torture(chosen.kills, chosen.seed, chosen.without)))


if __name__ == "__main__":
    main()
