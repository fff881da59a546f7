"""Single values by name: a counter, the sync token, the last reading of the clock."""

import json
from typing import Any

from wintermute.db.database import Database, Transaction


async def single(source: Transaction | Database, name: str) -> Any | None:
    """Read the value of this name; None: there is none."""
    found = await source.scalars("SELECT value FROM single_values WHERE name = ?", (name,))
    return json.loads(found[0]) if found and isinstance(found[0], str) else next(iter(found), None)


async def put_single(tx: Transaction, name: str, value: Any) -> None:
    """Store a value in place of the last one; None: delete it."""
    if value is None:
        await tx.execute("DELETE FROM single_values WHERE name = ?", (name,))
    else:
        tx.defer(
            "INSERT INTO single_values (name, value) VALUES (?, ?)"
            " ON CONFLICT (name) DO UPDATE SET value = excluded.value",
            (name, json.dumps(value)),
        )


async def add_to(tx: Transaction, counter: str, by: int) -> None:
    """Add to a counter; a new one starts at 0."""
    await tx.execute(
        "INSERT INTO single_values (name, value) VALUES (?, ?)"
        " ON CONFLICT (name) DO UPDATE SET value = value + excluded.value",
        (counter, by),
    )


async def counters(source: Transaction | Database, beginning: str) -> dict[str, int]:
    """Read the counters with this prefix, the highest first, by the rest of their names."""
    rows = await source.rows(
        "SELECT substr(name, length(:beginning) + 1) AS name, value FROM single_values"
        " WHERE substr(name, 1, length(:beginning)) = :beginning ORDER BY value DESC, name",
        {"beginning": beginning},
    )
    return {row["name"]: row["value"] for row in rows}
