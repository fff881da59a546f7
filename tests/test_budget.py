"""The day's ceilings hold, whoever asks at once and whatever dies meanwhile."""

import asyncio
import json
import sys
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.world.asking import (
    DEAD,
    HELLO,
    LONGEST,
    PRICE,
    Asking,
    asking,
    is_answered,
    limited,
    paid,
    saying,
)
from tests.world.clock import FakeClock
from tests.world.house import HeldClock, house_at_work, open_house
from tests.world.listener import Listening
from tests.world.model import (
    Calls,
    ContextTooLarge,
    Cut,
    Drip,
    Empty,
    Fail,
    Hang,
    ModelServer,
    Slow,
    Step,
    Text,
    Use,
)
from tests.world.story import Story
from wintermute.config.schema import BudgetSettings, Price, Roles
from wintermute.errors import BudgetSpent, ModelError, ModelRefused, ModelUnavailable
from wintermute.health.health import status_lines
from wintermute.llm.tokens import LEAST, MOST, Measure, size
from wintermute.messages import Json, Usage

PROMPT = size(HELLO)
WORST = PROMPT + LONGEST
WORST_USD = (PROMPT * PRICE.input + LONGEST * PRICE.output) / 1_000_000
FULL = Usage(PROMPT, LONGEST)


async def most(world: Asking) -> tuple[int, float]:
    row = await world.database.row("SELECT max(tokens) AS tokens, max(usd) AS usd FROM sums")
    assert row is not None
    return row["tokens"], row["usd"]


async def ledger(world: Asking) -> list[tuple[int, bool]]:
    rows = await world.database.rows("SELECT tokens, settled FROM reservations ORDER BY rowid")
    return [(row["tokens"], bool(row["settled"])) for row in rows]


