"""Who works when: order inside a room, all rooms at once, and nobody who takes them all."""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path

import pytest

from tests.world.house import ROOM, Gate, House, house_at_work, open_house, open_thread
from tests.world.model import Calls, ModelServer, Seen, Slow, Step, Text, Use
from wintermute.conversation import replies
from wintermute.conversation.toolbox import Caller
from wintermute.mailbox.inbox import Inbox, InboxRow
from wintermute.messages import Json

BOB = "@bob:test"


def room(n: int) -> str:
    return f"!room{n}:test"


@pytest.fixture
def house(working_house: House) -> House:
    return working_house


async def test_a_room_is_answered_in_order_and_one_by_one(house: House, model: ModelServer) -> None:
    """X-002, L-072."""
    for n in range(10):
        await house.incoming(f"{n}")
    assert await house.said(10) == [f"echo: {n}" for n in range(10)]
    for n, request in enumerate(model.requests):
        shown = [m["content"] for m in request.messages[1:]]
        assert shown == [text for k in range(n) for text in (f"{k}", f"echo: {k}")] + [f"{n}"]


async def test_conversations_of_one_room_have_each_their_order_drafts_and_stop(
    house: House, model: ModelServer
) -> None:
    """L-072, L-073, L-023, X-041: in a thread and beside it."""
    gate = asyncio.Event()
    model.keyed(lambda s: Slow(gate, Text("slow")) if s.last_user == "think" else None)
    await house.incoming("think")
    await model.request_arrived(1)
    thread = await open_thread(house.stores)
    await house.incoming("hello", conversation=thread)
    assert await house.said(1) == ["echo: hello"]
    await house.incoming("/stop", conversation=thread)
    assert (await house.said(2))[1:] == [replies.NOTHING_RUNNING]
    gate.set()
    assert (await house.said(3))[2:] == ["slow"]
    gate.clear()
    await house.incoming("think", conversation=thread)
    await model.request_arrived(3)
    await house.incoming("/stop")
    assert (await house.said(4))[3:] == [replies.NOTHING_RUNNING]
    await house.incoming("/stop", conversation=thread)
    assert (await house.said(5))[4:] == [replies.STOPPED]
    gate.set()
    await house.settled()
    [room] = {row["id"] for row in await house.rows(OF_ROOM)} - {thread}
    assert house.speaker.drafted == {room: "slow", thread: "echo: hello"}
    texts = [await unsent(house, conversation) for conversation in (room, thread)]
    assert texts == [
        ["slow", replies.NOTHING_RUNNING],
        ["echo: hello", replies.NOTHING_RUNNING, replies.STOPPED],
    ]


OF_ROOM = "SELECT id FROM conversations WHERE kind = 'room'"


async def unsent(house: House, conversation: str) -> list[str]:
    """What a conversation has to say, in the order in which it is sent."""
    texts = []
    while row := await house.outbox.next(conversation, ROOM):
        [part] = await house.outbox.store_parts(row.id, [(row.id, {})], "DEVICE")
        await house.outbox.mark_sent(part, f"$of-{row.id}")
        texts.append(row.body)
    return texts


async def test_what_was_stored_before_the_start_is_answered_in_order(
    tmp_path: Path, model: ModelServer
) -> None:
    """X-005."""
    async with open_house(tmp_path, model.url) as house:
        for n in range(4):
            await house.incoming(f"{n}", room=room(n % 2))
    async with house_at_work(tmp_path, model.url) as house:
        assert await house.said(2, room(0)) == ["echo: 0", "echo: 2"]
        assert await house.said(2, room(1)) == ["echo: 1", "echo: 3"]


async def test_rooms_do_not_wait_for_each_other(house: House, model: ModelServer) -> None:
    """L-072: and a command waits only for what is before it in its own room."""
    gate = asyncio.Event()
    model.keyed(lambda s: Slow(gate, Text("slow")) if s.last_user == "think" else None)
    await house.incoming("think", room=room(1))
    await model.request_arrived(1)
    await house.incoming("/help", room=room(1))
    await house.incoming("hello", room=room(2))
    await house.incoming("/help", room=room(3))
    assert await house.said(1, room(2)) == ["echo: hello"]
    assert len(await house.said(1, room(3))) == 1
    assert await house.spoken(room(1)) == []
    gate.set()
    assert (await house.said(2, room(1)))[0] == "slow"


async def test_one_person_cannot_take_everything(house: House, model: ModelServer) -> None:
    """X-032: four casts of one person at the same time; others are not delayed."""
    gate = asyncio.Event()

    def choose(seen: Seen) -> Step | None:
        return Slow(gate, Text("done")) if seen.last_user == "ann's" else None

    model.keyed(choose)
    for n in range(7):
        await house.incoming("ann's", room=room(n))
    await model.request_arrived(4)
    await house.incoming("bob's", room="!bob:test", sender=BOB)
    assert await house.said(1, "!bob:test") == ["echo: bob's"]
    assert len(model.requests) == 5
    gate.set()
    for n in range(7):
        assert await house.said(1, room(n)) == ["done"]


