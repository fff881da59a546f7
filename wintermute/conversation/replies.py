"""What a message replies to, shown to the model as labelled context (F-026)."""

from dataclasses import dataclass

from wintermute.conversation.intent import DELETED, line
from wintermute.conversation.speaker import Speaker
from wintermute.db import Database, Transaction
from wintermute.loom.conversations import Conversations
from wintermute.mailbox.inbox import Inbox, Waiting
from wintermute.mailbox.outbox import ANYBODY, Outbox
from wintermute.messages import PERSON, Quote
from wintermute.text import shortened

MOST_CHARACTERS = 1000
US = "you"
UNREADABLE = "[it could not be read]"
PRIVATE = "[said to other people than those who are here now: not shown]"


@dataclass(frozen=True, slots=True)
class Record:
    """What we know ourselves of an earlier message; no quote: it could never be read.

    `scope`: whose it is, where it was said to fewer people than its room may have by now.
    """

    quote: Quote | None
    scope: str = ANYBODY


class Replies:
    """Finds the text that a message replies to: ours, or else the homeserver's."""

    def __init__(
        self,
        database: Database,
        inbox: Inbox,
        outbox: Outbox,
        conversations: Conversations,
        speaker: Speaker,
    ) -> None:
        self._database = database
        self._inbox = inbox
        self._outbox = outbox
        self._conversations = conversations
        self._speaker = speaker

    async def fetched(self, row: Waiting) -> Quote | None:
        """What is to be asked of the homeserver, outside of a transaction; None: nothing, or in vain."""
        if row.replies_to is None:
            return None
        async with self._database.transaction() as tx:
            record = await self._record(tx, row.room_id, row.replies_to)
        return await self._speaker.quote(row.room_id, row.replies_to) if record is None else None

    async def shown(self, tx: Transaction, row: Waiting, scope: str, fetched: Quote | None) -> str:
        """The block for the model; "" where nothing is replied to.

        Nothing that was said in private is shown to others, nor what the homeserver has from before
        the conversation got its present `scope`.
        """
        if row.replies_to is None:
            return ""
        record = await self._record(tx, row.room_id, row.replies_to) or Record(fetched)
        quote, since = record.quote, await self._conversations.scoped_since(tx, row.conversation_id)
        is_private = record.scope.startswith(PERSON) and record.scope != scope
        is_older = quote and quote.sent_at and since is not None and quote.sent_at < since
        return block(quote, withheld=is_private or bool(is_older))

    async def _record(self, tx: Transaction, room_id: str, event_id: str) -> Record | None:
        """What we know of an event; None: nothing by now, so that the homeserver is to be asked."""
        ours = await self._outbox.spoken(tx, room_id, event_id)
        if ours is not None:
            return Record(Quote("", "", ours.body), ours.meant_for)
        found = await self._inbox.newest_version(tx, event_id)
        if found is None or found.room_id != room_id or found.kind == "event" or is_let_go(found):
            return None
        refused = found.state == "ignored" and found.kind != "context" and found.body
        if refused or found.state in ("locked", "untrusted"):
            return Record(None)
        quote = Quote(found.sender, found.sender_name, found.body)
        return Record(quote, f"{PERSON}{found.sender}" if found.direct else ANYBODY)


def is_let_go(row: Waiting) -> bool:
    """Whether a row is kept for its id alone: it was nothing to us, or its text expired (F-030)."""
    return row.state == "ignored" and not row.body + row.sender_name


def block(quote: Quote | None, *, withheld: bool = False) -> str:
    """What is replied to, as the model sees it, under the name of who said it."""
    if quote is None or withheld:
        text = PRIVATE if withheld else UNREADABLE
    else:
        body = shortened(quote.body, MOST_CHARACTERS) if quote.body.strip() else DELETED
        text = line(quote.sender_name, quote.sender or US, body)
    return f"<replied_to>\n{text}\n</replied_to>"
