"""Limits that the loop enforces outside the model: every cast must end (L-019 to L-024)."""

from dataclasses import asdict, dataclass, replace

from wintermute.config.schema import Loop
from wintermute.messages import Json


@dataclass(frozen=True, slots=True)
class Wards:
    """The limits of one cast: model turns, seconds of work, tokens in and out together."""

    max_turns: int
    max_seconds: float
    max_tokens: int
    require_done: bool

    @classmethod
    def of(cls, loop: Loop) -> "Wards":
        """The limits of a chat cast, from the configuration."""
        return cls(loop.max_turns, loop.max_seconds, loop.max_tokens, loop.require_done_tool)

    def record(self) -> Json:
        """As the loom stores it."""
        return asdict(self)

    def within(self, parent: "Wards") -> "Wards":
        """These limits inside a parent's: the smaller numbers, restrictions by OR (L-024)."""
        return Wards(
            min(self.max_turns, parent.max_turns),
            min(self.max_seconds, parent.max_seconds),
            min(self.max_tokens, parent.max_tokens),
            self.require_done or parent.require_done,
        )

    def less(self, turns: int, seconds: float, tokens: int) -> "Wards":
        """What is left of these limits when so much is used."""
        return replace(
            self,
            max_turns=self.max_turns - turns,
            max_seconds=self.max_seconds - seconds,
            max_tokens=self.max_tokens - tokens,
        )

    def breached(self, turns: int, seconds: float, tokens: int) -> str | None:
        """The first limit that is used up, by its name; None while all hold."""
        if turns >= self.max_turns:
            return "max_turns"
        if seconds >= self.max_seconds:
            return "max_seconds"
        return "max_tokens" if tokens >= self.max_tokens else None
