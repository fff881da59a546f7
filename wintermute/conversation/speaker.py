"""The way back into a room, and what a cast shows there while it is being made."""

from dataclasses import dataclass
from typing import Protocol

from wintermute.messages import Quote


class Speaker(Protocol):
    """The way back into a room. None of these but `quote` waits for the homeserver."""

    def serves(self, room_id: str) -> bool:
        """Whether answers for this room go out here."""
        ...

    def fits(self, room_id: str, scope: str) -> bool:
        """Whether what is meant for this scope may be said in this room now, by who is in there."""
        ...

    def room_for(self, scope: str, *, encrypted: bool) -> str | None:
        """A room in which something of a scope may be said, when no conversation is known.

        `encrypted`: only such a one will do.
        """
        ...

    def attend(self, room_id: str, event_id: str) -> None:
        """Show that the message was read and an answer is being made."""
        ...

    def rest(self, room_id: str) -> None:
        """Show that no answer is being made any more."""
        ...

    def draft(self, room_id: str, piece: str) -> None:
        """Show what the model says; an empty piece begins an utterance, or a new attempt at it."""
        ...

    def gate(self, room_id: str, name: str) -> None:
        """Show that a tool is used."""
        ...

    def speak(self, room_id: str) -> None:
        """Something for this room is in the outbox."""
        ...

    async def quote(self, room_id: str, event_id: str) -> Quote | None:
        """An earlier message of a room, within seconds; None: it cannot be read or not be believed."""
        ...


@dataclass(frozen=True, slots=True)
class Shown:
    """A cast's watcher in its room."""

    speaker: Speaker
    room_id: str

    def draft(self, piece: str) -> None:
        self.speaker.draft(self.room_id, piece)

    def begun(self) -> None:
        """What is not shown is nobody's to see."""

    def gate(self, name: str) -> None:
        self.speaker.gate(self.room_id, name)

    def failed(self, problem: str, *, unreachable: bool) -> None:
        """What is to be said of it, `Trouble` says."""
