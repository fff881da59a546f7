"""The store of outgoing messages. A row holds Markdown; its parts hold the events, each sent once."""

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Literal

from wintermute.clock import Clock, stamp
from wintermute.config.secrets import UNHIDDEN, Redaction
from wintermute.db import Database, Transaction
from wintermute.db.text_search import (
    GONE,
    OF_CONVERSATIONS,
    OF_EVENTS,
    OURS_SINCE,
    SCOPES,
    SearchableText,
)
from wintermute.db.values import columns, insert, reader
from wintermute.ids import NewId
from wintermute.mailbox.streaming import (
    ENDED,
    REFUSED_EDIT,
    continued_row,
    drop_draft,
    editable_row,
)
from wintermute.messages import REFUSED, Json

OutKind = Literal["reply", "notice", "event"]
ANYBODY = ""
"""The scope of messages that everybody in the room may read, such as a notice or a reaction."""
Purpose = Literal["answer", "occurrence", "notice", "other"]
"""The cause of a message: an event, a due moment of a task, a notice, or another one."""
TERMINAL = "terminal"
"""The room of `wintermute chat`."""
WEB = "web:"
"""Beginning of the room id of a conversation in the browser; its own id follows."""
UNTRIED = (0, None, None)
NOT_ALONE = "made for others than those who can read there now"
"""The `problem` of a message that is kept back."""
ASKED = (
    "i.event_id GLOB '$*' AND iif(json_valid(i.raw), i.raw ->> '$.type', '') IS NOT 'm.reaction'"
)
"""SQL: the row answers a message of a person, no reaction and no event of ours."""
HELD = "outbox.unsolicited AND NOT EXISTS (SELECT 1 FROM outbox_parts WHERE outbox_id = outbox.id)"
"""SQL: an unsolicited message of which nothing is sent yet; in quiet hours it waits."""
NEXT = (
    "SELECT outbox.*, outbox.late_after AS after, outbox.late_note AS mark,"
    " EXISTS (SELECT 1 FROM outbox_parts p WHERE p.outbox_id = outbox.id) AS is_split,"
    " iif(c.room_id = outbox.room_id AND c.thread_id GLOB '$*', c.thread_id, NULL) AS thread,"
    f" iif({ASKED} AND NOT i.direct, i.sender, NULL) AS mentions,"
    f" iif({ASKED} AND (NOT i.direct OR c.thread_id <> '' OR (SELECT reason FROM casts"
    f"  WHERE id = outbox.cast_id) IN {REFUSED}), coalesce(i.edits, i.event_id), NULL) AS replies_to"
    " FROM outbox LEFT JOIN conversations c ON c.id = outbox.conversation_id"
    " LEFT JOIN inbox i ON i.event_id = coalesce(outbox.answers, outbox.grows)"
    "  AND i.room_id = outbox.room_id"
    " WHERE outbox.room_id = :room AND outbox.conversation_id = :conversation"
    f" AND outbox.state = 'waiting' AND NOT (:quiet AND {HELD})"
    " ORDER BY outbox.apart DESC, outbox.reacts_to IS NOT NULL, outbox.seq LIMIT 1"
)
ANSWERS = SearchableText(
    *("outbox", ("body",)),
    fixed=True,
    of=OF_CONVERSATIONS,
    ours=OURS_SINCE,
    derived=f"answers {OF_EVENTS}",
    waits=f"iif(state <> 'waiting' OR {HELD}, NULL, id)",
    empties=("body = ''", "state = iif(state = 'waiting', 'sent', state)"),
    dependents=(
        "UPDATE outbox_parts SET content = '{}' WHERE outbox_id IN"
        f" (SELECT id FROM outbox WHERE seq {GONE})",
    ),
)
MEANT_FOR_THEM = replace(ANSWERS, of=f"meant_for IN {SCOPES}")
AfterSending = Callable[[Transaction, str], Awaitable[Sequence[str]]]
"""Completes the cause of a message in the transaction that marks it as sent; returns reactions to add."""


def is_matrix(room_id: str) -> bool:
    """Return True for a Matrix room, False for the terminal, the browser and wiki folders (V-017)."""
    return room_id.startswith("!")


@dataclass(frozen=True, slots=True)
class OutboxPart:
    """One of the `of` events of an outgoing message. Its `txn_id` never changes."""

    outbox_id: str
    n: int
    of: int
    txn_id: str
    content: Json
    sent: bool
    attempts: int
    device_id: str | None
    first_attempt_at: datetime | None


