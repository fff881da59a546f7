"""A model rewrites the memories: what it has not seen stays, and no kill makes it a hand edit."""

import asyncio
import logging
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from tests.world.memory import ANN, Memory, because, memory_in
from wintermute.errors import ToolFailed
from wintermute.memory.fact import Fact, NewFact


async def test_a_list_rewritten_by_a_model_keeps_what_it_must(memory: Memory) -> None:
    """P-049, M-062: in its order, as one change set, and with the way back."""
    await memory.add("has a dog named Rex")
    for text in ("likes green tea", "likes black tea", "works at night"):
        await memory.add(text, "harvest")
    before = await memory.flat.text(ANN)
    memory.clock.advance(1)
    begun = memory.clock.now()
    await memory.add("said meanwhile", "harvest")
    memory.file.write_text(f"{before}written by hand\n")
    text = "- works at night\n# Rex is the dog's name\nlikes green and black tea\n"
    done = await memory.flat.replace(ANN, text, because(), begun)
    assert done.outcomes == ("known", "stored", "stored")
    assert [fact.source for fact in done.facts] == ["harvest", "user_explicit", "dreaming_merge"]
    assert len(done.retired) == 3
    expected = ["works at night", "Rex is the dog's name", "likes green and black tea"]
    expected += ["written by hand", "said meanwhile"]
    assert memory.file_lines() == expected
    assert await memory.flat.text(ANN) == "\n".join([*expected, ""])
    await memory.take_back()
    after = (await memory.flat.text(ANN)).splitlines()
    assert sorted(after) == sorted([*before.splitlines(), *expected[-2:]])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "empty"),
        ("fact 0\nfact 1\nown 7", "40 %"),
        ("fact 0\nfact 1\nfact 2\nfact 3", 'own words.*"own 7"'),
        ("own 7\nfact 1\nfact 2\n...", "left out"),
    ],
)
async def test_a_list_that_loses_much_is_refused(memory: Memory, text: str, reason: str) -> None:
    """M-062: and nothing is changed."""
    for n in range(5):
        await memory.add(f"fact {n}", "harvest")
    await memory.add("own 7")
    before = await memory.flat.text(ANN)
    memory.clock.advance(1)
    with pytest.raises(ToolFailed, match=reason):
        await memory.flat.replace(ANN, text, because(), memory.clock.now())
    assert await memory.flat.text(ANN) == memory.file.read_text() == before


@pytest.mark.parametrize("removed", ["by hand", "by undo", "before", "by a rewriting"])
async def test_what_went_while_a_model_worked_stays_away(memory: Memory, removed: str) -> None:
    """M-015: the model has not seen it go; what it took out itself it may put back."""
    for text in ("Ann likes tea", "Bob lives in Rome", "Carl has a dog"):
        await memory.add(text, "harvest")
    text = await memory.flat.text(ANN)
    without = text.replace("Carl has a dog\n", "")
    memory.clock.advance(1)
    if removed == "before":
        await memory.retire("Carl has a dog")
        memory.clock.advance(1)
    begun = memory.clock.now()
    memory.clock.advance(1)
    match removed:
        case "by hand":
            memory.file.write_text(without)
        case "by undo":
            await memory.take_back()
        case "by a rewriting":
            await memory.flat.replace(ANN, without, because(), begun)
        case _:
            pass
    await memory.flat.replace(ANN, text, because(), begun)
    back = ["Carl has a dog"] if removed in ("before", "by a rewriting") else []
    assert memory.file_lines() == ["Ann likes tea", "Bob lives in Rome", *back]
    assert sorted(await memory.texts()) == memory.file_lines()


@pytest.mark.parametrize("how", ["imported", "revived"])
async def test_what_came_while_a_model_worked_stays(memory: Memory, how: str) -> None:
    """M-062: however old it is, the model has not seen it."""
    for text in ("Ann likes tea", "Eve was born in Oslo"):
        await memory.add(text, "harvest")
    await memory.retire("Eve was born in Oslo")
    await memory.flat.text(ANN)
    memory.clock.advance(9)
    begun = memory.clock.now()
    memory.clock.advance(1)
    if how == "revived":
        await memory.take_back()
    else:
        old = NewFact(ANN, "Eve was born in Oslo", at=begun - timedelta(days=400))
        async with memory.database.transaction() as tx:
            await memory.facts.take(tx, [old])
    await memory.flat.replace(ANN, "Ann likes tea\n", because(), begun)
    assert memory.file_lines() == ["Ann likes tea", "Eve was born in Oslo"]


