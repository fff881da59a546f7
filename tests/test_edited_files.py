"""Files that people edit and that cannot be used: nothing is lost, and their owner hears of it (F-031)."""

import asyncio
import os
import re
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from tests.world.bot import said
from tests.world.house import (
    ANN,
    PROMPTS,
    ROOM,
    WITHIN,
    HeldClock,
    House,
    house_at_work,
    open_house,
)
from tests.world.memory import Memory
from tests.world.model import ModelServer, Text
from tests.world.scene import NewBot, NewPerson, NewRoom
from wintermute.changes.change_sets import Reason
from wintermute.config.schema import ComponentSizeLimits
from wintermute.errors import ConfigurationError, FileUnusable
from wintermute.files import decoded
from wintermute.forgetting.forgetting import forget
from wintermute.health.health import EditedFiles
from wintermute.messages import Json
from wintermute.prompt.file_checks import FileChecks, unusable_files
from wintermute.schedule.edited_notices import PAUSE, EditedNotices
from wintermute.templates import Template

MINE = f"person:{ANN}"
LATIN = "Käse mag sie\n".encode("latin-1")


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("Käse\n".encode(), "Käse\n"),
        ("Käse\n".encode("utf-8-sig"), "Käse\n"),
        (b"\xff\xfe" + "Käse 🧀\n".encode("utf-16-le"), "Käse 🧀\n"),
        (b"\xfe\xff" + "Käse 🧀\n".encode("utf-16-be"), "Käse 🧀\n"),
        (b"", ""),
    ],
)
def test_text_is_read_as_editors_save_it(content: bytes, text: str) -> None:
    assert decoded(content) == text


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (LATIN, "is not UTF-8 at byte 1: save it as UTF-8"),
        ("Käse".encode("utf-16-le"), "is not UTF-8 at byte 2: save it as UTF-8"),
        ("Cheese".encode("utf-16-be"), "is not a text file"),
        ("Cheese".encode("utf-32"), "is not a text file"),
        (b"\xff\xfex", "is not UTF-16 at byte 2: save it as UTF-8"),
        (bytes(range(256)), "is not UTF-8"),
        (bytes(9), "is not a text file"),
    ],
)
def test_what_is_no_text_is_named_with_what_to_do(content: bytes, problem: str) -> None:
    with pytest.raises(FileUnusable) as told:
        decoded(content)
    assert str(told.value).startswith(problem)


def _latin(path: Path) -> None:
    path.write_bytes(LATIN)


def _large(path: Path) -> None:
    path.write_text("x" * 5_000_000)


