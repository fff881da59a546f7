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
from tests.world.model import Fail, Hang, ModelServer, Seen, Slow, Step, Text
from wintermute.config.schema import Llm, Roles
from wintermute.conversation.rooms import in_order

CODES = (401, 402, 403, 404)


async def begun(house: House, clock: HeldClock, model: ModelServer, text: str) -> float:
    """When the model was asked about this message; time passes in steps of a second."""
    async with asyncio.timeout(WITHIN):
        while not any(seen.last_user == text for seen in model.requests):
            await clock.move(1)
            await asyncio.sleep(0.05)
    return clock.monotonic()


@pytest.mark.parametrize("retries", [0, 3, 99])
async def test_those_behind_a_message_that_fails_alone_are_begun_before_it_is_tried_again(
    tmp_path: Path, model: ModelServer, retries: int
) -> None:
    """F-060: within 25 s of its failure, also where it is still at work; then it is answered, once."""
    clock, is_over = HeldClock(), False
    model.keyed(lambda seen: None if is_over else poisoned(seen))
    opened = open_house(tmp_path, model.url, clock=clock, retries=retries, wards=LONG)
    async with opened as house, house.working():
        await house.incoming(POISON)
        await clock.asleep()
        await house.incoming("behind")
        await house.incoming("/new")
        await house.incoming("fresh")
        assert await begun(house, clock, model, "behind") <= 25
        [asked] = [seen for seen in model.requests if seen.last_user == "behind"]
        assert POISON not in json.dumps(asked.body)
        is_over = True
        said: list[str] = []
        async with asyncio.timeout(WITHIN):
            while "echo: fresh" not in said:
                await clock.move(1)
                await asyncio.sleep(0.05)
                said = [text for text in await house.spoken() if "`/new` has" not in text]
        rows = await house.rows("SELECT state FROM inbox")
    assert [text.splitlines()[-1] for text in said if "answers others" not in text] == [
        "echo: behind",
        f"echo: {POISON}",
        "A fresh start: I no longer look at what was said before.",
        "echo: fresh",
    ]
    assert {each["state"] for each in rows} == {"answered"}


async def test_a_message_that_came_while_the_failed_one_is_tried_again_does_not_wait(
    tmp_path: Path, model: ModelServer
) -> None:
    """F-060: nor where its next attempt says nothing at all; `/stop` drops what was tried."""
    clock, steps = HeldClock(), iter([Fail(500)])
    model.keyed(
        lambda seen: next(steps, Hang()) if seen.last_user == POISON and not seen.is_probe else None
    )
    opened = open_house(tmp_path, model.url, clock=clock, wards=LONG)
    async with opened as house, house.working():
        await house.incoming(POISON)
        await clock.asleep()
        await clock.move(8)
        await model.request_arrived(2)
        await house.incoming("behind")
        assert (await house.said(1))[0] == "echo: behind"
        await house.incoming("/stop")
        assert (await house.said(2))[1] == "Stopped."
        await house.settled()


async def test_what_fails_alone_is_in_nobodys_way_after_a_kill_either(
    tmp_path: Path, model: ModelServer
) -> None:
    """F-060: what was known of it is gone with the process; each message is answered once."""
    clock = HeldClock()
    model.keyed(poisoned)
    async with open_house(tmp_path, model.url, clock=clock) as house, house.working():
        await house.incoming(POISON)
        await clock.asleep()
        await house.incoming("behind")
        await begun(house, clock, model, "behind")
        await house.said(1)
    model.requests.clear()
    clock = HeldClock()
    async with open_house(tmp_path, model.url, clock=clock) as house, house.working():
        await house.incoming("after")
        assert await begun(house, clock, model, "after") <= 25
        said = await house.said(2)
        assert [text for text in said if "behind" in text] == ["echo: behind"]
        assert "echo: after" in said


@pytest.mark.parametrize(
    ("aside", "order"),
    [
        ((), "1 2 /new 4 5"),
        ((1,), "2 1 /new 4 5"),
        ((1, 2), "2 1 /new 4 5"),
        ((4,), "1 2 /new 5 4"),
        ((1, 2, 4, 5), "2 1 /new 5 4"),
    ],
)
def test_what_fails_alone_stands_behind_the_messages_after_it_and_before_what_keeps_its_place(
    aside: tuple[int, ...], order: str
) -> None:
    """F-060, F-035: of several first the one that may be tried again first."""
    rows = [
        replace(row(seq=n), event_id=f"${n}", body=f"{n}", not_before=100.0 - n)
        for n in (1, 2, 4, 5)
    ]
    rows.insert(2, replace(row(seq=3), kind="command", body="/new"))
    found = in_order(rows, {f"${n}" for n in aside})
    assert " ".join(each.body for each in found) == order


@pytest.mark.parametrize("status", [*CODES, 429])
async def test_a_refusal_of_key_quota_or_address_is_told_at_once(
    tmp_path: Path, model: ModelServer, status: int
) -> None:
    """F-060: no time passes, and the next message is asked as ever."""
    clock = HeldClock()
    said = {"error": {"message": "no", "code": "insufficient_quota" if status == 429 else "no"}}
    model.script(Fail(status, said))
    async with open_house(tmp_path, model.url, clock=clock, retries=3) as house, house.working():
        await house.incoming("hello")
        assert str(status) in (await house.said(1))[0]
        await house.incoming("again")
        assert (await house.said(2))[1] == "echo: again"
    assert clock.monotonic() == 0


async def test_all_backends_are_asked_at_once_whether_they_answer_others(
    tmp_path: Path, model: ModelServer
) -> None:
    """F-060: one that is silent makes nobody ask the next one later."""
    gate = asyncio.Event()

    def second(seen: Seen) -> Step:
        if seen.is_probe:
            gate.set()
        return Fail(500)

    model.keyed(lambda seen: Slow(gate, Text("ok")) if seen.is_probe else Fail(500))
    async with ModelServer(default=second) as other:
        backends = {"a": backend(model.url), "b": backend(other.url)}
        llm = Llm(backends=backends, roles=Roles(base=("a", "b")))
        async with open_house(tmp_path, None, llm=llm) as house, promptly(5):
            assert await house.models.answers("base", house.clock.monotonic())