@pytest.mark.parametrize(
    "ceiling", [{"tokens": 7 * WORST + WORST // 2}, {"usd": 7.5 * WORST_USD}], ids=["tokens", "usd"]
)
async def test_fifty_questions_never_pass_the_ceiling(
    tmp_path: Path, ceiling: dict[str, Any]
) -> None:
    """L-085: seven fit at their worst, and exactly seven are sent."""
    server = ModelServer(default=lambda _: Text("x", usage=FULL))
    async with server, limited(tmp_path, server.url, **ceiling) as world:
        async with asyncio.TaskGroup() as group:
            asked = [group.create_task(is_answered(world)) for _ in range(50)]
        assert sum(task.result() for task in asked) == len(server.requests) == 7
        spent = await world.budget.spent_today()
        assert (spent.tokens, round(spent.usd, 9)) == (7 * WORST, round(7 * WORST_USD, 9))
        tokens, usd = await most(world)
        assert tokens <= ceiling.get("tokens", tokens)
        assert usd <= ceiling.get("usd", usd)
        assert not await is_answered(world)


async def test_what_was_not_needed_can_be_used_again(tmp_path: Path) -> None:
    """L-085: settled from reported usage; the day ends with the ceiling used up, not passed."""
    server = ModelServer(default=lambda _: Text("x", usage=Usage(PROMPT, 1)))
    ceiling = 10 * WORST
    async with server, limited(tmp_path, server.url, ceiling) as world:
        while await is_answered(world):
            pass
        assert len(server.requests) == (ceiling - WORST) // (PROMPT + 1) + 1
        assert (await world.budget.spent_today()).tokens == len(server.requests) * (PROMPT + 1)
        assert (await most(world))[0] <= ceiling


@pytest.mark.slow
async def test_fifty_casts_are_settled_at_the_cached_price(tmp_path: Path) -> None:
    """L-085: what came from the server's cache costs less, and nobody knows before how much that is."""
    gate = asyncio.Event()
    took = Text("x", usage=Usage(5000, 10, 4900))
    price = Price(input=10.0, cached=0.5, output=30.0)
    settings: dict[str, Any] = {"price": price, "max_output_tokens": LONGEST}
    ceilings = BudgetSettings(usd_per_day=1000)
    server = ModelServer(default=lambda _: Slow(gate, took))
    async with server, open_house(tmp_path, server.url, budget=ceilings, **settings) as house:
        worst = "SELECT count(*) AS n, sum(tokens) AS tokens, sum(usd) AS usd FROM reservations"
        rooms = {f"!room{n}:test": f"@person{n}:test" for n in range(50)}
        async with house.working():
            for room, sender in rooms.items():
                await house.incoming("hello", room=room, sender=sender, origin="other")
            await server.request_arrived(50)
            held = await house.one(worst)
            prompts = held["tokens"] - 50 * LONGEST
            full = (prompts * price.input + 50 * LONGEST * price.output) / 1_000_000
            assert (held["n"], held["usd"]) == (50, pytest.approx(full))
            gate.set()
            for room in rooms:
                await house.said(1, room)
        cached = (100 * 10.0 + 4900 * 0.5 + 10 * 30.0) / 1_000_000
        assert (await house.one(worst))["usd"] == pytest.approx(50 * cached)
        told = await house.one("SELECT sum(tokens_cached) AS n, sum(usd) AS usd FROM model_calls")
        assert told == {"n": 50 * 4900, "usd": pytest.approx(50 * cached)}


async def test_a_cached_price_leaves_room_for_more(tmp_path: Path) -> None:
    """L-085: the day ends when the next call at its worst would pass the ceiling."""
    cached = Usage(PROMPT, 1, PROMPT)
    each = (PROMPT * 1.0 + 30.0) / 1_000_000
    server = ModelServer(default=lambda _: Text("x", usage=cached))
    ceiling = 3 * WORST_USD
    async with server, limited(tmp_path, server.url, usd=ceiling) as world:
        while await is_answered(world):
            pass
        assert len(server.requests) == int((ceiling - WORST_USD) / each) + 1
        assert (await world.budget.spent_today()).usd <= ceiling


CHILD = """
import asyncio, json, sys
from pathlib import Path
from tests.world.asking import is_answered, limited

async def main(folder, url, ceiling, times):
    async with limited(Path(folder), url, ceiling) as world, asyncio.TaskGroup() as group:
        print("open", flush=True)
        sys.stdin.readline()
        asked = [group.create_task(is_answered(world)) for _ in range(times)]
    print(sum(task.result() for task in asked))

asyncio.run(main(*json.loads(sys.argv[1])))
"""


async def child(folder: Path, url: str, ceiling: int, times: int) -> asyncio.subprocess.Process:
    """A process that asks when it is told to, once its database is open."""
    arguments = json.dumps([str(folder), url, ceiling, times])
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", CHILD, arguments),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        cwd=Path(__file__).parent.parent,
    )
    assert process.stdout is not None
    assert await process.stdout.readline() == b"open\n"
    return process


@pytest.mark.slow
async def test_two_processes_share_one_ceiling(tmp_path: Path) -> None:
    """L-085."""
    server = ModelServer(default=lambda _: Text("x", usage=FULL))
    ceiling = 9 * WORST + 1
    async with server, limited(tmp_path, server.url, ceiling) as world:
        pair = [await child(tmp_path, server.url, ceiling, 25) for _ in range(2)]
        async with asyncio.TaskGroup() as group:
            ends = [group.create_task(one.communicate(b"go\n")) for one in pair]
        assert sum(int(end.result()[0]) for end in ends) == len(server.requests) == 9
        assert (await most(world))[0] == 9 * WORST


async def test_a_reservation_left_by_a_crash_counts_until_its_day_ends(tmp_path: Path) -> None:
    """L-085: at its worst case."""
    ceiling = 2 * WORST - 1
    async with ModelServer() as server, limited(tmp_path, server.url, ceiling) as world:
        server.script(Hang())
        process = await child(tmp_path, server.url, ceiling, 1)
        assert process.stdin is not None
        process.stdin.write(b"go\n")
        await server.request_arrived(1)
        process.kill()
        await process.wait()
        assert await ledger(world) == [(WORST, False)]
        assert (await world.budget.spent_today()).tokens == WORST
        assert not await is_answered(world)
        world.clock.advance(12 * 3600)
        assert (await world.budget.spent_today()).tokens == 0
        assert await is_answered(world)


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("zone", "asked", "midnight"),
    [
        ("UTC", "2026-05-04 23:59", "2026-05-05 00:00"),
        ("Europe/Berlin", "2026-05-04 12:00", "2026-05-04 22:00"),
        ("Europe/Berlin", "2026-05-04 22:00", "2026-05-05 22:00"),
        ("Europe/Berlin", "2026-03-28 23:00", "2026-03-29 22:00"),  # a day of 23 hours
        ("Europe/Berlin", "2026-10-24 22:00", "2026-10-25 23:00"),  # and one of 25
        ("America/New_York", "2026-05-04 02:00", "2026-05-04 04:00"),
    ],
)
async def test_the_day_ends_at_midnight_where_the_person_lives(
    tmp_path: Path, zone: str, asked: str, midnight: str
) -> None:
    """L-085."""
    clock = FakeClock(at(asked))
    server = ModelServer(default=lambda _: Text("x", usage=FULL))
    async with server, limited(tmp_path, server.url, WORST, zone=zone, clock=clock) as world:
        assert await is_answered(world)
        with pytest.raises(BudgetSpent, match=r"llm\.budget\.tokens_per_day") as caught:
            await world.models.ask("base", HELLO)
        until = caught.value.until
        assert until is not None
        assert (until, until.tzinfo) == (at(midnight), UTC)
        world.clock.advance((at(midnight) - at(asked) - timedelta(seconds=1)).total_seconds())
        assert not await is_answered(world)
        world.clock.advance(1)
        assert await is_answered(world)


