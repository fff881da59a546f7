"""MEMORIES.txt: a live two-way view of the facts, one per line (M-015).

The database is the truth. `exported` tells a line that a person removed (the fact has been in the
file) from one that has not been written yet. What the store decides is committed before the file
is written. Only what is learnt from the file commits after it: after a crash in between, the next
look finds lines that are there already.
"""

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import TypeVar

from wintermute.changes.records import Reason
from wintermute.changes.store import ChangeSets
from wintermute.db import Database, Transaction
from wintermute.errors import MemoryFileUnusable, ToolFailed
from wintermute.memory.entry import entries, key
from wintermute.memory.facts import Facts
from wintermute.memory.files import TextFile
from wintermute.memory.guard import listed, refusal
from wintermute.memory.lines import Plan, arranged, lines_of, plan, text_of
from wintermute.memory.places import Places
from wintermute.memory.records import EXPLICIT, Fact, NewFact, Replaced, Source
from wintermute.memory.rows import retirements, revivals
from wintermute.memory.said import SaidOnce
from wintermute.memory.versions import Versions

T = TypeVar("T")

log = logging.getLogger(__name__)

ATTEMPTS = 5
SETTLES = 2.0
"""Seconds after a save in which the rest of it may still come."""


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
    """Somebody saved the file while we worked on it: look again."""


