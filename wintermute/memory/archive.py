"""Archived memories: facts that were not used for a long time, until a search finds them.

active ─ not used for long, and seldom before ─▶ archived: in no prompt, list or file (M-060)
  ▲                                               │
  ╰──────── found by a search, or said again ◀────╯

A night compares reactivated facts again: newer facts were never compared with them.
"""

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime

from wintermute.clock import stamp
from wintermute.db import Database, Transaction
from wintermute.db.values import reader
from wintermute.memory.fact import Hit
from wintermute.memory.facts import ACTIVE, IN_LIST

USED = "max(stored_at, coalesce(accessed_at, ''))"


@dataclass(frozen=True, slots=True)
class StaleFact:
    """A fact that may be archived. `used`: time of its last use, or when it was stored."""

    id: str
    text: str
    taint: bool
    used: datetime


_stale = reader(StaleFact)


async def stale(
    source: Database | Transaction, scope: str, before: datetime, least: int
) -> list[StaleFact]:
    """Return facts not used since then, nor `least` times ever, the longest unused first.

    The person's own words are never stale, nor are facts that wait to be consolidated.
    """
    rows = await source.rows(
        f"SELECT id, text, taint, {USED} AS used FROM facts WHERE scope = ? AND {ACTIVE} AND NOT protected"
        f" AND NOT queued AND accesses < ? AND {USED} <= ? ORDER BY used, seq",
        (scope, least, stamp(before)),
    )
    return [_stale(row) for row in rows]


async def active_count(source: Database | Transaction, scope: str) -> int:
    """Count the live facts of a scope that are not archived."""
    (count,) = await source.scalars(
        f"SELECT count(*) FROM facts WHERE scope = ? AND {ACTIVE}", (scope,)
    )
    return int(count)


async def archive(tx: Transaction, ids: Collection[str]) -> None:
    """Archive facts."""
    await tx.execute(f"UPDATE facts SET archived = 1 WHERE id {IN_LIST}", (json.dumps([*ids]),))


async def reactivated(database: Database, hits: Sequence[Hit], now: datetime) -> Sequence[Hit]:
    """Return the hits; archived ones become active again, and count as used."""
    if archived := [hit.fact.id for hit in hits if hit.fact.archived]:
        async with database.transaction() as tx:
            await tx.execute(
                "UPDATE facts SET archived = 0, examined = 0, accesses = accesses + 1, accessed_at = ?"
                f" WHERE id {IN_LIST} AND archived",
                (stamp(now), json.dumps(archived)),
            )
    return hits


async def reactivate_all(database: Database) -> None:
    """Make all facts active again, as a file backend shows all of them."""
    if await database.exists("SELECT 1 FROM facts WHERE archived LIMIT 1"):
        async with database.transaction() as tx:
            await tx.execute("UPDATE facts SET archived = 0, examined = 0 WHERE archived")
