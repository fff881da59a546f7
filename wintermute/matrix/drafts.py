"""Answers as they grow: when more of one goes out, and what it says then (X-023, X-024).

The model's pieces come by conversation. The sender asks what is due, between the rows of the outbox.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from wintermute.clock import Clock
from wintermute.mailbox.inbox import Waiting
from wintermute.mailbox.outbox import is_matrix
from wintermute.matrix.content import grown

FIRST_SECONDS = 0.8
"""From the first text on: an answer that is whole by then stays one event."""
LEAST_NEW = 20
"""Characters; fewer are not worth an event."""
GAPS = (1.0, 1.0, 2.0, 2.0, 3.0, 4.0, 5.0, 7.0, 10.0)
"""Seconds between the events of one answer; the last one again and again."""
MOST_EDITS = 40
"""Events of one answer, its last one among them: each makes a room slower to load."""
KEPT_MOST = 40_000
"""Characters that are kept of an answer, for words that are to follow them."""
TOOL = "{said}\n\n\N{GEAR} {doing} …"


def next_at(first_at: float, times: Sequence[float]) -> float | None:
    """Give the time at which more may go out after events at these times; None: only the end of it does.

    `first_at`: the time of the first text.
    """
    if not times:
        return first_at + FIRST_SECONDS
    if len(times) >= MOST_EDITS:
        return None
    return times[-1] + GAPS[min(len(times), len(GAPS)) - 1]


@dataclass(frozen=True, slots=True)
class DraftRow:
    """The outbox row whose event shows what grows, for the cast that says it."""

    id: str
    cast_id: str
    scope: str


@dataclass(frozen=True, slots=True)
class GrowingAnswer:
    """An answer that is being made.

    `text`: of the newest utterance or attempt; `before`: what an earlier one said, which stays in
    view until there is enough of the newest. `sent`: how many characters of `text` went out.
    """

    row: Waiting
    at_work: bool = True
    text: str = ""
    before: str = ""
    doing: str = ""
    first_at: float | None = None
    times: tuple[float, ...] = ()
    sent: int = 0
    sent_doing: str = ""
    draft: DraftRow | None = None
    begun: bool = False
    """Some of it could be seen."""
    is_over: bool = False
    """Nothing more of it goes out before its end."""
    retracted: bool = False
    """The text shown of it was reasoning: nobody is to read that again."""

    @property
    def said(self) -> str:
        """The text that people see, once all of it has gone out."""
        new = self.text.strip()
        return self.text if len(new) >= LEAST_NEW or (new and not self.before) else self.before

    @property
    def grows(self) -> bool:
        """Decide if more of it may go out."""
        return self.at_work and not self.is_over and self.first_at is not None

    @property
    def has_news(self) -> bool:
        """Decide if there is more to show than what went out, and it is worth an event."""
        if len(self.text.strip()) - self.sent >= LEAST_NEW:
            return True
        return bool(self.times and self.doing and self.doing != self.sent_doing)

    @property
    def anew(self) -> "GrowingAnswer":
        """The same when another utterance, or attempt at it, begins."""
        return replace(self, text="", before=self.said, sent=0)

    def due_in(self, now: float) -> float | None:
        """Seconds until more of it goes out; None: not before more is said."""
        if not self.grows or self.first_at is None or not self.has_news:
            return None
        at = next_at(self.first_at, self.times)
        return None if at is None else max(0.0, at - now)


class Drafts:
    """Keeps what grows: one answer in each conversation."""

    def __init__(self, clock: Clock, *, shows: bool) -> None:
        """`shows`: whether people are to see answers grow at all."""
        self._clock = clock
        self._shows = shows
        self._growing: dict[str, GrowingAnswer] = {}
        self._to_take: dict[str, Waiting] = {}  # whose answer is to be taken away, by conversation

    def attend(self, row: Waiting) -> None:
        """An answer to a message is being made; it may have been before."""
        known = self._growing.pop(row.conversation_id, None)
        if not self._shows or row.kind != "message" or not is_matrix(row.room_id):
            return
        if known is None or known.row.event_id != row.event_id:
            known = GrowingAnswer(row)
        self._growing[row.conversation_id] = replace(
            known.anew, at_work=True, draft=None, is_over=False
        )

    def rest(self, row: Waiting) -> None:
        """No answer is being made any more; what was said stays known."""
        if known := self._of(row):
            self._growing[row.conversation_id] = replace(known, at_work=False)

    def say(self, conversation_id: str, piece: str) -> str:
        """Add a piece; an empty one begins an utterance, or a new attempt.

        Returns the room where more is due, or else "".

        What was said before stays until there is more: a draft is never blank (X-053).
        """
        known = self._growing.get(conversation_id)
        if known is None or not known.at_work:
            return ""
        if not piece:
            self._growing[conversation_id] = known.anew
            return ""
        text = (known.text + piece)[:KEPT_MOST]
        first_at, is_first = known.first_at, known.first_at is None and bool(text.strip())
        first_at = self._clock.monotonic() if is_first else first_at
        now = replace(known, text=text, doing="", first_at=first_at)
        self._growing[conversation_id] = now
        return now.row.room_id if is_first or self._is_due(now) else ""

    def retract(self, conversation_id: str) -> str:
        """Forget what was said: it was reasoning. Returns the room where it may have been seen, or ""."""
        known = self._growing.get(conversation_id)
        if known is None or known.first_at is None:
            return ""
        anew = GrowingAnswer(known.row, at_work=known.at_work, retracted=True)
        self._growing[conversation_id] = anew
        self._to_take[conversation_id] = known.row
        return known.row.room_id

    def take_retracted(self, where: tuple[str, str]) -> str | None:
        """The message of whose answer all that was shown there is taken away now; None: nothing is."""
        row = self._to_take.get(where[0])
        if row is None or row.room_id != where[1]:
            return None
        del self._to_take[where[0]]
        return row.event_id

    def use(self, conversation_id: str, doing: str) -> str:
        """Note what a tool does. Returns the room where that is due to be shown, or else ""."""
        known = self._growing.get(conversation_id)
        if known is None:
            return ""
        self._growing[conversation_id] = now = replace(known, doing=doing)
        return now.row.room_id if self._is_due(now) else ""

    def shown(self, row: Waiting) -> str | None:
        """The text so far of an answer that people see growing; None: not known since the start."""
        known = self._of(row)
        if known is None or not known.begun:
            return "" if known is not None and known.retracted else None
        return known.said

    def growing(self) -> list[tuple[str, str]]:
        """The conversations in which something grows, or is to be taken away, each with its room."""
        rows = {each: g.row for each, g in self._growing.items() if g.grows} | self._to_take
        return [(each, row.room_id) for each, row in rows.items()]

    def at(self, where: tuple[str, str]) -> GrowingAnswer | None:
        """The answer that grows in a conversation of a room, if any."""
        known = self._growing.get(where[0])
        return known if known and known.grows and known.row.room_id == where[1] else None

    def due_in(self, where: tuple[str, str]) -> float | None:
        """Seconds until more is to go out there; None: not before more is said."""
        known = self.at(where)
        return known.due_in(self._clock.monotonic()) if known else None

    def text(self, growth: GrowingAnswer) -> str:
        """The Markdown of the next event of an answer."""
        said, _ = grown(growth.said)
        return TOOL.format(said=said, doing=growth.doing) if growth.doing else said

    def show_in(self, conversation_id: str, draft: DraftRow) -> None:
        """An answer grows in the event of this row."""
        if known := self._growing.get(conversation_id):
            self._growing[conversation_id] = replace(known, draft=draft)

    def went_out(self, conversation_id: str, growth: GrowingAnswer) -> None:
        """So much of an answer, as it was then, has been said."""
        known = self._growing.get(conversation_id)
        if known is None or known.row.event_id != growth.row.event_id:
            return
        _, is_all = grown(growth.said)
        # A new attempt may have begun meanwhile, of which nothing was said.
        sent = len(growth.text.strip()) if known.text.startswith(growth.text) else 0
        self._growing[conversation_id] = replace(
            known,
            times=(*known.times, self._clock.monotonic()),
            sent=sent,
            sent_doing=growth.doing,
            begun=True,
            is_over=known.is_over or is_all,
        )

    def finish(self, conversation_id: str) -> None:
        """Nothing more of what grows goes out before its end."""
        if known := self._growing.get(conversation_id):
            self._growing[conversation_id] = replace(known, is_over=True)

    def _of(self, row: Waiting) -> GrowingAnswer | None:
        known = self._growing.get(row.conversation_id)
        return known if known and known.row.event_id == row.event_id else None

    def _is_due(self, growth: GrowingAnswer) -> bool:
        return growth.due_in(self._clock.monotonic()) == 0
