"""read_file and write_file stay inside the folders that the owner allowed."""

import asyncio
import os
import re
import resource
import socket
import stat
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from pathlib import Path

import pytest

from tests.world.clock import NOON, WITHIN
from wintermute.changes.change_sets import Reason
from wintermute.conversation.toolbox import Caller, Rejected, Toolbox
from wintermute.errors import ConfigurationError, MemoryFileUnusable, ToolFailed
from wintermute.messages import Call, Json, Origin
from wintermute.owner import Owner
from wintermute.tools.definition import Done
from wintermute.tools.files import MOST_BYTES, MOST_CHARACTERS, ReadFile, Roots, WriteFile
from wintermute.tools.memory import MemoriesView

OWNER = Owner("@ann:test")
ANN, BEN = OWNER.scope, "person:@ben:test"


class House:
    """A data folder, one allowed folder, and a secret outside."""

    def __init__(self, top: Path) -> None:
        self.data = top / "data"
        self.notes = top / "notes"
        self.outside = top / "notes-private"
        for folder in (self.data / "skills", self.data / "matrix", self.notes, self.outside):
            folder.mkdir(parents=True)
        (self.data / "skills" / "tea.md").write_text("Making tea\n\nBoil water.\n")
        (self.data / "matrix" / "keys").write_text("secret")
        (self.outside / "diary.txt").write_text("secret")
        self.roots = Roots(self.data, [self.notes], OWNER)

    async def read(self, path: str, origin: Origin = "owner", **page: int) -> str:
        result = await ReadFile(self.roots).run(caller(origin), {"path": path, **page})
        assert isinstance(result, str)
        return result

    async def write(self, path: str, content: str, origin: Origin = "owner") -> object:
        args = {"path": path, "content": content}
        return await WriteFile(self.roots).run(caller(origin), args)

    def names(self) -> set[str]:
        return {str(path.relative_to(self.notes)) for path in self.notes.rglob("*")}


def caller(origin: Origin, scope: str | None = None) -> Caller:
    """Somebody in a chat: the owner's own, unless it is somebody else."""
    whose = scope or (BEN if origin == "other" else ANN)
    return Caller("conv_1", whose, "cast_1", origin, "$event", NOON)


class Memories(MemoriesView):
    """The facts of each scope as a text; `replaced` has what was asked for."""

    def __init__(self) -> None:
        self.texts = {ANN: "Ann likes tea.\nAnn has a cat.\n", BEN: "Ben likes jazz.\n"}
        self.replaced: list[tuple[str, str, Reason, datetime]] = []

    def shown_path(self, scope: str) -> str:
        return "data/MEMORIES.txt" if scope == ANN else f"data/scopes/{scope}/MEMORIES.txt"

    async def text(self, scope: str) -> str:
        if scope not in self.texts:
            raise MemoryFileUnusable("MEMORIES.txt is not UTF-8")
        return self.texts[scope]

    async def replace(self, scope: str, text: str, why: Reason, begun: datetime) -> Json:
        self.replaced.append((scope, text, why, begun))
        return {"kept": 1}


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(tmp_path)


async def test_a_skill_is_read_by_its_listed_name_from_anywhere(house: House) -> None:
    """P-040."""
    assert await house.read("data/skills/tea.md") == "Making tea\n\nBoil water.\n"
    assert await house.read(str(house.data / "skills/tea.md")) == "Making tea\n\nBoil water.\n"
    (house.data / "skills/pdf/scripts").mkdir(parents=True)
    (house.data / "skills/pdf/scripts/run.sh").write_text("rm -r .\n")
    assert await house.read("data/skills/pdf/scripts/run.sh") == "rm -r .\n"  # F-056


