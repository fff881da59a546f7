"""Kills the daemon at random, again and again, and counts what it said in the rooms' history.

    python -m tests.torture --kills 500 [--seed N]

Four rooms of two people, two of them encrypted, in which messages are answered, reminders fall due
and tasks run by themselves. The kills come at a random statement of our database or of nio's key
store, at a random request to the homeserver or the model, or at a random moment; now and then the
homeserver is killed as well. Exit 1 when an answer, a reminder, one of its signs or the result of a
run is lost or doubled.
"""

import argparse
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
from contextlib import AsyncExitStack, suppress
from pathlib import Path

from tests.world.bot import Bot, Json, write_settings
from tests.world.delegating import done, objective
from tests.world.duties import in_, in_time, kept, once, promise, run, signs
from tests.world.homeserver import Homeserver
from tests.world.model import Calls, ModelServer, Seen, Step, Text, Use
from tests.world.proxy import Action, Proxy, Request, pass_after, pass_before
from tests.world.user import MatrixUser
from wintermute.schedule.words import REMINDER
from wintermute.tasks.records import SIGNS

SURVIVAL_SECONDS = 6.0
HOMESERVER_DIES_EVERY = 20
FAILED = re.compile(r"The run of `\w+` \((run \d+)\) failed: ")


def behave(seen: Seen) -> Step:
    """Write a file, then echo; a run of a task ends with a result."""
    if asked := objective(seen):
        return done(f"result of {asked.splitlines()[0]}")
    if seen.messages[-1]["role"] == "user":
        arguments = {"path": "data/skills/note.md", "content": seen.last_user}
        return Calls((Use("write_file", arguments),))
    # What tasks have told the room stands before the message.
    return Text(f"echo: {seen.last_user.rsplit(chr(10), 1)[-1]}")


def promised(body: str) -> str:
    """A message as it was promised: without how late it is; a run may be given up (T-050)."""
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
        proxies: list[Proxy],
    ) -> None:
        self._chance = chance
        self._homeserver = homeserver
        self._people = people
        self._bot = bot
        self._proxies = proxies
        self._rooms: list[tuple[MatrixUser, str]] = []
        self.wanted: dict[str, list[str]] = {}
        self.counts: Counter[str] = Counter()
        self.ways: Counter[str] = Counter()

    async def furnish(self, bot_id: str) -> None:
        """A plain and an encrypted room for each person."""
        for person in self._people:
            for encrypted in (False, True):
                room = await person.create_room(invite=[bot_id], encrypted=encrypted)
                await person.wait_joined(room, bot_id)
                self._rooms.append((person, room))
                self.wanted[room] = []

    async def say(self) -> None:
        """One message in a random room."""
        person, room = self._chance.choice(self._rooms)
        text = self._next("message")
        self.wanted[room].append(f"echo: {text}")
        await person.send(room, text)

    async def promise(self) -> None:
        """Reminders, and now and then a run, due in a random room soon; some at one moment."""
        person, room = self._chance.choice(self._rooms)
        at = in_(self._chance.uniform(2, 5))
        names = [self._next("reminder") for _ in range(self._chance.randint(1, 3))]
        asked = {name: once(at) for name in names}
        self.wanted[room] += [f"{REMINDER}{name}" for name in names]
        if self._chance.random() < 0.25:
            name = self._next("run")
            asked[name] = run(at, name)
            self.wanted[room].append(f"result of {name}")
        await promise(self._bot, person.user_id, room, asked)

    def _next(self, kind: str) -> str:
        self.counts[kind] += 1
        return f"{kind} {self.counts[kind]}"

    async def kill_once(self) -> None:
        """Start the daemon, let people talk and tasks fall due, and end it somewhere."""
        way = self._chance.choice(["statement", "statement", "key store", "request", "moment"])
        self.ways[way] += 1
        await self.say()
        await self.promise()
        await self._bot.start(self._trigger(way), ready=False)
        if way == "request":
            self._arm(self._bot.pid)
        limit = self._chance.uniform(0.5, 4) if way == "moment" else SURVIVAL_SECONDS
        if self._chance.random() < 0.5:
            await self.say()
        try:
            await self._bot.ended(limit)
        except TimeoutError:
            await self._bot.kill()
        for proxy in self._proxies:
            proxy.before, proxy.after = pass_before, pass_after

    def _trigger(self, way: str) -> Json | None:
        phase = self._chance.choice(["executing", "operation"])
        if way == "statement":
            return {"logger": "aiosqlite", "steps": [[phase, ""]] * self._chance.randint(1, 150)}
        if way == "key store":
            return {"logger": "peewee", "steps": [["executing", ""]] * self._chance.randint(1, 250)}
        return None

    def _arm(self, pid: int) -> None:
        proxy = self._chance.choice(self._proxies)
        left = self._chance.randint(1, 12)

        def strike(_request: Request, *_answer: object) -> Action:
            nonlocal left
            left -= 1
            if left == 0:
                os.kill(pid, signal.SIGKILL)
            return None

        if self._chance.random() < 0.5:
            proxy.before = strike
        else:
            proxy.after = strike

    async def crash_homeserver(self) -> None:
        """The homeserver dies as well, while the daemon is at work, and comes back."""
        await self.promise()
        await self._bot.start()
        with suppress(TimeoutError):
            await self._bot.ended(self._chance.uniform(0.5, 5))
        await asyncio.to_thread(self._homeserver.stop, kill=True)
        await asyncio.to_thread(self._homeserver.start)
        await self._bot.kill()

    async def verdict(self, bot_id: str) -> tuple[int, int]:
        """What is lost and what is too much, after a last run in peace."""
        await self._bot.start()
        lost = doubled = 0
        for person, room in self._rooms:
            wanted: Counter[object] = Counter(self.wanted[room])
            await self._all_said(person, room, wanted)
            history = [m for m in await person.history(room) if m.sender == bot_id]
            found: Counter[object] = Counter(promised(m.body) for m in history)
            reminders = [m.event_id for m in history if m.body.startswith(REMINDER)]
            signed: Counter[object] = Counter((event, key) for event in reminders for key in SIGNS)
            for want, have in ((wanted, found), (signed, _signs(person, room))):
                self._tell(want, have)
                lost += (want - have).total()
                doubled += (have - want).total()
        await self._bot.until(lambda: kept(self._bot))
        await self._bot.stop()
        return lost, doubled

    async def _all_said(self, person: MatrixUser, room: str, wanted: Counter[object]) -> None:
        def is_said() -> bool:
            texts = [promised(m.body) for m in person.messages(room)]
            signs_due = len(SIGNS) * sum(text.startswith(REMINDER) for text in texts)
            return not wanted - Counter(texts) and _signs(person, room).total() >= signs_due

        try:
            await person.until(is_said, within=120)
        except AssertionError:
            return  # counted by the caller

    def _tell(self, wanted: Counter[object], found: Counter[object]) -> None:
        for name, wrong in (("lost", wanted - found), ("doubled", found - wanted)):
            for what, times in wrong.items():
                print(f"{name} {times}: {what}", flush=True)  # noqa: T201


