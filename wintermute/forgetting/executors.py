"""Executors: apply a decision, at once or after a person's yes, by the same code.

The present state is checked again: if the subject of a decision has changed meanwhile, nothing is done. Rows change in
the transaction that records them; files are put in place by `changes.placing`.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from wintermute.changes.change_sets import Cause, Reason
from wintermute.changes.decisions import LINES, LIST, Decision
from wintermute.db import Transaction
from wintermute.errors import WintermuteError
from wintermute.stores import Stores

Executor = Callable[[Stores, Transaction, Decision, Reason], Awaitable[bool]]
"""Applies a decision and records it with the reason; returns False if it cannot be applied any more."""


@dataclass(frozen=True, slots=True)
class DecisionKind:
    """A kind of decision: its words for people, and the function that applies it.

    `one`, `many`: names of its result when counted. `asks`, `did`: words before the decision, as a question and after
    it was applied (default: `one`); `ends`: both, for a decision that removes something without a replacement;
    `joins`: both, for one that merges several. `executor`: None if the decision changes files, or was applied before
    it was stored. `counts_members`: reports count its parts. `is_named`: reports name a few such decisions.
    """

    name: str
    one: str
    many: str
    asks: str
    did: str = ""
    executor: Executor | None = None
    ends: tuple[str, str] | None = None
    joins: tuple[str, str] | None = None
    counts_members: bool = False
    is_named: bool = False

    def lead(self, item: Decision) -> tuple[str, str]:
        """Return the words before a decision, as a question and after it was done."""
        if self.ends and not item.after:
            return self.ends
        found = self.joins if len(item.before) > 1 else None
        return found or (self.asks, self.did or self.one)


Kinds = Sequence[DecisionKind]


class _DecidedMeanwhile(WintermuteError):
    """Raised if somebody has answered the decision meanwhile."""


class Executors:
    """All executors, by kind of decision; a decision without one puts files in place."""

    def __init__(self, stores: Stores, executors: Mapping[str, Executor]) -> None:
        self._stores = stores
        self._executors = executors

    async def apply(
        self, item: Decision, cause: Cause = "night", wanted: Decision | None = None
    ) -> bool:
        """Apply a decision, unless its subject changed meanwhile; return True if it was applied.

        After a person's yes it has a change set of its own. `wanted`: the decision as answered, if the answer
        changed it. Raises: WintermuteError.
        """
        if "files" in item.plan:
            return await self._apply_files(item, cause)
        stores, work = (
            self._stores,
            partial(self._apply_rows, item=item, cause=cause, wanted=wanted),
        )
        if item.kind == LIST:  # it is rewritten together with its file
            lines = item.plan["lines"]
            return await stores.memories.change(item.scope, work, lambda done: lines * done)
        if item.kind == LINES:
            await stores.memories.text(item.scope)  # with what was edited by hand
        async with stores.database.transaction() as tx:
            return await work(tx)

    async def _apply_rows(
        self, tx: Transaction, *, item: Decision, cause: Cause, wanted: Decision | None
    ) -> bool:
        decisions, changes = self._stores.decisions, self._stores.changes
        if await decisions.current(tx, item) is None:
            return False
        if wanted is not None and wanted != item:
            await decisions.turn(tx, wanted)
            item = wanted
        why = await self._why(tx, item, cause)
        set_id = why.into or await changes.record(tx, why, [])
        executor = self._executors.get(item.kind)
        if executor is None or not await executor(
            self._stores, tx, item, replace(why, into=set_id)
        ):
            if why.into is None:
                await changes.withdraw(tx, set_id)
            await decisions.move(tx, item, "outdated")
            return False
        return await decisions.move(tx, item, "done", set_id)

    async def _why(self, tx: Transaction, item: Decision, cause: Cause) -> Reason:
        """Return the reason, in the change set of its scope and night if there is one already."""
        why = Reason(cause, item.scope, evidence=item.evidence, decision=item.seq)
        if cause != "night":
            return replace(why, answers=item.id)
        into = await self._stores.decisions.set_of(tx, item.night, item.scope)
        return replace(why, summary=item.night, into=into)

    async def _apply_files(self, item: Decision, cause: Cause) -> bool:
        stores, changes = self._stores, item.file_changes()
        await stores.placing.finish()
        if await stores.decisions.is_done(item):  # applied before a crash
            return True
        async with stores.database.transaction() as tx:
            why = await self._why(tx, item, cause)

        async def decided(tx: Transaction, set_id: str) -> None:
            if await stores.decisions.current(tx, item) is None:
                raise _DecidedMeanwhile
            await stores.decisions.move(tx, item, item.state, set_id)

        try:
            await stores.placing.write(why, changes, decided)
        except _DecidedMeanwhile:
            return await stores.decisions.is_done(item)
        except WintermuteError:
            # Somebody else may have applied it, or crashed while doing so.
            if await stores.decisions.is_done(item):
                return True
            if not await stores.placing.are_edited(changes):
                raise
            async with stores.database.transaction() as tx:
                outdated = await stores.decisions.move(tx, item, "outdated")
            return not outdated and await stores.decisions.is_done(item)
        return True