async def test_a_relative_path_is_looked_for_in_every_allowed_folder(house: House) -> None:
    """L-075."""
    second = house.outside
    house.roots = Roots(house.data, [house.notes, second], OWNER)
    (house.notes / "a.txt").write_text("first")
    (second / "b.txt").write_text("second")
    assert await house.read("a.txt") == "first"
    assert await house.read("b.txt") == "second"
    await house.write("b.txt", "changed")
    await house.write("c.txt", "new")
    assert (second / "b.txt").read_text() == "changed"
    assert (house.notes / "c.txt").read_text() == "new"


@pytest.mark.parametrize(
    "path",
    [
        "../notes-private/diary.txt",
        "{notes}/../notes-private/diary.txt",
        "data/skills/../matrix/keys",
        "{outside}/diary.txt",
        "{notes}-private/diary.txt",
        "/etc/passwd",
        "{data}/matrix/keys",
        "{notes}",
        "data/skills",
        "",
        ".",
        "a\0b",
        "a\ud800b",
        "x/" * 3000,
        "n" * 300,
    ],
)
async def test_a_path_outside_is_refused_naming_what_is_allowed(house: House, path: str) -> None:
    """L-075."""
    path = path.format(notes=house.notes, outside=house.outside, data=house.data)
    with pytest.raises(ToolFailed, match=f"allowed folders: data/skills, {house.notes}"):
        await house.read(path)
    if not path.startswith("x/"):  # as a thing to write that is only a deep folder
        with pytest.raises(ToolFailed, match=f"allowed folders: {house.notes}|only data/skills"):
            await house.write(path, "mine")
        assert house.names() == set()
    assert (house.outside / "diary.txt").read_text() == "secret"


async def test_no_component_of_a_path_may_be_a_link(house: House) -> None:
    """L-075: neither the file, nor a folder on the way, also when it points inside."""
    (house.notes / "real").mkdir()
    (house.notes / "real" / "a.txt").write_text("a")
    (house.notes / "out").symlink_to(house.outside)
    (house.notes / "in").symlink_to("real")
    (house.notes / "diary.txt").symlink_to(house.outside / "diary.txt")
    (house.notes / "dangling.txt").symlink_to(house.outside / "new.txt")
    for path in ("out/diary.txt", "in/a.txt", "diary.txt", "dangling.txt"):
        with pytest.raises(ToolFailed, match="link"):
            await house.read(path)
        with pytest.raises(ToolFailed, match="link"):
            await house.write(path, "mine")
    assert (house.outside / "diary.txt").read_text() == "secret"
    assert (house.notes / "real" / "a.txt").read_text() == "a"
    assert not (house.outside / "new.txt").exists()


async def test_a_folder_swapped_for_a_link_at_any_moment_lets_nothing_out(house: House) -> None:
    """L-075: a race between check and use cannot be won."""
    day, link, spare = (house.notes / name for name in ("day", "link", "spare"))
    day.mkdir()
    (day / "diary.txt").write_text("open")
    link.symlink_to(house.outside)

    def swap() -> None:
        for old, new in ((day, spare), (link, day), (day, link), (spare, day)):
            old.rename(new)

    seen = set()
    async with repeated(swap):
        for _ in range(300):
            try:
                seen.add(await house.read("day/diary.txt"))
            except ToolFailed:
                seen.add("refused")
    assert seen <= {"open", "refused"}


async def test_a_file_swapped_for_a_link_at_any_moment_is_not_written_through(house: House) -> None:
    """L-075: the link itself is replaced at worst, never what it points to."""
    target, spare = house.notes / "diary.txt", house.notes / "spare"
    target.write_text("open")

    def swap() -> None:
        spare.symlink_to(house.outside / "diary.txt")
        spare.replace(target)
        spare.write_text("open")
        spare.replace(target)

    async with repeated(swap):
        for _ in range(100):
            with suppress(ToolFailed):
                await house.write("diary.txt", "mine")
    assert (house.outside / "diary.txt").read_text() == "secret"


