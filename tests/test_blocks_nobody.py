"""A message that fails while the model answers others: those behind it in its room go first."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.test_history import row
from tests.test_llm_models import backend
from tests.test_trouble import LONG, POISON, poisoned
from tests.world.clock import WITHIN, HeldClock, promptly
from tests.world.house import House, open_house
from tests.world.model import Fail, Hang, ModelServer, Seen, Slow, Text
from wintermute.config.schema import Llm, Roles
from wintermute.conversation.rooms import in_order


async def said(house: House, clock: HeldClock, text: str) -> list[str]:
    """What was said up to this text; time passes in steps of a second."""
    async with asyncio.timeout(WITHIN):
        while text not in await house.spoken():
            await clock.move(1)
            await asyncio.sleep(0.05)
    return await house.spoken()


@pytest.mark.parametrize("retries", [0, 99])
async def test_those_behind_a_message_that_fails_alone_go_first_and_then_it_is_answered_once(
    tmp_path: Path, model: ModelServer, retries: int
) -> None:
    """F-060, F-035: within 25 s, also where it is at work; what keeps its place stays behind it."""
    clock, is_over = HeldClock(), False
    model.keyed(lambda seen: None if is_over else poisoned(seen))
    opened = open_house(tmp_path, model.url, clock=clock, retries=retries, wards=LONG)
    async with opened as house, house.working():
        await house.incoming(POISON)
        await clock.asleep()
        for text in ("behind", "/new", "fresh"):
            await house.incoming(text)
        await said(house, clock, "echo: behind")
        assert clock.monotonic() <= 25
        is_over = True
        told = await said(house, clock, "echo: fresh")
        await house.settled()
    [asked] = [json.dumps(seen.body) for seen in model.requests if seen.last_user == "behind"]
    assert POISON not in asked
    answers = [text.split()[-1] for text in told if "`" not in text]
    assert answers == ["behind", POISON, "before.", "fresh"]


async def test_a_message_that_comes_while_the_failed_one_is_tried_again_does_not_wait(
    tmp_path: Path, model: ModelServer
) -> None:
    """F-060: though its next attempt says nothing at all; `/stop` drops what was tried."""
    clock, steps = HeldClock(), iter([Fail(500)])
    model.keyed(lambda seen: next(steps, Hang()) if POISON in seen.last_user else None)
    async with open_house(tmp_path, model.url, clock=clock) as house, house.working():
        await house.incoming(POISON)
        await clock.asleep()
        await clock.move(8)
        await model.request_arrived(2)
        await house.incoming("behind")
        await house.said(1)
        await house.incoming("/stop")
        assert await house.said(2) == ["echo: behind", "Stopped."]
        await house.settled()


async def test_after_a_restart_it_is_in_nobodys_way_for_longer(
    tmp_path: Path, model: ModelServer
) -> None:
    """F-060: what was known is gone with the process; the order of the room is that of its rows."""
    model.keyed(poisoned)
    for text in ("behind", "after"):
        clock = HeldClock()
        async with open_house(tmp_path, model.url, clock=clock) as house, house.working():
            if text == "behind":
                await house.incoming(POISON)
            await house.incoming(text)
            told = await said(house, clock, f"echo: {text}")
            assert clock.monotonic() <= 25
    assert told == ["echo: behind", "echo: after"]


async def test_all_backends_are_asked_at_once_whether_they_answer_others(
    tmp_path: Path, model: ModelServer
) -> None:
    """F-060: one that is silent makes nobody ask the next one later."""
    gate = asyncio.Event()
    model.keyed(lambda _: Slow(gate, Text("ok")))

    def second(seen: Seen) -> Fail:
        gate.set()
        return Fail(500)

    async with ModelServer(default=second) as other:
        known = {"a": backend(model.url), "b": backend(other.url)}
        llm = Llm(backends=known, roles=Roles(base=tuple(known)))
        async with open_house(tmp_path, None, llm=llm) as house, promptly(5):
            assert await house.models.answers("base", house.clock.monotonic())


@pytest.mark.parametrize(
    ("aside", "order"),
    [((), "12/45"), ((1,), "21/45"), ((1, 2), "21/45"), ((4,), "12/54"), ((1, 4, 5), "21/54")],
)
def test_what_fails_alone_stands_before_what_keeps_its_place(
    aside: tuple[int, ...], order: str
) -> None:
    """F-060, F-035: of several that first which may be tried again first."""
    rows = [replace(row(seq=n), event_id=f"{n}", not_before=100.0 - n) for n in range(1, 6)]
    rows[2] = replace(rows[2], event_id="/", kind="command", body="/new")
    assert "".join(each.event_id for each in in_order(rows, {*map(str, aside)})) == order
