"""What works and what does not, as another process reads it."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from tests.world.clock import NOON, WITHIN, FakeClock
from tests.world.house import ANN, ROOM, House, open_house
from tests.world.promised import DAILY, MORNING, after, do, promise
from tests.world.schema import open_migrated
from wintermute.clock import stamp
from wintermute.db import Database
from wintermute.health.health import Health, PartHealth, status_lines
from wintermute.ids import new_id
from wintermute.messages import Usage
from wintermute.tasks.schedules import PlanRequest


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    async with open_migrated(tmp_path / "test.db") as database:
        yield database


async def test_a_state_has_a_beginning(database: Database) -> None:
    """Which another detail does not change, nor a new start of the process."""
    clock = FakeClock()
    for state, detail in (("ok", ""), ("ok", "fine"), ("fail", "away"), ("fail", "still away")):
        await Health(database, clock).note("model", state, detail)  # type: ignore[arg-type]  # the literals
        clock.advance(60)
    assert await Health(database, clock).parts() == [
        PartHealth("model", "fail", "still away", NOON + timedelta(minutes=2))
    ]


async def test_nothing_is_written_while_nothing_changes(database: Database) -> None:
    health = Health(database, FakeClock())
    await health.note("model", "ok")
    async with database.transaction(), asyncio.timeout(WITHIN):
        await health.note("model", "ok")  # would wait for the writer for ever


async def test_a_state_that_was_rolled_back_is_noted_again(database: Database) -> None:
    health = Health(database, FakeClock())

    async def failing() -> None:
        async with database.transaction() as tx:
            await health.note_in(tx, "casts", "fail", "bug")
            raise KeyError

    with pytest.raises(KeyError):
        await failing()
    assert await health.part("casts") is None
    await health.note("casts", "fail", "bug")
    assert await health.part("casts") is not None


async def test_the_report_names_what_is_wrong(database: Database) -> None:
    clock = FakeClock()
    health = Health(database, clock)
    async with database.transaction() as tx:
        await health.note_in(tx, "model", "fail", "no answer")
        await health.note_in(tx, "restored", "warn", "from a backup")
        for by in (0, 2, 3):
            await health.count_in(tx, "malformed", by)
        await tx.execute(
            "INSERT INTO conversations (id, kind, room_id, scope, created_at)"
            " VALUES ('c', 'room', '!r', 's', '')"
        )
        for n, state in enumerate(("waiting", "stuck", "stuck")):
            await tx.execute(
                "INSERT INTO outbox (id, conversation_id, room_id, kind, body, state, problem,"
                " created_at) VALUES (?, 'c', '!r', 'reply', 'x', ?, 'M_FORBIDDEN', '')",
                (f"o{n}", state),
            )
        for n, state in enumerate(("waiting", "casting", "locked", "answered")):
            await tx.execute(
                "INSERT INTO inbox (event_id, conversation_id, room_id, sender, sender_name, origin,"
                " kind, body, direct, raw, sent_at, received_at, state)"
                " VALUES (?, 'c', '!r', 's', '', 'other', 'message', '', 1, '', '', ?, ?)",
                (f"$e{n}", stamp(NOON), state),
            )
        # 22:30 UTC the day before is still "today" in Berlin, half an hour later at midnight.
        for n, at in enumerate((timedelta(hours=-15), timedelta(hours=-13.5), timedelta())):
            await tx.execute(
                "INSERT INTO model_calls (id, role, backend, model, attempt, outcome, tokens_in,"
                " tokens_out, tokens_cached, usd, ms, created_at)"
                " VALUES (?, 'base', 'b', 'm', 1, 'ok', 10, 5, 4, 0.5, 1, ?)",
                (f"m{n}", stamp(NOON + at)),
            )
    facts = {fact.name: fact for fact in await status_lines(database, clock, "Europe/Berlin")}
    assert facts["model"].state == "fail"
    advice = "see that its server runs; `wintermute check` says more"  # U-012
    assert facts["model"].text == f"no answer (since 2026-05-04 14:00) -> {advice}"
    assert facts["inbox"].text == "2 waiting for an answer"
    assert facts["outbox"].state == "warn"
    assert "1 to be sent" in facts["outbox"].text
    assert "2 in !r: M_FORBIDDEN" in facts["outbox"].text
    assert facts["malformed events"].text == "5 skipped"
    today = "2 calls; 20 tokens read, 8 of them from the cache; 10 written; 1.0000 USD"
    assert facts["today, base"].text == today
    yesterday = "1 call; 10 tokens read, 4 of them from the cache; 5 written; 0.5000 USD"
    assert facts["yesterday, base"].text == yesterday
    locked = facts["locked messages"]  # one idea; the counts stand apart
    assert locked.text == "I cannot read 1 message of s -> ask to have them sent again"
    assert facts["decryption"].text == "0 messages decrypted, 0 only later, 1 still locked"
    clock.advance(25 * 3600)  # U-012: what is over is no state of today
    later = {fact.name: fact for fact in await status_lines(database, clock, "Europe/Berlin")}
    over = {n for n in facts.keys() & later.keys() if facts[n].state != later[n].state == "ok"}
    assert over == {"restored"}
    assert "locked messages" not in later


async def ask_often(
    database: Database, clock: FakeClock, role: str, times: int, usage: Usage
) -> None:
    """What so many calls of a role leave behind."""
    async with database.transaction() as tx:
        for _ in range(times):
            await tx.execute(
                "INSERT INTO model_calls (id, role, backend, model, attempt, outcome, tokens_in,"
                " tokens_out, tokens_cached, ms, created_at) VALUES (?, ?, 'b', 'm', 1, 'ok', ?, ?,"
                " ?, 1, ?)",
                (
                    new_id("ask"),
                    role,
                    usage.tokens_in,
                    usage.tokens_out,
                    usage.tokens_cached,
                    stamp(clock.now()),
                ),
            )


async def test_what_all_roles_used_together_is_told_and_what_each_did(database: Database) -> None:
    """L-086, L-087: tokens that the server had in its cache apart; no USD where nothing has a price."""
    clock = FakeClock()
    await ask_often(database, clock, "base", 2, Usage(20_000, 1_000, 18_450))
    await ask_often(database, clock, "compaction", 1, Usage(1_200, 100))
    lines = [fact for fact in await status_lines(database, clock, "UTC") if "today" in fact.name]
    assert [(fact.name, fact.text) for fact in lines] == [
        ("today", "3 calls; 41,200 tokens read, 36,900 of them from the cache; 2,100 written"),
        (
            "today, base",
            "2 calls; 40,000 tokens read, 36,900 of them from the cache; 2,000 written",
        ),
        ("today, compaction", "1 call; 1,200 tokens read, 0 of them from the cache; 100 written"),
    ]
    assert lines[0].numbers == {
        "calls": 3,
        "refused": 0,
        "tokens_in": 41_200,
        "tokens_out": 2_100,
        "tokens_cached": 36_900,
        "usd": 0.0,
    }


@pytest.mark.parametrize(
    ("role", "times", "usage", "told"),
    [
        ("base", 20, Usage(1024, 1), True),
        ("base", 19, Usage(1024, 1), False),
        ("base", 20, Usage(1023, 1), False),  # some providers keep nothing so short
        ("base", 20, Usage(1024, 1, 1), False),
        ("compaction", 20, Usage(9000, 1), False),  # these begin with what was said, each another
    ],
)
async def test_a_cache_of_which_nobody_ever_hears_is_mentioned(
    database: Database, role: str, times: int, usage: Usage, told: bool
) -> None:
    clock = FakeClock()
    await ask_often(database, clock, role, times, usage)
    facts = await status_lines(database, clock, "UTC")
    assert ("reports no cache -> see docs/models.md" in facts[-1].text) is told
    assert facts[-1].state == "ok"


async def test_an_empty_database_is_well(database: Database) -> None:
    facts = await status_lines(database, FakeClock(), "UTC")
    assert {fact.state for fact in facts} == {"ok"}
    assert facts[-1].text == "no model calls"


async def tasks_of(house: House) -> tuple[str, str]:
    """State and words of the fact about tasks."""
    facts = await status_lines(house.database, house.clock, "Europe/Berlin")
    return next((fact.state, fact.text) for fact in facts if fact.name == "tasks")


async def test_the_next_five_due_tasks_are_named_with_local_times(tmp_path: Path) -> None:
    """T-055: not by what they are about; what is paused is named, and nothing is wrong."""
    async with open_house(tmp_path, None, clock=FakeClock(MORNING)) as house:
        assert await tasks_of(house) == ("ok", "nothing is due")
        late = [await promise(house, f"secret {n}", DAILY) for n in range(6)]
        soon = await promise(house)
        await do(house, "pause", late[0])
        named = [f"{task.id} 2026-03-02 09:00" for task in (*late[1:5], late[5], soon)]
        assert await tasks_of(house) == (
            "ok",
            f"next {', '.join(named[:5])}; 1 paused: {late[0].id}",
        )


async def test_what_is_due_and_not_said_is_a_warning(tmp_path: Path) -> None:
    """T-055, lesson 11: whatever the reason."""
    clock = FakeClock(MORNING)
    async with open_house(tmp_path, None, clock=clock) as house:
        kitchen = "!kitchen:test"
        mine, soup = (
            await promise(house),
            await promise(house, "x", DAILY, f"room:{kitchen}", kitchen),
        )
        after(clock, "2026-03-02T09:05")
        assert (await tasks_of(house))[0] == "ok"
        clock.advance(1)
        state, text = await tasks_of(house)
        assert (state, text.split("; ")[1:]) == ("warn", [f"2 overdue: {mine.id}, {soup.id}"])
        house.speaker.unfit.add(kitchen)
        await house.fire()
        state, text = await tasks_of(house)
        assert (state, text.split("; ")) == (
            "warn",
            [
                "nothing is due",
                f"1 not said yet: {mine.id}",
                f"1 due, but I have no room to post it in: {soup.id}",
            ],
        )
        async with house.database.transaction() as tx:
            changed = "INSERT INTO people (user_id, master_key, changed_to, seen_at)"
            await tx.execute(f"{changed} VALUES (?, 'a', 'b', '')", (ANN,))
        held = f"1 held until a changed identity is trusted (see people): {mine.id}"
        assert (await tasks_of(house))[1].split("; ")[1] == held  # U-012: the reason is named
        house.speaker.unfit.clear()
        clock.advance(30)
        await house.fire()
        for room in (ROOM, kitchen):
            await house.deliver(room)
        await house.fire()
        assert await tasks_of(house) == (
            "ok",
            f"next {soup.id} 2026-03-03 09:00; 2 late since yesterday",
        )
        after(clock, "2026-03-03T09:05:40")
        assert "late" not in (await tasks_of(house))[1]


async def test_failed_runs_are_a_warning_until_one_goes_well(tmp_path: Path) -> None:
    """T-050, T-055."""
    clock = FakeClock(MORNING)
    by_itself = PlanRequest(
        schedule_type="daily", at="09:00", execution_mode="autonomous_silent", ai_prompt="Look."
    )
    async with open_house(tmp_path, None, clock=clock) as house:
        task = await promise(house, asked=by_itself)
        for day, told in ((2, "failed: ID"), (3, "failed: ID (2 in a row)")):
            after(clock, f"2026-03-0{day}T09:00")
            await house.promises.fire()
            run = (await house.stores.occurrences.last([task.id]))[task.id]
            async with house.database.transaction() as tx:
                out = await house.outbox.enqueue(
                    tx, run.conversation_id, "x", kind="event", meant_for=""
                )
                await house.stores.runs.failed(tx, run, "no answer", out, pauses=False)
            state, text = await tasks_of(house)
            assert (state, text.replace(task.id, "ID").split("; 1 ")[1]) == ("warn", told)
        after(clock, "2026-03-04T09:06")
        await house.promises.fire()
        run = (await house.stores.occurrences.last([task.id]))[task.id]
        async with house.database.transaction() as tx:
            await house.stores.runs.done(tx, run, "fine", None)
        assert await tasks_of(house) == (
            "ok",
            f"next {task.id} 2026-03-05 09:00; 1 late since yesterday",
        )


async def test_of_many_tasks_five_are_named_and_the_others_counted(tmp_path: Path) -> None:
    """T-055."""
    async with open_house(tmp_path, None, clock=FakeClock(MORNING)) as house:
        paused = [await promise(house, f"secret {n}", DAILY) for n in range(7)]
        for task in paused:
            await do(house, "pause", task)
        named = ", ".join(task.id for task in paused[:5])
        assert await tasks_of(house) == ("ok", f"nothing is due; 7 paused: {named}, 2 more")