@asynccontextmanager
async def repeated(step: Callable[[], None]) -> AsyncIterator[None]:
    """Meanwhile a thread does `step` again and again."""
    stopped = threading.Event()

    def until_stopped() -> None:
        while not stopped.is_set():
            step()

    async with asyncio.TaskGroup() as group:
        group.create_task(asyncio.to_thread(until_stopped))
        try:
            yield
        finally:
            stopped.set()


async def test_devices_fifos_sockets_and_folders_are_refused_at_once(house: House) -> None:
    """L-075; a fifo without a writer would block for ever."""
    os.mkfifo(house.notes / "fifo")
    (house.notes / "folder").mkdir()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(house.notes / "socket"))
        async with asyncio.timeout(WITHIN):
            for path in ("fifo", "folder", "socket"):
                with pytest.raises(ToolFailed, match="not a plain file"):
                    await house.read(path)
                with pytest.raises(ToolFailed, match="not a plain file"):
                    await house.write(path, "mine")
    devices = Roots(house.data, [Path("/dev")], OWNER)
    with pytest.raises(ToolFailed, match="not a plain file"):
        await ReadFile(devices).run(caller("owner"), {"path": "zero"})


async def test_an_allowed_folder_around_the_data_folder_opens_only_the_skills(house: House) -> None:
    house.roots = Roots(house.data, [house.data.parent], OWNER)
    for path in ("data/matrix/keys", f"{house.data}/wintermute.db"):
        with pytest.raises(ToolFailed, match="only data/skills"):
            await house.read(path)
        with pytest.raises(ToolFailed, match="only data/skills"):
            await house.write(path, "mine")
    assert await house.read("notes-private/diary.txt") == "secret"
    assert (house.data / "matrix" / "keys").read_text() == "secret"


async def test_other_people_may_read_skills_and_nothing_else(house: House) -> None:
    (house.notes / "a.txt").write_text("a")
    assert (await house.read("data/skills/tea.md", "other")).startswith("Making tea")
    for path in ("a.txt", str(house.notes / "a.txt")):
        with pytest.raises(ToolFailed, match=r"allowed folders: data/skills$"):
            await house.read(path, "other")
    for path in ("a.txt", "data/skills/tea.md"):
        with pytest.raises(ToolFailed, match=r"only the owner .*allowed folders: none\)$"):
            await house.write(path, "mine", "other")
    assert (house.notes / "a.txt").read_text() == "a"
    assert await house.read("a.txt", "timer") == "a"


@pytest.mark.parametrize("origin", ["system", "timer"])
@pytest.mark.parametrize("scope", [BEN, "room:!club:test"])
async def test_what_starts_by_itself_has_no_more_rights_than_who_talks_there(
    house: House, origin: Origin, scope: str
) -> None:
    """M-011: a seed or an event in somebody else's chat, or in a group, reaches no folder."""
    (house.notes / "a.txt").write_text("a")
    who = caller(origin, scope)
    with pytest.raises(ToolFailed, match=r"allowed folders: data/skills$"):
        await ReadFile(house.roots).run(who, {"path": "a.txt"})
    with pytest.raises(ToolFailed, match="only the owner"):
        await WriteFile(house.roots).run(who, {"path": "a.txt", "content": "mine"})


@pytest.mark.parametrize("below", ["", "skills", "matrix", "scopes"])
def test_a_folder_of_the_data_cannot_be_opened_to_tools(house: House, below: str) -> None:
    """M-011: also through a link."""
    (house.outside / "link").symlink_to(house.data / below)
    for folder in (house.data / below, house.outside / "link"):
        with pytest.raises(ConfigurationError, match=r"tools\.files\.roots"):
            Roots(house.data, [folder], OWNER)


