"""The record of one cast as a script: who asks gets what was answered then, and nothing else.

    Loop ── ask ──▶ Script: is this what was asked then? ──▶ the recorded answer
         ── run ──▶ Script: what did this call give then? ──▶ the recorded observation

Another request than then, or one too many, raises `Diverged`; where the record itself ends (the
cast was stopped, or is still at work) `RecordEnds`. What was too large then is too large again.
"""

import difflib
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from wintermute.config.secrets import Redaction
from wintermute.conversation.asking import ROLE as COMPACTION
from wintermute.conversation.cast import REASONS
from wintermute.errors import (
    BudgetSpent,
    ContextTooLarge,
    EmptyReply,
    ModelError,
    ModelUnavailable,
    ToolFailed,
)
from wintermute.llm import tokens
from wintermute.llm.backend import UNHEARD, Listener
from wintermute.llm.calls import Recorded
from wintermute.llm.kept import plain
from wintermute.llm.models import asked_again
from wintermute.loom.records import Cast, Turn
from wintermute.messages import Json, Reply, Request, Size

BY_ITSELF = {"text", "done", "max_turns", "max_tokens"}
"""Reasons for which the loop ended a cast without anybody or anything outside."""
TOO_LARGE = "context"
CUT = 100  # characters; whatever is shortened to fit a window loses more
ONE_MORE = "the record ends here; now the model is asked once more"
NO_SUMMARY = "now a summary is asked for"
Window = Callable[[str, str | None], int]


class Diverged(Exception):
    """Something else happens than what was recorded."""

    def __init__(self, turn_id: str | None, lines: Sequence[str]) -> None:
        super().__init__(lines[0])
        self.turn_id = turn_id
        self.lines = tuple(lines)


class RecordEnds(Exception):
    """What follows was never recorded."""


@dataclass(frozen=True, slots=True)
class Unanswered:
    """An attempt that failed; `outcome` is one word."""

    role: str
    outcome: str


Event = Recorded | Unanswered


@dataclass(frozen=True, slots=True)
class ScriptStep:
    """A turn, the question that led to it (None: it records a failure), and what came before."""

    turn: Turn
    question: Recorded | None
    before: list[Event]


def steps(cast: Cast, events: Sequence[Event]) -> tuple[ScriptStep, ...] | None:
    """What was recorded of a cast, turn by turn; None when it is not all there."""
    places = _places(cast, events)
    if places is None:
        return None
    found: list[ScriptStep] = []
    begin = 0
    for n, turn in enumerate(cast.turns):
        later = (places[each.id] for each in cast.turns[n:] if each.id in places)
        end = next(later, len(events))
        before = [each for each in events[begin:end] if not _is_question(each)]
        question = events[end] if turn.id in places else None
        if isinstance(question, Recorded):
            found.append(ScriptStep(turn, question, before))
            begin = end + 1
        else:
            found.append(ScriptStep(turn, None, before))
    return tuple(found)


def _places(cast: Cast, events: Sequence[Event]) -> dict[str, int] | None:
    """Which event gave which turn; None unless each turn with an answer has one.

    An answer that a crash kept from becoming a turn was asked for again: the later one counts.
    """
    turns = [turn for turn in cast.turns if turn.error is None and (turn.backend or turn.tokens)]
    found: dict[str, int] = {}
    for n, event in reversed(list(enumerate(events))):
        if turns and isinstance(event, Recorded) and _is_question(event):
            reply = event.answer
            if (reply.text, reply.calls) == (turns[-1].utterance, turns[-1].calls):
                found[turns.pop().id] = n
    return None if turns else found


def _is_question(event: Event) -> bool:
    return isinstance(event, Recorded) and event.role != COMPACTION


TOO_MANY = 1_000
"""Times the window: so much that no fold can have been enough."""


