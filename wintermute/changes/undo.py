"""Undoing a change set: one way back for facts, tasks, skills and whatever else can be changed."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from wintermute.changes.merge import without
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


class Files(Protocol):
    """Items that are files: written once the way back is on record."""

    async def state(self, item: str) -> Json | None:
        """What the item is now; None: it does not exist."""
        ...

    async def put(self, item: str, state: Json | None) -> None:
        """Make it this, in one step."""
        ...


@dataclass(frozen=True, slots=True)
class Undone:
    """What an undo did: the items put back, and those that a later edit holds on to."""

    set_id: str | None
    back: tuple[Change, ...] = ()
    kept: tuple[Change, ...] = ()


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
        """Undo a change set, or only some of its items, in one transaction."""
        async with self._database.transaction() as tx:
            undone = await self.within(tx, wanted, items)
        for change in undone.back:
            if change.kind in self._files:
                await self._files[change.kind].put(change.item, change.after)
        return undone

    async def within(
        self, tx: Transaction, wanted: ChangeSet, items: Collection[str] | None = None
    ) -> Undone:
        """The part of `run` that lies in the database."""
        why = Reason("undo", wanted.scope, evidence=(wanted.id,))
        back: list[Change] = []
        kept: list[Change] = []
        for change in reversed(wanted.changes):
            if items is not None and change.item not in items:
                continue
            now = await self._state(tx, change)
            merged = without(change.before, change.after, now)
            done = Change(change.kind, change.item, now, merged.state, (wanted.id,))
            changed = merged.state != now
            possible = change.kind in self._files or (
                changed and await self._rows[change.kind].put(tx, change.item, merged.state, why)
            )
            if changed and possible:
                back.append(done)
            if merged.kept or (changed and not possible):
                kept.append(change)
        set_id = await self._changes.record(tx, why, back, wanted.id) if back else None
        return Undone(set_id, tuple(back), tuple(kept))

    async def _state(self, tx: Transaction, change: Change) -> Json | None:
        if change.kind in self._files:
            return await self._files[change.kind].state(change.item)
        return await self._rows[change.kind].state(tx, change.item)
