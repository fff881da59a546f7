"""`/remind`: a promise is possible when the model is not (T-062)."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.world.clock import FakeClock
from tests.world.house import ANN, HeldClock, House, house_at_work
from tests.world.model import Fail, ModelServer
from tests.world.promised import BY_BEN, GROUP, IN_GROUP
from wintermute.commands.tasks import FORMS
from wintermute.text import EMPTY_LISTS

MINE = f"person:{ANN}"


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    """On a Monday, at 14:00 in Berlin."""
    async with house_at_work(tmp_path, None, clock=HeldClock()) as house:
        yield house


@pytest.mark.parametrize(
    ("said", "due", "content"),
    [
        ("18:30 Call Anna", "today at 18:30", "Call Anna"),
        ("in 3 days tea", "on Thursday at 14:00", "tea"),
        ("18:30 soup:\n- leek\n\n- salt", "today at 18:30", "soup: - leek - salt"),
    ],
)
async def test_what_is_asked_for_is_promised_with_its_time(
    house: House, said: str, due: str, content: str
) -> None:
    """T-062: the answer has weekday and zone; the reminder is one line."""
    answer = await house.ask(f"/remind {said}")
    (task,) = await house.stores.tasks.listed(MINE)
    assert answer == f"I'll remind you {due}, once: {content}"
    assert task.content == content
    assert task.plan.mode == "reminder"


@pytest.mark.parametrize(
    "said", ["", "Call Anna", "18:30", "in 20 minutes", "25:00 tea", "soon tea"]
)
async def test_anything_else_gets_the_forms(house: House, said: str) -> None:
    """T-062: and no reminder exists."""
    answer = await house.ask(f"/remind {said}")
    assert [f"- `/remind {form}`" in answer for form in FORMS] == [True] * len(FORMS)
    assert await house.stores.tasks.listed(None, "all") == ()


@pytest.mark.parametrize("form", FORMS)
async def test_every_form_that_is_shown_is_read(tmp_path: Path, form: str) -> None:
    """T-062."""
    clock = HeldClock()
    clock.advance((datetime(2026, 2, 1, 8, tzinfo=UTC) - clock.now()).total_seconds())
    async with house_at_work(tmp_path, None, clock=clock) as house:
        assert (await house.ask(f"/remind {form}")).startswith("I'll remind you ")


@pytest.mark.parametrize(
    ("said", "wrong"),
    [
        ("2026-03-01 09:00 tea", "that time has passed"),
        ("today 13:59 tea", "that time has passed"),
        ("18:30 \u202e", "blank"),
        (f"18:30 {'x' * 2001}", "2001 characters"),
    ],
)
async def test_what_cannot_be_promised_is_told(house: House, said: str, wrong: str) -> None:
    """T-018, T-019: and no reminder exists."""
    assert wrong in await house.ask(f"/remind {said}")
    assert await house.stores.tasks.listed(None, "all") == ()


async def test_a_time_that_does_not_exist_is_pointed_out(house: House) -> None:
    """T-032."""
    answer = await house.ask("/remind 2027-03-28 02:30 tea")
    assert "on 28 March 2027 at 03:00, once: tea\n" in answer
    assert answer.endswith(
        "\n2027-03-28 02:30 is skipped by the clock change; it is due at 2027-03-28 03:00."
    )


async def test_marks_in_it_are_only_marks(house: House) -> None:
    assert ": \\*two\\* eggs" in await house.ask("/remind 18:30 *two* eggs")


async def test_a_promise_needs_no_model_while_a_message_waits_for_one(
    tmp_path: Path, model: ModelServer
) -> None:
    """T-046, T-062, L-072: it is made, listed and kept."""
    clock = HeldClock()
    model.script(Fail(500))
    async with house_at_work(tmp_path, model.url, clock=clock) as house:
        await house.incoming("go")
        await clock.asleep()
        assert "14:20, once: tea" in await house.ask("/remind in 20 minutes tea")
        assert "- `1` 14:20 tea" in await house.ask("/tasks")
        FakeClock.advance(clock, 1200)
        await house.fire()
        assert (await house.spoken())[-1] == "⏰ tea"
    assert len(model.requests) == 1


async def test_it_belongs_to_the_person_or_to_the_room(house: House) -> None:
    """T-013: each fires where it belongs."""
    assert "I'll remind you today" in await house.ask("/remind in 20 minutes tea")
    answer = await house.ask("/remind in 20 minutes soup", **IN_GROUP, **BY_BEN)
    assert answer.startswith("I'll remind this room today ")
    assert [task.content for task in await house.stores.tasks.listed(MINE)] == ["tea"]
    assert [task.content for task in await house.stores.tasks.listed(f"room:{GROUP}")] == ["soup"]
    assert isinstance(house.clock, FakeClock)
    house.clock.advance(1200)
    await house.fire()
    assert (await house.spoken())[-1] == "⏰ tea"
    assert (await house.spoken(GROUP))[-1] == "⏰ soup"


async def test_it_is_taken_back_by_undo(house: House) -> None:
    """T-062, L-081: and it names the message it came from."""
    await house.ask("/remind 18:30 tea")
    row = await house.one("SELECT origins, conversation_id FROM tasks")
    event = await house.one(
        "SELECT event_id, conversation_id FROM inbox WHERE body LIKE '/remind%'"
    )
    assert row == {
        "origins": f'["{event["event_id"]}"]',
        "conversation_id": event["conversation_id"],
    }
    assert (await house.ask("/undo")).endswith(": tea")
    assert await house.ask("/tasks") == EMPTY_LISTS["tasks"]


async def test_who_cannot_react_says_what_is_to_become_of_the_last_reminder(house: House) -> None:
    """T-063: as at the terminal, where nothing can be tapped and the reminder has no id to type."""
    assert (await house.ask("/tasks snooze")).startswith("Which task? ")
    for what in ("tea", "soup"):
        await house.ask(f"/remind in 1 minute {what}")
        house.clock.advance(60)  # type: ignore[attr-defined]  # a clock of tests
        await house.fire()
        await house.deliver()
        await house.fire()
    assert await house.ask("/tasks snooze") == "Again at 14:12: soup"
    assert await house.ask("/tasks cancel") == "Cancelled: soup (`/undo` brings it back)"
    assert (await house.ask("/tasks pause")).startswith("Which task? ")