class Script:
    """Stands in for the models of one cast, and for what its gates gave."""

    def __init__(
        self,
        cast: Cast,
        recorded: Sequence[ScriptStep],
        window: Window,
        redact: Redaction,
        small: Collection[str] = (),
        fold_at: float = 0.5,
    ) -> None:
        """`small`: the backends whose models are small. `fold_at`: the share of the window."""
        self._small = small
        self._fold_at = fold_at
        self._cast = cast
        self._steps = recorded
        self._window = window
        self._redact = redact
        self._given = 0
        self.compared = 0
        """How many requests were the same as then."""

    @property
    def turn_id(self) -> str:
        """The turn that was answered last."""
        return self._steps[self._given - 1].turn.id

    @property
    def upcoming(self) -> ScriptStep:
        """What was asked next. Raises: Diverged, RecordEnds when nothing was."""
        if self._given < len(self._steps):
            return self._steps[self._given]
        if self._cast.reason in BY_ITSELF:
            raise Diverged(None, [ONE_MORE])
        raise RecordEnds

    def ended(self) -> None:
        """The loop has come to an end. Raises: Diverged when more was asked then."""
        if self._given < len(self._steps):
            turn_id = self.upcoming.turn.id
            raise Diverged(turn_id, [f"now the cast ends before {turn_id}"])

    async def ask(
        self,
        role: str,
        request: Request,
        *,
        backend: str | None = None,
        cast_id: str | None = None,
        listener: Listener = UNHEARD,
    ) -> Reply:
        """The recorded answer. Raises: ModelError as then; Diverged, RecordEnds."""
        step = self.upcoming
        now = self._plain(request)
        if role == COMPACTION:
            return self._summary(step, now)
        if step.question is None:
            self._given += 1
            raise _failure(step.turn, self._cast)
        found = self._difference(step.question, step.before, now)
        if not found:
            self._given += 1
            self.compared += 1
            return step.question.answer
        if _drop(step, role, TOO_LARGE):
            raise ContextTooLarge("as then")
        raise Diverged(step.turn.id, found)

    def _summary(self, step: ScriptStep, now: Request) -> Reply:
        then = next((each for each in step.before if isinstance(each, Recorded)), None)
        place = step.before.index(then) if then else 0
        found = self._difference(then, step.before[:place], now) if then else (NO_SUMMARY,)
        if then and not found:
            del step.before[: place + 1]
            self.compared += 1
            return then.answer
        if _drop(step, COMPACTION):
            raise ModelUnavailable("as then")
        raise Diverged(step.turn.id, found)

    def _difference(self, then: Recorded, before: Iterable[Event], now: Request) -> tuple[str, ...]:
        """What differs of a question, as it was put after the attempts `before` it that failed."""
        is_summary = then.role == COMPACTION
        failed = [
            each.outcome
            for each in before
            if isinstance(each, Unanswered) and (each.role == COMPACTION) == is_summary
        ]
        now = asked_again(now, failed[len(failed) - then.attempt + 1 :])
        return difference(self._plain(then.request), now)

    def window(self, role: str, backend: str | None = None) -> int:
        """As configured now."""
        return self._window(role, backend)

    def tokens(self, role: str, request: Request, backend: str | None = None) -> int:
        """Whether a request fits is what the record says: estimates depend on what else was asked."""
        request = self._plain(request)
        if role == COMPACTION:
            return tokens.size(request)
        if self._fits(request):
            return 0
        window = self._window(role, backend)
        if self._was_folded or any(each.role == COMPACTION for each in self.upcoming.before):
            return self._folded_at(request, window)
        return TOO_MANY * window  # it was cut, for no fold was enough

    def _folded_at(self, request: Request, window: int) -> int:
        """How many it had for a fold, which takes as much as is too much: as the next one was counted."""
        asked, ratio = self.upcoming.question, 1.0
        if asked is not None:
            ratio = asked.answer.usage.tokens_in / max(1, tokens.size(asked.request))
        return max(int(self._fold_at * window) + 1, int(tokens.size(request) * ratio))

    @property
    def _was_folded(self) -> bool:
        before = self.upcoming.before
        return bool(before) and isinstance(before[0], Recorded)

    def sizes(self, role: str, backend: str | None = None) -> tuple[Size, ...]:
        """That of the model which answered then."""
        question = self.upcoming.question
        return ("full" if question is None else self.size_of(question.answer.backend),)

    def size_of(self, backend: str) -> Size:
        """As configured now."""
        return "small" if backend in self._small else "full"

    def _fits(self, request: Request) -> bool:
        step = self.upcoming
        if self._was_folded:
            return False
        if step.question is None or any(map(_too_large, step.before)):
            return True
        then, now = step.question.request.messages, request.messages
        return len(now) <= len(then) and _characters(now) < _characters(then) + CUT

    def _plain(self, request: Request) -> Request:
        """As the record has it: JSON, without secrets."""
        both = self._redact.tree([plain(request.messages), request.tools])
        messages, tools = json.loads(json.dumps(both))
        return Request(tuple(messages), tuple(tools), request.must_call)

    def told(self, turn_id: str) -> str:
        """The block that stood behind a turn."""
        return next(step.turn.context_block for step in self._steps if step.turn.id == turn_id)

    def result(self, turn_id: str, n: int) -> Any:
        """What a call gave. Raises: ToolFailed as then; RecordEnds when it has no result."""
        turn = next(step.turn for step in self._steps if step.turn.id == turn_id)
        seen = next((each for each in turn.observations if each.n == n and each.completed), None)
        if seen is None:
            raise RecordEnds
        if seen.is_error:
            raise ToolFailed(str(seen.result))
        return seen.result


