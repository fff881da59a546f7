"""A chat in which an answer grows word by word, as the test lets the model go on."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from tests.world.bot import Bot
from tests.world.clock import WITHIN, HeldClock
from tests.world.current import CurrentClient
from tests.world.desk import ROOM
from tests.world.model import Drip, ModelServer
from tests.world.person import Person
from tests.world.scene import NIO, Scene
from tests.world.user import Json, Message
from wintermute.mailbox.inbox import InboxRow
from wintermute.matrix.drafts import DraftRow, Drafts

WORDS = "These words come one by one, and a person sees them as they come, until all are there."
USUAL = Drip(WORDS)
LIVE = "org.matrix.msc4357.live"
ASKED = InboxRow(
    *(1, "$asked", "talk", ROOM, "@ann:here", "ann", "owner", "message", "why?", True, "casting"),
    *(None, HeldClock().now(), HeldClock().now()),
)


@dataclass(slots=True)
class GrowingTalk:
    """A person in a chat, and a model that says a word for each release of a gate.

    `asked`: the event of the newest question; `known`: so many messages of the bot were there before.
    """

    person: Person
    daemon: Bot
    chat: str
    model: ModelServer
    gate: asyncio.Semaphore
    asked: str = ""
    known: int = 0

    @classmethod
    async def of(
        cls, scene: Scene, model: ModelServer, at: str = NIO, *, encrypted: bool = False, **bot: Any
    ) -> Self:
        """Open a chat of a person, at a client, with a bot of hers, which is made with `bot`."""
        ann = await scene.at(at)("ann")
        daemon = await scene.bot(ann, **bot)
        chat = await scene.room(ann, daemon, encrypted=encrypted)
        return cls(ann, daemon, chat, model, asyncio.Semaphore(0))

    async def grow(self, drip: Drip = USUAL, begun: int = 5, **content: Any) -> Message:
        """Ask; the draft, once so many words of the answer are to be seen."""
        self.begin(drip, begun)
        self.asked = await self.person.send(self.chat, "hello", **content)
        return await self.grown(" ".join(drip.text.split()[:begun]))

    def begin(self, drip: Drip, begun: int = 5) -> None:
        """Let the next answer begin with so many words."""
        self.gate, self.known = asyncio.Semaphore(begun), len(self.ours())
        self.model.script(replace(drip, gate=self.gate))

    def say(self, count: int) -> None:
        """Let the model say so many words more."""
        for _ in range(count):
            self.gate.release()

    async def grown(self, text: str) -> Message:
        """The new message with a text that grows."""
        await self.until(lambda: text in self.texts()[self.known :])
        found = next(each for each in self.ours()[self.known :] if each.body.strip() == text)
        assert found.content[LIVE] == {}
        return found

    async def until(self, true: Callable[[], bool]) -> None:
        """Wait where time is what it takes: five times as much of it passes for the daemon."""
        async with asyncio.timeout(WITHIN):
            while not true():
                self.daemon.pass_time(0.2)
                await asyncio.sleep(0.05)

    def ours(self) -> Sequence[Message]:
        """The messages of the bot, in order."""
        return self.person.messages(self.chat, self.daemon.user_id)

    def texts(self) -> list[str]:
        """Their texts; an edit is marked by `* `."""
        return [message.body.strip() for message in self.ours()]

    async def history(self) -> Sequence[Message]:
        """The messages of the bot as the homeserver has them, once nothing waits to be sent."""
        await self.daemon.said_all()
        found = await self.person.history(self.chat)
        return [message for message in found if message.sender == self.daemon.user_id]

    async def ends(self, *wanted: str) -> Sequence[Message]:
        """Wait until these are the last texts of the bot, in this order; all of its messages."""
        await self.person.until(
            lambda: self.texts()[-len(wanted) :] == [*wanted], what=f"{wanted}, not {self.texts()}"
        )
        return await self.history()

    async def rings(self) -> set[str]:
        """The events for which the person's client rang."""
        assert isinstance(self.person, CurrentClient)
        return {*await self.person.rings(self.chat)}


def only_edits(events: Sequence[Message], of: Message) -> list[Json]:
    """The contents that were given an event, where all other events are edits of it."""
    relations = [e.content.get("m.relates_to") for e in events if e.event_id != of.event_id]
    assert relations == [{"rel_type": "m.replace", "event_id": of.event_id}] * len(relations)
    return [e.content["m.new_content"] for e in events if "m.new_content" in e.content]


def went_out(pieces: dict[float, str], seconds: float) -> list[tuple[float, str]]:
    """Times and texts of what goes out, of pieces that come at these seconds; "⚙" is a tool."""
    clock, found = HeldClock(), list[tuple[float, str]]()
    drafts, begun = Drafts(clock, shows=True), clock.monotonic()
    drafts.attend(ASKED)
    for tick in range(int(seconds * 10) + 1):
        for piece in filter(None, [pieces.get(tick / 10)]):
            rings = drafts.set_tool("talk", "reading a file") if piece == "⚙" else None
            rings = drafts.say("talk", "" if piece == "new" else piece) if rings is None else rings
            assert not rings or (rings == ROOM and drafts.growing() == [("talk", ROOM)])
        if drafts.due_in(("talk", ROOM)) == 0:
            growth = drafts.streamed_at(("talk", ROOM))
            assert growth is not None
            found.append((round(clock.monotonic() - begun, 1), drafts.text(growth)))
            drafts.show_in("talk", DraftRow("out_1", "cast_1", ""))
            drafts.note_sent("talk", growth)
        clock.advance(0.1)
    assert drafts.shown(ASKED) or not found
    return found
