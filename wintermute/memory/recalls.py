"""The record of memories given to messages: for /why, and as the measure of use (M-024)."""

import json
from collections.abc import Collection, Sequence

from wintermute.clock import Clock, stamp
from wintermute.db import Database
from wintermute.memory.fact import Hit, RecalledFact, fact_of, key
from wintermute.memory.facts import IN_LIST, LIVE, TRUE

MERGED = (
    "(f.retired_at IS NOT NULL AND NOT f.ended AND h.id IS NOT NULL AND NOT h.ended"
    " AND (f.retired_by = 'night' OR h.source = 'dreaming_merge')"
    " AND (h.retired_at IS NULL OR h.retired_by = 'night'))"
)
"""True if fact `f` was merged at night into `h`, and `h` is still true or was merged again."""


class Recalls:
    """The store of facts that messages were given."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def recall(self, cast_id: str, found: Sequence[Hit]) -> None:
        """Record the facts a message was given, for /why, and count one use per day (M-024)."""
        rows = [
            {"cast": cast_id, "id": hit.fact.id, "place": place, "score": hit.score}
            for place, hit in enumerate(found, 1)
        ]
        now = stamp(self._clock.now())
        async with self._database.transaction() as tx:
            await tx.execute_many(
                "INSERT INTO recalled (cast_id, fact, place, score)"
                " SELECT :cast, seq, :place, :score FROM facts WHERE id = :id"
                " ON CONFLICT (cast_id, fact) DO UPDATE SET place = excluded.place,"
                " score = excluded.score",
                rows,
            )
            await tx.execute_many(
                "UPDATE facts SET accesses = accesses + 1, accessed_at = :now WHERE id = :id"
                " AND (accessed_at IS NULL OR substr(accessed_at, 1, 10) < substr(:now, 1, 10))",
                [{"id": row["id"], "now": now} for row in rows],
            )

    async def recalled(self, cast_id: str, scope: str) -> list[Hit]:
        """Return the facts a message was given that are still true, the best match first."""
        rows = await self._database.rows(
            "SELECT f.*, r.score FROM recalled r JOIN facts f ON f.seq = r.fact"
            f" WHERE r.cast_id = ? AND f.scope = ? AND {LIVE} ORDER BY r.place",
            (cast_id, scope),
        )
        return [Hit(fact_of(row), row["score"]) for row in rows]

    async def successors_of(self, scope: str, texts: Collection[str]) -> dict[str, str | None]:
        """Map each text that is or was a fact of a scope to None if it is still true.

        Otherwise to its successor, or "" if none is known. A fact merged at night counts as true.
        """
        named = {key(text): text for text in texts}
        rows = await self._database.rows(
            f"SELECT f.key, {TRUE.replace('{}', 'f')} OR {MERGED} AS so,"
            " CASE WHEN h.retired_at IS NULL AND NOT h.ended THEN h.text END AS heir"
            " FROM facts f LEFT JOIN facts h ON h.id = f.replaced_by"
            f" WHERE f.scope = ? AND f.key {IN_LIST} ORDER BY {TRUE.replace('{}', 'f')}, f.seq",
            (scope, json.dumps(list(named))),
        )
        newest = {row["key"]: row for row in rows}
        return {
            named[name]: None if row["so"] else row["heir"] or "" for name, row in newest.items()
        }

    async def given(self, casts: Sequence[str], scope: str) -> list[RecalledFact]:
        """Return the facts that these casts' messages were given, in their order, the best match first.

        Facts that have ended or were retired since are included.
        """
        rows = await self._database.rows(
            "SELECT f.*, r.cast_id FROM json_each(?) c JOIN recalled r ON r.cast_id = c.value"
            " JOIN facts f ON f.seq = r.fact WHERE f.scope = ? ORDER BY c.key, r.place",
            (json.dumps(list(casts)), scope),
        )
        return [RecalledFact(row["cast_id"], fact_of(row)) for row in rows]

    async def given_to(self, fact_id: str, most: int) -> list[str]:
        """Return the casts whose messages were given a fact lately, newest first."""
        return await self._database.scalars(
            "SELECT r.cast_id FROM recalled r JOIN facts f ON f.seq = r.fact"
            " JOIN casts c ON c.id = r.cast_id WHERE f.id = ? ORDER BY c.seq DESC LIMIT ?",
            (fact_id, most),
        )
