"""MEMORIES.txt: a live two-way view of the facts, one per line (M-015).

The database is the truth. `exported` tells a line that a person removed (the fact has been in the file) from one
that has not been written yet. Decisions of the store are committed before the file is written. Edits read from the
file are committed after it: after a crash in between, the next read finds lines that are known already.

A saved file is compared with the last versions to find the one it was edited from (F-032). A version is the set of
facts whose lines were in it: no text is stored twice, and forgotten facts are in none of them. A file saved from an
old buffer lacks facts learnt since then; that does not forget them. Nor do many lines missing at once, until the
person says so (M-090).
"""

import asyncio
import hashlib
import json
import logging
import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import TypeVar

from wintermute.changes.change_sets import ChangeSets, Reason
from wintermute.changes.decisions import LINES, Decision, Decisions
from wintermute.db import Database, Row, Transaction
from wintermute.errors import MemoryFileUnusable, ToolFailed
from wintermute.files import TextFile, run_uncancelled
from wintermute.memory.core import Places, WarnOnce
from wintermute.memory.fact import (
    Fact,
    FileLine,
    NewFact,
    ReplacementResult,
    Source,
    entries,
    key,
    listed,
    refusal,
    retirements,
    revivals,
)
from wintermute.memory.facts import LIVE, Facts
from wintermute.memory.lexical_overlap import Successors, successors
from wintermute.secret_shapes import refuse_secret, secret_kind

GENERATED = "# generated: edits here are ignored; use: wintermute memory import FILE"
"""First line of a file that is only an export (M-016)."""
MOST = 20
"""Versions of a file that are kept."""

FEW, PART_LOST = 3, 0.2
"""A person may remove this many lines, or this share of a long file, on purpose."""
LINE_END = re.compile(r"\r\n|\r|\n")

T = TypeVar("T")
"""Result of a transaction; None: nothing was done."""

log = logging.getLogger(__name__)

ATTEMPTS = 5
LINES_LOST = "{n} lines disappeared from {file} at once"
MOMENT, SETTLES = 0.2, 2.0
"""Seconds after a save in which the rest of it may come: of a small file, and of any."""


@dataclass(frozen=True, slots=True)
class LineSpan:
    """The versions of a file that have a line: from `since` until before `until` (None: still there).

    `ours`: Wintermute wrote it there, not a person.
    """

    key: str
    since: int
    until: int | None
    ours: bool

    def is_in(self, version: int) -> bool:
        """Check whether a version has the line."""
        return self.since <= version and (self.until is None or version < self.until)


@dataclass(frozen=True, slots=True)
class RetainedLine:
    """A memory that was missing in a saved file and was retained."""

    scope: str
    id: str
    text: str


def nearest(spans: Collection[LineSpan], names: Collection[str]) -> frozenset[str]:
    """Return the keys of the version that differs least from a file with these keys; the newest of equals.

    A file that shares nothing with any version counts as edited from the newest.
    """
    newest = max((span.until or span.since for span in spans), default=0)
    versions = [
        frozenset(span.key for span in spans if span.is_in(number))
        for number in range(newest, max(0, newest - MOST), -1)
    ]
    found = set(names)
    like = [keys for keys in versions if keys & found]
    best = min(like or versions[:1], key=lambda keys: len(keys ^ found), default=frozenset[str]())
    may_be_older = newest > MOST and like and best == versions[-1]
    return _older(spans, best, found) if may_be_older else best


def _older(
    spans: Collection[LineSpan], oldest: frozenset[str], found: Collection[str]
) -> frozenset[str]:
    """Reduce the oldest known version to the lines an even older one may have had (F-066).

    Its newest lines are dropped while a saved file lacks more of them than it has.
    """
    lines = sorted((span.since, span.key) for span in spans if span.key in oldest)
    best, differs, least = len(lines), 0, 0
    for n in range(len(lines) - 1, 0, -1):
        differs += 1 if lines[n][1] in found else -1
        if differs < least and lines[n - 1][0] < lines[n][0]:
            best, least = n, differs
    return frozenset(name for _, name in lines[:best])


