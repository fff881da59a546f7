"""`wintermute prompt`: what the model would read with the next message, in the terminal."""

import pytest

from tests.world.house import house_at_work
from tests.world.model import ModelServer
from tests.world.terminal import YOU, Terminal, tell_at, with_prompts
from wintermute.messages import Json

ROOM = "!room:test"


@pytest.fixture
def terminal(terminal: Terminal) -> Terminal:
    """One whose prompts are those of a house."""
    return with_prompts(terminal)


def parts(shown: Json, where: str) -> dict[str, str]:
    return {part["name"]: part["text"] for part in shown["parts"] if part["where"] == where}


def test_before_anything_was_said_it_is_what_the_first_message_brings(terminal: Terminal) -> None:
    """L-080, P-002: each part with its tokens, the tools as they are sent, and the sum."""
    (terminal.data / "MEMORIES.txt").write_text("Ann likes tea.\n")
    shown = terminal.json("prompt")
    assert (shown["branch"], shown["layout"], shown["scope"]) == (None, "append", f"person:{YOU}")
    assert "Core Instructions" in parts(shown, "system")
    assert '"task"' in parts(shown, "tools")["task"]
    brought = parts(shown, "next message")
    assert [*brought] == ["Current Time", "User Memories", "Skills"]
    assert brought["User Memories"] == "# User Memories\nAnn likes tea."
    assert shown["tokens"] == sum(part["tokens"] for part in shown["parts"])
    told = terminal.says("prompt")
    assert "\n== next message: " in told
    assert f"in all about {shown['tokens']:,} tokens; {shown['window']:,} fit beside" in told


def test_who_looks_into_the_data_folder_needs_no_password_of_matrix(terminal: Terminal) -> None:
    """L-080: that stands in the unit of the daemon, not in the shell of who looks."""
    assert "in all about" in terminal.says("prompt", WINTERMUTE_PASSWORD="")
    assert terminal.says("task", "list", WINTERMUTE_PASSWORD="")
    assert terminal.says("status", "--all", WINTERMUTE_PASSWORD="")
    assert b"WINTERMUTE_PASSWORD" in terminal.run("matrix", "logout", WINTERMUTE_PASSWORD="").stderr


async def test_later_it_is_told_parts_and_new_ones(terminal: Terminal, model: ModelServer) -> None:
    """P-017: beside a loop at work; only the time and the new line would go out."""
    memories = terminal.data / "MEMORIES.txt"
    memories.write_text("Ann likes tea.\n")
    prompts = terminal.data / "prompts"
    async with house_at_work(terminal.data, model.url, prompts=prompts, owner=YOU) as house:
        await tell_at(house, "hello")
        memories.write_text("Ann likes tea.\nAnn is 40.\n")
        shown = terminal.json("prompt", "--room", ROOM)
        assert terminal.json("prompt")["branch"] == shown["branch"]
        assert "no branch !other:test" in terminal.refuses("prompt", "--room", "!other:test")
    assert parts(shown, "told before")["User Memories"] == "# User Memories\nAnn likes tea."
    assert [*parts(shown, "conversation")] == ["2 messages"]
    brought = parts(shown, "next message")
    assert [*brought] == ["Current Time", "User Memories"]
    assert brought["User Memories"] == "# User Memories\nAnn is 40."


async def test_what_would_be_cut_is_said_by_part(terminal: Terminal, model: ModelServer) -> None:
    """L-036, F-023: by the window of the first backend."""
    prompts, config = terminal.data / "prompts", terminal.folder / "config.yaml"
    assert terminal.json("prompt")["cut"] == []
    async with house_at_work(terminal.data, model.url, prompts=prompts, owner=YOU) as house:
        for n in range(4):
            await tell_at(house, f"{n} " + "word " * 1200)
        whole = config.read_text()
        config.write_text(whole.replace("context_tokens: 32768", "context_tokens: 7000"))
        (terminal.data / "MEMORIES.txt").write_text(
            "".join(f"Ann likes tea number {n}.\n" for n in range(300))
        )
        cut = terminal.json("prompt", "--room", ROOM)["cut"]
        told = terminal.says("prompt", "--room", ROOM)
    assert any("earlier messages left out to fit" in line for line in cut), cut
    assert any(line.startswith("User Memories: ") for line in cut), cut
    assert told.endswith("".join(f"cut to fit: {line}\n" for line in cut))


def test_in_the_other_layout_all_of_it_is_the_system_message(terminal: Terminal) -> None:
    """P-001, P-002."""
    (terminal.data / "MEMORIES.txt").write_text("Ann likes tea.\n")
    config = terminal.folder / "config.yaml"
    config.write_text(config.read_text().replace("layout: append", "layout: system"))
    shown = terminal.json("prompt")
    named = [*parts(shown, "system")]
    assert named == ["Core Instructions", "Current Time", "User Memories", "Skills"]
    assert not parts(shown, "next message")
