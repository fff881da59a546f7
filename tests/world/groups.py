"""A group in which somebody speaks to others beside the bot."""

from tests.world.clock import FakeClock
from tests.world.house import ROOM, House
from tests.world.redacted import EVE


async def begin_group(house: House, clock: FakeClock, room: str = ROOM) -> None:
    """The bot has been in a group for a moment."""
    async with house.database.transaction() as tx:
        await house.conversations.in_room(tx, room, f"room:{room}")
    clock.advance(1)


async def group_line(house: House, text: str, room: str = ROOM) -> str:
    """Eve says something to others."""
    return await house.incoming(
        text,
        room=room,
        sender=EVE,
        name="Eve",
        origin="other",
        kind="context",
        scope=f"room:{room}",
    )