class FileVersions:
    """The store of file versions."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def spans(self, tx: Transaction, scope: str) -> list[LineSpan]:
        """Return all lines of the last versions of a scope's file."""
        rows = await tx.rows(
            "SELECT f.key, l.added_in AS since, l.removed_in AS until, l.by_us AS ours FROM file_lines l JOIN facts f ON f.seq = l.fact"
            " WHERE l.scope = ?",
            (scope,),
        )
        return await asyncio.to_thread(_spans, rows)

    async def record_saved(self, tx: Transaction, scope: str, names: Iterable[str]) -> None:
        """Record the lines of a file that a person saved, by their keys."""
        await self._add(
            tx, scope, "AND key IN (SELECT value FROM json_each(:names))", list(names), ours=0
        )

    async def record_written(self, tx: Transaction, scope: str, but: Sequence[str] = ()) -> None:
        """Record a version with exactly the live facts, `but` these (by id)."""
        await self._add(
            tx, scope, "AND id NOT IN (SELECT value FROM json_each(:names))", but, ours=1
        )

    async def _add(
        self, tx: Transaction, scope: str, which: str, names: Sequence[str], ours: int
    ) -> None:
        """Add a version with the selected live facts, unless the newest is the same."""
        query = "SELECT max(max(added_in), coalesce(max(removed_in), 0)) FROM file_lines WHERE scope = ?"
        newest = (await tx.scalars(query, (scope,)))[0] or 0
        values = {"scope": scope, "names": json.dumps(names), "new": newest + 1, "ours": ours}
        there = f"SELECT seq FROM facts WHERE scope = :scope AND {LIVE} {which}"
        await tx.execute(
            "UPDATE file_lines SET removed_in = :new WHERE scope = :scope AND removed_in IS NULL"
            f" AND fact NOT IN ({there})",
            values,
        )
        await tx.execute(
            "INSERT INTO file_lines (scope, fact, added_in, by_us)"
            f" SELECT :scope, seq, :new, :ours FROM ({there}) WHERE seq NOT IN"
            "  (SELECT fact FROM file_lines WHERE scope = :scope AND removed_in IS NULL)",
            values,
        )
        await tx.execute(
            "DELETE FROM file_lines WHERE scope = ? AND removed_in <= ?", (scope, newest + 1 - MOST)
        )

    # Lines to report to the owner

    async def mark_retained(self, tx: Transaction, ids: Collection[str]) -> None:
        """Mark facts as retained although a saved file lacked them."""
        await tx.execute(
            "UPDATE facts SET retained = 1"
            " WHERE NOT retained AND id IN (SELECT value FROM json_each(?))",
            (json.dumps(list(ids)),),
        )

    async def unreported(self) -> list[RetainedLine]:
        """Return the retained lines that were not reported to the owner yet, oldest first."""
        rows = await self._database.rows(
            "SELECT scope, id, text FROM facts WHERE retained = 1 AND retired_at IS NULL ORDER BY seq"
        )
        return [RetainedLine(row["scope"], row["id"], row["text"]) for row in rows]

    async def mark_reported(self, tx: Transaction, lines: Iterable[RetainedLine]) -> None:
        """Mark retained lines as reported to the owner."""
        await tx.execute(
            "UPDATE facts SET retained = 2 WHERE retained AND id IN (SELECT value FROM json_each(?))",
            (json.dumps([line.id for line in lines]),),
        )


def _spans(rows: Iterable[Row]) -> list[LineSpan]:
    return [LineSpan(row["key"], row["since"], row["until"], bool(row["ours"])) for row in rows]


@dataclass(frozen=True, slots=True)
class FileMerge:
    """The plan that makes file and facts equal."""

    lines: tuple[str, ...]
    """The lines of the new file: in the person's order, with their blank lines."""
    added: tuple[str, ...] = ()
    """Lines that a person wrote."""
    reworded: tuple[tuple[str, str], ...] = ()
    """Facts (id, text) whose case or spacing a person changed."""
    removed: tuple[str, ...] = ()
    """Facts (id) whose line a person removed."""
    dropped: int = 0
    """Lines of decoration only, which are dropped."""
    learnt: tuple[str, ...] = ()
    """Facts (id) whose line is missing because the file was saved from an older buffer."""
    held: tuple[str, ...] = ()
    """Facts (id) whose line is missing, and that stay until a person says yes."""
    names: tuple[str, ...] = field(default=(), compare=False)
    """The keys of the lines in the file."""


def lines_of(text: str) -> tuple[str, ...]:
    """Return the lines of a file without the blank ones at its end."""
    return _trimmed(LINE_END.split(text))


