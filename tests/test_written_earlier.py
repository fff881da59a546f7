"""What was written a while ago and is read only now: its times count from when it was written."""

from datetime import datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from tests.world.clock import NOON, FakeClock, HeldClock
from tests.world.house import ANN, PROMPTS, House, house_at_work, open_house
from tests.world.model import Calls, Fail, ModelServer, Text, Use
from wintermute.conversation.dispatcher import age, intent
from wintermute.mailbox.inbox import InboxRow

MINE = f"person:{ANN}"
ZONE = ZoneInfo("Europe/Berlin")
MINUTE = timedelta(minutes=1)


async def answer_later(house: House, clock: FakeClock, line: str, waits: timedelta) -> str:
    """What is said to a line that is read so long after it was written, at 14:00 in Berlin."""
    await house.incoming(line)
    clock.advance(waits.total_seconds())
    async with house.working():
        return (await house.said(1))[0]


@pytest.mark.parametrize(
    ("line", "waits", "due"),
    [
        ("in 20 minutes tea", 10 * MINUTE, NOON + 20 * MINUTE),
        ("in 20 minutes tea", 2 * MINUTE, NOON + 22 * MINUTE),
        ("in 3 hours tea", 150 * MINUTE, NOON + 180 * MINUTE),
        ("tomorrow 09:00 tea", 11 * 60 * MINUTE, NOON + 19 * 60 * MINUTE),
        ("14:30 tea", 10 * MINUTE, NOON + 30 * MINUTE),
        ("daily 14:05 tea", 10 * MINUTE, NOON + timedelta(days=1, minutes=5)),
    ],
)
async def test_what_is_asked_for_counts_from_when_it_was_written(
    tmp_path: Path, line: str, waits: timedelta, due: datetime
) -> None:
    """F-029: if that is more than two minutes ago; a series has no beginning to count from."""
    clock = FakeClock()
    async with open_house(tmp_path, None, clock=clock) as house:
        assert "I'll remind you " in await answer_later(house, clock, f"/remind {line}", waits)
        [task] = await house.stores.tasks.listed(MINE)
        assert task.next_due == due


@pytest.mark.parametrize("line", ["in 5 minutes tea", "14:05 tea", "today 14:05 tea"])
async def test_what_has_passed_meanwhile_is_said_at_once_and_marked(
    tmp_path: Path, line: str
) -> None:
    """F-029: no error, and nothing is lost."""
    clock = FakeClock()
    async with open_house(tmp_path, None, clock=clock) as house:
        said = await answer_later(house, clock, f"/remind {line}", 7 * MINUTE)
        assert said.startswith("That was due today at 14:05, before I read it")
        await house.fire()
        assert (await house.deliver())[1] == "⏰ tea (was due at 14:05)"


@pytest.mark.parametrize("action", ["add", "update"])
async def test_the_tool_counts_so_too_and_the_model_is_told(
    tmp_path: Path, model: ModelServer, action: str
) -> None:
    """F-029: `at` of the tool; a line before the message says when it was written."""
    clock = FakeClock()
    async with open_house(tmp_path, model.url, clock=clock, prompts=PROMPTS) as house:
        at = {"schedule_type": "once", "at": "in 20 minutes"}
        what: dict[str, str] = {"action": "add", "content": "tea"}
        if action == "update":
            await answer_later(house, clock, "/remind tomorrow 09:00 tea", 0 * MINUTE)
            [task] = await house.stores.tasks.listed(MINE)
            what = {"action": "update", "id": task.id}
        model.script(Calls((Use("task", what | at),)), Text("done"))
        await house.incoming("remind me of tea in 20 minutes")
        clock.advance(600)
        async with house.working():
            await house.settled()
        [task] = await house.stores.tasks.listed(MINE)
        assert task.next_due == NOON + 20 * MINUTE
        asked = model.requests[0].last_user
        assert asked.endswith("[written 14:00, 10 minutes ago]\nremind me of tea in 20 minutes")


def message(kind: str = "message", *, direct: bool = True) -> InboxRow:
    """Written at 14:00 in Berlin."""
    where = (1, "$1", "c", "!r", ANN, "Ann", "owner", kind, "tea?", direct)
    return InboxRow(*where, "waiting", None, NOON, NOON)  # type: ignore[arg-type]  # the literals


@pytest.mark.parametrize(
    ("waits", "line"),
    [
        (-MINUTE, ""),
        (2 * MINUTE, ""),
        (3 * MINUTE, "[written 14:00, 3 minutes ago]"),
        (150 * MINUTE, "[written 14:00, 2 hours ago]"),
        (11 * 60 * MINUTE, "[written 2026-05-04 14:00, 11 hours ago]"),
        (timedelta(days=9), "[written 2026-05-04 14:00, 9 days ago]"),
    ],
)
def test_the_line_says_when_it_was_written(waits: timedelta, line: str) -> None:
    """F-029."""
    assert age(message(), NOON + waits, ZONE) == line
    assert age(message("event"), NOON + waits, ZONE) == ""


def test_in_a_group_it_stands_before_the_line_that_it_is_about() -> None:
    """F-029."""
    lines = intent(message(direct=False), [message("context", direct=False)], "[written]")
    assert lines.splitlines()[3:] == ["[written]", f"Ann ({ANN}): tea?"]


async def test_what_the_tool_is_asked_for_may_have_passed(
    tmp_path: Path, model: ModelServer
) -> None:
    """F-029: no error for the model; said at once, and marked."""
    clock = FakeClock()
    async with open_house(tmp_path, model.url, clock=clock, prompts=PROMPTS) as house:
        at = {"schedule_type": "once", "at": "in 5 minutes"}
        model.script(
            Calls((Use("task", {"action": "add", "content": "tea"} | at),)), Text("too late")
        )
        await house.incoming("remind me of tea in 5 minutes")
        clock.advance(600)
        async with house.working():
            await house.said(1)
        [result] = [m["content"] for m in model.requests[1].messages if m["role"] == "tool"]
        assert "error" not in result
        await house.fire()
        assert await house.deliver() == ["too late", "⏰ tea (was due at 14:05)"]


async def test_the_model_is_told_although_it_was_asked_in_vain_when_it_was_written(
    tmp_path: Path, model: ModelServer
) -> None:
    """F-029, L-034: it was away since then."""
    clock = HeldClock()
    model.script(Fail(503))
    async with open_house(tmp_path, model.url, clock=clock) as house:
        await house.incoming("tea in 20 minutes?")
        async with house.working():
            await house.until(lambda: _waits(house))
    clock.advance(600)
    async with house_at_work(tmp_path, model.url, clock=clock) as house:
        await house.said(1)
        assert model.requests[0].last_user == "tea in 20 minutes?"
        assert model.requests[1].last_user == "[written 14:00, 10 minutes ago]\ntea in 20 minutes?"


async def _waits(house: House) -> bool:
    return bool(await house.rows("SELECT 1 FROM inbox WHERE not_before IS NOT NULL"))
