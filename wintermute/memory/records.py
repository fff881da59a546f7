"""Facts as values, and what the store did with them."""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal, get_args

from wintermute.changes.records import Change

Source = Literal["user_explicit", "harvest", "dreaming_merge"]
Outcome = Literal["stored", "known", "raised"]

SOURCES: tuple[Source, ...] = get_args(Source)
EXPLICIT: Source = "user_explicit"


@dataclass(frozen=True, slots=True)
class Fact:
    """One atomic memory. Live while `valid_to` is None."""

    id: str
    scope: str
    text: str
    source: Source
    speaker: str | None
    origins: tuple[str, ...]
    created_at: datetime
    valid_from: datetime
    valid_to: datetime | None = None
    replaced_by: str | None = None


@dataclass(frozen=True, slots=True)
class NewFact:
    """A fact to be stored; `text` is clean. None: the store gives a new id, the present moment."""

    scope: str
    text: str
    source: Source = EXPLICIT
    speaker: str | None = None
    origins: tuple[str, ...] = ()
    id: str | None = None
    at: datetime | None = None
    valid_from: datetime | None = None


@dataclass(frozen=True, slots=True)
class Taken:
    """What became of a new fact; `change` is None where it was known already."""

    fact: Fact
    outcome: Outcome
    change: Change | None


@dataclass(frozen=True, slots=True)
class Replaced:
    """What a replacement did: the new facts in order (known ones too), and those that went."""

    facts: tuple[Fact, ...]
    outcomes: tuple[Outcome, ...]
    retired: tuple[Fact, ...]
    set_id: str | None


@dataclass(frozen=True, slots=True)
class Row:
    """A fact as the memories file sees it. `exported`: the file has its line."""

    id: str
    key: str
    text: str
    live: bool
    exported: bool