def _folder(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.mkdir()


def _fifo(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def _device(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to("/dev/zero")


def _link(path: Path) -> None:
    path.unlink(missing_ok=True)
    (path.parent / "elsewhere").write_text("secret line\n")
    path.symlink_to(path.parent / "elsewhere")


HARMS = [_latin, _large, _folder, _fifo, _device]


def identity(path: Path) -> tuple[int, ...]:
    """What is another once a file was written or replaced, and the same when it was only read."""
    found = path.lstat()
    return found.st_ino, found.st_mode, found.st_size, found.st_mtime_ns


@pytest.mark.parametrize("harm", [*HARMS, _link])
async def test_whatever_takes_the_place_of_the_memories_the_facts_stay(
    memory: Memory, harm: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    await memory.add("likes tea")
    await memory.flat.text(MINE)
    harm(memory.file)
    before = identity(memory.file)
    async with asyncio.timeout(WITHIN):
        assert await memory.flat.text(MINE) == "likes tea\n"
    assert await memory.texts() == ["likes tea"]
    assert identity(memory.file) == before
    assert "data/MEMORIES.txt " in caplog.text
    (problem,) = FileChecks(memory.places, None).check().problems.values()
    assert problem.startswith("data/MEMORIES.txt ")


@pytest.mark.parametrize("harm", HARMS)
async def test_a_skill_of_no_text_is_named(memory: Memory, harm: Callable[[Path], None]) -> None:
    path = memory.file.parent / "skills" / "tea.md"
    path.parent.mkdir()
    path.write_text("How to make tea")
    look = FileChecks(memory.places, None)
    assert look.check().problems == {}
    harm(path)
    (told,) = unusable_files(memory.places)
    assert told.text.startswith("data/skills/tea.md ")
    assert told.text.endswith("save it as text in UTF-8, or move it away")
    assert look.check().problems == {"data/skills/tea.md": told.text}


async def test_memories_in_sixteen_bits_are_read_and_written_as_utf_eight(memory: Memory) -> None:
    """An edit in them counts like any other."""
    memory.file.write_bytes(b"\xff\xfe" + "mag Käse\r\n".encode("utf-16-le"))
    assert await memory.flat.text(MINE) == "mag Käse\n"
    await memory.add("likes tea")
    assert await memory.flat.text(MINE) == "mag Käse\nlikes tea\n"
    assert memory.file.read_text("utf-8") == "mag Käse\nlikes tea\n"


@pytest.mark.parametrize("harm", HARMS)
def test_a_prompt_of_no_text_is_as_it_was(tmp_path: Path, harm: Callable[[Path], None]) -> None:
    """Also over a restart; without an earlier text there is nothing to begin with."""
    path = tmp_path / "A.txt"
    path.write_text("Be kind.\r\n", newline="")
    template = Template(tmp_path, "A.txt")
    harm(path)
    assert template.text() == "Be kind.\n"
    restarted = Template(tmp_path, "A.txt", {"A.txt": "Be kind.\n"})
    assert restarted.text() == "Be kind.\n"
    with pytest.raises(ConfigurationError, match=r"prompt file .*A\.txt (is not|has over)"):
        Template(tmp_path, "A.txt")
    path.rmdir() if path.is_dir() else path.unlink()
    path.write_text("Be brief.")
    assert restarted.text() == "Be brief."


def test_a_prompt_may_be_a_link_to_a_text(tmp_path: Path) -> None:
    """Some keep theirs elsewhere."""
    _link(tmp_path / "A.txt")
    assert Template(tmp_path, "A.txt").text() == "secret line\n"


async def test_what_prompts_last_held_is_kept_by_name(memory: Memory) -> None:
    edited = EditedFiles(memory.database)
    await edited.keep([("data/prompts/A.txt", "a"), ("data/core.md", "c")])
    await edited.keep([("data/prompts/A.txt", "b")])
    async with memory.database.transaction() as tx:
        await edited.note_notified(tx, {"data/prompts/A.txt", "data/MEMORIES.txt"})
    assert await edited.texts("data/prompts") == {"A.txt": "b"}
    assert await edited.notified() == {"data/prompts/A.txt", "data/MEMORIES.txt"}


class Watched:
    """A house in whose folder the notices look, by a clock that a test moves."""

    def __init__(self, house: House, clock: HeldClock, folder: Path) -> None:
        self.house = house
        self.clock = clock
        self.folder = folder
        self.notices = EditedNotices(house.stores, house.speaker, clock)

    async def look(self, times: int = 1) -> list[str]:
        """Let it look so many times more; all that it said about files by then."""
        for _ in range(times):
            looked = await self._asleep()
            await self.clock.move(PAUSE)
            await self._asleep(looked + 1)
        return [text for text in await self.house.spoken() if "Until that" in text]

    async def _asleep(self, times: int = 1) -> int:
        """Wait until it has looked so often; how often it has."""
        async with asyncio.timeout(WITHIN):
            while (looked := self.clock.slept.count(PAUSE)) < times:  # noqa: ASYNC110  others sleep too
                await asyncio.sleep(0.01)
        return looked


@pytest.fixture
async def watched(tmp_path: Path, model: ModelServer) -> AsyncIterator[Watched]:
    clock = HeldClock()
    shutil.copytree(PROMPTS, tmp_path / "prompts")
    async with (
        house_at_work(tmp_path, model.url, clock=clock, prompts=tmp_path / "prompts") as house,
        asyncio.TaskGroup() as group,
    ):
        watched = Watched(house, clock, tmp_path)
        work = group.create_task(watched.notices.run())
        yield watched
        work.cancel()


async def test_the_owner_hears_once_of_each_file_until_it_is_good_again(watched: Watched) -> None:
    await watched.house.say("hello")
    core, seed = watched.folder / "core.md", watched.folder / "prompts" / "SEED_fr.txt"
    core.write_bytes(LATIN)
    assert await watched.look() == []  # it may be just being saved
    assert await watched.look(4) == [
        "data/core.md is not UTF-8 at byte 1: save it as UTF-8."
        " Until that is fixed, I do not change it and use its last good text."
    ]
    seed.write_bytes(LATIN)
    assert len(await watched.look(4)) == 2
    core.write_text("- tea\n")
    assert len(await watched.look(2)) == 2
    core.write_bytes(b"- " + LATIN)
    first, second, third = await watched.look(3)
    assert "SEED_fr.txt" in second
    assert third == first.replace("byte 1", "byte 3")
    room = {row["room_id"] for row in await watched.house.rows("SELECT * FROM outbox")}
    assert room == {ROOM}


async def test_the_owner_is_told_once_there_is_a_chat_with_nobody_else(watched: Watched) -> None:
    watched.house.speaker.unfit.add(ROOM)
    await watched.house.say("hello")
    (watched.folder / "core.md").write_bytes(LATIN)
    assert await watched.look(3) == []
    watched.house.speaker.unfit.clear()
    assert len(await watched.look(3)) == 1


async def test_the_owner_hears_once_what_stayed_when_a_file_lost_it(watched: Watched) -> None:
    """F-032, M-090: by their texts, with what removes them."""
    house, file = watched.house, watched.folder / "MEMORIES.txt"
    await house.say("hello")
    await _learn(house, "likes tea", "has a dog", "owns a boat")
    for _ in range(2):
        file.write_text("likes tea\n")
        await house.stores.memories.text(MINE)
        await watched.look(3)
    assert [text for text in await house.spoken() if "I kept" in text] == [
        "data/MEMORIES.txt was saved from an older text, so I kept what I have learned since: “has a dog”;"
        " “owns a boat”. To remove one for good, write `/forget` and its words."
    ]
    assert await house.rows("SELECT meant_for FROM outbox WHERE kind = 'notice'") == [
        {"meant_for": MINE}
    ]


async def _learn(house: House, *texts: str, scope: str = MINE) -> None:
    """The assistant learns it, and the file shows it."""
    for text in texts:
        async with house.database.transaction() as tx:
            why = Reason("tool", scope)
            await house.stores.facts.add(tx, why, text, "harvest", scope=scope)
        await house.stores.memories.text(scope)


@pytest.mark.breaks("tools")  # `night` is one as soon as something is asked
async def test_a_file_that_loses_much_asks_first(watched: Watched, model: ModelServer) -> None:
    """M-090: named are five and a number; all of them are in the prompt until a yes, and come back
    with a no, or an undo.
    """
    house, file = watched.house, watched.folder / "MEMORIES.txt"
    texts = [f"thing {n} is red" for n in range(8)]
    await _learn(house, *texts)
    whole = file.read_text()

    async def emptied(asked: int) -> str:
        """Empty the file; the name of the question."""
        file.write_text("")
        await house.incoming("hello")
        await house.said(asked)
        assert all(text in str([seen.messages for seen in model.requests]) for text in texts)
        assert "no longer: thing" not in str(model.requests[-1].messages)
        await watched.look(2)
        told = [text for text in await house.spoken() if "I still know" in text]
        assert file.read_text() == ""
        assert all(f"“{text}”" in told[-1] for text in texts[:5])
        assert "thing 5" not in told[-1]
        assert "8 lines disappeared from data/MEMORIES.txt" in told[-1]
        return told[-1].partition("`/night yes ")[2].partition("`")[0]

    await house.say(f"/night no {await emptied(1)}")
    assert file.read_text() == whole
    night = await emptied(4)
    await house.say(f"/night yes {night}")
    assert await house.stores.facts.live(MINE) == []
    await house.say(f"/night undo {night}")
    assert file.read_text() == whole


async def test_of_lines_of_another_chat_the_owner_hears_nothing(watched: Watched) -> None:
    """M-090: whose they are is asked in the morning."""
    house, scope = watched.house, "person:@bob:test"
    await house.say("hello")
    await _learn(house, *[f"thing {n} is red" for n in range(5)], scope=scope)
    house.stores.places.memories(scope).write_text("")
    await house.stores.memories.text(scope)
    await watched.look(3)
    assert len(await house.spoken()) == 1
    assert len(await house.rows("SELECT 1 FROM answered_decisions WHERE scope = ?", scope)) == 1


async def test_a_list_beyond_the_window_is_told_once(tmp_path: Path, model: ModelServer) -> None:
    """M-092: in one message, by `/status` and by `/why`, with what helps; until it fits again."""
    clock, file = HeldClock(), tmp_path / "MEMORIES.txt"
    shutil.copytree(PROMPTS, tmp_path / "prompts")
    file.write_text("".join(f"fact {n} is true\n" for n in range(3_000)))
    model.keyed(lambda _: Text("yes", usage=None))
    small: Json = {"context_tokens": 12_000, "max_output_tokens": 1_000}
    async with (
        house_at_work(
            *(tmp_path, model.url),
            clock=clock,
            prompts=tmp_path / "prompts",
            limits=ComponentSizeLimits(memories=10**9),
            **small,
        ) as house,
        asyncio.TaskGroup() as group,
    ):
        watched = Watched(house, clock, tmp_path)
        work = group.create_task(watched.notices.run())
        for n, word in enumerate(("hello", "/why", "/status"), 1):
            await house.incoming(word)
            await house.said(n)
        _, why, status = await house.spoken()
        told = "[12][0-9]{{3}} older memories do not fit into the model's window{} shorten that file, or"
        assert re.search(f"in the prompt of every message. {told.format(':')}", why)
        assert re.search(rf"data/MEMORIES.txt\*\* \(warn\): {told.format(':')}", status)
        await watched.look(4)
        await house.incoming("hello again")
        await watched.look(4)
        [notice] = [text for text in await house.spoken() if text.startswith("data/MEM")]
        assert re.fullmatch(
            f"data/MEMORIES.txt: {told.format(':')}.*memory.backend: fts5.*", notice
        )
        work.cancel()


async def test_a_status_in_the_chat_names_the_files(watched: Watched) -> None:
    (watched.folder / "core.md").write_bytes(LATIN)
    await watched.house.incoming("/status")
    (status,) = await watched.house.said(1)
    assert "**files** (warn): data/core.md is not UTF-8 at byte 1: save it as UTF-8" in status


def _database_bytes(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.glob("wintermute.db*"))


async def test_forgetting_a_memory_drops_the_copy_of_a_file_that_says_it(tmp_path: Path) -> None:
    """F-034, M-030: and the line of core memory that says it goes as well."""
    async with open_house(tmp_path, None) as house:
        (tmp_path / "core.md").write_text("- Ann is called Canary Bird\n")
        assert "Canary" in await house.stores.core.text(MINE)
        async with house.database.transaction() as tx:
            why = Reason("tool", MINE)
            facts = house.stores.facts
            fact, _ = await facts.add(tx, why, "Ann is called Canary Bird", "harvest", scope=MINE)
        done = await forget(house.stores, [fact])
        assert done.quoted == ()
        assert (tmp_path / "core.md").read_text() == ""
        assert not await house.stores.edited.text("data/core.md")
    assert b"Canary" not in _database_bytes(tmp_path)


@pytest.mark.slow
async def test_broken_files_are_told_and_change_no_answer_over_a_restart(
    person: NewPerson, bot: NewBot, room: NewRoom, model: ModelServer
) -> None:
    """At a real homeserver: what they last held is in the prompt, and one notice for each."""
    ann = await person("ann")
    daemon = await bot(ann)
    chat = await room(ann, daemon)
    (daemon.data / "core.md").write_text("# USER\n- Ann is a vegan\n")
    (daemon.data / "MEMORIES.txt").write_text("likes tea\n")
    await ann.send(chat, "one")
    await ann.wait_for(chat, lambda heard: heard.body == "echo: one")
    for name in ("core.md", "MEMORIES.txt", "prompts/BASE_PROMPT.txt"):
        (daemon.data / name).write_bytes(LATIN)
    await ann.wait_for_count(chat, daemon.user_id, 4)
    await daemon.restart()
    await ann.send(chat, "two")
    await ann.wait_for(chat, lambda heard: heard.body == "echo: two")
    asked = str(model.requests[-1].body)
    assert all(text in asked for text in ("Ann is a vegan", "likes tea", "personal AI assistant"))
    notices = [text for text in await said(ann, chat, daemon.user_id) if "Until that" in text]
    assert [text.split()[0] for text in sorted(notices)][:2] == [
        "data/MEMORIES.txt",
        "data/core.md",
    ]
    assert len(notices) == 3
