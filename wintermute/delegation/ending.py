"""The end of a sub-session, with all that follows from it, in one transaction."""

import logging

from wintermute.db import Transaction
from wintermute.delegation.records import STOPPED, state_of
from wintermute.delegation.reports import report, with_spawned
from wintermute.delegation.store import SubSessions
from wintermute.mailbox.inbox import RESULT, Inbox
from wintermute.messages import Origin
from wintermute.prompt.events import event

log = logging.getLogger(__name__)


class Ending:
    """Closes sub-sessions: those that depend on them start or fail, and who asked is told once."""

    def __init__(self, store: SubSessions, inbox: Inbox) -> None:
        self._store = store
        self._inbox = inbox

    async def over(self, tx: Transaction, sub_id: str, reason: str, result: str) -> bool:
        """Its own work is over. It is closed when all that it spawned is over as well (L-067).

        As `close`, whether its room has something to be told.
        """
        await self._store.sweep(tx)
        if await self._store.has_open_below(tx, sub_id):
            await self._store.collect(tx, sub_id, reason, result)
            return False
        return await self.close(tx, sub_id, reason, result)

    async def close(self, tx: Transaction, sub_id: str, reason: str, result: str) -> bool:
        """All of it is over."""
        spawned = await self._store.spawned_by(tx, sub_id)
        if spawned and state_of(reason) != "ended":
            result = with_spawned(result, spawned)
        node = await self._store.close(tx, sub_id, reason, result)
        log.info("sub-session over id=%s state=%s reason=%s", node.id, node.state, node.reason)
        if node.state == "done":
            await self._store.release(tx, sub_id)
        else:
            await self._store.fail_dependents(tx, node)
        if node.parent is not None:
            return await self._gather(tx, node.parent)
        return not node.blocking and await self.tell(tx, node.workflow)

    async def _gather(self, tx: Transaction, parent_id: str) -> bool:
        """A parent whose own work is over is closed with the last that it spawned."""
        parent = await self._store.get(tx, parent_id)
        if parent.state == "collecting" and not await self._store.has_open_below(tx, parent_id):
            return await self.close(tx, parent_id, str(parent.reason), parent.result)
        return False

    async def out_of_time(self, tx: Transaction, sub_id: str) -> None:
        """Whoever called it waits no longer; what it spawned goes on, one level up (L-061)."""
        node = await self._store.get(tx, sub_id)
        if node.is_open:
            await self._store.close(tx, sub_id, "max_seconds", node.result)
            await self._store.lift(tx)

    async def tell(self, tx: Transaction, workflow: str) -> bool:
        """One event for all that is connected, when all of it is over.

        It has the id of the newest: there is another one only when there is more to tell.
        """
        if await self._store.workflow_is_open(tx, workflow):
            return False
        members = await self._store.of_workflow(tx, workflow)
        if not members or [each.reason for each in members] == [STOPPED]:
            return False
        newest = members[-1]
        cause = await self._inbox.find(tx, newest.root_event) if newest.root_event else None
        if cause is None:
            return False
        kind, text = report(members)
        body = event(kind, newest.id, text)
        # In the owner's own chat a session that nobody vouches for must not gain by this.
        origin: Origin = "other" if cause.origin == "other" else "system"
        event_id = f"{RESULT}{newest.room_turn}/{newest.id}"
        return await self._inbox.store_event(tx, cause, event_id, body, origin)
