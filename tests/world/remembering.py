"""Random lives of what is told, learnt and taken back: who said what, what of it was read, what is left.

People say words that nobody else says, word them anew, begin afresh, take them back; rooms get other
readers, time passes, the program is started anew. What is done is one list of steps from one seed.
"""

import asyncio
import json
import random
import re
import string
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from tests.world.clock import WITHIN, HeldClock
from tests.world.house import PROMPTS, ROOM, House, open_house
from tests.world.model import Calls, ModelServer, Seen, Step, Text, Use
from tests.world.request_rules import (
    is_for_core,
    is_for_json,
    is_for_reconstruction,
    is_for_summary,
)
from wintermute.config.schema import Context, Memory, MemoryHarvest
from wintermute.forgetting.forgetting import RECOGNISABLE
from wintermute.matrix.relations import Relations
from wintermute.messages import Incoming, Origin, Quote

OFTEN = MemoryHarvest(message_threshold=6, min_messages=1)
RANKED = Memory(backend="fts5")
CONTEXT = Context(keep_recent=2)
QUARTER = 16 * 60.0
STEPS = {
    "say": 40,
    "remember": 4,
    "line": 4,
    "reply": 6,
    "edit": 10,
    "new": 3,
    "fold": 4,
    "redact": 10,
    "redact an edit": 2,
    "redact an answer": 3,
    "shift": 3,
    "wait": 10,
    "restart": 3,
}
"""What may happen, each with how often it does among all of them."""
THINGS = ("boat", "garden", "letter", "bread", "river", "lamp", "harbour", "bird", "coat", "song")
KEEP = "remember "
HEADERS = "# SOUL\n\n# TOOLS\n\n# RULE\n\n# USER\n"
AT_ONCE = 0.5
"""How likely it is waited until all of something is forgotten before anything else happens."""
PEOPLE: dict[str, tuple[str, Origin]] = {
    "@ann:test": ("Ann", "owner"),
    "@ben:test": ("Ben", "other"),
}
UNREAD = (
    "SELECT i.event_id FROM inbox i LEFT JOIN harvests h USING (conversation_id)"
    " WHERE i.kind = 'message' AND i.state = 'answered' AND i.body <> ''"
    " AND i.seq > coalesce(h.upto, 0)"
)
OWED = "SELECT name, state FROM jobs WHERE state IN ('waiting', 'running')"
"""Sooner or later."""


class TickingClock(HeldClock):
    """Stands still but for this: nothing is ever as late as something else."""

    def now(self) -> datetime:
        self.advance(1e-6)
        return super().now()


@dataclass(slots=True)
class Place:
    """A room. `alone`: of its one person, whose it is then."""

    room: str
    people: tuple[str, ...]
    alone: bool

    def scope(self, sender: str) -> str:
        """Whose it is what somebody says there."""
        return f"person:{sender}" if self.alone else f"room:{self.room}"


@dataclass(slots=True)
class Wording:
    """What a message said for a while. `least`: of how many transcripts it has to be a part; `most`.

    More than one for what is read again because somebody took back something that a memory came from.
    """

    word: str
    event: str
    least: int = 1
    most: int = 1


@dataclass(slots=True)
class Told:
    """A message, and what it said at first, then, and last."""

    place: Place
    sender: str
    scope: str
    wordings: list[Wording]
    kind: str
    gone: bool = False
    again: int = 0
    """How often it may be read once more."""

    @property
    def events(self) -> set[str]:
        """By which names it was said."""
        return {each.event for each in self.wordings}

    @property
    def words(self) -> list[str]:
        """All it ever said."""
        return [each.word for each in self.wordings]


@dataclass(slots=True)
class Transcript:
    """A question of a harvest: what people say in it."""

    own: str

    def has(self, word: str) -> bool:
        """Whether somebody says it there."""
        return word in self.own