SETTLED: list[tuple[Step, Usage]] = [
    (Text("x", usage=Usage(70, 5, 60)), Usage(70, 5, 60)),
    (Text("x" * 60, usage=None), Usage(PROMPT, 20)),
    (Calls((Use("done", '{"answer": 1}'),), usage=None), Usage(PROMPT, 6)),
    (Text("cut", finish="length", usage=Usage(70, 100)), Usage(70, 100)),
    (Empty(usage=Usage(70, 100)), Usage(70, 100)),
    (Empty(usage=None), Usage(PROMPT)),
    (Hang(), Usage(PROMPT)),
    (Drip("far too slow to end", asyncio.Semaphore(1)), Usage(PROMPT, 2)),
    (Cut("one two three", after_chunks=1), Usage(PROMPT, 2)),
    (Cut(after_chunks=0), Usage()),
    (Fail(500), Usage()),
    (Fail(401), Usage()),
    (ContextTooLarge(), Usage()),
]


@pytest.mark.parametrize(("step", "usage"), SETTLED)
async def test_an_attempt_costs_what_it_cost(tmp_path: Path, step: Step, usage: Usage) -> None:
    """L-085, L-087: as reported, else estimated, and nothing for a refusal."""
    async with ModelServer(default=lambda _: step) as server:
        settings = paid(server.url, timeout_s=0.15, first_token_s=0.15)
        ceilings = BudgetSettings(tokens_per_day=10_000)
        async with asking(tmp_path, {"a": settings}, retries=0, ceilings=ceilings) as world:
            with suppress(ModelError):
                await world.models.ask("base", HELLO)
            (row,) = await world.rows()
            found = Usage(row["tokens_in"], row["tokens_out"], row["tokens_cached"])
            assert found == usage
            assert await ledger(world) == [(usage.tokens_in + usage.tokens_out, True)]


async def test_a_call_that_was_stopped_is_settled(tmp_path: Path) -> None:
    """L-085: the server had the prompt, and what it said was heard."""
    async with ModelServer() as server, limited(tmp_path, server.url, 2 * WORST) as world:
        server.script(Drip("one two", asyncio.Semaphore(1)))
        said = asyncio.Event()

        heard = Listening(lambda _: said.set())
        async with asyncio.TaskGroup() as group:
            task = group.create_task(world.models.ask("base", HELLO, listener=heard))
            await said.wait()
            assert await ledger(world) == [(WORST, False)]
            task.cancel()
        assert await ledger(world) == [(PROMPT + 2, True)]


async def test_each_retry_has_room_of_its_own(tmp_path: Path) -> None:
    """L-085: failures that cost nothing leave all the room to the next attempt."""
    async with ModelServer() as server:
        ceilings = BudgetSettings(tokens_per_day=WORST)
        async with asking(tmp_path, {"a": paid(server.url)}, ceilings=ceilings) as world:
            server.script(Fail(500), Fail(503), Text("at last", usage=FULL))
            assert (await world.models.ask("base", HELLO)).text == "at last"
            assert await ledger(world) == [(0, True), (0, True), (WORST, True)]


async def test_a_ceiling_ends_the_retries(tmp_path: Path) -> None:
    async with ModelServer() as server:
        ceilings = BudgetSettings(tokens_per_day=WORST)
        async with asking(tmp_path, {"a": paid(server.url)}, ceilings=ceilings) as world:
            server.script(Empty(usage=FULL), Text("too late"))
            with pytest.raises(BudgetSpent):
                await world.models.ask("base", HELLO)
            assert await world.outcomes() == ["a empty", "a budget"]
            assert len(server.requests) == 1


