"""A fact: one clean line with a key that equal facts share, as a value and as a row. Pure.

Also how new facts are merged with known ones, and which lines a rewritten list of memories must keep (M-062).
"""

import json
import re
import textwrap
import unicodedata
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Literal, get_args

from wintermute import db
from wintermute.changes.change_sets import Change
from wintermute.clock import stamp
from wintermute.db.values import columns, reader
from wintermute.errors import ToolFailed
from wintermute.ids import NewId
from wintermute.memory.lexical_overlap import says_something, successors
from wintermute.messages import Json
from wintermute.secret_shapes import secret_kind
from wintermute.text import shortened

Source = Literal["user_explicit", "harvest", "dreaming_merge"]
AddOutcome = Literal["stored", "known", "raised", "ended", "refused"]
"""`refused`: the text holds a secret, so it was not stored (M-083)."""

SOURCES: tuple[Source, ...] = get_args(Source)
EXPLICIT: Source = "user_explicit"

BESIDE = "said beside what was looked for"
"""Note on a fact that does not match itself (M-096)."""

LEAST = 3
MOST = 2_000
"""Characters of a fact that a conversation or a model adds (M-006)."""
MOST_ORIGINS = 100
"""Origins kept of a fact; further ones are dropped."""
SHORTEST = 1
LONGEST = 20_000
"""Characters of a fact that comes from a file (M-067)."""

# A mark before a blank or a word makes a heading or a list; a minus before a digit is a number.
MARKS = re.compile(r"(?:[#>*\s\u200c\u200d]|-(?!\d)|[`~]{3,})+")
DROPPED = {"Cc", "Cf", "Cs"}
JOINERS = {"\u200c", "\u200d"}
"""Invisible, but parts of words in Persian and of emoji."""
# Between characters of these scripts, or beside one, a blank means nothing.
SIGN = "[\u3000-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
IDLE_BLANK = re.compile(f"(?<={SIGN}) | (?={SIGN})")

LEFT_OUT = re.compile(r"^\s*(?:\[truncated: \d|\[lines \d+-\d+ of |(?:\.{3,}|…)\s*$)", re.MULTILINE)
SHOWN = 3
"""Lines that a refusal quotes."""

UPDATED = ("id", "source", "origins", "valid_to", "taint", "protected", "archived", "said_at")
"""Columns that may change when an equal fact is stored again."""


@dataclass(frozen=True, slots=True)
class Fact:
    """One atomic memory. It was true until `valid_to`; the fact `replaced_by` is true since then."""

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
    retired_at: datetime | None = None
    taint: bool = False
    """True if it may come from outside: from a page, a file, a stranger (L-037)."""
    protected: bool = False
    """True if it is the person's own words, or was made from such in any generation (M-060)."""
    archived: bool = False
    """True if it was not used for long, so that only a search finds it (M-060)."""
    said_at: datetime | None = None
    """Time of the last mention, by the person if it is their own words; None: its creation."""

    @property
    def last_said(self) -> datetime:
        """Return the time of its newest evidence; the person's own words need a mention by them."""
        said = self.said_at or self.created_at
        return said if self.protected else max(said, self.created_at)


@dataclass(frozen=True, slots=True)
class Hit:
    """A fact that matches a query. `score`: from 0 to 1 relative to the other hits; None: no query.

    `beside`: only a message right before or after it matches (M-096).
    """

    fact: Fact
    score: float | None
    beside: bool = False


@dataclass(frozen=True, slots=True)
class NewFact:
    """A fact to be stored; `text` is clean. None: the store sets a new id and the present time."""

    scope: str
    text: str
    source: Source = EXPLICIT
    speaker: str | None = None
    origins: tuple[str, ...] = ()
    id: str | None = None
    at: datetime | None = None
    valid_from: datetime | None = None
    valid_to: datetime | None = None
    replaced_by: str | None = None
    taint: bool = False
    protected: bool = False
    """True if it counts as the person's own words whatever its source."""
    said_at: datetime | None = None
    """Time of the last mention, if it differs from `at`."""
    archived: bool = False
    queued: bool = False
    """True if it still has to be consolidated with the other facts of its scope."""
    theirs: bool = False
    """True if a person wrote it into the file by hand, so that it may hold a secret (M-083)."""


@dataclass(frozen=True, slots=True)
class Queue:
    """The facts of a scope that still have to be consolidated with the others."""

    scope: str
    taint: bool
    facts: int
    newest: datetime
    """Time when the last of them was stored."""


