"""What a cast is told of what changes: which block comes next, and that it stays as it was.

A block is stored before the request that shows it first, so that a crash changes nothing of what a
server has read. The changes that a cast's own calls make are in their results: it is told only of
what others changed meanwhile, and the next message tells the rest.
"""

from collections.abc import Mapping, Sequence

from wintermute.conversation.state import CastState
from wintermute.conversation.view import blocks, query
from wintermute.loom.records import Turn
from wintermute.prompt.assemble import MEMORIES, SKILLS, TASKS
from wintermute.prompt.block import Changing, block, differing, is_late, told, whole_block
from wintermute.stores import Stores

EVERYTHING = frozenset({MEMORIES, TASKS, SKILLS})
CHANGE: Mapping[str, frozenset[str]] = {
    "append_memory": frozenset({MEMORIES}),
    "task": frozenset({TASKS}),
    "add_skill": frozenset({SKILLS}),
    "write_file": frozenset({MEMORIES, SKILLS}),
}
"""What a call may change; its result tells it."""


class Telling:
    """Makes the blocks of casts, and keeps them."""

    def __init__(self, stores: Stores) -> None:
        self._database = stores.database
        self._casts = stores.casts

    async def news(self, running: CastState, *, anew: bool) -> str:
        """What is to be told now at the end of what is in view; "": nothing.

        `anew`: what was told before is not in view any more.
        """
        parts = await self._parts(running, anew=anew)
        if parts is None:
            return ""
        goes_on, cast = running.known is None, running.cast
        self._compare(running, parts)
        before = [] if anew else [*blocks(running.past)]
        if anew or not any((cast.block, *(turn.block for turn in cast.turns))):
            anew = anew or not any(before)  # else: it begins, or what it was told was forgotten
        elif running.past.fold is None or any(before):
            return self._more(running, parts, before, goes_on=goes_on)
        else:  # it was folded, and something came between
            anew = True
        if anew:
            return whole_block(parts, told(blocks(running.past, anew=False)))
        return block(parts, told(before))

    def _more(
        self, running: CastState, parts: Changing, before: Sequence[str], *, goes_on: bool
    ) -> str:
        """What changed since a cast was told something. `goes_on`: a crash interrupted it."""
        newest = running.newest
        if newest.block if newest else not goes_on:
            return ""
        so_far = told(before)
        is_news = bool(block(parts, so_far, running.changed, timed=False))
        if not is_news and not is_late(parts, before):
            running.changed = frozenset()
            return ""
        told_already = "" if newest else f"{running.cast.block}\n\n"
        return told_already + block(parts, so_far, running.changed)

    async def look(self, running: CastState, turn: Turn) -> None:
        """Note what others have changed, before the calls of a turn change something."""
        if running.known is not None and (parts := await self._parts(running, anew=False)):
            self._compare(running, parts)
            running.own = frozenset().union(*(CHANGE.get(call.name, ()) for call in turn.calls))

    def _compare(self, running: CastState, parts: Changing) -> None:
        if running.known is None:  # it goes on after a crash: nobody knows who changed what
            running.changed = EVERYTHING
        else:
            running.changed |= differing(running.known, parts) - running.own
        running.known, running.own = parts, frozenset()

    async def keep(self, running: CastState, text: str) -> None:
        """Store the block that stands at the end now."""
        turn = running.newest
        async with self._database.transaction() as tx:
            turn_id = turn.id if turn else None
            running.told(await self._casts.tell(tx, running.cast.id, turn_id, text))
        running.changed = frozenset()

    async def _parts(self, running: CastState, *, anew: bool) -> Changing | None:
        past = running.past
        first = anew or not any(blocks(past))
        asked = query(running.cast, past.casts[:-1])
        prompt, scope = running.settings.prompt, running.caller.scope
        return await prompt.changing(scope, asked, running.size, anew=first)
