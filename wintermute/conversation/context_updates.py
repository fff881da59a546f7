"""Context updates: a block with the memories, tasks and pages that changed, sent with a message.

A block is stored before the first request that shows it, and never changes, so that a server's
prompt cache stays valid after a crash. A cast sees the changes of its own calls in their results:
its block has only the changes that it cannot read yet, and the next message brings the rest.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace

from wintermute.conversation.state import CastState
from wintermute.conversation.view import blocks, known_changes, query, without_extras
from wintermute.prompt.assemble import MEMORIES
from wintermute.prompt.context_block import ChangingParts, KnownLines, is_late, lines_in, next_block
from wintermute.prompt.context_builder import MemoryQuery
from wintermute.stores import Stores


class ContextUpdates:
    """Builds and stores the context blocks of casts."""

    def __init__(self, stores: Stores, hidden: Collection[str] = ()) -> None:
        """Take the stores. `hidden`: gates whose results are not shown (L-055)."""
        self._hidden = hidden
        self._database = stores.database
        self._casts = stores.casts
        self._inbox = stores.inbox

    async def recall(
        self, running: CastState, window: int, in_view: tuple[str, ...] = ()
    ) -> MemoryQuery:
        """Build the memory query from the person's own words, without the rest of the message.

        `in_view`: the memories that are in view already.
        """
        cast = running.cast
        written = await self._inbox.bodies([cast.event_id]) if cast.event_id else [cast.intent]
        memory_query = query(cast, running.past.casts[:-1], "\n".join(written))
        return MemoryQuery(memory_query, cast.id, running.newest is not None, in_view, window)

    async def news(self, running: CastState, window: int, *, anew: bool) -> str:
        """Return the block for the end of the view; "" if nothing changed.

        `window`: tokens of the model's window. `anew`: earlier blocks are out of view, except those
        of this cast.
        """
        if running.cast.bare:
            return ""
        before = [] if anew and running.newest is None else [*blocks(running.past)]
        shown = lines_in(known_changes(running.past, self._hidden))
        memory_query = await self.recall(running, window, shown.get(MEMORIES, ()))
        prompt, scope = running.settings.prompt, running.caller.scope
        parts = await prompt.changing_parts(scope, memory_query, running.size, anew=not any(before))
        if parts is None:
            return ""
        if not any(before):  # a new branch, a fold, or its blocks were forgotten
            running.set_block("")  # an older block of this cast would be repeated
            shown = lines_in(known_changes(running.past, self._hidden))
        if any(before) and any(
            (running.cast.context_block, *(each.context_block for each in running.cast.turns))
        ):
            return _appended(running, parts, before, shown)
        return next_block(parts, lines_in(before), shown=shown)

    async def strip(self, running: CastState) -> bool:
        """Hide the parts between the last answer and the message; False if there are none."""
        bare = replace(running.cast, bare=True)
        if running.newest is not None or bare in (running.cast, without_extras(bare)):
            return False
        async with self._database.transaction() as tx:
            await self._casts.strip(tx, bare.id)
        running.cast = bare
        return True

    async def store(self, running: CastState, text: str) -> str:
        """Store the block at the end of the view; return it as stored, without secrets."""
        turn = running.newest
        async with self._database.transaction(late=True) as tx:
            kept = await self._casts.set_block(tx, running.cast.id, turn.id if turn else None, text)
        running.set_block(kept)
        return kept


def _appended(
    running: CastState, parts: ChangingParts, before: Sequence[str], shown: KnownLines
) -> str:
    """Append the changes that are not in view yet to the block at the end."""
    if not next_block(parts, shown, timed=False) and not is_late(parts, before):
        return ""
    last = running.newest.context_block if running.newest else running.cast.context_block
    new = next_block(parts, shown)
    return f"{last}\n\n{new}" if last else new