async def test_a_backend_that_costs_nothing_takes_over_from_one_that_does(tmp_path: Path) -> None:
    """L-085, L-087: and it is not kept out by USD that others spent beyond a ceiling."""
    async with ModelServer() as dear, ModelServer() as free:
        backends = {"dear": paid(dear.url), "free": paid(free.url, price=None)}
        ceilings = BudgetSettings(usd_per_day=WORST_USD)
        async with asking(tmp_path, backends, retries=0, ceilings=ceilings) as world:
            dear.script(Text("x", usage=Usage(PROMPT, 10 * LONGEST)))
            names = [(await world.models.ask("base", HELLO)).backend for _ in range(3)]
            assert names == ["dear", "free", "free"]
            with pytest.raises(BudgetSpent, match=r"^dear .*USD .*llm\.budget\.usd_per_day"):
                await world.models.ask("base", HELLO, backend="dear")
            free.script(Fail(500))  # it may come back: an outage, not the end of the day
            with pytest.raises(ModelUnavailable, match=r"free answered 500.*dear is not asked"):
                await world.models.ask("base", HELLO)
            assert len(dear.requests) == 1


async def test_what_was_used_before_a_ceiling_was_set_counts(tmp_path: Path) -> None:
    """L-085: without ceilings nothing is reserved, but the day is known."""
    async with ModelServer(default=lambda _: Text("x", usage=FULL)) as server:
        async with asking(tmp_path, {"a": paid(server.url)}) as world:
            server.script(Hang())
            async with asyncio.TaskGroup() as group:
                task = group.create_task(world.models.ask("base", HELLO))
                await server.request_arrived(1)
                assert await ledger(world) == []
                task.cancel()
            await world.models.ask("base", HELLO)
        async with limited(tmp_path, server.url, PROMPT + 2 * WORST) as world:
            assert [await is_answered(world) for _ in range(2)] == [True, False]


async def test_status_shows_the_ceiling_and_warns_when_it_is_reached(tmp_path: Path) -> None:
    """L-086."""

    async def facts(world: Asking, ceilings: BudgetSettings) -> dict[str, tuple[str, str]]:
        found = await status_lines(world.database, world.clock, "UTC", ceilings)
        return {fact.name: (fact.state, fact.text) for fact in found}

    ceilings = BudgetSettings(tokens_per_day=WORST, usd_per_day=2)
    async with ModelServer() as server, limited(tmp_path, server.url, WORST, 2) as world:
        told = f"0 of {WORST} tokens and 0.0000 of 2 USD used today"
        assert (await facts(world, ceilings))["budget"] == ("ok", told)
        server.script(Text("x", usage=Usage(10, 10)))
        assert await is_answered(world)
        assert not await is_answered(world)
        found = await facts(world, ceilings)
        assert found["budget"][0] == "warn"
        assert "0.0004 of 2 USD used today, no room for 1 call" in found["budget"][1]
        assert found["today, base"] == (
            "ok",
            "1 call; 10 tokens read, 0 of them from the cache; 10 written; 0.0004 USD",
        )
        world.clock.advance(24 * 3600)
        assert (await facts(world, ceilings))["budget"] == ("ok", told)
        assert "budget" not in await facts(world, BudgetSettings())


async def test_estimates_learn_from_what_is_reported(tmp_path: Path) -> None:
    """L-087: for each backend on its own; a worst case never shrinks by it."""
    async with ModelServer() as server:
        backends = {"a": paid(server.url), "b": paid(server.url)}
        ceilings = BudgetSettings(tokens_per_day=10**9)
        async with asking(tmp_path, backends, ceilings=ceilings) as world:
            long = saying("word " * 3000)
            assert world.models.tokens("base", long) == size(long)
            for reported, low, high in ((2, 1.5, 2), (0.5, 0.75, 0.9)):
                for _ in range(10):
                    server.script(Text("x", usage=Usage(int(size(long) * reported), 1)))
                    await world.models.ask("base", long)
                assert low <= world.models.tokens("base", long) / size(long) < high
                server.script(Hang())
                async with asyncio.TaskGroup() as group:
                    task = group.create_task(world.models.ask("base", long))
                    await server.request_arrived(len(server.requests) + 1)
                    held = (await ledger(world))[-1]
                    task.cancel()
                assert max(low, 1) * size(long) <= held[0] - LONGEST < max(high, 1.1) * size(long)
            assert world.models.tokens("base", long, "b") == size(long)


