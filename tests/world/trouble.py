"""A model server or a message that fails, while time passes."""

import asyncio

from tests.world.clock import HeldClock
from tests.world.house import House
from tests.world.model import Fail, Seen, Step
from wintermute.loom.records import Wards

POISON = "poison"
LONG = Wards(10, 900, 10_000, require_done=False)


def poisoned(seen: Seen) -> Step | None:
    """One message fails, whatever else is asked."""
    return Fail(500) if POISON in seen.last_user else None


async def seconds_pass(house: House, clock: HeldClock, seconds: int) -> None:
    """A few at a time, and each only when what the last ones brought is done."""

    async def nothing_under_way() -> bool:
        return not await house.rows("SELECT 1 FROM inbox WHERE state = 'casting'")

    for _ in range(0, seconds, 5):
        await clock.move(5)
        await asyncio.sleep(0.05)
        await house.until(nothing_under_way)