@dataclass(frozen=True, slots=True)
class AddedFact:
    """The outcome of a new fact; `change` is None if it was known already, or refused."""

    fact: Fact
    outcome: AddOutcome
    change: Change | None


@dataclass(frozen=True, slots=True)
class ReplacementResult:
    """The outcome of a replacement: new facts in order, known and refused ones included, and retired ones."""

    facts: tuple[Fact, ...]
    outcomes: tuple[AddOutcome, ...]
    retired: tuple[Fact, ...]
    set_id: str | None
    ended: tuple[str, ...] = ()
    """Ids of facts that the new ones ended: they were true until now."""


@dataclass(frozen=True, slots=True)
class RecalledFact:
    """A fact that was in the prompt of a message's cast."""

    cast_id: str
    fact: Fact


@dataclass(frozen=True, slots=True)
class FactCounts:
    """Counts of a scope's facts by their state. `by_source` and `archived` count live facts only."""

    scope: str
    live: int
    archived: int
    ended: int
    retired: int
    by_source: Mapping[Source, int]
    indexed: int
    """Facts in the full-text index: the live and the ended ones."""


@dataclass(frozen=True, slots=True)
class FileLine:
    """A fact for the memories file. `exported`: the file has its line."""

    id: str
    key: str
    text: str
    live: bool
    exported: bool


def entry(text: str, least: int = LEAST, most: int = MOST) -> str:
    """Return the text as one clean line (M-006).

    Raises: ToolFailed, naming the limit, for a line that is too short or too long.
    """
    line = cleaned(text)
    if len(line) < least or not says_something(line):
        raise ToolFailed(
            f"a memory is one line with a letter or digit, of at least {least} characters"
        )
    if len(line) > most:
        raise ToolFailed(
            f"a memory has at most {most} characters, this one has {len(line)}:"
            " shorten it, or make several of it"
        )
    return line


def storable_parts(text: str) -> list[str]:
    """Split a text that is too long for one fact into parts that can be stored until a model splits it."""
    return [part for part in textwrap.wrap(cleaned(text), MOST) if says_something(part)]


def entries(line: str) -> list[str]:
    """Return the facts in a line of a memories file: none for decoration, several if it is very long."""
    parts = textwrap.wrap(cleaned(line), LONGEST) if len(line) > LONGEST else [line]
    return [text for part in parts if says_something(text := cleaned(part))]


def cleaned(text: str) -> str:
    """Return the text as one line, without invisible characters and leading Markdown marks."""
    if not text.isprintable():
        dropped = {mark for mark in text if unicodedata.category(mark) in DROPPED} - JOINERS
        text = "".join(mark for mark in text if mark.isspace() or mark not in dropped)
    line = " ".join(text.split())
    markup = MARKS.match(line)
    return line[markup.end() :] if markup else line


def key(text: str) -> str:
    """Return the text without differences of case and spacing; equal facts have the same key (M-007)."""
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    return IDLE_BLANK.sub("", " ".join(folded.split()))


def listed(text: str) -> list[str]:
    """Return the memories in a text of one per line, each once."""
    found = [line for raw in text.splitlines() for line in entries(raw)]
    return list({key(line): line for line in reversed(found)}.values())[::-1]


def refusal(old: Sequence[tuple[str, bool]], text: str) -> str | None:
    """Return why the text must not replace the old lines, in words for the model; None if it may.

    `old`: each line, and True if it is protected, which means the person's own words.
    """
    new = listed(text)
    if not new:
        return "the new list is empty and nothing was changed: write the whole list, a line each"
    if LEFT_OUT.search(text):
        return (
            "the new list is only a part (it holds a mark of something left out) and nothing was"
            " changed: read the whole file and write the whole list"
        )
    if len(new) * 10 < len(old) * 6:
        return (
            f"the new list has {len(new)} lines instead of {len(old)} and nothing was changed:"
            f" at most 40 % may go at once, so keep at least {-(-len(old) * 6 // 10)} lines"
        )
    kept = {key(line) for line in new}
    gone = [line for line, protected in old if protected and key(line) not in kept]
    orphans = [
        line
        for line, successor in zip(gone, successors(gone, new), strict=True)
        if successor is None
    ]
    if not orphans:
        return None
    quoted = "; ".join(f'"{shortened(line, 200)}"' for line in orphans[:SHOWN])
    more = f" and {len(orphans) - SHOWN} more" if len(orphans) > SHOWN else ""
    return (
        "nothing was changed: these lines are the person's own words and must stay, or be in"
        f" another line with their main words, numbers and negations: {quoted}{more}"
    )


