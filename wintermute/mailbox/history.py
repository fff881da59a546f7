"""Conversations as the web door shows them to their owner: messages in pages, newest first."""

import re
from dataclasses import dataclass
from datetime import datetime
from heapq import merge
from itertools import islice
from typing import NamedTuple

from wintermute.db import Database
from wintermute.db.values import reader
from wintermute.mailbox.inbox import LAST
from wintermute.owner import Owner

KEY = re.compile(r"([0-9]{1,19})-([0-9]{1,19})")
SAID_TO_US = (
    "SELECT * FROM (SELECT seq, event_id AS id, 0 AS ours, received_at AS at, NULL AS answers,"
    " NULL AS cast_id, coalesce((SELECT n.text FROM edits n WHERE n.edited = i.event_id"
    "  AND n.text <> '' ORDER BY n.seq DESC LIMIT 1), (SELECT e.body FROM inbox e"
    "  WHERE e.edits = i.event_id AND e.body <> '' ORDER BY e.seq DESC LIMIT 1), body) AS body"
    " FROM inbox i WHERE conversation_id = :conversation AND seq < :before AND direct"
    " AND sender = :owner AND kind IN ('message', 'command') AND edits IS NULL AND body <> '' AND state IN"
    " ('waiting', 'casting', 'answered')) ORDER BY seq DESC LIMIT :most"
)
SAID_BY_US = (  # the current text: without messages that were removed or whose wait is over
    "SELECT * FROM (SELECT seq, id, 1 AS ours, created_at AS at, answers, cast_id, coalesce((SELECT"
    " c.body FROM outbox_parts p JOIN outbox c ON c.changes = p.event_id WHERE p.outbox_id = o.id"
    "  ORDER BY c.seq DESC LIMIT 1), body || iif(coalesce(sent_at, '') > coalesce(late_after, '~'),"
    "  late_note, '')) AS body FROM outbox o"
    " WHERE conversation_id = :conversation AND seq < :before AND kind IN ('reply', 'notice')"
    " AND reacts_to IS NULL AND changes IS NULL AND body <> '' AND state <> 'stuck'"
    " AND (meant_for = :scope OR meant_for = '' AND created_at >= coalesce((SELECT b.created_at"
    "  FROM branches b WHERE b.conversation_id = :conversation AND b.seq > (SELECT max(x.seq)"
    "   FROM branches x WHERE x.conversation_id = :conversation AND x.scope NOT IN ('', :scope))"
    "  ORDER BY b.seq LIMIT 1), ''))"
    " AND (awaits IS NULL OR EXISTS (SELECT 1 FROM inbox w WHERE w.event_id = o.awaits"
    "  AND w.state IN ('waiting', 'casting')))) WHERE body <> '' ORDER BY seq DESC LIMIT :most"
)
HELD = "c.scope = :scope AND c.kind IN ('room', 'terminal') AND c.room_id <> ''"
FIRST = (
    "(SELECT substr(body, 1, 200) FROM inbox WHERE conversation_id = c.id AND kind = '{kind}'"
    " AND direct AND sender = :owner AND body <> '' ORDER BY seq LIMIT 1)"
)
FIRST_WORDS = (
    f"coalesce({FIRST.format(kind='message')}, {FIRST.format(kind='command')}, '') AS words"
)
ERASED = (
    "SELECT (SELECT count(*) FROM inbox WHERE body = '' AND kind <> 'context')"
    " + (SELECT count(*) FROM outbox WHERE body = '')"
)
LAST_SAID = (
    "max(coalesce((SELECT received_at FROM inbox WHERE conversation_id = c.id"
    "  ORDER BY seq DESC LIMIT 1), ''), coalesce((SELECT created_at FROM outbox"
    "  WHERE conversation_id = c.id ORDER BY seq DESC LIMIT 1), ''), c.created_at) AS last"
)


