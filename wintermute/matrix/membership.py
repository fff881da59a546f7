"""Invitations, and rooms that replace others: the conversation goes on in the new room (F-013, X-030).

We join a new room only by the invitation of an allowed user (X-001); other invitations are
declined. The condition for a move is in `mailbox.rooms`. The sender moves unsent messages: only it
knows what is being sent.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace

from wintermute.changes.change_sets import Reason
from wintermute.clock import Clock, wait_for_event
from wintermute.db import Transaction
from wintermute.errors import HomeserverUnavailable, SendRefused
from wintermute.mailbox.notices import EVER
from wintermute.mailbox.rooms import (
    Invitation,
    KnownRooms,
    Link,
    Move,
    Moves,
    compute_moves,
    pending_moves,
)
from wintermute.matrix.client import MatrixClient
from wintermute.matrix.inbox import Policy, is_heard, scope_of
from wintermute.matrix.sync_response import RoomBatch, SyncBatch
from wintermute.stores import Stores

FIRST_WAIT = 0.5
LONGEST_WAIT = 60.0
log = logging.getLogger(__name__)
IN_CLEAR = (
    "This room replaces an encrypted one but is not encrypted itself, so I do not continue that"
    " conversation here. Please turn on encryption in this room's settings; then I do."
)
MERGED = "memories of the new room, merged with those of the room that it replaces"


class Invitations:
    """Answers stored invitations; a row stays until its room was synced, or it is declined."""

    def __init__(self, client: MatrixClient, known: KnownRooms, clock: Clock) -> None:
        self._client = client
        self._known = known
        self._clock = clock
        self._wakeup = asyncio.Event()
        self._waits: dict[str, tuple[float, float]] = {}  # seconds and end, by room

    def wake(self) -> None:
        """Look for new invitations."""
        self._wakeup.set()

    async def run(self) -> None:
        """Answer invitations until cancelled. A room that cannot be reached is tried again later."""
        while True:
            self._wakeup.clear()
            for invitation in await self._known.invitations():
                _, until = self._waits.get(invitation.room_id, (0.0, 0.0))
                if invitation.state == "pending" and self._clock.monotonic() >= until:
                    await self._answer(invitation)
            if waits := [until for _, until in self._waits.values()]:
                await wait_for_event(
                    self._wakeup, self._clock, min(waits) - self._clock.monotonic()
                )
            else:
                await self._wakeup.wait()

    async def _answer(self, invitation: Invitation) -> None:
        room_id = invitation.room_id
        seconds, _ = self._waits.pop(room_id, (FIRST_WAIT, 0.0))
        try:
            if invitation.welcome:
                await self._client.join(room_id)
                await self._known.mark_accepted(invitation)
                log.info("joined room=%s inviter=%s", room_id, invitation.inviter)
            else:
                await self._client.leave(room_id)
                await self._known.delete_declined(invitation)
        except SendRefused as error:  # withdrawn, or the room is gone
            log.warning("invitation void room=%s reason=%s", room_id, error.code)
            await self._known.delete_declined(invitation)
        except HomeserverUnavailable as error:
            seconds = error.retry_after or min(seconds * 2, LONGEST_WAIT)
            self._waits[room_id] = (seconds, self._clock.monotonic() + seconds)
            log.warning("invitation waits room=%s seconds=%s reason=%s", room_id, seconds, error)


class RoomMoves:
    """Moves conversations to the rooms that replace theirs."""

    def __init__(self, stores: Stores, client: MatrixClient, policy: Policy) -> None:
        self._stores = stores
        self._client = client
        self._policy = policy

    async def follow(self, batch: SyncBatch) -> set[str]:
        """Make all pending moves before the sync is stored. Returns the moved conversations.

        Each move is one transaction; after a crash the next sync makes the missing ones.
        """
        links = await self._store_links(batch.joined)
        woken: set[str] = set()
        done: list[Move] = []
        for move in pending_moves(links):
            if await self._is_allowed(move, batch):
                woken |= await self._move(move, compute_moves(links))
                links = await self._stores.known.links()
                done.append(move)
        self._client.follow(compute_moves(links))
        if done:  # messages refused before the sender knew of the move
            async with self._stores.database.transaction() as tx:
                for move in done:
                    await self._stores.outbox.release(tx, move.old)
        return woken

    async def _store_links(self, rooms: Sequence[RoomBatch]) -> list[Link]:
        """Store what rooms say about successor and predecessor; return all known links."""
        known = self._stores.known
        links = await known.links()
        said = [room for room in rooms if _names_unknown_room(room, links)]
        if not said:
            return links
        async with self._stores.database.transaction() as tx:
            for room in said:
                await known.store_room(tx, room.room_id, room.encryption)
                if room.successor is not None:
                    await known.set_successor(tx, room.room_id, room.successor)
                if room.predecessor is not None:
                    await known.set_predecessor(tx, room.room_id, room.predecessor)
        return await known.links()

    async def _is_allowed(self, move: Move, batch: SyncBatch) -> bool:
        """Check that an allowed user is in the new room, and that it is encrypted if the old one was."""
        view = self._client.room(move.new)
        if not is_heard(view, self._policy):
            return False
        encrypted = await self._stores.known.encrypted()
        if move.old not in encrypted or view.encrypted or move.new in encrypted:
            return True
        if any(move.new == room.room_id for room in batch.joined):
            log.warning(
                "room move refused room=%s follows=%s reason=not encrypted", move.new, move.old
            )
            scope = scope_of(view, self._client.account, self._policy)
            async with self._stores.database.transaction() as tx:
                # Its members can turn on encryption; the notice contains nothing of the old room.
                there = await self._stores.conversations.in_room(tx, move.new, scope)
                key = f"follows in clear {move.new}"
                await self._stores.notices.notice_once(tx, key, EVER, there, IN_CLEAR)
        return False

    async def _move(self, move: Move, moves: Moves) -> set[str]:
        """Move a room's conversations and scope. Returns the conversations to wake."""
        name, was = moves.scope(move.old), moves.scope(move.new)
        await self._stores.memories.text(was)  # reads changes that were made by hand
        async with self._stores.database.transaction() as tx:
            await self._stores.known.store_move(tx, move, name)
            woken = await self._move_rows(tx, move, name, was)
        log.info("room moved from=%s to=%s scope=%s", move.old, move.new, name)
        for scope in (was, name):
            await self._stores.memories.text(scope)
        return woken

    async def _move_rows(self, tx: Transaction, move: Move, name: str, was: str) -> set[str]:
        stores = self._stores
        there = await stores.conversations.of_room(tx, move.new)
        over = await stores.conversations.move(tx, *move)
        await stores.conversations.rename(tx, was, name)
        await stores.tasks.rename(tx, was, name)
        await stores.outbox.rename(tx, was, name)
        await stores.facts.rename(tx, Reason("import", name, summary=MERGED), was)
        view = replace(self._client.room(move.new), named=name)
        scope = scope_of(view, self._client.account, self._policy)
        for room_id in move:  # the old conversation may have unanswered messages
            await stores.conversations.rescope(tx, room_id, scope)
        target = await stores.conversations.of_room(tx, move.new)
        for each in [*over, *((there.id,) if there else ())]:
            await stores.tasks.move_conversation(tx, each, target.id if target else each)
        await stores.outbox.release(tx, move.old)
        await stores.occurrences.release(tx)
        return {*over, *(each.id for each in (target, there) if each)}


def _names_unknown_room(room: RoomBatch, links: Sequence[Link]) -> bool:
    """Check if a room names a successor or predecessor that is not stored yet."""
    known = next((link for link in links if link.room_id == room.room_id), Link("", False, False))
    follows = room.predecessor not in (None, known.predecessor)
    return follows or room.successor not in (None, known.successor)
