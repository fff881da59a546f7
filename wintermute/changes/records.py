"""Changes as values: what an item was before, and what it became."""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from wintermute.messages import Json

Cause = Literal["night", "consolidation", "undo", "import", "edit", "tool", "command"]
Kind = Literal["fact", "task", "skill", "core", "page"]


@dataclass(frozen=True, slots=True)
class Change:
    """One item. `before` None: it did not exist; `after` None: it is gone."""

    kind: Kind
    item: str
    before: Json | None
    after: Json | None
    evidence: tuple[str, ...] = ()
    """Ids of the events, turns or changes that led to it."""


@dataclass(frozen=True, slots=True)
class Step:
    """A change in the history of its item."""

    set_id: str
    cause: Cause
    undoes: str | None
    change: Change


@dataclass(frozen=True, slots=True)
class Reason:
    """Why something is changed and on whose behalf; every write that can be undone names one."""

    cause: Cause
    scope: str
    cast_id: str | None = None
    evidence: tuple[str, ...] = ()
    summary: str = ""


@dataclass(frozen=True, slots=True)
class ChangeSet:
    """What was changed together. `undone`: the items whose change was undone since."""

    id: str
    cause: Cause
    scope: str
    undoes: str | None
    summary: str
    created_at: datetime
    changes: tuple[Change, ...]
    undone: frozenset[str] = frozenset()
