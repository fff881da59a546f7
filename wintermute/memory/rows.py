"""Facts as rows and as recorded states, and what new ones make of those that are there. Pure."""

import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from wintermute import db
from wintermute.changes.records import Change
from wintermute.clock import moment, stamp
from wintermute.ids import NewId
from wintermute.memory.entry import LONGEST, SHORTEST, entry, key
from wintermute.memory.guard import successors
from wintermute.memory.records import EXPLICIT, Fact, NewFact, Source, Taken
from wintermute.messages import Json


@dataclass(slots=True)
class Batch:
    """What became of new facts, and the rows to insert and then to update for it."""

    taken: list[Taken] = field(default_factory=list)
    inserts: list[tuple[Any, ...]] = field(default_factory=list)
    updates: list[tuple[str, str, str]] = field(default_factory=list)
    """Source, origins, id."""


@dataclass(frozen=True, slots=True)
class Succession:
    """Which facts go, what comes, and for each that goes the number of its heir, if any."""

    old: tuple[Fact, ...]
    fresh: tuple[NewFact, ...]
    heirs: tuple[int | None, ...]


def facts_of(rows: Iterable[db.Row]) -> list[Fact]:
    """Rows as facts."""
    return [fact_of(row) for row in rows]


def fact_of(row: db.Row) -> Fact:
    """A row as a fact."""
    return Fact(
        id=row["id"],
        scope=row["scope"],
        text=row["text"],
        source=row["source"],
        speaker=row["speaker"],
        origins=tuple(json.loads(row["origins"])),
        created_at=moment(row["created_at"]),
        valid_from=moment(row["valid_from"]),
        valid_to=moment(row["valid_to"]) if row["valid_to"] else None,
        replaced_by=row["replaced_by"],
    )


def state_of(fact: Fact) -> Json:
    """What is on record of a fact."""
    state: Json = {"scope": fact.scope, "text": fact.text, "source": fact.source}
    return state | {"speaker": fact.speaker} if fact.speaker else state


def retirement(fact: Fact) -> Change:
    """How a fact that goes is recorded."""
    return Change("fact", fact.id, state_of(fact), None)


def retirements(facts: Iterable[Fact]) -> list[Change]:
    """How facts that go are recorded."""
    return [retirement(fact) for fact in facts]


def revivals(facts: Iterable[Fact]) -> list[Change]:
    """How facts that come back are recorded."""
    return [Change("fact", fact.id, None, state_of(fact)) for fact in facts]


def revived(rows: Iterable[db.Row], named: Mapping[str, str]) -> list[Fact]:
    """The last row of each key as a fact, with the text that the key has now."""
    last = {row["key"]: row for row in rows}
    return [
        replace(fact_of(row), text=named[name], valid_to=None, replaced_by=None)
        for name, row in last.items()
    ]


def wanted(new: Sequence[NewFact]) -> tuple[str, str]:
    """Ids, and pairs of scope and key, under which new facts may be known; as JSON."""
    return (
        json.dumps([fact.id for fact in new if fact.id]),
        json.dumps([(fact.scope, key(fact.text)) for fact in new]),
    )


def met(new: Sequence[NewFact], rows: Sequence[db.Row], now: datetime, new_id: NewId) -> Batch:
    """Let new facts meet those known by id, or by scope and key while they live."""
    by_id = {row["id"]: fact_of(row) for row in rows}
    place = {(row["scope"], row["key"]): row["id"] for row in rows if row["valid_to"] is None}
    batch = Batch()
    for fact in new:
        at = (fact.scope, key(fact.text))
        known = by_id.get(fact.id or "")
        if known:
            batch.taken.append(Taken(known, "known", None))
            continue
        if at in place:
            before = by_id[place[at]]
            taken = _met(before, fact)
            if taken.fact != before:
                kept = taken.fact
                batch.updates.append((kept.source, json.dumps(kept.origins), kept.id))
        else:
            taken = _stored(fact, now, new_id)
            batch.inserts.append(_row(taken.fact, at[1], now))
            place[at] = taken.fact.id
        by_id[taken.fact.id] = taken.fact
        batch.taken.append(taken)
    return batch


def succession(
    live: Sequence[Fact],
    ids: Collection[str],
    scope: str,
    new: Sequence[tuple[str, Source]],
    evidence: Sequence[str],
) -> Succession:
    """Let new texts stand for the live facts with these ids; equal ones stay.

    What stands for the person's own words is their own words as well (M-042), and they get lost in
    nothing: unrecognised, they are in any of the new texts. Raises: ToolFailed for a bad text.
    """
    texts = [entry(text, SHORTEST, LONGEST) for text, _ in new]
    names = [key(text) for text in texts]
    living = {key(fact.text): fact for fact in live}
    kept = set(names)
    old = [fact for name, fact in living.items() if fact.id in ids and name not in kept]
    heirs = successors([fact.text for fact in old], texts)
    if len(texts) == 1:
        heirs = [0] * len(old)
    pairs = list(zip(old, heirs, strict=True))
    lost = [fact for fact, heir in pairs if heir is None and fact.source == EXPLICIT]
    replaced: dict[int, list[Fact]] = defaultdict(list)
    for fact, heir in pairs:
        if heir is not None:
            replaced[heir].append(fact)
    fresh = []
    for n, (text, (_, source)) in enumerate(zip(texts, new, strict=True)):
        past = [*replaced[n], *lost]
        own = any(fact.source == EXPLICIT for fact in past)
        origins = {name: None for fact in past for name in fact.origins}
        if names[n] not in living:
            origins |= dict.fromkeys(evidence)
        fresh.append(NewFact(scope, text, EXPLICIT if own else source, origins=tuple(origins)))
    anywhere = 0 if texts else None
    return Succession(
        old=tuple(old),
        fresh=tuple(fresh),
        heirs=tuple(
            anywhere if heir is None and fact.source == EXPLICIT else heir for fact, heir in pairs
        ),
    )


def _stored(new: NewFact, now: datetime, new_id: NewId) -> Taken:
    at = new.at or now
    fact = Fact(
        id=new.id or new_id("fact"),
        scope=new.scope,
        text=new.text,
        source=new.source,
        speaker=new.speaker,
        origins=new.origins,
        created_at=at,
        valid_from=new.valid_from or at,
    )
    return Taken(fact, "stored", Change("fact", fact.id, None, state_of(fact), fact.origins))


def _met(known: Fact, new: NewFact) -> Taken:
    """An equal fact: where both came from is kept, and the stronger source (M-007)."""
    raised = new.source == EXPLICIT != known.source
    fact = replace(
        known,
        source=new.source if raised else known.source,
        origins=tuple(dict.fromkeys([*known.origins, *new.origins])),
    )
    if not raised:
        return Taken(fact, "known", None)
    change = Change("fact", fact.id, state_of(known), state_of(fact), new.origins)
    return Taken(fact, "raised", change)


def _row(fact: Fact, name: str, now: datetime) -> tuple[Any, ...]:
    return (
        fact.id,
        fact.scope,
        fact.text,
        name,
        fact.source,
        fact.speaker,
        json.dumps(fact.origins),
        stamp(fact.created_at),
        stamp(now),
        stamp(fact.valid_from),
    )
