"""Taking one change back out of an item that may have been changed again since. Pure.

Three states are compared: what the change found, what it left, and what is there now. Where the
present still is what the change left, it goes back; where somebody edited later, that edit stays,
also one that set again what the change had set.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from wintermute.changes.records import Change, Step
from wintermute.messages import Json

ALL_OF_IT = "all of it"


@dataclass(frozen=True, slots=True)
class Merged:
    """What an item should be. `kept` names what a later edit holds on to; `exists`: the whole."""

    state: Json | None
    kept: tuple[str, ...] = ()


def standing(newest_first: Sequence[Step], now: Json | None) -> Iterator[Step]:
    """The steps of one item that hold, newest first: had an effect, and are neither undone nor undo.

    Of a file the record is durable first. Where the next step, or the present, still found what a
    step had found, we were killed in between and the step never was.
    """
    known = {step.set_id for step in newest_first}
    found, undone = now, set[str]()
    for step in newest_first:
        void = step.change.before == found != step.change.after
        found = step.change.before
        if void or step.set_id in undone:
            continue
        if step.undoes in known:
            undone.add(step.undoes)
            continue
        yield step


def without(
    before: Json | None, after: Json | None, now: Json | None, since: Sequence[Change] = ()
) -> Merged:
    """The present item without the change that led from `before` to `after`.

    `since`: the later changes that still stand.
    """
    if now == before:
        return Merged(now)
    if now == after and not since:
        return Merged(before)
    if before is None or after is None or now is None:
        return Merged(now, (ALL_OF_IT,))
    state: Json = {}
    kept: list[str] = []
    for field in [*now, *(name for name in before if name not in now)]:
        was, left = before.get(field), after.get(field)
        value, fits = _field(was, left, now.get(field))
        if value != now.get(field) and any(_took(field, was, left, later) for later in since):
            value, fits = now.get(field), False
        state[field] = value
        if not fits:
            kept.append(field)
    return Merged(state, tuple(kept))


def _took(field: str, before: object, after: object, later: Change) -> bool:
    """Whether a later change made the field, or the same lines of it, its own."""
    if later.before is None or later.after is None:
        return False
    value = later.after.get(field)
    if value == later.before.get(field):
        return False
    return value in (before, after) or not _field(before, after, value)[1]


def _field(before: object, after: object, now: object) -> tuple[object, bool]:
    if now == after:
        return before, True
    if before in (after, now):
        return now, True
    if isinstance(before, str) and isinstance(after, str) and isinstance(now, str):
        lines = _lines(before, after, now)
        return (now, False) if lines is None else (lines, True)
    return now, False


def _lines(before: str, after: str, now: str) -> str | None:
    """`now` with the lines of `after` turned back to those of `before`; None where they collide."""
    base, theirs = after.splitlines(keepends=True), now.splitlines(keepends=True)
    mine = before.splitlines(keepends=True)
    edits = [*_edits(base, mine, 0), *_edits(base, theirs, 1)]
    edits.sort(key=lambda edit: edit[:3])
    result: list[str] = []
    at, owner = 0, -1
    for start, end, who, lines in edits:
        touching = start < at or (start == at and owner not in (-1, who))
        if touching:
            return None
        result += base[at:start] + lines
        at, owner = end, who
    return "".join(result + base[at:])


def _edits(base: list[str], other: list[str], who: int) -> list[tuple[int, int, int, list[str]]]:
    """Which lines of `base` somebody replaced, and by what."""
    return [
        (i1, i2, who, other[j1:j2])
        for tag, i1, i2, j1, j2 in SequenceMatcher(None, base, other, False).get_opcodes()
        if tag != "equal"
    ]
