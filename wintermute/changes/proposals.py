"""Proposals: what may not be done without a person, kept until one decides or it is out of date."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from wintermute.changes.change_sets import ItemKind
from wintermute.clock import Clock, stamp
from wintermute.db import Database, Transaction
from wintermute.db.text_search import OURS_SINCE, SCOPES, Kept
from wintermute.db.values import insert, reader
from wintermute.ids import NewId

WAITS = timedelta(days=14)
"""How long one waits for an answer (M-079)."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """`text`: what something would become; `reason`: why it was not done at once.

    `item`: which one of its kind, where there are several.
    """

    id: str
    scope: str
    kind: ItemKind
    text: str
    reason: str
    created_at: datetime
    item: str = ""


PROPOSALS = Kept(
    *("proposals", ("text", "reason")), of=f"scope IN {SCOPES}", ours=OURS_SINCE, drops=True
)
_proposal = reader(Proposal)


class Proposals:
    """The store of proposals."""

    def __init__(self, database: Database, clock: Clock, new_id: NewId) -> None:
        self._database = database
        self._clock = clock
        self._new_id = new_id

    async def offer(
        self, tx: Transaction, scope: str, kind: ItemKind, text: str, reason: str, item: str = ""
    ) -> None:
        """Propose it, unless the same waits, or was refused lately."""
        query = (
            "SELECT 1 FROM proposals WHERE scope = ? AND kind = ? AND text = ? AND item = ?"
            " AND created_at > ? AND state IN ('open', 'refused')"
        )
        if await tx.exists(query, (scope, kind, text, item, self._oldest())):
            return
        values = {"id": self._new_id("prop"), "scope": scope, "kind": kind, "text": text}
        values |= {"reason": reason, "item": item, "created_at": stamp(self._clock.now())}
        await tx.execute(*insert("proposals", values))

    async def outdate(
        self,
        tx: Transaction,
        scope: str,
        kind: ItemKind,
        but: str | None = None,
        item: str = "",
    ) -> None:
        """What waits there, `but` for this text, was about something that is another by now."""
        await tx.execute(
            "UPDATE proposals SET state = 'outdated' WHERE scope = ? AND kind = ? AND item = ?"
            " AND state = 'open' AND text IS NOT ?",
            (scope, kind, item, but),
        )

    async def withdraw_citing(
        self, tx: Transaction, scope: str, kind: ItemKind, source: str
    ) -> None:
        """What waits there and names a source that came to nothing waits no more."""
        await tx.execute(
            "UPDATE proposals SET state = 'outdated' WHERE scope = ? AND kind = ?"
            " AND state = 'open' AND instr(text, ?)",
            (scope, kind, source),
        )

    async def decide(
        self, tx: Transaction, proposal_id: str, state: Literal["taken", "refused", "outdated"]
    ) -> bool:
        """A person has decided, or it cannot be done any more; whether it was open."""
        query = "UPDATE proposals SET state = ? WHERE id = ? AND state = 'open'"
        return await tx.execute(query, (state, proposal_id)) == 1

    async def reopen(self, tx: Transaction, proposal_id: str) -> None:
        """Let one wait again that was taken, when nothing came of it."""
        query = "UPDATE proposals SET state = 'open' WHERE id = ? AND state = 'taken'"
        await tx.execute(query, (proposal_id,))

    async def is_open(self, tx: Transaction, proposal_id: str) -> bool:
        """Whether it waits for an answer."""
        query = "SELECT 1 FROM proposals WHERE id = ? AND state = 'open'"
        return await tx.exists(query, (proposal_id,))

    async def open_in(
        self, scope: str | None, kind: ItemKind, tx: Transaction | None = None
    ) -> list[Proposal]:
        """List the proposals that wait for an answer, in one scope or in all, oldest first."""
        rows = await (tx or self._database).rows(
            "SELECT * FROM proposals WHERE coalesce(scope = ?, TRUE) AND kind = ?"
            " AND state = 'open' AND created_at > ? ORDER BY seq",
            (scope, kind, self._oldest()),
        )
        return [_proposal(row) for row in rows]

    async def expire(self, tx: Transaction) -> int:
        """Remove what nobody answered in time; how many."""
        query = "DELETE FROM proposals WHERE created_at <= ?"
        return await tx.execute(query, (self._oldest(),))

    def _oldest(self) -> str:
        return stamp(self._clock.now() - WAITS)
