"""A message that fails while the model answers others: those behind it in its room go first."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.world.clock import WITHIN, HeldClock
from tests.world.histories import waiting_row
from tests.world.house import house_at_work, open_house
from tests.world.model import Fail, Hang, ModelServer, Seen, Slow, Step, Text
from tests.world.trouble import LONG, POISON, poisoned
from wintermute.conversation.rooms import in_order


@pytest.mark.parametrize(
    ("pauses", "then"), [([8], Fail(500)), ([1, 2, 4, 8], Fail(500)), ([8], Hang())]
)
async def test_those_behind_a_message_that_fails_alone_go_first_and_then_it_is_answered_once(
    tmp_path: Path, model: ModelServer, pauses: Sequence[int], then: Step
) -> None:
    """F-060, F-035: within 20 s, also where it is at work; what keeps its place stays behind it."""
    clock, is_over, asked = HeldClock(), False, asyncio.Semaphore(0)

    def choose(seen: Seen) -> Step | None:
        if is_over or POISON not in seen.last_user:
            return None
        asked.release()
        return then if any(POISON in each.last_user for each in model.requests) else Fail(500)

    model.keyed(choose)
    retries = 99 * (len(pauses) > 1)
    opened = open_house(tmp_path, model.url, clock=clock, retries=retries, wards=LONG)
    async with opened as house, house.working():
        await house.incoming(POISON)
        for pause in pauses:
            await clock.asleep()
            await house.incoming("behind")
            await clock.move(pause)
        await house.said(len(pauses))
        await asked.acquire()
        await asked.acquire()
        is_over = True
        for text in ("late", "/new", "fresh"):
            await house.incoming(text)
        async with asyncio.timeout(WITHIN):
            while "echo: fresh" not in (told := await house.spoken()):
                await clock.move(1)
                await asyncio.sleep(0.05)  # the model answers in its own time
        await house.settled()
    shown = [json.dumps(seen.body) for seen in model.requests if "late" in seen.last_user]
    assert not any(POISON in body for body in shown)
    answers = [text.split()[-1] for text in told if "`" not in text]
    assert answers == [*["behind"] * len(pauses), "late", POISON, "messages.", "fresh"]


async def test_after_a_restart_it_is_in_nobodys_way_for_longer(
    tmp_path: Path, model: ModelServer
) -> None:
    """F-060: what was known is gone with the process; `/stop` drops what was tried, and it alone."""
    model.keyed(poisoned)
    for n, text in enumerate(("behind", "after"), 1):
        clock = HeldClock()
        async with house_at_work(tmp_path, model.url, clock=clock) as house:
            if n == 1:
                await house.incoming(POISON)
            await clock.asleep()
            await house.incoming(text)
            await clock.move(8)
            await house.said(n)
    async with house_at_work(tmp_path, model.url, clock=clock) as house:
        await clock.asleep()
        await house.incoming("/stop")
        assert await house.said(3) == ["echo: behind", "echo: after", "Stopped."]
        await house.settled()


async def test_one_given_up_while_it_waits_is_answered_as_that(
    tmp_path: Path, model: ModelServer
) -> None:
    """F-021, F-038: for half an hour another one keeps the room; memory and quotes leave it out."""
    clock, gate = HeldClock(), asyncio.Event()
    slow, wards = Slow(gate, Text("so")), replace(LONG, max_seconds=9000)
    model.keyed(lambda seen: slow if seen.last_user.endswith("behind") else poisoned(seen))
    opened = open_house(tmp_path, model.url, clock=clock, wards=wards)
    async with opened as house, house.working():
        await house.incoming(POISON)
        await clock.asleep()
        await house.incoming("behind")
        async with asyncio.timeout(WITHIN):
            while not any(seen.last_user.endswith("behind") for seen in model.requests):
                await clock.move(1)
                await asyncio.sleep(0.05)  # the model answers in its own time
        for _ in range(40):
            await clock.move(50)
            await asyncio.sleep(0.05)
        gate.set()
        await house.settled()
        of_reply = "SELECT reason FROM casts WHERE id IN (SELECT cast_id FROM outbox) ORDER BY seq"
        assert [row["reason"] for row in await house.rows(of_reply)] == ["text", "given_up"]


def test_what_fails_alone_stands_before_what_keeps_its_place() -> None:
    """F-060, F-035: of several that first which may be tried again first."""
    rows = [replace(waiting_row(seq=n), event_id=f"{n}", not_before=100.0 - n) for n in range(1, 6)]
    rows[2] = replace(rows[2], event_id="/", kind="command", body="/new")
    table = {"": "12/45", "1": "21/45", "12": "21/45", "4": "12/54", "145": "21/54"}
    for aside, order in table.items():
        assert "".join(each.event_id for each in in_order(rows, set(aside))) == order