def text_of(lines: Iterable[str]) -> str:
    """Return lines as the text of a file."""
    return "".join(f"{line}\n" for line in lines)


def arranged(lines: Sequence[str], order: Iterable[str]) -> tuple[str, ...]:
    """Return the lines without blank ones: first those of `order`, in that order, then the others."""
    there = set(lines)
    first = {line: None for line in order if line in there}
    return (*first, *(line for line in lines if line.strip() and line not in first))


def plan(
    lines: Sequence[str] | None,
    rows: Sequence[FileLine],
    spans: Collection[LineSpan] = (),
    asked: Collection[str] = (),
) -> FileMerge:
    """Plan how to merge a file with the rows of `Facts.for_file`. `lines` None: there is no file.

    `spans`: the versions that the file may come from (F-032). `asked`: facts (id) with an open question whether
    their missing lines may go.
    """
    live = {row.key: row for row in rows if row.live}
    texts, dropped = _facts_in(lines or (), live.values())
    names = {name for name, _ in texts if name}
    missing = [row for name, row in live.items() if name not in names]
    gone = [] if lines is None else [row for row in missing if row.exported]
    left_over = {row.key for row in rows if not row.live}
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
    learnt, lost = _since(names, added, gone, spans)
    if len(lost) <= max(FEW, PART_LOST * sum(row.exported for row in live.values())):
        lost = set()
    held = lost | ({row.id for row in missing if row.id in asked} if lines is not None else set())
    stay = {row.id for row in missing} - {row.id for row in gone} | learnt - lost
    kept += [row.text for row in missing if row.id in stay - held]
    return FileMerge(
        *(_trimmed(kept), tuple(added), tuple(reworded)),
        removed=tuple(row.id for row in gone if row.id not in stay | held),
        dropped=dropped,
        learnt=tuple(row.id for row in gone if row.id in learnt - lost),
        held=tuple(row.id for row in missing if row.id in held),
        names=tuple(names),
    )


def _since(
    names: Collection[str],
    added: Sequence[str],
    gone: Sequence[FileLine],
    spans: Collection[LineSpan],
) -> tuple[set[str], set[str]]:
    """Return the missing lines (id) that are newer than the file's version, and the lost ones.

    A lost line is covered by no other line. A file without new lines may have been cut: then a line is in both.
    """
    ours = {span.key for span in spans if span.ours and span.until is None}
    # A line reworded by hand was in the version; one that may be newer counts only if fully
    # covered.
    successor_of, said = successors([row.text for row in gone], added), Successors(added)
    base = nearest(spans, names) if gone else frozenset[str]()
    edited = {
        row.key
        for row, successor in zip(gone, successor_of, strict=True)
        if successor is not None and (row.key in base or not spans or said.cover(row.text))
    }
    base = nearest(spans, {*names, *edited}) | edited if edited else base
    learnt = {row.id for row in gone if row.key in ours and row.key not in base}
    lost = {row.id for row in gone if row.key not in edited}
    return learnt, lost - learnt if added else lost


def _facts_in(lines: Sequence[str], live: Iterable[FileLine]) -> tuple[list[tuple[str, str]], int]:
    """Return key and text of each line, equal ones once, blank ones as they are; and the wordless lines."""
    keys = {row.text: row.key for row in live}  # most lines are as we wrote them
    found: list[tuple[str, str]] = []
    seen: set[str] = set()
    dropped = 0
    for line in lines:
        if line == GENERATED:
            continue
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


@dataclass(frozen=True, slots=True)
class _FileRead:
    """A file as it was read; None: there is none."""

    content: bytes | None
    lines: tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class _Settled:
    """The text of file and facts; `digest` is None if the file could not be written."""

    text: str
    digest: bytes | None


class _SavedMeanwhile(Exception):
    """Raised when somebody saved the file during the work on it, or may be about to: read it again."""

    def __init__(self, pause: float = 0.0) -> None:
        super().__init__()
        self.pause = pause
        """Seconds to wait outside the transaction, which would block all other writers."""


