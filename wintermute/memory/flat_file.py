"""MEMORIES.txt: a live two-way view of the facts, one per line (M-015).

The database is the truth. `exported` tells a line that a person removed (the fact has been in the
file) from one that has not been written yet. What the store decides is committed before the file
is written. Only what is learnt from the file commits after it: after a crash in between, the next
look finds lines that are there already.

The last versions of a file tell from which one a saved file comes (F-032). A version is the set of
facts whose lines stood in it: no text is kept twice, and what is forgotten is in none of them. What
a person saves from an old buffer lacks what was learnt since; that is no wish to forget it. Nor is
it one that many lines are missing at once, until the person says so (M-090).
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
from wintermute.files import TextFile, to_its_end
from wintermute.memory.core import Places, SaidOnce
from wintermute.memory.fact import (
    Fact,
    FileLine,
    NewFact,
    Replaced,
    Source,
    entries,
    key,
    listed,
    refusal,
    retirements,
    revivals,
)
from wintermute.memory.facts import LIVE, Facts
from wintermute.memory.sense import Heirs, successors
from wintermute.secret_shapes import refuse_secret, secret_kind

GENERATED = "# generated: edits here are ignored; use: wintermute memory import FILE"
"""The first line of a file that is only an export (M-016)."""
MOST = 20
"""Versions of a file that are told apart."""


@dataclass(frozen=True, slots=True)
class LineLife:
    """From which version on a line stood in a file, and from which on (None: still) no more.

    `ours`: we wrote it there, not a person.
    """

    key: str
    since: int
    until: int | None
    ours: bool

    def is_in(self, version: int) -> bool:
        """Whether that version has the line."""
        return self.since <= version and (self.until is None or version < self.until)


@dataclass(frozen=True, slots=True)
class KeptLine:
    """A memory that was missing in a saved file and stayed."""

    scope: str
    id: str
    text: str


def nearest(spans: Collection[LineLife], names: Collection[str]) -> frozenset[str]:
    """The keys of the version that differs least from a file with these; the newest of equals.

    A file that shares nothing with any of them was written anew: the newest.
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
    spans: Collection[LineLife], oldest: frozenset[str], found: Collection[str]
) -> frozenset[str]:
    """Keep what a version holds that may be older than the oldest known one (F-066).

    Its newest lines are taken away while a saved file has fewer of them than not.
    """
    lines = sorted((span.since, span.key) for span in spans if span.key in oldest)
    best, differs, least = len(lines), 0, 0
    for n in range(len(lines) - 1, 0, -1):
        differs += 1 if lines[n][1] in found else -1
        if differs < least and lines[n - 1][0] < lines[n][0]:
            best, least = n, differs
    return frozenset(name for _, name in lines[:best])


class Versions:
    """The store of versions."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def spans(self, tx: Transaction, scope: str) -> list[LineLife]:
        """All lines of the last versions of a scope's file."""
        rows = await tx.rows(
            "SELECT f.key, l.added_in AS since, l.removed_in AS until, l.by_us AS ours FROM file_lines l JOIN facts f ON f.seq = l.fact"
            " WHERE l.scope = ?",
            (scope,),
        )
        return await asyncio.to_thread(_spans, rows)

    async def found(self, tx: Transaction, scope: str, names: Iterable[str]) -> None:
        """A person saved a file with these lines, by their keys."""
        await self._add(
            tx, scope, "AND key IN (SELECT value FROM json_each(:names))", list(names), ours=0
        )

    async def written(self, tx: Transaction, scope: str, but: Sequence[str] = ()) -> None:
        """The file now has exactly the live facts, `but` these (by id)."""
        await self._add(
            tx, scope, "AND id NOT IN (SELECT value FROM json_each(:names))", but, ours=1
        )

    async def _add(
        self, tx: Transaction, scope: str, which: str, names: Sequence[str], ours: int
    ) -> None:
        """A version with those of the live facts, unless the newest is the same."""
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

    # What the owner has to know

    async def keep(self, tx: Transaction, ids: Collection[str]) -> None:
        """These facts were missing in a saved file, and stay."""
        await tx.execute(
            "UPDATE facts SET retained = 1"
            " WHERE NOT retained AND id IN (SELECT value FROM json_each(?))",
            (json.dumps(list(ids)),),
        )

    async def untold(self) -> list[KeptLine]:
        """Those of which the owner was not told; oldest first."""
        rows = await self._database.rows(
            "SELECT scope, id, text FROM facts WHERE retained = 1 AND retired_at IS NULL ORDER BY seq"
        )
        return [KeptLine(row["scope"], row["id"], row["text"]) for row in rows]

    async def tell(self, tx: Transaction, lines: Iterable[KeptLine]) -> None:
        """The owner knows of these: once is enough."""
        await tx.execute(
            "UPDATE facts SET retained = 2 WHERE retained AND id IN (SELECT value FROM json_each(?))",
            (json.dumps([line.id for line in lines]),),
        )


