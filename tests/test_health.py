"""What works and what does not, as another process reads it."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from tests.world.clock import NOON, FakeClock
from wintermute.clock import stamp
from wintermute.db import Database, open_database
from wintermute.health.report import gather
from wintermute.health.store import Health, PartHealth


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    async with open_database(tmp_path / "test.db") as database:
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
    async with database.transaction(), asyncio.timeout(5):
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
                " VALUES (?, 'c', '!r', 's', '', 'other', 'message', '', 1, '', '', '', ?)",
                (f"$e{n}", state),
            )
        # 22:30 UTC the day before is still "today" in Berlin, half an hour later at midnight.
        for n, at in enumerate((timedelta(hours=-15), timedelta(hours=-13.5), timedelta())):
            await tx.execute(
                "INSERT INTO model_calls (id, role, backend, model, attempt, outcome, tokens_in,"
                " tokens_out, usd, ms, created_at) VALUES (?, 'base', 'b', 'm', 1, 'ok', 10, 5, 0.5,"
                " 1, ?)",
                (f"m{n}", stamp(NOON + at)),
            )
    facts = {fact.name: fact for fact in await gather(database, clock, "Europe/Berlin")}
    assert facts["model"].state == "fail"
    assert facts["model"].text == "no answer (since 2026-05-04 14:00)"
    assert facts["inbox"].text == "2 waiting for an answer"
    assert facts["outbox"].state == "warn"
    assert "1 to be sent" in facts["outbox"].text
    assert "2 in !r: M_FORBIDDEN" in facts["outbox"].text
    assert (facts["decryption"].state, facts["malformed events"].text) == ("warn", "5 passed over")
    assert facts["today, base"].text == "2 calls, 30 tokens, 1.0000 USD"


async def test_an_empty_database_is_well(database: Database) -> None:
    facts = await gather(database, FakeClock(), "UTC")
    assert {fact.state for fact in facts} == {"ok"}
    assert facts[-1].text == "no model calls"
