"""What comes to rest: memories that nobody had a use for in a long time, until somebody looks for one.

awake ─ not used for long, and seldom before ─▶ at rest: in no prompt, list or file (M-060)
  ▲                                               │
  ╰──────── found by who looks, or said again ◀───╯

Whatever wakes is looked at again by a night: what came meanwhile was never compared with it.
"""

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime

from wintermute.clock import stamp
from wintermute.db import Database, Transaction
from wintermute.db.values import reader
from wintermute.memory.fact import Hit
from wintermute.memory.facts import AWAKE, IN_LIST

USED = "max(stored_at, coalesce(accessed_at, ''))"


@dataclass(frozen=True, slots=True)
class StaleFact:
    """`used`: when it was of use the last time, or was stored; as it is stored."""

    id: str
    text: str
    taint: bool
    used: datetime


_stale = reader(StaleFact)


async def stale(
    source: Database | Transaction, scope: str, before: datetime, least: int
) -> list[StaleFact]:
    """What was not of use since then, nor `least` times ever, longest ago first.

    Never the person's own words; nor what is still to be brought together with the others.
    """
    rows = await source.rows(
        f"SELECT id, text, taint, {USED} AS used FROM facts WHERE scope = ? AND {AWAKE} AND NOT protected"
        f" AND NOT queued AND accesses < ? AND {USED} <= ? ORDER BY used, seq",
        (scope, least, stamp(before)),
    )
    return [_stale(row) for row in rows]


async def awake_count(source: Database | Transaction, scope: str) -> int:
    """How many live facts of a scope are not at rest."""
    (count,) = await source.scalars(
        f"SELECT count(*) FROM facts WHERE scope = ? AND {AWAKE}", (scope,)
    )
    return int(count)


async def rest(tx: Transaction, ids: Collection[str]) -> None:
    """They are at rest from now on."""
    await tx.execute(f"UPDATE facts SET archived = 1 WHERE id {IN_LIST}", (json.dumps([*ids]),))


async def awoken(database: Database, hits: Sequence[Hit], now: datetime) -> Sequence[Hit]:
    """The hits; those that were at rest are of use again, and are no more."""
    if asleep := [hit.fact.id for hit in hits if hit.fact.archived]:
        async with database.transaction() as tx:
            await tx.execute(
                "UPDATE facts SET archived = 0, examined = 0, accesses = accesses + 1, accessed_at = ?"
                f" WHERE id {IN_LIST} AND archived",
                (stamp(now), json.dumps(asleep)),
            )
    return hits


async def wake_all(database: Database) -> None:
    """A list that is read whole has all of them."""
    if await database.exists("SELECT 1 FROM facts WHERE archived LIMIT 1"):
        async with database.transaction() as tx:
            await tx.execute("UPDATE facts SET archived = 0, examined = 0 WHERE archived")
