"""How the memories of a scope are kept and shown: behind one protocol, whatever is configured (M-014).

With `flat_file` all of them are in each prompt and in MEMORIES.txt, where edits count. With the
others a few that fit are in the prompt, and the file is a list of the most used that nobody reads.
The facts are the same rows in the same database in all of them.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from datetime import datetime
from functools import partial
from typing import Protocol

from wintermute.changes.change_sets import ChangeSets, Reason
from wintermute.db import Database, Transaction
from wintermute.errors import MemoryFileUnusable, ToolFailed
from wintermute.files import to_its_end
from wintermute.memory.core import Places, SaidOnce
from wintermute.memory.fact import Hit, Replaced
from wintermute.memory.facts import Facts
from wintermute.memory.flat_file import GENERATED, FlatFile, T, text_of
from wintermute.memory.ranking import Query
from wintermute.memory.resting import awoken, wake_all
from wintermute.memory.search import Search

NOT_EDITED = (
    "{name} is a list that I make of the memories that are used most, and nothing reads it: nothing was"
    " changed. Use append_memory for something new; to take something out the person says"
    " /forget WORDS, or /undo"
)

log = logging.getLogger(__name__)


class MemoryBackend(Protocol):
    """The memories of all scopes, each alone."""

    @property
    def ranked(self) -> bool:
        """Whether only what fits is in the prompt, rather than all."""
        ...

    async def text(self, scope: str) -> str:
        """What the memories file holds, once it and the facts that are still true agree."""
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
        """The facts that fit, best first; one at rest is found, and awake from then.

        `awake`: only those that are; so no prompt wakes one (M-060). Raises: MemoryUnavailable.
        """
        ...

    async def past(self, scope: str, query: Query, most: int) -> list[Hit]:
        """Those that fit and are no longer true, best first (M-074)."""
        ...

    async def replace(self, scope: str, text: str, why: Reason, begun: datetime) -> Replaced:
        """Let the lines of a text stand for the facts (P-049). Raises: ToolFailed."""
        ...

    async def change(
        self,
        scope: str,
        work: Callable[[Transaction], Awaitable[T]],
        lines: Callable[[T], Sequence[str]],
    ) -> T:
        """Let other facts stand in the list, in the order of `lines` (M-062). Raises: ToolFailed."""
        ...

    async def remove(self, scope: str, ids: Collection[str]) -> int:
        """Remove facts for good; how many. Raises: MemoryFileUnusable."""
        ...

    async def refresh(self) -> None:
        """Bring files and facts together where nobody waits for it, if that is worth it."""
        ...


class Listed:
    """All memories, in a file that people edit."""

    ranked = False

    def __init__(self, database: Database, flat: FlatFile, search: Search) -> None:
        self._database = database
        self._flat = flat
        self._search = search

    async def text(self, scope: str) -> str:
        """The whole list (P-010)."""
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
        """By words."""
        await self._flat.text(scope)  # with what was edited by hand
        return await self._search.find(scope, query, most, when)

    async def past(self, scope: str, query: Query, most: int) -> list[Hit]:
        """By words."""
        return await self._search.past(scope, query, most)

    async def replace(self, scope: str, text: str, why: Reason, begun: datetime) -> Replaced:
        """As `FlatFile` has it."""
        return await self._flat.replace(scope, text, why, begun)

    async def change(
        self,
        scope: str,
        work: Callable[[Transaction], Awaitable[T]],
        lines: Callable[[T], Sequence[str]],
    ) -> T:
        """As `FlatFile` has it."""
        return await self._flat.change(scope, work, lines)

    async def remove(self, scope: str, ids: Collection[str]) -> int:
        """Line, row and recorded changes."""
        return await self._flat.remove(scope, ids)

    async def refresh(self) -> None:
        """What was an export is a list again before somebody edits it (M-077)."""
        await wake_all(self._database)
        for scope in await self._flat.scopes(live=False):
            await self._flat.text(scope)


class Ranked:
    """Memories of which those that fit are in the prompt."""

    ranked = True

    def __init__(
        self,
        database: Database,
        facts: Facts,
        places: Places,
        changes: ChangeSets,
        flat: FlatFile,
        search: Search,
        size: int,
    ) -> None:
        """`size`: facts in the exported file."""
        self._database = database
        self._facts = facts
        self._places = places
        self._changes = changes
        self._flat = flat
        self._search = search
        self._size = size
        self._taken: set[str] = set()
        self._taking = asyncio.Lock()
        self._seen: dict[str, tuple[object, ...]] = {}
        self._said = SaidOnce(log)

    async def text(self, scope: str) -> str:
        """The working set, most used first, which is in the file by then (M-016)."""
        await self._facts.lapse()
        await self._take_edits(scope)
        return await self._written(scope)

    async def _written(self, scope: str, but: Collection[str] = ()) -> str:
        text, is_there = await self._rendered(self._database, scope, but)
        if not is_there and scope in self._taken:  # else it has edits that nobody could read
            # Whoever renders and places at once never puts an older list in place of a newer one.
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
        """The list, and whether the file has it; `place`: it does from now on."""
        found = await self._facts.most_used(scope, self._size, source)
        text = text_of(fact.text for fact in found if fact.id not in but)
        file, whole = self._places.memories_file(scope), f"{GENERATED}\n{text}"
        try:
            seen = await asyncio.to_thread(file.content)
            is_there = seen == whole.encode() or (seen is None and not found)
            if place and not is_there:
                await to_its_end(partial(file.replace, whole, seen))
        except MemoryFileUnusable as problem:
            self._said.warn("memories file not written", scope, problem)
            return text, False
        self._said.over(scope)
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
        """By words and by meaning."""
        await self._take_edits(scope)
        hits = await self._search.find(scope, query, most, when, awake=awake)
        return [*await awoken(self._database, hits, self._facts.now())]

    async def past(self, scope: str, query: Query, most: int) -> list[Hit]:
        """By words."""
        return await self._search.past(scope, query, most)

    async def replace(self, scope: str, text: str, why: Reason, begun: datetime) -> Replaced:
        """Nobody replaces what nobody sees whole. Raises: ToolFailed, with what to do."""
        raise ToolFailed(NOT_EDITED.format(name=self._places.shown_memories(scope)))

    async def change(
        self,
        scope: str,
        work: Callable[[Transaction], Awaitable[T]],
        lines: Callable[[T], Sequence[str]],
    ) -> T:
        """Nor does a night (M-062). Raises: ToolFailed."""
        raise ToolFailed(NOT_EDITED.format(name=self._places.shown_memories(scope)))

    async def remove(self, scope: str, ids: Collection[str]) -> int:
        """Row and recorded changes; the file is made anew, also one that nobody can read."""
        await self._take_edits(scope)
        if scope not in self._taken:
            await self._flat.retire_file(scope)
            self._taken.add(scope)
        # First: who goes on after a kill knows by the rows what is to go.
        await self._written(scope, but=ids)
        async with self._database.transaction() as tx:
            gone = await self._facts.purge(tx, scope, ids)
            await self._changes.drop(tx, "fact", gone)
        await self.text(scope)
        return len(gone)

    async def refresh(self) -> None:
        """The files of scopes whose facts are others than the last time, of all at first (M-018)."""
        # Who has no facts may have a file from when it was a two-way view (M-077).
        files = dict.fromkeys([self._places.owner_scope, *await self._flat.scopes(live=True)], ())
        found: dict[str, tuple[object, ...]] = {**files, **await self._facts.stamps()}
        for scope, now in found.items():
            if self._seen.get(scope) != now:
                await self.text(scope)
                self._seen[scope] = now

    async def _take_edits(self, scope: str) -> None:
        """What was edited while the file was a two-way view counts, once (M-077, M-018)."""
        async with self._taking:  # a second one beside it would make the file a view again
            if scope not in self._taken:
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
            self._said.warn("memories file not taken in", scope, problem)
            return
        self._taken.add(scope)
