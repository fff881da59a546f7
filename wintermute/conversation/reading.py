"""Who waits for a model that is still reading, and the one notice that says so after a minute.

The notice is a row like any other; once its message has an answer it goes by itself (see `Outbox`).
A message that fails is told of by `trouble` instead. A terminal and a page show the wait as it passes.
"""

from dataclasses import dataclass, replace

from wintermute.clock import Clock
from wintermute.conversation import words
from wintermute.llm.backend import Wait
from wintermute.mailbox.inbox import Waiting
from wintermute.mailbox.outbox import is_matrix
from wintermute.stores import Stores
from wintermute.text import display_name

PATIENCE = 60.0
"""Seconds without a first token after which a person hears that it is being waited for."""
MOST_PROBLEM = 100


@dataclass(frozen=True, slots=True)
class Reading:
    """A message whose answer has not begun, since when by the steady clock.

    `told`: of which attempt its person knows; 0: of none yet.
    """

    row: Waiting
    since: float
    wait: Wait
    told: int = 0

    @property
    def due(self) -> float | None:
        """When something is to be told; None: nothing is."""
        if self.told:
            return self.since if self.wait.attempt != self.told else None
        return self.since + PATIENCE


class Readings:
    """Knows for which messages a first token is waited, and tells their people."""

    def __init__(self, stores: Stores, clock: Clock) -> None:
        self._database = stores.database
        self._inbox = stores.inbox
        self._notices = stores.notices
        self._clock = clock
        self._open: dict[str, Reading] = {}  # by event

    def goes_on(self, row: Waiting, wait: Wait) -> bool:
        """Note how the wait for an answer stands; whether that may be news to somebody."""
        if row.kind != "message" or not is_matrix(row.room_id):
            return False
        known = self._open.get(row.event_id) or Reading(row, self._clock.monotonic(), wait)
        self._open[row.event_id] = known = replace(known, wait=wait)
        return known.due is not None

    def over(self, row: Waiting) -> None:
        """An answer has begun, or there will be none."""
        self._open.pop(row.event_id, None)

    def due(self) -> list[tuple[float, Reading]]:
        """What is to be told, and when."""
        found = [(reading.due, reading) for reading in self._open.values()]
        return [(at, reading) for at, reading in found if at is not None]

    async def tell(self, reading: Reading, *, unless: bool) -> bool:
        """Tell of a wait, once for each message; of another attempt in the same notice.

        `unless`: that it fails is told by others. Whether anything is to be said now.
        """
        row, text = reading.row, said(reading.wait)
        if (known := self._open.get(row.event_id)) is not None:
            self._open[row.event_id] = replace(known, told=reading.wait.attempt)
        async with self._database.transaction() as tx:
            if not await self._inbox.is_waiting(tx, row.event_id):
                return False
            if await self._notices.waits_for(tx, row.event_id):
                again = reading.wait.attempt > 1
                return again and await self._notices.reword(tx, row.event_id, text)
            if unless or reading.told:
                return False
            await self._notices.say_until_answered(tx, row.conversation_id, row.event_id, text)
        return True


def said(wait: Wait) -> str:
    """What a person reads of a wait."""
    read = words.READ.format(read=wait.read, total=wait.total) if wait.total else ""
    problem = display_name(wait.problem, MOST_PROBLEM)
    again = words.ATTEMPT.format(n=wait.attempt, of=wait.of, problem=problem)
    text = words.READING.format(model=display_name(wait.backend), read=read)
    return f"{text} {again}" if wait.attempt > 1 else text
