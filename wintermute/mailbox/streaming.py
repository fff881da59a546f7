"""Streamed answers: the rows of drafts, and the event that the final text replaces (X-036).

A draft `grows` for a message, named by its original event. The answer `continues` the row that
owns the event: the draft, or the answer to the message before its edit (X-062).
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

from wintermute.clock import moment
from wintermute.db import Database, Transaction
from wintermute.db.values import reader

NEW_MESSAGE_AFTER = timedelta(seconds=60)
"""Longest streaming after which the answer still edits the draft; later it is a new message (X-038)."""
REFUSED_EDIT = "an edit of it was refused"
REMOVED_DRAFT = "it was taken away"
ENDED = "its answer is a message of its own"
"""The `problem` of a row whose event must not be edited any more."""
DRAFT = (
    "SELECT o.id, o.meant_for, o.body, EXISTS (SELECT 1 FROM outbox_parts p WHERE p.outbox_id = o.id"
    "  AND p.attempts > 0) AS attempted FROM outbox o WHERE grows ="
    " coalesce((SELECT edits FROM inbox WHERE event_id = :event), :event)"
    f" AND body <> '' AND coalesce(problem, '') NOT IN ('{REMOVED_DRAFT}', '{ENDED}')"
    " AND NOT EXISTS (SELECT 1 FROM outbox c WHERE c.continues = o.id) ORDER BY seq DESC LIMIT 1"
)
FORMER = (  # the answer to the message before its edit; only reactions and edits may have followed
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
class EditableRow:
    """The row whose event an answer replaces. `attempted`: the event may be in its room already."""

    id: str
    attempted: bool


_former = reader(EditableRow, "attempted")


async def open_draft(tx: Transaction, event_id: str) -> tuple[str, str] | None:
    """Return the text of an unfinished draft for a message, and the scope it was made for."""
    draft = await tx.row(DRAFT, {"event": event_id})
    return (draft["body"], draft["meant_for"]) if draft else None


async def editable_row(tx: Transaction, event_id: str, scope: str | None) -> EditableRow | None:
    """Find the row whose event the answer to a message may replace.

    `scope`: for whom the answer is; with None only a draft is found, no answer to an earlier
    version.
    """
    draft = await tx.row(DRAFT, {"event": event_id})
    if draft is not None:
        return _former(draft, attempted=bool(draft["attempted"]))
    answer = await tx.row(FORMER, {"event": event_id, "scope": scope}) if scope else None
    return _former(answer, attempted=True) if answer else None


async def continued_row(tx: Transaction, event_id: str, scope: str | None) -> str | None:
    """Return the row that the answer to a message continues; a draft that was never sent is dropped."""
    former = await editable_row(tx, event_id, scope)
    if former is None or former.attempted:
        return former.id if former else None
    await drop_draft(tx, former.id)
    return None


async def drop_draft(tx: Transaction, outbox_id: str) -> None:
    """Stop sending a draft and erase its text."""
    query = "UPDATE outbox SET state = 'sent', body = '' WHERE id = ? AND grows IS NOT NULL"
    if await tx.execute(query, (outbox_id,)):
        query = "UPDATE outbox_parts SET state = 'sent', content = '{}' WHERE outbox_id = ?"
        await tx.execute(query, (outbox_id,))


async def editable_event(
    source: Transaction | Database, outbox_id: str, room_id: str
) -> str | None:
    """Return the event of a row in this room that may still be edited; None if there is none."""
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
    """Return the event that the first part of an answer edits; None: it is sent as a new message.

    To be called when the parts are stored. `outbox_id`: the row that the answer continues.
    """
    began = await source.scalars(
        "SELECT p.first_attempt_at FROM outbox o JOIN outbox_parts p ON p.outbox_id = o.id"
        " AND p.n = 0 WHERE o.id = ? AND o.grows IS NOT NULL AND o.body <> ''"
        " AND p.first_attempt_at IS NOT NULL",
        (outbox_id,),
    )
    if began and now - moment(began[0]) > NEW_MESSAGE_AFTER:
        return None
    return await editable_event(source, outbox_id, room_id)


async def refuse_edits(tx: Transaction, outbox_id: str, answer_id: str | None = None) -> None:
    """Mark a row's event as not editable; the parts of `answer_id`, which would edit it, are made anew."""
    query = "UPDATE outbox SET problem = ? WHERE id = ? AND problem IS NULL"
    await tx.execute(query, (REFUSED_EDIT, outbox_id))
    await tx.execute("DELETE FROM outbox_parts WHERE outbox_id = ?", (answer_id,))
