"""Undo of a change set: one mechanism for facts, tasks, skills and all other items.

Three states of an item are compared: before the change, after it, and now. If the present state is the one after the
change, the item is restored. Later edits stay, also one that repeats the change. One change can be undone even if
its item was changed again since.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from itertools import takewhile
from typing import Protocol

from wintermute.changes.change_sets import (
    Change,
    ChangeSet,
    ChangeSets,
    HistoryEntry,
    ItemKind,
    Reason,
)
from wintermute.changes.placing import Placing
from wintermute.db import Database, Transaction
from wintermute.messages import Json

ALL_OF_IT = "all of it"
FORGETTING = (
    "something is being forgotten for good, and an undo could bring it back: try again when"
    " `/status all` shows that it is done"
)

MOST_UNCONFIRMED = 3
"""Items that a bare undo changes without a question (M-091)."""


class _Previewed(Exception):
    """Ends a transaction that must leave nothing behind."""


@dataclass(frozen=True, slots=True)
class MergedState:
    """The state an item should have. `kept`: fields that a later edit holds."""

    state: Json | None
    kept: tuple[str, ...] = ()


def effective_steps(
    newest_first: Sequence[HistoryEntry], now: Json | None
) -> Iterator[HistoryEntry]:
    """Yield the effective steps of an item, newest first: neither undone nor an undo.

    For files the record is stored first. If the next step, or the present state, still equals the state before a
    step, the program crashed in between and the step had no effect.
    """
    known = {step.set_id for step in newest_first}
    found, undone = now, set[str]()
    for step in newest_first:
        void = step.change.before == found != step.change.after
        found = step.change.before
        if void or step.set_id in undone:
            continue
        if step.undoes in known:
            undone.add(step.undoes)
            continue
        yield step


def reverted(
    before: Json | None, after: Json | None, now: Json | None, since: Sequence[Change] = ()
) -> MergedState:
    """Return the present item without the change that led from `before` to `after`.

    `since`: later changes that are still in effect.
    """
    if now == before:
        return MergedState(now)
    if now == after and not since:
        return MergedState(before)
    if before is None or after is None or now is None:
        return MergedState(now, (ALL_OF_IT,))
    state: Json = {}
    kept: list[str] = []
    for field in [*now, *(name for name in before if name not in now)]:
        was, left = before.get(field), after.get(field)
        value, fits = _field(was, left, now.get(field))
        if value != now.get(field) and any(_took(field, was, left, later) for later in since):
            value, fits = now.get(field), False
        state[field] = value
        if not fits:
            kept.append(field)
    return MergedState(state, tuple(kept))


def _took(field: str, before: object, after: object, later: Change) -> bool:
    """Check whether a later change edited the field, or the same lines of it."""
    if later.before is None or later.after is None:
        return False
    value = later.after.get(field)
    if value == later.before.get(field):
        return False
    return value in (before, after) or not _field(before, after, value)[1]


def _field(before: object, after: object, now: object) -> tuple[object, bool]:
    if now == after:
        return before, True
    if before in (after, now):
        return now, True
    if isinstance(before, str) and isinstance(after, str) and isinstance(now, str):
        lines = _lines(before, after, now)
        return (now, False) if lines is None else (lines, True)
    return now, False


def _lines(before: str, after: str, now: str) -> str | None:
    """Return `now` with the lines of `after` reverted to those of `before`; None on a conflict."""
    base, theirs = after.splitlines(keepends=True), now.splitlines(keepends=True)
    mine = before.splitlines(keepends=True)
    edits = [*_edits(base, mine, 0), *_edits(base, theirs, 1)]
    edits.sort(key=lambda edit: edit[:3])
    result: list[str] = []
    at, owner = 0, -1
    for start, end, who, lines in edits:
        touching = start < at or (start == at and owner not in (-1, who))
        if touching:
            return None
        result += base[at:start] + lines
        at, owner = end, who
    return "".join(result + base[at:])


def _edits(base: list[str], other: list[str], who: int) -> list[tuple[int, int, int, list[str]]]:
    """Return the line ranges of `base` that `other` replaced, with the new lines."""
    return [
        (i1, i2, who, other[j1:j2])
        for tag, i1, i2, j1, j2 in SequenceMatcher(None, base, other, False).get_opcodes()
        if tag != "equal"
    ]


def _is_undone(newer: Sequence[HistoryEntry], since: Sequence[HistoryEntry], set_id: str) -> bool:
    """Check whether a change was undone before, and that all later changes of its item were undos.

    So an older merge can be undone before a newer one that is undone with it, or after it.
    """
    undos = {step.set_id for step in newer if step.undoes == set_id}
    again = {step.undoes for step in newer}
    return bool(undos - again) and all(step.cause == "undo" for step in since)


class Rows(Protocol):
    """Items in our database, changed in the transaction that records the change."""

    async def state(self, tx: Transaction, item: str) -> Json | None:
        """Return the present state of an item; None: it does not exist."""
        ...

    async def put(self, tx: Transaction, item: str, state: Json | None, why: Reason) -> bool:
        """Restore a state; False if that is impossible and nothing was done."""
        ...

    async def successors(self, tx: Transaction, items: Collection[str]) -> Mapping[str, str]:
        """Return, for items that were replaced by others, the ids of those others."""
        ...


@dataclass(frozen=True, slots=True)
class Conflict:
    """An item that was changed again since: these fields stay, or `all of it`.

    `held_by`: the change set of the later change, "" if unknown. `state`: the present item, or the last known one.
    """

    kind: ItemKind
    item: str
    fields: tuple[str, ...]
    held_by: str
    cause: str
    state: Json | None


@dataclass(frozen=True, slots=True)
class Undone:
    """The result of an undo: the items restored, and those kept by later edits.

    An item is in both if some of its fields were restored and others stay.
    """

    set_id: str | None
    back: tuple[Change, ...] = ()
    kept: tuple[Conflict, ...] = ()
    merges: tuple["Undone", ...] = ()
    """Later merges of its items that were undone first, newest first."""

    @property
    def memory_scopes(self) -> set[str]:
        """Return the scopes whose memories it changed."""
        changes = [change for one in (self, *self.merges) for change in one.back]
        states = [each for c in changes if c.kind == "fact" for each in (c.before, c.after) if each]
        return {state["scope"] for state in states}


class Undo:
    """Undoes a change set item by item. The undo is a change set too, so it can be undone."""

    def __init__(
        self,
        database: Database,
        changes: ChangeSets,
        rows: Mapping[ItemKind, Rows],
        placing: Placing,
    ) -> None:
        self._database = database
        self._changes = changes
        self._rows = rows
        self._placing = placing

    async def apply(
        self, wanted: ChangeSet, items: Collection[str] | None = None, key: str | None = None
    ) -> Undone:
        """Undo a change set, or only some of its items, in one transaction. `key`: see `Reason`.

        Raises: WintermuteError for a file that cannot be put in place; it stays unchanged.
        """
        async with self._placing.settled(), AsyncExitStack() as stack:
            # Read again: while this waited, words of it may have been forgotten.
            known = await self._changes.get(wanted.id)
            if known is None:
                return Undone(None)
            async with self._database.transaction() as tx:
                undone = await self.within(tx, known, items, key)
                places = await self._placing.prepared(stack, undone.back)
            if places and undone.set_id:
                await self._placing.put(places, undone.set_id)
        return undone

    async def to_confirm(self, wanted: ChangeSet, by: str | None = None) -> Undone | None:
        """Preview a bare undo that a person has to confirm; None: it needs no question (M-091)."""
        with suppress(_Previewed):
            async with self._database.transaction() as tx:
                undone = await self.within(tx, wanted)
                raise _Previewed
        sets = (undone, *undone.merges)
        items = {(change.kind, change.item) for one in sets for change in one.back}
        lately = await self._changes.is_lately(wanted, by)
        return undone if items and (len(items) > MOST_UNCONFIRMED or not lately) else None

    def touches_files(self, wanted: ChangeSet) -> bool:
        """Check whether `apply` is needed, because the set also changed files."""
        return any(change.kind in self._placing.files for change in wanted.changes)

    async def within(
        self,
        tx: Transaction,
        wanted: ChangeSet,
        items: Collection[str] | None = None,
        key: str | None = None,
    ) -> Undone:
        """Undo the part of `apply` that is in the database.

        An item that was merged since is undone with the merge, which restores its other parts (M-076); items that
        ended for a removed one are restored too.
        """
        merges = await self._unmerged(tx, wanted, items)
        undone = await self._undone(tx, wanted, items, key)
        return replace(undone, merges=tuple(merges))

    async def _unmerged(
        self, tx: Transaction, wanted: ChangeSet, items: Collection[str] | None
    ) -> list[Undone]:
        """Undo the later merges of the change set's items, newest first."""
        left: dict[ItemKind, list[str]] = {}
        new: dict[ItemKind, list[str]] = {}
        for change in wanted.changes:
            meant = items is None or change.item in items
            if meant and change.after is not None and change.kind in self._rows:
                left.setdefault(change.kind, []).append(change.item)
                new.setdefault(change.kind, []).extend([change.item] * (change.before is None))
        return [
            await self._undone(tx, merge, merged)
            for kind, named in left.items()
            for merge, merged in await self._merges(tx, kind, named, new[kind])
            if merge.id != wanted.id
        ]

    async def _merges(
        self, tx: Transaction, kind: ItemKind, items: Collection[str], new: Collection[str]
    ) -> list[tuple[ChangeSet, set[str]]]:
        """Return the merges that replaced these items, newest first, each with the items concerned.

        Change sets that ended others in favour of the `new` items are included.
        """
        successors = await self._chains(tx, kind, items) | await self._ended_for(tx, kind, new)
        histories = await self._changes.steps(tx, {(kind, item) for item in successors})
        found: dict[str, tuple[ChangeSet, set[str]]] = {}
        for item, successor in reversed(successors.items()):
            ends = (
                step.set_id
                for step in histories[kind, item]
                if step.cause != "undo" and _ends_for(step.change, successor)
            )
            merge = await self._changes.get(next(ends, ""))
            if merge is None:
                continue
            touched = {change.item for change in merge.changes if change.kind == kind}
            beside = await self._rows[kind].successors(tx, touched)
            about = {name for name in touched if successor in (name, beside.get(name))}
            found.setdefault(merge.id, (merge, set()))[1].update(about)
        return sorted(found.values(), key=lambda one: one[0].seq, reverse=True)

    async def _ended_for(
        self, tx: Transaction, kind: ItemKind, new: Collection[str]
    ) -> dict[str, str]:
        """Return items that ended in favour of one of these and are still there; never files."""
        there = [item for item in new if await self._rows[kind].state(tx, item) is not None]
        found = await self._changes.ended_for(tx, kind, there)
        return {
            item: successor
            for item, successor in found.items()
            if (state := await self._rows[kind].state(tx, item)) is not None
            and state.get("replaced_by") == successor
        }

    async def _chains(
        self, tx: Transaction, kind: ItemKind, items: Collection[str]
    ) -> dict[str, str]:
        """Return what replaced each of these items, and what replaced that, and so on.

        An item whose last successor is gone too is left out: somebody removed it.
        """
        successors: dict[str, str] = {}
        ahead = set(items)
        while ahead:
            found = await self._rows[kind].successors(tx, ahead)
            successors |= found
            ahead = set(found.values()) - successors.keys()
        gone = {
            successor
            for successor in successors.values()
            if successor not in successors and await self._rows[kind].state(tx, successor) is None
        }
        while more := {item for item, successor in successors.items() if successor in gone} - gone:
            gone |= more
        return {item: successor for item, successor in successors.items() if item not in gone}

    async def _undone(
        self,
        tx: Transaction,
        wanted: ChangeSet,
        items: Collection[str] | None,
        key: str | None = None,
    ) -> Undone:
        why = Reason("undo", wanted.scope, evidence=(wanted.id,), key=key)
        back: list[Change] = []
        kept: list[Conflict] = []
        histories = await self._changes.steps(tx, {(c.kind, c.item) for c in wanted.changes})
        for change in reversed(wanted.changes):
            if items is not None and change.item not in items:
                continue
            now = await self._state(tx, change)
            history = histories[change.kind, change.item]
            newer = list(takewhile(lambda step: step.set_id != wanted.id, history))
            since = list(effective_steps(newer, now))
            whole = None in (change.before, change.after, now)
            if whole and change.kind in self._rows and _is_undone(newer, since, wanted.id):
                continue
            merged = reverted(change.before, change.after, now, [step.change for step in since])
            done = Change(change.kind, change.item, now, merged.state, (wanted.id,))
            is_put = merged.state == now or await self._put(tx, done, why)
            if is_put and merged.state != now:
                back.append(done)
            if fields := merged.kept if is_put else (ALL_OF_IT,):
                by = (since[0].set_id, since[0].cause) if since else ("", "")
                state = now or change.after or change.before
                kept.append(Conflict(change.kind, change.item, fields, *by, state))
        back = _net(back)
        set_id = None
        if back:
            set_id = await self._changes.record(tx, why, back, wanted.id, placed=False)
        return Undone(set_id, tuple(back), tuple(kept))

    async def _put(self, tx: Transaction, done: Change, why: Reason) -> bool:
        if done.kind in self._placing.files:
            return True  # once this is committed
        return await self._rows[done.kind].put(tx, done.item, done.after, why)

    async def _state(self, tx: Transaction, change: Change) -> Json | None:
        if change.kind in self._placing.files:
            return await self._placing.state(change)
        return await self._rows[change.kind].state(tx, change.item)


def _ends_for(change: Change, successor: str) -> bool:
    """Check whether a change removed an item, or ended it, in favour of its successor."""
    return change.after is None or change.after.get("replaced_by") == successor


def _net(back: Sequence[Change]) -> list[Change]:
    """Merge the changes of each item into one, in the order of their last steps."""
    whole: dict[tuple[ItemKind, str], Change] = {}
    for change in back:
        earlier = whole.pop((change.kind, change.item), change)
        whole[change.kind, change.item] = replace(change, before=earlier.before)
    return [change for change in whole.values() if change.before != change.after]
