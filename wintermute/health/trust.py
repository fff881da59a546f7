"""Whom it trusts and who made sure of it, as `status` and `matrix verify` show it."""

from wintermute.db import Database, Row
from wintermute.health.store import HealthState
from wintermute.text import counted

MOST_NAMED = 20


async def people(database: Database) -> tuple[HealthState, str]:
    """Everybody who was looked for: verified with the bot, known, or changed (X-034, X-035)."""
    rows = await database.rows(
        "SELECT user_id, master_key, changed_to, verified FROM people ORDER BY user_id"
    )
    named = "; ".join(f"{row['user_id']} {_standing(row)}" for row in rows[:MOST_NAMED])
    more = f"; {len(rows) - MOST_NAMED} more" if len(rows) > MOST_NAMED else ""
    changed = any(row["changed_to"] is not None for row in rows)
    return ("warn" if changed else "ok"), (named + more) or "nobody looked for yet"


def _standing(row: Row) -> str:
    if not row["master_key"]:
        return "has no identity"
    if row["changed_to"] is not None:
        advice = f"ask them, then `wintermute matrix trust {row['user_id']}`"
        return f"has another identity now -> {advice}"
    return "has verified this bot" if row["verified"] == row["master_key"] else "known"


async def untrusted(database: Database) -> tuple[HealthState, str]:
    """Messages that wait until somebody vouches for the session they came from."""
    rows = await database.rows(
        "SELECT sender, count(*) AS n FROM inbox WHERE state = 'untrusted' GROUP BY sender"
        " ORDER BY sender LIMIT 20"
    )
    if not rows:
        return "ok", "no messages wait for a session to be verified"
    named = ", ".join(f"{counted(row['n'], 'message')} of {row['sender']}" for row in rows)
    return "warn", f"{named} wait -> they verify that session with another one of theirs"


async def verifications(database: Database) -> list[tuple[str, HealthState, str]]:
    """The last ones, newest first: name, state and text of each."""
    rows = await database.rows(
        "SELECT user_id, device_id, phase, shown, code FROM verifications"
        " ORDER BY began_at DESC LIMIT 5"
    )
    return [(f"verification with {row['user_id']}", *_step(row)) for row in rows]


def _step(row: Row) -> tuple[HealthState, str]:
    device = f" (session {row['device_id']})" if row["device_id"] else ""
    if row["phase"] == "done":
        return "ok", f"done{device}"
    if row["phase"] == "cancelled":
        return (
            "warn",
            f"cancelled{device}: {row['code']} -> begin again with your client or /verify",
        )
    if row["shown"]:
        return "ok", f"compare{device}: {row['shown']}"
    return "ok", f"under way{device}: {row['phase']}"
