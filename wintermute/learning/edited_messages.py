"""Edited messages: facts that came only from an earlier version of them are retired (M-089)."""

import json
from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import datetime, tzinfo

from wintermute.changes.change_sets import Change, Reason
from wintermute.clock import stamp
from wintermute.db import Database, Transaction
from wintermute.memory.fact import EXPLICIT, Fact, retirements, state_of
from wintermute.memory.grounding import Line
from wintermute.memory.origins import EditedMessage, Origins
from wintermute.stores import Stores
from wintermute.tasks.tasks import EVERYWHERE
from wintermute.text import display_name

WORDINGS = """
SELECT said.*, i.sender_name AS name, i.sent_at FROM (
    SELECT coalesce(edits, event_id) AS message, event_id, body AS text, received_at AS at FROM inbox
    WHERE event_id IN (SELECT value FROM json_each(:messages))
        OR edits IN (SELECT value FROM json_each(:messages)) AND state = 'answered'
    UNION ALL SELECT edited, event_id, text, created_at FROM edits
    WHERE edited IN (SELECT value FROM json_each(:messages))) said
JOIN inbox i ON i.event_id = said.message
WHERE text <> '' ORDER BY message, at
"""
EDITED_SINCE = (
    "SELECT edited FROM edits WHERE created_at >= :since"
    " UNION SELECT edits FROM inbox WHERE edits IS NOT NULL AND received_at >= :since"
)


async def edited_messages(
    source: Transaction | Database, messages: Collection[str], zone: tzinfo
) -> list[EditedMessage]:
    """Return those of these messages that were edited, each with all its versions."""
    asked = {"messages": json.dumps(sorted(messages))}
    said: dict[str, dict[str, Line]] = {}
    for row in await source.rows(WORDINGS, asked) if messages else ():
        on = datetime.fromisoformat(row["sent_at"]).astimezone(zone).date()
        line = Line(row["text"], on, display_name(row["name"]))
        said.setdefault(row["message"], {})[row["event_id"]] = line
    return [
        EditedMessage(name, frozenset(lines), tuple(lines.values())[:-1], [*lines.values()][-1])
        for name, lines in said.items()
        if len(lines) > 1
    ]


async def retire_retracted(
    stores: Stores,
    tx: Transaction,
    scope: str,
    found: Sequence[EditedMessage],
    but: Collection[str],
) -> tuple[list[Fact], list[Change]]:
    """Retire facts that came only from earlier versions, `but` these facts; return them with their changes.

    Facts that were merged into them, or ended for them, are restored. A fact that a person asked for stays.
    """
    origins = Origins(stores.facts)
    named = await origins.of_events(tx, {event for each in found for event in each.events})
    learnt = [
        fact
        for fact in named
        if (fact.scope, fact.retired_at) == (scope, None)
        and not (fact.source == EXPLICIT or fact.protected or fact.id in but)
    ]
    ids = [fact.id for fact in await _unsaid(stores, tx, found, learnt)]
    gone = await stores.facts.retire_unrecorded(tx, scope, ids, "harvest")
    changes, before = retirements(gone), await origins.replaced_by(tx, ids)
    over = {fact.id for fact in await _unsaid(stores, tx, found, before)}
    for fact in before:
        was = None if fact.retired_at else state_of(fact)
        state = state_of(replace(fact, valid_to=None, replaced_by=None))
        put = fact.id not in over
        if put and await stores.facts.put(tx, fact.id, state, Reason("harvest", scope)):
            changes.append(Change("fact", fact.id, was, state))
    merged = {fact.replaced_by for fact in before}
    lost = [*gone, *(fact for fact in before if fact.id in over)]
    return [fact for fact in lost if fact.id not in merged], changes


async def asked_for(stores: Stores, scope: str, since: datetime) -> list[str]:
    """Return memories and tasks that a person asked for by a message edited since then."""
    everywhere = EVERYWHERE if stores.owner.owns(scope) else scope
    rows = await stores.database.rows(
        f"WITH edited AS ({EDITED_SINCE}) SELECT message, text FROM (SELECT o.value AS message, text"
        "  FROM facts, json_each(origins) o WHERE scope = :scope AND source = 'user_explicit'"
        "  AND retired_at IS NULL UNION ALL SELECT o.value, content FROM tasks, json_each(origins) o"
        "  WHERE scope IN (:scope, :everywhere) AND status IN ('active', 'paused'))"
        " WHERE message IN (SELECT edited FROM edited)",
        {"scope": scope, "everywhere": everywhere, "since": stamp(since)},
    )
    found = await edited_messages(
        stores.database, {row["message"] for row in rows}, stores.tasks.zone
    )
    made = [(row["text"], each) for row in rows for each in found if each.message == row["message"]]
    return list(dict.fromkeys(text for text, each in made if each.retracts(text, ())))


async def _unsaid(
    stores: Stores, tx: Transaction, found: Sequence[EditedMessage], facts: Sequence[Fact]
) -> list[Fact]:
    """Return the facts that came only from text that edits removed."""
    names = {name for fact in facts for name in fact.origins}
    rows = await stores.edits.wordings(tx, names) | await stores.inbox.current_texts(tx, names)
    gone = list[Fact]()
    for fact in facts:
        known = [rows[name] for name in fact.origins if name in rows]
        if len(known) < len(fact.origins):  # it has another origin
            continue
        for each in found:
            others = {body for message, body in known if body and message != each.message}
            if each.events & {*fact.origins} and each.retracts(fact.text, [*others]):
                gone.append(fact)
                break
    return gone
