"""Answers that grow: the rows of drafts, and which event a later text takes the place of (X-036).

A draft `grows` for a message, as it was first written. The answer `continues` the row that owns the
event: the draft, or the answer to an earlier wording (X-062).
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

from wintermute.clock import moment
from wintermute.db import Database, Transaction
from wintermute.db.values import reader

RINGS_AFTER = timedelta(seconds=60)
"""An answer that ends later than this after it began to grow is a message of its own (X-038)."""
REFUSED_EDIT = "an edit of it was refused"
TAKEN_AWAY = "it was taken away"
ENDED = "its answer is a message of its own"
"""The `problem` of a row whose text nothing may take the place of."""
DRAFT = (
    "SELECT o.id, o.meant_for, o.body, EXISTS (SELECT 1 FROM outbox_parts p WHERE p.outbox_id = o.id"
    "  AND p.attempts > 0) AS attempted FROM outbox o WHERE grows ="
    " coalesce((SELECT edits FROM inbox WHERE event_id = :event), :event)"
    f" AND body <> '' AND coalesce(problem, '') NOT IN ('{TAKEN_AWAY}', '{ENDED}')"
    " AND NOT EXISTS (SELECT 1 FROM outbox c WHERE c.continues = o.id) ORDER BY seq DESC LIMIT 1"
)
FORMER = (  # the answer to an earlier wording, which nothing but signs and edits has followed
    "SELECT coalesce(o.continues, o.id) AS id FROM inbox i"
    " JOIN inbox v ON (v.event_id = i.edits OR v.edits = i.edits) AND v.seq < i.seq"
    " JOIN outbox o ON o.answers = v.event_id WHERE i.event_id = :event AND i.edits IS NOT NULL"
    " AND o.kind = 'reply' AND o.cast_id IS NOT NULL AND o.state = 'sent' AND o.body <> ''"
    " AND o.room_id = i.room_id AND o.meant_for = :scope"
    " AND (SELECT count(*) FROM outbox_parts WHERE outbox_id = o.id) = 1"
    " AND NOT EXISTS (SELECT 1 FROM inbox n WHERE n.room_id = o.room_id"
    "  AND n.received_at > o.sent_at AND n.edits IS NOT i.edits"
    "  AND iif(json_valid(n.raw), n.raw ->> '$.type', '') IS NOT 'm.reaction')"
    " AND NOT EXISTS (SELECT 1 FROM outbox n WHERE n.room_id = o.room_id AND n.seq > o.seq"
    "  AND n.reacts_to IS NULL AND n.changes IS NULL AND n.body <> '')"
    " ORDER BY o.seq DESC LIMIT 1"
)


@dataclass(frozen=True, slots=True)
class Former:
    """The row of ours whose event an answer takes the place of. `attempted`: it may be in its room."""

    id: str
    attempted: bool


_former = reader(Former, "attempted")


async def open_draft(tx: Transaction, event_id: str) -> tuple[str, str] | None:
    """The beginning of an answer that may be growing in its room, and for whom it is made."""
    draft = await tx.row(DRAFT, {"event": event_id})
    return (draft["body"], draft["meant_for"]) if draft else None


async def former_row(tx: Transaction, event_id: str, scope: str | None) -> Former | None:
    """The row whose event the answer to a message may take the place of.

    `scope`: for whom the answer is; None: it takes the place of no answer to an earlier wording.
    """
    draft = await tx.row(DRAFT, {"event": event_id})
    if draft is not None:
        return _former(draft, attempted=bool(draft["attempted"]))
    answer = await tx.row(FORMER, {"event": event_id, "scope": scope}) if scope else None
    return _former(answer, attempted=True) if answer else None


async def taken_over(tx: Transaction, event_id: str, scope: str | None) -> str | None:
    """The row that the answer to a message continues. A draft that nobody can have seen is dropped."""
    former = await former_row(tx, event_id, scope)
    if former is None or former.attempted:
        return former.id if former else None
    await drop_draft(tx, former.id)
    return None


async def drop_draft(tx: Transaction, outbox_id: str) -> None:
    """A draft is not said any more, or keeps its text no longer."""
    query = "UPDATE outbox SET state = 'sent', body = '' WHERE id = ? AND grows IS NOT NULL"
    if await tx.execute(query, (outbox_id,)):
        query = "UPDATE outbox_parts SET state = 'sent', content = '{}' WHERE outbox_id = ?"
        await tx.execute(query, (outbox_id,))


async def open_event(source: Transaction | Database, outbox_id: str, room_id: str) -> str | None:
    """The event of a row in this room that another text may take the place of; None: not any more."""
    found = await source.scalars(
        "SELECT p.event_id FROM outbox o JOIN outbox_parts p ON p.outbox_id = o.id AND p.n = 0"
        " WHERE o.id = ? AND o.room_id = ? AND o.problem IS NULL AND p.event_id IS NOT NULL",
        (outbox_id, room_id),
    )
    return found[0] if found else None


async def may_continue(
    source: Transaction | Database,
    outbox_id: str,
    room_id: str,
    now: datetime,
) -> str | None:
    """The event that the first part of an answer is an edit of; None: it is a message of its own.

    Asked when its parts are stored. `outbox_id`: the row that it continues.
    """
    began = await source.scalars(
        "SELECT p.first_attempt_at FROM outbox o JOIN outbox_parts p ON p.outbox_id = o.id"
        " AND p.n = 0 WHERE o.id = ? AND o.grows IS NOT NULL AND o.body <> ''"
        " AND p.first_attempt_at IS NOT NULL",
        (outbox_id,),
    )
    if began and now - moment(began[0]) > RINGS_AFTER:
        return None
    return await open_event(source, outbox_id, room_id)


async def refuse_edits(tx: Transaction, outbox_id: str, answer_id: str | None = None) -> None:
    """No text takes the place of this row's event any more; an answer that was to is split anew."""
    query = "UPDATE outbox SET problem = ? WHERE id = ? AND problem IS NULL"
    await tx.execute(query, (REFUSED_EDIT, outbox_id))
    await tx.execute("DELETE FROM outbox_parts WHERE outbox_id = ?", (answer_id,))
