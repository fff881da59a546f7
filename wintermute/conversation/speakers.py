"""Matrix and the web page together: an answer goes where it was asked, and the page shows all of them."""

from wintermute.conversation.state import Speaker
from wintermute.llm.backend import Wait
from wintermute.loom.conversations import Conversation
from wintermute.mailbox.inbox import InboxRow
from wintermute.messages import Quote


class Speakers:
    """Speaks through Matrix or to the web page (V-017). Implements `Speaker`.

    The page also shows the answers made for Matrix rooms. A message that nobody asked for never
    goes to the page only: Matrix decides where it may be sent.
    """

    def __init__(self, matrix: Speaker, web: Speaker) -> None:
        self._matrix = matrix
        self._web = web
        self._both = (matrix, web)

    def serves(self, room_id: str) -> bool:
        return any(door.serves(room_id) for door in self._both)

    def fits(self, conversation: Conversation) -> bool:
        return not self._web.serves(conversation.room_id) and self._matrix.fits(conversation)

    def room_for(self, scope: str, *, encrypted: bool) -> str | None:
        return self._matrix.room_for(scope, encrypted=encrypted)

    def attend(self, row: InboxRow) -> None:
        for door in self._of(row):
            door.attend(row)

    def rest(self, row: InboxRow) -> None:
        for door in self._of(row):
            door.rest(row)

    def draft(self, conversation_id: str, piece: str) -> None:
        for door in self._both:
            door.draft(conversation_id, piece)

    def retract(self, conversation_id: str) -> None:
        for door in self._both:
            door.retract(conversation_id)

    def wait(self, conversation_id: str, wait: Wait) -> None:
        for door in self._both:
            door.wait(conversation_id, wait)

    def gate(self, conversation_id: str, name: str, doing: str) -> None:
        for door in self._both:
            door.gate(conversation_id, name, doing)

    def shown(self, row: InboxRow) -> str | None:
        return (self._web if self._web.serves(row.room_id) else self._matrix).shown(row)

    def speak(self, conversation_id: str) -> None:
        for door in self._both:
            door.speak(conversation_id)

    async def quote(self, row: InboxRow) -> Quote | None:
        return None if self._web.serves(row.room_id) else await self._matrix.quote(row)

    def _of(self, row: InboxRow) -> tuple[Speaker, ...]:
        return (self._web,) if self._web.serves(row.room_id) else (self._web, self._matrix)