class Remembering:
    """One installation, two people and their rooms; `steps` is what was done, to be read."""

    def __init__(self, seed: int, folder: Path, model: ModelServer) -> None:
        self._chance, self._model_chance = random.Random(seed), random.Random(seed)
        self._folder = folder / "data"
        self._model = model
        self._clock = TickingClock()
        self._stack = AsyncExitStack()
        self._places = [
            Place(ROOM, ("@ann:test",), alone=True),
            Place("!ben:test", ("@ben:test",), alone=True),
            Place("!club:test", ("@ann:test", "@ben:test"), alone=False),
            Place("!shift:test", ("@ann:test",), alone=True),
        ]
        self._said: list[Told] = []
        self._words: list[str] = []
        self._texts: list[str] = []
        """What was said and remembered, as it was."""
        self._forgotten: dict[str, int] = {}
        """Words whose forgetting was seen to be over, and how many requests there had been."""
        self._found: list[str] = []
        self.steps: list[str] = [f"seed {seed}"]
        self._acts: dict[str, Callable[[House], Awaitable[str]]] = {
            "say": self._say,
            "remember": self._remember,
            "line": self._line,
            "reply": self._reply,
            "edit": self._edit,
            "new": self._new,
            "fold": self._fold,
            "redact": self._redact,
            "redact an edit": self._redact_edit,
            "redact an answer": self._redact_answer,
            "shift": self._shift,
            "wait": self._wait,
        }
        model.reconstructs = model.updates_core = True
        model.allow(
            *("edit", "fold", "fork", "redaction", "forgetting", "edited core"), perhaps=True
        )
        model.keyed(self._answer)

    async def run(self, steps: int) -> None:
        """Live, until so much has happened and nothing is owed."""
        self._folder.mkdir()
        house = await self._opened()
        async with self._stack:
            for name in self._chance.choices(list(STEPS), list(STEPS.values()), k=steps):
                if name == "restart":
                    await self._stack.aclose()
                    house, did = await self._opened(), ""
                else:
                    did = await self._acts[name](house)
                await self._settled(house)
                asked = len(self._model.requests)
                self.steps.append(f"{name} {did} ({asked} requests)")
            for place in self._places:  # whatever has gone may not be in the next question either
                await self._told(house, place, place.people[0], "What do you know of me?", "")
            await self._ended(house)
            self._found = [*self._asked_wrongly(), *await self._remembered_wrongly(house)]
        self._found += self._left_in_files()

    def problems(self) -> list[str]:
        """What was wrong, with the life it happened in."""
        return [*self._found, *self.steps, self.summary()] if self._found else []

    def summary(self) -> str:
        """How much there was to go wrong."""
        read, gone = len(self._transcripts()), sum(each.gone for each in self._said)
        return f"{self.steps[0]}: {len(self._said)} messages, {gone} taken back, {read} transcripts"

    async def _opened(self) -> House:
        opened = open_house(
            self._folder,
            self._model.url,
            prompts=PROMPTS,
            clock=self._clock,
            context=CONTEXT,
            record=True,
            memory=RANKED,
            harvest=OFTEN,
        )
        house = await self._stack.enter_async_context(opened)
        await self._stack.enter_async_context(house.working())
        return house

    # The model -----------------------------------------------------------------------------

    def _answer(self, seen: Seen) -> Step:
        text = seen.system
        if is_for_reconstruction(seen.body):
            return self._reconstructs(block(text, "new_contents"), block(text, "related_memories"))
        if is_for_core(seen.body):
            return self._page(
                block(text, "current_core_markdown"), block(text, "candidate_new_memories")
            )
        if is_for_json(seen.body):
            return self._picks(own(block(text, "transcript")))
        if is_for_summary(seen.body):
            return Text(f"They spoke of {' '.join(self._known(text)) or 'nothing'}.")
        if seen.messages[-1]["role"] != "tool" and seen.last_user.startswith(KEEP):
            kept = fact(seen.last_user.removeprefix(KEEP))
            self._texts.append(kept)
            return Calls((Use("append_memory", {"entry": kept, "source": "user_explicit"}),))
        if self._model_chance.random() < 0.5:
            return Text("I see.")
        shown = json.dumps(seen.messages)
        # A text that is too short to be recognised is not looked for in other answers (M-030).
        known = [each for each in self._texts if each in shown and len(each) >= RECOGNISABLE]
        told = self._model_chance.choice(known) if known else "nothing"
        return Text(f"As you said: {told}, and now {seen.last_user.splitlines()[-1]}")

    def _known(self, text: str) -> list[str]:
        return [word for word in self._words if word in text]

    def _picks(self, transcript: str) -> Text:
        """A memory of each message, or of two of them: always the same of the same."""
        said = [line.partition("): ")[::2] for line in transcript.splitlines()]
        lines = [(who, text.removeprefix(KEEP)) for who, text in said]
        found = list[str]()
        while lines:
            pair = lines[:2] if sorted(lines[:2]) == lines[:2] else lines[:1]
            if len({who for who, _ in pair}) > 1 or not all(self._known(text) for _, text in pair):
                pair = lines[:1]  # nothing is learnt that is made of what two people said
            if self._known(pair[0][1]):
                found.append(" and of ".join([fact(pair[0][1]), *(text for _, text in pair[1:])]))
            lines = lines[len(pair) :]
        self._texts += found
        return Text(json.dumps({"contents": found}))

    def _reconstructs(self, new: str, related: str) -> Text:
        """Each of them, two in one where chance has it; what another one says is not said again."""
        lines = [line[2:] for line in [*related.splitlines(), *new.splitlines()]]
        lines = [line for line in lines if self._known(line)]
        lines = [
            line
            for n, line in enumerate(lines)
            if not any(line in other for m, other in enumerate(lines) if m != n and other != line)
        ]
        lines = [*dict.fromkeys(lines)]
        if len(lines) > 1 and self._model_chance.random() < 0.5:
            lines[:2] = [f"{lines[0]} and {lines[1]}"]
        self._texts += lines
        return Text(json.dumps({"memories": lines, "coverage": "complete"}))

    def _page(self, page: str, candidates: str) -> Text:
        """Some of what is new stands on the page, in fewer words."""
        new = [" ".join(self._known(line)) for line in candidates.splitlines()]
        if self._model_chance.random() < 0.4 or not any(new):
            return Text(json.dumps({"should_update": False, "core_markdown": None}))
        text = page if "# USER" in page else HEADERS
        bullets = "".join(f"\n- Has {word}" for word in new if word)
        wanted = {"should_update": True, "core_markdown": f"{text.rstrip()}{bullets}\n"}
        return Text(json.dumps(wanted))

    # Steps: each says what it did ---------------------------------------------------------------

    def _word(self) -> str:
        word = "".join(self._chance.choices(string.ascii_lowercase, k=10))
        self._words.append(word)
        return word

    def _sentence(self, word: str) -> str:
        things = self._chance.sample(THINGS, 2)
        return self._chance.choice((f"our {things[0]} {word} by the {things[1]}", word))

    async def _say(self, house: House) -> str:
        return await self._new_message(house)

    async def _remember(self, house: House) -> str:
        return await self._new_message(house, KEEP)

    async def _new_message(self, house: House, before: str = "", replies_to: str = "") -> str:
        place, word = self._chance.choice(self._places), self._word()
        sender = self._chance.choice(place.people)
        text = before + self._sentence(word)
        event = await self._told(house, place, sender, text, replies_to)
        told = Told(place, sender, place.scope(sender), [Wording(word, event)], "message")
        self._said.append(told)
        return f"{place.room} {sender} {text} {event}"

    async def _told(
        self, house: House, place: Place, sender: str, text: str, replies_to: str
    ) -> str:
        """Said and answered; a name of what it replies to is the name of a message there."""
        name, origin = PEOPLE[sender]
        self._texts.append(text)
        event = await house.incoming(
            text,
            room=place.room,
            sender=sender,
            name=name,
            origin=origin,
            scope=place.scope(sender),
            direct=place.alone,
            replies_to=replies_to or None,
        )
        await self._settled(house)
        return event

    async def _line(self, house: House) -> str:
        """Somebody says something in the club that is not for the assistant."""
        place, word = self._places[2], self._word()
        event = await house.incoming(
            *(f"by the way {word}",),
            room=place.room,
            sender="@carl:test",
            name="Carl",
            origin="other",
            kind="context",
            scope=place.scope(""),
        )
        wording = Wording(word, event, least=0, most=0)
        self._said.append(Told(place, "@carl:test", place.scope(""), [wording], "line"))
        return f"{word} {event}"

    async def _reply(self, house: House) -> str:
        """Somebody replies to what was said before where they are."""
        place = self._chance.choice(self._places)
        before = [
            each
            for each in self._said
            if each.place is place and not each.gone and each.scope == place.scope(each.sender)
        ]
        if not before:
            return ""
        told, word = self._chance.choice(before), self._word()
        event, sender = told.wordings[0].event, self._chance.choice(place.people)
        quote = Quote(told.sender, "Somebody", f"about {told.wordings[-1].word}")
        house.speaker.quotes[event] = quote
        text = self._sentence(word)
        said = await self._told(house, place, sender, text, event)
        del house.speaker.quotes[event]
        new = Told(place, sender, place.scope(sender), [Wording(word, said)], "message")
        self._said.append(new)
        return f"{place.room} {text} {said} to {event}"

    async def _edit(self, house: House) -> str:
        there = [
            each
            for each in self._said
            if not each.gone
            and each.kind == "message"
            and each.scope == each.place.scope(each.sender)
        ]
        if not there:
            return ""
        newest = self._chance.random() < 0.6
        told = there[-1] if newest else self._chance.choice(there)
        word = self._word()
        text, event = self._sentence(word), f"$edit{len(self._texts)}"
        self._texts.append(text)
        unread = {row["event_id"] for row in await house.rows(UNREAD)}
        is_read = told.events.isdisjoint(unread)
        answered = await self._worded(house, told, text, event)
        if not is_read:  # the new words stand in its place
            told.wordings[-1].least = told.wordings[-1].most = 0
        new = Wording(word, event, most=1 + told.again)
        if is_read and not answered:
            new.least = 0  # by the next harvest, if there is one (M-089)
        told.wordings.append(new)
        if is_read:  # what shares a memory with it may be read once more (M-089)
            for each in self._said:
                each.wordings[-1].most += each is not told and each.scope == told.scope
        return f"{told.wordings[0].event} {text} answered={answered} read={is_read}"

    async def _worded(self, house: House, told: Told, text: str, event: str) -> bool:
        """As a sync brings it: whether it is answered anew, and not only noted."""
        name, origin = PEOPLE[told.sender]
        edit = Incoming(
            event_id=event,
            room_id=told.place.room,
            sender=told.sender,
            sender_name=name,
            origin=origin,
            kind="message",
            body=text,
            sent_at=self._clock.now(),
            direct=told.place.alone,
            edits=told.wordings[0].event,
            raw={"text": text},
        )
        answered = await worded(house, edit)
        await self._settled(house)
        return answered

    async def _new(self, house: House) -> str:
        return await self._command(house, "/new")

    async def _fold(self, house: House) -> str:
        return await self._command(house, "/compact")

    async def _command(self, house: House, text: str) -> str:
        place = self._chance.choice(self._places)
        await self._told(house, place, place.people[0], text, "")
        return place.room

    async def _redact(self, house: House) -> str:
        there = [each for each in self._said if not each.gone]
        if not there:
            return ""
        told = self._chance.choice(there)
        told.gone = True
        await self._taken_back(house, told, told.events)
        return f"{told.words} {sorted(told.events)}"

    async def _redact_edit(self, house: House) -> str:
        """Only the last wording; what it said before is as good as unsaid."""
        there = [each for each in self._said if not each.gone and len(each.wordings) > 1]
        if not there:
            return ""
        told = self._chance.choice(there)
        last = told.wordings.pop()
        for each in told.wordings:
            each.least = 0
            each.most += 1
        gone = Told(told.place, told.sender, told.scope, [last], told.kind, gone=True)
        self._said.append(gone)
        await self._taken_back(house, gone, {last.event})
        return f"{last.word} {last.event}"

    async def _taken_back(self, house: House, told: Told, events: set[str]) -> None:
        """As a sync brings it. What shares a memory with it may be read once more, and what follows."""
        await self._allow(house, events)
        async with house.database.transaction() as tx:
            room = told.place.room
            found = await Relations(house.stores, house.rooms).redact(tx, room, events)
        for conversation_id in found:
            house.rooms.wake(conversation_id)
        house.runner.wake("forget")
        for each in told.wordings:
            each.least = 0
        if self._chance.random() < AT_ONCE:
            await self._settled(house, forgotten=True)

    async def _allow(self, house: House, events: Iterable[str]) -> None:
        asked = json.dumps(sorted(events))
        again = await house.rows(
            "SELECT coalesce(i.edits, i.event_id) AS message FROM inbox i WHERE i.event_id IN"
            " (SELECT o.value FROM facts f, json_each(f.origins) o WHERE EXISTS (SELECT 1"
            "  FROM json_each(f.origins) p WHERE p.value IN (SELECT value FROM json_each(?))))"
            " AND i.event_id NOT IN (SELECT value FROM json_each(?))",
            *(asked, asked),
        )
        named = {row["message"] for row in again}
        for told in self._said:
            if told.events & named:
                told.again += 1
                told.wordings[-1].most += 1

    async def _redact_answer(self, house: House) -> str:
        rows = await house.rows(
            "SELECT room_id, id FROM outbox WHERE kind = 'reply' AND state = 'sent' AND body <> ''"
        )
        if not rows:
            return ""
        row = self._chance.choice(rows)
        async with house.database.transaction() as tx:
            relations = Relations(house.stores, house.rooms)
            await relations.erase_answers(tx, row["room_id"], {f"$of-{row['id']}"})
        house.runner.wake("forget")
        return str(row["id"])

    async def _shift(self, house: House) -> str:
        """Somebody comes in or goes; who reads is known at once."""
        place = self._places[3]
        place.alone = not place.alone
        async with house.database.transaction() as tx:
            scope = place.scope(place.people[0])
            changed = await house.conversations.rescope(tx, place.room, scope)
        for conversation in changed:
            house.rooms.wake(conversation)
        return f"alone={place.alone}"

    async def _wait(self, house: House) -> str:
        await self._clock.move(QUARTER)
        return str(self._clock.now())

    # Waiting -------------------------------------------------------------------------------

    async def _settled(self, house: House, *, forgotten: bool = False) -> None:
        """Until nothing is under way; `forgotten`: nor owed, of what was taken back."""
        calm = 0
        async with asyncio.timeout(WITHIN):
            while calm < 3:
                for place in self._places:
                    await house.deliver(place.room)
                for kind in house.runner.job_types:
                    kind.wakeup.set()
                await asyncio.sleep(0.002)
                calm = 0 if await self._is_busy(house, forgotten=forgotten) else calm + 1
        if not await house.rows(f"{OWED} AND name = 'forget'"):
            for told in self._said:
                if told.gone:
                    for word in told.words:
                        self._forgotten.setdefault(word, len(self._model.requests))

    async def _is_busy(self, house: House, *, forgotten: bool) -> bool:
        if await house.inbox.open_conversations():
            return True
        if await house.rows("SELECT 1 FROM casts WHERE state = 'running'"):
            return True
        owed = await house.rows("SELECT name, state, not_before FROM jobs WHERE state <> 'done'")
        if forgotten and any(job["name"] == "forget" for job in owed):
            await self._clock.move(1)
        now = self._clock.now().isoformat()
        return any(
            job["state"] == "running"
            or (forgotten and job["name"] == "forget")
            or (job["state"] == "waiting" and not (job["not_before"] or "") > now)
            for job in owed
        )

    async def _ended(self, house: House) -> None:
        """Until nothing is owed at all."""
        for _ in range(30):
            await self._clock.move(QUARTER)
            await self._settled(house, forgotten=True)
            queued = await house.rows("SELECT 1 FROM facts WHERE queued AND retired_at IS NULL")
            if not (queued or await house.rows(UNREAD) or await house.rows(OWED)):
                return
        left = [*await house.rows(OWED), *await house.rows(UNREAD)]
        raise AssertionError("\n".join([f"still owed: {left}", *self.steps]))

    # What was wrong ------------------------------------------------------------------------

    def _transcripts(self) -> list[Transcript]:
        return [
            Transcript(own(block(seen.system, "transcript")))
            for seen in self._model.requests
            if "\n<transcript>\n" in seen.system
        ]

    def _asked_wrongly(self) -> list[str]:
        """Messages in no transcript or in too many, of two scopes in one question, or after they went."""
        transcripts, found = self._transcripts(), list[str]()
        for told in self._said:
            for each in told.wordings:
                times = sum(transcript.has(each.word) for transcript in transcripts)
                if not each.least <= times <= each.most:
                    found.append(f"{each} in {times} transcripts, of {told.scope}")
        scopes = {word: told.scope for told in self._said for word in told.words}
        for n, seen in enumerate(self._model.requests):
            text = json.dumps(seen.body)
            words = [word for word in scopes if word in text]
            if len({scopes[word] for word in words}) > 1:
                named = {word: scopes[word] for word in words}
                found.append(f"request {n} has words of several scopes: {named}")
            late = [word for word in words if n >= self._forgotten.get(word, n + 1)]
            if late:
                found.append(f"request {n} has what was taken back: {late}: {text[:300]}")
        return found

    async def _remembered_wrongly(self, house: House) -> list[str]:
        """Memories twice, of nothing or of what is gone; and what is not remembered although it is there."""
        facts = await house.rows("SELECT text, scope, key, origins, retired_at FROM facts")
        live = [each for each in facts if each["retired_at"] is None]
        counted = Counter((each["scope"], each["key"]) for each in live)
        found = [f"twice remembered: {key}" for key, count in counted.items() if count > 1]
        rows = await house.rows("SELECT event_id FROM inbox WHERE body <> ''")
        known = {row["event_id"] for row in rows} | {
            row["event_id"]
            for row in await house.rows("SELECT event_id FROM edits WHERE text <> ''")
        }
        found += [
            f"from what is not there: {each}"
            for each in facts
            if not set(json.loads(each["origins"] or "[]")) <= known
        ]
        for told in self._said:
            last = told.wordings[-1]
            if told.gone or not last.least:
                continue
            if not any(last.word in each["text"] and told.scope == each["scope"] for each in live):
                found.append(f"not remembered: {last} of {told.scope}")
        return found

    def _left_in_files(self) -> list[str]:
        gone = [word for told in self._said if told.gone for word in told.words]
        contents = {p: p.read_bytes() for p in self._folder.rglob("*") if p.is_file()}
        return [
            f"{path.name} has {word}"
            for path, content in contents.items()
            for word in gone
            if word.encode() in content
        ]


