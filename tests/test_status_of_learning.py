"""What a status tells of learning: what waits and for what, what was read last, what was refused."""

import json
from pathlib import Path

from tests.world.clock import HeldClock, until_so
from tests.world.harvested import BEN, Picker, harvested, status_line, talking
from tests.world.house import ROOM, House
from tests.world.model import ModelServer, Text
from tests.world.redacted import take_back
from tests.world.terminal import Terminal
from tests.world.warm import Interpreter
from wintermute.config.schema import BudgetSettings, MemoryHarvest
from wintermute.llm.models import Models
from wintermute.messages import Usage

OFTEN = MemoryHarvest(message_threshold=1, min_messages=1)
CANARY = "zanzibar"


class OneSlot(Models):
    """A server whose only slot is the chat's."""

    async def evicts_chat_cache(self, role: str) -> bool:
        return role in ("harvest", "reconstruction")


async def looked(house: House, sql: str, clock: HeldClock | None = None) -> None:
    """Wait until there is such a row, while all work looks what is due and time goes on."""

    async def so() -> bool:
        if clock is not None:
            clock.advance(60)
        for kind in house.runner.job_types:
            kind.wakeup.set()
        return bool(await house.rows(sql))

    await until_so(so)


async def test_it_tells_what_was_read_last_and_how_many_wait(
    tmp_path: Path, model: ModelServer
) -> None:
    """Issue 19: with when and where, and no word of it; nobody else is told more than its state."""
    picker, clock = Picker(model), HeldClock()
    picker.picks(f"Ann has been to {CANARY}.", "Ann likes tea.")
    async with talking(tmp_path, model, clock, harvest=OFTEN) as house:
        assert await status_line(house, "learning") == ""
        await house.say(f"I have been to {CANARY}, and I like tea")
        await harvested(house)
        told = await status_line(house, "learning")
        assert told == (
            "- **learning** (ok): 2 memories to be merged with the others; last read"
            f" 2026-05-04 14:00, {ROOM}: 2 memories picked up"
        )
        others = await status_line(house, "learning", origin="other", sender=BEN)
        assert others == "- **learning**: ok"


async def test_it_tells_for_what_work_waits(tmp_path: Path, model: ModelServer) -> None:
    """Issue 19: the night, or six quiet hours, where the server has one slot."""
    picker, clock = Picker(model), HeldClock()
    async with talking(tmp_path, model, clock, harvest=OFTEN, models_type=OneSlot) as house:
        await house.say("I like tea")
        await looked(house, "SELECT 1 FROM jobs WHERE name = 'harvest' AND waits_for <> ''")
        assert await status_line(house, "learning") == (
            "- **learning** (ok): looking for memories waits until 2026-05-04 20:00: models are"
            " asked for this at night, or after six quiet hours"
        )
        assert picker.transcripts == []


async def test_it_tells_that_the_budget_is_spent(tmp_path: Path, model: ModelServer) -> None:
    """Issue 19: the job waits for midnight."""
    Picker(model).answers["I like tea"] = Text("So do I.", usage=Usage(5_000, 10))
    budget = BudgetSettings(tokens_per_day=8_000)
    async with talking(tmp_path, model, HeldClock(), harvest=OFTEN, budget=budget) as house:
        await house.say("I like tea")
        await looked(house, "SELECT 1 FROM jobs WHERE name = 'harvest' AND waits_for <> ''")
        assert await status_line(house, "learning") == (
            "- **learning** (ok): looking for memories waits until 2026-05-05 00:00: the budget"
            " of the day is spent"
        )


async def test_refused_answers_are_counted_and_a_stop_is_told_once(
    tmp_path: Path, model: ModelServer
) -> None:
    """M-072: over a restart, without a word of the answer; the next start tries again."""
    picker, clock = Picker(model), HeldClock()
    junk = Text(json.dumps({"contents": [], f"Ann has been to {CANARY}": 1}))
    picker.usual = lambda: junk
    stopped = "SELECT ended_at FROM jobs WHERE state = 'failed'"
    async with talking(tmp_path, model, clock, harvest=OFTEN) as house:
        await house.say("I like tea")
        await looked(house, stopped, clock)
        told = [text for text in await house.spoken() if "failed three times" in text]
        assert told == [
            "I couldn't look for memories in your messages: it failed three times. I'll try again after the next"
            " restart; `/status` has details."
        ]
        assert "1 stopped: harvest of" in await status_line(house, "jobs")
        learning = await status_line(house, "learning")
        assert "3 answers of models refused, the last 2026-05-0" in learning
        assert learning.endswith("(harvest): something in it does not belong there")
        await house.say("and coffee")
        await looked(house, stopped, clock)
        assert len([text for text in await house.spoken() if "failed three times" in text]) == 1
        assert CANARY not in str(await house.rows("SELECT * FROM jobs"))
        assert CANARY not in str(
            await house.rows("SELECT * FROM single_values WHERE name LIKE 'answers refused%'")
        )
    picker.usual = lambda: Text('{"contents": []}')
    async with talking(tmp_path, model, clock, harvest=OFTEN) as house:
        await harvested(house)
        assert await status_line(house, "jobs") == ""
        assert "3 answers of models refused, the last" in await status_line(house, "learning")


async def test_what_is_left_of_a_forgetting_is_told(tmp_path: Path, model: ModelServer) -> None:
    """M-030: until the file is rewritten, too."""
    Picker(model)
    async with talking(tmp_path, model, HeldClock(), harvest=OFTEN) as house:
        said = await house.say("I like tea")
        await harvested(house)
        await take_back(house, *said)
        await looked(house, "SELECT 1 FROM jobs WHERE name = 'scrub' AND waits_for <> ''")
        assert await status_line(house, "forgetting") == (
            "- **forgetting** (ok): erased; the file of the database is cleaned after a minute without messages"
        )


async def test_the_command_line_tells_the_same_with_numbers(
    tmp_path: Path, model: ModelServer, python: Interpreter
) -> None:
    """Issue 19: `wintermute status --json`."""
    picker = Picker(model)
    picker.picks("Ann likes tea.")
    shell = Terminal.in_folder(tmp_path, python)
    async with talking(shell.data, model, HeldClock(), harvest=OFTEN) as house:
        await house.say("I like tea")
        await harvested(house)
    found = json.loads(shell.run("status", "--json").stdout)
    learning = next(each for each in found if each["name"] == "learning")
    assert learning["numbers"] == {"queued": 1, "waiting": 0, "picked": 1, "refused": 0}
