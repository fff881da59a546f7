"""Taking one change back out of an item that may have been changed again since. Pure.

Three states are compared: what the change found, what it left, and what is there now. Where the
present still is what the change left, it goes back; where somebody edited later, that edit stays.
"""

from dataclasses import dataclass
from difflib import SequenceMatcher

from wintermute.messages import Json


@dataclass(frozen=True, slots=True)
class Merged:
    """What an item should be. `kept` names what a later edit holds on to; `exists`: the whole."""

    state: Json | None
    kept: tuple[str, ...] = ()


def without(before: Json | None, after: Json | None, now: Json | None) -> Merged:
    """The present item without the change that led from `before` to `after`."""
    if now == after:
        return Merged(before)
    if now == before:
        return Merged(now)
    if before is None or after is None or now is None:
        return Merged(now, ("all of it",))
    state: Json = {}
    kept: list[str] = []
    for field in [*now, *(name for name in before if name not in now)]:
        value, fits = _field(before.get(field), after.get(field), now.get(field))
        state[field] = value
        if not fits:
            kept.append(field)
    return Merged(state, tuple(kept))


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
