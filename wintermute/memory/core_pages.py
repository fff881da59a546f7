"""Changes of core.md: each with its way back, and none of a page that a person saved meanwhile."""

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from wintermute.changes.change_sets import Cause, Change, ChangeSets, Reason
from wintermute.changes.texts import TextItems, files_prepared, state_of, text_in
from wintermute.db import Database, Transaction
from wintermute.files import entered, to_its_end
from wintermute.memory.core import Places, bullets
from wintermute.memory.fact import key
from wintermute.messages import Json
from wintermute.secret_shapes import without_secrets

ALL_OF_THEM = -1


@dataclass(frozen=True, slots=True)
class CorePage:
    """A page as it was found. None: there is no file."""

    text: str | None
    content: bytes | None


@dataclass(frozen=True, slots=True)
class PageVersion:
    """What a page was until a change. `number`: 1 is the newest; `text` None: there was none."""

    number: int
    set_id: str
    until: datetime
    cause: Cause
    text: str | None


Also = Callable[[Transaction, str], Awaitable[None]]
"""What is stored together with a change, which has this id."""


def core_items(places: Places) -> TextItems:
    """Give the pages as items that can be undone; an item is the page of a scope, whatever its form."""
    prepared = partial(files_prepared, places.core_file)
    return TextItems(lambda item: places.core_file(item).found()[0], prepared)


class CorePages:
    """The pages of all people and rooms; an item of a change set is the page of a scope."""

    def __init__(self, places: Places, database: Database, changes: ChangeSets) -> None:
        self._places = places
        self._database = database
        self._changes = changes

    async def found(self, scope: str) -> CorePage:
        """The page as it is now. Raises: MemoryFileUnusable, also for one that has no good form."""
        page = await self.raw(scope)
        if page.content is not None:
            self._places.core_file(scope).decoded(page.content)
        return page

    async def raw(self, scope: str) -> CorePage:
        """The same, whatever its form."""
        return CorePage(*await asyncio.to_thread(self._places.core_file(scope).found))

    async def replace(
        self,
        why: Reason,
        text: str,
        seen: CorePage,
        free: Collection[str] | None = None,
        also: Also | None = None,
    ) -> str | None:
        """Give the page of a scope another text; the change set, or None where it changed meanwhile.

        `free`: the keys of the bullets that may go again; None: a person wrote it, so none may.
        Raises: MemoryFileUnusable.
        """
        if why.is_unasked:
            text = without_secrets(text, seen.text or "")
        change = Change("core", why.scope, state_of(seen.text), state_of(text), why.evidence)
        async with self._prepared(why.scope, change.after, seen) as place:
            async with self._database.transaction() as tx:
                set_id = await self._changes.record(tx, why, [change])
                await self._free(tx, why.scope, free or ())
                if also is not None:
                    await also(tx, set_id)
            if await to_its_end(place):
                return set_id
        async with self._database.transaction() as tx:
            await self._changes.withdraw(tx, set_id)
        return None

    async def complete(
        self, set_id: str, stands: Callable[[Sequence[str]], Awaitable[bool]]
    ) -> bool:
        """Put in place what is on record, if we were killed in between; False: it does not stand.

        `stands`: by its evidence, of which something may be forgotten. Raises: MemoryFileUnusable.
        """
        found = await self._changes.get(set_id)
        for change in found.changes if found else ():
            page = await self.found(change.item)
            if state_of(page.text) == change.before:
                async with self._prepared(change.item, change.after, page) as place:
                    if not await stands(change.evidence):
                        return False
                    await to_its_end(place)
        return True

    async def free(self, scope: str, text: str) -> set[str]:
        """The keys of the bullets that we wrote, from what nobody said in so many words."""
        query = "SELECT digest FROM unowned_bullets WHERE scope = ?"
        known = set(await self._database.scalars(query, (scope,)))
        keys = map(key, bullets(text))
        return {name for name in keys if _digest(name) in known}

    async def versions(self, scope: str) -> list[PageVersion]:
        """What the page was before each change of the last 30 days, newest first."""
        found = await self._changes.history(("core",), scope, ALL_OF_THEM)
        changes = [
            (one, change) for one in found for change in one.changes if change.kind == "core"
        ]
        return [
            PageVersion(
                n,
                one.id,
                one.created_at,
                one.cause,
                change.before["text"] if change.before else None,
            )
            for n, (one, change) in enumerate(changes, 1)
        ]

    async def updates(self, scope: str) -> list[Change]:
        """Give the pages that updates made, as far as they are on record."""
        found = await self._changes.history(("core",), scope, ALL_OF_THEM)
        sets = [each for each in found if each.cause == "reconstruction"]
        return [change for each in sets for change in each.changes if change.kind == "core"]

    def _prepared(
        self, scope: str, state: Json | None, page: CorePage
    ) -> AbstractAsyncContextManager[Callable[[], bool]]:
        return entered(self._places.core_file(scope).prepared(text_in(state), page.content))

    async def _free(self, tx: Transaction, scope: str, names: Collection[str]) -> None:
        await tx.execute("DELETE FROM unowned_bullets WHERE scope = ?", (scope,))
        await tx.execute(
            "INSERT INTO unowned_bullets (scope, digest) SELECT ?, value FROM json_each(?)",
            (scope, json.dumps(sorted(map(_digest, names)))),
        )


def _digest(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()
