"""The record of one cast as a script: who asks gets what was answered then, and nothing else.

    Loop ── ask ──▶ Script: is this what was asked then? ──▶ the recorded answer
         ── run ──▶ Script: what did this call give then? ──▶ the recorded observation

A request that differs, or one too many, raises `Diverged`; where the record itself ends (the cast
was stopped, or is still at work) `RecordEnds`.
"""

import json
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from wintermute.config.secrets import Redaction
from wintermute.conversation.calls import normalised
from wintermute.conversation.cast import REASONS
from wintermute.conversation.differing import difference
from wintermute.conversation.folding import ROLE as COMPACTION
from wintermute.conversation.toolbox import Caller, Toolbox
from wintermute.errors import (
    BudgetSpent,
    ContextTooLarge,
    ModelError,
    ModelUnavailable,
    ToolFailed,
)
from wintermute.llm import tokens
from wintermute.llm.backend import Draft, unseen
from wintermute.llm.calls import Recorded
from wintermute.loom.records import Cast, Turn
from wintermute.messages import Json, Reply, Request

BY_ITSELF = {"text", "done", "max_turns", "max_tokens"}
"""Reasons for which the loop ended a cast without anybody or anything outside."""
CUT = 100  # characters; whatever is shortened to fit a window loses more
ONE_MORE = "a question that was not asked then"
NO_SUMMARY = "a summary is asked for where none was made then"


class Diverged(Exception):
    """Something else happens than what was recorded."""

    def __init__(self, turn_id: str | None, lines: Sequence[str]) -> None:
        super().__init__(lines[0])
        self.turn_id = turn_id
        self.lines = tuple(lines)


class RecordEnds(Exception):
    """What follows was never recorded."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A question that was asked and not answered."""

    role: str


Event = Recorded | Refused


def matched(cast: Cast, events: Iterable[Event]) -> tuple[Event, ...] | None:
    """The events that led to what the cast has; None when not all of it was recorded.

    An answer that a crash kept from becoming a turn was asked for again, and is left out.
    """
    turns = [turn for turn in cast.turns if turn.error is None]
    kept: list[Event] = []
    for event in reversed(list(events)):
        if isinstance(event, Recorded) and event.role != COMPACTION:
            if not turns or not _is(event.answer, turns[-1]):
                continue
            turns.pop()
        kept.append(event)
    return None if turns else tuple(reversed(kept))


def _is(answer: Reply, turn: Turn) -> bool:
    reply = normalised(answer)
    return (reply.text, reply.calls) == (turn.utterance, turn.calls)


class Script:
    """Stands in for the models of one cast."""

    def __init__(
        self, cast: Cast, events: Iterable[Event], windows: "Windows", redact: Redaction
    ) -> None:
        self._cast = cast
        self._events = deque(events)
        self._windows = windows
        self._redact = redact
        self._given = 0
        self.compared = 0
        """How many requests were the same as then."""

    @property
    def turn_id(self) -> str:
        """The turn that was answered last."""
        return self._cast.turns[self._given - 1].id

    @property
    def asked_then(self) -> Request | None:
        """The next question of the record; None: it has no answer.

        Raises: Diverged, RecordEnds when the record has no turn any more.
        """
        if self._given >= len(self._cast.turns):
            if self._cast.reason in BY_ITSELF:
                raise Diverged(None, [ONE_MORE])
            raise RecordEnds
        if self._cast.turns[self._given].error is not None:
            return None
        return next(
            each.request
            for each in self._events
            if isinstance(each, Recorded) and each.role != COMPACTION
        )

    async def ask(
        self,
        role: str,
        request: Request,
        *,
        backend: str | None = None,
        cast_id: str | None = None,
        draft: Draft = unseen,
    ) -> Reply:
        """The recorded answer. Raises: ModelError as then; Diverged, RecordEnds."""
        now = _plain(request, self._redact)
        if role == COMPACTION:
            return self._summary(now)
        then = self.asked_then
        turn = self._cast.turns[self._given]
        if then is None:
            self._given += 1
            raise self._failure(turn)
        found = difference(_plain(then, self._redact), now)
        if found:
            if self._passed_over(COMPACTION):
                raise ContextTooLarge("as recorded")
            raise Diverged(turn.id, found)
        self._given += 1
        return self._taken(lambda event: event.role != COMPACTION)

    def window(self, role: str, backend: str | None = None) -> int:
        """As configured now."""
        return self._windows(role, backend)
