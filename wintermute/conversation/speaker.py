"""The way back into a conversation, and what a cast shows there while it is being made."""

from dataclasses import dataclass
from typing import Protocol

from wintermute.loom.conversations import Conversation
from wintermute.mailbox.inbox import Waiting
from wintermute.messages import Quote


class Speaker(Protocol):
    """The way back into a conversation. None of these but `quote` waits for the homeserver."""

    def serves(self, room_id: str) -> bool:
        """Whether answers for this room go out here."""
        ...

    def fits(self, conversation: Conversation) -> bool:
        """Whether what is meant for its scope may be said there now, by who is in its room."""
        ...

    def room_for(self, scope: str, *, encrypted: bool) -> str | None:
        """A room in which something of a scope may be said, when no conversation is known.

        `encrypted`: only such a one will do.
        """
        ...

    def attend(self, row: Waiting) -> None:
        """Show that the message was read and an answer is being made."""
        ...

    def rest(self, row: Waiting) -> None:
        """Show that no answer to it is being made any more."""
        ...

    def draft(self, conversation_id: str, piece: str) -> None:
        """Show what the model says; an empty piece begins an utterance, or a new attempt at it."""
        ...

    def gate(self, conversation_id: str, name: str) -> None:
        """Show that a tool is used."""
        ...

    def speak(self, conversation_id: str) -> None:
        """Something for this conversation is in the outbox."""
        ...

    async def quote(self, row: Waiting) -> Quote | None:
        """What a message replies to, within seconds; None: it cannot be read or not be believed."""
        ...


@dataclass(frozen=True, slots=True)
class Shown:
    """A cast's watcher in its conversation."""

    speaker: Speaker
    conversation_id: str

    def draft(self, piece: str) -> None:
        self.speaker.draft(self.conversation_id, piece)

    def begun(self) -> None:
        """What is not shown is nobody's to see."""

    def gate(self, name: str) -> None:
        self.speaker.gate(self.conversation_id, name)

    def failed(self, problem: str, *, unreachable: bool) -> None:
        """What is to be said of it, `Trouble` says."""
