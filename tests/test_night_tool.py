"""What the model does about a night when a person says so, and what it does not, whoever says it."""

import asyncio
from pathlib import Path

import pytest

from tests.world.clock import HeldClock
from tests.world.house import House
from tests.world.model import Calls, ModelServer, Seen, Text, Use
from tests.world.nights import (
    BEN,
    BENS,
    FIRST_TURN,
    HOUR,
    KNOWN,
    TOOL,
    FromOutside,
    SmallNight,
    Waits,
    begin,
    calls_night,
    live_texts,
    opened,
    remember,
    says_at_night,
    slept,
)
from wintermute.messages import Origin


def tools_in(seen: Seen) -> list[str]:
    return [tool["function"]["name"] for tool in seen.body.get("tools", ())]


@FIRST_TURN
async def test_no_keep_both_brings_both_back_in_a_conversation(
    house: House, clock: HeldClock, model: ModelServer
) -> None:
    """M-078: the tool is there with the first message after a night, and not before one."""
    await begin(house, *KNOWN)
    assert all(TOOL not in tools_in(seen) for seen in model.requests)
    await slept(house, clock)
    model.keyed(calls_night("No, keep both", "undo", "20260505#1"))
    assert "the memory is back: Likes tea, again" in await says_at_night(
        house, "No, keep both of tea"
    )
    assert "Likes tea, again" in await live_texts(house)
    assert "Has a dog, again" not in await live_texts(house)
    model.keyed(calls_night("sold it", "yes", "20260505#3"))
    assert "`20260505#3` done" in await says_at_night(house, "I have sold it, yes")
    assert "Sells the car?" not in await live_texts(house)
    model.keyed(calls_night("What was it", "show"))
    assert "taken back" in await says_at_night(house, "What was it?")
    clock.advance(8 * 24 * HOUR)
    model.keyed(lambda _: None)
    await says_at_night(house, "And now?")
    assert TOOL not in tools_in(model.requests[-1])


@FIRST_TURN
async def test_a_conversation_acts_on_nights_of_its_own_scope_alone(
    house: House, clock: HeldClock, model: ModelServer
) -> None:
    """M-010, M-078."""
    await begin(house, "Likes tea", "Likes tea, again")
    await says_at_night(house, "hi", room="!ben:test", sender=BEN)
    await remember(house, "Swims", "Swims, again", scope=BENS)
    await slept(house, clock)
    model.keyed(calls_night("Undo", "undo", "20260505#1"))
    told = await says_at_night(house, "Undo what you did", room="!ben:test", sender=BEN)
    assert "has no item 1" in told
    assert await live_texts(house) == ["Likes tea"]
    model.keyed(calls_night("Undo", "undo", "20260505#2"))
    await says_at_night(house, "Undo what you did", room="!ben:test", sender=BEN)
    assert sorted(await live_texts(house, BENS)) == ["Swims", "Swims, again"]


@FIRST_TURN
async def test_a_session_that_nobody_vouches_for_and_a_reminder_undo_nothing(
    house: House, clock: HeldClock, model: ModelServer
) -> None:
    """X-034: nobody is there who could say so."""
    await begin(house, "Likes tea", "Likes tea, again")
    await slept(house, clock)
    model.keyed(calls_night("Undo", "undo", "20260505#1"))
    origins: tuple[Origin, ...] = ("other", "timer")
    for origin in origins:
        async with house.working():
            told = await house.ask("Undo it all", origin=origin)
        assert ("Only the owner can answer or undo a night here" in told) == (origin == "other")
        assert ("no person is speaking here now" in told) == (origin == "timer")
    assert await live_texts(house) == ["Likes tea"]


@FIRST_TURN
@pytest.mark.opens(gates=[FromOutside()])
async def test_what_came_from_outside_answers_no_question(
    house: House, clock: HeldClock, model: ModelServer
) -> None:
    """L-037: a page that says "say yes to all" gets no yes; looking is no harm."""
    await begin(house, "Likes tea", "Likes tea, again", "Sells the car?")
    await slept(house, clock)
    for action in ("yes", "undo", "show"):
        asked = {"action": action, "item": "20260505#2"}
        model.script(Calls((Use("page"),)), Calls((Use(TOOL, asked),)), Text("That is it"))
        await says_at_night(house, f"Read that page: {action}")
        result = str(model.requests[-1].body["messages"][-1]["content"])
        assert ("must not decide" in result) == (action != "show")
    assert "Sells the car?" in await live_texts(house)


@pytest.mark.quick(every=3)
@FIRST_TURN
@pytest.mark.parametrize("item", ["undo", "Undo", "yes", "no", "a b"])
@pytest.mark.opens(gates=[FromOutside()])
async def test_to_show_what_is_no_item_and_no_night_does_nothing(
    house: House, clock: HeldClock, model: ModelServer, item: str
) -> None:
    """L-037, X-034: whoever only looks gives no order, whatever they call the item."""
    await begin(house, *KNOWN)
    await slept(house, clock)
    before = sorted(await live_texts(house))
    asked = {"action": "show", "item": item}
    model.script(Calls((Use("page"),)), Calls((Use(TOOL, asked),)), Text("That is it"))
    await says_at_night(house, "Read that page")
    result = str(model.requests[-1].body["messages"][-1]["content"])
    assert f"There is no night {item}: the newest are 20260505." in result
    assert sorted(await live_texts(house)) == before
    states = await house.rows("SELECT state FROM answered_decisions ORDER BY n")
    assert [row["state"] for row in states] == ["done", "done", "open"]


@FIRST_TURN
async def test_a_night_that_is_under_way_is_not_taken_back_and_the_reason_is_the_answer(
    tmp_path: Path, model: ModelServer
) -> None:
    """M-065, L-028: said by a command or by the tool; the cast goes on."""
    clock, at_work, more = HeldClock(), asyncio.Event(), asyncio.Event()

    async def meanwhile() -> None:
        at_work.set()
        await more.wait()

    waits = SmallNight(last=[Waits(meanwhile)])
    reason = "That night is still running: undo it when it is over."
    async with opened(tmp_path, model, clock, night=waits) as house:
        await begin(house, "Likes tea", "Likes tea, again")
        clock.advance(11 * HOUR)
        model.keyed(calls_night("Undo", "undo", "20260505#1"))
        async with house.working():
            await at_work.wait()
            for n, line in enumerate(("/night undo", "/night undo 1", "Undo that, please"), 1):
                await house.incoming(line)
                told = (await house.said(n + 1))[n]
                assert told == (reason if line.startswith("/") else f"It says: {reason}")
            more.set()
        assert await live_texts(house) == ["Likes tea"]
