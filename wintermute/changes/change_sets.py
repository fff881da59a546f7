"""The record of changes: an item before and after, stored in the transaction that changes it."""

import json
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import groupby
from typing import Literal, get_args

from wintermute.clock import Clock, stamp
from wintermute.db import Database, Row, Transaction
from wintermute.db.text_search import OURS_SINCE, SCOPES, SearchableText
from wintermute.db.values import columns, insert, insert_many, reader
from wintermute.ids import NewId
from wintermute.messages import Json

BackgroundCause = Literal["night", "consolidation", "harvest", "reconstruction"]
"""Causes that nobody asked for at that moment: a change by them is undone only by its own name (M-076)."""
Cause = Literal[BackgroundCause, "undo", "import", "edit", "tool", "command"]
ItemKind = Literal["fact", "task", "skill", "core", "page"]
FILES: frozenset[ItemKind] = frozenset({"skill", "core", "page"})

KEPT = timedelta(days=30)
"""Time for which a change can be undone (M-065, T-007)."""
LATELY = timedelta(hours=1)
"""Age up to which a bare undo reverts the last change without a question (M-091)."""
STATES = ("before", "after")
CHANGES = SearchableText(
    *("changes", STATES, "change_set_id, n"),
    where="kind <> 'fact'",
    cuts="json",  # the rest of an item can still be undone
    # Skills belong to everybody, but are recorded in one scope.
    of="kind = 'skill' OR"
    f" (SELECT s.scope FROM change_sets s WHERE s.id = change_set_id) IN {SCOPES}",
)
SUMMARIES = SearchableText(
    *("change_sets", ("summary",)),
    where="summary <> ''",
    of=f"scope IN {SCOPES}",
    ours=OURS_SINCE,
)
"""Descriptions of changes, such as the lines that a page would lose."""


@dataclass(frozen=True, slots=True)
class Change:
    """One changed item. `before` None: it did not exist; `after` None: it is gone."""

    kind: ItemKind
    item: str
    before: Json | None
    after: Json | None
    evidence: tuple[str, ...] = ()
    """Ids of the events, turns or changes that led to it."""


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """A change in the history of its item."""

    set_id: str
    cause: Cause
    undoes: str | None
    change: Change


@dataclass(frozen=True, slots=True)
class ItemVersion:
    """A change of an item without its texts. `is_new`: it did not exist before; `is_gone`: it was removed."""

    seq: int
    set_id: str
    cause: Cause
    summary: str
    created_at: datetime
    is_new: bool
    is_gone: bool


@dataclass(frozen=True, slots=True)
class Reason:
    """The reason for a change and the person behind it; every write that can be undone names one.

    `into`: the change set to extend, if there is one already, as in a night. `answers`: the question of a night that
    a person said yes to. `decision`: the `seq` of the decision that is applied. `key`: the command, for finding its
    change set again. `asked`: a person asked for it.
    """

    cause: Cause
    scope: str
    cast_id: str | None = None
    evidence: tuple[str, ...] = ()
    summary: str = ""
    into: str | None = None
    answers: str = ""
    decision: int | None = None
    key: str | None = None
    asked: bool = field(default=True, compare=False)

    @property
    def is_background(self) -> bool:
        """True if nobody asked for it at that moment."""
        return not self.asked or self.cause in get_args(BackgroundCause)


@dataclass(frozen=True, slots=True)
class ChangeSet:
    """Changes made together. `undone`: the items whose change was undone since.

    `seq`: increases, also between two sets of the same moment.
    """

    seq: int
    id: str
    cause: Cause
    scope: str
    undoes: str | None
    summary: str
    created_at: datetime
    changes: tuple[Change, ...]
    undone: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Unplaced:
    """Changes of files in one set that may be half in place. `is_wanted`: the decision was not withdrawn."""

    set_id: str
    changes: tuple[Change, ...]
    is_wanted: bool


_change = reader(Change)
_set = reader(ChangeSet, "changes", "undone")
_version = reader(ItemVersion)


