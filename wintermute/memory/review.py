"""The facts that a night compares: those that are new since their neighbours were last compared."""

import json
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from wintermute.clock import stamp
from wintermute.db import Database, Transaction
from wintermute.memory.fact import Fact, fact_of, facts_of
from wintermute.memory.facts import IN_LIST, LIVE

MOST = 2_000
"""New facts of a scope that a night compares."""
MOST_WAITING = 100
"""Facts compared before, with pairs still waiting for a question."""
NEW, SEEN, WAITING, BY_WORDS = 0, 1, 2, 3
"""Values of `examined`. `WAITING`: the neighbours are known, but some pairs wait for a question.

`BY_WORDS`: compared without embeddings; to be compared again once there are some.
"""
COMPARABLE = (
    f"{LIVE} AND valid_to IS NULL AND NOT archived AND NOT queued"
    " AND NOT (source = 'dreaming_merge' AND stored_at >= :began)"
)
"""The facts to compare.

A fact with an end, or an archived one, says of no other that it lasts; a queued one still has to be consolidated;
one made by this night is compared by the next one.
"""


@dataclass(frozen=True, slots=True)
class UncomparedFacts:
    """The facts that a night compares in a scope. `more`: new facts left for the next night.

    `by_words`: facts to compare as well if there are embeddings.
    """

    facts: tuple[Fact, ...]
    more: int
    by_words: tuple[Fact, ...]


async def uncompared(database: Database, scope: str, began: datetime) -> UncomparedFacts:
    """Return the newest of the new facts, and the oldest with waiting pairs. `began`: start of the night."""
    asked = {"scope": scope, "began": stamp(began), "most": MOST, "again": MOST_WAITING}
    where = (
        f"FROM facts WHERE scope = :scope AND examined <> 1 AND examined = {{}} AND {COMPARABLE}"
    )
    new = await database.rows(f"SELECT * {where.format(NEW)} ORDER BY seq DESC LIMIT :most", asked)
    again = await database.rows(
        f"SELECT * {where.format(WAITING)} ORDER BY seq LIMIT :again", asked
    )
    (count,) = await database.scalars(f"SELECT count(*) {where.format(NEW)}", asked)
    by_words = await database.rows(
        f"SELECT * {where.format(BY_WORDS)} ORDER BY seq LIMIT :most", asked
    )
    known = tuple(facts_of(by_words[: MOST - len(new)]))
    return UncomparedFacts(tuple(facts_of([*new, *again])), count - len(new), known)


async def scopes_with_news(database: Database, began: datetime) -> set[str]:
    """Return the scopes with facts still to compare. `began`: start of the night."""
    states = f"examined <> 1 AND examined <> {BY_WORDS}"
    query = f"SELECT DISTINCT scope FROM facts WHERE {states} AND {COMPARABLE}"
    return {*await database.scalars(query, {"began": stamp(began)})}


async def comparable(
    database: Database, scope: str, seqs: Collection[int], began: datetime
) -> dict[int, Fact]:
    """Return the facts with these numbers that may be compared with others."""
    rows = await database.rows(
        f"SELECT * FROM facts WHERE seq IN (SELECT value FROM json_each(:seqs)) AND +scope = :scope"
        f" AND {COMPARABLE}",
        {"seqs": json.dumps(list(seqs)), "scope": scope, "began": stamp(began)},
    )
    return {row["seq"]: fact_of(row) for row in rows}


async def mark_compared(
    tx: Transaction,
    ids: Collection[str],
    waiting: Collection[str] = (),
    by_words: Collection[str] = (),
) -> None:
    """Mark facts as compared; those in `waiting` have pairs left for the next nights.

    `by_words`: those of the `ids` to be compared again once there are embeddings.
    """
    for state, named in ((SEEN, ids), (WAITING, waiting), (BY_WORDS, by_words)):
        await tx.execute(
            f"UPDATE facts SET examined = {state} WHERE id {IN_LIST}", (json.dumps([*named]),)
        )


async def swap_places(tx: Transaction, new_id: str, ids: Collection[str]) -> None:
    """Give a merged fact the place of its newest part, so that its neighbours stay its neighbours.

    A search also scores the neighbours of a hit. The two facts swap places until the part comes back.
    """
    rows = await tx.rows(
        "SELECT id, place FROM facts WHERE id IN (SELECT value FROM json_each(?))"
        " AND scope = (SELECT scope FROM facts WHERE id = ?) ORDER BY created_at DESC, seq LIMIT 1",
        (json.dumps([*ids]), new_id),
    )
    for row in [row for row in rows if row["id"] != new_id]:
        mine = await tx.scalars("SELECT place FROM facts WHERE id = ?", (new_id,))
        for name, place in ((row["id"], -1), (new_id, row["place"]), (row["id"], mine[0])):
            await tx.execute("UPDATE facts SET place = ? WHERE id = ?", (place, name))
        await tx.execute(
            "UPDATE facts SET place_before = ? WHERE id = ?", (row["place"], row["id"])
        )


async def add_uses(tx: Transaction, new_id: str, ids: Collection[str]) -> None:
    """Add the uses of these facts to the one that replaced them."""
    await tx.execute(
        "UPDATE facts SET accesses = accesses + found.n,"
        " accessed_at = max(coalesce(accessed_at, found.at), coalesce(found.at, accessed_at))"
        " FROM (SELECT coalesce(sum(accesses), 0) AS n, max(accessed_at) AS at FROM facts"
        "  WHERE id IN (SELECT value FROM json_each(:ids)) AND id <> :heir) AS found"
        " WHERE facts.id = :heir",
        {"ids": json.dumps([*ids]), "heir": new_id},
    )


async def has_equal(tx: Transaction, scope: str, key: str, but: Collection[str]) -> bool:
    """Check whether a live fact other than these has this key."""
    return await tx.exists(
        f"SELECT 1 FROM facts WHERE scope = ? AND key = ? AND {LIVE}"
        " AND id NOT IN (SELECT value FROM json_each(?))",
        (scope, key, json.dumps([*but])),
    )
