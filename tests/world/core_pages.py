"""A house whose model keeps what it is told to and answers when it is asked for a core page."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.world.clock import HeldClock, until_so
from tests.world.house import PROMPTS, ROOM, SCOPE, House, open_house
from tests.world.model import Calls, ModelServer, Seen, Step, Text, Use
from wintermute.learning.core_update import NAME
from wintermute.learning.reconstruction import KIND, SILENCE
from wintermute.memory.fact import Source

KEEP = "keep: "
PAGE = "# SOUL\n- calm\n\n# TOOLS\n\n# RULE\n- Never call Ann before 10:00.\n\n# USER\n"


def is_core(seen: Seen) -> bool:
    """Decide whether a request asks for a core page."""
    return "\n<current_core_markdown>\n" in seen.system


def wish(page: str | None) -> Text:
    """What a model answers."""
    return Text(json.dumps({"should_update": page is not None, "core_markdown": page}))


def core_questions(model: ModelServer) -> list[str]:
    """List the questions for a core page."""
    return [seen.system for seen in model.requests if is_core(seen)]


def keeps(seen: Seen) -> Step | None:
    """What it is told to keep it keeps."""
    _, _, entries = seen.last_user.partition(KEEP)
    if not entries or seen.messages[-1]["role"] == "tool":
        return None
    return Calls(tuple(Use("append_memory", entry) for entry in json.loads(entries)))


@asynccontextmanager
async def at_work(
    folder: Path, model: ModelServer, *steps: Step, **more: Any
) -> AsyncIterator[House]:
    """A house whose model answers so when it is asked for a page, and keeps what it is told to."""
    left = list(steps)

    def choose(seen: Seen) -> Step | None:
        if is_core(seen):
            return left.pop(0) if left else None
        return keeps(seen)

    model.updates_core = True
    model.allow("edited core", perhaps=True)
    model.keyed(choose)
    opened = open_house(folder, model.url, prompts=PROMPTS, clock=HeldClock(), **more)
    async with opened as house, house.working():
        yield house


async def keep(
    house: House,
    *texts: str,
    room: str = ROOM,
    scope: str | None = None,
    source: Source = "harvest",
) -> list[str]:
    """Somebody says what the assistant keeps; the ids of that."""
    entries = [{"entry": text, "source": source} for text in texts]
    await house.say(KEEP + json.dumps(entries), room=room, scope=scope)
    rows = await house.rows("SELECT id, text FROM facts WHERE scope = ?", scope or SCOPE)
    ids = {row["text"]: row["id"] for row in rows}
    return [ids[text] for text in texts]


async def quarter(house: House) -> None:
    """Fifteen quiet minutes pass: what was learnt is a batch."""
    assert isinstance(house.clock, HeldClock)
    await house.clock.move(SILENCE.total_seconds())
    house.runner.wake(KIND)


async def batch(house: House, *texts: str, source: Source = "harvest", batches: int = 1) -> None:
    """Learn these, and wait for the end of the core update that follows."""
    before = await updates_ended(house)
    await keep(house, *texts, source=source)
    await quarter(house)

    async def over() -> bool:
        house.runner.wake(NAME)
        return await updates_ended(house) == before + batches

    await until_so(over)


async def over(house: House) -> None:
    """Wait until one update has ended."""

    async def is_over() -> bool:
        house.runner.wake(NAME)
        return await updates_ended(house) == 1

    await until_so(is_over)


async def updates_ended(house: House) -> int:
    """How many updates came to an end, well or not."""
    query = "SELECT 1 FROM jobs WHERE name = ? AND (state IN ('done', 'failed') OR attempts > 0)"
    return len(await house.rows(query, NAME))


async def waits(house: House, number: int = 1) -> None:
    """Wait until so many updates wait for what passes by itself."""

    async def put_off() -> bool:
        house.runner.wake(NAME)
        query = "SELECT 1 FROM jobs WHERE name = ? AND state = 'waiting' AND not_before IS NOT NULL"
        return len(await house.rows(query, NAME)) == number

    await until_so(put_off)
