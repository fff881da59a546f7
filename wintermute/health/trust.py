"""Whom it trusts and who made sure of it, as `status` and `matrix verify` show it."""

from wintermute.db import Database, Row
from wintermute.health.store import HealthState
from wintermute.text import counted

MOST_NAMED = 20
AGAIN = "begin again with your client or /verify"
UNFIT = (
    f"what the client sent does not fit -> {AGAIN}; if that fails as well, use another client, or"
    " compare the fingerprints above"
)
ENDS = {
    "": f"the client gave no reason -> {AGAIN}",
    "m.user": f"cancelled in the client -> {AGAIN}; but if the emojis were different, do not:"
    " somebody sits between you and the bot",
    "m.mismatched_sas": "the emojis were different, somebody sits between you and the bot -> do not"
    " go on, see docs/encryption.md",
    "m.timeout": f"it took longer than ten minutes -> {AGAIN}",
    "m.unknown_transaction": f"the bot was restarted -> {AGAIN}",
    "m.unknown_method": "your client and the bot have no method in common -> use another client",
    "m.accepted": "another session of the bot answered -> go on with that one",
    "m.key_mismatch": UNFIT,
    "m.mismatched_commitment": UNFIT,
    "m.invalid_message": UNFIT,
    "m.unexpected_message": UNFIT,
}
"""Why a verification was cancelled, and what to do then."""


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
    return (
        "has verified this bot"
        if row["verified"] == row["master_key"]
        else "has not verified this bot"
    )


async def untrusted(database: Database) -> tuple[HealthState, str]:
    """Messages that wait until somebody vouches for the session they came from."""
    rows = await database.rows(  # both states are named for the index of both
        "SELECT sender, count(*) AS n, p.changed_to IS NOT NULL AS changed,"
        " p.user_id IS NULL AS unseen FROM inbox LEFT JOIN people p ON p.user_id = sender"
        " WHERE state IN ('locked', 'untrusted') AND state = 'untrusted'"
        " GROUP BY sender ORDER BY sender LIMIT 20"
    )
    named = [f"{counted(row['n'], 'message')} of {row['sender']} {_wait(row)}" for row in rows]
    if not named:
        return "ok", "no messages wait for a session to be verified"
    return "warn", "; ".join(named)


def _wait(row: Row) -> str:
    verb = "waits" if row["n"] == 1 else "wait"
    if row["changed"]:
        advice = f"`wintermute matrix trust {row['sender']}`"
        return f"{verb} until their identity is trusted -> {advice}"
    if row["unseen"]:
        return f"{verb} until their homeserver says which sessions are theirs"
    return f"{verb} -> they verify that session with another one of theirs"


async def verifications(database: Database) -> list[tuple[str, HealthState, str]]:
    """The last one of each person, newest first: name, state and text of each."""
    rows = await database.rows(
        "SELECT user_id, device_id, phase, shown, code, max(began_at) AS began FROM verifications"
        " GROUP BY user_id ORDER BY began DESC LIMIT 5"
    )
    return [(f"verification with {row['user_id']}", *_step(row)) for row in rows]


def _step(row: Row) -> tuple[HealthState, str]:
    device = f" (session {row['device_id']})" if row["device_id"] else ""
    if row["phase"] == "done":
        return "ok", f"done{device}"
    if row["phase"] == "cancelled":
        return "warn", f"cancelled{device}: {ENDS.get(row['code'], row['code'])}"
    if row["shown"]:
        return "ok", f"compare{device}: {row['shown']}"
    return "ok", f"under way{device}: {row['phase']}"
