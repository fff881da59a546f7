"""What an item of a night does: at once, or when a person has said yes to it, by the same code.

Whatever is there by then is looked at again: an item about something that is another now does nothing.
"""

from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Protocol

from wintermute.changes.change_sets import Cause, Change, ItemKind, Reason
from wintermute.changes.undo import FileItems, PutInPlace
from wintermute.db import Transaction
from wintermute.errors import WintermuteError
from wintermute.night.nights import NightItem, Nights
from wintermute.stores import Stores

ItemNames = Sequence[tuple[ItemKind, str]]


class Deed(Protocol):
    """What is done for an item, in the transaction in which it is done."""

    async def do(self, tx: Transaction, item: NightItem, why: Reason) -> ItemNames | None:
        """What it changed, and recorded by `why`; None: it cannot be done any more."""
        ...


class ListDeed(Protocol):
    """What takes transactions of its own, for it changes a file with two ways."""

    async def do_alone(self, item: NightItem, why: Reason) -> ItemNames | None:
        """As `Deed.do`; what is done twice is as if it was done once."""
        ...


@dataclass(frozen=True, slots=True)
class FileState:
    """One file of an item: what it was when that was thought of, and what it is to be."""

    kind: ItemKind
    item: str
    was: str | None
    text: str | None


def file_states(item: NightItem) -> list[FileState]:
    """Those that a plan of files names."""
    return [FileState(**each) for each in item.plan.get("files", ())]


class Deeds:
    """All of them, by the word `do` of a plan; what has none puts files in place."""

    def __init__(
        self,
        stores: Stores,
        nights: Nights,
        deeds: Mapping[str, Deed],
        lists: Mapping[str, ListDeed],
        files: Mapping[ItemKind, FileItems],
    ) -> None:
        self._stores = stores
        self._nights = nights
        self._deeds = deeds
        self._lists = lists
        self._files = files

    async def apply(self, item: NightItem, cause: Cause = "night") -> bool:
        """Do it, unless what it is about is another by now; whether it was done.

        What a person says yes to is theirs: it has a change set of its own. Raises: WintermuteError.
        """
        word = item.plan.get("do", "")
        if word in self._lists:
            return await self._listed(self._lists[word], item, cause)
        if "files" in item.plan:
            return await self._placed(item, cause)
        async with self._stores.database.transaction() as tx:
            if not await self._nights.stands(tx, item):
                return False
            deed = self._deeds.get(word)
            why, new = await self._why(tx, item, cause)
            names = await deed.do(tx, item, why) if deed else None
            return await self._over(tx, item, names, str(why.into), new=new)

    async def _why(self, tx: Transaction, item: NightItem, cause: Cause) -> tuple[Reason, bool]:
        """In the change set of its scope and night, which may be new."""
        why = Reason(cause, item.scope, evidence=item.evidence, summary=item.id)
        found = item.change_set  # a kill came between
        if cause == "night":
            why = Reason(cause, item.scope, evidence=item.evidence, summary=item.night)
            found = found or await self._nights.set_of(tx, item.night, item.scope)
        set_id = found or await self._stores.changes.record(tx, why, [])
        return Reason(cause, item.scope, None, item.evidence, why.summary, set_id), found is None

    async def _over(
        self, tx: Transaction, item: NightItem, names: ItemNames | None, set_id: str, *, new: bool
    ) -> bool:
        if names is None:
            if new:
                await self._stores.changes.withdraw(tx, set_id)
            await self._nights.move(tx, item, "outdated")
            return False
        return await self._nights.move(tx, item, "done", names, set_id)

    async def _put(self, item: NightItem, places: Sequence[PutInPlace]) -> None:
        """Where it cannot be put in place, it can be said yes to again."""
        try:
            for place in places:
                await place()
        except WintermuteError:
            async with self._stores.database.transaction() as tx:
                await self._nights.move(tx, replace(item, state="done"), item.state)
            raise

    async def _listed(self, deed: ListDeed, item: NightItem, cause: Cause) -> bool:
        async with self._stores.database.transaction() as tx:
            if not await self._nights.stands(tx, item):
                return False
            why, new = await self._why(tx, item, cause)
            await self._nights.move(tx, item, item.state, change_set=why.into)
        names = await deed.do_alone(item, why)
        async with self._stores.database.transaction() as tx:
            return await self._over(tx, item, names, str(why.into), new=new)

    async def _placed(self, item: NightItem, cause: Cause) -> bool:
        """Files: recorded first, then put in place; all of them, or none."""
        wanted = file_states(item)
        async with AsyncExitStack() as stack:
            async with self._stores.database.transaction() as tx:
                if not await self._nights.stands(tx, item):
                    return False
                why, new = await self._why(tx, item, cause)
                now = [await self._files[each.kind].state(each.item) for each in wanted]
                fits = all(
                    (state or {}).get("text") == each.was
                    for state, each in zip(now, wanted, strict=True)
                )
                if "proposal" in item.plan:
                    proposal = item.plan["proposal"]
                    decide = self._stores.proposals.decide
                    fits &= await decide(tx, proposal, "taken" if fits else "outdated")
                names = [(each.kind, each.item) for each in wanted] if fits else None
                if names is not None:
                    after = [None if w.text is None else {"text": w.text} for w in wanted]
                    changes = [
                        Change(each.kind, each.item, state, then, item.evidence)
                        for each, state, then in zip(wanted, now, after, strict=True)
                    ]
                    await self._stores.changes.record(tx, why, changes)
                    places = [
                        await stack.enter_async_context(
                            files.prepared([each for each in changes if each.kind == kind])
                        )
                        for kind, files in self._files.items()
                        if any(change.kind == kind for change in changes)
                    ]
                done = await self._over(tx, item, names, str(why.into), new=new)
            if done:
                await self._put(item, places)
        return done


def named(changes: Sequence[Change]) -> ItemNames:
    """What changes are about."""
    return [(change.kind, change.item) for change in changes]
