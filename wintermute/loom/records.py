"""Values of the loom: casts, turns, observations, folds, and limits."""

from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from typing import Any, Literal, get_args

from wintermute.config.schema import LoopSettings
from wintermute.messages import Call, Json, Origin

CastStatus = Literal["running", "terminated", "truncated"]


@dataclass(frozen=True, slots=True)
class Observation:
    """One gate call with its result (L-027). `result` is None while the gate has only started."""

    n: int
    gate: str
    args: Json | None
    result: Any
    is_error: bool
    tool_call_id: str | None
    completed: bool


@dataclass(frozen=True, slots=True)
class Turn:
    """One utterance of a model and the observations of its calls.

    `error` is set when no answer came: the turn is the record of that failure.
    """

    id: str
    parent_id: str | None
    utterance: str
    calls: tuple[Call, ...]
    finish_reason: str
    tokens: int
    ms: int
    waited_ms: int = 0
    """The part of `ms` before the first token (F-017)."""
    error: str | None = None
    observations: tuple[Observation, ...] = ()
    backend: str = ""
    """The backend that answered; "" if none did."""
    seq: int = 0
    """Its place among all turns."""
    context_block: str = ""
    """Changes made by others until its calls had run; shown behind their results."""
    sender: str = ""
    """The backend and model that made its calls, and get `provider_fields` back; see `llm.provider_fields`."""
    provider_fields: str = ""


@dataclass(frozen=True, slots=True)
class Cast:
    """One run of the loop for one intent: a message, a due task or an objective."""

    id: str
    branch_id: str
    event_id: str | None
    entity_id: str
    intent: str
    origin: Origin
    wards: Json
    state: CastStatus
    reason: str | None
    result: str | None
    started_at: datetime
    turns: tuple[Turn, ...] = field(default=())
    context_block: str = ""
    """The context block behind the intent."""
    fold_refused: int = 0
    """The number of turns for which a summary was unusable (L-042)."""
    bare: bool = False
    """True if its message is shown without the parts between the last answer and it (F-038)."""
    taint: bool = False
    """True if it contains untrusted text, or its source did (L-037)."""

    @property
    def key(self) -> str:
        """The id that all casts for one message share."""
        return self.event_id or self.id

    @property
    def last_words(self) -> str:
        """The model's last text: all there is to show when the cast is cut short."""
        texts = [turn.utterance.strip() for turn in self.turns if turn.utterance.strip()]
        return texts[-1] if texts else ""


@dataclass(frozen=True, slots=True)
class Fold:
    """A summary of the first `turns` turns of a path.

    `last_turn` and `last_cast` are the places of the last of them and of its cast. `made_at`: the
    place of the newest turn at that time.
    """

    summary: str
    turns: int
    last_turn: int
    last_cast: int
    made_at: int = 0


@dataclass(frozen=True, slots=True)
class BranchView:
    """The view of a branch: its casts with their turns after the fold, oldest first.

    A partly folded cast is there with the rest of its turns.
    """

    fold: Fold | None
    casts: tuple[Cast, ...]


@dataclass(frozen=True, slots=True)
class Wards:
    """The limits of one cast: model turns, seconds of work, tokens in and out together."""

    max_turns: int
    max_seconds: float
    max_tokens: int
    require_done: bool

    @classmethod
    def of(cls, loop: LoopSettings) -> "Wards":
        """Return the limits of a chat cast, from the configuration."""
        return cls(loop.max_turns, loop.max_seconds, loop.max_tokens, loop.require_done_tool)

    def record(self) -> Json:
        """Return the limits in the form of the loom."""
        return asdict(self)

    def within(self, parent: "Wards") -> "Wards":
        """Return these limits inside a parent's: the smaller numbers, restrictions by OR (L-024)."""
        return Wards(
            min(self.max_turns, parent.max_turns),
            min(self.max_seconds, parent.max_seconds),
            min(self.max_tokens, parent.max_tokens),
            self.require_done or parent.require_done,
        )

    def less(self, turns: int, seconds: float, tokens: int) -> "Wards":
        """Return the rest of these limits after this usage."""
        return replace(
            self,
            max_turns=self.max_turns - turns,
            max_seconds=self.max_seconds - seconds,
            max_tokens=self.max_tokens - tokens,
        )

    def breached(self, turns: int, seconds: float, tokens: int) -> str | None:
        """Return the name of the first limit that is used up; None while all hold."""
        if turns >= self.max_turns:
            return "max_turns"
        if seconds >= self.max_seconds:
            return "max_seconds"
        return "max_tokens" if tokens >= self.max_tokens else None


PromptMode = Literal["minimal", "full", "base_only", "none"]
MODES: tuple[PromptMode, ...] = get_args(PromptMode)
