"""What stands in for a door in tests, and a tool that does what a test says."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from wintermute.conversation.toolbox import Caller
from wintermute.db import Transaction
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


class Idle:
    """Rooms in which nothing is under way."""

    def wake(self, conversation_id: str) -> None:
        """Nobody works."""

    async def take_back(self, tx: Transaction, conversation_id: str, events: Sequence[str]) -> None:
        """Nothing ends."""

    def ask_anew(self, conversation_id: str) -> None:
        """Nobody asks."""


class SilentSpeaker:
    """The way back into rooms where nobody listens; `changed` is set by all that happens.

    With `rests_badly` it is where a bug sits.
    """

    def __init__(self) -> None:
        self.rests_badly = False
        self.changed = asyncio.Event()
        self.shown: list[tuple[str, str]] = []
        self.drafts: list[str] = []
        self.unfit: set[str] = set()
        self.rooms: dict[str, str] = {}
        self.quotes: dict[str, Quote] = {}
        """What a homeserver has of earlier messages, by their ids."""
        self.elsewhere: set[str] = set()
        """Rooms that another program serves."""

    def serves(self, room_id: str) -> bool:
        return room_id not in self.elsewhere

    def fits(self, room_id: str, scope: str) -> bool:
        return room_id not in self.unfit | self.elsewhere

    def room_for(self, scope: str, *, encrypted: bool) -> str | None:
        return self.rooms.get(scope)

    def attend(self, room_id: str, event_id: str) -> None:
        self._note("attend", room_id)

    def rest(self, room_id: str) -> None:
        self._note("rest", room_id)
        if self.rests_badly:
            raise KeyError(room_id)

    async def quote(self, room_id: str, event_id: str) -> Quote | None:
        self._note(f"quote {event_id}", room_id)
        return self.quotes.get(event_id)

    def draft(self, room_id: str, piece: str) -> None:
        self.drafts.append(piece)
        self.changed.set()

    def gate(self, room_id: str, name: str) -> None:
        self._note(f"gate {name}", room_id)

    def speak(self, room_id: str) -> None:
        self._note("speak", room_id)

    def _note(self, what: str, room_id: str) -> None:
        self.shown.append((what, room_id))
        self.changed.set()
