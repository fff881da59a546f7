"""Messages that are edited after they were answered, and the branches that come of it."""

from tests.world.house import ANN, ROOM, SEQUENCE, House
from wintermute.messages import Incoming, Json

DONE_BEFORE = "For its earlier wording you had already done: "


async def edit(house: House, event_id: str, text: str) -> str:
    """A new text for a message, as the door stores it; the event's id."""
    new = Incoming(
        event_id=f"$edit{next(SEQUENCE)}",
        room_id=ROOM,
        sender=ANN,
        sender_name="Ann",
        origin="owner",
        kind="message",
        body=text,
        sent_at=house.clock.now(),
        direct=True,
        edits=event_id,
    )
    async with house.database.transaction() as tx:
        conversation = await house.conversations.in_room(tx, ROOM, f"person:{ANN}")
        await house.inbox.store(tx, conversation, new, "waiting")
    house.rooms.wake(conversation)
    return new.event_id


async def branches(house: House) -> list[Json]:
    return await house.rows("SELECT id, reason, forked_from FROM branches ORDER BY seq")
