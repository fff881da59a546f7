"""What a daemon had heard of its rooms whenever it said something, seen at the proxy, and who may read it.

Every word belongs to a scope: that of who could read where it was said. No send may begin with a
word in it once the daemon has taken in that somebody reads there who does not fit its scope.
"""

import json
import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tests.world.model import Seen
from tests.world.person import Person
from tests.world.proxy import Action, After, Before, Proxy, Request, pass_after, pass_before

Json = dict[str, Any]
WORD = re.compile(r"\bword\d+end\b")
SEND = re.compile(r"/rooms/([^/]+)/send/([^/]+)/([^/]+)$")
BEGUN = 0.5
"""Seconds for a turn that had begun to be asked for; the answer goes nowhere."""
KEPT_RULES = {"invite", "private", "knock"}
KEPT_PASTS = {"invited", "joined", "shared"}


@dataclass(frozen=True, slots=True)
class Readers:
    """Who is in a room, each with their membership, and what keeps others out."""

    members: Mapping[str, str] = field(default_factory=dict)
    join_rule: str = "invite"
    history: str = "shared"

    @property
    def users(self) -> frozenset[str]:
        """All who can read what is said from now on."""
        return frozenset(user for user, how in self.members.items() if how in ("join", "invite"))

    def scope(self, room: str, bot: str, allowed: frozenset[str]) -> str:
        """Whose is what is said here: of the one allowed person who reads it, or of the room."""
        kept = self.join_rule in KEPT_RULES and self.history in KEPT_PASTS
        others = self.users - {bot}
        alone = len(others) == 1 and others <= allowed and kept
        return f"person:{min(others)}" if alone else f"room:{room}"

    def told(self, event: Json) -> "Readers":
        """After an event of state."""
        content, key = event["content"], event.get("state_key")
        if event["type"] == "m.room.member" and key is not None:
            return replace(self, members={**self.members, key: content.get("membership", "leave")})
        if event["type"] == "m.room.join_rules":
            return replace(self, join_rule=content.get("join_rule", "invite"))
        if event["type"] == "m.room.history_visibility":
            return replace(self, history=content.get("history_visibility", "shared"))
        return self


@dataclass(frozen=True, slots=True)
class Word:
    """`scopes`: for whom it is; what a person said among others is their own too. `room`: said there."""

    scopes: frozenset[str]
    room: str


@dataclass(slots=True)
class Sent:
    """One attempt to send. `body`: what it says, None while it is only known encrypted."""

    room: str
    txn: str
    heard: Readers
    given: Readers
    """As the answers have it that the daemon may have taken in since."""
    lineage: frozenset[str]
    """The scopes of the room, as far as this daemon had been told which rooms it follows."""
    body: str | None
    event_id: str = ""

    @property
    def known(self) -> frozenset[str]:
        """All who may have been given its key: an answer is taken in a moment before the next is asked for."""
        return self.heard.users | self.given.users


@dataclass(slots=True)
class Asked:
    """One request to the model. `room`: where the message was said that it is to answer."""

    words: frozenset[str]
    room: str
    heard: Readers
    given: Readers
    lineage: frozenset[str]
    since: float
    """How long the daemon had known that, in seconds."""


