"""Undoing a change set: one way back for facts, tasks, skills and whatever else can be changed."""

from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from itertools import takewhile
from typing import Protocol

from wintermute.changes.merge import ALL_OF_IT, standing, without
from wintermute.changes.records import Change, ChangeSet, Kind, Reason
from wintermute.changes.store import ChangeSets
from wintermute.db import Database, Transaction
from wintermute.messages import Json


class Rows(Protocol):
    """Items that live in our database: changed in the transaction that records it."""

    async def state(self, tx: Transaction, item: str) -> Json | None:
        """What the item is now; None: it does not exist."""
        ...

    async def put(self, tx: Transaction, item: str, state: Json | None, why: Reason) -> bool:
        """Make it this; False when that is not possible, and nothing was done."""
        ...


Place = Callable[[], Awaitable[None]]


class Files(Protocol):
    """Items that are files: prepared before the way back is on record, put in place after."""

    async def state(self, item: str) -> Json | None:
        """What the item is now; None: it does not exist."""
        ...

    def prepared(self, item: str, state: Json | None) -> AbstractAsyncContextManager[Place]:
        """Do all that may fail on a full disk; what is given then makes it this, in one step."""
        ...


@dataclass(frozen=True, slots=True)
class Kept:
    """An item that was changed again since: these fields of it stay, or `all of it`."""

    kind: Kind
    item: str
    fields: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Undone:
    """What an undo did: the items put back, and what later edits hold on to.

    An item is in both when some of its fields went back and others stay.
    """

    set_id: str | None
    back: tuple[Change, ...] = ()
    kept: tuple[Kept, ...] = ()


class Undo:
    """Takes a change set back, item by item. The undo is a change set too, so it can be undone."""

    def __init__(
        self,
        database: Database,
        changes: ChangeSets,
        rows: Mapping[Kind, Rows],
        files: Mapping[Kind, Files],
    ) -> None:
        self._database = database
        self._changes = changes
        self._rows = rows
        self._files = files

    async def run(self, wanted: ChangeSet, items: Collection[str] | None = None) -> Undone:
        """Undo a change set, or only some of its items, in one transaction.

        A file whose undo is on record but was not put in place is as it was: run it again.
        """
        async with AsyncExitStack() as stack:
            async with self._database.transaction() as tx:
                undone = await self.within(tx, wanted, items)
                places = [
                    await stack.enter_async_context(
                        self._files[change.kind].prepared(change.item, change.after)
                    )
                    for change in undone.back
                    if change.kind in self._files
                ]
            for place in places:
                await place()
        return undone

    async def within(
        self, tx: Transaction, wanted: ChangeSet, items: Collection[str] | None = None
    ) -> Undone:
        """The part of `run` that lies in the database."""
        why = Reason("undo", wanted.scope, evidence=(wanted.id,))
        back: list[Change] = []
        kept: list[Kept] = []
        histories = await self._changes.steps(tx, {(c.kind, c.item) for c in wanted.changes})
        for change in reversed(wanted.changes):
            if items is not None and change.item not in items:
                continue
            now = await self._state(tx, change)
            history = histories[change.kind, change.item]
            newer = list(takewhile(lambda step: step.set_id != wanted.id, history))
            since = [step.change for step in standing(newer, now)]
            merged = without(change.before, change.after, now, since)
            done = Change(change.kind, change.item, now, merged.state, (wanted.id,))
            if merged.state != now and not await self._put(tx, done, why):
                kept.append(Kept(change.kind, change.item, (ALL_OF_IT,)))
                continue
            if merged.state != now:
                back.append(done)
            if merged.kept:
                kept.append(Kept(change.kind, change.item, merged.kept))
        set_id = await self._changes.record(tx, why, back, wanted.id) if back else None
        return Undone(set_id, tuple(back), tuple(kept))

    async def _put(self, tx: Transaction, done: Change, why: Reason) -> bool:
        if done.kind in self._files:
            return True  # once this is committed
        return await self._rows[done.kind].put(tx, done.item, done.after, why)

    async def _state(self, tx: Transaction, change: Change) -> Json | None:
        if change.kind in self._files:
            return await self._files[change.kind].state(change.item)
        return await self._rows[change.kind].state(tx, change.item)
