"""What stands in for a door in tests, and a tool that does what a test says."""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from wintermute.conversation.rooms import Rooms
from wintermute.conversation.toolbox import Caller
from wintermute.db import Transaction
from wintermute.llm.backend import Wait
from wintermute.loom.conversations import Conversation
from wintermute.mailbox.inbox import InboxRow
from wintermute.messages import Json, Quote


async def _echo(_caller: Caller, args: Json) -> object:
    return args.get("say", "")


@dataclass(frozen=True)
class Gate:
    """A tool for tests. `taken` has the arguments of every run."""

    name: str = "echo"
    act: Callable[[Caller, Json], Awaitable[object]] = _echo
    durable: bool = True
    parameters: Json = field(
        default_factory=lambda: {"type": "object", "properties": {"say": {"type": "string"}}}
    )
    description: str = "Says it again."
    taken: list[Json] = field(default_factory=list)

    async def run(self, caller: Caller, args: Json) -> object:
        self.taken.append(args)
        return await self.act(caller, args)


class Idle(Rooms):
    """Rooms in which nothing is under way."""

    def __init__(self) -> None:
        """Nobody works in them."""

    def wake(self, conversation_id: str) -> None:
        """Nobody works."""

    async def retract_events(
        self, tx: Transaction, conversation_id: str, events: Sequence[str]
    ) -> None:
        """Nothing ends."""

    def shows(self, row: InboxRow) -> bool:
        """Nobody sees anything."""
        return False

    def ask_anew(self, conversation_id: str) -> None:
        """Nobody asks."""


class SilentSpeaker:
    """The way back into rooms where nobody listens; `changed` is set by all that happens.

    With `rests_badly` it is where a bug sits.
    """

    def __init__(self) -> None:
        self.rests_badly = False
        self.changed = asyncio.Event()
        self.noted: list[tuple[str, str]] = []
        self.drafts: list[str] = []
        self.waits: list[Wait] = []
        self.drafted: defaultdict[str, str] = defaultdict(str)
        """The same by conversation."""
        self.unfit: set[str] = set()
        self.rooms: dict[str, str] = {}
        self.quotes: dict[str, Quote] = {}
        """What a homeserver has of earlier messages, by their ids."""
        self.growing: dict[str, str] = {}
        """The text so far of answers that people see growing, by their messages."""
        self.elsewhere: set[str] = set()
        """Rooms that another program serves."""

    def serves(self, room_id: str) -> bool:
        return room_id not in self.elsewhere

    def fits(self, conversation: Conversation) -> bool:
        return conversation.room_id not in self.unfit | self.elsewhere

    def room_for(self, scope: str, *, encrypted: bool) -> str | None:
        return self.rooms.get(scope)

    def attend(self, row: InboxRow) -> None:
        self._note("attend", row.room_id)

    def rest(self, row: InboxRow) -> None:
        self._note("rest", row.room_id)
        if self.rests_badly:
            raise KeyError(row.room_id)

    async def quote(self, row: InboxRow) -> Quote | None:
        self._note(f"quote {row.replies_to}", row.room_id)
        return self.quotes.get(str(row.replies_to))

    def draft(self, conversation_id: str, piece: str) -> None:
        self.drafts.append(piece)
        self.drafted[conversation_id] += piece
        self.changed.set()

    def retract(self, conversation_id: str) -> None:
        self.draft(conversation_id, "")

    def wait(self, conversation_id: str, wait: Wait) -> None:
        self.waits.append(wait)
        self.changed.set()

    def shown(self, row: InboxRow) -> str | None:
        return self.growing.get(row.event_id)

    def gate(self, conversation_id: str, name: str, doing: str) -> None:
        self._note(f"gate {name}", conversation_id)

    def speak(self, conversation_id: str) -> None:
        self._note("speak", conversation_id)

    def _note(self, what: str, where: str) -> None:
        self.noted.append((what, where))
        self.changed.set()
