"""Changes of core.md: each with its way back, and none of a page that a person saved meanwhile.

The record of a change holds the text from before and is durable first, then the file is replaced:
whenever we are killed, no text is lost. A record without its effect is found out by comparing
texts, and passed over (`changes.undo.standing`).
"""

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from wintermute.changes.change_sets import Cause, Change, ChangeSets, Reason
from wintermute.changes.undo import PutInPlace
from wintermute.db import Database, Transaction
from wintermute.errors import MemoryFileUnusable
from wintermute.files import to_its_end
from wintermute.memory.core import Places, bullets
from wintermute.memory.fact import key
from wintermute.messages import Json
from wintermute.secret_shapes import without_secrets

SAVED = "{name} was saved meanwhile: try again"
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
        file = self._places.core_file(scope)
        content = await asyncio.to_thread(file.content)
        return CorePage(None if content is None else file.plain(content), content)

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
        change = Change("core", why.scope, _state(seen.text), _state(text), why.evidence)
        async with self._placing(why.scope, change.after, seen.content) as place:
            async with self._database.transaction() as tx:
                set_id = await self._changes.record(tx, why, [change])
                await self._free(tx, why.scope, free or ())
                if also is not None:
                    await also(tx, set_id)
            if await place():
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
            if _state(page.text) == change.before:
                async with self._placing(change.item, change.after, page.content) as place:
                    if not await stands(change.evidence):
                        return False
                    await place()
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

    async def state(self, item: str) -> Json | None:
        """What a change set holds of a page: its whole text, whatever its form."""
        return _state((await self.raw(item)).text)

    @asynccontextmanager
    async def prepared(self, changes: Sequence[Change]) -> AsyncIterator[PutInPlace]:
        """As `FileItems`. A full disk is noticed before the change is recorded, not after."""
        async with AsyncExitStack() as stack:
            places = []
            for change in changes:
                file = self._places.core_file(change.item)
                content = await asyncio.to_thread(file.content)
                if await self.state(change.item) != change.before:
                    raise MemoryFileUnusable(SAVED.format(name=file.name))
                placing = self._placing(change.item, change.after, content)
                places.append((file.name, await stack.enter_async_context(placing)))

            async def put() -> None:
                for name, place in places:
                    if not await place():
                        raise MemoryFileUnusable(SAVED.format(name=name))

            yield put

    @asynccontextmanager
    async def _placing(
        self, scope: str, state: Json | None, seen: bytes | None
    ) -> AsyncIterator[Callable[[], Awaitable[bool]]]:
        file = self._places.core_file(scope)
        if state is None:
            yield partial(to_its_end, partial(file.remove, seen))
            return
        part = file.part(state["text"], seen)
        try:
            await to_its_end(partial(file.prepare, state["text"], part))
            yield partial(to_its_end, partial(file.place, part, seen))
        finally:
            with suppress(OSError):
                part.unlink()

    async def _free(self, tx: Transaction, scope: str, names: Collection[str]) -> None:
        await tx.execute("DELETE FROM unowned_bullets WHERE scope = ?", (scope,))
        await tx.execute(
            "INSERT INTO unowned_bullets (scope, digest) SELECT ?, value FROM json_each(?)",
            (scope, json.dumps(sorted(map(_digest, names)))),
        )


def _state(text: str | None) -> Json | None:
    return None if text is None else {"text": text}


def _digest(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()
