"""Tasks and their occurrences as values."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from wintermute.tasks.schedule import UNPLANNED, Plan

Status = Literal["active", "paused", "completed", "deleted"]
State = Literal["claimed", "done", "failed", "missed"]
Sign = Literal["done", "snooze", "tomorrow", "cancel"]
"""What a person may answer to a delivered reminder (T-063)."""
SIGNS: Mapping[str, Sign] = {
    "\N{WHITE HEAVY CHECK MARK}": "done",
    "\N{SLEEPING SYMBOL}": "snooze",
    "\N{ALARM CLOCK}": "tomorrow",
    "\N{CROSS MARK}": "cancel",
}
"""The reactions that say it, in the order in which they are offered."""

EVERYWHERE = "global"
"""The scope of a task that the owner asked to be shown in every room (T-014)."""


@dataclass(frozen=True, slots=True)
class Task:
    """A goal or a promise. `priority` 1 is urgent, 10 is low.

    `scope`: whose it is, as in `person:@ann:example.org` or `room:!abc`, or `global`.
    """

    id: str
    scope: str
    content: str
    priority: int
    status: Status
    created_at: datetime
    reason: str = ""
    """Why it was completed."""
    schedule: str = ""
    """When it happens, in the words of its bracket (T-027): `daily at 09:00`; empty: unscheduled."""
    plan: Plan = UNPLANNED
    snoozed: datetime | None = None
    """Due then as well, beside the schedule (T-063)."""
    next_due: datetime | None = None
    """None: never, or not any more."""
    failures: int = 0
    """How many of its runs failed in a row."""
    held: bool = False
    """It is due, but there is no room in which it may be said (T-013)."""