class Watch:
    """Stands at the proxy between a daemon and its homeserver; and lets others at what it saw."""

    def __init__(self, proxy: Proxy, bot: str, allowed: frozenset[str]) -> None:
        self._bot = bot
        self._allowed = allowed
        self._answers: dict[str, Json] = {}
        self._heard: dict[str, Readers] = {}
        self._given: dict[str, Readers] = {}
        self._at: dict[str, float] = {}
        self._ever: set[tuple[str, str]] = set()
        """Who has ever read in a room: alone, they may be told what they could read there."""
        self._words: dict[str, Word] = {}
        self._successors: dict[str, str] = {}
        self._predecessors: dict[str, str] = {}
        self.sent: list[Sent] = []
        self.asked: list[Asked] = []
        self.before: Before = pass_before
        self.after: After = pass_after
        """As those of a proxy: what else is to happen to a request."""
        proxy.before, proxy.after = self._before, self._after

    def word(self, *scopes: str, room: str = "") -> str:
        """A new word for some scopes, said in a room if it is to be answered there."""
        word = f"word{len(self._words)}end"
        self._words[word] = Word(frozenset(scopes), room)
        return word

    def scope(self, room: str, readers: Readers) -> str:
        """Whose is what is said in a room with these readers."""
        return readers.scope(room, self._bot, self._allowed)

    def note(self, seen: Seen) -> list[str]:
        """A request came to the model: the words in it, those of its question last."""
        found = WORD.findall(str(seen.body))
        last = WORD.findall(seen.last_user)
        asked = self._words[last[-1]].room if last and "<event" not in seen.last_user else ""
        room = self._home(asked)  # it goes on there, with all that is known there
        since = time.monotonic() - self._at.get(room, 0.0)
        heard = self._heard.get(room, Readers())
        given, lineage = self._given.get(room, Readers()), self._lineage(room)
        self.asked.append(Asked(frozenset(found), room, heard, given, lineage, since))
        return list(dict.fromkeys(found))

    def _before(self, request: Request) -> Action:
        # Who asks for what is after an answer has taken that answer in.
        if request.path.endswith("/sync"):
            self._hear(self._answers.pop(request.query.get("since", ""), {}))
        elif said := SEND.search(request.path):
            room, kind, txn = said.groups()
            body = str(request.json) if kind != "m.room.encrypted" else None
            heard = self._heard.get(room, Readers())
            given, lineage = self._given.get(room, Readers()), self._lineage(room)
            self.sent.append(Sent(room, txn, heard, given, lineage, body))
        return self.before(request)

    def _after(self, request: Request, status: int, body: bytes) -> Action:
        if status == 200:
            answer = json.loads(body)
            if request.path.endswith("/sync"):
                self._answers[answer["next_batch"]] = answer.get("rooms", {})
                self._give(answer.get("rooms", {}))
                self._follow(answer.get("rooms", {}).get("join", {}))
            elif said := SEND.search(request.path):
                for sent in self._attempts(said[3]):  # the homeserver took one of them
                    sent.event_id = answer["event_id"]
        return self.after(request, status, body)

    def _attempts(self, txn: str) -> list[Sent]:
        return [sent for sent in self.sent if sent.txn == txn]

    def _give(self, rooms: Json) -> None:
        for room, news in rooms.get("join", {}).items():
            for event in _events(news):
                self._given[room] = self._given.get(room, Readers()).told(event)
        for room in rooms.get("leave", {}):
            self._given[room] = Readers()

    def _follow(self, rooms: Json) -> None:
        """Which room follows which; a daemon goes there before it asks for what is after."""
        for room, news in rooms.items():
            for event in _events(news):
                content = event["content"]
                if event["type"] == "m.room.tombstone":
                    self._successors[room] = str(content.get("replacement_room", ""))
                elif event["type"] == "m.room.create":
                    before = content.get("predecessor", {}).get("room_id", "")
                    self._predecessors[room] = str(before)

    def _home(self, room: str) -> str:
        """Where what was in a room goes on: both rooms must say so (F-013)."""
        next_ = self._successors.get(room, "")
        return self._home(next_) if next_ and self._predecessors.get(next_) == room else room

    def _lineage(self, room: str) -> frozenset[str]:
        """The scopes of a room and of all that it follows."""
        before = self._predecessors.get(room, "")
        earlier = self._lineage(before) if self._successors.get(before) == room else frozenset()
        return earlier | {f"room:{room}"}

    def _hear(self, rooms: Json) -> None:
        for room, news in rooms.get("join", {}).items():
            for event in _events(news):
                before = self._heard.get(room, Readers())
                if (now := before.told(event)) != before:
                    self._heard[room], self._at[room] = now, time.monotonic()
                    self._ever |= {(f"person:{user}", f"room:{room}") for user in now.users}
        for room in rooms.get("leave", {}):
            self._heard[room], self._at[room] = Readers(), time.monotonic()

    # The verdict ---------------------------------------------------------------------------

    def leaks(self, people: Iterable[Person]) -> list[str]:
        """What was sent, could be read or was asked although it should not have been."""
        people = list(people)
        found: list[str] = []
        for sent in self.sent:
            readers = [p for p in people if _opened(p, sent)]
            for body in {sent.body, *(_opened(p, sent) for p in readers)} - {None}:
                wrong = self._wrong(str(body), sent)
                found += [f"{sent.txn} in {sent.room}: {word}" for word in wrong]
            meant = {user for each in self._attempts(sent.txn) for user in each.known}
            strangers = {p.user_id for p in readers} - meant
            if sent.body is None and strangers:
                found.append(f"{sent.txn} in {sent.room} can be read by {strangers}")
        return found + [problem for asked in self.asked for problem in self._mixed(asked)]

    def _wrong(self, text: str, where: Sent | Asked) -> list[str]:
        """The words in a text that not all may read who read it, as was heard and as was given.

        A daemon takes an answer in a moment before it asks for the next: who just left is gone.
        """
        found = self._unfit(text, where, where.heard)
        return found if found and self._unfit(text, where, where.given) else []

    def _unfit(self, text: str, where: Sent | Asked, readers: Readers) -> list[str]:
        whose = self.scope(where.room, readers)
        theirs = {scope for person, scope in self._ever if person == whose}
        here = where.lineage | theirs | {whose}
        return [
            f"{word} of {set(self._words[word].scopes)} by {readers}"
            for word in dict.fromkeys(WORD.findall(text))
            if not here & self._words[word].scopes
        ]

    def _mixed(self, asked: Asked) -> list[str]:
        """F-004: a request is about one person or none, and all in it fits who is in its room."""
        meant = {self._words[word].scopes for word in asked.words}
        people = {scope for scopes in meant if len(scopes) == 1 for scope in scopes}
        mixed = [scope for scope in sorted(people) if scope.startswith("person:")]
        found = [f"asked with words of {mixed}"] if len(mixed) > 1 else []
        if asked.room and asked.since > BEGUN:
            wrong = self._wrong(" ".join(sorted(asked.words)), asked)
            found += [f"asked in {asked.room} after {asked.since:.2f} s: {word}" for word in wrong]
        return found

    def worth(self, people: Iterable[Person]) -> int:
        """How many words of people's own were sent at all: what there was to leak."""
        texts = [sent.body or _opened(p, sent) or "" for sent in self.sent for p in people]
        said = (self._words[word] for text in texts for word in WORD.findall(text))
        return sum(all(scope.startswith("person:") for scope in word.scopes) for word in said)


def _events(news: Json) -> list[Json]:
    """The state of a room and what happened there, in order."""
    timeline = news.get("timeline", {}).get("events", [])
    return [*news.get("state", {}).get("events", []), *timeline]


def _opened(person: Person, sent: Sent) -> str | None:
    """What a person reads at the event of an encrypted sending; None: nothing."""
    event = next((e for e in person.events(sent.room) if e.event_id == sent.event_id), None)
    if event is None or sent.body is not None or event.type == "m.room.encrypted":
        return None
    return event.body
