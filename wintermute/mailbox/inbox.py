"""The store of incoming events. Each is stored once; its state says how far it has been dealt with."""

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Literal

from wintermute.clock import Clock, moment, stamp
from wintermute.config.secrets import UNHIDDEN, Redaction
from wintermute.db import Database, Row, Transaction, put_single, single
from wintermute.db.text_search import OF_CONVERSATIONS, OF_EVENTS, SearchableText, TextMatches
from wintermute.db.values import columns, insert, reader, stored
from wintermute.messages import InboxKind, Incoming, Json, Origin

SEED = "seed_"
SYNC = "sync token"
LAST = 2**63 - 1
"""A position after all rows."""
OVERSIZE = "oversize_"
"""Beginning of the ids of events about oversize sections; their branch follows. Matrix ids begin with `$`."""
RESULT = "result_"
"""Beginning of the id of a sub-session's event; the turn that spawned it and its own id follow."""

HELD = (  # names both states, so that SQLite uses their partial index
    "SELECT seq, conversation_id, room_id, raw, received_at, state FROM inbox"
    " WHERE state IN ('locked', 'untrusted')"
)
InboxState = Literal["locked", "untrusted", "waiting", "casting", "answered", "ignored"]
RECEIVED = SearchableText(
    "inbox",
    ("body", "raw"),
    fixed=True,
    of=OF_CONVERSATIONS,
    ours="kind = 'event' AND received_at >= :since",
    derived=f"event_id {OF_EVENTS}",
    waits="iif(state IN ('answered', 'ignored'), NULL, event_id)",
)
WRITTEN = SearchableText(  # by people and other bots
    *("inbox", ("body",)),
    where="body <> '' AND (kind = 'message' AND state <> 'ignored' OR kind IN ('context', 'command'))",
    of=OF_CONVERSATIONS,
)
SAID = replace(  # by people only
    WRITTEN,
    where=f"{WRITTEN.where} AND NOT by_bot AND NOT (kind = 'command'"
    " AND substr(body, 1, 7) IN ('/forget', '/memory'))",
)


@dataclass(frozen=True, slots=True)
class InboxRow:
    """An inbox row that is not dealt with yet."""

    seq: int
    event_id: str
    conversation_id: str
    room_id: str
    sender: str
    sender_name: str
    origin: Origin
    kind: InboxKind
    body: str
    direct: bool
    state: InboxState
    not_before: float | None
    received_at: datetime
    sent_at: datetime
    edits: str | None = None
    replies_to: str | None = None

    @property
    def first_word(self) -> str:
        """The first word in lower case: the name of a command."""
        return (self.body.split(maxsplit=1) or [""])[0].lower()

    @property
    def is_open(self) -> bool:
        """True if the row is not dealt with yet."""
        return self.state in ("waiting", "casting")

    @property
    def is_stop(self) -> bool:
        """True for `/stop`, which does not wait in the queue (L-072)."""
        return self.kind == "command" and self.first_word == "/stop"

    @property
    def is_seed(self) -> bool:
        """True for the seed that opens a branch and goes before everything else in it (P-055)."""
        return self.event_id.startswith(SEED)

    @property
    def turn_id(self) -> str | None:
        """The turn that started the sub-session whose end this row reports."""
        if not self.event_id.startswith(RESULT):
            return None
        return self.event_id.removeprefix(RESULT).split("/")[0]

    @property
    def is_unasked(self) -> bool:
        """True if nobody waits for the answer: a seed, or a request to shorten a section."""
        return self.event_id.startswith((SEED, OVERSIZE))


@dataclass(frozen=True, slots=True)
class LockedEvent:
    """The raw event of a message that cannot be decrypted, or not be trusted, yet."""

    seq: int
    conversation_id: str
    room_id: str
    raw: Json
    received_at: datetime
    state: InboxState = "locked"


@dataclass(frozen=True, slots=True)
class OpenRow:
    """An inbox row that is not dealt with yet. `edits`: the event whose text it replaces."""

    seq: int
    event_id: str
    conversation_id: str
    room_id: str
    kind: str
    body: str
    sender_name: str
    direct: bool
    is_locked: bool
    sent_at: datetime
    edits: str | None


_waiting = reader(InboxRow)
_open_row = reader(OpenRow)
_locked = reader(LockedEvent)