async def test_a_long_file_is_read_page_by_page_without_gap(house: House) -> None:
    """L-075."""
    lines = [f"line {number}\n" for number in range(1, 4502)]
    (house.notes / "log.txt").write_text("".join(lines))
    first = await house.read("log.txt")
    assert first.endswith(f"[lines 1-2000 of {house.notes}/log.txt; next offset: 2001]")
    pages = [first, await house.read("log.txt", offset=2001, limit=9999)]
    pages.append(await house.read("log.txt", offset=4001))
    assert "".join(page.split("\n[lines")[0] for page in pages) == "".join(lines)
    assert "[lines" not in pages[2]
    some = await house.read("log.txt", offset=7, limit=2)
    assert some == f"line 7\nline 8\n\n[lines 7-8 of {house.notes}/log.txt; next offset: 9]"
    with pytest.raises(ToolFailed, match="only 4501 lines"):
        await house.read("log.txt", offset=4503)


async def test_a_line_longer_than_a_page_can_be_read_on(house: House) -> None:
    text = "a" * MOST_CHARACTERS + "b" * 10
    (house.notes / "long.txt").write_text(text)
    first = await house.read("long.txt")
    assert first.startswith("a" * MOST_CHARACTERS + "\n[lines 1-1 ")
    assert await house.read("long.txt", offset=2) == "b" * 10


async def test_what_is_not_text_is_refused_plainly(house: House) -> None:
    (house.notes / "image").write_bytes(b"\x89PNG\r\n\x1a\n\0\0")
    (house.notes / "zeros").write_bytes(b"abc\0def")
    (house.notes / "latin").write_bytes("Käse".encode("latin-1"))
    for path in ("image", "zeros", "latin"):
        with pytest.raises(ToolFailed, match="not a text file"):
            await house.read(path)


async def test_a_missing_file_is_named_with_the_allowed_folders(house: House) -> None:
    with pytest.raises(ToolFailed, match=rf"a\.txt does not exist .*{re.escape(str(house.notes))}"):
        await house.read("a.txt")
    gone = Roots(house.data, [house.notes / "gone"], OWNER)
    with pytest.raises(ToolFailed, match="does not exist"):
        await WriteFile(gone).run(caller("owner"), {"path": "a.txt", "content": "a"})
    assert house.names() == set()


async def test_a_new_file_is_written_with_its_folders(house: House) -> None:
    receipt = await house.write("trips/2026/lyon.md", "# Lyon\nä\r\n")
    path = house.notes / "trips/2026/lyon.md"
    assert receipt == {"path": str(path), "bytes": 11, "created": True}
    assert path.read_bytes() == "# Lyon\nä\r\n".encode()
    assert await house.read("trips/2026/lyon.md") == "# Lyon\nä\r\n"
    assert house.names() == {"trips", "trips/2026", "trips/2026/lyon.md"}


@pytest.mark.parametrize(
    "path", ["data/skills/tea.md", "data/skills/new.md", "{data}/skills/tea.md"]
)
async def test_a_skill_is_written_with_its_own_tool_only(house: House, path: str) -> None:
    """P-049: by whatever way; the former text would not be kept."""
    house.roots = Roots(house.data, [house.data.parent], OWNER)
    with pytest.raises(ToolFailed, match="skills are written with add_skill"):
        await house.write(path.format(data=house.data), "mine")
    assert [file.name for file in (house.data / "skills").iterdir()] == ["tea.md"]
    assert await house.read("data/skills/tea.md") == "Making tea\n\nBoil water.\n"


@pytest.mark.parametrize(
    ("scope", "origin"), [(ANN, "owner"), (ANN, "system"), (BEN, "other"), (BEN, "timer")]
)
async def test_the_memories_of_a_scope_are_one_more_file_for_whoever_talks_there(
    house: House, scope: str, origin: Origin
) -> None:
    """P-049, M-011: and those of others stay out of reach."""
    memories = Memories()
    read, write = ReadFile(house.roots, memories), WriteFile(house.roots, memories)
    who = caller(origin, scope)
    mine = memories.shown_path(scope)
    assert await read.run(who, {"path": mine}) == memories.texts[scope]
    receipt = await write.run(who, {"path": f"./{mine}", "content": "One thing.\n"})
    assert receipt == {"kept": 1}
    why = Reason("tool", scope, "cast_1", ("$event",))
    assert memories.replaced == [(scope, "One thing.\n", why, NOON)]
    theirs = memories.shown_path(BEN if scope == ANN else ANN)
    for path in (theirs, str(house.data / mine.removeprefix("data/")), "/etc/passwd"):
        with pytest.raises(ToolFailed, match=f"file (is )?{re.escape(mine)}"):
            await read.run(who, {"path": path})
        with pytest.raises(ToolFailed, match=f"file (is )?{re.escape(mine)}"):
            await write.run(who, {"path": path, "content": "mine"})
    assert len(memories.replaced) == 1