def _spans(rows: Iterable[Row]) -> list[LineLife]:
    return [LineLife(row["key"], row["since"], row["until"], bool(row["ours"])) for row in rows]


FEW, PART_LOST = 3, 0.2
"""So many lines, or of a long file this part, a person may well remove on purpose."""
LINE_END = re.compile(r"\r\n|\r|\n")


@dataclass(frozen=True, slots=True)
class FileMerge:
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
    held: tuple[str, ...] = ()
    """Facts (id) whose line is missing, and that stay until a person says yes."""
    names: tuple[str, ...] = field(default=(), compare=False)
    """The keys of the lines that were found."""


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


def plan(
    lines: Sequence[str] | None,
    rows: Sequence[FileLine],
    spans: Collection[LineLife] = (),
    asked: Collection[str] = (),
) -> FileMerge:
    """Bring a file and the rows of `Facts.for_file` together. None: there is no file.

    `spans`: the versions that the file may come from (F-032). `asked`: facts (id) of which a person
    was asked whether their missing lines may go.
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
    spans: Collection[LineLife],
) -> tuple[set[str], set[str]]:
    """The missing lines (id) that the version which a file was saved from never had, and
    those that are lost: no line says them in other words.

    A file without a new line may as well be one that was cut: then both are.
    """
    ours = {span.key for span in spans if span.ours and span.until is None}
    # A line that was reworded by hand was there; of one that may be newer, all words are left.
    heirs, said = successors([row.text for row in gone], added), Heirs(added)
    base = nearest(spans, names) if gone else frozenset[str]()
    edited = {
        row.key
        for row, heir in zip(gone, heirs, strict=True)
        if heir is not None and (row.key in base or not spans or said.keeps(row.text))
    }
    base = nearest(spans, {*names, *edited}) | edited if edited else base
    learnt = {row.id for row in gone if row.key in ours and row.key not in base}
    lost = {row.id for row in gone if row.key not in edited}
    return learnt, lost - learnt if added else lost


def _facts_in(lines: Sequence[str], live: Iterable[FileLine]) -> tuple[list[tuple[str, str]], int]:
    """Key and text of each line, equal ones once, blank ones as they are; and how many say nothing."""
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


T = TypeVar("T")
"""What came of it; None: nothing was done."""

log = logging.getLogger(__name__)

ATTEMPTS = 5
LINES_LOST = "{n} lines went from {file} all at once"
MOMENT, SETTLES = 0.2, 2.0
"""Seconds after a save in which the rest of it may come: of a small file, and of any."""


@dataclass(frozen=True, slots=True)
class _Found:
    """A file as it was read; None: there is none."""

    content: bytes | None
    lines: tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class _Settled:
    """The text of file and facts; `digest` is None where the file could not be written."""

    text: str
    digest: bytes | None


class _SavedMeanwhile(Exception):
    """Somebody saved the file while we worked on it, or may be about to: look again."""

    def __init__(self, pause: float = 0.0) -> None:
        super().__init__()
        self.pause = pause
        """Seconds until then, spent outside the transaction: nobody else may write in one."""


class FlatFile:
    """Keeps the memories file of each scope and the facts the same."""

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
        self._versions = Versions(database)
        self._settled: dict[str, _Settled] = {}
        self._said = SaidOnce(log)

    async def text(self, scope: str) -> str:
        """The file's lines, once hand edits are facts and new facts are lines.

        Where the file cannot be used, the facts alone: nothing is ever retired for that.
        """
        await self._facts.lapse()
        try:
            if await self._live(scope) is False:
                return await self._write_anew(scope)
            content = await asyncio.to_thread(self._places.memories_file(scope).content)
            last = self._settled.get(scope)
            known = last and last.digest == _digest(content)
            if last and known and not await self._facts.is_unwritten(scope):
                self._said.over(scope)
                return last.text
            return await self._sync(scope)
        except MemoryFileUnusable as problem:
            self._said.warn("memories file left out", scope, problem)
            return text_of(fact.text for fact in await self._facts.live(scope))

    async def is_live(self, scope: str) -> bool:
        """Whether what is edited in the file of a scope counts; also one that nobody has read yet."""
        live = await self._live(scope)
        if live is not None:
            return live
        text = await asyncio.to_thread(self._places.memories_file(scope).text)
        return text is not None and not text.startswith(GENERATED)

    async def scopes(self, *, live: bool) -> list[str]:
        """The scopes of which what is edited in the file counts, or nothing in it does."""
        query = "SELECT scope FROM memories_files WHERE live = ?"
        return await self._database.scalars(query, (live,))

    async def retire_file(self, scope: str) -> None:
        """From now on nothing in the file of a scope counts: it is an export."""
        self._settled.pop(scope, None)
        async with self._database.transaction() as tx:
            await self._facts.unwrite(tx, scope)
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
        """What was an export is the whole list again, whatever somebody wrote into it (M-077)."""

        async def work(tx: Transaction) -> _Settled:
            content = await asyncio.to_thread(self._places.memories_file(scope).content)
            rows = await self._facts.for_file(tx, scope)
            lines = tuple(row.text for row in rows if row.live)
            digest = await self._write(scope, _Found(content, None), lines)
            await self._facts.written(tx, scope)
            await self._versions.written(tx, scope)
            await self._mark(tx, scope, live=True)
            return _Settled(text_of(lines), digest)

        settled = self._settled[scope] = await self._transaction(scope, work)
        return settled.text

    async def replace(self, scope: str, text: str, why: Reason, begun: datetime) -> Replaced:
        """Let the lines of a text stand for the facts (P-049), within the guards of M-062.

        What was stored since `begun` stays, and what was removed since does not come back, whether
        the text has it or not. Raises: ToolFailed, with what to do, when the text would lose what
        must stay.
        """

        async def work(tx: Transaction) -> Replaced:
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
        """Let other facts stand in a list, once what was edited by hand is known; the file follows.

        `lines`: their order, by what came of it.

        Whatever happens to the file then, the facts are changed. Raises: ToolFailed.
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
            self._said.warn("memories file not written", scope, problem)
        return done

    async def remove(self, scope: str, ids: Collection[str]) -> int:
        """Remove facts of a scope for good: line, row and recorded changes; how many rows.

        Raises: MemoryFileUnusable, when the file cannot be rewritten; then all is as before.
        """

        async def work(tx: Transaction) -> int:
            found = await self._read(scope)
            rows = await self._facts.for_file(tx, scope)
            goes = {row.key for row in rows if row.id in ids}
            lines = await asyncio.to_thread(_without, found.lines or (), goes)
            await self._write(scope, found, lines)
            return await self._facts.purge(tx, scope, ids)

        async with self._database.transaction() as tx:
            await self._facts.unwrite(tx, scope, ids)
        self._settled.pop(scope, None)
        return await self._transaction(scope, work)

    async def take_in(self, scope: str) -> None:
        """Learn what was edited by hand. Raises: MemoryFileUnusable, also while it is being saved."""
        await self._facts.lapse()
        await self._sync(scope)

    async def _sync(self, scope: str, order: Sequence[str] = ()) -> str:
        """Bring file and facts together. `order`: how the lines are to stand, if that is new."""

        seen: set[bytes] = set()

        async def work(tx: Transaction) -> _Settled:
            found = await self._read(scope)
            rows = await self._facts.for_file(tx, scope)
            asked = await self._decisions.waiting(scope, LINES, tx)
            known = {each for wish in asked for each in wish.plan["ids"]}
            planned = await asyncio.to_thread(plan, found.lines, rows, (), known)
            if planned.removed or not known.issuperset(planned.held):
                # Else it does not matter from which version it was saved.
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
                # Not `written`: the next look tries again, and retires nothing for it.
                await self._facts.unwrite(tx, scope, [*planned.learnt, *planned.held])
                self._said.warn("memories file not written", scope, problem)
                return _Settled(text, None)
            await self._facts.written(tx, scope)
            await self._facts.unwrite(tx, scope, planned.held)
            await self._versions.written(tx, scope, planned.held)
            await self._mark(tx, scope, live=True)
            return _Settled(text, digest)

        # Kept only when committed: else edits by hand would count as known.
        settled = self._settled[scope] = await self._transaction(scope, work)
        if settled.digest is not None:
            self._said.over(scope)
        return settled.text

    async def _transaction(self, scope: str, work: Callable[[Transaction], Awaitable[T]]) -> T:
        """One transaction, begun again if the file is saved by somebody else meanwhile."""
        for _ in range(ATTEMPTS):
            try:
                async with self._database.transaction() as tx:
                    return await work(tx)
            except _SavedMeanwhile as again:
                log.info("memories file saved meanwhile scope=%s", scope)
                await asyncio.sleep(again.pause)
        name = self._places.shown_memories(scope)
        raise MemoryFileUnusable(f"{name} is saved again and again: try again later")

    async def _read(self, scope: str) -> _Found:
        return await asyncio.to_thread(_found, self._places.memories_file(scope))

    async def _wait_for_the_rest(
        self,
        scope: str,
        found: _Found,
        planned: FileMerge,
        asked: Collection[str],
        seen: set[bytes],
    ) -> None:
        """Many editors empty a file and then write it: a fresh loss is looked at again.

        So is what ends in the midst of a line, before it is written anew beside its editor; before
        it takes something out, it is looked at twice (`seen`: what was looked at).
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
        """Nothing goes for missing lines before a yes: to these, and no more to what was `asked`."""
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
        """Take what was edited by hand into the store, as one change set."""
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
        await self._versions.keep(tx, planned.learnt)
        if edits or planned.learnt or planned.held:
            await self._versions.found(tx, scope, planned.names)
        if not edits:
            return
        summary = f"{len(planned.added)} lines added by hand, {len(gone)} removed"
        await self._changes.record(tx, Reason("edit", scope, summary=summary), edits)

    async def _write(self, scope: str, found: _Found, lines: tuple[str, ...]) -> bytes:
        """Write the file unless it has these lines; the digest of its content then."""
        if lines == (found.lines or ()):
            return _digest(found.content)
        text = text_of(lines)
        file = self._places.memories_file(scope)
        if not await to_its_end(partial(file.replace, text, found.content)):
            raise _SavedMeanwhile
        return _digest(text.encode())


def _accepted(old: Sequence[Fact], text: str, gone: set[str]) -> list[tuple[str, Source]]:
    """The lines that may stand for the old facts. Raises: ToolFailed."""
    if problem := refusal([(fact.text, fact.protected) for fact in old], text):
        raise ToolFailed(problem)
    return [(line, "dreaming_merge") for line in listed(text) if key(line) not in gone]


def _without(lines: Sequence[str], goes: set[str]) -> tuple[str, ...]:
    kept = [line for line in lines if goes.isdisjoint(key(text) for text in entries(line))]
    return lines_of("\n".join(kept))


def _found(file: TextFile) -> _Found:
    content = file.content()
    return _Found(content, None if content is None else lines_of(file.decoded(content)))


def _digest(content: bytes | None) -> bytes:
    return b"" if content is None else hashlib.blake2b(content, digest_size=16).digest()
