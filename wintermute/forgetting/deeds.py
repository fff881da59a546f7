"""Deeds: what a decision does, at once or when a person has said yes to it, by the same code.

Whatever is there by then is looked at again: one about something that is another now does nothing.
Rows change in the transaction that records them; files are put in place by `changes.placing`.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from wintermute.changes.change_sets import Cause, Reason
from wintermute.changes.decisions import LINES, LIST, Decision
from wintermute.db import Transaction
from wintermute.errors import WintermuteError
from wintermute.stores import Stores

Deed = Callable[[Stores, Transaction, Decision, Reason], Awaitable[bool]]
"""Function that does a decision, and records it by the reason; False: it cannot be done any more."""


@dataclass(frozen=True, slots=True)
class DecisionKind:
    """Kind of a decision, with its words for people, and what is done for it.

    `one`, `many`: what it did, as it is counted. `asks`, `did`: what stands before it, as a question and
    once it was done (as `one`, unless it says so); `ends`: both where nothing takes its place; `joins`:
    where it is about several. `deed`: None where files are put in place, or all is done already.
    `counts_members`: what it was made of is counted. `is_named`: few are called by their names.
    """

    name: str
    one: str
    many: str
    asks: str
    did: str = ""
    deed: Deed | None = None
    ends: tuple[str, str] | None = None
    joins: tuple[str, str] | None = None
    counts_members: bool = False
    is_named: bool = False

    def lead(self, item: Decision) -> tuple[str, str]:
        """Give what stands before this one, as a question and once it was done."""
        if self.ends and not item.after:
            return self.ends
        found = self.joins if len(item.before) > 1 else None
        return found or (self.asks, self.did or self.one)


Kinds = Sequence[DecisionKind]


class _Over(WintermuteError):
    """Somebody decided it meanwhile."""


class Deeds:
    """All of them, by the kind of a decision; what has none puts files in place."""

    def __init__(self, stores: Stores, deeds: Mapping[str, Deed]) -> None:
        self._stores = stores
        self._deeds = deeds

    async def apply(
        self, item: Decision, cause: Cause = "night", wanted: Decision | None = None
    ) -> bool:
        """Do it, unless what it is about is another by now; True: it was done.

        What a person says yes to is theirs: it has a change set of its own. `wanted`: the item as they
        answered it, where that is not as it was asked. Raises: WintermuteError.
        """
        if "files" in item.plan:
            return await self._placed(item, cause)
        stores, work = self._stores, partial(self._done, item=item, cause=cause, wanted=wanted)
        if item.kind == LIST:  # it is rewritten together with its file
            lines = item.plan["lines"]
            return await stores.memories.change(item.scope, work, lambda done: lines * done)
        if item.kind == LINES:
            await stores.memories.text(item.scope)  # with what was edited by hand
        async with stores.database.transaction() as tx:
            return await work(tx)

    async def _done(
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
        deed = self._deeds.get(item.kind)
        if deed is None or not await deed(self._stores, tx, item, replace(why, into=set_id)):
            if why.into is None:
                await changes.withdraw(tx, set_id)
            await decisions.move(tx, item, "outdated")
            return False
        return await decisions.move(tx, item, "done", set_id)

    async def _why(self, tx: Transaction, item: Decision, cause: Cause) -> Reason:
        """In the change set of its scope and night, once there is one."""
        why = Reason(cause, item.scope, evidence=item.evidence, decision=item.seq)
        if cause != "night":
            return replace(why, answers=item.id)
        into = await self._stores.decisions.set_of(tx, item.night, item.scope)
        return replace(why, summary=item.night, into=into)

    async def _placed(self, item: Decision, cause: Cause) -> bool:
        stores, changes = self._stores, item.file_changes()
        await stores.placing.finish()
        if await stores.decisions.is_done(item):  # a kill had come between
            return True
        async with stores.database.transaction() as tx:
            why = await self._why(tx, item, cause)

        async def decided(tx: Transaction, set_id: str) -> None:
            if await stores.decisions.current(tx, item) is None:
                raise _Over
            await stores.decisions.move(tx, item, item.state, set_id)

        try:
            await stores.placing.write(why, changes, decided)
        except _Over:
            return await stores.decisions.is_done(item)
        except WintermuteError:
            if await stores.decisions.is_done(item):  # somebody else said yes, or was killed at it
                return True
            if not await stores.placing.are_edited(changes):
                raise
            async with stores.database.transaction() as tx:
                outdated = await stores.decisions.move(tx, item, "outdated")
            return not outdated and await stores.decisions.is_done(item)
        return True
