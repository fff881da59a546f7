"""What is forgotten goes from the wiki: raw copies, conversations, job folders and lines of pages (M-030)."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.world.files import WORD, texts_below
from tests.world.forgetting import (
    FACT,
    MATTER,
    OTHER,
    SOURCE,
    STORE,
    forget_all,
    forgotten,
    furnish,
    learn,
)
from tests.world.house import ANN, House
from tests.world.model import ModelServer
from tests.world.redacted import take_back
from tests.world.terminal import Terminal
from wintermute.forgetting.forget_pages import CONSOLIDATE_AGAIN, ErasedTexts, forget_in_pages


async def owed(house: House) -> list[str]:
    rows = await house.rows("SELECT args FROM jobs WHERE name = ? ORDER BY args", CONSOLIDATE_AGAIN)
    return [json.loads(row["args"])["page"] for row in rows]


@pytest.fixture
def house(prompted_house: House) -> House:
    return prompted_house


async def test_a_memory_that_is_forgotten_is_in_no_file_of_the_wiki(
    house: House, tmp_path: Path, model: ModelServer
) -> None:
    """M-030: lines go, links and what else stands there stay; what lost its source waits for a yes."""
    root = furnish(tmp_path / "wiki")
    half = root / "semantic" / ".part_of_a_kill"
    half.write_text(FACT)
    os.utime(half, (0, 0))
    await learn(house, model, "Remember something of mine", FACT)
    await forget_all(house)
    found = texts_below(root)
    assert not [name for name, text in found.items() if WORD in text.lower()]
    assert found["semantic/Bird.md"] == f"{MATTER}# Bird\n\n\n{SOURCE}\n"
    assert found["semantic/Garden.md"] == (
        f"{MATTER}# Garden\n\nRoses grow there.\n- [[Bird]]\n"
        f"\n{SOURCE}\nSource: [[{OTHER}/0001-user]]\n"
    )
    assert found["meta/Index.md"] == f"{MATTER}# Index\n\n- [[Bird]]\n- [[Garden]]\n"
    assert found["semantic/Shed.md"] == STORE["semantic/Shed.md"]
    assert found[f"{OTHER}/0001-user.md"] == STORE[f"{OTHER}/0001-user.md"]
    assert found.keys() == STORE.keys()
    json.loads(found["sleep/20260504-010000/changes.json"])
    wishes = await house.stores.decisions.waiting(f"person:{ANN}", "page")
    assert [(wish.kind, wish.before) for wish in wishes] == [
        ("page removed", ("semantic/Bird.md",))
    ]
    assert await owed(house) == ["semantic/Garden.md"]


async def test_what_is_written_otherwise_than_in_utf_8_keeps_every_letter(
    house: House, tmp_path: Path, model: ModelServer
) -> None:
    """M-030: UTF-16 is cut as what it is; a page that is no text as we know it is named, not touched."""
    root = furnish(tmp_path / "wiki")
    latin, wide = root / "semantic" / "Latin.md", root / "semantic" / "Wide.md"
    said = f"{MATTER}# Bird\n\nCaf\u00e9 \u00e0 Besan\u00e7on.\n{FACT}\n"
    latin.write_bytes(said.encode("latin-1"))
    wide.write_bytes(said.encode("utf-16"))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "0001-user.md").write_text(FACT)
    (root / "meta").mkdir(exist_ok=True)
    (root / "meta" / "conversations.json").write_text(json.dumps([str(elsewhere)]))
    (tmp_path / ".git").mkdir()
    await learn(house, model, "Remember something of mine", FACT)
    unsaid = ErasedTexts([FACT], [FACT])
    cut = await forget_in_pages(house.stores, unsaid, at="now")
    assert latin.read_bytes() == said.encode("latin-1")
    assert wide.read_text("utf-16") == said.replace(f"{FACT}\n", "")
    assert {str(latin), f"{elsewhere}/0001-user.md", str(tmp_path / ".git")} <= {*cut.named}
    assert str(wide) not in cut.named


async def test_a_page_that_repeats_the_message_of_a_memory_goes_with_it(
    house: House, tmp_path: Path, model: ModelServer
) -> None:
    """M-030: in the words of the message rather than of the memory, and in a line of the index."""
    said = f"by the way, our small bird is a {WORD}"
    root = furnish(tmp_path / "wiki")
    bird, index = root / "semantic" / "Pet.md", root / "meta" / "Index.md"
    bird.write_text(f"{MATTER}# Pet\n\n- You told me: {said}.\n- It sings.\n")
    index.write_text(f"{MATTER}# Index\n\n- [[Pet of Ann]]: The bird is a {WORD}.\n- [[Garden]]\n")
    written = root / "sleep" / "written" / "meta" / "Index.md"
    written.parent.mkdir(parents=True)
    written.write_text(f"- [[Pet of Ann]]: The bird is a {WORD}.\n")
    await learn(house, model, said, FACT)
    await forget_all(house)
    assert bird.read_text() == f"{MATTER}# Pet\n\n- It sings.\n"
    assert index.read_text() == f"{MATTER}# Index\n\n- [[Pet of Ann]]\n- [[Garden]]\n"


async def test_our_words_of_it_go_too(house: House, tmp_path: Path, model: ModelServer) -> None:
    """M-030: a line that no person wrote and that says no more than the memory; from job folders, too."""
    ours, theirs = f"Bird:   a {WORD}", f"A {WORD} is a bird"
    root = furnish(tmp_path / "wiki")
    page, written = root / "semantic" / "Pet.md", root / "sleep" / "written" / "semantic" / "Pet.md"
    page.write_text(f"{MATTER}# Pet\n\n- {ours}\n- {theirs}\n")
    written.parent.mkdir(parents=True)
    written.write_text(f"- Bird: a {WORD}\n")
    (root / "sleep" / "20260504-010000" / "diff.patch").write_text(f"+- {ours}\n+Roses\n")
    await learn(house, model, "Remember something of mine", FACT)
    await forget_all(house)
    assert page.read_text() == f"{MATTER}# Pet\n\n- {theirs}\n"
    assert WORD not in written.read_text()
    assert WORD not in (root / "sleep" / "20260504-010000" / "diff.patch").read_text()


async def test_a_deleted_message_goes_from_raw_copies(house: House, tmp_path: Path) -> None:
    """W-058, M-030."""
    root = furnish(tmp_path / "wiki")
    [event] = await house.say(FACT)
    await take_back(house, event)
    await forgotten(house)
    assert not [name for name, text in texts_below(root).items() if WORD in text.lower()]


async def test_what_others_forget_stays_in_the_owners_wiki(house: House, tmp_path: Path) -> None:
    """M-010, M-011."""
    root = furnish(tmp_path / "wiki")
    his: dict[str, Any] = {
        "room": "!ben:test",
        "sender": "@ben:test",
        "name": "Ben",
        "origin": "other",
    }
    event = await house.incoming(FACT, **his)
    await house.said(1, "!ben:test")
    await take_back(house, event)
    await forgotten(house)
    assert texts_below(root) == STORE


def test_the_shell_forgets_in_the_wiki_and_names_what_it_leaves(terminal: Terminal) -> None:
    """M-066: a repository that the person keeps, and a page that is called so."""
    root = furnish(terminal.data / "wiki")
    (root / ".git").mkdir()
    (root / ".git" / "log").write_text(FACT)
    (root / "semantic" / f"{FACT}.md").write_text(f"{MATTER}# X\n\n[[Bird]]\n")
    fact = terminal.json("memory", "add", FACT)
    said = terminal.says("memory", "forget", fact["id"])
    assert ".git" in said
    assert f"{FACT}.md" in said
    assert (root / ".git" / "log").read_text() == FACT
    left = {name for name, text in texts_below(root).items() if WORD in text.lower()}
    assert left == {".git/log"}
