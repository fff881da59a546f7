"""What a cast is told of what changes: which block comes next, and that it stays as it was.

A block is stored before the request that shows it first, so that a crash changes nothing of what a
server has read. The changes that a cast's own calls make are in their results: it is told only of
what others changed meanwhile, and the next message tells the rest.
"""

from wintermute.conversation.state import CastState
from wintermute.conversation.view import blocks, query
from wintermute.prompt.assemble import MEMORIES, SKILLS, TASKS
from wintermute.prompt.block import Changing, block, differing, is_late, told
from wintermute.stores import Stores

EVERYTHING = frozenset({MEMORIES, TASKS, SKILLS})


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
        goes_on = running.known is None
        self._compare(running, parts)
        cast, before = running.cast, [] if anew else [*blocks(running.past)]
        so_far = told(before)
        if anew or not any((cast.block, *(turn.block for turn in cast.turns))):
            return block(parts, so_far)  # else: it begins, or what it was told was forgotten
        if cast.turns[-1].block if cast.turns else not goes_on:
            return ""
        is_news = bool(block(parts, so_far, running.changed, timed=False))
        if not is_news and not is_late(parts, before):
            running.changed = frozenset()
            return ""
        told_already = "" if cast.turns else f"{cast.block}\n\n"  # by whom a crash interrupted
        return told_already + block(parts, so_far, running.changed)

    async def look(self, running: CastState) -> None:
        """Note what others have changed, before the cast's own calls change something."""
        if running.known is not None and (parts := await self._parts(running, anew=False)):
            self._compare(running, parts)
            running.acts = True

    def _compare(self, running: CastState, parts: Changing) -> None:
        if running.known is None:  # it goes on after a crash: nobody knows who changed what
            running.changed = EVERYTHING
        elif not running.acts:
            running.changed |= differing(running.known, parts)
        running.known, running.acts = parts, False

    async def keep(self, running: CastState, text: str) -> None:
        """Store the block that stands at the end now."""
        turns = running.cast.turns
        async with self._database.transaction() as tx:
            turn_id = turns[-1].id if turns else None
            running.told(await self._casts.tell(tx, running.cast.id, turn_id, text))
        running.changed = frozenset()

    async def _parts(self, running: CastState, *, anew: bool) -> Changing | None:
        past = running.past
        first = anew or not any(blocks(past))
        asked = query(running.cast, past.casts[:-1])
        prompt, scope = running.settings.prompt, running.caller.scope
        return await prompt.changing(scope, asked, running.size, anew=first)
