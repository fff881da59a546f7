"""Every cast ends: limits, `/stop`, and what is left for the room afterwards."""

import asyncio
from dataclasses import replace

import pytest

from tests.world.clock import promptly
from tests.world.house import ANN, ROOM, WARDS, Gate, HeldClock, House
from tests.world.model import Calls, Fail, Hang, Slow, Step, Text, Use
from tests.world.story import Story
from wintermute.conversation.toolbox import Caller
from wintermute.messages import Incoming, Json

AGAIN = Calls((Use("echo", {"say": "x"}),), "working on it")


async def hang(_caller: Caller, _args: Json) -> object:
    await asyncio.Event().wait()
    raise AssertionError


async def stopped_within_a_second(house: House) -> None:
    async with promptly(1):
        await house.incoming("/stop")
        await house.said(1)
        await house.settled()


async def ending(house: House) -> tuple[str, str]:
    cast = await house.one("SELECT state, reason FROM casts ORDER BY seq LIMIT 1")
    return cast["state"], cast["reason"]


async def test_max_seconds_end_a_gate_that_takes_too_long(story: Story) -> None:
    """L-022; F-063: what was said before it is said once."""
    wards = replace(WARDS, max_seconds=0.2)
    story.model.script(replace(AGAIN, text="Wait."))
    async with story.at_work(gates=[Gate(act=hang)], wards=wards) as house:
        assert "`loop.max_seconds`" in await house.ask("go")
        assert await ending(house) == ("truncated", "max_seconds")
        assert len(await house.rows("SELECT 1 FROM turns")) == 1


async def test_stop_ends_a_hanging_model_call(story: Story) -> None:
    """L-023, L-047: within a second; the queue behind it goes on."""
    story.model.script(Hang())
    async with story.at_work() as house:
        await house.incoming("go")
        await story.model.request_arrived(1)
        await stopped_within_a_second(house)
        await house.incoming("next")
        assert await house.said(2) == ["Stopped.", "echo: next"]
        assert await ending(house) == ("truncated", "stopped")
        outcomes = await house.rows("SELECT outcome FROM model_calls")
    assert [row["outcome"] for row in outcomes] == ["cancelled", "ok"]


async def test_stop_ends_a_hanging_gate(story: Story) -> None:
    """L-023, L-017: the model is told later that the outcome is unknown."""
    begun = asyncio.Event()

    async def wait(caller: Caller, args: Json) -> object:
        begun.set()
        return await hang(caller, args)

    story.model.script(AGAIN)
    async with story.at_work(gates=[Gate(act=wait)]) as house:
        await house.incoming("go")
        await begun.wait()
        await stopped_within_a_second(house)
        await house.incoming("next")
        assert await house.said(2) == ["Stopped.", "echo: next"]
        assert await ending(house) == ("truncated", "stopped")
    shown = [m["content"] for m in story.model.requests[1].messages if m["role"] == "tool"]
    assert shown == ["interrupted: outcome unknown"]


async def test_stop_is_answered_when_nothing_runs(story: Story) -> None:
    """L-023, also twice, and however it is written."""
    async with story.at_work() as house:
        await house.incoming("/stop")
        await house.incoming(" /STOP ", kind="command")
        assert await house.said(2) == ["Nothing was running."] * 2
        await house.incoming("hello")
        assert (await house.said(3))[2] == "echo: hello"


async def test_several_stops_at_once_harm_nobody(story: Story) -> None:
    """L-023: the second comes while the first is still at work."""
    story.model.script(Hang())
    async with story.at_work() as house:
        await house.incoming("go")
        await story.model.request_arrived(1)
        for _ in range(5):
            await house.incoming("/stop")
        said = await house.said(5)
        assert said[0] == "Stopped."
        await house.incoming("next")
        assert (await house.said(6))[5] == "echo: next"


async def test_a_stop_concerns_its_own_room_only(story: Story) -> None:
    """L-072."""
    done = asyncio.Event()

    async def wait(_caller: Caller, _args: Json) -> object:
        await done.wait()
        return "x"

    story.model.script(AGAIN)
    async with story.at_work(gates=[Gate(act=wait)]) as house:
        await house.incoming("go")
        await story.model.request_arrived(1)
        await house.incoming("/stop", room="!other:test")
        assert await house.said(1, "!other:test") == ["Nothing was running."]
        done.set()
        assert await house.said(1) == ["echo: go"]


async def test_stop_ends_a_wait_for_the_model_between_retries(story: Story) -> None:
    """L-023: the backing off is cancelled as the call is."""
    clock = HeldClock()
    story.model.script(Fail(500))
    async with story.at_work(clock=clock, retries=3) as house:
        await house.incoming("go")
        await clock.asleep()
        await stopped_within_a_second(house)
        assert await house.spoken() == ["Stopped."]
        assert await ending(house) == ("truncated", "stopped")


