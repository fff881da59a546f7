"""What a cast is told of what changes: which block comes next, and that it stays as it was.

A block is stored before the request that shows it first, so that a crash changes nothing of what a
server has read. The changes that a cast's own calls make are in their results: it is told only what
cannot be read yet, and the next message tells the rest.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace

from wintermute.conversation.state import CastState
from wintermute.conversation.view import all_told, bared, blocks, query
from wintermute.prompt.assemble import MEMORIES
from wintermute.prompt.block import Changing, Told, block, is_late, told
from wintermute.prompt.gather import Recall
from wintermute.stores import Stores


class Telling:
    """Makes the blocks of casts, and keeps them."""

    def __init__(self, stores: Stores, hidden: Collection[str] = ()) -> None:
        """`hidden`: gates whose results are not shown (L-055)."""
        self._hidden = hidden
        self._database = stores.database
        self._casts = stores.casts
        self._inbox = stores.inbox

    async def recall(
        self, running: CastState, window: int, in_view: tuple[str, ...] = ()
    ) -> Recall:
        """What memory is asked: what the person wrote, without what else the message tells.

        `in_view`: the memories that were told before.
        """
        cast = running.cast
        written = await self._inbox.bodies([cast.event_id]) if cast.event_id else [cast.intent]
        asked = query(cast, running.past.casts[:-1], "\n".join(written))
        return Recall(asked, cast.id, running.newest is not None, in_view, window)

    async def news(self, running: CastState, window: int, *, anew: bool) -> str:
        """What is to be told now at the end of what is in view; "": nothing.

        `window`: tokens of the model's. `anew`: what was told before is not in view any more, but
        for what this cast was told.
        """
        if running.cast.bare:
            return ""
        before = [] if anew and running.newest is None else [*blocks(running.past)]
        shown = told(all_told(running.past, self._hidden))
        asked = await self.recall(running, window, shown.get(MEMORIES, ()))
        prompt, scope = running.settings.prompt, running.caller.scope
        parts = await prompt.changing(scope, asked, running.size, anew=not any(before))
        if parts is None:
            return ""
        if not any(before):  # it begins, was folded, or what it was told was forgotten
            running.told("")  # what stands there says nothing of what is shown before it
            shown = told(all_told(running.past, self._hidden))
        if any(before) and any(
            (running.cast.context_block, *(each.context_block for each in running.cast.turns))
        ):
            return _more(running, parts, before, shown)
        return block(parts, told(before), shown=shown)

    async def strip(self, running: CastState) -> bool:
        """Show no more of what came between the last answer and the message; False: nothing did."""
        bare = replace(running.cast, bare=True)
        if running.newest is not None or bare in (running.cast, bared(bare)):
            return False
        async with self._database.transaction() as tx:
            await self._casts.strip(tx, bare.id)
        running.cast = bare
        return True

    async def store(self, running: CastState, text: str) -> str:
        """Store the block that stands at the end now; returns it as it is kept, without secrets."""
        turn = running.newest
        async with self._database.transaction(late=True) as tx:
            kept = await self._casts.tell(tx, running.cast.id, turn.id if turn else None, text)
        running.told(kept)
        return kept


def _more(running: CastState, parts: Changing, before: Sequence[str], shown: Told) -> str:
    """What cannot be read yet, behind what stands at the end already."""
    if not block(parts, shown, timed=False) and not is_late(parts, before):
        return ""
    last = running.newest.context_block if running.newest else running.cast.context_block
    new = block(parts, shown)
    return f"{last}\n\n{new}" if last else new
