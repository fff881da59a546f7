"""A large store is looked through by a process of its own, and by us where that is lost (M-030)."""

import os
import signal
from pathlib import Path

import pytest

from tests.world.schema import open_migrated
from wintermute.db.text_search import LARGE, SearchableText, TextQuery, TextSearch

PROMPTS = SearchableText("prompt_parts", ("text",), "hash")
FILES = SearchableText("edited_files", ("text",), "name")
SECRET = "the bird is a zimtkanarie"


def children() -> list[int]:
    """The processes that this one has started, and which still run."""
    tasks = Path("/proc/self/task").glob("*/children")
    return [int(pid) for task in tasks for pid in task.read_text().split()]


async def place(look: TextSearch) -> list[str]:
    """The keys of the prompts that say it."""
    found = await look.seek([TextQuery([PROMPTS], [SECRET]), TextQuery([FILES], ["nothing of it"])])
    return [key for rows in found.rows.values() for (key,) in rows]


@pytest.mark.parametrize("size", [0, LARGE])
async def test_a_store_is_looked_through_by_a_process_if_it_is_large(
    tmp_path: Path, size: int
) -> None:
    """M-030: it answers as we do ourselves, more than once, and has left with the block."""
    before = children()
    async with open_migrated(tmp_path / "wintermute.db") as database:
        async with database.transaction() as tx:
            texts = [("a", "x" * size), ("b", f"<b>{SECRET.upper()}</b>"), ("c", "tea")]
            await tx.execute_many("INSERT INTO prompt_parts (hash, text) VALUES (?, ?)", texts)
        await database.cut_log()
        async with database.text_search() as look:
            assert len(children()) - len(before) == bool(size)
            assert [await place(look), await place(look)] == [["b"], ["b"]]
            ours, priority = os.getpriority(os.PRIO_PROCESS, 0), os.PRIO_PROCESS
            beside = [os.getpriority(priority, pid) for pid in set(children()) - set(before)]
            assert all(nice > ours for nice in beside)  # answers go first
        assert children() == before


async def test_what_a_lost_process_was_asked_is_found_all_the_same(tmp_path: Path) -> None:
    """M-030: killed, as by a system that is short of memory."""
    before = children()
    async with open_migrated(tmp_path / "wintermute.db") as database:
        async with database.transaction() as tx:
            texts = [("a", "x" * LARGE), ("b", SECRET)]
            await tx.execute_many("INSERT INTO prompt_parts (hash, text) VALUES (?, ?)", texts)
        await database.cut_log()
        async with database.text_search() as look:
            assert await place(look) == ["b"]
            for pid in set(children()) - set(before):
                os.kill(pid, signal.SIGKILL)
            assert [await place(look), await place(look)] == [["b"], ["b"]]
