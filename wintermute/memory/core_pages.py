"""Changes of core.md: each can be undone, and none overwrites a page that a person saved meanwhile."""

import asyncio
import hashlib
import json
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from wintermute.changes.change_sets import Cause, Change, ChangeSets, Reason
from wintermute.changes.placing import Also, Placing
from wintermute.changes.texts import TextItems, files_prepared, state_of
from wintermute.db import Database, Transaction
from wintermute.errors import MemoryFileUnusable
from wintermute.memory.core import Places, bullets
from wintermute.memory.fact import key
from wintermute.secret_shapes import without_secrets

ALL_OF_THEM = -1


@dataclass(frozen=True, slots=True)
class CorePage:
    """A page as it was read. None: there is no file."""

    text: str | None
    content: bytes | None


@dataclass(frozen=True, slots=True)
class PageVersion:
    """The page before a change. `number`: 1 is the newest; `text` None: there was no page."""

    number: int
    set_id: str
    until: datetime
    cause: Cause
    text: str | None


def core_items(places: Places) -> TextItems:
    """Return the pages as undoable items; an item is the page of a scope, whatever its form."""
    prepared = partial(files_prepared, places.core_file)
    return TextItems(lambda item: places.core_file(item).read_unchecked()[0], prepared)


class CorePages:
    """The pages of all people and rooms; an item of a change set is the page of a scope."""

    def __init__(
        self, places: Places, database: Database, changes: ChangeSets, placing: Placing
    ) -> None:
        self._places = places
        self._database = database
        self._changes = changes
        self._placing = placing

    async def found(self, scope: str) -> CorePage:
        """Read the page. Raises: MemoryFileUnusable, also for a page of a bad form."""
        page = await self.raw(scope)
        if page.content is not None:
            self._places.core_file(scope).decoded(page.content)
        return page

    async def raw(self, scope: str) -> CorePage:
        """Read the page, whatever its form."""
        return CorePage(*await asyncio.to_thread(self._places.core_file(scope).read_unchecked))

    async def replace(
        self,
        why: Reason,
        text: str,
        seen: CorePage,
        free: Collection[str] | None = None,
        also: Also | None = None,
    ) -> str | None:
        """Replace the page of a scope; return the change set, or None if the page changed meanwhile.

        `unowned`: the keys of the bullets that may go later; None: a person wrote it, so none may. Raises:
        MemoryFileUnusable.
        """
        if why.is_background:
            text = without_secrets(text, seen.text or "")
        change = Change("core", why.scope, state_of(seen.text), state_of(text), why.evidence)

        async def stored(tx: Transaction, set_id: str) -> None:
            await self._free(tx, why.scope, free or ())
            if also is not None:
                await also(tx, set_id)

        try:
            return await self._placing.write(why, [change], stored)
        except MemoryFileUnusable:
            if not await self._placing.are_edited([change]):
                raise
            return None

    async def unowned(self, scope: str, text: str) -> set[str]:
        """Return the keys of the bullets that a model wrote and nobody stated."""
        query = "SELECT digest FROM unowned_bullets WHERE scope = ?"
        known = set(await self._database.scalars(query, (scope,)))
        keys = map(key, bullets(text))
        return {name for name in keys if _digest(name) in known}

    async def versions(self, scope: str) -> list[PageVersion]:
        """Return the page before each change of the last 30 days, newest first."""
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
        """Return the changes that core updates made, as far as they are on record."""
        found = await self._changes.history(("core",), scope, ALL_OF_THEM)
        sets = [each for each in found if each.cause == "reconstruction"]
        return [change for each in sets for change in each.changes if change.kind == "core"]

    async def _free(self, tx: Transaction, scope: str, names: Collection[str]) -> None:
        await tx.execute("DELETE FROM unowned_bullets WHERE scope = ?", (scope,))
        await tx.execute(
            "INSERT INTO unowned_bullets (scope, digest) SELECT ?, value FROM json_each(?)",
            (scope, json.dumps(sorted(map(_digest, names)))),
        )


def _digest(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()
