"""A house whose memories are ranked by words."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.world.clock import FakeClock
from tests.world.house import PROMPTS, SCOPE, House, house_at_work
from tests.world.model import ModelServer
from wintermute.changes.change_sets import Reason
from wintermute.config.schema import Context, Memory

FTS5 = Memory(backend="fts5")


@asynccontextmanager
async def open_ranked(
    folder: Path,
    model: ModelServer,
    *facts: str,
    memory: Memory = FTS5,
    context: Context = Context(),  # noqa: B008  a frozen value
) -> AsyncIterator[House]:
    """A house in which Ann's memories are these, and it works."""
    clock = FakeClock()
    async with house_at_work(
        folder, model.url, prompts=PROMPTS, clock=clock, memory=memory, context=context
    ) as house:
        for text in facts:
            await remember_fact(house, text)
        yield house


async def remember_fact(house: House, text: str, scope: str = SCOPE) -> str:
    """Store one memory; its id."""
    async with house.database.transaction() as tx:
        why = Reason("command", scope)
        fact, _ = await house.stores.facts.add(tx, why, text, "harvest", scope=scope, queued=False)
    return fact.id


def context_block(text: str) -> str:
    """Cut out the context that a message brings."""
    return text.partition("<context>")[2]
