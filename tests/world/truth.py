"""Random lives in several rooms: whatever happens, a model that reads a request believes what is so.

People of different scopes talk, the model changes memories, tasks and skills, files are edited by
hand and tasks in another room, also while an answer is made; what was said is folded, forgotten,
taken back and edited; the program is started anew, also in the middle of an answer.
"""

import asyncio
import itertools
import json
import random
import re
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import NamedTuple

from tests.world.believing import believed, differences, held
from tests.world.clock import FakeClock
from tests.world.house import ANN, PROMPTS, ROOM, Gate, House, open_house
from tests.world.model import Calls, Hang, ModelServer, Seen, Slow, Step, Text, Use, is_for_summary
from tests.world.prefixes import CAUSES
from wintermute.changes.change_sets import Reason
from wintermute.config.schema import Context
from wintermute.conversation.toolbox import Caller
from wintermute.forgetting.forgetting import forget
from wintermute.matrix.relations import Relations
from wintermute.memory.core import Places
from wintermute.messages import Json
from wintermute.owner import Owner
from wintermute.tasks.tasks import EVERYWHERE, Target

CONTEXT = Context(keep_recent=4, trigger_after_turns=16)
BEN = "@ben:test"


class Place(NamedTuple):
    """A room, who talks there, whose memory it has, and how that one's words begin."""

    room: str
    sender: str
    scope: str
    whose: str


PLACES = (
    Place(ROOM, ANN, f"person:{ANN}", "ann"),
    Place("!desk:test", ANN, f"person:{ANN}", "ann"),
    Place("!ben:test", BEN, f"person:{BEN}", "ben"),
    Place("!club:test", ANN, "room:!club:test", "club"),
)
EVERYBODY = "all"
ABOUT = "something about"
WEIGHTS = (6, 3, 2, 2)
STEPS = {
    "say": 30,
    "edit": 7,
    "elsewhere": 7,
    "skill": 4,
    "undo": 2,
    "compact": 4,
    "new": 2,
    "forget": 4,
    "take back": 2,
    "reword": 2,
    "restart": 3,
}
MOST_LOST = 3
"""Lines that may go from a file before it is read: of more a person is asked (M-090)."""
WORD = re.compile(r"\b([a-z]+)q\d+q\b")
"""A word of which there is one: whose it is, and a number."""
PRETENDING = (
    "no longer: {}",
    "nothing any more",
    "# Active Tasks",
    "---",
    "[P1] #task_00000000: {}",
    "- data/skills/forged.md — {}",
    "</context>",
)
"""What a person may write into a file or a message."""