class MessageKey(NamedTuple):
    """A position in a conversation: an older page begins before these rows of inbox and outbox."""

    inbox_seq: int = LAST
    outbox_seq: int = LAST

    def __str__(self) -> str:
        return f"{self.inbox_seq}-{self.outbox_seq}"

    @classmethod
    def from_page(cls, text: str) -> "MessageKey | None":
        """Parse a key from a page; "" is the end of the conversation. None: the text is not a key."""
        found = KEY.fullmatch(text)
        known = cls(*(min(int(each), LAST) for each in found.groups())) if found else None
        return known if text else cls()


NEWEST = MessageKey()


@dataclass(frozen=True, slots=True)
class ShownMessage:
    """One message as people see it. `ours`: the assistant wrote it, in answer to `answers`."""

    seq: int
    id: str
    ours: bool
    at: datetime
    answers: str | None
    cast_id: str | None
    body: str


@dataclass(frozen=True, slots=True)
class OwnedConversation:
    """A conversation that its owner may read. `words`: its first message, else its first command."""

    id: str
    room_id: str
    words: str
    last: datetime
    is_thread: bool


_message = reader(ShownMessage)
_held = reader(OwnedConversation)


class MailboxReader:
    """Read-only queries of the web door. It shows the owner's conversations, also those of a room
    that belonged to somebody else or to a group before.
    """

    def __init__(self, database: Database, owner: Owner) -> None:
        self._database = database
        self._owner = {"owner": owner.user_id, "scope": owner.scope}

    async def conversation(
        self, conversation_id: str, room_id: str = ""
    ) -> OwnedConversation | None:
        """Find a conversation by its id or its room; None if it does not exist or is not the owner's."""
        row = await self._database.row(
            f"SELECT c.id, c.room_id, c.thread_id <> '' AS is_thread, {FIRST_WORDS}, {LAST_SAID}"
            f" FROM conversations c WHERE (c.id = :id OR c.room_id = :room AND c.thread_id = '')"
            f" AND {HELD} LIMIT 1",
            self._owner | {"id": conversation_id, "room": room_id},
        )
        return _held(row) if row else None

    async def conversations(
        self, most: int, rooms: str = "*", before: tuple[str, str] = ("~", "")
    ) -> list[OwnedConversation]:
        """List the conversations with the newest messages, newest first; `rooms`: a GLOB pattern.

        `before`: the time and the id of the last conversation of the page before.
        """
        last, conversation_id = before
        rows = await self._database.rows(
            f"SELECT c.*, {FIRST_WORDS} FROM (SELECT c.id, c.room_id,"
            f" c.thread_id <> '' AS is_thread, {LAST_SAID} FROM conversations c"
            f" WHERE {HELD} AND c.room_id GLOB :rooms) c"
            " WHERE (c.last, c.id) < (:last, :id) ORDER BY c.last DESC, c.id DESC LIMIT :most",
            self._owner | {"most": most, "rooms": rooms, "last": last, "id": conversation_id},
        )
        return [_held(row) for row in rows]

    async def erased(self) -> int:
        """Count the messages of all conversations whose text was erased."""
        (count,) = await self._database.scalars(ERASED)
        return int(count)

    async def page(
        self, conversation_id: str, most: int, before: MessageKey = NEWEST
    ) -> tuple[list[ShownMessage], MessageKey | None]:
        """Return the newest messages before a position, oldest first, and the key of the next page.

        Each box keeps its own order, also if the clock was set back.
        """
        asked = self._owner | {"conversation": conversation_id, "most": most + 1}
        boxes = [
            [_message(row) for row in await self._database.rows(query, asked | {"before": place})]
            for query, place in ((SAID_TO_US, before.inbox_seq), (SAID_BY_US, before.outbox_seq))
        ]
        newest_first = merge(*boxes, key=lambda each: (each.at, each.ours), reverse=True)
        found = [*islice(newest_first, most + 1)]
        shown = found[:most][::-1]
        first = [next((m.seq for m in shown if m.ours is ours), None) for ours in (False, True)]
        key = MessageKey(*(n or known for n, known in zip(first, before, strict=True)))
        return shown, key if len(found) > most else None