async def worded(house: House, edit: Incoming) -> bool:
    """An edit comes, as a sync brings it: whether it is answered anew, and not only noted."""
    stores, relations = house.stores, Relations(house.stores, house.rooms)
    async with house.database.transaction() as tx:
        original = await relations.original(tx, edit)
        assert original is not None
        conversation = original.conversation_id
        answered = await relations.is_newest(tx, edit, original, None)
        if answered:
            edit = replace(edit, replies_to=original.replies_to)
            await stores.inbox.mark_addressed(tx, original.seq)
            await stores.inbox.store(tx, conversation, edit, "waiting")
        else:
            said = (conversation, edit.sender, edit.body)
            await stores.edits.note(tx, edit.event_id, original.event_id, *said)
    house.rooms.wake(conversation)
    return answered


def fact(text: str) -> str:
    """What is remembered of something said."""
    return f"They told of {text}"


def block(text: str, name: str) -> str:
    """What a block of a question holds."""
    return text.partition(f"\n<{name}>\n")[2].partition(f"\n</{name}>")[0]


def own(transcript: str) -> str:
    """What people say in it, without the answers."""
    return "\n".join(line for line in transcript.splitlines() if PERSON.match(line))


PERSON = re.compile(r"\w+ \(@\w+:test\): ")
