"""Names as people write them: in any normal form, more than an index shows, and with control characters."""

import asyncio
import os
import pty
import subprocess
import sys
import unicodedata
from pathlib import Path
from typing import Literal
from zoneinfo import ZoneInfo

import pytest

from tests.world.agents import consolidate_by_agent, with_agent
from tests.world.shelf import GARDEN, Shelf
from tests.world.terminal import Terminal
from tests.world.wiki import lines_of, made, page, refuses, wiki
from wintermute.wiki.pages import MOST_INDEX_LINES
from wintermute.wiki.store import WikiStore
from wintermute.wiki.wiki_status import wiki_status

Form = Literal["NFC", "NFD"]
FORMS: tuple[Form, ...] = ("NFC", "NFD")
STEERING = "\x1b[2Jgone\x9b31m\x07 \u202eturned"


def form(name: Form, text: str) -> str:
    return unicodedata.normalize(name, text)


@pytest.mark.parametrize("stored", FORMS)
@pytest.mark.parametrize("asked", FORMS)
def test_a_name_is_found_in_any_normal_form(tmp_path: Path, stored: Form, asked: Form) -> None:
    """W-079: by title, by path, with its ending, by a link, by recall; a folder's name as well."""
    path, title = form(stored, "semantic/Küche/Käse"), form(asked, "Käse")
    link = form(asked, "semantic/Küche/Käse")
    files = {f"{path}.md": page("# Käse"), "semantic/A.md": page(f"[[{title}]] [[{link}|cheese]]")}
    store = made(tmp_path, files)
    for named in (title, f"{title}.md", link, f"{link}.md"):
        assert lines_of(store, "resolve", named) == [f"{path}.md"]
    assert lines_of(store, "backlinks", title) == ["semantic/A"]
    assert lines_of(store, "broken") == []
    found = asyncio.run(WikiStore(store).recalled(title))
    assert getattr(found, "path", found) == f"{path}.md"


def test_of_two_the_exact_one_is_found_and_check_names_them(tmp_path: Path) -> None:
    """W-079, W-014: by case or by normal form; one that differs by more is no look-alike."""
    names = (form("NFC", "Käse"), form("NFD", "Käse"), "Garden", "garden", "Gärten")
    index = page("\n".join(f"- [[{name}]]" for name in names))
    files = {f"semantic/{name}.md": page(f"# {name}") for name in names}
    store = made(tmp_path, {"meta/Index.md": index, **files})
    for name in names:
        assert lines_of(store, "resolve", name) == [f"semantic/{name}.md"]
    done = wiki(store, "check")
    assert done.exit_code == 1
    lines = done.stdout.splitlines()
    assert [line.partition(": ")[0] for line in lines] == ["look-alike name"] * 2
    assert "semantic/garden.md" in lines[0] + lines[1]
    assert r"semantic/K\xe4se.md" in lines[0] + lines[1]


@pytest.mark.parametrize("name", ["garden", "GARDEN", "Ro\u0308sen"])
def test_a_new_page_that_only_looks_like_another_is_refused(terminal: Terminal, name: str) -> None:
    """W-079: whoever writes it; the pages stay as they are."""
    shelf = Shelf.make(terminal.data / "my wiki")
    shelf.write("semantic/Rösen.md", shelf.read(GARDEN))
    shelf.write("meta/Index.md", shelf.read("meta/Index.md") + "- [[Rösen]]\n")
    link = f'put("semantic/Garden.md", garden.read_text() + "\\nSee [[{name}]].\\n")'
    with_agent(terminal, f'{link}\nput("semantic/{name}.md", page("# Other"))')
    before = shelf.pages()
    done = consolidate_by_agent(terminal, shelf.conversation())
    assert (done.returncode, "look-alike name" in done.stderr.decode()) == (1, True)
    assert shelf.pages() == before


def test_in_a_large_store_recall_takes_words_and_status_warns(tmp_path: Path) -> None:
    """W-080, W-024, W-028: at most three titles, of pages that have the words; no small store is searched."""
    names = [f"Page {n}" for n in range(MOST_INDEX_LINES + 1)]
    files = {f"semantic/{name}.md": page(f"# {name}") for name in names}
    for n in (7, 8, 9, 10):
        files[f"semantic/Page {n}.md"] = page(f"# Page {n}\n\nThe carp in Bo's pond{'.' * n}")
    index = {"meta/Index.md": page("\n".join(f"- [[{name}]]" for name in names))}
    store = WikiStore(made(tmp_path / "large", {**files, **index}))
    told = str(asyncio.run(store.recalled("where are Bo's carp")))
    assert "No memory page is named 'where are Bo's carp'." in told
    assert told.count("'Page ") == 3
    assert set(told.partition("Nearest: ")[2].split("'")) & {"Page 7", "Page 8", "Page 9"}
    finding = wiki_status(store, ZoneInfo("UTC"))
    assert (finding.state, "the index has 101 lines" in finding.text) == ("warn", True)
    small = WikiStore(made(tmp_path / "small", dict(list(files.items())[:20])))
    assert "Nearest" not in str(asyncio.run(small.recalled("where are Bo's carp")))
    assert wiki_status(small, ZoneInfo("UTC")).state == "ok"


def test_no_command_prints_a_control_character_raw(tmp_path: Path) -> None:
    """W-081, W-041: in a page, a link, a title, a file's name; a pipe gets a page byte for byte."""
    text = page(f"# Flowers {STEERING}\n\nroses {STEERING} [[No{STEERING}]] [[b]]")
    files = {
        "semantic/a.md": text,
        "semantic/b\x1b[2J.md": page("x"),
        "semantic/b.md": page("[[a]]"),
    }
    store = made(tmp_path, files)
    raw = {mark for mark in STEERING if not mark.isprintable()}
    verbs = [("check",), ("broken",), ("orphans",), ("search", "roses"), ("resolve", STEERING)]
    verbs += [
        ("backlinks", STEERING),
        ("tokens", STEERING),
        ("read", STEERING),
        ("read", "a", "--json"),
    ]
    for words in (*verbs, *((*words, "--json") for words in verbs[:4])):
        done = wiki(store, *words)
        assert raw.isdisjoint(done.stdout + done.stderr), words
    assert "\\u001b[2Jgone\\u009b31m" in "".join(lines_of(store, "search", "2Jgone", "--json"))
    assert wiki(store, "read", "a").stdout_bytes == text.encode()
    assert "no page named" in refuses(store, "read", STEERING)
    shown = at_terminal("wiki", "read", "--store", str(store), "a")
    assert b"\\u001b[2Jgone" in shown
    assert b"\x1b" not in shown


def at_terminal(*words: str) -> bytes:
    """Run a command at a pseudo-terminal and return its output."""
    ours, theirs = pty.openpty()
    line = [sys.executable, "-m", "wintermute", *words]
    subprocess.run(line, stdout=theirs, check=True)
    os.close(theirs)
    try:
        return os.read(ours, 10_000)
    finally:
        os.close(ours)