def _signs(person: MatrixUser, room: str) -> Counter[object]:
    return Counter(
        {(event, key): n for event, keys in signs(person, room).items() for key, n in keys.items()}
    )


async def torture(kills: int, seed: int) -> int:
    """Do it; the exit code."""
    began = time.monotonic()
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (folder / "synapse").mkdir()
        homeserver = stack.enter_context(Homeserver(folder / "synapse"))
        people = [
            await stack.enter_async_context(
                MatrixUser(homeserver.url, homeserver.user(name), folder / name)
            )
            for name in ("ann", "bob")
        ]
        model = await stack.enter_async_context(ModelServer())
        model.keyed(behave)
        matrix = await stack.enter_async_context(Proxy(homeserver.url))
        llm = await stack.enter_async_context(Proxy(model.url.removesuffix("/v1")))
        login = homeserver.user("bot")
        config = write_settings(
            folder / "bot",
            matrix.url,
            login,
            f"{llm.url}/v1",
            people[0].user_id,
            matrix={"allowed_users": [people[1].user_id]},
        )
        bot = await stack.enter_async_context(Bot(config))
        trial = Torture(random.Random(seed), homeserver, people, bot, [matrix, llm])
        await trial.furnish(login.user_id)
        await bot.kill()
        for n in range(1, kills + 1):
            await trial.kill_once()
            if n % HOMESERVER_DIES_EVERY == 0:
                await trial.crash_homeserver()
                print(f"{n} kills, {time.monotonic() - began:.0f} s", flush=True)  # noqa: T201
        lost, doubled = await trial.verdict(login.user_id)
    promised_all = ", ".join(f"{n} {kind}s" for kind, n in trial.counts.items())
    print(  # noqa: T201
        f"seed {seed}: {kills} kills ({', '.join(f'{n} {way}' for way, n in trial.ways.items())}), "
        f"{promised_all}, lost {lost}, doubled {doubled}, {time.monotonic() - began:.0f} s"
    )
    return 1 if lost or doubled else 0


def main() -> None:
    """Parse and run."""
    options = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    options.add_argument("--kills", type=int, default=500)
    options.add_argument("--seed", type=int, default=random.randrange(10**6))
    chosen = options.parse_args()
    logging.getLogger("nio").setLevel(logging.ERROR)  # the watchers' word on every outage
    sys.exit(asyncio.run(torture(chosen.kills, chosen.seed)))


if __name__ == "__main__":
    main()