class FlatFile:
    """Keeps the memories file of each scope and the facts equal."""

    def __init__(
        self,
        database: Database,
        facts: Facts,
        places: Places,
        changes: ChangeSets,
        decisions: Decisions,
    ) -> None:
        self._database = database
        self._facts = facts
        self._places = places
        self._changes = changes
        self._decisions = decisions
        self._versions = FileVersions(database)
        self._settled: dict[str, _Settled] = {}
        self._warnings = WarnOnce(log)

    async def text(self, scope: str) -> str:
        """Return the file's lines, after edits became facts and new facts became lines.

        If the file cannot be used, return the facts alone; nothing is retired because of that.
        """
        await self._facts.lapse()
        try:
            if await self._live(scope) is False:
                return await self._write_anew(scope)
            content = await asyncio.to_thread(self._places.memories_file(scope).content)
            last = self._settled.get(scope)
            known = last and last.digest == _digest(content)
            if last and known and not await self._facts.is_unwritten(scope):
                self._warnings.resolved(scope)
                return last.text
            return await self._sync(scope)
        except MemoryFileUnusable as problem:
            self._warnings.warn("memories file left out", scope, problem)
            return text_of(fact.text for fact in await self._facts.live(scope))

    async def is_live(self, scope: str) -> bool:
        """Check whether edits in the file of a scope count, also before its first reading."""
        live = await self._live(scope)
        if live is not None:
            return live
        text = await asyncio.to_thread(self._places.memories_file(scope).text)
        return text is not None and not text.startswith(GENERATED)

    async def scopes(self, *, live: bool) -> list[str]:
        """Return the scopes whose files are live views, or those whose files are exports."""
        query = "SELECT scope FROM memories_files WHERE live = ?"
        return await self._database.scalars(query, (live,))

    async def retire_file(self, scope: str) -> None:
        """Make the file of a scope an export: edits in it count no longer."""
        self._settled.pop(scope, None)
        async with self._database.transaction() as tx:
            await self._facts.mark_unwritten(tx, scope)
            await self._mark(tx, scope, live=False)

    async def _live(self, scope: str) -> bool | None:
        query = "SELECT live FROM memories_files WHERE scope = ?"
        row = await self._database.row(query, (scope,))
        return None if row is None else bool(row["live"])

    async def _mark(self, tx: Transaction, scope: str, *, live: bool) -> None:
        await tx.execute(
            "INSERT INTO memories_files (scope, live) VALUES (?, ?)"
            " ON CONFLICT (scope) DO UPDATE SET live = excluded.live WHERE live <> excluded.live",
            (scope, live),
        )

    async def _write_anew(self, scope: str) -> str:
        """Turn an export into the whole list, whatever somebody wrote into it (M-077)."""

        async def work(tx: Transaction) -> _Settled:
            content = await asyncio.to_thread(self._places.memories_file(scope).content)
            rows = await self._facts.for_file(tx, scope)
            lines = tuple(row.text for row in rows if row.live)
            digest = await self._write(scope, _FileRead(content, None), lines)
            await self._facts.mark_written(tx, scope)
            await self._versions.record_written(tx, scope)
            await self._mark(tx, scope, live=True)
            return _Settled(text_of(lines), digest)

        settled = self._settled[scope] = await self._transaction(scope, work)
        return settled.text

    async def replace(
        self, scope: str, text: str, why: Reason, begun: datetime
    ) -> ReplacementResult:
        """Replace the facts by the lines of a text (P-049), within the limits of M-062.

        Facts stored since `begun` stay, and facts removed since do not come back, whether the text has them or not.
        Raises: ToolFailed, with what to do, when the text would lose protected facts.
        """

        async def work(tx: Transaction) -> ReplacementResult:
            old = await self._facts.live(scope, tx, stored_before=begun)
            gone = await self._facts.gone_since(tx, scope, begun, why.cause)
            new = await asyncio.to_thread(_accepted, old, text, gone)
            done = await self._facts.replace(tx, why, scope, [fact.id for fact in old], new)
            if "refused" in done.outcomes:
                refuse_secret(done.facts[done.outcomes.index("refused")].text)
            return done

        return await self.change(scope, work, lambda done: [fact.text for fact in done.facts])

    async def change(
        self,
        scope: str,
        work: Callable[[Transaction], Awaitable[T]],
        lines: Callable[[T], Sequence[str]],
    ) -> T:
        """Change the facts, after taking in edits by hand; the file follows.

        `lines`: the order of the lines, given the result.

        If the file cannot be written afterwards, the facts are changed nevertheless. Raises: ToolFailed.
        """
        await self._facts.lapse()
        try:
            await self._sync(scope)
        except MemoryFileUnusable as problem:
            raise ToolFailed(f"nothing was changed: {problem}") from problem
        async with self._database.transaction() as tx:
            done = await work(tx)
        try:
            await self._sync(scope, lines(done))
        except MemoryFileUnusable as problem:
            self._warnings.warn("memories file not written", scope, problem)
        return done

    async def remove(self, scope: str, ids: Collection[str]) -> int:
        """Delete facts of a scope for good: line, row and recorded changes; return the number of rows.

        Raises: MemoryFileUnusable if the file cannot be rewritten; then nothing changes.
        """

        async def work(tx: Transaction) -> int:
            found = await self._read(scope)
            rows = await self._facts.for_file(tx, scope)
            goes = {row.key for row in rows if row.id in ids}
            lines = await asyncio.to_thread(_without, found.lines or (), goes)
            await self._write(scope, found, lines)
            return await self._facts.purge(tx, scope, ids)

        async with self._database.transaction() as tx:
            await self._facts.mark_unwritten(tx, scope, ids)
        self._settled.pop(scope, None)
        return await self._transaction(scope, work)

    async def take_in(self, scope: str) -> None:
        """Take in edits by hand. Raises: MemoryFileUnusable, also while the file is being saved."""
        await self._facts.lapse()
        await self._sync(scope)

    async def _sync(self, scope: str, order: Sequence[str] = ()) -> str:
        """Merge file and facts. `order`: a new order of the lines, if there is one."""

        seen: set[bytes] = set()

        async def work(tx: Transaction) -> _Settled:
            found = await self._read(scope)
            rows = await self._facts.for_file(tx, scope)
            asked = await self._decisions.waiting(scope, LINES, tx)
            known = {fact_id for question in asked for fact_id in question.plan["ids"]}
            planned = await asyncio.to_thread(plan, found.lines, rows, (), known)
            if planned.removed or not known.issuperset(planned.held):
                # Otherwise the version it was saved from does not matter.
                spans = await self._versions.spans(tx, scope)
                planned = await asyncio.to_thread(plan, found.lines, rows, spans, known)
            await self._wait_for_the_rest(scope, found, planned, known, seen)
            await self._learn(tx, scope, planned)
            if {*planned.held} != known & {row.id for row in rows if row.live}:
                await self._ask(tx, scope, planned, asked)
            lines = arranged(planned.lines, order) if order else planned.lines
            text = text_of([*lines, *(row.text for row in rows if row.id in planned.held)])
            try:
                digest = await self._write(scope, found, lines)
            except MemoryFileUnusable as problem:
                # Not `record_written`: the next sync tries again, and retires nothing because of it.
                await self._facts.mark_unwritten(tx, scope, [*planned.learnt, *planned.held])
                self._warnings.warn("memories file not written", scope, problem)
                return _Settled(text, None)
            await self._facts.mark_written(tx, scope)
            await self._facts.mark_unwritten(tx, scope, planned.held)
            await self._versions.record_written(tx, scope, planned.held)
            await self._mark(tx, scope, live=True)
            return _Settled(text, digest)

        # Cached only after the commit: otherwise edits by hand would count as known.
        settled = self._settled[scope] = await self._transaction(scope, work)
        if settled.digest is not None:
            self._warnings.resolved(scope)
        return settled.text

    async def _transaction(self, scope: str, work: Callable[[Transaction], Awaitable[T]]) -> T:
        """Run a transaction, again if somebody else saves the file meanwhile."""
        for _ in range(ATTEMPTS):
            try:
                async with self._database.transaction() as tx:
                    return await work(tx)
            except _SavedMeanwhile as again:
                log.info("memories file saved meanwhile scope=%s", scope)
                await asyncio.sleep(again.pause)
        name = self._places.shown_memories(scope)
        raise MemoryFileUnusable(f"{name} is saved again and again: try again later")

    async def _read(self, scope: str) -> _FileRead:
        return await asyncio.to_thread(_read_file, self._places.memories_file(scope))

    async def _wait_for_the_rest(
        self,
        scope: str,
        found: _FileRead,
        planned: FileMerge,
        asked: Collection[str],
        seen: set[bytes],
    ) -> None:
        """Wait until a fresh save is complete: many editors empty a file before they write it.

        A file that ends within a line is also read again, before it is overwritten. One that would remove facts is
        read twice (`seen`: the contents read so far).
        """
        file, last = self._places.memories_file(scope), self._settled.get(scope)
        saved = await asyncio.to_thread(file.saved_at)
        if found.lines is None or abs(self._facts.now().timestamp() - saved) >= SETTLES:
            return
        digest = _digest(found.content)
        is_new = last is None or last.digest != digest
        is_half = is_new and not (found.content or b"").endswith((b"\n", b"\r"))
        if {*planned.held}.difference(asked) or (is_half and planned.lines != found.lines):
            raise MemoryFileUnusable(f"{file.name} lost lines just now: Wintermute reads it again")
        if is_half and planned.removed and digest not in seen:
            seen.add(digest)
            raise _SavedMeanwhile(MOMENT)

    async def _ask(
        self, tx: Transaction, scope: str, planned: FileMerge, asked: Sequence[Decision]
    ) -> None:
        """Ask the person before missing lines are removed; older questions (`asked`) become outdated."""
        for each in asked:
            await self._decisions.move(tx, each, "outdated")
        if planned.held:
            log.warning(
                "memories file lost many lines: they stay until a yes scope=%s n=%d",
                *(scope, len(planned.held)),
            )
            file = self._places.shown_memories(scope)
            reason = LINES_LOST.format(n=len(planned.held), file=file)
            plan = {"ids": [*planned.held]}
            wanted = Decision(LINES, (), "", reason, plan, state="open")
            await self._decisions.propose(tx, scope, wanted)

    async def _learn(self, tx: Transaction, scope: str, planned: FileMerge) -> None:
        """Store the edits by hand, as one change set."""
        if planned.dropped:
            log.warning("lines that say nothing removed scope=%s n=%d", scope, planned.dropped)
        gone = await self._facts.retire_unrecorded(tx, scope, planned.removed, "edit")
        edits = await asyncio.to_thread(retirements, gone)
        edits += await self._facts.reword(tx, scope, planned.reworded)
        if any(map(secret_kind, planned.added)):  # the person's own file, and their own choice
            name = self._places.shown_memories(scope)
            log.warning(
                "a line written by hand looks like a secret, models will read it file=%s", name
            )
        back = await self._facts.revive(tx, scope, planned.added)
        edits += await asyncio.to_thread(revivals, back)
        known = {fact.text for fact in back}
        new = [NewFact(scope, text, theirs=True) for text in planned.added if text not in known]
        taken = await self._facts.take(tx, new)
        edits += [done.change for done in taken if done.change]
        await self._versions.mark_retained(tx, planned.learnt)
        if edits or planned.learnt or planned.held:
            await self._versions.record_saved(tx, scope, planned.names)
        if not edits:
            return
        summary = f"{len(planned.added)} lines added by hand, {len(gone)} removed"
        await self._changes.record(tx, Reason("edit", scope, summary=summary), edits)

    async def _write(self, scope: str, found: _FileRead, lines: tuple[str, ...]) -> bytes:
        """Write the file unless it has these lines; return the digest of its content."""
        if lines == (found.lines or ()):
            return _digest(found.content)
        text = text_of(lines)
        file = self._places.memories_file(scope)
        if not await run_uncancelled(partial(file.replace, text, found.content)):
            raise _SavedMeanwhile
        return _digest(text.encode())


def _accepted(old: Sequence[Fact], text: str, gone: set[str]) -> list[tuple[str, Source]]:
    """Return the lines that may replace the old facts. Raises: ToolFailed."""
    if problem := refusal([(fact.text, fact.protected) for fact in old], text):
        raise ToolFailed(problem)
    return [(line, "dreaming_merge") for line in listed(text) if key(line) not in gone]


def _without(lines: Sequence[str], goes: set[str]) -> tuple[str, ...]:
    kept = [line for line in lines if goes.isdisjoint(key(text) for text in entries(line))]
    return lines_of("\n".join(kept))


def _read_file(file: TextFile) -> _FileRead:
    content = file.content()
    return _FileRead(content, None if content is None else lines_of(file.decoded(content)))


def _digest(content: bytes | None) -> bytes:
    return b"" if content is None else hashlib.blake2b(content, digest_size=16).digest()
