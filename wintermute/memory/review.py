"""What of the facts a night looks at: those that say something new since their neighbours were seen."""

import json
from collections.abc import Collection

from wintermute.db import Transaction
from wintermute.memory.facts import IN_LIST


async def looked_at(tx: Transaction, ids: Collection[str]) -> None:
    """The neighbours of these facts were looked at: they are new no more."""
    await tx.execute(f"UPDATE facts SET judged = 1 WHERE id {IN_LIST}", (json.dumps([*ids]),))