@dataclass(slots=True)
class Batch:
    """The outcomes of new facts, and the rows to insert and then to update for them."""

    results: list[AddedFact] = field(default_factory=list)
    inserts: list[Json] = field(default_factory=list)
    updates: list[Json] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ReplacementPlan:
    """A replacement plan: the old facts, the new ones, and for each old one the index of its successor."""

    old: tuple[Fact, ...]
    fresh: tuple[NewFact, ...]
    successors: tuple[int | None, ...]


fact_of = reader(Fact)


def facts_of(rows: Iterable[db.Row]) -> list[Fact]:
    """Return rows as facts."""
    return [fact_of(row) for row in rows]


def state_of(fact: Fact) -> Json:
    """Return the recorded state of a fact, as change sets hold it."""
    state: Json = {"scope": fact.scope, "text": fact.text, "source": fact.source}
    if fact.speaker:
        state["speaker"] = fact.speaker
    if fact.valid_to:
        state |= {"valid_to": stamp(fact.valid_to), "replaced_by": fact.replaced_by}
    return state | protection(fact)


def protection(fact: Fact) -> Json:
    """Return the flags of a fact for its state: protected, unless its source says so, and archived."""
    flags: Json = {"protected": True} if fact.protected and fact.source != EXPLICIT else {}
    return flags | ({"resting": True} if fact.archived else {})


def is_protected(state: Json) -> bool:
    """Read `protected` from a state, also from old states that lack the flag."""
    return bool(state.get("protected")) or state["source"] == EXPLICIT


def last_said(facts: Iterable[Fact], *, own: bool) -> datetime:
    """Return when the facts that a new one is made of were last mentioned. `own`: by the person only."""
    return max(fact.last_said for fact in facts if fact.protected or not own)


def renamed(fact: Fact, scope: str) -> NewFact:
    """Return a copy of a fact for another scope."""
    return NewFact(
        scope,
        fact.text,
        fact.source,
        fact.speaker,
        fact.origins,
        at=fact.created_at,
        valid_from=fact.valid_from,
        taint=fact.taint,
        protected=fact.protected,
        said_at=fact.said_at,
        theirs=True,
    )


def without_refused(
    successors_of: Mapping[str, int | None], taken: Sequence[AddedFact]
) -> dict[str, int | None]:
    """Return the successors without the old facts whose successor was refused: those stay."""
    return {
        old: n for old, n in successors_of.items() if n is None or taken[n].outcome != "refused"
    }


def retirements(facts: Iterable[Fact]) -> list[Change]:
    """Return the changes that record retired facts."""
    return [Change("fact", fact.id, state_of(fact), None) for fact in facts]


def revivals(facts: Iterable[Fact]) -> list[Change]:
    """Return the changes that record revived facts."""
    return [Change("fact", fact.id, None, state_of(fact)) for fact in facts]


def revived(rows: Iterable[db.Row], named: Mapping[str, str]) -> list[Fact]:
    """Return the last row of each key as a fact, with the text that the key has now."""
    last = {row["key"]: row for row in rows}
    return [
        replace(fact_of(row), text=named[name], retired_at=None, replaced_by=None, protected=True)
        for name, row in last.items()
    ]


def wanted(new: Sequence[NewFact]) -> tuple[str, str]:
    """Return, as JSON, the ids and the pairs of scope and key under which new facts may be known."""
    return (
        json.dumps([fact.id for fact in new if fact.id]),
        json.dumps([(fact.scope, key(fact.text)) for fact in new]),
    )


def merge_duplicates(
    new: Sequence[NewFact], rows: Sequence[db.Row], now: datetime, new_id: NewId
) -> Batch:
    """Merge new facts with known ones: by id, or by scope and key while the known one is true."""
    by_id = {row["id"]: fact_of(row) for row in rows}
    place = {
        (row["scope"], row["key"]): row["id"]
        for row in rows
        if row["retired_at"] is None and not row["ended"]
    }
    batch = Batch()
    for fact in new:
        at = (fact.scope, key(fact.text))
        known = by_id.get(fact.id or "")
        has_ended = fact.valid_to is not None and fact.valid_to <= now
        if known:
            batch.results.append(AddedFact(known, "known", None))
            continue
        if at in place:
            before = by_id[place[at]]
            taken = _merged(before, fact, now)
            if taken.fact != before:
                row = columns(taken.fact)
                batch.updates.append({name: row[name] for name in UPDATED} | {"ended": has_ended})
        else:
            taken = _stored(fact, now, new_id)
            if not fact.theirs and secret_kind(fact.text):
                batch.results.append(AddedFact(taken.fact, "refused", None))
                continue
            row = columns(taken.fact, "retired_at")
            row |= {"key": at[1], "stored_at": now, "ended": has_ended}
            batch.inserts.append(row | {"queued": fact.queued and not has_ended})
        if has_ended:
            place.pop(at, None)
        else:
            place[at] = taken.fact.id
        by_id[taken.fact.id] = taken.fact
        batch.results.append(taken)
    return batch


