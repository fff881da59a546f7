"""Random lives of rooms: people come, go and speak while a daemon answers, dies and is cut off.

What is done is one list of steps from one seed; who may read what is judged by a Watch.
"""

import asyncio
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.world.bot import Bot, meet
from tests.world.copied import copied_at_work, put_back
from tests.world.delegating import call, objective, spawn
from tests.world.drafts import LIVE
from tests.world.duties import SYSTEM, Open, in_, once, open_rows
from tests.world.model import Calls, Drip, Fail, ModelServer, Seen, Step, Text, Use
from tests.world.proxy import Action, Answer, Cut, Proxy, Request, pass_after, pass_before
from tests.world.upgrades import room_path
from tests.world.user import CLIENT, MatrixUser, Message, under
from tests.world.watch import KEPT_PASTS, KEPT_RULES, Readers, Watch
from wintermute.changes.change_sets import Reason
from wintermute.db import open_database
from wintermute.ids import new_id
from wintermute.mailbox.rooms import compute_moves
from wintermute.owner import Owner
from wintermute.stores import Stores

DOWN = Answer(502, b"<html>")
LIMITED = Answer(429, {"errcode": "M_LIMIT_EXCEEDED", "error": "slow", "retry_after_ms": 300})
JOIN_RULES = ("invite", "knock", "public", "restricted", "org.example.new")
HISTORIES = ("shared", "joined", "invited", "world_readable")
STEPS = {
    "write": 40,
    "reword": 6,
    "listed": 6,
    "remind": 5,
    "invite": 12,
    "join": 14,
    "leave": 14,
    "remove": 9,
    "knock": 2,
    "rule": 6,
    "history": 4,
    "upgrade": 5,
    "redact": 2,
    "lose": 3,
    "outage": 6,
    "kill": 8,
    "copy": 4,
    "restore": 4,
}
"""What may happen, each with how often it does among all of them."""
ASKED = 0.85
"""How likely somebody is asked into the room that follows."""
NAPS = (0.0, 0.1, 0.3, 1.0)
REBORN = 0.4
"""How likely a dead daemon is started after a step."""
QUIET_SECONDS = 60.0
MORE = " and so on" * 8
"""Answers long enough to grow, in the rooms where somebody waits for them."""


@dataclass(slots=True)
class Chat:
    """A room as the homeserver has it: nobody but this life changes it. `over`: another follows it."""

    id: str
    host: MatrixUser
    people: dict[str, MatrixUser]
    readers: Readers
    said: list[tuple[MatrixUser, str]] = field(default_factory=list)
    roots: list[str] = field(default_factory=list)
    over: bool = False

    def where(self, how: str) -> list[MatrixUser]:
        """Who is joined, invited and so on."""
        return [p for user, p in self.people.items() if self.readers.members.get(user) == how]

    def writers(self) -> list[MatrixUser]:
        """Who may say something: in a room that is over its host alone."""
        return [p for p in self.where("join") if not self.over or p is self.host]


def faults_of(name: str) -> Callable[[Request], Action]:
    """Trouble on the way to the homeserver."""

    def sends(request: Request) -> bool:
        return "/send/" in request.path

    return {
        "down": lambda _: DOWN,
        "no sends": lambda request: DOWN if sends(request) else None,
        "slow down": lambda request: LIMITED if sends(request) else None,
        "no syncs": lambda request: DOWN if request.path.endswith("/sync") else None,
        "no keys": lambda request: Cut() if "/keys/" in request.path else None,
    }[name]


