"""Rooms move: what was in an upgraded room goes on in the one that follows it (F-013, X-030).

We go there as anywhere, by the invitation of somebody allowed; what moves us is in `mailbox.rooms`.
What waits to be said follows by its sender, who alone knows what is on its way.

Goes where we are welcome and declines elsewhere, without holding up anything else (X-001).
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace

from wintermute.changes.change_sets import Reason
from wintermute.clock import Clock, until_set
from wintermute.db import Transaction
from wintermute.errors import HomeserverUnavailable, SendRefused
from wintermute.mailbox.notices import EVER
from wintermute.mailbox.rooms import Invitation, KnownRooms, Link, Move, Moves, moves_of, wanted
from wintermute.matrix.client import MatrixClient
from wintermute.matrix.inbox import Policy, is_heard, scope_of
from wintermute.matrix.sieve import RoomBatch, SyncBatch
from wintermute.stores import Stores

FIRST_WAIT = 0.5
LONGEST_WAIT = 60.0
log = logging.getLogger(__name__)
IN_CLEAR = (
    "This room replaces an encrypted one but is not encrypted itself, so I do not continue that"
    " conversation here. Please turn on encryption in this room's settings; then I do."
)
MERGED = "what was remembered in a room before it was known which one it follows"


class Invitations:
    """Answers stored invitations; a row stays until its room was seen, or it is declined."""

    def __init__(self, client: MatrixClient, known: KnownRooms, clock: Clock) -> None:
        self._client = client
        self._known = known
        self._clock = clock
        self._bell = asyncio.Event()
        self._waits: dict[str, tuple[float, float]] = {}  # of each room: seconds, and until when

    def wake(self) -> None:
        """There may be a new one."""
        self._bell.set()

    async def run(self) -> None:
        """Answer until cancelled. A room that cannot be reached now is tried again later."""
        while True:
            self._bell.clear()
            for invitation in await self._known.invitations():
                _, until = self._waits.get(invitation.room_id, (0.0, 0.0))
                if invitation.state == "pending" and self._clock.monotonic() >= until:
                    await self._answer(invitation)
            if waits := [until for _, until in self._waits.values()]:
                await until_set(self._bell, self._clock, min(waits) - self._clock.monotonic())
            else:
                await self._bell.wait()

    async def _answer(self, invitation: Invitation) -> None:
        room_id = invitation.room_id
        seconds, _ = self._waits.pop(room_id, (FIRST_WAIT, 0.0))
        try:
            if invitation.welcome:
                await self._client.join(room_id)
                await self._known.joined(invitation)
                log.info("joined room=%s inviter=%s", room_id, invitation.inviter)
            else:
                await self._client.leave(room_id)
                await self._known.declined(invitation)
        except SendRefused as error:  # withdrawn, or the room is gone
            log.warning("invitation void room=%s reason=%s", room_id, error.code)
            await self._known.declined(invitation)
        except HomeserverUnavailable as error:
            seconds = error.retry_after or min(seconds * 2, LONGEST_WAIT)
            self._waits[room_id] = (seconds, self._clock.monotonic() + seconds)
            log.warning("invitation waits room=%s seconds=%s reason=%s", room_id, seconds, error)


class RoomMoves:
    """Takes what lives in a room along to the room that follows it."""

    def __init__(self, stores: Stores, client: MatrixClient, policy: Policy) -> None:
        self._stores = stores
        self._client = client
        self._policy = policy

    async def follow(self, batch: SyncBatch) -> set[str]:
        """Before anything else of a sync is stored: the conversations that live elsewhere now.

        Each move is one transaction; what a crash leaves undone, the next sync finds again.
        """
        links = await self._noted(batch.joined)
        woken: set[str] = set()
        done: list[Move] = []
        for move in wanted(links):
            if await self._may(move, batch):
                woken |= await self._move(move, moves_of(links))
                links = await self._stores.known.links()
                done.append(move)
        self._client.follow(moves_of(links))
        if done:  # what was refused between a move and its sender's knowing of it
            async with self._stores.database.transaction() as tx:
                for move in done:
                    await self._stores.outbox.release(tx, move.old)
        return woken

    async def _noted(self, rooms: Sequence[RoomBatch]) -> list[Link]:
        """What rooms say of themselves is kept; all that is known of such rooms."""
        known = self._stores.known
        links = await known.links()
        said = [room for room in rooms if _is_news(room, links)]
        if not said:
            return links
        async with self._stores.database.transaction() as tx:
            for room in said:
                await known.seen(tx, room.room_id, room.encryption)
                if room.successor is not None:
                    await known.replaced(tx, room.room_id, room.successor)
                if room.predecessor is not None:
                    await known.follows(tx, room.room_id, room.predecessor)
        return await known.links()

    async def _may(self, move: Move, batch: SyncBatch) -> bool:
        """Whether somebody listened to is there, and nothing encrypted would be said in clear."""
        view = self._client.room(move.new)
        if not is_heard(view, self._policy):
            return False
        encrypted = await self._stores.known.encrypted()
        if move.old not in encrypted or view.encrypted or move.new in encrypted:
            return True
        if any(move.new == room.room_id for room in batch.joined):
            log.warning("room held room=%s follows=%s reason=not encrypted", move.new, move.old)
            scope = scope_of(view, self._client.account, self._policy)
            async with self._stores.database.transaction() as tx:
                # Who is in it can change that; and it says nothing of what is held.
                there = await self._stores.conversations.in_room(tx, move.new, scope)
                key = f"follows in clear {move.new}"
                await self._stores.notices.notice_once(tx, key, EVER, there, IN_CLEAR)
        return False

    async def _move(self, move: Move, moves: Moves) -> set[str]:
        """All that lives in the old room lives in the new one; what wants to go on there."""
        name, was = moves.scope(move.old), moves.scope(move.new)
        await self._stores.memories.text(was)  # with what was edited by hand until now
        async with self._stores.database.transaction() as tx:
            await self._stores.known.moved(tx, move, name)
            woken = await self._moved(tx, move, name, was)
        log.info("room moved from=%s to=%s scope=%s", move.old, move.new, name)
        for scope in (was, name):
            await self._stores.memories.text(scope)
        return woken

    async def _moved(self, tx: Transaction, move: Move, name: str, was: str) -> set[str]:
        stores = self._stores
        there = await stores.conversations.of_room(tx, move.new)
        over = await stores.conversations.move(tx, *move)
        await stores.conversations.rename(tx, was, name)
        await stores.tasks.rename(tx, was, name)
        await stores.outbox.rename(tx, was, name)
        await stores.facts.rename(tx, Reason("import", name, summary=MERGED), was)
        view = replace(self._client.room(move.new), named=name)
        scope = scope_of(view, self._client.account, self._policy)
        for room_id in move:  # a talk that gave way may have something to answer yet
            await stores.conversations.rescope(tx, room_id, scope)
        home = await stores.conversations.of_room(tx, move.new)
        for each in [*over, *((there.id,) if there else ())]:
            await stores.tasks.made_in(tx, each, home.id if home else each)
        await stores.outbox.release(tx, move.old)
        await stores.occurrences.release(tx)
        return {*over, *(each.id for each in (home, there) if each)}


def _is_news(room: RoomBatch, links: Sequence[Link]) -> bool:
    """Whether a room says something of itself that is not known of it."""
    known = next((link for link in links if link.room_id == room.room_id), Link("", False, False))
    follows = room.predecessor not in (None, known.predecessor)
    return follows or room.successor not in (None, known.successor)