class Copies(logging.Handler):
    """Copies a folder before each step of the database: what a kill there leaves."""

    def __init__(self, folder: Path, place: Path) -> None:
        super().__init__()
        self.folder = folder
        self.place = place
        self.made: list[Path] = []

    def emit(self, record: logging.LogRecord) -> None:
        if str(record.msg).startswith("executing"):  # afterwards others are at work already
            self.copy()

    def copy(self) -> None:
        self.made.append(self.place / str(len(self.made)))
        shutil.copytree(self.folder, self.made[-1])


@contextmanager
def watched(handler: logging.Handler) -> Iterator[None]:
    """Each step of the database is told to the handler."""
    log = logging.getLogger("aiosqlite")
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.DEBUG)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level)


@pytest.mark.quick(every=3)
@pytest.mark.parametrize("what", ["replace", "forget", "store"])
async def test_a_kill_never_turns_our_changes_into_hand_edits(tmp_path: Path, what: str) -> None:
    """M-015, M-062: killed anywhere, facts are as before or as after, and so is their source."""
    (folder := tmp_path / "live").mkdir()
    async with memory_in(folder) as memory:
        for text in ("Ann likes tea", "Bob lives in Rome", "Carl has a dog"):
            await memory.add(text, "harvest")
        text = await memory.flat.text(ANN)
        before = await memory.facts.live(ANN)
        memory.clock.advance(1)
        if what == "store":
            await memory.retire("Bob lives in Rome")
            await memory.add("Dora sings", "harvest")
        copies = Copies(folder, tmp_path)
        with watched(copies):
            if what == "replace":
                new = text.replace("Rome\nCarl", "Rome, Carl")
                await memory.flat.replace(ANN, new, because(), memory.clock.now())
            elif what == "forget":
                await memory.flat.remove(ANN, [before[1].id])
            else:
                await memory.flat.text(ANN)
        copies.copy()
        after = await memory.facts.live(ANN)
    became = {await _starts_again(copy, before, after) for copy in copies.made}
    assert became == ({"after"} if what == "store" else {"before", "after"})


async def _starts_again(folder: Path, before: list[Fact], after: list[Fact]) -> str:
    async with memory_in(folder) as memory:
        await memory.flat.text(ANN)
        now = await memory.facts.live(ANN)
        assert now in (before, after)
        assert sorted(memory.file_lines()) == sorted(fact.text for fact in now)
        assert "edit" not in [found.cause for found in await memory.changes.history(["fact"])]
        return "after" if now == after else "before"


class Cancelling(logging.Handler):
    """Cancels a task at one step of the database."""

    def __init__(self, step: int) -> None:
        super().__init__()
        self.left = step
        self.loop = asyncio.get_running_loop()
        self.task: asyncio.Task[object] | None = None

    def emit(self, record: logging.LogRecord) -> None:
        self.left -= 1
        if self.left == 0 and self.task:
            self.loop.call_soon_threadsafe(self.task.cancel)


@pytest.mark.slow
async def test_a_rewriting_cancelled_anywhere_leaves_no_hand_edit(tmp_path: Path) -> None:
    """L-023: /stop ends it between any two steps; the same process goes on with the file."""
    became = set()
    for step in range(1, 230, 5):
        (folder := tmp_path / str(step)).mkdir()
        async with memory_in(folder) as memory:
            for text in ("Ann likes tea", "Bob lives in Rome", "Carl has a dog"):
                await memory.add(text, "harvest")
            text = (await memory.flat.text(ANN)).replace("Rome\nCarl", "Rome, Carl")
            memory.clock.advance(1)
            cancelling = Cancelling(step)
            with watched(cancelling):
                async with asyncio.TaskGroup() as group:
                    begun = memory.clock.now()
                    work = memory.flat.replace(ANN, text, because(), begun)
                    cancelling.task = group.create_task(work)
            await memory.flat.text(ANN)
            assert sorted(memory.file_lines()) == sorted(await memory.texts())
            causes = [found.cause for found in await memory.changes.history(["fact"])]
            assert "edit" not in causes
            became.add((len(memory.file_lines()), cancelling.task.cancelled()))
    assert became == {(3, True), (2, True), (2, False)}
