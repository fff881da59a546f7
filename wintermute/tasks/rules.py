"""What a task may be. Pure; what breaks a rule is told in words."""

from wintermute.errors import ToolFailed
from wintermute.tasks.records import Status
from wintermute.text import one_line

MOST_CHARACTERS = 2_000

MOVES: dict[str, tuple[frozenset[Status], Status]] = {
    "complete": (frozenset({"active", "paused"}), "completed"),
    "pause": (frozenset({"active"}), "paused"),
    "resume": (frozenset({"paused", "completed"}), "active"),
    "delete": (frozenset({"active", "paused", "completed"}), "deleted"),
}
"""From which status each action leads, and to which. A completed task can be taken up again."""


def checked_text(text: object, what: str) -> str:
    """The content or the reason as one clean line (T-003, T-005)."""
    line = one_line(text) if isinstance(text, str) else ""
    if not line:
        raise ToolFailed(f"{what} must be a text that is not blank")
    if len(line) > MOST_CHARACTERS:
        raise ToolFailed(
            f"{what} has {len(line)} characters; at most {MOST_CHARACTERS} are allowed"
        )
    return line


def checked_priority(value: object) -> int:
    """The priority: a whole number, and neither a text nor a truth (T-003)."""
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 10:
        raise ToolFailed("priority must be an integer from 1 (urgent) to 10 (low)")
    return value