class FlatFile:
    """Keeps the memories file of each scope and the facts the same."""

    def __init__(
        self, database: Database, facts: Facts, places: Places, changes: ChangeSets
    ) -> None:
        self._database = database
        self._facts = facts
        self._places = places
        self._changes = changes
        self._versions = Versions(database)
        self._settled: dict[str, _Settled] = {}
        self._said = SaidOnce(log)

    async def text(self, scope: str) -> str:
        """The file's lines, once hand edits are facts and new facts are lines.

        Where the file cannot be used, the facts alone: nothing is ever retired for that.
        """
        try:
            content = await asyncio.to_thread(self._places.memories_file(scope).content)
            last = self._settled.get(scope)
            known = last is not None and last.digest == _digest(content)
            if last and known and not await self._facts.is_unwritten(scope):
                self._said.over(scope)
                return last.text
            return await self._sync(scope)
        except MemoryFileUnusable as problem:
            self._said.warn("memories file left out", scope, problem)
            return text_of(fact.text for fact in await self._facts.live(scope))

    async def replace(self, scope: str, text: str, why: Reason, begun: datetime) -> Replaced:
        """Let the lines of a text stand for the facts (P-049), within the guards of M-062.

        What was stored since `begun` stays, and what was removed since does not come back, whether
        the text has it or not. The file follows; whatever happens then, the facts are replaced.
        Raises: ToolFailed, with what to do, when the text would lose what must stay.
        """
        try:
            await self._sync(scope)
        except MemoryFileUnusable as problem:
            raise ToolFailed(f"nothing was changed: {problem}") from problem
        async with self._database.transaction() as tx:
            old = await self._facts.live(scope, tx, stored_before=begun)
            gone = await self._facts.gone_since(tx, scope, begun, why.cause)
            new = await asyncio.to_thread(_accepted, old, text, gone)
            done = await self._facts.replace(tx, why, scope, [fact.id for fact in old], new)
        try:
            await self._sync(scope, [fact.text for fact in done.facts])
        except MemoryFileUnusable as problem:
            self._said.warn("memories file not written", scope, problem)
        return done

    async def forget(self, scope: str, ids: Collection[str]) -> int:
        """Remove facts of a scope for good: line, row and recorded changes; how many rows.

        Raises: MemoryFileUnusable, when the file cannot be rewritten; then all is as before.
        """

        async def work(tx: Transaction) -> int:
            found = await self._read(scope)
            rows = await self._facts.for_file(tx, scope)
            goes = {row.key for row in rows if row.id in ids}
            lines = await asyncio.to_thread(_without, found.lines or (), goes)
            await self._write(scope, found, lines)
            gone = await self._facts.purge(tx, scope, ids)
            await self._changes.forget(tx, "fact", gone)
            return len(gone)

        async with self._database.transaction() as tx:
            await self._facts.unwrite(tx, scope, ids)
        self._settled.pop(scope, None)
        return await self._transaction(scope, work)

    async def _sync(self, scope: str, order: Sequence[str] = ()) -> str:
        """Bring file and facts together. `order`: how the lines are to stand, if that is new."""

        async def work(tx: Transaction) -> _Settled:
            found = await self._read(scope)
            rows = await self._facts.for_file(tx, scope)
            planned = await asyncio.to_thread(plan, found.lines, rows)
            if planned.removed:  # else it does not matter from which version it was saved
                spans = await self._versions.spans(tx, scope)
                planned = await asyncio.to_thread(plan, found.lines, rows, spans)
            if planned.loses_most:
                await self._wait_for_the_rest(scope)
            await self._learn(tx, scope, planned)
            lines = arranged(planned.lines, order) if order else planned.lines
            text = text_of(lines)
            try:
                digest = await self._write(scope, found, lines)
            except MemoryFileUnusable as problem:
                # Not `written`: the next look tries again, and retires nothing for it.
                self._said.warn("memories file not written", scope, problem)
                return _Settled(text, None)
            await self._facts.written(tx, scope)
            await self._versions.written(tx, scope)
            return _Settled(text, digest)

        # Kept only when committed: else edits by hand would count as known.
        settled = await self._transaction(scope, work)
        self._settled[scope] = settled
        if settled.digest is not None:
            self._said.over(scope)
        return settled.text

    async def _transaction(self, scope: str, work: Callable[[Transaction], Awaitable[T]]) -> T:
        """One transaction, begun again if the file is saved by somebody else meanwhile."""
        for _ in range(ATTEMPTS):
            try:
                async with self._database.transaction() as tx:
                    return await work(tx)
            except _SavedMeanwhile:
                log.info("memories file saved meanwhile scope=%s", scope)
        name = self._places.shown_memories(scope)
        raise MemoryFileUnusable(f"{name} is saved again and again: try again later")

    async def _read(self, scope: str) -> _Found:
        return await asyncio.to_thread(_found, self._places.memories_file(scope))

    async def _wait_for_the_rest(self, scope: str) -> None:
        """Many editors empty a file and then write it: a fresh loss is looked at again."""
        file = self._places.memories_file(scope)
        saved = await asyncio.to_thread(file.saved_at)
        if abs(self._facts.now().timestamp() - saved) < SETTLES:
            raise MemoryFileUnusable(
                f"{file.name} lost most of its lines just now: it is looked at again"
            )

    async def _learn(self, tx: Transaction, scope: str, planned: Plan) -> None:
        """Take what was edited by hand into the store, as one change set."""
        if planned.dropped:
            log.warning("lines that say nothing removed scope=%s n=%d", scope, planned.dropped)
        gone = await self._facts.lay_down(tx, scope, planned.removed, "edit")
        edits = await asyncio.to_thread(retirements, gone)
        edits += await self._facts.reword(tx, scope, planned.reworded)
        back = await self._facts.revive(tx, scope, planned.added)
        edits += await asyncio.to_thread(revivals, back)
        known = {fact.text for fact in back}
        new = [NewFact(scope, text) for text in planned.added if text not in known]
        taken = await self._facts.take(tx, new)
        edits += [done.change for done in taken if done.change]
        await self._versions.keep(tx, planned.learnt)
        if edits or planned.learnt:
            await self._versions.found(tx, scope, planned.names)
        if not edits:
            return
        summary = f"{len(planned.added)} lines added by hand, {len(gone)} removed"
        set_id = await self._changes.record(tx, Reason("edit", scope, summary=summary), edits)
        if planned.loses_most:
            log.warning(
                "memories file lost most of its lines: facts retired scope=%s n=%d;"
                " if that was an accident: wintermute memory undo %s",
                scope,
                len(gone),
                set_id,
            )

    async def _write(self, scope: str, found: _Found, lines: tuple[str, ...]) -> bytes:
        """Write the file unless it has these lines; the digest of its content then."""
        if lines == (found.lines or ()):
            return _digest(found.content)
        text = text_of(lines)
        file = self._places.memories_file(scope)
        if not await _to_its_end(partial(file.replace, text, found.content)):
            raise _SavedMeanwhile
        return _digest(text.encode())


def _accepted(old: Sequence[Fact], text: str, gone: set[str]) -> list[tuple[str, Source]]:
    """The lines that may stand for the old facts. Raises: ToolFailed."""
    problem = refusal([(fact.text, fact.source == EXPLICIT) for fact in old], text)
    if problem:
        raise ToolFailed(problem)
    return [(line, "dreaming_merge") for line in listed(text) if key(line) not in gone]


def _without(lines: Sequence[str], goes: set[str]) -> tuple[str, ...]:
    kept = [line for line in lines if goes.isdisjoint(key(text) for text in entries(line))]
    return lines_of("\n".join(kept))


def _found(file: TextFile) -> _Found:
    content = file.content()
    return _Found(content, None if content is None else lines_of(file.decoded(content)))


async def _to_its_end(work: Callable[[], T]) -> T:
    """Run in a thread, and wait for its end even when cancelled.

    A write left behind could replace the file after a later transaction has.
    """
    running = asyncio.get_running_loop().run_in_executor(None, work)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        raise


def _digest(content: bytes | None) -> bytes:
    return b"" if content is None else hashlib.blake2b(content, digest_size=16).digest()
