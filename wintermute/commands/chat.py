"""The commands of a chat."""

from collections.abc import Awaitable, Callable

from wintermute.clock import Clock
from wintermute.db import Database, Transaction
from wintermute.health.report import gather
from wintermute.loom.conversations import Conversations
from wintermute.mailbox.inbox import Waiting

NAMES = {
    "/new": "start afresh: what was said so far is no longer in view",
    "/stop": "stop what I am doing in this room",
    "/status": "what works and what does not",
    "/help": "this list",
}


class ChatCommands:
    """Answers commands. `/stop` is not among them: it does not wait for its turn."""

    def __init__(
        self, database: Database, conversations: Conversations, clock: Clock, timezone: str
    ) -> None:
        self._database = database
        self._conversations = conversations
        self._clock = clock
        self._timezone = timezone
        self._answers: dict[str, Callable[[Transaction, Waiting], Awaitable[str]]] = {
            "/new": self._new,
            "/status": self._status,
            "/help": self._help,
        }

    async def answer(self, tx: Transaction, row: Waiting) -> str:
        """Do what the line asks, within the transaction that stores the answer."""
        known = self._answers.get(row.word)
        if known is None:
            return f"I do not know `{row.word[:40]}`. `/help` lists what I know."
        return await known(tx, row)

    async def _new(self, tx: Transaction, row: Waiting) -> str:
        await self._conversations.branch(tx, row.conversation_id, "new", row.received_at)
        return "A fresh start: I no longer look at what was said before."

    async def _status(self, _tx: Transaction, row: Waiting) -> str:
        facts = await gather(self._database, self._clock, self._timezone)
        if row.origin != "owner":  # details may name other people's rooms
            return "\n".join(f"- **{fact.name}**: {fact.state}" for fact in facts)
        return "\n".join(f"- **{fact.name}** ({fact.state}): {fact.text}" for fact in facts)

    async def _help(self, _tx: Transaction, _row: Waiting) -> str:
        return "\n".join(f"- `{name}`: {text}" for name, text in NAMES.items())