async def test_what_was_learnt_of_a_server_outlives_a_restart(tmp_path: Path) -> None:
    """Issue 17: for each model at an address on its own, so that cuts do not jump."""
    async with ModelServer() as server:
        backends = {"a": paid(server.url), "b": replace(paid(server.url), model="other")}
        long = saying("word " * 3000)
        async with asking(tmp_path, backends) as world:
            for _ in range(40):
                server.script(Text("x", usage=Usage(size(long) * 2, 1)))
                await world.models.ask("base", long)
            before = world.models.tokens("base", long)
            assert before > size(long) * 1.9
        async with asking(tmp_path, backends) as world:
            assert world.models.tokens("base", long) == size(long)
            await world.models.load_counts()
            assert world.models.tokens("base", long) == pytest.approx(before, abs=2)
            assert world.models.tokens("base", long, "b") == size(long)


@given(st.lists(st.tuples(st.integers(1, 10**6), st.integers(0, 10**9))))
def test_a_correction_keeps_its_bounds(calls: list[tuple[int, int]]) -> None:
    measure = Measure()
    assert (measure.corrected(10), measure.worst(10)) == (10, 10)
    for estimated, reported in calls:
        measure.learn(estimated, Usage(reported))
        assert LEAST <= measure.correction <= MOST
        assert measure.corrected(estimated) <= measure.worst(estimated)
        assert measure.worst(estimated) >= estimated


async def test_a_backend_can_be_asked_by_its_name(tmp_path: Path) -> None:
    """L-037: it stands alone then, and an unknown one is told."""
    async with ModelServer() as server:
        backends = {"a": paid(server.url), "b": paid(DEAD)}
        roles = Roles(base=("b",))
        async with asking(tmp_path, backends, retries=0, roles=roles) as world:
            assert (await world.models.ask("base", HELLO, backend="a")).backend == "a"
            with pytest.raises(ModelUnavailable):
                await world.models.ask("base", HELLO)
            with pytest.raises(ModelRefused, match=r"no model c: .* a, b"):
                await world.models.ask("base", HELLO, backend="c")
            with pytest.raises(ModelRefused, match="no model c"):
                world.models.window("base", "c")


async def test_a_spent_budget_is_told_in_each_room_once_a_day(story: Story) -> None:
    """L-086: commands go on; what waits over midnight is answered once, in order."""
    clock, limits = HeldClock(), BudgetSettings(tokens_per_day=1100)
    story.model.keyed(lambda seen: Text(f"re {seen.last_user}", usage=Usage(901, 99)))
    window: Json = {"context_tokens": 4096, "max_output_tokens": 100}
    async with story.at_work(clock=clock, budget=limits, **window) as house:
        await house.say_at_once("a")
        await house.incoming("b")
        await house.said(2)
        await house.incoming("c")
        await house.incoming("/help")
        _, notice, help_ = await house.said(3)
        await house.incoming("z", room="!other:test", scope="room:!other:test")
        (other,) = await house.said(1, room="!other:test")
        await house.incoming("/stop", room="!other:test", scope="room:!other:test")
        assert (await house.said(2, room="!other:test"))[1] == "Stopped."
        await clock.asleep()
        await clock.move(11 * 3600)
        assert len(await house.spoken()) == 3
        await clock.move(3600)
        _, _, _, answer, again = await house.said(5)
    assert answer == "re [written 2026-05-04 14:00, 12 hours ago]\nb"  # F-029
    assert "`/new`" in help_
    for told in (notice, other, again):
        assert told.endswith(
            "raise the limit in config.yaml. I keep your messages and answer them then."
            " Reminders and commands still work."
        )


async def test_a_call_that_no_day_has_room_for_does_not_say_to_wait(tmp_path: Path) -> None:
    """L-086: the sentence says what helps, and the message does not stand in the way for ever."""
    async with ModelServer() as model:
        limits = BudgetSettings(tokens_per_day=50)
        async with house_at_work(tmp_path, model.url, budget=limits) as house:
            await house.incoming("a")
            (notice,) = await house.said(1)
            await house.settled()
    assert "wait for" not in notice
    assert "raise the limit" in notice