def replacement_plan(
    live: Sequence[Fact],
    ids: Collection[str],
    scope: str,
    new: Sequence[tuple[str, Source]],
    evidence: Sequence[str],
) -> ReplacementPlan:
    """Plan to replace the live facts with these ids by new texts; equal facts stay.

    A text that replaces the person's own words counts as their own words too (M-042). If no text matches their
    words, every new text counts as such. Raises: ToolFailed for a bad text.
    """
    texts = [entry(text, SHORTEST, LONGEST) for text, _ in new]
    names = [key(text) for text in texts]
    living = {key(fact.text): fact for fact in live}
    kept = set(names)
    old = [fact for name, fact in living.items() if fact.id in ids and name not in kept]
    successor_of = successors([fact.text for fact in old], texts)
    if len(texts) == 1:
        successor_of = [0] * len(old)
    pairs = list(zip(old, successor_of, strict=True))
    lost = [fact for fact, successor in pairs if successor is None and fact.protected]
    replaced: dict[int, list[Fact]] = defaultdict(list)
    for fact, successor in pairs:
        if successor is not None:
            replaced[successor].append(fact)
    fresh = []
    for n, (text, (_, source)) in enumerate(zip(texts, new, strict=True)):
        past = [*replaced[n], *lost]
        own = any(fact.protected for fact in past)
        origins = {name: None for fact in past for name in fact.origins}
        if names[n] not in living:
            origins |= dict.fromkeys(evidence)
        same = [living[names[n]]] if names[n] in living else []
        taint = any(fact.taint for fact in (*past, *same))
        new_source = EXPLICIT if own else source
        said = last_said([*past, *same], own=own) if same else None  # nobody says it again
        fresh.append(
            NewFact(scope, text, new_source, origins=tuple(origins), taint=taint, said_at=said)
        )
    anywhere = 0 if texts else None
    return ReplacementPlan(
        old=tuple(old),
        fresh=tuple(fresh),
        successors=tuple(
            anywhere if successor is None and fact.protected else successor
            for fact, successor in pairs
        ),
    )


def _stored(new: NewFact, now: datetime, new_id: NewId) -> AddedFact:
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
        valid_to=new.valid_to,
        replaced_by=new.replaced_by,
        taint=new.taint,
        protected=new.protected or new.source == EXPLICIT,
        archived=new.archived,
        said_at=new.said_at if new.said_at != at else None,
    )
    return AddedFact(fact, "stored", Change("fact", fact.id, None, state_of(fact), fact.origins))


def _merged(known: Fact, new: NewFact, now: datetime) -> AddedFact:
    """Merge a new fact into an equal one: both origins are kept, and the stronger source (M-007, M-075)."""
    own = new.source == EXPLICIT or new.protected
    said = new.said_at or new.at or now
    if known.protected:
        said = max(said, known.last_said) if own else known.last_said
    elif not own:
        said = max(said, known.last_said)
    raised = (own and not known.protected) or new.source == EXPLICIT != known.source
    also = (new.id,) if new.id else ()
    fact = replace(
        known,
        source=EXPLICIT if new.source == EXPLICIT else known.source,
        # A fact without origins gets none: it must stay if a message that repeats it is redacted.
        origins=tuple(dict.fromkeys([*known.origins, *also, *(known.origins and new.origins)]))[
            :MOST_ORIGINS
        ],
        valid_to=new.valid_to or known.valid_to,
        taint=known.taint and new.taint,
        protected=known.protected or own,
        archived=False,  # what is said again is of use again
        said_at=said if said != known.created_at else None,
    )
    ended = fact.valid_to != known.valid_to
    if not raised and not ended:
        return AddedFact(fact, "known", None)
    change = Change("fact", fact.id, state_of(known), state_of(fact), new.origins)
    return AddedFact(fact, "ended" if ended else "raised", change)
