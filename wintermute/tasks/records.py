"""A task as a value."""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

Status = Literal["active", "paused", "completed", "deleted"]

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
