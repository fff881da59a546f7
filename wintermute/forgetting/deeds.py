"""Deeds: what a decision does, at once or when a person has said yes to it, by the same code.

Whatever is there by then is looked at again: one about something that is another now does nothing.
Rows change in the transaction that records them; files are put in place by `changes.placing`.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Protocol

from wintermute.changes.change_sets import Cause, Reason
from wintermute.changes.decisions import LINES, Decision
from wintermute.db import Transaction
from wintermute.errors import WintermuteError
from wintermute.stores import Stores

LIST = "list"
"""A list of memories is rewritten together with its file."""


class Deed(Protocol):
    """What is done for a decision, in the transaction in which it is done."""

    async def do(self, tx: Transaction, item: Decision, why: Reason) -> bool:
        """Do it, and record it by `why`; False: it cannot be done any more."""
        ...


class _Over(WintermuteError):
    """Somebody decided it meanwhile."""


class Deeds:
    """All of them, by the word `do` of a plan; what has none puts files in place."""

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
        if item.plan.get("do") == LIST:
            lines = item.plan["lines"]
            return await stores.memories.change(item.scope, work, lambda done: lines * done)
        if item.plan.get("do") == LINES:
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
        deed = self._deeds.get(item.plan.get("do", ""))
        if deed is None or not await deed.do(tx, item, replace(why, into=set_id)):
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
            if not await stores.placing.are_edited(changes):
                raise
            async with stores.database.transaction() as tx:
                outdated = await stores.decisions.move(tx, item, "outdated")
            return not outdated and await stores.decisions.is_done(item)
        return True