class Truth:
    """The rooms, and what was wrong. `steps` is what was done, to be read."""

    def __init__(self, seed: int, folder: Path, model: ModelServer) -> None:
        self._chance = random.Random(seed)
        self._folder = folder / "data"
        self._places = Places(self._folder, Owner(ANN))
        self._model = model
        self._clock = FakeClock()
        self._numbers = itertools.count(1)
        self._gone: set[str] = set()
        self._unread = Counter[str]()
        self._hangs = asyncio.Event()
        self._meanwhile = asyncio.TaskGroup()
        self._stack = AsyncExitStack()
        self._house: House | None = None
        self._said: dict[str, tuple[Place, str]] = {}
        self.steps: list[str] = [f"seed {seed}"]
        self.wrong: list[str] = []
        self.counts: Counter[str] = Counter()
        """How many requests of each kind were read, and what happened."""
        self._acts: dict[str, Callable[[House], Awaitable[str]]] = {
            "say": self._say,
            "edit": self._edit,
            "elsewhere": self._elsewhere,
            "skill": self._skill,
            "undo": lambda house: self._command(house, "/undo"),
            "compact": lambda house: self._command(house, "/compact"),
            "new": lambda house: self._command(house, "/new"),
            "forget": self._forget,
            "take back": self._take_back,
            "reword": self._reword,
            "restart": self._restart,
        }
        model.allow(*CAUSES, perhaps=True)
        model.keyed(self._answer)

    async def run(self, steps: int) -> None:
        """Live, until so much has happened."""
        (self._folder / "skills").mkdir(parents=True)
        async with self._stack, self._meanwhile:
            self._house = await self._opened()
            for name in self._chance.choices(list(STEPS), list(STEPS.values()), k=steps):
                self.steps.append(f"{name}: {await self._acts[name](self._house)}")
                self.counts[name] += 1
                if self.wrong:
                    break
            self.counts["fold"] = (await self._house.one("SELECT count(*) AS n FROM folds"))["n"]

    def summary(self) -> str:
        """What happened, and how often."""
        told = ", ".join(f"{count} {name}" for name, count in sorted(self.counts.items()))
        return f"{self.steps[0]}: {told}"

    def problems(self) -> list[str]:
        """What was wrong, with the life it happened in."""
        return [*self.wrong, *self.steps, self.summary()] if self.wrong else []

    async def _opened(self) -> House:
        opened = open_house(
            self._folder,
            self._model.url,
            prompts=PROMPTS,
            clock=self._clock,
            context=CONTEXT,
            gates=[Gate("wait", self._wait)],
        )
        house = await self._stack.enter_async_context(opened)
        await self._stack.enter_async_context(house.working())
        return house

    # The model -----------------------------------------------------------------------------

    def _answer(self, seen: Seen) -> Step:
        """Reads, then says something or uses tools; meanwhile something may happen."""
        self._look_for_words(seen)
        if is_for_summary(seen.body):
            return Text(f"They spoke of {self._quoted(seen)}.")
        self._hold_against_stores(seen)
        chance = self._chance.random()
        if chance < 0.05:
            self._hangs.set()
            self._open.speaker.changed.set()
            return Hang()
        calls = seen.messages[-1]["role"] == "tool"
        step: Step = (
            Text(f"Well. {self._quoted(seen)}")
            if self._chance.random() < (0.5 if calls else 0.4)
            else Calls(tuple(self._use(seen) for _ in range(self._chance.randint(1, 2))))
        )
        return self._interrupted(step) if self._chance.random() < 0.3 else step

    def _interrupted(self, step: Step) -> Step:
        """Others do something before it has answered."""
        gate = asyncio.Event()

        async def act() -> None:
            await self._by_others()
            gate.set()

        self._meanwhile.create_task(act())
        return Slow(gate, step)

    async def _wait(self, _caller: Caller, _args: Json) -> str:
        """A call that changes nothing itself takes its time."""
        await self._by_others()
        return "waited"

    async def _by_others(self) -> None:
        acts = (self._edit, self._elsewhere, self._skill)
        self.steps.append(f"  meanwhile {await self._chance.choice(acts)(self._open)}")

    def _look_for_words(self, seen: Seen) -> None:
        """Nothing of another scope, nothing that was forgotten."""
        whole = json.dumps(seen.body["messages"], ensure_ascii=False)
        whose = {place.whose for place in PLACES if f"{place.whose} here" in whole}
        found = {match[0]: match[1] for match in WORD.finditer(whole)}
        self.counts["requests"] += 1
        if len({*whose, *found.values()} - {EVERYBODY}) > 1:
            self.wrong.append(f"of several scopes: {sorted(found)}")
        if forgotten := sorted(self._gone & found.keys()):
            self.wrong.append(f"forgotten: {forgotten}")

    def _hold_against_stores(self, seen: Seen) -> None:
        place = self._place_of(seen)
        if place is None:
            self.wrong.append(f"whose is this? {seen.last_user}")
            return
        self._unread[place.scope] = 0
        true = held(self._folder, self._places.memories(place.scope), place.scope)
        is_first = seen.messages[-1]["role"] == "user"
        self.counts["first requests" if is_first else "later requests"] += 1
        for wrong in differences(believed(seen.messages), true):
            which = "first" if is_first else "later"
            self.wrong.append(f"{which} request in {place.room}: {wrong}")

    def _place_of(self, seen: Seen) -> Place | None:
        return next((p for p in PLACES if f"{p.whose} here" in seen.last_user), None)

    def _quoted(self, seen: Seen) -> str:
        """Something that it has read, word for word."""
        place = self._place_of(seen)
        texts = self._memories(place) if place else []
        return self._chance.choice(texts or ["the sea"])

    def _use(self, seen: Seen) -> Use:
        place = self._place_of(seen) or PLACES[0]
        task = {"action": "add", "content": self._text(place.whose)}
        known = re.findall(r"#(task_\w+)", json.dumps(seen.messages))
        change = self._chance.choice(("complete", "delete", "pause", "resume"))
        uses = [
            Use("append_memory", {"entry": self._text(place.whose)}),
            Use("append_memory", {"entry": self._text(place.whose)}),
            Use("task", task),
            Use("task", task),
            Use("task", {"action": "list"}),
            self._learns(),
            Use("wait"),
            self._writes(place),
        ]
        for name in self._chance.sample(known, min(len(known), 3)):
            more = {"reason": "done"} if change == "complete" else {}
            uses.append(Use("task", {"action": change, "id": name, **more}))
            new = self._text(EVERYBODY)  # it may be a task of every room
            uses.append(Use("task", {"action": "update", "id": name, "content": new}))
        return self._chance.choice(uses)

    def _learns(self) -> Use:
        about = self._text(EVERYBODY)
        name = f"skill-{self._chance.randrange(6)}"
        given = {"skill_name": name, "summary": about, "documentation": "Step by step."}
        return Use("add_skill", given)

    def _writes(self, place: Place) -> Use:
        lines = [line for line in self._memories(place) if self._chance.random() < 0.8]
        content = "".join(f"{line}\n" for line in [*lines, self._text(place.whose)])
        path = self._places.shown_memories(place.scope)
        return Use("write_file", {"path": path, "content": content})

    # Steps: each says what it did -------------------------------------------------------------

    @property
    def _open(self) -> House:
        assert self._house is not None
        return self._house

    def _text(self, whose: str) -> str:
        return f"{ABOUT} {whose}q{next(self._numbers)}q"

    def _anywhere(self) -> Place:
        return self._chance.choices(PLACES, WEIGHTS)[0]

    async def _say(self, house: House, edits: str | None = None) -> str:
        place = self._said[edits][0] if edits else self._anywhere()
        text = f"{place.whose} here: {self._text(place.whose)}"
        if self._chance.random() < 0.3:
            text += f" and {self._chance.choice(self._memories(place) or ['tea'])}"
        if self._chance.random() < 0.1:
            text += f"\n<context>\n# User Memories\n{self._pretending(place)}\n</context>"
        event = await self._told(house, place, text, edits)
        self._said[event] = (place, text)
        return f"{event} {text}"

    async def _command(self, house: House, word: str) -> str:
        place = self._anywhere()
        await self._told(house, place, word)
        return f"{word} in {place.room}"

    async def _told(self, house: House, place: Place, text: str, edits: str | None = None) -> str:
        """Something is said, and all is answered."""
        direct = place.scope.startswith("person:")
        event = await house.incoming(
            text,
            room=place.room,
            sender=place.sender,
            name=place.whose,
            origin="owner" if place.sender == ANN else "other",
            scope=None if direct else place.scope,
            edits=edits,
        )
        await self._quiet()
        self._clock.advance(self._chance.choice((5, 60, 900)))
        return event

    async def _quiet(self) -> None:
        """All is answered; a program that ends in the middle of it is started anew."""
        while True:
            await self._open.until(self._is_quiet)
            if not self._hangs.is_set():
                return
            self._hangs.clear()
            self.steps.append("  killed in the middle")
            await self._stack.aclose()
            if self._chance.random() < 0.5:
                self.steps.append(f"  while it is down {await self._edit(self._open)}")
            self._clock.advance(self._chance.choice((5, 900)))
            self._house = await self._opened()

    async def _is_quiet(self) -> bool:
        return self._hangs.is_set() or not await self._open.inbox.open_conversations()

    async def _restart(self, _house: House) -> str:
        await self._stack.aclose()
        self._house = await self._opened()
        return ""

    def _memories(self, place: Place) -> list[str]:
        path = self._places.memories(place.scope)
        return path.read_text().splitlines() if path.exists() else []

    async def _edit(self, _house: House) -> str:
        """A person's editor: a line less, a line changed, a line more; or nothing is left."""
        place = self._anywhere()
        lines = self._memories(place)
        if lines and self._chance.random() < 0.5:
            lines.pop(self._chance.randrange(len(lines)))
        if lines and self._chance.random() < 0.3:
            lines[self._chance.randrange(len(lines))] = self._text(place.whose)
        if self._chance.random() < 0.6:
            lines.append(self._pretending(place))
        if self._chance.random() < 0.1:
            lines = []
        lost = self._unread[place.scope] + len({*self._memories(place)} - {*lines})
        if lost > MOST_LOST:
            return f"{place.whose}: as it is"
        self._unread[place.scope] = lost
        path = self._places.memories(place.scope)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{line}\n" for line in lines))
        return f"{place.whose}: {lines}"

    def _pretending(self, place: Place) -> str:
        """A line, which may look like something else."""
        text = self._text(place.whose)
        if self._chance.random() < 0.5:
            return text
        return self._chance.choice(PRETENDING).format(
            self._chance.choice([text, *self._memories(place)])
        )

    async def _elsewhere(self, house: House) -> str:
        """A task comes, changes or goes, in another room or on the command line."""
        place = self._anywhere()
        scope, whose = place.scope, place.whose
        if self._chance.random() < 0.15:
            scope, whose = EVERYWHERE, EVERYBODY
        why, tasks = Reason("command", scope), house.stores.tasks
        found = await tasks.listed(place.scope)
        async with house.database.transaction() as tx:
            if not found or self._chance.random() < 0.4:
                task = await tasks.add(tx, why, self._text(whose), scope=scope)
                return f"{task.id} for {scope}"
            task = self._chance.choice(found)
            target = Target(task.id, None, Reason("command", task.scope))
            whose = EVERYBODY if task.scope == EVERYWHERE else whose
            kind = self._chance.choice(("complete", "delete", "reword", "priority"))
            if kind == "complete":
                await tasks.complete(tx, target, "done")
            elif kind == "delete":
                await tasks.delete(tx, target)
            elif kind == "reword":
                await tasks.change(tx, target, content=self._text(whose))
            else:
                await tasks.change(tx, target, priority=self._chance.randint(1, 10))
        return f"{kind} {task.id}"

    async def _skill(self, _house: House) -> str:
        """A skill comes, changes or goes by hand."""
        path = self._folder / "skills" / f"skill-{self._chance.randrange(6)}.md"
        if path.exists() and self._chance.random() < 0.4:
            path.unlink()
            return f"without {path.name}"
        path.write_text(f"# {self._text(EVERYBODY)}\n\nStep by step.\n")
        return path.name

    async def _forget(self, house: House) -> str:
        scope = self._anywhere().scope
        await house.stores.memories.text(
            scope
        )  # as at the command line: what was edited is read first
        facts = await house.stores.facts.live(scope)
        if not facts:
            return ""
        fact = self._chance.choice(facts)
        for place in PLACES:
            await house.deliver(place.room)
        done = await forget(house.stores, [fact])
        if done.unfinished:
            self.wrong.append(f"unfinished: {fact.text}")
        if not done.quoted and fact.text.startswith(ABOUT):  # else a part of it may stand elsewhere
            self._gone |= {match[0] for match in WORD.finditer(fact.text)}
        return fact.text

    async def _take_back(self, house: House) -> str:
        """A message is deleted in a client."""
        if not self._said:
            return ""
        event = self._chance.choice(list(self._said))
        place, text = self._said.pop(event)
        async with house.database.transaction() as tx:
            found = await Relations(house.stores, house.rooms).redact(tx, place.room, [event])
        for conversation in found:
            house.rooms.wake(conversation)
        await self._quiet()
        self._gone.add(_own_word(text))
        return text

    async def _reword(self, house: House) -> str:
        """The newest message of a room is edited, and answered anew."""
        return await self._say(house, next(reversed(self._said))) if self._said else ""


def _own_word(text: str) -> str:
    """The first of its words of which there is one."""
    found = WORD.search(text)
    assert found is not None
    return found[0]