@pytest.mark.parametrize("line", ["/stop please", "/Stop\nnow", " /STOP\tit"])
async def test_a_stop_may_have_more_words(story: Story, line: str) -> None:
    """L-023, L-072: whoever is in a hurry is not taught grammar."""
    story.model.script(Hang())
    async with story.at_work() as house:
        await house.incoming("go")
        await story.model.request_arrived(1)
        await house.incoming(line, kind="command")
        assert await house.said(1) == ["Stopped."]
        await house.incoming("/stopp")
        assert "`/stopp`" in (await house.said(2))[1]
        await house.settled()
        assert len(await house.spoken()) == 2


async def test_what_was_asked_after_a_stop_is_done(story: Story) -> None:
    """L-072: a stop that comes late does not reach what was asked after it."""
    story.model.keyed(lambda seen: Hang() if seen.last_user == "first" else None)
    async with story.at_work() as house:
        await house.incoming("first")
        await story.model.request_arrived(1)
        await house.incoming("second")
        await house.incoming("/stop")
        await house.incoming("third")
        assert await house.said(3) == ["Stopped.", "echo: second", "echo: third"]


async def test_a_stop_that_came_with_its_message_keeps_it_from_being_begun(story: Story) -> None:
    """L-023: both were sent while we were down, or in one sync."""
    async with story.house() as house:
        await house.incoming("never mind")
        await house.incoming("/stop")
        async with house.working():
            assert await house.said(1) == ["Stopped."]
            await house.incoming("next")
            assert await house.said(2) == ["Stopped.", "echo: next"]
    assert len(story.model.requests) == 1


async def test_a_stop_that_could_be_read_late_stops_nothing_newer(story: Story) -> None:
    """L-023, X-021: its key came when a later message was being answered."""
    go_on = asyncio.Event()
    story.model.keyed(
        lambda seen: Slow(go_on, Text("later")) if seen.last_user == "later" else None
    )
    async with story.at_work() as house:
        await house.ask("hello")
        conversation = (await house.one("SELECT id FROM conversations"))["id"]
        async with house.database.transaction() as tx:
            await house.inbox.store_locked(tx, conversation, ROOM, "$locked", {})
        await house.incoming("later")
        await story.model.request_arrived(2)
        (locked,) = await house.inbox.locked()
        now = house.clock.now()
        stop = Incoming("$locked", ROOM, ANN, "Ann", "owner", "command", "/stop", now, direct=True)
        async with house.database.transaction() as tx:
            await house.inbox.unlock(tx, locked.seq, stop, "waiting")
        house.rooms.wake(conversation)
        assert (await house.said(2))[1] == "Nothing was running."
        go_on.set()
        assert (await house.said(3))[2] == "later"


async def test_an_answer_that_comes_after_its_stop_is_not_said(story: Story) -> None:
    """L-023, L-047: the cast has its end; neither a second one nor a second answer."""
    begun = asyncio.Event()

    async def stubborn(_caller: Caller, _args: Json) -> object:
        begun.set()
        try:
            return await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "too late"

    story.model.script(Calls((Use("done", {"answer": "x"}),)))
    gate = Gate("done", stubborn)
    async with story.at_work(gates=[gate], done=False) as house:
        await house.incoming("go")
        await begun.wait()
        await house.incoming("/stop")
        await house.incoming("next")
        assert await house.said(2) == ["Stopped.", "echo: next"]
        assert await ending(house) == ("truncated", "stopped")


async def test_an_answer_to_a_stopped_cast_says_nothing_twice(story: Story) -> None:
    """L-023: what was said so far stays in the record, the room has one line."""
    story.model.script(Text("so far"), Hang())
    wards = replace(WARDS, require_done=True)
    async with story.at_work(wards=wards) as house:
        await house.incoming("go")
        await story.model.request_arrived(2)
        await house.say("/stop")
        assert await house.spoken() == ["Stopped."]
        cast = await house.one("SELECT result FROM casts")
    assert cast["result"] == "so far"


DONE = Calls((Use("done", {"answer": "by done"}),))


@pytest.mark.parametrize(
    ("size", "steps", "turns", "said", "end"),
    [
        ("small", [Text("one"), Text("two"), Text("three")], 30, "two", ("terminated", "text")),
        ("small", [Text("one"), DONE], 30, "by done", ("terminated", "done")),
        ("small", [Text("one"), AGAIN, Text("two"), DONE], 30, "by done", ("terminated", "done")),
        ("small", [Text("one"), Text("two")], 2, "two", ("truncated", "max_turns")),
        ("full", [Text("one"), Text("two"), DONE], 30, "by done", ("terminated", "done")),
        ("full", [Text("one")], 1, "one", ("truncated", "max_turns")),
    ],
)
async def test_a_small_model_that_is_asked_for_done_and_answers_in_words_again_has_answered(
    story: Story, size: str, steps: list[Step], turns: int, said: str, end: tuple[str, str]
) -> None:
    """L-012: one text alone ends nothing but the last turn that is allowed."""
    story.model.script(*steps)
    wards = replace(WARDS, require_done=True, max_turns=turns)
    async with story.at_work(gates=[Gate()], wards=wards, size=size) as house:
        assert (await house.ask("go")).endswith(said)
        assert await ending(house) == end
        assert (await house.one("SELECT result FROM casts"))["result"] == said