class Inbox:
    """The store of incoming events and of the sync token."""

    def __init__(self, database: Database, clock: Clock, redact: Redaction = UNHIDDEN) -> None:
        """`redact` hides our own secrets if somebody posts one (L-089)."""
        self._database = database
        self._clock = clock
        self._redact = redact

    async def store(
        self, tx: Transaction, conversation_id: str, incoming: Incoming, state: InboxState
    ) -> bool:
        """Store an event; False if it was stored before (L-073)."""
        values = self._columns(incoming) | {
            "conversation_id": conversation_id,
            "received_at": self._clock.now(),
            "state": state,
        }
        added = await tx.execute(*insert("inbox", values, "ON CONFLICT (event_id) DO NOTHING"))
        return added == 1

    async def store_event(
        self, tx: Transaction, cause: InboxRow, event_id: str, body: str, origin: Origin = "system"
    ) -> bool:
        """Store an event of our own in the conversation of `cause`; False if it was there (L-070)."""
        event = Incoming(
            event_id=event_id,
            room_id=cause.room_id,
            sender=cause.sender,
            sender_name="",
            origin=origin,
            kind="event",
            body=body,
            sent_at=self._clock.now(),
            direct=cause.direct,
        )
        return await self.store(tx, cause.conversation_id, event, "waiting")

    async def store_locked(
        self,
        tx: Transaction,
        conversation_id: str,
        room_id: str,
        event_id: str,
        raw: Json,
        state: InboxState = "locked",
    ) -> None:
        """Store the raw form of an event that cannot be decrypted or trusted yet (X-021, X-034)."""
        now, sender = stamp(self._clock.now()), str(raw.get("sender"))
        await tx.execute(
            "INSERT INTO inbox (event_id, conversation_id, room_id, sender, sender_name, origin,"
            " kind, body, direct, raw, sent_at, received_at, state)"
            " SELECT ?, id, ?, ?, '', 'other', 'locked', '', scope LIKE 'person:%', ?, ?, ?, ?"
            " FROM conversations WHERE id = ?"
            " ON CONFLICT (event_id) DO UPDATE SET state = excluded.state"
            " WHERE state IN ('locked', 'untrusted')",
            (event_id, room_id, sender, json.dumps(raw), now, now, state, conversation_id),
        )

    async def unlock(
        self, tx: Transaction, seq: int, incoming: Incoming, state: InboxState
    ) -> None:
        """Replace a locked row by its decrypted event; a row of a direct chat stays private."""
        await tx.execute(
            "UPDATE inbox SET sender = :sender, sender_name = :sender_name, origin = :origin,"
            " kind = :kind, body = :body, direct = max(direct, :direct), by_bot = :by_bot,"
            " raw = :raw, sent_at = :sent_at, state = :state, edits = :edits,"
            " replies_to = :replies_to WHERE seq = :seq AND state IN ('locked', 'untrusted')",
            stored(self._columns(incoming) | {"state": state, "seq": seq}),
        )

    def _columns(self, incoming: Incoming) -> Json:
        return columns(incoming) | {
            "sender_name": self._redact(incoming.sender_name),
            "body": self._redact(incoming.body),
            "raw": self._redact.tree(incoming.raw),
        }

    async def discard_locked(self, tx: Transaction, seq: int) -> None:
        """Drop a locked row whose decrypted event needs no answer."""
        await tx.execute(
            "UPDATE inbox SET state = 'ignored', raw = '' WHERE seq = ?"
            " AND state IN ('locked', 'untrusted')",
            (seq,),
        )

    async def discard_untrusted(self, tx: Transaction, before: datetime) -> None:
        """Drop untrusted events received before a time: their devices were not verified until then."""
        await tx.execute(
            "UPDATE inbox SET state = 'ignored', raw = '' WHERE state IN ('locked', 'untrusted')"
            " AND state = 'untrusted' AND received_at < ?",
            (stamp(before),),
        )

    async def untrusted(self, after: int, limit: int = 200) -> list[LockedEvent]:
        """Return the first untrusted events after row `after`, oldest first."""
        query = f"{HELD} AND state = 'untrusted' AND seq > ? ORDER BY seq LIMIT ?"
        return [_locked(row) for row in await self._database.rows(query, (after, limit))]

    async def locked(self, limit: int = 200) -> list[LockedEvent]:
        """Return the newest undecrypted events, oldest first."""
        query = f"{HELD} AND state = 'locked' ORDER BY seq DESC LIMIT ?"
        return [_locked(row) for row in await self._database.rows(query, (limit,))][::-1]

    async def give_up(
        self,
        tx: Transaction,
        conversation_id: str,
        before: int,
        *,
        taken: str | None,
        also_new: bool,
    ) -> list[str]:
        """Give up what was said before row `before` and is being answered or waits for the model.

        This includes the event `taken`, whose cast has not begun, and the message that waits for a
        seed. With `also_new` messages that were not tried yet are dropped, too. Returns the ids of
        the dropped events.
        """
        return await tx.scalars(
            "UPDATE inbox SET state = 'answered' WHERE conversation_id = :conversation"
            " AND seq < :before AND (state = 'casting' OR state = 'waiting' AND (event_id = :taken"
            "  OR kind = 'message' AND (not_before IS NOT NULL OR :also_new OR :seed AND seq ="
            "   (SELECT min(seq) FROM inbox WHERE conversation_id = :conversation"
            "    AND kind = 'message' AND state = 'waiting')))) RETURNING event_id",
            {
                "conversation": conversation_id,
                "before": before,
                "taken": taken,
                "also_new": also_new,
                "seed": bool(taken and taken.startswith(SEED)),
            },
        )

    async def begin(self, tx: Transaction, event_id: str) -> bool:
        """Mark an event as being answered; False if it was given up meanwhile."""
        begun = await tx.execute(
            "UPDATE inbox SET state = 'casting', not_before = NULL"
            " WHERE event_id = ? AND state IN ('waiting', 'casting')",
            (event_id,),
        )
        return begun == 1

    async def set_state(
        self, tx: Transaction, event_id: str, state: InboxState, not_before: float | None = None
    ) -> None:
        """Set the state of an event; `not_before`, by the monotonic clock, delays the next attempt (L-034)."""
        tx.defer(
            "UPDATE inbox SET state = ?, not_before = ? WHERE event_id = ?",
            (state, not_before, event_id),
        )

    async def open_rows(self, conversation_id: str, aside: Collection[str] = ()) -> list[InboxRow]:
        """List the rows that may be next in a conversation, in order; for `/stop` see `stops`.

        These are the first message and all rows that need not wait for it; at most 200, untried
        ones first. The messages `aside` are not counted as the first.
        """
        is_aside = "event_id IN (SELECT value FROM json_each(:aside))"
        rows = await self._database.rows(
            "SELECT * FROM (SELECT * FROM inbox WHERE conversation_id = :conversation"
            f" AND state IN ('waiting', 'casting') AND (kind <> 'message' OR {is_aside} OR seq ="
            "  (SELECT min(seq) FROM inbox WHERE conversation_id = :conversation"
            f"   AND state IN ('waiting', 'casting') AND kind = 'message' AND NOT {is_aside}))"
            " ORDER BY not_before IS NOT NULL, seq LIMIT 200) ORDER BY seq",
            {"conversation": conversation_id, "aside": json.dumps(sorted(aside))},
        )
        return [row for row in map(_waiting, rows) if not row.is_stop]

    async def interrupts(self, conversation_id: str) -> bool:
        """Check if a command or an edit waits, which may end the running cast."""
        waits = "SELECT 1 FROM inbox WHERE conversation_id = ? AND state = 'waiting'"
        query = f"{waits} AND (kind = 'command' OR edits IS NOT NULL)"
        return await self._database.exists(query, (conversation_id,))

    async def stops(self, conversation_id: str) -> list[InboxRow]:
        """Return the unanswered `/stop`s."""
        rows = await self._database.rows(
            "SELECT * FROM inbox WHERE conversation_id = ? AND state = 'waiting'"
            " AND kind = 'command' ORDER BY seq",
            (conversation_id,),
        )
        return [row for row in map(_waiting, rows) if row.is_stop]

    async def find(self, tx: Transaction, event_id: str) -> InboxRow | None:
        """Find the row of an event in any state."""
        row = await tx.row("SELECT * FROM inbox WHERE event_id = ?", (event_id,))
        return _waiting(row) if row else None

    async def newest_version(self, tx: Transaction, event_id: str) -> InboxRow | None:
        """Find the row with the current text of an event, which may be an edit of it."""
        row = await tx.row(
            "SELECT * FROM inbox WHERE event_id = :event OR edits = :event"
            " ORDER BY kind = 'locked', body = '', seq DESC LIMIT 1",
            {"event": event_id},
        )
        return _waiting(row) if row else None

    async def mark_addressed(self, tx: Transaction, seq: int) -> None:
        """Turn a line of a group into a message to us; from now on an edit of it is answered (F-025)."""
        await tx.execute(
            "UPDATE inbox SET kind = 'message', state = 'answered'"
            " WHERE seq = ? AND kind = 'context'",
            (seq,),
        )

    async def is_open(self, tx: Transaction, room_id: str, event_id: str) -> bool:
        """Check if a message of this room, or an edit of it, is not dealt with yet."""
        return await tx.exists(
            "SELECT 1 FROM inbox WHERE (event_id = :event OR edits = :event) AND room_id = :room"
            " AND state IN ('waiting', 'casting') LIMIT 1",
            {"event": event_id, "room": room_id},
        )

    async def is_waiting(self, tx: Transaction, event_id: str) -> bool:
        """Check if this row itself is not dealt with yet; its edits do not count."""
        return await tx.exists(
            "SELECT 1 FROM inbox WHERE event_id = ? AND state IN ('waiting', 'casting')",
            (event_id,),
        )

    async def waits_before(self, tx: Transaction, row: InboxRow) -> bool:
        """Check if something before this row still waits for the model."""
        return await tx.exists(
            "SELECT 1 FROM inbox WHERE conversation_id = ? AND state IN ('waiting', 'casting')"
            " AND kind IN ('message', 'event') AND seq < ? LIMIT 1",
            (row.conversation_id, row.seq),
        )

    async def around(self, row: InboxRow, most: int) -> tuple[list[InboxRow], list[InboxRow]]:
        """Return the messages before and after a message in its conversation, oldest first."""
        query = (
            "SELECT * FROM inbox WHERE conversation_id = ? AND seq {} ? AND kind = 'message'"
            " AND body <> '' AND state IN ('waiting', 'casting', 'answered') ORDER BY seq {} LIMIT ?"
        )
        where = (row.conversation_id, row.seq, most)
        before = await self._database.rows(query.format("<", "DESC"), where)
        after = await self._database.rows(query.format(">", "ASC"), where)
        return [_waiting(each) for each in reversed(before)], [_waiting(each) for each in after]

    async def newest_message(
        self, tx: Transaction, conversation_id: str, kind: InboxKind = "message"
    ) -> InboxRow | None:
        """Find the newest message to us in a conversation, edits included, answered or not."""
        row = await tx.row(
            "SELECT * FROM inbox WHERE conversation_id = ? AND kind = ? AND state <> 'ignored'"
            " ORDER BY seq DESC LIMIT 1",
            (conversation_id, kind),
        )
        return _waiting(row) if row else None

    async def last_said(self) -> datetime | None:
        """Return the time of the last message to us in any room; None if there is none."""
        row = await self._database.row(
            "SELECT received_at FROM inbox WHERE kind IN ('message', 'command') ORDER BY seq DESC LIMIT 1"
        )
        return moment(row["received_at"]) if row else None

    async def last_said_in(self, tx: Transaction, scope: str) -> datetime | None:
        """Return the time of the last message to us in a chat of this scope; None if there is none."""
        (said,) = await tx.scalars(
            "SELECT max((SELECT received_at FROM inbox WHERE conversation_id = c.id"
            " AND kind IN ('message', 'command') ORDER BY seq DESC LIMIT 1))"
            " FROM conversations c WHERE c.scope = ?",
            (scope,),
        )
        return moment(said) if said else None

    async def last_before(self, tx: Transaction, conversation_id: str, seq: int) -> InboxRow | None:
        """Find the message before row `seq`."""
        row = await tx.row(
            "SELECT * FROM inbox WHERE conversation_id = ? AND seq < ?"
            " AND kind = 'message' ORDER BY seq DESC LIMIT 1",
            (conversation_id, seq),
        )
        return _waiting(row) if row else None

    async def has_waiting_new(self, tx: Transaction, conversation_id: str, after: int) -> bool:
        """Check if a `/new` after row `after` is still waiting."""
        rows = await tx.rows(
            "SELECT * FROM inbox WHERE conversation_id = ? AND seq > ? AND kind = 'command'"
            " AND state = 'waiting'",
            (conversation_id, after),
        )
        return any(row.first_word == "/new" for row in map(_waiting, rows))

    async def edits_waiting(self, conversation_id: str) -> list[InboxRow]:
        """Return the edits that are still to be answered, oldest first (L-054)."""
        rows = await self._database.rows(
            "SELECT * FROM inbox WHERE conversation_id = ? AND state = 'waiting'"
            " AND edits IS NOT NULL ORDER BY seq",
            (conversation_id,),
        )
        return [_waiting(row) for row in rows]

    async def versions(self, event_id: str) -> list[str]:
        """Return the ids of a message and of its stored edits, oldest first."""
        return await self._database.scalars(
            "SELECT event_id FROM inbox WHERE event_id = :event OR edits = :event ORDER BY seq",
            {"event": event_id},
        )

    async def give_up_versions(self, tx: Transaction, edited: str, before_seq: int) -> list[str]:
        """Give up the message `edited` and its edits before row `before_seq`, if still unanswered.

        Returns the ids of the dropped events.
        """
        return await tx.scalars(
            "UPDATE inbox SET state = 'answered' WHERE (event_id = :event OR edits = :event)"
            " AND seq < :before_seq AND state IN ('waiting', 'casting') RETURNING event_id",
            {"event": edited, "before_seq": before_seq},
        )

    async def of_events(
        self, tx: Transaction, room_id: str, events: Collection[str]
    ) -> list[InboxRow]:
        """Return the rows of these events of a room and of their edits, in order.

        Reactions are left out, and a `/stop` that still waits: redacting one undoes nothing
        (X-026).
        """
        rows = await tx.rows(
            "SELECT * FROM inbox WHERE room_id = :room AND (event_id IN"
            "  (SELECT value FROM json_each(:events)) OR edits IN (SELECT value FROM json_each(:events)))"
            " AND iif(json_valid(raw), raw ->> '$.type', '') IS NOT 'm.reaction' ORDER BY seq",
            {"room": room_id, "events": json.dumps(sorted(events))},
        )
        found = map(_waiting, rows)
        return [row for row in found if not (row.is_stop and row.state == "waiting")]

    async def erase_events(self, tx: Transaction, events: Sequence[str]) -> list[str]:
        """Erase the content of these events (F-027). Returns the ids of those that were unanswered."""
        asked = (json.dumps(list(events)),)
        rows = await tx.rows(
            "SELECT event_id FROM inbox WHERE event_id IN (SELECT value FROM json_each(?))"
            " AND state IN ('waiting', 'casting')",
            asked,
        )
        await tx.execute(
            "UPDATE inbox SET state = 'ignored', body = '', raw = '', not_before = NULL"
            " WHERE event_id IN (SELECT value FROM json_each(?))",
            asked,
        )
        return [row["event_id"] for row in rows]

    async def said_in(self, conversation_id: str, limit: int) -> list[str]:
        """Return the newest messages and commands of a conversation, oldest first."""
        return await self._database.scalars(
            "SELECT body FROM (SELECT seq, body FROM inbox WHERE conversation_id = ? AND body <> ''"
            " AND kind IN ('message', 'command') ORDER BY seq DESC LIMIT ?) ORDER BY seq",
            (conversation_id, limit),
        )

    async def retry_now(self) -> None:
        """Retry delayed events now: after a restart the reason for the delay may be gone (L-086)."""
        async with self._database.transaction() as tx:
            await tx.execute(
                "UPDATE inbox SET not_before = NULL"
                " WHERE state = 'waiting' AND not_before IS NOT NULL"
            )

    async def bodies(self, events: Sequence[str]) -> list[str]:
        """Return the texts of these events."""
        return await self._database.scalars(
            "SELECT body FROM inbox WHERE event_id IN (SELECT value FROM json_each(?))",
            (json.dumps(list(events)),),
        )

    async def current_texts(
        self, tx: Transaction, events: Collection[str]
    ) -> dict[str, tuple[str, str]]:
        """Map each of these events that has a row to the id and the current text of its message."""
        rows = await tx.rows(
            "SELECT e.event_id, coalesce(e.edits, e.event_id) AS message, coalesce((SELECT i.body"
            "  FROM inbox i WHERE i.body <> '' AND coalesce(e.edits, e.event_id) IN (i.event_id, i.edits)"
            "  ORDER BY i.seq DESC LIMIT 1), '') AS body FROM inbox e"
            " WHERE e.event_id IN (SELECT value FROM json_each(?))",
            (json.dumps(sorted(events)),),
        )
        return {row["event_id"]: (row["message"], row["body"]) for row in rows}

    async def find_containing(
        self, events: Sequence[str], traces: TextMatches, but: str | None = None
    ) -> list[Row]:
        """Find the messages of people that contain one of the `traces`, except for these events.

        `but`: leave out this person. `message` is the id of the original message of an edit.
        """
        return await self._database.rows(
            "SELECT seq, event_id, coalesce(edits, event_id) AS message, sender, direct, body"
            f" FROM inbox WHERE {SAID.rows()} AND event_id NOT IN (SELECT value FROM json_each(:events))"
            " AND coalesce(edits, '') NOT IN (SELECT value FROM json_each(:events))"
            " AND sender IS NOT :but",
            {"events": json.dumps(list(events)), "but": but} | traces.asked(SAID),
        )

    async def words_in_other_messages(
        self, words: Sequence[str], events: Sequence[str], scopes: Sequence[str]
    ) -> set[str]:
        """Return those of `words` (lower case) that people of these scopes said in other messages.

        A quoted line does not count; a display name or user id that contains the word does.
        """
        asked = {"events": json.dumps(list(events)), "scopes": json.dumps(list(scopes))}
        names = await self._database.scalars(
            f"SELECT DISTINCT sender_name || ' ' || sender FROM inbox WHERE {SAID.of}", asked
        )
        found = {word for word in words if any(word in name.casefold() for name in names)}
        query = (
            f"SELECT body FROM inbox WHERE {SAID.where} AND {SAID.of}"
            " AND event_id NOT IN (SELECT value FROM json_each(:events))"
            " AND coalesce(edits, '') NOT IN (SELECT value FROM json_each(:events))"
            " AND (instr(body, :a) OR instr(body, :b) OR instr(body, :c)) ORDER BY seq DESC LIMIT 20"
        )
        for word in set(words) - found:
            spellings = {"a": word, "b": word.capitalize(), "c": word.upper()}
            said = await self._database.scalars(query, asked | spellings)
            lines = [line for body in said for line in body.splitlines()]
            if any(word in line.casefold() for line in lines if not line.startswith(">")):
                found.add(word)
        return found

    async def since(self, events: Sequence[str]) -> str | None:
        """Return the time when the first of these events came; None if none is known."""
        (at,) = await self._database.scalars(
            "SELECT min(received_at) FROM inbox WHERE event_id IN (SELECT value FROM json_each(?))",
            (json.dumps(list(events)),),
        )
        return str(at) if at else None

    async def command_before(
        self, tx: Transaction, row: InboxRow, of: str = "/"
    ) -> InboxRow | None:
        """Find the previous command of the same person here; `of`: the text it begins with."""
        found = await tx.row(
            "SELECT * FROM inbox WHERE conversation_id = ? AND sender = ? AND kind = 'command'"
            " AND seq < ? AND body LIKE ? || '%' ORDER BY seq DESC LIMIT 1",
            (row.conversation_id, row.sender, row.seq, of),
        )
        return _waiting(found) if found else None

    async def result_events(self, turns: Sequence[str]) -> list[str]:
        """Return the events that report the end of the sub-sessions of these turns."""
        return await self._database.scalars(
            "SELECT event_id FROM inbox JOIN json_each(?) turn"
            f" ON event_id >= '{RESULT}' || turn.value || '/'"
            f" AND event_id < '{RESULT}' || turn.value || '0'",
            (json.dumps(list(turns)),),
        )

    async def open_conversations(self) -> list[tuple[str, str]]:
        """List the conversations with unfinished rows, each with its room."""
        query = "SELECT DISTINCT conversation_id, room_id FROM inbox WHERE state IN ('waiting', 'casting')"
        rows = await self._database.rows(query)
        return [(row["conversation_id"], row["room_id"]) for row in rows]

    async def context(
        self, conversation_id: str, before: int, since: datetime, limit: int = 20
    ) -> list[InboxRow]:
        """Return the group lines not addressed to us since our last message there, and after `since` (X-002)."""
        rows = await self._database.rows(
            "SELECT * FROM (SELECT * FROM inbox WHERE conversation_id = :conversation"
            " AND kind = 'context' AND body <> '' AND seq < :before"
            " AND seq > coalesce((SELECT max(seq) FROM inbox"
            "  WHERE conversation_id = :conversation AND kind = 'message' AND seq < :before), 0)"
            " AND received_at > :since ORDER BY seq DESC LIMIT :limit) ORDER BY seq",
            {"conversation": conversation_id, "before": before}
            | {"since": stamp(since), "limit": limit},
        )
        return [_waiting(row) for row in rows]

    async def next_message_versions(self, tx: Transaction, line: InboxRow) -> set[str]:
        """Return the event ids of the first message after a line, and of the edits of that message."""
        rows = await tx.rows(
            "SELECT i.event_id FROM inbox i JOIN (SELECT event_id FROM inbox WHERE kind = 'message'"
            "  AND conversation_id = ? AND seq > ? ORDER BY seq LIMIT 1) first"
            " ON i.event_id = first.event_id OR i.edits = first.event_id",
            (line.conversation_id, line.seq),
        )
        return {row["event_id"] for row in rows}

    async def groups(self) -> list[str]:
        """List the conversations with stored group lines that were not addressed to us."""
        return await self._database.scalars(
            "SELECT DISTINCT conversation_id FROM inbox WHERE kind = 'context' AND body <> ''"
        )

    async def expire_context(
        self, tx: Transaction, conversation_id: str, before: datetime, upto: int, limit: int = 500
    ) -> int:
        """Erase group lines that are older than `before` and come before row `upto` (F-030).

        At most `limit` at once. Returns the number of erased lines.
        """
        return await tx.execute(
            "UPDATE inbox SET body = '', raw = '', sender_name = '' WHERE seq IN (SELECT seq"
            "  FROM inbox WHERE conversation_id = ? AND kind = 'context' AND body <> '' AND seq < ?"
            "  AND received_at < ? ORDER BY seq LIMIT ?)",
            (conversation_id, upto, stamp(before), limit),
        )

    async def bot_streak(self, tx: Transaction, conversation_id: str) -> int:
        """Count the messages of bots in a room, in all its threads, since a person last wrote (X-004)."""
        (streak,) = await tx.scalars(
            "WITH held (id) AS (SELECT :c UNION SELECT o.id FROM conversations v"
            "  JOIN conversations o ON o.room_id = v.room_id WHERE v.id = :c)"
            " SELECT count(*) FROM inbox WHERE conversation_id IN held AND by_bot"
            " AND kind IN ('message', 'command') AND state <> 'ignored' AND seq > coalesce((SELECT max(seq)"
            "  FROM inbox WHERE conversation_id IN held AND NOT by_bot AND kind <> 'locked'), 0)",
            {"c": conversation_id},
        )
        return int(streak)

    async def token(self, account: str) -> str | None:
        """Return the sync token of this account; None before its first sync."""
        found = await single(self._database, SYNC)
        return found["token"] if found and found["account"] == account else None

    async def store_token(self, tx: Transaction, account: str, token: str) -> None:
        """Store the sync token in the transaction that stores the events of that sync."""
        now = stamp(self._clock.now())
        await put_single(tx, SYNC, {"account": account, "token": token, "stored_at": now})

    async def last_sync(self, account: str) -> datetime | None:
        """Return the time of the last sync of this account; None if there was none."""
        found = await single(self._database, SYNC)
        return moment(found["stored_at"]) if found and found["account"] == account else None

    async def all_open(self, tx: Transaction) -> list[OpenRow]:
        """Return all unfinished rows of all conversations, in order."""
        rows = await tx.rows(
            "SELECT *, 0 AS is_locked FROM inbox WHERE state IN ('waiting', 'casting') UNION ALL"
            " SELECT *, 1 FROM inbox WHERE state IN ('locked', 'untrusted') ORDER BY seq"
        )
        return [_open_row(row) for row in rows]

    async def close(self, tx: Transaction, rows: Sequence[OpenRow]) -> None:
        """Mark rows as done that were answered by a run whose database is lost (F-009).

        Undecryptable ones are erased and ignored.
        """
        await tx.execute(
            "UPDATE inbox SET raw = iif(kind = 'locked', '', raw), not_before = NULL,"
            " state = iif(kind = 'locked', 'ignored', 'answered')"
            " WHERE seq IN (SELECT value FROM json_each(?))",
            (json.dumps([row.seq for row in rows]),),
        )
