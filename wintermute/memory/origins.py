"""Which facts came from which messages, and what becomes of them when messages are taken back."""

import json
from collections.abc import Collection, Iterable, Sequence

from wintermute.changes.change_sets import Reason
from wintermute.db import Database, Transaction
from wintermute.memory.fact import Fact, Heirs, fact_of, state_of
from wintermute.memory.facts import Facts


def is_said_in(text: str, others: Iterable[str]) -> bool:
    """Whether these others together say all of a text: its words, numbers and negations (M-039)."""
    return Heirs([*others]).keeps(text)


class Origins:
    """Facts by what they were learnt from. The rows are those of `Facts`."""

    def __init__(self, database: Database, facts: Facts) -> None:
        self._database = database
        self._facts = facts

    async def of_events(self, events: Collection[str]) -> list[Fact]:
        """The facts, live or retired, that came from one of these, or of something else as well."""
        rows = await self._database.rows(
            "SELECT * FROM facts WHERE EXISTS (SELECT 1 FROM json_each(facts.origins) o"
            " WHERE o.value IN (SELECT value FROM json_each(?))) ORDER BY seq",
            (json.dumps(sorted(events)),),
        )
        return [fact_of(row) for row in rows]

    async def replaced_by(self, ids: Collection[str]) -> list[Fact]:
        """The facts in whose place these stand."""
        rows = await self._database.rows(
            "SELECT * FROM facts WHERE retired_at IS NOT NULL"
            " AND replaced_by IN (SELECT value FROM json_each(?)) ORDER BY seq",
            (json.dumps(sorted(ids)),),
        )
        return [fact_of(row) for row in rows]

    async def lose(self, tx: Transaction, ids: Sequence[str], events: Collection[str]) -> None:
        """These facts are known from their other origins only."""
        await tx.execute(
            "UPDATE facts SET origins = (SELECT json_group_array(o.value) FROM json_each(facts.origins) o"
            "  WHERE o.value NOT IN (SELECT value FROM json_each(:events)))"
            " WHERE id IN (SELECT value FROM json_each(:ids))",
            {"ids": json.dumps(list(ids)), "events": json.dumps(sorted(events))},
        )

    async def revive(self, tx: Transaction, facts: Sequence[Fact]) -> None:
        """What was merged with something that is gone is there again, to be brought together anew."""
        for fact in facts:
            state = state_of(fact) | {"replaced_by": None}
            await self._facts.put(tx, fact.id, state, Reason("command", fact.scope))
        await tx.execute(
            "UPDATE facts SET queued = 1 WHERE retired_at IS NULL"
            " AND id IN (SELECT value FROM json_each(?))",
            (json.dumps([fact.id for fact in facts]),),
        )
