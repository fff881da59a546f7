"""Memory backends: one protocol for storing and showing the memories of a scope (M-014).

With `flat_file` all memories are in each prompt and in MEMORIES.txt, where edits count. The other backends put only
matching memories into the prompt; their file is an export of the most used ones, which nothing reads back. The facts
are the same rows in the same database in all of them.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from datetime import datetime
from functools import partial
from typing import Protocol

from wintermute.changes.change_sets import Reason
from wintermute.db import Database, Transaction
from wintermute.errors import MemoryFileUnusable, ToolFailed
from wintermute.files import run_uncancelled
from wintermute.memory.archive import reactivate_all, reactivated
from wintermute.memory.core import Places, WarnOnce
from wintermute.memory.fact import Hit, ReplacementResult
from wintermute.memory.facts import Facts
from wintermute.memory.flat_file import GENERATED, FlatFile, T, text_of
from wintermute.memory.ranking import Query
from wintermute.memory.search import Search

NOT_EDITED = (
    "{name} is a list that I make of the memories that are used most, and nothing reads it: nothing was"
    " changed. Use append_memory for something new; to take something out the person says"
    " /forget WORDS, or /undo"
)

log = logging.getLogger(__name__)


class MemoryBackend(Protocol):
    """The memories of all scopes, each scope separately."""

    @property
    def ranked(self) -> bool:
        """True if only matching memories are in the prompt, False if all are."""
        ...

    async def text(self, scope: str) -> str:
        """Return the text of the memories file, after merging it with the live facts."""
        ...

    async def search(
        self,
        scope: str,
        query: Query,
        most: int,
        when: datetime | None = None,
        *,
        awake: bool = False,
    ) -> list[Hit]:
        """Return the matching facts, best first; an archived one becomes active again.

        `awake`: active ones only, so that no prompt reactivates one (M-060). Raises: MemoryUnavailable.
        """
        ...

    async def past(self, scope: str, query: Query, most: int) -> list[Hit]:
        """Return matching facts that are no longer true, best first (M-074)."""
        ...

    async def replace(
        self, scope: str, text: str, why: Reason, begun: datetime
    ) -> ReplacementResult:
        """Replace the facts by the lines of a text (P-049). Raises: ToolFailed."""
        ...

    async def change(
        self,
        scope: str,
        work: Callable[[Transaction], Awaitable[T]],
        lines: Callable[[T], Sequence[str]],
    ) -> T:
        """Change the facts, and list them in the order of `lines` (M-062). Raises: ToolFailed."""
        ...

    async def remove(self, scope: str, ids: Collection[str]) -> int:
        """Delete facts for good and return their number. Raises: MemoryFileUnusable."""
        ...

    async def refresh(self) -> None:
        """Merge files and facts in the background, if the backend needs it."""
        ...


class FileMemory:
    """All memories, in a file that people edit."""

    ranked = False

    def __init__(self, database: Database, flat: FlatFile, search: Search) -> None:
        self._database = database
        self._flat = flat
        self._search = search

    async def text(self, scope: str) -> str:
        """Return the whole list (P-010)."""
        return await self._flat.text(scope)

    async def search(
        self,
        scope: str,
        query: Query,
        most: int,
        when: datetime | None = None,
        *,
        awake: bool = False,
    ) -> list[Hit]:
        """Search by words."""
        await self._flat.text(scope)  # with what was edited by hand
        return await self._search.find(scope, query, most, when)

    async def past(self, scope: str, query: Query, most: int) -> list[Hit]:
        """Search by words."""
        return await self._search.past(scope, query, most)

    async def replace(
        self, scope: str, text: str, why: Reason, begun: datetime
    ) -> ReplacementResult:
        """Replace the facts through the file, as `FlatFile.replace` does."""
        return await self._flat.replace(scope, text, why, begun)

    async def change(
        self,
        scope: str,
        work: Callable[[Transaction], Awaitable[T]],
        lines: Callable[[T], Sequence[str]],
    ) -> T:
        """Change the facts through the file, as `FlatFile.change` does."""
        return await self._flat.change(scope, work, lines)

    async def remove(self, scope: str, ids: Collection[str]) -> int:
        """Delete line, row and recorded changes."""
        return await self._flat.remove(scope, ids)

    async def refresh(self) -> None:
        """Turn former exports into live lists before somebody edits them (M-077)."""
        await reactivate_all(self._database)
        for scope in await self._flat.scopes(live=False):
            await self._flat.text(scope)


class RankedMemory:
    """Memories of which only the matching ones are in the prompt."""

    ranked = True

    def __init__(
        self,
        database: Database,
        facts: Facts,
        places: Places,
        flat: FlatFile,
        search: Search,
        size: int,
    ) -> None:
        """`size`: facts in the exported file."""
        self._database = database
        self._facts = facts
        self._places = places
        self._flat = flat
        self._search = search
        self._size = size
        self._imported: set[str] = set()
        self._importing = asyncio.Lock()
        self._stamps: dict[str, tuple[object, ...]] = {}
        self._warnings = WarnOnce(log)

    async def text(self, scope: str) -> str:
        """Return the most used facts, first of all writing them into the file (M-016)."""
        await self._facts.lapse()
        await self._take_edits(scope)
        return await self._written(scope)

    async def _written(self, scope: str, but: Collection[str] = ()) -> str:
        text, is_there = await self._rendered(self._database, scope, but)
        if not is_there and scope in self._imported:  # else it has edits that could not be read
            # Rendering and writing in one transaction never replaces a newer list by an older one.
            async with self._database.transaction() as tx:
                text, _ = await self._rendered(tx, scope, but, place=True)
        return text

    async def _rendered(
        self,
        source: Transaction | Database,
        scope: str,
        but: Collection[str],
        *,
        place: bool = False,
    ) -> tuple[str, bool]:
        """Return the list, and True if the file has it; `place`: write it now."""
        found = await self._facts.most_used(scope, self._size, source)
        text = text_of(fact.text for fact in found if fact.id not in but)
        file, whole = self._places.memories_file(scope), f"{GENERATED}\n{text}"
        try:
            seen = await asyncio.to_thread(file.content)
            is_there = seen == whole.encode() or (seen is None and not found)
            if place and not is_there:
                await run_uncancelled(partial(file.replace, whole, seen))
        except MemoryFileUnusable as problem:
            self._warnings.warn("memories file not written", scope, problem)
            return text, False
        self._warnings.resolved(scope)
        return text, is_there

    async def search(
        self,
        scope: str,
        query: Query,
        most: int,
        when: datetime | None = None,
        *,
        awake: bool = False,
    ) -> list[Hit]:
        """Search by words and by embeddings."""
        await self._take_edits(scope)
        hits = await self._search.find(scope, query, most, when, awake=awake)
        return [*await reactivated(self._database, hits, self._facts.now())]

    async def past(self, scope: str, query: Query, most: int) -> list[Hit]:
        """Search by words."""
        return await self._search.past(scope, query, most)

    async def replace(
        self, scope: str, text: str, why: Reason, begun: datetime
    ) -> ReplacementResult:
        """Refuse: a model must not replace a list it sees only in part. Raises: ToolFailed, with what to do."""
        raise ToolFailed(NOT_EDITED.format(name=self._places.shown_memories(scope)))

    async def change(
        self,
        scope: str,
        work: Callable[[Transaction], Awaitable[T]],
        lines: Callable[[T], Sequence[str]],
    ) -> T:
        """Refuse, as `replace` does (M-062). Raises: ToolFailed."""
        raise ToolFailed(NOT_EDITED.format(name=self._places.shown_memories(scope)))

    async def remove(self, scope: str, ids: Collection[str]) -> int:
        """Delete row and recorded changes; the file is written again, even if it is unreadable."""
        await self._take_edits(scope)
        if scope not in self._imported:
            await self._flat.retire_file(scope)
            self._imported.add(scope)
        # First the file: a restart after a crash finds by the rows which facts to delete.
        await self._written(scope, but=ids)
        async with self._database.transaction() as tx:
            gone = await self._facts.purge(tx, scope, ids)
        await self.text(scope)
        return gone

    async def refresh(self) -> None:
        """Write the files of scopes whose facts changed since the last call, all at first (M-018)."""
        # A scope without facts may have a file from when it was a two-way view (M-077).
        files = dict.fromkeys([self._places.owner_scope, *await self._flat.scopes(live=True)], ())
        found: dict[str, tuple[object, ...]] = {**files, **await self._facts.stamps()}
        for scope, now in found.items():
            if self._stamps.get(scope) != now:
                await self.text(scope)
                self._stamps[scope] = now

    async def _take_edits(self, scope: str) -> None:
        """Take in, once, the edits made while the file was a two-way view (M-077, M-018)."""
        async with self._importing:  # a second one beside it would make the file a view again
            if scope not in self._imported:
                await self._take_once(scope)

    async def _take_once(self, scope: str) -> None:
        try:
            if await self._flat.is_live(scope):
                found = await self._facts.count(scope)
                await self._flat.take_in(scope)
                now = await self._facts.count(scope)
                log.info("memories file taken in scope=%s facts=%d before=%d", scope, now, found)
            await self._flat.retire_file(scope)
        except MemoryFileUnusable as problem:
            self._warnings.warn("memories file not taken in", scope, problem)
            return
        self._imported.add(scope)