async def test_memories_come_in_pages_and_fail_in_words(house: House) -> None:
    """L-075, P-049."""
    memories = Memories()
    read, write = ReadFile(house.roots, memories), WriteFile(house.roots, memories)
    path = "data/MEMORIES.txt"
    page = await read.run(caller("owner"), {"path": path, "limit": 1})
    assert page == f"Ann likes tea.\n\n[lines 1-1 of {path}; next offset: 2]"
    second = await read.run(caller("owner"), {"path": path, "offset": 2})
    assert second == "Ann has a cat.\n"
    nobody = caller("other", "nobody")
    with pytest.raises(ToolFailed, match="not UTF-8"):
        await read.run(nobody, {"path": memories.shown_path("nobody")})
    with pytest.raises(ToolFailed, match="broken character"):
        await write.run(caller("owner"), {"path": path, "content": "a\ud800"})
    assert memories.replaced == []


async def test_a_replaced_file_keeps_its_mode_and_readers_keep_the_old_text(house: House) -> None:
    path = house.notes / "a.txt"
    path.write_text("old")
    path.chmod(0o640)
    with path.open() as opened_before:
        receipt = await house.write("a.txt", "new")
        assert opened_before.read() == "old"
    assert receipt == {"path": str(path), "bytes": 3, "created": False}
    assert path.read_text() == "new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert house.names() == {"a.txt"}


async def test_content_that_cannot_be_stored_changes_nothing(house: House) -> None:
    (house.notes / "a.txt").write_text("old")
    for content, reason in (("x" * (MOST_BYTES + 1), "at most"), ("a\ud800", "broken character")):
        with pytest.raises(ToolFailed, match=reason):
            await house.write("a.txt", content)
        with pytest.raises(ToolFailed, match=reason):
            await house.write("deep/b.txt", content)
    assert (house.notes / "a.txt").read_text() == "old"
    assert house.names() == {"a.txt"}


async def test_a_write_that_fails_half_way_leaves_the_old_text_and_no_trace(house: House) -> None:
    """As on a full disk, by a limit on the size of this process's files."""
    (house.notes / "a.txt").write_text("old")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(ToolFailed, match="too large"):
            await house.write("a.txt", "x" * 500_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (house.notes / "a.txt").read_text() == "old"
    assert house.names() == {"a.txt"}


def test_the_definitions_are_short_and_give_an_example(house: House) -> None:
    for tool in (ReadFile(house.roots), WriteFile(house.roots), Done()):
        assert '{"' in tool.description
        assert tool.parameters["additionalProperties"] is False
    assert [tool.durable for tool in (ReadFile(house.roots), WriteFile(house.roots))] == [1, 0]


@pytest.mark.parametrize(
    "arguments",
    ['{"offset": 2}', '{"path": 3}', '{"path": "a", "offset": 0}', '{"path": "a", "lines": 9}'],
)
def test_arguments_that_break_the_schema_are_not_run(house: House, arguments: str) -> None:
    """L-030."""
    toolbox = Toolbox([ReadFile(house.roots)])
    assert isinstance(toolbox.accept(Call("call_1", "read_file", arguments)), Rejected)


@pytest.mark.parametrize("answer", ["It is done.", 0, False, []])
async def test_done_hands_the_answer_over_unchanged(answer: object) -> None:
    """L-009."""
    assert await Done().run(caller("owner"), {"answer": answer}) == answer
