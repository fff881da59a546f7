"""What is promised next, and what was not kept as promised (T-055).

Tasks are named by their ids, not by what they are about: a status is also asked for in groups.
"""

from collections.abc import Sequence
from datetime import timedelta
from zoneinfo import ZoneInfo

from wintermute.clock import Clock, moment, stamp
from wintermute.db import Database
from wintermute.health.store import HealthState

NEXT = 5
MOST_NAMED = 5
GRACE = timedelta(minutes=5)
"""What is later than this is late (T-038)."""
LATELY = timedelta(days=1)


async def promises(database: Database, clock: Clock, zone: ZoneInfo) -> tuple[HealthState, str]:
    """The state of all tasks, and the words for it."""
    now = clock.now()
    overdue = stamp(now - GRACE)
    wrong = {
        "overdue": await _ids(
            database,
            "SELECT id FROM tasks WHERE status = 'active' AND held = 0 AND next_due < ?"
            " ORDER BY next_due, seq",
            overdue,
        ),
        "not said yet": await _ids(
            database,
            "SELECT task_id FROM occurrences WHERE state = 'claimed' AND mode = 'reminder'"
            " AND due_at < ? ORDER BY due_at",
            overdue,
        ),
        "due, but there is no room to say it in": await _ids(
            database, "SELECT id FROM tasks WHERE held = 1 AND status = 'active' ORDER BY seq"
        ),
        "failed": await _failed(database),
    }
    paused = await _ids(database, "SELECT id FROM tasks WHERE status = 'paused' ORDER BY seq")
    late = await _late(database, stamp(now - LATELY))
    counted = [f"{len(ids)} {what}: {_named(ids)}" for what, ids in wrong.items() if ids]
    counted += [f"{len(paused)} paused: {_named(paused)}"] if paused else []
    counted += [f"{late} late since yesterday"] if late else []
    text = "; ".join([await _next(database, zone), *counted])
    return "warn" if any(wrong.values()) else "ok", text


async def _ids(database: Database, sql: str, *values: str) -> list[str]:
    return [row[0] for row in await database.rows(sql, values)]


async def _failed(database: Database) -> list[str]:
    """Those whose last run failed, with how many did in a row."""
    rows = await database.rows(
        "SELECT id, failures FROM tasks WHERE status IN ('active', 'paused') AND failures > 0"
        " ORDER BY seq"
    )
    return [
        f"{row['id']} ({row['failures']} in a row)" if row["failures"] > 1 else row["id"]
        for row in rows
    ]


async def _late(database: Database, since: str) -> int:
    """Because we were away when it was due, or because a message did not get through."""
    row = await database.row(
        "SELECT count(*) AS n FROM occurrences WHERE state = 'done' AND ended_at >= ?"
        " AND (missed > 0 OR mode = 'reminder'"
        "  AND unixepoch(ended_at) - unixepoch(due_at) > ?)",
        (since, GRACE.total_seconds()),
    )
    return int(row["n"]) if row else 0


async def _next(database: Database, zone: ZoneInfo) -> str:
    rows = await database.rows(
        "SELECT id, next_due FROM tasks WHERE status = 'active' AND held = 0"
        " AND next_due IS NOT NULL ORDER BY next_due, seq LIMIT ?",
        (NEXT,),
    )
    named = [
        f"{row['id']} {moment(row['next_due']).astimezone(zone):%Y-%m-%d %H:%M}" for row in rows
    ]
    return f"next {', '.join(named)}" if named else "nothing is due"


def _named(ids: Sequence[str]) -> str:
    more = [f"{len(ids) - MOST_NAMED} more"] if len(ids) > MOST_NAMED else []
    return ", ".join([*ids[:MOST_NAMED], *more])
