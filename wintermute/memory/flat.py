"""MEMORIES.txt: a live two-way view of the facts, one per line (M-015).

The database is the truth. `exported` tells a line that a person removed (the fact has been in the
file) from one that has not been written yet. The file is written before the transaction commits:
after a crash in between, the next look finds lines that are there already.
"""

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import TypeVar

from wintermute.changes.records import Change, Reason
from wintermute.changes.store import ChangeSets
from wintermute.db import Database, Transaction
from wintermute.errors import MemoryFileUnusable, ToolFailed
from wintermute.memory.entry import entries, key
from wintermute.memory.facts import Facts, retirement
from wintermute.memory.files import decoded, read_bytes, replace_text
from wintermute.memory.guard import listed, refusal
from wintermute.memory.lines import Plan, lines_of, plan, text_of
from wintermute.memory.places import Places
from wintermute.memory.records import EXPLICIT, NewFact, Replaced, Source

T = TypeVar("T")

log = logging.getLogger(__name__)

ATTEMPTS = 5
MANY = 5
"""From so many lines on an empty file looks like an accident."""


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
        self._settled: dict[str, _Settled] = {}

    async def text(self, scope: str) -> str:
        """The file's lines, once hand edits are facts and new facts are lines.

        Where the file cannot be used, the facts alone: nothing is ever retired for that.
        """
        path = self._places.memories(scope)
        try:
            content = await asyncio.to_thread(read_bytes, path)
            last = self._settled.get(scope)
            known = last is not None and last.digest == _digest(content)
            if last and known and not await self._facts.is_unwritten(scope):
                return last.text
            return await self._sync(scope)
        except MemoryFileUnusable as problem:
            log.warning("memories file left out scope=%s reason=%s", scope, problem)
            return text_of(fact.text for fact in await self._facts.live(scope))

    async def replace(self, scope: str, text: str, why: Reason, begun: datetime) -> Replaced:
        """Let the lines of a text stand for the facts (P-049), within the guards of M-062.

        Facts made since `begun` stay, whether the text has them or not.
        Raises: ToolFailed, with what to do, when the text would lose what must stay.
        """

        async def work(tx: Transaction) -> Replaced:
            found, planned = await self._plan(tx, scope)
            await self._learn(tx, scope, planned)
            facts = await self._facts.live(scope, tx)
            old = [fact for fact in facts if fact.created_at < begun]
            problem = refusal([(fact.text, fact.source == EXPLICIT) for fact in old], text)
            if problem:
                raise ToolFailed(problem)
            new: list[tuple[str, Source]] = [(line, "dreaming_merge") for line in listed(text)]
            done = await self._facts.replace(tx, why, scope, [fact.id for fact in old], new)
            ordered = {fact.id: fact.text for fact in done.facts}
            ordered |= {fact.id: fact.text for fact in await self._facts.live(scope, tx)}
            await self._write(scope, found, tuple(ordered.values()))
            await self._facts.written(tx, scope)
            return done

        try:
            return await self._transaction(scope, work)
        except MemoryFileUnusable as problem:
            raise ToolFailed(f"nothing was changed: {problem}") from problem

    async def forget(self, scope: str, ids: Collection[str]) -> int:
        """Remove facts of a scope for good: line, row and recorded changes; how many rows.

        Raises: MemoryFileUnusable, when the file cannot be rewritten; then all is as before.
        """

        async def work(tx: Transaction) -> int:
            found = await self._read(scope)
            rows = await self._facts.for_file(tx, scope)
            goes = {row.key for row in rows if row.id in ids}
            lines = [
                line
                for line in found.lines or ()
                if goes.isdisjoint(key(text) for text in entries(line))
            ]
            await self._write(scope, found, lines_of("\n".join(lines)))
            gone = await self._facts.purge(tx, scope, ids)
            await self._changes.forget(tx, "fact", gone)
            return len(gone)

        self._settled.pop(scope, None)
        return await self._transaction(scope, work)

    async def _sync(self, scope: str) -> str:
        async def work(tx: Transaction) -> _Settled:
            found, planned = await self._plan(tx, scope)
            await self._learn(tx, scope, planned)
            text = text_of(planned.lines)
            try:
                digest = await self._write(scope, found, planned.lines)
            except MemoryFileUnusable as problem:
                # Not `written`: the next look tries again, and retires nothing for it.
                log.warning("memories file not written scope=%s reason=%s", scope, problem)
                return _Settled(text, None)
            await self._facts.written(tx, scope)
            return _Settled(text, digest)

        # Kept only when committed: else edits by hand would count as known.
        settled = await self._transaction(scope, work)
        self._settled[scope] = settled
        return settled.text

    async def _transaction(self, scope: str, work: Callable[[Transaction], Awaitable[T]]) -> T:
        """One transaction, begun again if the file is saved by somebody else meanwhile."""
        for _ in range(ATTEMPTS):
            try:
                async with self._database.transaction() as tx:
                    return await work(tx)
            except _SavedMeanwhile:
                log.info("memories file saved meanwhile scope=%s", scope)
        raise MemoryFileUnusable(
            f"{self._places.memories(scope)} is saved again and again: try again later"
        )

    async def _read(self, scope: str) -> _Found:
        path = self._places.memories(scope)
        content = await asyncio.to_thread(read_bytes, path)
        return _Found(content, None if content is None else lines_of(decoded(path, content)))

    async def _plan(self, tx: Transaction, scope: str) -> tuple[_Found, Plan]:
        found = await self._read(scope)
        return found, plan(found.lines, await self._facts.for_file(tx, scope))

    async def _learn(self, tx: Transaction, scope: str, planned: Plan) -> None:
        """Take what was edited by hand into the store, as one change set."""
        if planned.dropped:
            log.warning("lines that say nothing removed scope=%s n=%d", scope, planned.dropped)
        gone = await self._facts.lay_down(tx, scope, planned.removed)
        changes: list[Change | None] = [retirement(fact) for fact in gone]
        changes += [await self._facts.reword(tx, scope, *pair) for pair in planned.reworded]
        taken = [await self._facts.take(tx, NewFact(scope, text)) for text in planned.added]
        changes += [done.change for done in taken]
        edits = [change for change in changes if change]
        if not edits:
            return
        summary = f"{len(planned.added)} lines added by hand, {len(gone)} removed"
        set_id = await self._changes.record(tx, Reason("edit", scope, summary=summary), edits)
        if len(gone) >= MANY and not planned.lines:
            log.warning(
                "memories file is empty: facts retired scope=%s n=%d;"
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
        path = self._places.memories(scope)
        if not await _to_its_end(partial(replace_text, path, text, found.content)):
            raise _SavedMeanwhile
        return _digest(text.encode())


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
