"""The end of a sub-session, with all that follows from it, in one transaction."""

import logging

from wintermute.db import Transaction
from wintermute.delegation.records import STOPPED, SubSession, state_of
from wintermute.delegation.reports import report, with_spawned
from wintermute.delegation.store import SubSessions
from wintermute.mailbox.inbox import RESULT, Inbox
from wintermute.prompt.events import event

log = logging.getLogger(__name__)


class Ending:
    """Closes sub-sessions: those that depend on them start or fail, and who asked is told once."""

    def __init__(self, store: SubSessions, inbox: Inbox) -> None:
        self._store = store
        self._inbox = inbox

    async def over(self, tx: Transaction, sub_id: str, reason: str, result: str) -> None:
        """Its own work is over. It is closed when all that it spawned is over as well (L-067)."""
        await self._store.sweep(tx)
        if await self._store.has_open_below(tx, sub_id):
            await self._store.collect(tx, sub_id, reason, result)
        else:
            await self.close(tx, sub_id, reason, result)

    async def close(self, tx: Transaction, sub_id: str, reason: str, result: str) -> None:
        """All of it is over."""
        spawned = await self._store.spawned_by(tx, sub_id)
        if spawned and state_of(reason) != "ended":
            result = with_spawned(result, spawned)
        await self._store.close(tx, sub_id, reason, result)
        node = await self._store.get(tx, sub_id)
        log.info("sub-session over id=%s state=%s reason=%s", node.id, node.state, node.reason)
        if node.state == "done":
            await self._store.release(tx, sub_id)
        else:
            await self._store.fail_dependents(tx, node)
        if node.parent is not None:
            await self._gather(tx, node.parent)
        elif not node.blocking and not await self._store.workflow_is_open(tx, node.workflow):
            await self._tell(tx, node)

    async def _gather(self, tx: Transaction, parent_id: str) -> None:
        """A parent whose own work is over is closed with the last that it spawned."""
        parent = await self._store.get(tx, parent_id)
        if parent.state == "collecting" and not await self._store.has_open_below(tx, parent_id):
            await self.close(tx, parent_id, str(parent.reason), parent.result)

    async def _tell(self, tx: Transaction, last: SubSession) -> None:
        """One event for all that is connected; `last` is what it waited for."""
        members = await self._store.of_workflow(tx, last.workflow)
        cause = await self._inbox.find(tx, last.root_event) if last.root_event else None
        if cause is None or [each.reason for each in members] == [STOPPED]:
            return
        kind, text = report(members)
        body = event(kind, last.id, text)
        await self._inbox.store_event(tx, cause, f"{RESULT}{last.room_turn}/{last.id}", body)