class Life:
    """One daemon, three people and the rooms they share; `steps` is what was done, to be read."""

    def __init__(
        self,
        seed: int,
        people: tuple[MatrixUser, MatrixUser, MatrixUser],
        daemon: Bot,
        model: ModelServer,
        proxy: Proxy,
    ) -> None:
        self._chance, self._model_chance = random.Random(seed), random.Random(seed)
        self._ann, self._ben, _ = people
        self._people = {person.user_id: person for person in people}
        self._daemon = daemon
        self._chats: list[Chat] = []
        self._copy: Path | None = None
        self._begun: Counter[str] = Counter()
        self._is_calm = False
        self._open: list[Open] = []
        self._growing: list[str] = []
        self._allowed = frozenset({self._ann.user_id, self._ben.user_id})
        self.watch = Watch(proxy, daemon.user_id, self._allowed)
        self.steps: list[str] = [f"seed {seed}"]
        self._acts: dict[str, Callable[[Chat], Awaitable[str]]] = {
            "write": self._write,
            "reword": self._reword,
            "listed": self._listed,
            "remind": self._remind,
            "invite": self._invite,
            "join": self._join,
            "leave": self._leave,
            "remove": self._remove,
            "knock": self._knock,
            "rule": self._rule,
            "history": self._history,
            "upgrade": self._upgrade,
            "redact": self._redact,
            "lose": self._lose,
            "outage": self._outage,
            "kill": self._kill,
            "copy": self._take_copy,
            "restore": self._restore,
        }
        model.keyed(self._answer)

    async def furnish(self) -> None:
        """Chats of two and one of three, in clear and encrypted; each scope has something to hide."""
        plans = [(self._ann, (), False), (self._ann, (), True), (self._ben, (), True)]
        for host, guests, encrypted in [*plans, (self._ann, (self._ben,), False)]:
            room = await meet(host, self._daemon.user_id, *guests, encrypted=encrypted)
            users = (self._daemon.user_id, *(person.user_id for person in (host, *guests)))
            inside = dict.fromkeys(users, "join")
            self._chats.append(Chat(room, host, self._people, Readers(inside)))
        scopes = [f"person:{person.user_id}" for person in (self._ann, self._ben)]
        async with self._stores() as stores, stores.database.transaction() as tx:
            for scope in [*scopes, *(f"room:{chat.id}" for chat in self._chats)]:
                text = f"Never forget {self.watch.word(scope)}"
                why = Reason("command", scope)
                await stores.facts.add(tx, why, text, "user_explicit", scope=scope)

    async def run(self, steps: int) -> None:
        """Live, and be well in the end. On a slow machine a life is longer, until an answer grew."""
        done = 0
        while done < steps or (done < 2 * steps and not self.grew()):
            name = self._chance.choices(list(STEPS), list(STEPS.values()))[0]
            chat = self._chance.choice(self._chats)
            if not (did := await self._acts[name](chat)):
                continue  # nobody who could, or the homeserver refused
            done += 1
            self.steps.append(f"{name} {chat.id[:5]} {did}")
            await asyncio.sleep(self._chance.choice(NAPS))
            if not self._daemon.running and self._chance.random() < REBORN:
                await self._daemon.start(ready=False)
                self.steps.append("the daemon starts")
        self.watch.before, self.watch.after = pass_before, pass_after
        if not self._daemon.running:
            await self._daemon.start()
        await self._quiet()

    def problems(self) -> list[str]:
        """What should not have been read, and what hangs, with the life it happened in."""
        found = self.watch.leaks(self._people.values())
        found += [f"still open: {each}" for each in self._open]
        found += [f"still grows: {each}" for each in self._growing]
        return [*found, *self.steps, self.summary()] if found else []

    def summary(self) -> str:
        """How much there was to go wrong."""
        sent, asked, worth = len(self.watch.sent), len(self.watch.asked), self.worth()
        kept = len(self._daemon.rows("SELECT 1 FROM notices WHERE key LIKE 'kept back %'"))
        told = f"{sent} sends, {asked} requests, {worth} private words, {kept} kept back"
        return f"{self.steps[0]}: {told}, {self.grew()} that grew"

    def grew(self) -> int:
        """The number of answers that grew, as the data of now know it."""
        return len(self._daemon.rows("SELECT 1 FROM outbox WHERE grows IS NOT NULL"))

    def worth(self) -> int:
        """How many words of people's own were said."""
        return self.watch.worth(self._people.values())

    async def _quiet(self) -> None:
        """Guests go and rooms close; then all is said, and who may read it has decrypted it."""
        self._is_calm = True
        for chat in self._chats:
            await self._close(chat)
        deadline = time.monotonic() + QUIET_SECONDS
        while (left := self._hanging()) and time.monotonic() < deadline:  # noqa: ASYNC110  its rows
            await asyncio.sleep(0.2)
        self._open = left
        await asyncio.sleep(1)  # the people's clients have long polls of their own
        for chat in self._chats:
            self._growing += await self._left_growing(chat)

    async def _left_growing(self, chat: Chat) -> list[str]:
        """The answers that have no end where their host reads on."""
        host, us = chat.host, self._daemon.user_id
        if chat.over or host not in chat.where("join") or us not in host.members(chat.id):
            return []
        newest = dict[str, Message]()
        for message in host.messages(chat.id, us):
            relation = message.content.get("m.relates_to", {})
            is_edit = relation.get("rel_type") == "m.replace"
            newest[relation["event_id"] if is_edit else message.event_id] = message
        found = [event for event, message in newest.items() if LIVE in message.content]
        at = f"{CLIENT}/rooms/{chat.id}/event"
        shown = [(event, await host.api("GET", f"{at}/{event}")) for event in found]
        return [f"{event} in {chat.id}" for event, (_, each) in shown if each.get("content")]

    async def _close(self, chat: Chat) -> None:
        """Nobody but its host is in a room or can come in."""
        host = chat.host
        if host not in chat.where("join"):
            return
        for person in self._people.values():
            if person is not host and person in chat.where("invite") + chat.where("join"):
                await self._member(chat, person, "leave")
        await self._state(chat, "m.room.join_rules", {"join_rule": "invite"})
        await self._state(chat, "m.room.history_visibility", {"history_visibility": "shared"})

    def _hanging(self) -> list[Open]:
        """What nothing holds: in rooms where the bot is and hears somebody, and not put off."""
        us, now = self._daemon.user_id, SYSTEM.now().isoformat()
        alive = {
            chat.id
            for chat in self._chats
            for person in chat.where("join")
            if person.user_id in self._allowed and us in person.members(chat.id)
        }
        return [
            row
            for row in open_rows(self._daemon)
            if row.room in alive and row.state != "stuck" and not (row.later or "") > now
        ]

    # The model -----------------------------------------------------------------------------

    def _answer(self, seen: Seen) -> Step:
        """Repeat all that it was told, at once, slowly, by others or not at all."""
        known = " ".join(self.watch.note(seen))
        if objective(seen):
            return Calls((Use("done", {"answer": f"did {known}"}),))
        text, chance = f"I know {known}", self._model_chance.random()
        if seen.messages[-1]["role"] == "tool" or chance < 0.4 or self._is_calm:
            return Text(text)
        if chance < 0.7:
            return Drip(text + MORE, interval=0.1)
        if chance < 0.8:
            return Fail(503)
        if chance < 0.9:
            return Calls((spawn(f"Look at {known}"),))
        return Calls((call(f"Look at {known}"),))

    # Steps: each says what it did, or nothing ---------------------------------------------------

    def _one(self, people: list[MatrixUser]) -> MatrixUser | None:
        return self._chance.choice(people) if people else None

    async def _write(self, chat: Chat) -> str:
        who = self._one(chat.writers())
        if who is None or not await _is_ready(who, chat):
            return ""
        if who.begun_by(self._daemon.user_id) > self._begun[who.user_id]:
            self._begun[who.user_id] = who.begun_by(self._daemon.user_id)
            who.begin_sessions()
        scope, own = self.watch.scope(chat.id, chat.readers), f"person:{who.user_id}"
        word = self.watch.word(scope, own, room=chat.id)
        mention = {"m.mentions": {"user_ids": [self._daemon.user_id]}}
        root = self._chance.choice(chat.roots) if chat.roots and self._chance.random() < 0.4 else ""
        event_id = await who.send(
            chat.id, f"what of {word}", **mention, **(under(root) if root else {})
        )
        chat.said.append((who, event_id))
        chat.roots += [] if root else [event_id]
        return f"{who.user_id} {word} {root and 'in a thread'}"

    async def _reword(self, chat: Chat) -> str:
        """The newest question has another text."""
        who, event_id = chat.said[-1] if chat.said else (None, "")
        if who not in chat.writers() or who is None or not await _is_ready(who, chat):
            return ""
        scope, own = self.watch.scope(chat.id, chat.readers), f"person:{who.user_id}"
        word = self.watch.word(scope, own, room=chat.id)
        await who.edit(chat.id, event_id, f"what of {word}")
        return f"{who.user_id} {word}"

    async def _listed(self, chat: Chat) -> str:
        who = self._one(chat.writers())
        if who is None or not await _is_ready(who, chat):
            return ""
        await who.send(chat.id, "/memory")
        return who.user_id

    async def _remind(self, chat: Chat) -> str:
        """A task of whoever has the room now, due soon."""
        scope = self.watch.scope(chat.id, chat.readers)
        word, asked = self.watch.word(scope), once(in_(self._chance.uniform(2, 5)))
        async with self._stores() as stores, stores.database.transaction() as tx:
            held = await stores.conversations.of_room(tx, chat.id)
            if held is None:
                return ""
            whose = compute_moves(await stores.known.links()).canonical_scope(scope)
            why, home = Reason("command", whose), held.id
            await stores.tasks.add(tx, why, word, scope=whose, request=asked, conversation_id=home)
        return f"{scope} {word}"

    async def _invite(self, chat: Chat) -> str:
        host, ours = self._one(chat.where("join")), {self._daemon.user_id: None}
        everybody, inside = {**self._people, **ours}, chat.readers.members
        others = [u for u in everybody if inside.get(u) in (None, "leave") or u in ours]
        if host is None:
            return ""
        guest = self._chance.choice(others)
        return await self._member(chat, host, "invite", guest)

    async def _join(self, chat: Chat) -> str:
        who = self._one(chat.where("invite") or chat.where("leave"))
        return await self._member(chat, who, "join") if who else ""

    async def _leave(self, chat: Chat) -> str:
        inside = chat.where("invite") + chat.where("join")
        guests = [person for person in inside if person is not chat.host]
        # Mostly they go again; a room that its host has left for good is of no more use.
        who = self._one(inside if guests and self._chance.random() < 0.2 else guests)
        return await self._member(chat, who, "leave") if who else ""

    async def _remove(self, chat: Chat) -> str:
        host, how = self._one(chat.where("join")), self._chance.choice(("kick", "ban", "unban"))
        inside = ("ban",) if how == "unban" else ("join", "invite")
        others = [u for u, now in chat.readers.members.items() if now in inside]
        guests = [u for u in others if host is None or u != host.user_id]
        if host is None or not guests:
            return ""
        return await self._member(chat, host, how, self._chance.choice(guests))

    async def _knock(self, chat: Chat) -> str:
        who = self._one([p for p in self._people.values() if p not in chat.where("join")])
        return await self._member(chat, who, "knock") if who else ""

    async def _member(self, chat: Chat, who: MatrixUser, verb: str, other: str = "") -> str:
        """Change who is in a room, if the homeserver lets them."""
        at = f"{CLIENT}/knock/{chat.id}" if verb == "knock" else f"{CLIENT}/rooms/{chat.id}/{verb}"
        status, _ = await who.api("POST", at, {"user_id": other} if other else {})
        if status != 200:
            return ""
        how = {"kick": "leave", "unban": "leave"}.get(verb, verb)
        changed = {**chat.readers.members, other or who.user_id: how}
        chat.readers = Readers(changed, chat.readers.join_rule, chat.readers.history)
        return f"{who.user_id} {verb} {other}"

    async def _rule(self, chat: Chat) -> str:
        kept = chat.readers.join_rule in KEPT_RULES
        rule = self._chance.choice(JOIN_RULES) if kept else "invite"
        content = {"join_rule": rule, "allow": []}
        return await self._state(chat, "m.room.join_rules", content)

    async def _history(self, chat: Chat) -> str:
        kept = chat.readers.history in KEPT_PASTS
        content = {"history_visibility": self._chance.choice(HISTORIES) if kept else "shared"}
        return await self._state(chat, "m.room.history_visibility", content)

    async def _state(self, chat: Chat, kind: str, content: Mapping[str, object]) -> str:
        who = self._one(chat.where("join"))
        if who is None:
            return ""
        at = f"{CLIENT}/rooms/{chat.id}/state/{kind}"
        status, _ = await who.api("PUT", at, content)
        if status != 200:
            return ""
        chat.readers = chat.readers.told({"type": kind, "state_key": "", "content": content})
        return str(content)

    async def _upgrade(self, chat: Chat) -> str:
        """A new room follows, into which most are asked, as clients do it; the old one stays."""
        host = self._one(chat.where("join"))
        if host is None or chat.over:
            return ""
        at = room_path(chat.id, "upgrade")
        status, answer = await host.api("POST", at, {"new_version": "11"})
        if status != 200:
            return ""
        chat.over, inside = True, chat.readers.members
        banned = {user: how for user, how in inside.items() if how == "ban"}
        members = {**banned, host.user_id: "join"}
        readers = Readers(members, chat.readers.join_rule, chat.readers.history)
        new = Chat(str(answer["replacement_room"]), host, self._people, readers)
        self._chats.append(new)
        asked = [user for user in inside if user not in members and self._chance.random() < ASKED]
        for user in asked:
            if inside[user] in ("join", "invite"):
                await self._member(new, host, "invite", user)
        return f"{host.user_id} {new.id[:5]} {asked}"

    async def _redact(self, chat: Chat) -> str:
        if not chat.said:
            return ""
        who, event_id = self._chance.choice(chat.said)
        at = f"{CLIENT}/rooms/{chat.id}/redact/{event_id}/{new_id('txn')}"
        status, _ = await who.api("PUT", at, {})
        return event_id if status == 200 else ""

    async def _lose(self, _chat: Chat) -> str:
        """The homeserver does what it is asked, and its answers are lost."""
        left = many = self._chance.randint(1, 4)

        def lose(*_: object) -> Action:
            nonlocal left
            left -= 1
            return Cut() if left >= 0 else None

        self.watch.after = lose
        return f"{many} answers"

    async def _outage(self, _chat: Chat) -> str:
        name = self._chance.choice(("down", "no sends", "slow down", "no syncs", "no keys"))
        seconds = self._chance.uniform(0.5, 4)
        deadline, faults = time.monotonic() + seconds, faults_of(name)
        self.watch.before = lambda r: faults(r) if time.monotonic() < deadline else None
        return f"{name} {seconds:.1f} s"

    async def _kill(self, _chat: Chat) -> str:
        if not self._daemon.running:
            return ""
        await self._daemon.kill()
        return "killed"

    async def _take_copy(self, _chat: Chat) -> str:
        """Of the folder of a daemon at work, or of one that was killed."""
        self._copy = await copied_at_work(self._daemon)
        return "at work" if self._daemon.running else "at rest"

    async def _restore(self, _chat: Chat) -> str:
        """An earlier copy is put back."""
        if self._copy is None:
            return ""
        await self._daemon.kill()
        put_back(self._daemon, self._copy)
        return "put back"

    @asynccontextmanager
    async def _stores(self) -> AsyncIterator[Stores]:
        """What the daemon has, beside it."""
        data, owner = self._daemon.data, self._ann.user_id
        async with open_database(data / "wintermute.db") as database:
            yield Stores.of(database, data, Owner(owner), SYSTEM, new_id, timezone="Europe/Berlin")


async def _is_ready(who: MatrixUser, chat: Chat) -> bool:
    """Whether somebody's client knows that they are in a room."""
    try:
        await who.until(lambda: who.user_id in who.members(chat.id), within=5)
    except AssertionError:
        return False
    return True
