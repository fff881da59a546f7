"""A message that is taken back, and its word that no request may have afterwards."""

import json

from tests.world.house import ROOM, House
from tests.world.model import Seen
from wintermute.matrix.relations import Relations

PASSWORD_WORD = "hunter2"
SECRET = f"my password is {PASSWORD_WORD}"
GROUP_SCOPE = "room:!room:test"
EVE = "@eve:test"


async def take_back(house: House, *events: str) -> None:
    """The events are taken back, as a sync brings it."""
    async with house.database.transaction() as tx:
        found = await Relations(house.stores, house.rooms).redact(tx, ROOM, events)
    for conversation_id in found:
        house.rooms.wake(conversation_id)


def is_told(seen: Seen, word: str = PASSWORD_WORD) -> bool:
    """Whether a request has any trace of what was said."""
    return word in json.dumps(seen.body)