class ChangeSets:
    """The store of change sets and their changes."""

    def __init__(self, database: Database, clock: Clock, new_id: NewId) -> None:
        self._database = database
        self._clock = clock
        self._new_id = new_id

    async def record(
        self,
        tx: Transaction,
        why: Reason,
        changes: Sequence[Change],
        undoes: str | None = None,
        *,
        placed: bool = True,
    ) -> str:
        """Record the changes of this transaction; return the id of their change set, which may be new.

        `placed` False: files among them are put in place later.
        """
        set_id = why.into or self._new_id("set")
        if why.into is None:
            values = columns(why, "evidence", "into", "asked", "decision")
            values |= {"id": set_id, "undoes": undoes, "created_at": self._clock.now()}
            await tx.execute(*insert("change_sets", values))
        await self.extend(tx, set_id, changes, why.decision, placed=placed)
        return set_id

    async def extend(
        self,
        tx: Transaction,
        set_id: str,
        changes: Sequence[Change],
        decision: int | None = None,
        *,
        placed: bool = True,
    ) -> None:
        """Add to a change set whose work takes several transactions, such as an import."""
        query = "SELECT coalesce(max(n) + 1, 0) FROM changes WHERE change_set_id = ?"
        (first,) = await tx.scalars(query, (set_id,))
        rows = [
            columns(change)
            | {"before": _json(change.before), "after": _json(change.after)}
            | {"change_set_id": set_id, "n": n, "decision": decision}
            | {"placed": placed or change.kind not in FILES}
            for n, change in enumerate(changes, first)
        ]
        await tx.execute_many(*insert_many("changes", rows))

    async def first(self, tx: Transaction) -> datetime | None:
        """Return the time of the oldest change set."""
        (at,) = await tx.scalars("SELECT min(created_at) FROM change_sets")
        return datetime.fromisoformat(at) if at else None

    async def get(self, set_id: str) -> ChangeSet | None:
        """Return one change set, while it can be undone."""
        query = "SELECT * FROM change_sets WHERE id = ? AND created_at > ?"
        found = await self._whole(await self._database.rows(query, (set_id, self._oldest())))
        return found[0] if found else None

    async def by_key(self, key: str) -> ChangeSet | None:
        """Return the change set that a command made before a crash, if it made one."""
        query = "SELECT * FROM change_sets WHERE key = ?"
        found = await self._whole(await self._database.rows(query, (key,)))
        return found[0] if found else None

    async def asked_by(self, tx: Transaction, events: Collection[str]) -> list[str]:
        """Return the change sets of the commands of these events, newest first."""
        return await tx.scalars(
            "SELECT id FROM change_sets s WHERE cause = 'command' AND created_at > ? AND EXISTS"
            " (SELECT 1 FROM changes c, json_each(c.evidence) e WHERE c.change_set_id = s.id"
            "  AND e.value IN (SELECT value FROM json_each(?))) ORDER BY seq DESC",
            (self._oldest(), json.dumps([*events])),
        )

    async def history(
        self, kinds: Sequence[ItemKind], scope: str | None = None, limit: int = 20
    ) -> tuple[ChangeSet, ...]:
        """Return the newest change sets with items of these kinds, newest first; of one scope or of all."""
        rows = await self._database.rows(
            "SELECT * FROM change_sets s WHERE (:scope IS NULL OR scope = :scope)"
            " AND created_at > :oldest AND EXISTS (SELECT 1 FROM changes c"
            "  WHERE c.change_set_id = s.id AND c.kind IN (SELECT value FROM json_each(:kinds)))"
            " ORDER BY seq DESC LIMIT :limit",
            {
                "scope": scope,
                "oldest": self._oldest(),
                "kinds": json.dumps(list(kinds)),
                "limit": limit,
            },
        )
        return await self._whole(rows)

    async def newest(
        self,
        kinds: Sequence[ItemKind],
        scope: str | None = None,
        *,
        asked: bool = False,
    ) -> ChangeSet | None:
        """Return the newest change set that is neither an undo nor undone: the next one to undo.

        `asked`: only changes by a person, or by the assistant in an answer; background work, and changes that a
        night asked for, are undone by their own names (M-076).
        """
        rows = await self._database.rows(
            "SELECT * FROM change_sets s WHERE (:scope IS NULL OR scope = :scope)"
            " AND cause <> 'undo' AND NOT (:asked AND (answers <> ''"
            "  OR cause IN ('night', 'consolidation', 'harvest', 'reconstruction')))"
            " AND created_at > :oldest AND EXISTS (SELECT 1 FROM changes c"
            "  WHERE c.change_set_id = s.id AND c.kind IN (SELECT value FROM json_each(:kinds))"
            "  AND NOT EXISTS (SELECT 1 FROM change_sets u JOIN changes d"
            "   ON d.change_set_id = u.id WHERE u.undoes = s.id AND d.kind = c.kind AND d.item = c.item))"
            " ORDER BY seq DESC LIMIT 1",
            {
                "scope": scope,
                "oldest": self._oldest(),
                "kinds": json.dumps(list(kinds)),
                "asked": asked,
            },
        )
        found = await self._whole(rows)
        return found[0] if found else None

    async def is_lately(self, wanted: ChangeSet, by: str | None = None) -> bool:
        """Check whether a change set is from the last hour, and with `by` from this person."""
        if wanted.created_at <= self._clock.now() - LATELY:
            return False
        return by is None or await self._database.exists(
            "SELECT 1 FROM inbox WHERE sender = :by AND event_id IN (SELECT c.event_id FROM casts c"
            "  JOIN change_sets s ON s.cast_id = c.id WHERE s.id = :id UNION"
            "  SELECT value FROM changes, json_each(evidence) WHERE change_set_id = :id)",
            {"by": by, "id": wanted.id},
        )

    async def steps(
        self, source: Transaction | Database, items: Iterable[tuple[ItemKind, str]]
    ) -> dict[tuple[ItemKind, str], list[HistoryEntry]]:
        """Return the history of each of these items, newest first, with undos and what they undid."""
        found: dict[tuple[ItemKind, str], list[HistoryEntry]] = {item: [] for item in items}
        rows = await source.rows(
            "SELECT c.*, s.cause, s.undoes FROM changes c"
            " JOIN change_sets s ON s.id = c.change_set_id WHERE s.created_at > ?"
            " AND (c.kind, c.item) IN (SELECT value ->> 0, value ->> 1 FROM json_each(?))"
            " ORDER BY s.seq DESC, c.n DESC",
            (self._oldest(), json.dumps(list(found))),
        )
        for row in rows:
            step = HistoryEntry(row["change_set_id"], row["cause"], row["undoes"], _change(row))
            found[row["kind"], row["item"]].append(step)
        return found

    async def versions(
        self, kind: ItemKind, item: str, scope: str, most: int, before: int | None = None
    ) -> list[ItemVersion]:
        """Return the newest changes of an item; `before`: those older than the one with this number."""
        rows = await self._database.rows(
            "SELECT s.seq, s.id AS set_id, s.cause, s.summary, s.created_at,"
            " c.before IS NULL AS is_new, c.after IS NULL AS is_gone FROM changes c"
            " JOIN change_sets s ON s.id = c.change_set_id WHERE c.kind = ? AND c.item = ?"
            " AND s.scope = ? AND s.created_at > ? AND (? IS NULL OR s.seq < ?)"
            " ORDER BY s.seq DESC, c.n DESC LIMIT ?",
            (kind, item, scope, self._oldest(), before, before, most),
        )
        return [_version(row) for row in rows]

    async def ended_for(
        self, tx: Transaction, kind: ItemKind, successors: Collection[str]
    ) -> dict[str, str]:
        """Return the items that change sets ended in favour of one of these, with that one."""
        rows = await tx.rows(
            "SELECT DISTINCT c.item, c.after ->> '$.replaced_by' AS heir FROM changes c"
            " JOIN change_sets s ON s.id = c.change_set_id WHERE c.kind = ? AND s.created_at > ?"
            " AND c.after ->> '$.replaced_by' IN (SELECT value FROM json_each(?))",
            (kind, self._oldest(), json.dumps([*successors])),
        )
        return {row["item"]: row["heir"] for row in rows}

    async def withdraw(self, tx: Transaction, set_id: str) -> None:
        """Remove a change set without effect."""
        await tx.execute("DELETE FROM changes WHERE change_set_id = ?", (set_id,))
        await tx.execute("DELETE FROM change_sets WHERE id = ?", (set_id,))

    async def unplaced(self, sets: Collection[str] = ()) -> list[Unplaced]:
        """List changes on record, in these sets or in any, that may not be in place."""
        rows = await self._database.rows(
            "SELECT c.*, coalesce(d.state IN ('planned', 'open'), TRUE) AS is_wanted FROM changes c"
            " LEFT JOIN decisions d ON d.seq = c.decision WHERE NOT c.placed"
            " AND (:sets = '[]' OR c.change_set_id IN (SELECT value FROM json_each(:sets)))"
            " ORDER BY c.change_set_id, c.n",
            {"sets": json.dumps([*sets])},
        )
        return [
            Unplaced(set_id, tuple(map(_change, found)), all(row["is_wanted"] for row in found))
            for set_id, group in groupby(rows, lambda row: str(row["change_set_id"]))
            if (found := [*group])
        ]

    async def mark_placed(self, tx: Transaction, set_id: str) -> None:
        """Record that all files of a set are in place, and that its decision is done."""
        await tx.execute(
            "UPDATE decisions SET state = 'done' WHERE state IN ('planned', 'open') AND seq IN"
            " (SELECT decision FROM changes WHERE change_set_id = ? AND NOT placed)",
            (set_id,),
        )
        query = "UPDATE changes SET placed = 1 WHERE change_set_id = ? AND NOT placed"
        await tx.execute(query, (set_id,))

    async def revoke(self, tx: Transaction, set_id: str, *, edited: bool = False) -> None:
        """Remove changes that are not in place from a change set, and the set if it is empty then.

        `edited`: somebody saved one of its files, so its decision is outdated.
        """
        await tx.execute(
            "UPDATE decisions SET change_set = NULL,"
            " state = iif(? AND state IN ('planned', 'open'), 'outdated', state) WHERE seq IN"
            " (SELECT decision FROM changes WHERE change_set_id = ? AND NOT placed)",
            (edited, set_id),
        )
        await tx.execute("DELETE FROM changes WHERE change_set_id = ? AND NOT placed", (set_id,))
        await tx.execute(
            "DELETE FROM change_sets WHERE id = ? AND NOT EXISTS"
            " (SELECT 1 FROM changes WHERE change_set_id = change_sets.id)",
            (set_id,),
        )

    async def drop(self, tx: Transaction, kind: ItemKind, items: Sequence[str]) -> None:
        """Remove every trace of these items, which were forgotten (M-030)."""
        await tx.execute(
            "DELETE FROM changes WHERE kind = ? AND item IN (SELECT value FROM json_each(?))",
            (kind, json.dumps(list(items))),
        )

    async def reword(self, tx: Transaction, kind: ItemKind, cut: Callable[[str, str], str]) -> None:
        """Edit the recorded texts of a kind of item with `cut`, so that no undo restores the rest."""
        query = "SELECT change_set_id, n, item, before, after FROM changes WHERE kind = ?"
        for row in await tx.rows(query, (kind,)):
            states = [json.loads(row[name]) if row[name] else None for name in STATES]
            new = [each and {**each, "text": cut(row["item"], each["text"])} for each in states]
            if new != states:
                await tx.execute(
                    "UPDATE changes SET before = ?, after = ? WHERE change_set_id = ? AND n = ?",
                    (*map(_json, new), row["change_set_id"], row["n"]),
                )

    async def expire(self, tx: Transaction) -> int:
        """Remove changes that can no longer be undone; return their number."""
        gone = await tx.execute(
            "DELETE FROM changes WHERE change_set_id IN"
            " (SELECT id FROM change_sets WHERE created_at <= ?)",
            (self._oldest(),),
        )
        await tx.execute(
            "UPDATE change_sets SET undoes = NULL WHERE undoes IN"
            " (SELECT id FROM change_sets WHERE created_at <= ?)",
            (self._oldest(),),
        )
        await tx.execute("DELETE FROM change_sets WHERE created_at <= ?", (self._oldest(),))
        return gone

    def _oldest(self) -> str:
        return stamp(self._clock.now() - KEPT)

    async def _whole(self, rows: Sequence[Row]) -> tuple[ChangeSet, ...]:
        ids = json.dumps([row["id"] for row in rows])
        changes = await self._database.rows(
            "SELECT * FROM changes WHERE change_set_id IN (SELECT value FROM json_each(?))"
            " ORDER BY change_set_id, n",
            (ids,),
        )
        undone = await self._database.rows(
            "SELECT DISTINCT s.undoes, c.item FROM change_sets s"
            " JOIN changes c ON c.change_set_id = s.id"
            " WHERE s.undoes IN (SELECT value FROM json_each(?))",
            (ids,),
        )
        parts: dict[str, list[Change]] = {row["id"]: [] for row in rows}
        for row in changes:
            parts[row["change_set_id"]].append(_change(row))
        back: dict[str, set[str]] = {row["id"]: set() for row in rows}
        for row in undone:
            back[row["undoes"]].add(row["item"])
        return tuple(
            _set(row, changes=tuple(parts[row["id"]]), undone=frozenset(back[row["id"]]))
            for row in rows
        )


def _json(state: Json | None) -> str | None:
    return None if state is None else json.dumps(state, ensure_ascii=False, sort_keys=True)
