"""Streamed answers: the times and texts of their edits (X-023, X-024).

The model's tokens come by conversation. The sender asks for due edits between the rows of the
outbox.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from wintermute.clock import Clock
from wintermute.mailbox.inbox import InboxRow
from wintermute.mailbox.outbox import is_matrix
from wintermute.matrix.content import streamed_part

FIRST_SECONDS = 0.8
"""Seconds from the first text to the first event: an answer that is complete by then is one event."""
LEAST_NEW = 20
"""Fewest new characters for another edit."""
GAPS = (1.0, 1.0, 2.0, 2.0, 3.0, 4.0, 5.0, 7.0, 10.0)
"""Seconds between the events of one answer; the last gap repeats."""
MOST_EDITS = 40
"""Most events of one answer, including its last: each makes a room slower to load."""
KEPT_MOST = 40_000
"""Characters of an answer to keep, as the beginning of later text."""
TOOL = "{said}\n\n\N{GEAR} {doing} …"


def next_at(first_at: float, times: Sequence[float]) -> float | None:
    """Return the time of the next edit after events at these times; None: only the final edit is left.

    `first_at`: the time of the first text.
    """
    if not times:
        return first_at + FIRST_SECONDS
    if len(times) >= MOST_EDITS:
        return None
    return times[-1] + GAPS[min(len(times), len(GAPS)) - 1]


@dataclass(frozen=True, slots=True)
class DraftRow:
    """The outbox row of a draft, and the cast whose answer it shows."""

    id: str
    cast_id: str
    scope: str


@dataclass(frozen=True, slots=True)
class StreamedAnswer:
    """An answer that is being streamed.

    `text`: of the newest utterance or attempt; `before`: the text of an earlier one, shown until
    the newest has enough. `sent`: the number of characters of `text` that were sent.
    """

    row: InboxRow
    is_running: bool = True
    text: str = ""
    before: str = ""
    doing: str = ""
    first_at: float | None = None
    times: tuple[float, ...] = ()
    sent: int = 0
    sent_doing: str = ""
    draft: DraftRow | None = None
    begun: bool = False
    """A part of it was sent."""
    is_over: bool = False
    """Only its final edit may still be sent."""
    retracted: bool = False
    """The text shown so far was reasoning, which is not to be shown again."""

    @property
    def said(self) -> str:
        """The text to show."""
        new = self.text.strip()
        return self.text if len(new) >= LEAST_NEW or (new and not self.before) else self.before

    @property
    def grows(self) -> bool:
        """True if more edits may follow."""
        return self.is_running and not self.is_over and self.first_at is not None

    @property
    def has_enough_new(self) -> bool:
        """True if there is enough new text, or a new tool, for another edit."""
        if len(self.text.strip()) - self.sent >= LEAST_NEW:
            return True
        return bool(self.times and self.doing and self.doing != self.sent_doing)

    @property
    def next_attempt(self) -> "StreamedAnswer":
        """The same answer at the beginning of another utterance or attempt."""
        return replace(self, text="", before=self.said, sent=0)

    def due_in(self, now: float) -> float | None:
        """Return the seconds until the next edit; None: only after more text."""
        if not self.grows or self.first_at is None or not self.has_enough_new:
            return None
        at = next_at(self.first_at, self.times)
        return None if at is None else max(0.0, at - now)


class Drafts:
    """The answers that are being streamed: one in each conversation."""

    def __init__(self, clock: Clock, *, shows: bool) -> None:
        """`shows`: False if answers are not to be streamed."""
        self._clock = clock
        self._shows = shows
        self._growing: dict[str, StreamedAnswer] = {}
        self._to_redact: dict[str, InboxRow] = {}  # messages with a draft to redact

    def attend(self, row: InboxRow) -> None:
        """Begin an answer to a message, or go on with an earlier attempt."""
        known = self._growing.pop(row.conversation_id, None)
        if not self._shows or row.kind != "message" or not is_matrix(row.room_id):
            return
        if known is None or known.row.event_id != row.event_id:
            known = StreamedAnswer(row)
        self._growing[row.conversation_id] = replace(
            known.next_attempt, is_running=True, draft=None, is_over=False
        )

    def rest(self, row: InboxRow) -> None:
        """Pause an answer; its text is kept."""
        if known := self._known(row):
            self._growing[row.conversation_id] = replace(known, is_running=False)

    def say(self, conversation_id: str, piece: str) -> str:
        """Add text; an empty one begins another utterance or attempt.

        Returns the room where an edit is due, or else "". The earlier text stays until there is
        more: a draft is never blank (X-053).
        """
        known = self._growing.get(conversation_id)
        if known is None or not known.is_running:
            return ""
        if not piece:
            self._growing[conversation_id] = known.next_attempt
            return ""
        text = (known.text + piece)[:KEPT_MOST]
        first_at, is_first = known.first_at, known.first_at is None and bool(text.strip())
        first_at = self._clock.monotonic() if is_first else first_at
        now = replace(known, text=text, doing="", first_at=first_at)
        self._growing[conversation_id] = now
        return now.row.room_id if is_first or self._is_due(now) else ""

    def retract(self, conversation_id: str) -> str:
        """Discard the text, which was reasoning. Returns the room where it may be shown, or ""."""
        known = self._growing.get(conversation_id)
        if known is None or known.first_at is None:
            return ""
        anew = StreamedAnswer(known.row, is_running=known.is_running, retracted=True)
        self._growing[conversation_id] = anew
        self._to_redact[conversation_id] = known.row
        return known.row.room_id

    def take_retracted(self, where: tuple[str, str]) -> str | None:
        """Return, once, the message whose draft must be redacted in this room; None if there is none."""
        row = self._to_redact.get(where[0])
        if row is None or row.room_id != where[1]:
            return None
        del self._to_redact[where[0]]
        return row.event_id

    def set_tool(self, conversation_id: str, doing: str) -> str:
        """Set the tool that is being used. Returns the room where an edit is due, or else ""."""
        known = self._growing.get(conversation_id)
        if known is None:
            return ""
        self._growing[conversation_id] = now = replace(known, doing=doing)
        return now.row.room_id if self._is_due(now) else ""

    def shown(self, row: InboxRow) -> str | None:
        """Return the shown text of an answer; None if it is unknown since the last start."""
        known = self._known(row)
        if known is None or not known.begun:
            return "" if known is not None and known.retracted else None
        return known.said

    def growing(self) -> list[tuple[str, str]]:
        """List the conversations with a streamed answer or a draft to redact, each with its room."""
        rows = {each: g.row for each, g in self._growing.items() if g.grows} | self._to_redact
        return [(each, row.room_id) for each, row in rows.items()]

    def streamed_at(self, where: tuple[str, str]) -> StreamedAnswer | None:
        """Return the answer that is streamed in a conversation of a room, if any."""
        known = self._growing.get(where[0])
        return known if known and known.grows and known.row.room_id == where[1] else None

    def due_in(self, where: tuple[str, str]) -> float | None:
        """Return the seconds until the next edit there; None: only after more text."""
        known = self.streamed_at(where)
        return known.due_in(self._clock.monotonic()) if known else None

    def text(self, answer: StreamedAnswer) -> str:
        """Return the Markdown of the next edit of an answer."""
        said, _ = streamed_part(answer.said)
        return TOOL.format(said=said, doing=answer.doing) if answer.doing else said

    def show_in(self, conversation_id: str, draft: DraftRow) -> None:
        """Set the row whose event shows the answer."""
        if known := self._growing.get(conversation_id):
            self._growing[conversation_id] = replace(known, draft=draft)

    def note_sent(self, conversation_id: str, answer: StreamedAnswer) -> None:
        """Record that this state of an answer was sent."""
        known = self._growing.get(conversation_id)
        if known is None or known.row.event_id != answer.row.event_id:
            return
        _, is_all = streamed_part(answer.said)
        # A new attempt may have begun meanwhile, of which nothing is sent.
        sent = len(answer.text.strip()) if known.text.startswith(answer.text) else 0
        self._growing[conversation_id] = replace(
            known,
            times=(*known.times, self._clock.monotonic()),
            sent=sent,
            sent_doing=answer.doing,
            begun=True,
            is_over=known.is_over or is_all,
        )

    def finish(self, conversation_id: str) -> None:
        """Send no more edits of an answer before its end."""
        if known := self._growing.get(conversation_id):
            self._growing[conversation_id] = replace(known, is_over=True)

    def _known(self, row: InboxRow) -> StreamedAnswer | None:
        known = self._growing.get(row.conversation_id)
        return known if known and known.row.event_id == row.event_id else None

    def _is_due(self, answer: StreamedAnswer) -> bool:
        return answer.due_in(self._clock.monotonic()) == 0
