"""Slow prompt reading: after a minute without a token, one notice tells the person about the wait.

The notice is an outbox row; it is removed when its message has an answer (see `Outbox`). `model_failures`
reports failed attempts instead. A terminal and the web page show the wait continuously.
"""

from dataclasses import dataclass, replace

from wintermute.clock import Clock
from wintermute.conversation import replies
from wintermute.llm.backend import Wait
from wintermute.mailbox.inbox import InboxRow
from wintermute.mailbox.outbox import is_matrix
from wintermute.stores import Stores
from wintermute.text import display_name

PATIENCE = 60.0
"""Seconds without a first token after which a person is told about the wait."""
MOST_PROBLEM = 100


@dataclass(frozen=True, slots=True)
class WaitingMessage:
    """A message whose answer has not begun; `since` is a time of the monotonic clock.

    `told_attempt`: the attempt that its person was told about; 0 for none yet.
    """

    row: InboxRow
    since: float
    wait: Wait
    told_attempt: int = 0

    @property
    def due(self) -> float | None:
        """The time of the next notice; None if there is none."""
        if self.told_attempt:
            return self.since if self.wait.attempt != self.told_attempt else None
        return self.since + PATIENCE


class WaitNotices:
    """Tracks the messages that wait for a first token, and tells their people."""

    def __init__(self, stores: Stores, clock: Clock) -> None:
        self._database = stores.database
        self._inbox = stores.inbox
        self._notices = stores.notices
        self._clock = clock
        self._open: dict[str, WaitingMessage] = {}  # by event

    def goes_on(self, row: InboxRow, wait: Wait) -> bool:
        """Record the state of a wait; return True if its person may have to be told."""
        if row.kind != "message" or not is_matrix(row.room_id):
            return False
        known = self._open.get(row.event_id) or WaitingMessage(row, self._clock.monotonic(), wait)
        self._open[row.event_id] = known = replace(known, wait=wait)
        return known.due is not None

    def over(self, row: InboxRow) -> None:
        """Forget a wait: its answer has begun, or there will be none."""
        self._open.pop(row.event_id, None)

    def due(self) -> list[tuple[float, WaitingMessage]]:
        """Return the notices to send, each with its time."""
        notices = [(reading.due, reading) for reading in self._open.values()]
        return [(at, reading) for at, reading in notices if at is not None]

    async def tell(self, reading: WaitingMessage, *, unless: bool) -> bool:
        """Tell a person about a wait, once per message; a later attempt edits the same notice.

        `unless`: others report its failure. Returns True if there is something to send now.
        """
        row, text = reading.row, wait_text(reading.wait)
        if (known := self._open.get(row.event_id)) is not None:
            self._open[row.event_id] = replace(known, told_attempt=reading.wait.attempt)
        async with self._database.transaction() as tx:
            if not await self._inbox.is_waiting(tx, row.event_id):
                return False
            if await self._notices.waits_for(tx, row.event_id):
                again = reading.wait.attempt > 1
                return again and await self._notices.change_text(tx, row.event_id, text)
            if unless or reading.told_attempt:
                return False
            await self._notices.say_until_answered(tx, row.conversation_id, row.event_id, text)
        return True


def wait_text(wait: Wait) -> str:
    """Return the text of the notice about a wait."""
    read = replies.READ.format(read=wait.read, total=wait.total) if wait.total else ""
    problem = display_name(wait.problem, MOST_PROBLEM)
    again = replies.ATTEMPT.format(n=wait.attempt, of=wait.of, problem=problem)
    text = replies.READING.format(model=display_name(wait.backend), read=read)
    return f"{text} {again}" if wait.attempt > 1 else text
