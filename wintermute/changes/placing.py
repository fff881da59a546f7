"""Changes of files: recorded first, then put in place; a whole change set, or nothing of it.

    prepared ─▶ recorded, `placed = 0` ─▶ in place ─▶ `placed = 1`, and its decision is done
                        ╰▶ on failure, or if a file was saved meanwhile: restored, record removed

After a crash in between, the next caller finds `placed = 0` and completes the change.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from wintermute.changes.change_sets import Change, ChangeSets, ItemKind, Reason, Unplaced
from wintermute.db import Database, Transaction
from wintermute.errors import StoreBusy, WintermuteError
from wintermute.files import LOCK_FILE, entered, locked
from wintermute.messages import Json

LOCK = "placing.lock"
PATIENCE = 60.0
BUSY = "another wintermute command has been changing files for a minute: end it, then try again"
PutInPlace = Callable[[], Awaitable[None]]
Also = Callable[[Transaction, str], Awaitable[None]]
"""Stores more together with a change set of this id; an exception in it cancels the change."""

log = logging.getLogger(__name__)


class FileItems(Protocol):
    """Items that are files: prepared before the change is recorded, put in place after."""

    async def state(self, item: str) -> Json | None:
        """Return the present state of an item; None: it does not exist."""
        ...

    async def mend(self) -> None:
        """Finish what a crash left half in place, as far as the items know.

        Raises: WintermuteError if their present state is unknown.
        """
        ...

    def prepared(self, changes: Sequence[Change]) -> AbstractAsyncContextManager[PutInPlace]:
        """Do everything that can fail on a full disk; the returned function puts the items in place.

        Raises: WintermuteError if an item is no longer in its `before` state, as somebody saved it.
        """
        ...


class Placing:
    """Puts changes of files in place, one change set at a time across all processes."""

    def __init__(
        self,
        database: Database,
        changes: ChangeSets,
        files: Mapping[ItemKind, FileItems],
        data_dir: Path,
        patience: float = PATIENCE,
    ) -> None:
        """`patience`: seconds to wait for another process."""
        self._database = database
        self._changes = changes
        self.files = files
        self._lock = data_dir / LOCK
        self._placing = asyncio.Lock()
        self._patience = patience

    async def write(self, why: Reason, changes: Sequence[Change], also: Also | None = None) -> str:
        """Record these changes and make them; return the id of their change set.

        Raises: WintermuteError, and nothing is changed: see `are_edited`.
        """

        async with self.settled(), AsyncExitStack() as stack:
            places = await self.prepared(stack, changes)
            async with self._database.transaction() as tx:
                set_id = await self._changes.record(tx, why, changes, placed=False)
                if also is not None:
                    await also(tx, set_id)
            await self.put(places, set_id)
        return set_id

    async def are_edited(self, changes: Sequence[Change]) -> bool:
        """Check whether somebody saved one of these files meanwhile, which explains a failure."""
        return any([await self.state(each) not in (each.before, each.after) for each in changes])

    async def state(self, change: Change) -> Json | None:
        """Return the present state of a file."""
        return await self.files[change.kind].state(change.item)

    async def prepared(self, stack: AsyncExitStack, changes: Sequence[Change]) -> list[PutInPlace]:
        """Prepare the files among these changes: everything that can fail, before the first is in place."""
        return [
            await stack.enter_async_context(items.prepared(found))
            for kind, items in self.files.items()
            if (found := [each for each in changes if each.kind == kind])
        ]

    async def put(self, places: Sequence[PutInPlace], set_id: str) -> None:
        """Put prepared and recorded files in place, or restore all of them.

        Call it within `settled`. Raises: WintermuteError.
        """
        try:
            for place in places:
                await place()
        except WintermuteError:
            for each in await self._changes.unplaced([set_id]):
                await self._log_failure(self._put_back(each))
            raise
        async with self._database.transaction() as tx:
            await self._changes.mark_placed(tx, set_id)

    async def finish(self) -> None:
        """Complete what a crash left between record and files, or restore it."""
        async with self.settled():
            pass

    @asynccontextmanager
    async def settled(self) -> AsyncIterator[None]:
        """Complete crashed changes, and keep other processes from placing files during the block.

        Raises: StoreBusy for a process that was stopped while it did.
        """
        async with self._placing, AsyncExitStack() as stack:
            block = locked(self._lock, LOCK_FILE, patience=self._patience)
            try:
                await stack.enter_async_context(entered(block))
            except BlockingIOError as error:
                raise StoreBusy(BUSY) from error
            for each in await self._changes.unplaced():
                await self._log_failure(self._finish(each))
            yield

    async def _log_failure(self, work: Awaitable[None]) -> None:
        """Run `work`; if it fails too, the next caller that places files tries again."""
        try:
            await work
        except WintermuteError as problem:
            log.warning("a change is half in place reason=%s", problem)

    async def _finish(self, found: Unplaced) -> None:
        for kind in sorted({each.kind for each in found.changes}):
            await self.files[kind].mend()
        edited = await self.are_edited(found.changes)
        if edited or not found.is_wanted:
            return await self._put_back(found, edited=edited)
        await self._place([c for c in found.changes if await self.state(c) != c.after])
        async with self._database.transaction() as tx:
            await self._changes.mark_placed(tx, found.set_id)
        return None

    async def _put_back(self, found: Unplaced, *, edited: bool = False) -> None:
        """Restore the files and remove the changes from the record."""
        back = [replace(c, before=c.after, after=c.before) for c in found.changes[::-1]]
        await self._place([each for each in back if await self.state(each) == each.before])
        async with self._database.transaction() as tx:
            await self._changes.revoke(tx, found.set_id, edited=edited)

    async def _place(self, changes: Sequence[Change]) -> None:
        async with AsyncExitStack() as stack:
            for place in await self.prepared(stack, changes):
                await place()