@dataclass(frozen=True, slots=True)
class LateNote:
    """The time from which a message is late, and the note `mark` that it then ends with (T-038)."""

    after: datetime
    mark: str


@dataclass(frozen=True, slots=True)
class Outgoing:
    """One message for a room; or reactions, separated by blanks, for the event `reacts_to`."""

    seq: int
    id: str
    room_id: str
    kind: OutKind
    body: str
    late: LateNote | None = None
    meant_for: str = ""
    reacts_to: str | None = None
    apart: bool = False
    """True: sent in an encryption session of its own, before all other waiting messages (X-035)."""
    answers: str | None = None
    cause: str | None = None
    changes: str | None = None
    """Our event that gets this text; with an empty text it is redacted."""
    replies_to: str | None = None
    """The message to reply to, where people must see which one is answered."""
    thread: str | None = None
    """The root event of the thread for this message."""
    mentions: str | None = None
    """The user to mention: who asked, in a room with other readers."""
    grows: str | None = None
    """For a draft: the original event of the message whose answer it shows (X-036)."""
    continues: str | None = None
    """The row whose event gets this text by an edit, if `may_continue` allows it."""
    conversation_id: str = ""
    live: str = ""
    """The transaction id of an update of the streamed answer `changes`, which has no row of its own."""
    edits_of: str | None = None
    """Instead of reactions: an event whose edits are to be redacted, or a draft's row (`retractions`)."""
    is_split: bool = field(default=False, compare=False)  # its events are stored

    @property
    def redacts(self) -> bool:
        """True if this redacts an event of ours."""
        return self.changes is not None and not self.body

    @property
    def made_for(self) -> tuple[Purpose, str]:
        """The purpose and the id of its cause; both are the same again after a restore from a backup."""
        if self.cause is not None:
            return "occurrence", self.cause
        if self.answers is not None:
            return "answer", self.answers
        return "notice" if self.kind == "notice" else "other", self.id

    def late_note(self, now: datetime) -> str:
        """Return the note to add when the message is said at `now`: it may be late."""
        return self.late.mark if self.late and now > self.late.after else ""

    def text(self, now: datetime) -> str:
        """Return the whole text as it is said at `now`."""
        return self.body + self.late_note(now)


@dataclass(frozen=True, slots=True)
class SentMessage:
    """A message of ours that is in a room. `cast_id`: the cast that it answers for, if any.

    `body`: the text of the one event that was asked for, "" once it was erased.
    """

    id: str
    cast_id: str | None
    body: str
    meant_for: str


_part = reader(OutboxPart, "of")
_late = reader(LateNote)
_outgoing = reader(Outgoing, "late", "live")
_spoken = reader(SentMessage)


async def always(_tx: Transaction) -> bool:
    return True


async def nothing_more(_tx: Transaction, _outbox_id: str) -> Sequence[str]:
    return ()


