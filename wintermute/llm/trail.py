"""What casts asked of models, attempt by attempt, as JSON: for whoever looks for a problem."""

import json
from collections.abc import Sequence

from wintermute.db import Database
from wintermute.messages import Json


async def attempts(database: Database, cast_ids: Sequence[str]) -> list[Json]:
    """All attempts of these casts, oldest first; `request` and `answer` where they were kept."""
    rows = await database.rows(
        "SELECT * FROM model_calls WHERE cast_id IN (SELECT value FROM json_each(?))"
        " ORDER BY created_at, rowid",
        (json.dumps(list(cast_ids)),),
    )
    found: list[Json] = []
    for row in rows:
        attempt: Json = {name: row[name] for name in row.keys()}  # noqa: SIM118  not a dict
        for body in ("request", "answer"):
            attempt[body] = json.loads(attempt[body]) if attempt[body] else None
        found.append(attempt)
    return found
