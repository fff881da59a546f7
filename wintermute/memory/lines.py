"""What the lines of a memories file and the facts make of each other. Pure."""

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from wintermute.memory.entry import entries, key
from wintermute.memory.guard import successors
from wintermute.memory.records import Row
from wintermute.memory.versions import Span, nearest

MANY = 5
"""Fewer lines a person may well remove on purpose."""
LINE_END = re.compile(r"\r\n|\r|\n")


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do so that file and facts are the same."""

    lines: tuple[str, ...]
    """What the file should hold: in the person's order, with their blank lines."""
    added: tuple[str, ...] = ()
    """Lines that a person wrote."""
    reworded: tuple[tuple[str, str], ...] = ()
    """Facts (id, text) whose case or spacing a person changed."""
    removed: tuple[str, ...] = ()
    """Facts (id) whose line a person removed."""
    dropped: int = 0
    """Lines of mere decoration, which go."""
    learnt: tuple[str, ...] = ()
    """Facts (id) whose line is missing because the file was saved from an older buffer."""
    names: tuple[str, ...] = field(default=(), compare=False)
    """The keys of the lines that were found."""

    @property
    def loses_most(self) -> bool:
        """Whether it looks like an accident: fewer lines are left than went."""
        return len(self.removed) >= MANY and len(self.removed) > len(self.lines)


def lines_of(text: str) -> tuple[str, ...]:
    """The lines of a file without the blank ones at its end."""
    return _trimmed(LINE_END.split(text))


def text_of(lines: Iterable[str]) -> str:
    """Lines as the text of a file."""
    return "".join(f"{line}\n" for line in lines)


def arranged(lines: Sequence[str], order: Iterable[str]) -> tuple[str, ...]:
    """These lines without blank ones: first those of the order, in it, then the others."""
    there = set(lines)
    first = {line: None for line in order if line in there}
    return (*first, *(line for line in lines if line.strip() and line not in first))


def plan(lines: Sequence[str] | None, rows: Sequence[Row], spans: Collection[Span] = ()) -> Plan:
    """Bring a file and the rows of `Facts.for_file` together. None: there is no file.

    `spans`: the versions that the file may come from (F-032).
    """
    live = {row.key: row for row in rows if row.live}
    texts, dropped = _facts_in(lines or (), live.values())
    names = {name for name, _ in texts if name}
    missing = [row for name, row in live.items() if name not in names]
    gone = [] if lines is None else [row for row in missing if row.exported]
    learnt, stale = _since(texts, gone, live, spans)
    left_over = {row.key for row in rows if not row.live} | stale
    kept: list[str] = []
    added: list[str] = []
    reworded: list[tuple[str, str]] = []
    for name, text in texts:
        row = live.get(name)
        if row and not row.exported:
            kept.append(row.text)  # what the store reworded since is not the person's edit
        elif name not in left_over or row:
            kept.append(text)
        if row and row.exported and row.text != text:
            reworded.append((row.id, text))
        elif name and not row and name not in left_over:
            added.append(text)
    goes = {row.id for row in gone} - set(learnt)
    removed = [row.id for row in gone if row.id in goes]
    kept += [row.text for row in missing if row.id not in goes]
    return Plan(
        *(_trimmed(kept), tuple(added), tuple(reworded), tuple(removed), dropped, tuple(learnt)),
        names=tuple(names),
    )


def _since(
    texts: Sequence[tuple[str, str]],
    gone: Sequence[Row],
    live: Collection[str],
    spans: Collection[Span],
) -> tuple[list[str], frozenset[str]]:
    """What we learnt since the version that a saved file comes from, and what went since.

    That is: those of the lines that are `gone` (by id) which that version never had, and, if there
    are any, the keys of its lines that live no more.
    """
    ours = {span.key for span in spans if span.ours and span.until is None}
    gone = [row for row in gone if row.key in ours]
    if not gone:
        return [], frozenset()
    # A line that was reworded by hand was there.
    new = [text for name, text in texts if name and name not in live]
    heirs = successors([row.text for row in gone], new)
    edited = {row.key for row, heir in zip(gone, heirs, strict=True) if heir is not None}
    base = nearest(spans, {name for name, _ in texts if name} | edited)
    learnt = [row.id for row in gone if row.key not in base | edited]
    return learnt, base - set(live) if learnt else frozenset()


def _facts_in(lines: Sequence[str], live: Iterable[Row]) -> tuple[list[tuple[str, str]], int]:
    """Key and text of each line, equal ones once, blank ones as they are; and how many say nothing."""
    keys = {row.text: row.key for row in live}  # most lines are as we wrote them
    found: list[tuple[str, str]] = []
    seen: set[str] = set()
    dropped = 0
    for line in lines:
        if not line.strip():
            found.append(("", ""))
            continue
        texts = [line] if line in keys else entries(line)
        dropped += not texts
        for text in texts:
            name = keys.get(text) or key(text)
            if name not in seen:
                seen.add(name)
                found.append((name, text))
    return found, dropped


def _trimmed(lines: list[str]) -> tuple[str, ...]:
    while lines and not lines[-1].strip():
        lines.pop()
    return tuple(lines)
