"""The index of words when it is damaged, gone, or from before it was kept: it is made anew by itself."""

import json
from contextlib import closing
from pathlib import Path

import pytest

from tests.tiers import tiered
from tests.world.house import PROMPTS, SCOPE, open_house
from tests.world.memory import ANN, index_is_sound, memory_in, words_are_sound
from tests.world.model import ModelServer
from tests.world.ranked import FTS5, open_ranked, remember_fact
from tests.world.scene import NewBot, NewPerson, NewRoom
from tests.world.terminal import Terminal
from wintermute.db import driver
from wintermute.memory.index import PART
from wintermute.memory.ranking import Query
from wintermute.memory.search import Search

DAMAGES = {
    "gone": "DROP TABLE facts_fts",
    "emptied": "DELETE FROM facts_fts",
    "lacks one": "DELETE FROM facts_fts WHERE rowid = 1",
    "garbage": "UPDATE facts_fts_data SET block = x'0102'",
    "no blocks": "DELETE FROM facts_fts_data",
    "no settings": "DELETE FROM facts_fts_config",
    "no table of settings": "DROP TABLE facts_fts_config",
    "no table of blocks": "DROP TABLE facts_fts_data",
    "no table of texts": "DROP TABLE facts_fts_content",
}
damaged = pytest.mark.parametrize(
    "damage", tiered(DAMAGES, ("gone", "garbage", "no table of settings"))
)


def spoil(data: Path, damage: str, name: str = "wintermute.db") -> None:
    """Do this to the database of a folder, past the program."""
    with closing(driver.connect(data / name, read_only=False)) as connection:
        connection.execute(damage)


@pytest.mark.slow
@damaged
async def test_a_command_finds_all_again_and_says_why(terminal: Terminal, damage: str) -> None:
    """Issue 18: told once, and the status before that does not ask for another database."""
    lines = [{"id": f"f{n}", "text": f"Tea number {n} is green"} for n in range(5)]
    given = "".join(f"{json.dumps(line)}\n" for line in lines).encode()
    terminal.says("memory", "import", "-", given=given)
    spoil(terminal.data, damage)
    before = json.loads(terminal.run("status", "--json").stdout)
    assert [part["name"] for part in before if part["state"] == "fail"] == []
    found = terminal.run("memory", "search", "green tea", "--json")
    assert found.returncode == 0, found.stderr
    assert {hit["id"] for hit in json.loads(found.stdout)["hits"]} == {f"f{n}" for n in range(5)}
    assert terminal.says("memory", "search", "number 3 tea").splitlines()  # and says nothing more
    [told] = [p for p in json.loads(terminal.run("status", "--json").stdout) if p["name"] == PART]
    assert (told["state"], told["text"].partition(":")[0]) == ("ok", "built anew from 5 memories")
    assert await index_is_sound(terminal.data)


@damaged
async def test_a_start_finds_all_again(tmp_path: Path, model: ModelServer, damage: str) -> None:
    """M-017: before the first message, which then gets what fits."""
    async with open_ranked(tmp_path, model, "Ann drinks green tea", "Carl plays chess"):
        pass
    spoil(tmp_path, damage)
    async with open_ranked(tmp_path, model) as house:
        part = await house.health.part(PART)
        assert part is not None
        assert part.detail.startswith("built anew from 2 memories")
        await house.say("which tea?")
    assert "- Ann drinks green tea\n" in model.requests[-1].texts[-1]
    assert await index_is_sound(tmp_path)


@pytest.mark.parametrize("use", ["search", "add", "retire", "purge"])
@pytest.mark.parametrize("damage", ["gone", "no blocks", "no table of settings"])
async def test_a_running_program_mends_it_at_once(tmp_path: Path, use: str, damage: str) -> None:
    """A command that was run beside it found it broken and dropped it, or the disk did worse."""
    async with memory_in(tmp_path) as memory:
        search, facts = Search(memory.database, memory.facts), memory.facts
        for text in ("Ann drinks green tea", "Carl plays chess", "Dora has a boat"):
            await memory.add(text)
        assert len(await search.find(ANN, Query("green tea"), 5)) == 1
        spoil(tmp_path, DAMAGES[damage], "test.db")
        if use == "add":
            await memory.add("Eve sails a boat")
        if use == "retire":
            await memory.retire("Carl plays chess")
        if use == "purge":
            [_, carl, _] = await facts.live(ANN)
            async with memory.database.transaction() as tx:
                await facts.purge(tx, ANN, [carl.id])
        assert len(await search.find(ANN, Query("green tea"), 5)) == 1
        assert len(await search.find(ANN, Query("boat"), 5)) == (2 if use == "add" else 1)
        assert len(await search.find(ANN, Query("chess"), 5)) == (use in ("search", "add"))
        async with memory.database.transaction() as tx:
            assert await words_are_sound(tx)


async def test_what_is_older_than_the_index_is_found(tmp_path: Path, model: ModelServer) -> None:
    """An upgrade: the step that makes the table knows no words."""
    async with open_ranked(tmp_path, model) as house:
        await remember_fact(house, "Ann drinks green tea")
        async with house.database.transaction() as tx:
            await tx.execute("DELETE FROM facts_fts")
    async with open_house(tmp_path, model.url, prompts=PROMPTS, memory=FTS5) as house:
        [hit] = await house.stores.memories.search(SCOPE, Query("tea"), 5)
        assert hit.fact.text == "Ann drinks green tea"


def test_what_else_is_broken_is_still_told(terminal: Terminal) -> None:
    """F-008: only what is derived is no reason to stop."""
    terminal.says("memory", "add", "Ann drinks green tea")
    file = terminal.data / "wintermute.db"
    content = bytearray(file.read_bytes())
    with closing(driver.connect(file, read_only=False)) as connection:
        query = "SELECT rootpage, (SELECT page_size FROM pragma_page_size) FROM sqlite_schema"
        page, size = connection.execute(f"{query} WHERE name = 'facts'").fetchone()
    content[(page - 1) * size : (page - 1) * size + 200] = b"\xff" * 200
    file.write_bytes(content)
    spoil(terminal.data, DAMAGES["no blocks"])
    for words in (("memory", "search", "tea"), ("status",)):
        done = terminal.run(*words)
        assert (done.returncode, done.stdout) == (2, b"")
        assert b"cannot be used" in done.stderr


@pytest.mark.slow
async def test_a_daemon_finds_all_again(person: NewPerson, bot: NewBot, room: NewRoom) -> None:
    """M-017, issue 18: `wintermute run` and `/memory WORDS`, with what `status` says of it."""
    ann = await person("ann")
    daemon = await bot(ann)
    chat = await room(ann, daemon)
    await daemon.command("memory", "add", "Likes green tea", "--scope", f"person:{ann.user_id}")
    await daemon.stop()
    spoil(daemon.data, DAMAGES["garbage"])
    await daemon.start()
    await ann.send(chat, "/memory green")
    await ann.wait_for(chat, lambda message: "Likes green tea" in message.body)
    _, said = await daemon.command("status", "--all")
    assert "built anew from 1 memories" in said
    assert await index_is_sound(daemon.data)