async def test_a_stop_reaches_a_cast_that_waits_for_its_turn(
    house: House, model: ModelServer
) -> None:
    """X-032, L-023: it never asks the model."""
    gate = asyncio.Event()
    model.keyed(lambda s: Slow(gate, Text("done")) if s.last_user == "wait" else None)
    for n in range(4):
        await house.incoming("wait", room=room(n))
    await model.request_arrived(4)
    await house.incoming("never", room=room(9))
    await house.until(lambda: attended(house, room(9)))
    await house.incoming("/stop", room=room(9))
    assert await house.said(1, room(9)) == ["Stopped."]
    gate.set()
    await house.settled()
    assert await house.spoken(room(9)) == ["Stopped."]
    assert all(request.last_user == "wait" for request in model.requests)


async def attended(house: House, room_id: str) -> bool:
    return ("attend", room_id) in house.speaker.noted


async def test_the_room_sees_that_somebody_is_at_work(tmp_path: Path, model: ModelServer) -> None:
    """X-007: for each message a beginning and an end, also when it goes wrong."""

    async def bug(_caller: Caller, _args: Json) -> object:
        raise KeyError

    model.script(Calls((Use("echo"),)))
    async with house_at_work(tmp_path, model.url, gates=[Gate(act=bug)]) as house:
        await house.incoming("break")
        await house.incoming("hello")
        await house.incoming("/help")
        await house.said(3)
        await house.settled()
    shown = [what for what, _ in house.speaker.noted]
    went_wrong = ["attend", "gate echo", "rest", "speak"]
    assert shown == [*went_wrong, "attend", "rest", "speak", "speak"]


async def test_a_burst_in_many_rooms_loses_and_doubles_nothing(house: House) -> None:
    """X-006: woken more often than there is work, and while at work."""
    async with asyncio.TaskGroup() as senders:
        for n in range(12):
            senders.create_task(_sends(house, n))
    await house.settled()
    for n in range(12):
        assert await house.spoken(room(n)) == [f"echo: {n}.{k}" for k in range(5)]


async def _sends(house: House, n: int) -> None:
    for k in range(5):
        await house.incoming(f"{n}.{k}", room=room(n), sender=f"@{n}:test")
        house.rooms.wake("a conversation that is not there")


class LateInbox(Inbox):
    """Something comes in while the worker reads that nothing more is there."""

    late: Callable[[], Awaitable[None]] | None = None

    async def open_rows(self, conversation_id: str, aside: Collection[str] = ()) -> list[InboxRow]:
        rows = await super().open_rows(conversation_id, aside)
        if not rows and self.late is not None:
            late, self.late = self.late, None
            await late()
        return rows


async def test_a_message_between_reading_and_going_home_is_not_forgotten(
    tmp_path: Path, model: ModelServer
) -> None:
    """X-005: the worker has read before it came, and was woken before it left."""
    late_house = open_house(tmp_path, model.url, inbox_type=LateInbox)
    async with late_house as house, house.working():
        assert isinstance(house.inbox, LateInbox)

        async def late() -> None:
            await house.incoming("late")
            await house.incoming("/stop")
            await house.said(2)

        house.inbox.late = late
        await house.incoming("hello")
        assert await house.said(3) == ["echo: hello", "Nothing was running.", "echo: late"]


async def test_a_new_scope_in_the_room_shows_nothing_of_before(
    house: House, model: ModelServer
) -> None:
    """X-031, DESIGN 6: a third person came in."""
    await house.incoming("my secret")
    await house.said(1)
    await house.incoming("hello all", scope="room:!room:test", direct=False)
    await house.said(2)
    reasons = await house.rows("SELECT reason FROM branches ORDER BY seq")
    assert [row["reason"] for row in reasons] == ["start", "scope"]
    assert "secret" not in str(model.requests[1].messages)


async def test_a_cast_stays_in_its_branch_whatever_begins_meanwhile(
    tmp_path: Path, model: ModelServer
) -> None:
    """L-074, F-004: the scope changes while a gate runs; the model is not asked again."""
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def wait(caller: Caller, _args: Json) -> object:
        begun.set()
        await go_on.wait()
        return caller.scope

    model.script(Calls((Use("echo"),)))
    async with house_at_work(tmp_path, model.url, gates=[Gate(act=wait)]) as house:
        await house.incoming("old")
        await begun.wait()
        await house.incoming("new", scope="room:!room:test")
        go_on.set()
        assert await house.said(2) == [replies.JOINED, "echo: Ann (@ann:test): new"]
        casts = await house.rows("SELECT branch_id, reason FROM casts ORDER BY seq")
        [gate] = await house.rows("SELECT result FROM observations")
    assert casts[0]["branch_id"] != casts[1]["branch_id"]
    assert [cast["reason"] for cast in casts] == ["joined", "text"]
    assert [m["content"] for m in model.requests[1].messages[1:]] == ["Ann (@ann:test): new"]
    # The gate may be cut off, for its cast is over; it never sees who came in.
    assert gate["result"] in (None, '"person:@ann:test"')