class Outbox:
    """The store of outgoing messages, in order per conversation."""

    def __init__(
        self,
        database: Database,
        clock: Clock,
        new_id: NewId,
        redact: Redaction = UNHIDDEN,
        said: AfterSending = nothing_more,
        quiet: Callable[[datetime], datetime | None] = lambda _now: None,
    ) -> None:
        """`quiet`: returns the end of the quiet hours that a time lies in."""
        self._quiet = quiet
        self._after_sending = said
        self._redact = redact
        self._database = database
        self._clock = clock
        self._new_id = new_id

    async def enqueue(
        self,
        tx: Transaction,
        conversation_id: str,
        body: str,
        *,
        kind: OutKind = "reply",
        cast_id: str | None = None,
        answers: str | None = None,
        late: LateNote | None = None,
        meant_for: str,
        apart: bool = False,
        cause: str | None = None,
        signs: Sequence[str] = (),
        in_place: bool = False,
        unasked: bool = False,
    ) -> str:
        """Enqueue a message for a conversation; once committed it will be sent, exactly once.

        `meant_for`: the scope it was made of; all readers of the room must fit it when it is sent
        (F-002). `apart`: send it before all others, in an encryption session of its own. `cause`:
        the due moment it is for. `signs`: reactions to add to it. `in_place`: it may also edit the
        answer to an earlier version of the message (X-062). `unasked`: it waits in quiet hours.
        """
        row = await tx.row("SELECT room_id FROM conversations WHERE id = ?", (conversation_id,))
        if row is None:
            raise LookupError(conversation_id)
        continues = None
        if answers is not None:
            await self._drop_notices(tx, answers)
            continues = await continued_row(tx, answers, meant_for if in_place else None)
        return await self._insert(
            tx,
            conversation_id,
            row["room_id"],
            kind,
            self._redact(body),
            cast_id=cast_id,
            answers=answers,
            late_after=late.after if late else None,
            late_note=late.mark if late else "",
            meant_for=meant_for,
            apart=apart,
            cause=cause,
            continues=continues,
            reactions=" ".join(signs),
            unsolicited=unasked,
        )

    async def begin_draft(
        self, tx: Transaction, where: tuple[str, str], event_id: str, body: str, scope: str
    ) -> tuple[str, bool]:
        """Return the draft that shows the growing answer to a message, and True if its event is new.

        An earlier cast may have begun it. If an answer to an earlier version of the message
        exists, the draft takes over its event.
        """
        if (draft := await editable_row(tx, event_id, None)) is not None:
            return draft.id, False
        former = await editable_row(tx, event_id, scope)
        (message,) = await tx.scalars(
            "SELECT coalesce((SELECT edits FROM inbox WHERE event_id = :event), :event)",
            {"event": event_id},
        )
        more = {"grows": message, "meant_for": scope}
        outbox_id = await self._insert(tx, *where, "event", self._redact(body), **more)
        if former is not None:
            await tx.execute("UPDATE outbox SET state = 'sent' WHERE id = ?", (outbox_id,))
            await tx.execute(
                "INSERT INTO outbox_parts (outbox_id, n, txn_id, content, state, event_id, attempts,"
                " first_attempt_at) SELECT :id, 0, :txn, '{}', 'sent', event_id, 1, :now"
                " FROM outbox_parts WHERE outbox_id = :former AND n = 0",
                {
                    "id": outbox_id,
                    "txn": f"wm-{outbox_id}-0",
                    "now": stamp(self._clock.now()),
                    "former": former.id,
                },
            )
        return outbox_id, former is None

    async def close_draft(self, tx: Transaction, outbox_id: str, body: str) -> None:
        """Edit an unfinished draft once if its answer is a message of its own; a former answer stays."""
        rows = await tx.rows(
            "UPDATE outbox SET problem = ? WHERE id = ? AND coalesce(problem, ?) = ?"
            " AND grows IS NOT NULL AND body <> '' RETURNING conversation_id, room_id",
            (ENDED, outbox_id, REFUSED_EDIT, REFUSED_EDIT),
        )
        for row in rows:
            query = (
                "SELECT event_id FROM outbox_parts WHERE outbox_id = ? AND n = 0 AND event_id <> ''"
            )
            for event_id in await tx.scalars(query, (outbox_id,)):
                where = row["conversation_id"], row["room_id"]
                await self.change(tx, *where, event_id, body)
        await drop_draft(tx, outbox_id)
        await tx.execute(
            "UPDATE outbox SET continues = NULL WHERE continues = ? AND state <> 'sent' AND NOT EXISTS"
            " (SELECT 1 FROM outbox d WHERE d.id = outbox.continues AND d.problem = ?)",
            (outbox_id, ENDED),
        )

    async def react(
        self,
        tx: Transaction,
        conversation_id: str,
        room_id: str,
        event_id: str,
        keys: Sequence[str],
    ) -> str:
        """Add reactions to an event of ours, after all else that waits in its room (T-063)."""
        signs = " ".join(keys)
        return await self._insert(tx, conversation_id, room_id, "event", signs, reacts_to=event_id)

    async def _insert(
        self,
        tx: Transaction,
        conversation_id: str,
        room_id: str,
        kind: OutKind,
        body: str,
        **more: object,
    ) -> str:
        outbox_id = self._new_id("out")
        values = {
            "id": outbox_id,
            "conversation_id": conversation_id,
            "room_id": room_id,
            "kind": kind,
            "body": body,
            "state": "waiting",
            "created_at": self._clock.now(),
        }
        tx.defer(*insert("outbox", values | more))
        return outbox_id

    async def change(
        self, tx: Transaction, conversation_id: str, room_id: str, event_id: str, body: str
    ) -> None:
        """Give an event of ours another text, after all else that waits; "": redact it."""
        body = self._redact(body)
        await self._insert(tx, conversation_id, room_id, "event", body, changes=event_id)

    async def _drop_notices(self, tx: Transaction, event_id: str) -> None:
        """Drop unsent notices about a message that has its answer now."""
        tx.defer(
            "UPDATE outbox SET state = 'sent', body = '' WHERE awaits = ? AND state IN"
            " ('waiting', 'stuck') AND NOT EXISTS (SELECT 1 FROM outbox_parts WHERE outbox_id = outbox.id)",
            (event_id,),
        )

    async def drop_answers(self, tx: Transaction, events: Sequence[str]) -> list[str]:
        """Drop unsent answers to these events. Returns the events whose answers were dropped.

        An answer that is partly in its room is still sent. The rows stay: an attempt under way may
        reach the room, and our own message is recognised by its row.
        """
        rows = await tx.rows(
            "UPDATE outbox SET state = 'sent', body = '', problem = NULL WHERE state <> 'sent'"
            " AND answers IN (SELECT value FROM json_each(?)) AND NOT EXISTS (SELECT 1"
            "  FROM outbox_parts p WHERE p.outbox_id = outbox.id AND p.event_id IS NOT NULL)"
            " RETURNING id, answers",
            (json.dumps(list(events)),),
        )
        await tx.execute(
            "UPDATE outbox_parts SET state = 'sent', content = '{}' WHERE outbox_id IN"
            " (SELECT value FROM json_each(?))",
            (json.dumps([row["id"] for row in rows]),),
        )
        return [row["answers"] for row in rows]

    async def conversations_waiting(self) -> list[tuple[str, str]]:
        """List the conversations with unsent messages for a Matrix room, each with that room."""
        rows = await self._database.rows(
            "SELECT DISTINCT conversation_id, room_id FROM outbox WHERE state = 'waiting'"
            f" AND room_id GLOB '!*' AND NOT (? AND {HELD})",
            (self.quiet_until() is not None,),
        )
        return [(row["conversation_id"], row["room_id"]) for row in rows]

    def quiet_until(self) -> datetime | None:
        """Return the end of the current quiet hours; None outside of them."""
        return self._quiet(self._clock.now())

    async def waiting_for_pages(self) -> list[str]:
        """List the unsent messages for the browser."""
        return await self._database.scalars(
            "SELECT id FROM outbox WHERE state = 'waiting' AND room_id GLOB ? ORDER BY seq",
            (f"{WEB}*",),
        )

    async def next(self, conversation_id: str, room_id: str) -> Outgoing | None:
        """Return the next message of a conversation in a room; reactions come last."""
        quiet = is_matrix(room_id) and self.quiet_until() is not None
        asked = {"room": room_id, "conversation": conversation_id, "quiet": quiet}
        row = await self._database.row(NEXT, asked)
        return _outgoing(row, late=_late(row) if row["after"] else None) if row else None

    async def parts(self, outbox_id: str) -> list[OutboxPart]:
        """Return the events of a message, in order; empty until it is rendered."""
        rows = await self._database.rows(
            "SELECT *, state = 'sent' AS sent FROM outbox_parts WHERE outbox_id = ? ORDER BY n",
            (outbox_id,),
        )
        return [_part(row, of=len(rows)) for row in rows]

    async def store_parts(
        self,
        outbox_id: str,
        contents: Sequence[tuple[str, Json]],
        device_id: str,
        still: Callable[[Transaction], Awaitable[bool]] = always,
    ) -> list[OutboxPart]:
        """Store the parts of a message with their transaction ids.

        The first part counts as attempted with this, which saves a commit. Nothing is stored if
        the message is no longer waiting or `still` returns False.
        """
        now, of = self._clock.now(), len(contents)
        parts = [
            OutboxPart(
                *(outbox_id, n, of, txn_id, content, False),
                *((1, device_id, now) if n == 0 else UNTRIED),
            )
            for n, (txn_id, content) in enumerate(contents)
        ]
        async with self._database.transaction(late=True) as tx:
            waits = "SELECT 1 FROM outbox WHERE id = ? AND state = 'waiting'"
            if not (await tx.exists(waits, (outbox_id,)) and await still(tx)):
                return []
            for part in parts:
                values = columns(part, "of", "sent") | {"state": "waiting"}
                tx.defer(*insert("outbox_parts", values))
        return parts

    async def attempt(self, part: OutboxPart, device_id: str) -> OutboxPart:
        """Store that a part is about to be sent for the first time."""
        now = self._clock.now()
        async with self._database.transaction(late=True) as tx:
            tx.defer(
                "UPDATE outbox_parts SET attempts = 1, device_id = ?, first_attempt_at = ?"
                " WHERE outbox_id = ? AND n = ?",
                (device_id, stamp(now), part.outbox_id, part.n),
            )
        return replace(part, attempts=1, device_id=device_id, first_attempt_at=now)

    async def mark_shown(self, outbox_id: str) -> None:
        """Mark a message as sent because a person at the terminal or in the browser sees it."""
        async with self._database.transaction() as tx:
            await tx.execute(
                "UPDATE outbox SET state = 'sent', sent_at = ? WHERE id = ?",
                (stamp(self._clock.now()), outbox_id),
            )
            await self._after_sending(tx, outbox_id)

    async def mark_sent(self, part: OutboxPart, event_id: str | None) -> None:
        """Mark a part as sent; with the last part the message is sent.

        `event_id`: the event named by the homeserver; None if it refused the part for good.
        """
        async with self._database.transaction(late=True) as tx:
            tx.defer(
                "UPDATE outbox_parts SET state = 'sent', event_id = ? WHERE outbox_id = ? AND n = ?",
                (event_id, part.outbox_id, part.n),
            )
            await self._finish(tx, part.outbox_id, event_id)

    async def mark_parts_sent(
        self,
        tx: Transaction,
        outbox_id: str,
        room_id: str,
        parts: Mapping[int, tuple[str, str]],
        of: int,
    ) -> None:
        """Mark parts as sent that a run whose database is lost had sent (F-009).

        `parts`: transaction id and event by number. Once all are known the message counts as sent
        in that room, even if it was not split here yet.
        """
        for n, (txn_id, event_id) in parts.items():
            await tx.execute(
                "UPDATE outbox_parts SET state = 'sent', event_id = ? WHERE txn_id = ?",
                (event_id, txn_id),
            )
            if len(parts) == of:
                await tx.execute(
                    "INSERT INTO outbox_parts (outbox_id, n, txn_id, content, state, event_id,"
                    " attempts) SELECT id, ?, ?, '{}', 'sent', ?, 1 FROM outbox WHERE id = ?"
                    " AND state <> 'sent' ON CONFLICT DO NOTHING",
                    (n, txn_id, event_id, outbox_id),
                )
        if len(parts) == of:
            query = "UPDATE outbox SET room_id = ? WHERE id = ? AND state <> 'sent'"
            await tx.execute(query, (room_id, outbox_id))
            await self._finish(tx, outbox_id, parts[max(parts)][1])

    async def _finish(self, tx: Transaction, outbox_id: str, event_id: str | None) -> None:
        """Mark a message as sent with its last part, and complete what it was for."""
        row = await tx.row(
            "UPDATE outbox SET state = 'sent', sent_at = ?, problem = NULL WHERE id = ?"
            " AND state <> 'sent' AND NOT EXISTS (SELECT 1 FROM outbox_parts"
            "  WHERE outbox_id = outbox.id AND state = 'waiting')"
            " RETURNING conversation_id, room_id, reactions, continues",
            (stamp(self._clock.now()), outbox_id),
        )
        if row and row["continues"]:
            await drop_draft(tx, row["continues"])
        signs = (
            [*await self._after_sending(tx, outbox_id), *row["reactions"].split()] if row else ()
        )
        if row and event_id and signs:
            await self.react(tx, row["conversation_id"], row["room_id"], event_id, signs)

    async def enqueued(self, source: Transaction | Database, outbox_ids: Sequence[str]) -> set[str]:
        """Return those of these messages that have a row."""
        query = "SELECT id FROM outbox WHERE id IN (SELECT value FROM json_each(?))"
        return set(await source.scalars(query, (json.dumps([*outbox_ids]),)))

    async def note_event(self, tx: Transaction, txn_id: str, event_id: str) -> None:
        """Store the event of a part that is in its room before the sender has its answer."""
        await tx.execute(
            "UPDATE outbox_parts SET event_id = ? WHERE txn_id = ? AND state = 'waiting'",
            (event_id, txn_id),
        )

    async def sent_event(self, tx: Transaction, room_id: str, event_id: str) -> SentMessage | None:
        """Find the message of ours that an event of a room belongs to (X-026).

        For an event that a later row has edited, it is the newest such row.
        """
        row = await tx.row(
            "SELECT o.id, o.cast_id, o.meant_for, coalesce(p.content ->> '$.\"m.new_content\".body',"
            " p.content ->> '$.body', o.body) AS body"
            " FROM outbox_parts s JOIN outbox w ON w.id = s.outbox_id JOIN outbox o"
            "  ON o.id = coalesce(iif(s.n = 0, (SELECT c.id FROM outbox c"
            "   WHERE c.continues = coalesce(w.continues, w.id) AND c.room_id = w.room_id"
            "   ORDER BY c.seq DESC LIMIT 1), NULL), w.id)"
            " LEFT JOIN outbox_parts p ON p.outbox_id = o.id AND p.n = s.n"
            " WHERE s.event_id = ? AND w.room_id = ? ORDER BY w.seq DESC LIMIT 1",
            (event_id, room_id),
        )
        return _spoken(row) if row else None

    async def answer_to(self, tx: Transaction, event_id: str, by: datetime | None = None) -> str:
        """Return the text of our answer to an event; `by`: only if it was being sent by then."""
        begun = "(SELECT first_attempt_at FROM outbox_parts WHERE outbox_id = id AND n = 0)"
        query = f"(?2 IS NULL OR coalesce({begun}, sent_at) <= ?2) ORDER BY seq DESC LIMIT 1"
        query = f"SELECT body FROM outbox WHERE answers = ?1 AND {query}"
        return "".join(await tx.scalars(query, (event_id, by and stamp(by))))

    async def answers_to(self, events: Sequence[str]) -> dict[str, str]:
        """Return our stored answers to these events."""
        rows = await self._database.rows(
            "SELECT answers, body FROM outbox WHERE answers IN (SELECT value FROM json_each(?))"
            " AND kind = 'reply' AND body <> '' ORDER BY seq",
            (json.dumps(list(events)),),
        )
        return {row["answers"]: row["body"] for row in rows}

    async def last_answer(self, tx: Transaction, conversation_id: str, scope: str) -> str | None:
        """Return the cast of the last answer in a conversation that was made for this scope."""
        found = await tx.scalars(
            "SELECT cast_id FROM outbox WHERE conversation_id = ? AND meant_for = ?"
            " AND kind = 'reply' AND cast_id IS NOT NULL ORDER BY seq DESC LIMIT 1",
            (conversation_id, scope),
        )
        return found[0] if found else None

    async def relabel(self, tx: Transaction, outbox_id: str, late: LateNote, cause: str) -> None:
        """Change the late note of an unsent message (T-043).

        If it was not attempted yet, it then counts as said for the due moment `cause` (F-009).
        """
        await tx.execute(
            "UPDATE outbox SET late_after = ?, late_note = ?, cause = iif(EXISTS (SELECT 1 FROM"
            " outbox_parts WHERE outbox_id = outbox.id AND attempts > 0), cause, ?)"
            " WHERE id = ? AND state <> 'sent'",
            (stamp(late.after), late.mark, cause, outbox_id),
        )

    async def undeliverable(
        self, tx: Transaction, outbox_ids: Sequence[str], unserved: str | None
    ) -> dict[str, str]:
        """Return those of these messages that cannot be sent to their rooms, each with that room.

        They were refused for good or are for the `unserved` room, and are certainly in no room.
        The room is "" if it may take the message once another member has left.
        """
        rows = await tx.rows(
            "SELECT o.id, iif(o.problem = :not_alone, '', o.room_id) AS room_id"
            " FROM json_each(:ids) w JOIN outbox o ON o.id = w.value"
            " WHERE (o.state = 'stuck' OR o.state = 'waiting' AND o.room_id = :unserved)"
            " AND NOT EXISTS (SELECT 1 FROM outbox_parts p WHERE p.outbox_id = o.id"
            "  AND p.event_id IS NOT NULL)",
            {"ids": json.dumps([*outbox_ids]), "unserved": unserved, "not_alone": NOT_ALONE},
        )
        return {row["id"]: row["room_id"] for row in rows}

    async def move(
        self, tx: Transaction, outbox_id: str, conversation_id: str, heading: str = ""
    ) -> None:
        """Move a refused message to another conversation, below a heading; it is split and sent anew."""
        await tx.execute("DELETE FROM outbox_parts WHERE outbox_id = ?", (outbox_id,))
        await tx.execute(
            "UPDATE outbox SET conversation_id = :conversation,"
            " room_id = (SELECT room_id FROM conversations WHERE id = :conversation),"
            " body = iif(substr(body, 1, length(:heading)) = :heading, body, :heading || body),"
            " state = 'waiting', problem = NULL WHERE id = :id",
            {"conversation": conversation_id, "heading": heading, "id": outbox_id},
        )

    async def follow(
        self, tx: Transaction, outbox_id: str, room_id: str, contents: Sequence[tuple[str, Json]]
    ) -> None:
        """Send the unsent parts of a message to the room that replaces its own (F-013).

        Sent parts stay where they are. `contents`: all parts as rendered for the new room.
        """
        query = "UPDATE outbox SET room_id = ?, problem = NULL WHERE id = ? AND state = 'waiting'"
        await tx.execute(query, (room_id, outbox_id))
        await tx.execute_many(
            "UPDATE outbox_parts SET content = ?, attempts = 0, device_id = NULL,"
            " first_attempt_at = NULL WHERE txn_id = ? AND state = 'waiting'",
            [(json.dumps(content), txn_id) for txn_id, content in contents],
        )

    async def keep_back(self, tx: Transaction, outbox_id: str) -> None:
        """Keep a message back until all readers of its room may read it or another room is found.

        If nothing is sent yet it is split anew then: an edit would not notify people (X-052).
        """
        await tx.execute(
            "DELETE FROM outbox_parts WHERE outbox_id = :id AND NOT EXISTS (SELECT 1"
            " FROM outbox_parts WHERE outbox_id = :id AND event_id IS NOT NULL)",
            {"id": outbox_id},
        )
        query = "UPDATE outbox SET state = 'stuck', problem = ? WHERE id = ?"
        await tx.execute(query, (NOT_ALONE, outbox_id))

    async def mark_refused(
        self, outbox_id: str, problem: str, still: Callable[[], bool] = lambda: True
    ) -> bool:
        """Keep a message that the homeserver refuses for good; `status` names it.

        Returns False, and the message goes on waiting, if `still` is False by then.
        """
        async with self._database.transaction() as tx:
            if not still():
                return False
            await tx.execute(
                "UPDATE outbox SET state = 'stuck', problem = ? WHERE id = ?", (problem, outbox_id)
            )
            return True

    async def rename(self, tx: Transaction, was: str, scope: str) -> None:
        """Give unsent messages of a renamed scope its new name."""
        query = "UPDATE outbox SET meant_for = ? WHERE meant_for = ? AND state <> 'sent'"
        await tx.execute(query, (scope, was))

    async def release_for(self, tx: Transaction, scope: str) -> None:
        """Retry messages that were kept back: there is a room now where this scope may be read."""
        await tx.execute(
            "UPDATE outbox SET state = 'waiting' WHERE state = 'stuck' AND problem = ?"
            " AND meant_for = ? AND body <> ''",
            (NOT_ALONE, scope),
        )

    async def release(self, tx: Transaction, room_id: str) -> None:
        """Retry the stuck messages of a room that let us in again, unless they were erased since."""
        await tx.execute(
            "UPDATE outbox SET state = 'waiting' WHERE room_id = ? AND state = 'stuck'"
            " AND (body <> '' OR edits_of IS NOT NULL OR changes IS NOT NULL)",
            (room_id,),
        )

    async def drop(self, tx: Transaction, outbox_id: str) -> None:
        """Erase the text of a message and send no more of it."""
        await tx.execute("UPDATE outbox SET body = '' WHERE id = ?", (outbox_id,))
        parts = "UPDATE outbox_parts SET content = '{}', state = 'sent' WHERE outbox_id = ?"
        await tx.execute(parts, (outbox_id,))
        await self._finish(tx, outbox_id, None)

    async def withdraw(self, tx: Transaction, conversation_id: str, room_id: str, of: str) -> None:
        """Enqueue the redaction of all edits of an event of ours, or of a draft by its row (X-054)."""
        more = {"reacts_to": of, "edits_of": of}
        await self._insert(tx, conversation_id, room_id, "event", "", **more)
