"""A conversation opens with a seed: once in each branch, before the first message in it."""

from wintermute.db import Transaction
from wintermute.loom.casts import Casts
from wintermute.mailbox.inbox import SEED, Inbox, Waiting
from wintermute.prompt.events import event
from wintermute.templates import Template


class Seeding:
    """Puts the seed of a branch into the inbox; its id is the branch's, so there is only one."""

    def __init__(self, seed: Template | None, inbox: Inbox, casts: Casts) -> None:
        """`seed` None: nothing is sown."""
        self._seed = seed
        self._inbox = inbox
        self._casts = casts

    async def sow(self, tx: Transaction, cause: Waiting, branch_id: str) -> bool:
        """Store the seed of a branch in which nobody spoke yet; False when there is nothing to sow.

        `cause` is the message or command that opens the branch (P-055, P-056, P-060).
        """
        if self._seed is None or await self._casts.addressed(tx, branch_id):
            return False
        seed_id = f"{SEED}{branch_id}"
        body = event("conversation_seed", seed_id, self._seed.text())
        return await self._inbox.store_event(tx, cause, seed_id, body)
