"""Rooms that gave way to others where we cannot go on, and what to do about it (F-013, X-030)."""

from wintermute.db import Database

MOST_NAMED = 5


async def left_behind(database: Database) -> str:
    """What has to wait because its room is over; "" when nothing has."""
    in_clear = await database.rows(
        "SELECT old.room_id AS old, new.room_id AS new FROM rooms old JOIN rooms new"
        " ON new.room_id = old.successor AND new.predecessor = old.room_id AND new.state = 'joined'"
        " WHERE old.moved_to = '' AND old.encrypted AND NOT new.encrypted ORDER BY old.room_id"
    )
    away = await database.rows(
        "SELECT old.room_id AS old, old.successor AS new FROM rooms old LEFT JOIN rooms new"
        " ON new.room_id = old.successor AND new.state = 'joined'"
        " WHERE old.moved_to = '' AND old.successor <> '' AND old.state = 'joined'"
        " AND new.room_id IS NULL AND EXISTS"
        "  (SELECT 1 FROM conversations c WHERE c.room_id = old.room_id) ORDER BY old.room_id"
    )
    told = [
        f"{row['new']} follows the encrypted {row['old']} in clear -> turn on encryption in it"
        for row in in_clear
    ]
    told += [
        f"{row['old']} gave way to {row['new']}, where I am not -> invite me there" for row in away
    ]
    more = [f"{len(told) - MOST_NAMED} more"] if len(told) > MOST_NAMED else []
    return "; ".join([*told[:MOST_NAMED], *more])
