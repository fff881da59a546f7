"""A cast that began before a kill, written step by step as the loop writes it."""

from tests.world.house import WARDS, House
from wintermute.loom.records import Cast, Turn
from wintermute.messages import Call, Reply, Usage


def reply(text: str = "", *calls: Call) -> Reply:
    """Make a reply of a model."""
    return Reply(text, calls, "stop", Usage(10, 5, 0), "scripted", "scripted", 7)


async def casting(house: House, text: str = "go", event_id: str | None = None) -> Cast:
    """A message whose cast began before the kill."""
    event_id = event_id or await house.incoming(text)
    ((conversation, _),) = await house.inbox.open_conversations()
    async with house.database.transaction() as tx:
        branch = await house.conversations.current_branch(tx, conversation)
        cast = await house.casts.start(tx, branch, event_id, text, "owner", WARDS.record())
        await house.inbox.set_state(tx, event_id, "casting")
    return cast


async def took_turn(house: House, cast: Cast, said: Reply, error: str | None = None) -> Turn:
    """Store a turn of a cast."""
    async with house.database.transaction() as tx:
        _, parent = await house.casts.last_turn(tx, cast.id)
        return await house.casts.add_turn(tx, cast, parent, said, error)


async def began(house: House, turn: Turn, n: int) -> None:
    """Store that a call of a turn has begun."""
    async with house.database.transaction() as tx:
        await house.casts.begin_observation(tx, turn.id, n, turn.calls[n], {"say": "x"})


async def completed(house: House, turn: Turn, n: int, result: object) -> None:
    """Store that a call of a turn has begun and ended."""
    await began(house, turn, n)
    async with house.database.transaction() as tx:
        await house.casts.complete_observation(tx, turn.id, n, result, is_error=False)


async def answered_once(house: House) -> str:
    """Let the rooms work; the one thing that was said."""
    async with house.working():
        await house.settled()
    (row,) = await house.rows("SELECT * FROM outbox")
    cast = await house.one("SELECT state, reason FROM casts")
    assert cast["state"] in ("terminated", "truncated")
    assert cast["reason"]
    (state,) = await house.rows("SELECT state FROM inbox")
    assert state == {"state": "answered"}
    return str(row["body"])