def _drop(step: ScriptStep, role: str, outcome: str | None = None) -> bool:
    """Take away a failed attempt of that time; False when there was none."""
    for each in step.before:
        if (
            isinstance(each, Unanswered)
            and outcome in (None, each.outcome)
            and (each.role == COMPACTION) == (role == COMPACTION)
        ):
            step.before.remove(each)
            return True
    return False


def _too_large(event: Event) -> bool:
    return isinstance(event, Unanswered) and event.outcome == TOO_LARGE and event.role != COMPACTION


def _characters(messages: Iterable[Json]) -> int:
    return sum(len(each["content"] or "") for each in messages if each["role"] != "system")


def _failure(turn: Turn, cast: Cast) -> ModelError:
    """The error that a turn is the record of."""
    kind = next((kind for kind, name in REASONS if name == turn.finish_reason), ModelUnavailable)
    if turn.error is None:  # nothing was said, and the person was told what had been done
        kind = EmptyReply
    if kind is BudgetSpent:
        return BudgetSpent(turn.error or "", cast.started_at)
    return kind(turn.error or "")


MOST_LINES = 40
MOST_CHARACTERS = 1000  # of one line


def difference(then: Request, now: Request) -> tuple[str, ...]:
    """What differs first, named, and how; nothing when they are the same."""
    pairs = zip_longest(then.messages, now.messages)
    for n, (before, after) in enumerate(pairs, start=1):
        if before != after:
            role = (before or after or {}).get("role")
            return (f"message {n} ({role})", *_diff(_message(before), _message(after)))
    old, new = (
        {tool["function"]["name"]: tool for tool in request.tools} for request in (then, now)
    )
    for name in sorted(old.keys() | new.keys()):
        if old.get(name) != new.get(name):
            return (f"tool {name}", *_diff(_pretty(old.get(name)), _pretty(new.get(name))))
    return ()


def _message(message: Json | None) -> list[str]:
    if message is None:
        return []
    content = message.get("content")
    rest = {key: value for key, value in message.items() if key not in ("role", "content")}
    said = content.splitlines() if isinstance(content, str) else _pretty(content)
    return [f"[{message['role']}]", *said, *(_pretty(rest) if rest else [])]


def _pretty(value: Any) -> list[str]:
    return [] if value is None else json.dumps(value, indent=1, ensure_ascii=False).splitlines()


def _diff(then: list[str], now: list[str]) -> Iterator[str]:
    found = list(difflib.unified_diff(then, now, "recorded", "now", n=1, lineterm=""))
    yield from (line[:MOST_CHARACTERS] for line in found[:MOST_LINES])
    if len(found) > MOST_LINES:
        yield f"... {len(found) - MOST_LINES} more lines"
