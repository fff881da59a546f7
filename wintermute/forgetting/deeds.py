"""What an item of a night does: at once, or when a person has said yes to it, by the same code.

Whatever is there by then is looked at again: an item about something that is another now does nothing.

    files:  recorded, and named by the item ─┬▶ put in place ─▶ done
                                             ╰▶ that fails: put back, not on record any more

What a kill finds in between is gone on with by `Deeds.finish` at the next start.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Literal, Protocol

from wintermute.changes.change_sets import Cause, Change, ItemKind, Reason
from wintermute.changes.nights import NightItem
from wintermute.changes.texts import state_of
from wintermute.changes.undo import FileItems, all_prepared
from wintermute.db import Transaction
from wintermute.errors import WintermuteError
from wintermute.files import LOCK_FILE, entered, locked, to_its_end
from wintermute.messages import Json
from wintermute.stores import Stores
from wintermute.wiki.folder import StoreFolder

ItemNames = Sequence[tuple[ItemKind, str]]
PLACING = "placing.lock"

log = logging.getLogger(__name__)


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


def file_changes(item: NightItem) -> list[Change]:
    """Those that a plan of files names; what is to go comes last, when the rest is in place."""
    found = [
        Change(f["kind"], f["item"], state_of(f["was"]), state_of(f["text"]), item.evidence)
        for f in item.plan.get("files", ())
    ]
    return sorted(found, key=lambda each: each.after is None)


class Deeds:
    """All of them, by the word `do` of a plan; what has none puts files in place."""

    def __init__(
        self,
        stores: Stores,
        deeds: Mapping[str, Deed],
        lists: Mapping[str, ListDeed],
        files: Mapping[ItemKind, FileItems],
    ) -> None:
        self._stores = stores
        self._deeds = deeds
        self._lists = lists
        self._files = files
        self._placing = asyncio.Lock()

    async def apply(
        self, item: NightItem, cause: Cause = "night", wanted: NightItem | None = None
    ) -> bool:
        """Do it, unless what it is about is another by now; whether it was done.

        What a person says yes to is theirs: it has a change set of its own. `wanted`: the item as they
        answered it, where that is not as it was asked. Raises: WintermuteError.
        """
        word = item.plan.get("do", "")
        if word in self._lists:
            return await self._listed(self._lists[word], item, cause)
        if "files" in item.plan:
            async with self._alone():
                return await self._placed(item, cause)
        async with self._stores.database.transaction() as tx:
            if await self._stores.nights.current(tx, item) is None:
                return False
            if wanted is not None and wanted != item:
                await self._stores.nights.turn(tx, wanted)
                item = wanted
            deed = self._deeds.get(word)
            why, new = await self._why(tx, item, cause)
            names = await deed.do(tx, item, why) if deed else None
            return await self._over(tx, item, names, str(why.into), new=new)

    async def _why(self, tx: Transaction, item: NightItem, cause: Cause) -> tuple[Reason, bool]:
        """In the change set of its scope and night, which may be new."""
        why = Reason(cause, item.scope, evidence=item.evidence, answers=item.id)
        found = item.change_set  # a kill came between
        if cause == "night":
            why = Reason(cause, item.scope, evidence=item.evidence, summary=item.night)
            found = found or await self._stores.nights.set_of(tx, item.night, item.scope)
        set_id = found or await self._stores.changes.record(tx, why, [])
        return replace(why, into=set_id), found is None

    async def _over(
        self, tx: Transaction, item: NightItem, names: ItemNames | None, set_id: str, *, new: bool
    ) -> bool:
        if names is None:
            if new:
                await self._stores.changes.withdraw(tx, set_id)
            await self._stores.nights.move(tx, item, "outdated")
            return False
        return await self._stores.nights.move(tx, item, "done", names, set_id)

    async def _listed(self, deed: ListDeed, item: NightItem, cause: Cause) -> bool:
        async with self._stores.database.transaction() as tx:
            if await self._stores.nights.current(tx, item) is None:
                return False
            why, new = await self._why(tx, item, cause)
            await self._stores.nights.move(tx, item, item.state, change_set=why.into)
        names = await deed.do_alone(item, why)
        async with self._stores.database.transaction() as tx:
            return await self._over(tx, item, names, str(why.into), new=new)

    async def finish(self) -> None:
        """Go on with what a kill left between its record and its files, or put it back."""
        async with self.finished():
            pass

    @asynccontextmanager
    async def finished(self) -> AsyncIterator[None]:
        """A block before which that is done, and in which nobody puts files of items in place."""
        async with self._alone():
            for item in await self._stores.nights.interrupted():
                try:
                    if item.state in ("planned", "open"):
                        await self._placed(item, "night")
                    else:  # it was answered otherwise, or nobody answered in time
                        await self._settle(item)
                        await self._put_back(item)
                except WintermuteError as problem:
                    log.warning("item is half in place id=%s reason=%s", item.id, problem)
            yield

    async def _placed(self, item: NightItem, cause: Cause) -> bool:
        """Files: recorded first, then put in place; all of them, or none. Within `_alone`."""
        await self._settle(item)
        recorded = await self._recorded(item, cause)
        if recorded is None:
            return False
        try:
            done = await self._put(recorded)
        except WintermuteError:
            await self._tried_to_put_back(recorded)
            raise
        if not done:
            recorded = await self._put_back(recorded)
        async with self._stores.database.transaction() as tx:
            if "proposal" in item.plan:
                verdict: Literal["taken", "outdated"] = "taken" if done else "outdated"
                await self._stores.proposals.decide(tx, item.plan["proposal"], verdict)
            return (
                await self._stores.nights.move(tx, recorded, "done" if done else "outdated")
                and done
            )

    @asynccontextmanager
    async def _alone(self) -> AsyncIterator[None]:
        """A block in which nobody else puts files of items in place."""
        lock = self._stores.data_dir / PLACING
        async with self._placing, entered(locked(lock, LOCK_FILE, patience=None)):
            yield

    async def _settle(self, item: NightItem) -> None:
        """What a kill left half in place of its pages is finished by whoever reads."""
        if any(each.kind == "page" for each in file_changes(item)):
            await to_its_end(partial(_read, self._stores.wiki.files))

    async def _recorded(self, item: NightItem, cause: Cause) -> NightItem | None:
        """The item with what it is about on record; None: that is another by now."""
        changes = file_changes(item)
        async with self._stores.database.transaction() as tx:
            known = await self._stores.nights.current(tx, item)
            if known is None or known.names:  # a kill came between
                return known
            why, new = await self._why(tx, item, cause)
            fits = [await self._now(each) for each in changes] == [c.before for c in changes]
            if "proposal" in item.plan:
                proposal, proposals = item.plan["proposal"], self._stores.proposals
                fits = fits and await proposals.is_open(tx, proposal)
                if not fits:
                    await proposals.decide(tx, proposal, "outdated")
            if not fits:
                await self._over(tx, item, None, str(why.into), new=new)
                return None
            await self._stores.changes.record(tx, why, changes)
            names = tuple(named(changes))
            await self._stores.nights.move(tx, item, item.state, names, why.into)
        return replace(item, names=names, change_set=why.into)

    async def _put(self, item: NightItem) -> bool:
        """Put in place what is not there yet; False: somebody changed it since it was recorded."""
        left = [each for each in file_changes(item) if await self._now(each) != each.after]
        if [await self._now(each) for each in left] != [each.before for each in left]:
            return False
        await self._place(left)
        return True

    async def _put_back(self, item: NightItem) -> NightItem:
        """Nothing of it is in place, or on record, any more."""
        changes = file_changes(item)[::-1]
        back = [replace(each, before=each.after, after=each.before) for each in changes]
        await self._place([each for each in back if await self._now(each) == each.before])
        async with self._stores.database.transaction() as tx:
            await self._stores.changes.revoke(tx, str(item.change_set), item.names)
            await self._stores.nights.unrecord(tx, item)
        return replace(item, names=(), change_set=None)

    async def _tried_to_put_back(self, item: NightItem) -> None:
        """Where that fails as well, the next start goes on with it."""
        try:
            await self._put_back(item)
        except WintermuteError as problem:
            log.warning("item is half in place id=%s reason=%s", item.id, problem)

    async def _place(self, changes: Sequence[Change]) -> None:
        async with AsyncExitStack() as stack:
            for place in await all_prepared(stack, self._files, changes):
                await place()

    async def _now(self, change: Change) -> Json | None:
        return await self._files[change.kind].state(change.item)


def _read(files: StoreFolder) -> None:
    with files.reading():
        pass


def named(changes: Sequence[Change]) -> ItemNames:
    """What changes are about."""
    return [(change.kind, change.item) for change in changes]
