"""Messages that are edited after they were answered, and the branches that come of it."""

from tests.world.house import SEQUENCE, House
from wintermute.messages import Json

DONE_BEFORE = "For its earlier wording you had already done: "


async def edit(house: House, event_id: str, text: str) -> str:
    """Store a new text for a message, as the door does; the event's id."""
    name = f"$edit{next(SEQUENCE)}"
    return await house.incoming(text, kind="message", event_id=name, edits=event_id)


async def branches(house: House) -> list[Json]:
    """List the branches, oldest first."""
    return await house.rows("SELECT id, reason, forked_from FROM branches ORDER BY seq")
