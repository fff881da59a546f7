"""Folds: a summary that stands for the older turns of a path in the model's view (L-039)."""

from wintermute.clock import Clock, stamp
from wintermute.db import Database, Transaction
from wintermute.ids import NewId
from wintermute.loom.casts import PATH
from wintermute.loom.records import Fold


class Folds:
    """The store of folds. The turns themselves stay (L-048)."""

    def __init__(self, database: Database, clock: Clock, new_id: NewId) -> None:
        self._database = database
        self._clock = clock
        self._new_id = new_id

    async def newest(self, branch_id: str) -> Fold | None:
        """The fold that reaches furthest into the path of a branch; None while all is in view."""
        row = await self._database.row(
            f"{PATH} SELECT f.summary, f.turns, t.seq AS last_turn, c.seq AS last_cast"
            " FROM path p JOIN folds f ON f.branch_id = p.branch_id"
            " JOIN turns t ON t.id = f.to_turn JOIN casts c ON c.id = t.cast_id"
            " WHERE t.seq <= p.until AND f.summary <> '' ORDER BY t.seq DESC, f.seq DESC LIMIT 1",
            {"branch": branch_id},
        )
        if row is None:
            return None
        return Fold(row["summary"], row["turns"], row["last_turn"], row["last_cast"])

    async def add(
        self,
        tx: Transaction,
        branch_id: str,
        to_turn: str,
        summary: str,
        *,
        after: Fold | None,
        tokens_before: int,
        tokens_after: int,
    ) -> int:
        """Store a summary of all turns up to `to_turn`, of which `after` was the one before it.

        Returns how many turns it covers.
        """
        turns = await self._turns(tx, branch_id, to_turn, after)
        await tx.execute(
            f"{PATH} INSERT INTO folds (id, branch_id, from_turn, to_turn, summary, turns,"
            " tokens_before, tokens_after, created_at) SELECT :id, :branch,"
            " (SELECT t.id FROM path p JOIN casts c ON c.branch_id = p.branch_id"
            "  JOIN turns t ON t.cast_id = c.id ORDER BY t.seq LIMIT 1),"
            " :to, :summary, :turns, :tokens_before, :tokens_after, :now",
            {
                "branch": branch_id,
                "id": self._new_id("fold"),
                "to": to_turn,
                "summary": summary,
                "turns": turns,
                "tokens_before": tokens_before,
                "tokens_after": tokens_after,
                "now": stamp(self._clock.now()),
            },
        )
        return turns

    async def _turns(
        self, tx: Transaction, branch_id: str, to_turn: str, after: Fold | None
    ) -> int:
        row = await tx.row(
            f"{PATH} SELECT count(*) AS n FROM path p JOIN casts c ON c.branch_id = p.branch_id"
            " AND c.seq >= :cast JOIN turns t ON t.cast_id = c.id AND t.seq <= p.until"
            " AND t.seq > :after AND t.seq <= (SELECT seq FROM turns WHERE id = :to)",
            {
                "branch": branch_id,
                "cast": after.last_cast if after else 0,
                "after": after.last_turn if after else 0,
                "to": to_turn,
            },
        )
        return (after.turns if after else 0) + (int(row["n"]) if row else 0)
