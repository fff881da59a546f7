"""Who wrote into conversations, for exports that are to name nobody."""

import json
from collections.abc import Sequence

from wintermute.db import Database


async def people(
    database: Database, conversation_ids: Sequence[str]
) -> tuple[tuple[str, str], ...]:
    """Matrix id and display name of everybody, in the order in which they first wrote."""
    rows = await database.rows(
        "SELECT sender, sender_name FROM inbox WHERE conversation_id IN"
        " (SELECT value FROM json_each(?)) GROUP BY sender, sender_name ORDER BY min(seq)",
        (json.dumps(list(conversation_ids)),),
    )
    return tuple((row["sender"], row["sender_name"]) for row in rows)
