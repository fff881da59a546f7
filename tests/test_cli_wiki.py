"""`wintermute wiki`, statement by statement: what a person types, and what comes back."""

import json
import os
import re
import subprocess
import sys
from datetime import date
from pathlib import Path

import click
import pytest

from tests.full_config import full_config
from tests.world.terminal import Terminal
from tests.world.warm import Interpreter
from tests.world.wiki import MATTER, lines_of, made, page, refuses, wiki
from wintermute.cli.main import cli
from wintermute.cli.wiki import VERBS
from wintermute.clock import SystemClock
from wintermute.templates import RUNTIME, shipped_prompts

FRESH = "First instantiation. No memory has been gathered yet."
SECRET = "the canary sings at dawn"
GARDEN = page("# Flowers\n\nRoses by [[Ann]], `[[Nobody]]`.\n")
FILES = {
    "meta/Index.md": page("# Index\n\n- [[Garden]]\n- [[episodic/Ann]]\n- [[Nobdy]]"),
    "semantic/Garden.md": GARDEN,
    "semantic/Ann.md": page("# Ann\n\nGrows roses in the [[Garden|garden]] since [[2026-05-04]]."),
    "episodic/Ann.md": page("# Ann came\n\n[[Garden#Roses]] [[semantic/Ann]] [[Ann]]"),
    "episodic/2026-05-04.md": page("# A day\n\n[[2026-05-04]]"),
    "episodic-raw/20260504/talk/0001-user.md": "Hello Garden\n",
    "sleep/20260504-010000/report.md": "Report\n",
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return made(tmp_path / "store", FILES)


def json_of(root: Path | None, *words: str, given: bytes = b"") -> object:
    """The JSON of a command."""
    done = wiki(root, *words, "--json", given=given)
    assert (done.exit_code, done.stderr) in ((0, ""), (1, "")), done.output
    return json.loads(done.stdout)


def contents(root: Path) -> dict[str, bytes]:
    return {
        str(each.relative_to(root)): each.read_bytes() for each in root.rglob("*") if each.is_file()
    }


# init


def test_a_fresh_store_has_all_that_belongs_to_one(tmp_path: Path) -> None:
    """W-001, W-002, W-003, W-008, W-040."""
    root = tmp_path / "new" / "store"
    done = wiki(root, "init", TZ="UTC")
    assert (done.stdout, done.stderr, done.exit_code) == (f"{root}\n", "", 0)
    files = contents(root)
    today = re.findall(rb"\d{4}-\d\d-\d\d", files["meta/Index.md"])[0].decode()
    assert abs((date.fromisoformat(today) - SystemClock().now().date()).days) <= 1
    assert files == {
        "meta/conversations.json": b"[]",
        "meta/system-runtime.md": shipped_prompts()[RUNTIME].encode(),
        "meta/Index.md": f"---\ncreated: {today}\nupdated: {today}\n---\n\n# Index\n\n{FRESH}\n".encode(),
    }
    assert {each.name for each in root.iterdir()} == {
        *("episodic", "episodic-raw", "semantic", "sleep", "meta")
    }
    assert wiki(root, "check").exit_code == 0


def test_init_changes_nothing_that_is_there_and_adds_what_is_missing(root: Path) -> None:
    """W-004."""
    (root / ".git").mkdir()
    (root / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    before = contents(root)
    assert json_of(root, "init") == {
        "store": str(root),
        "made": ["meta/conversations.json", "meta/system-runtime.md"],
        "taken_over": False,
        "two_indexes": False,
    }
    assert contents(root).items() > before.items()
    after = contents(root)
    assert lines_of(root, "init") == [str(root)]
    assert contents(root) == after


def test_an_old_index_is_taken_over_once(tmp_path: Path) -> None:
    """W-006."""
    root, old = tmp_path, page("# Index\n\nold")
    (root / "index.md").write_text(old)
    assert "is no wiki store" in refuses(root, "read", "Index")
    done = wiki(root, "init")
    assert (done.stdout, done.exit_code) == (f"{root}\n", 0)
    assert done.stderr == "index.md was taken over as meta/Index.md\n"
    assert ((root / "meta/Index.md").read_text(), (root / "index.md").exists()) == (old, False)
    assert json_of(root, "init") == {
        **{"store": str(root), "made": [], "taken_over": False, "two_indexes": False}
    }


def test_two_indexes_stay_and_are_reported(root: Path) -> None:
    """W-006."""
    (root / "index.md").write_text("old")
    assert lines_of(root, "conversations") == []
    done = wiki(root, "init")
    assert (done.exit_code, done.stderr.count("index.md is not used beside meta/Index.md")) == (
        0,
        1,
    )
    assert (root / "index.md").read_text() == "old"
    assert "two indexes: index: index.md is not used" in wiki(root, "check").stdout


# What is no store, and what is enough of one

READING = (
    *(("read", "Index"), ("resolve", "Index"), ("backlinks", "Index"), ("tokens", "Index")),
    *(("orphans",), ("broken",), ("conversations",), ("search", "index"), ("check",)),
)


def test_an_index_is_enough_for_every_command(tmp_path: Path) -> None:
    """W-005: missing folders count as empty."""
    root = made(tmp_path, {})
    for words in READING:
        assert (words, wiki(root, *words).exit_code, wiki(root, *words).stderr) == (words, 0, "")
    [path] = lines_of(root, "create-conversation")
    assert lines_of(root, "add-message", "--conversation", path, "user", given=b"Hi") == [
        "0001-user.md"
    ]


@pytest.mark.parametrize("words", [*READING, ("create-conversation",)])
def test_what_is_no_store_is_told_and_how_to_init(tmp_path: Path, words: tuple[str, ...]) -> None:
    """W-005."""
    (tmp_path / "semantic").mkdir()
    line = refuses(tmp_path, *words)
    assert line.endswith(f"is no wiki store: `wintermute wiki init --store {tmp_path}` makes one")
    assert "is no wiki store" in refuses(tmp_path / "none", *words)
    assert [each.name for each in tmp_path.iterdir()] == ["semantic"]


@pytest.mark.parametrize("text", [None, "", "llm: [", full_config().replace("owner:", "ownr:")])
def test_a_configuration_matters_only_where_no_store_is_named(
    python: Interpreter, root: Path, tmp_path: Path, text: str | None
) -> None:
    """Issue 20, section 5; W-056."""
    config = tmp_path / "config.yaml"
    if text is not None:
        config.write_text(text)
    line = ("--config", str(config), "wiki", "resolve", "Garden")
    alone = python.run(*line, cwd=tmp_path, env={})
    assert (alone.returncode, alone.stdout) == (2, b"")
    assert str(config).encode() in alone.stderr
    named = python.run(*line, "--store", "store", cwd=tmp_path, env={})
    by_variable = python.run(*line, cwd=tmp_path, env={"CATHEDRAL_STORE": str(root)})
    for done in (named, by_variable):
        assert (done.stdout, done.stderr) == (b"semantic/Garden.md\n", b"")


def test_without_a_name_the_configured_store_is_meant(terminal: Terminal) -> None:
    """W-056; the secrets of the configuration may be missing."""
    made(terminal.data / "wiki", {"semantic/Mine.md": page("x")})
    assert terminal.says("wiki", "resolve", "Mine", WINTERMUTE_PASSWORD="") == "semantic/Mine.md\n"
    (terminal.folder / "cathedral.json").write_text('{"store_path": "other"}')
    assert "other is no wiki store" in terminal.refuses("wiki", "resolve", "Mine")
    assert terminal.says("wiki", "init") == f"{terminal.folder}/other\n"


def test_a_settings_file_that_cannot_be_read_is_named(root: Path, tmp_path: Path) -> None:
    """W-057: also where a store is named."""
    (tmp_path / "cathedral.json").write_text("{")
    done = wiki(root, "orphans", CATHEDRAL_CONFIG=str(tmp_path / "cathedral.json"))
    assert (done.exit_code, done.stdout) == (2, "")
    assert "cathedral.json:1:2: not valid JSON" in done.stderr


# read, resolve


@pytest.mark.parametrize("title", ["Garden", " Garden ", "semantic/Garden", "semantic/Garden.md"])
def test_a_page_is_printed_byte_for_byte(root: Path, title: str) -> None:
    """W-009, W-041, W-042: by its name, not by its heading."""
    assert wiki(root, "read", title).stdout_bytes == GARDEN.encode()
    assert json_of(root, "read", title) == {"path": "semantic/Garden.md", "text": GARDEN}
    assert lines_of(root, "resolve", title) == ["semantic/Garden.md"]
    assert json_of(root, "resolve", title) == {"path": "semantic/Garden.md"}


@pytest.mark.parametrize(
    "content", [b"", b"\r\n\xef\xbb\xbf", b"\xff\x00\x80 Latin", b"no end", b"\x1b[2J\n\n\n"]
)
def test_whatever_a_page_holds_is_printed_as_it_is(root: Path, content: bytes) -> None:
    """W-010, W-041: it need not be text in UTF-8, nor have frontmatter."""
    (root / "semantic/Odd.md").write_bytes(content)
    assert wiki(root, "read", "Odd").stdout_bytes == content


@pytest.mark.parametrize(
    ("title", "line"),
    [
        ("", "empty title"),
        ("  ", "empty title"),
        ("Flowers", "no page named 'Flowers'"),
        ("garden", "no page named 'garden' (did you mean 'Garden'?)"),
        ("Ann", "ambiguous title 'Ann': episodic/Ann.md, semantic/Ann.md"),
        ("episodic/Garden", "not found: episodic/Garden (did you mean 'semantic/Garden'?)"),
        ("sleep/20260504-010000/report", "not found: sleep/20260504-010000/report"),
        ("report", "no page named 'report'"),
        ("../store/semantic/Garden", "../store/semantic/Garden: outside the store"),
        ("a\x00b", "a\\x00b: outside the store"),
        ("x" * 300, f"no page named '{'x' * 300}'"),
    ],
)
def test_a_title_that_means_no_page_is_told(root: Path, title: str, line: str) -> None:
    """W-016, W-017, W-018, W-019: by every command alike."""
    for verb in ("read", "resolve", "backlinks", "tokens"):
        assert refuses(root, verb, title) == line


def test_a_raw_conversation_has_a_path_and_a_title_only_when_asked(root: Path) -> None:
    """W-018."""
    path = "episodic-raw/20260504/talk/0001-user.md"
    assert refuses(root, "resolve", "0001-user") == "no page named '0001-user'"
    for verb, found in (("resolve", f"{path}\n"), ("read", "Hello Garden\n")):
        assert wiki(root, verb, path[:-3]).stdout == found
        assert wiki(root, verb, "0001-user", "--raw").stdout == found
    assert refuses(root, "resolve", "report", "--raw") == "no page named 'report'"


@pytest.mark.parametrize("verb", ["read", "tokens"])
def test_what_is_no_page_that_can_be_read_is_told(root: Path, verb: str) -> None:
    """Issue 20: 50 MB, a link, a FIFO."""
    with (root / "semantic/Large.md").open("wb") as file:
        file.truncate(50_000_000)
    os.mkfifo(root / "semantic/Pipe.md")
    (root / "semantic/Away.md").symlink_to("Garden.md")
    assert refuses(root, verb, "Large") == "semantic/Large.md has over 5,000,000 bytes: not read"
    assert refuses(root, verb, "Pipe") == "no page named 'Pipe'"
    assert refuses(root, verb, "semantic/Pipe") == "not found: semantic/Pipe"
    assert refuses(root, verb, "Away") == "no page named 'Away'"
    assert refuses(root, verb, "semantic/Away") == "semantic/Away: outside the store"


# backlinks, orphans, broken


def test_links_to_a_page_are_listed_with_those_of_the_index(root: Path) -> None:
    """W-011, W-012, W-043."""
    assert lines_of(root, "backlinks", "Garden") == ["episodic/Ann", "meta/Index", "semantic/Ann"]
    assert json_of(root, "backlinks", "semantic/Garden.md") == [
        *("episodic/Ann.md", "meta/Index.md", "semantic/Ann.md")
    ]
    assert lines_of(root, "backlinks", "semantic/Ann") == ["episodic/Ann"]
    assert lines_of(root, "backlinks", "Index") == []


def test_pages_that_nobody_links_to_are_listed_each_for_itself(root: Path) -> None:
    """W-013, W-044: by path as well; of two with one name only the one that is meant is known."""
    assert lines_of(root, "orphans") == []
    (root / "meta/Index.md").write_text(page("[[Garden]] `[[2026-05-04]]`"))
    (root / "semantic/Ann.md").write_text(page("x"))
    assert lines_of(root, "orphans") == ["episodic/2026-05-04", "episodic/Ann"]
    assert json_of(root, "orphans") == ["episodic/2026-05-04.md", "episodic/Ann.md"]


def test_links_that_mean_no_page_or_several_are_listed(root: Path) -> None:
    """W-045."""
    (root / "semantic/Wide.md").write_text(
        page("[[../up]] [[sleep/20260504-010000/report]] [[x\x1b]]")
    )
    lines = [
        "episodic/Ann: [[Ann]] (ambiguous: episodic/Ann.md, semantic/Ann.md)",
        "meta/Index: [[Nobdy]]",
        "semantic/Garden: [[Ann]] (ambiguous: episodic/Ann.md, semantic/Ann.md)",
        "semantic/Wide: [[../up]] (outside the store)",
        "semantic/Wide: [[sleep/20260504-010000/report]]",
        "semantic/Wide: [[x\\x1b]]",
    ]
    assert lines_of(root, "broken") == lines
    values = json_of(root, "broken")
    assert isinstance(values, list)
    assert [each["reason"] for each in values] == [
        *("ambiguous", "missing", "ambiguous", "outside", "missing", "missing")
    ]
    assert values[1] == {
        "page": "meta/Index.md",
        "target": "Nobdy",
        "reason": "missing",
        "paths": [],
    }


def test_a_page_with_very_many_links_is_read_in_time(root: Path) -> None:
    """Issue 20."""
    (root / "semantic/Many.md").write_text("".join(f"[[Page {n}]]\n" for n in range(100_000)))
    assert len(lines_of(root, "broken")) == 10_000 + 3
    assert wiki(root, "check").exit_code == 1


# tokens


@pytest.mark.parametrize(
    ("text", "count"),
    [("", 0), ("a", 1), ("abcd", 1), ("abcde", 2), ("ü世👩‍💻", 2), ("x" * 8001, 2001)],
)
def test_tokens_are_a_quarter_of_the_characters(root: Path, text: str, count: int) -> None:
    """W-046."""
    (root / "semantic/Page.md").write_text(text)
    assert lines_of(root, "tokens", "semantic/Page.md") == [str(count)]
    assert json_of(root, "tokens", "Page") == {"path": "semantic/Page.md", "tokens": count}


def test_tokens_of_what_is_no_text_are_not_guessed(root: Path) -> None:
    """W-046."""
    (root / "semantic/Page.md").write_bytes(b"\xff")
    assert "is not UTF-8" in refuses(root, "tokens", "Page")
    assert refuses(root, "tokens", "Nobody") == "no page named 'Nobody'"


# conversations


def test_a_conversation_is_made_listed_and_added_to(root: Path) -> None:
    """W-036, W-037, W-047: what is printed is what the next command takes."""
    first, second = (lines_of(root, "create-conversation")[0] for _ in range(2))
    assert re.fullmatch(r"conversations/\d{8}-\d{6}", first)
    assert first != second
    assert json.loads((root / "meta/conversations.json").read_text()) == [first, second]
    assert lines_of(root, "conversations") == [first, second]
    add = ("add-message", "--conversation", first)
    assert lines_of(root, *add, "user", given=" Hi,\r\n\r\nthere 👋\n\n".encode()) == [
        "0001-user.md"
    ]
    assert lines_of(root, *add, "assistant", given=b"Hello") == ["0002-assistant.md"]
    assert json_of(root, *add, "system", given=b"Be kind") == {
        "name": "0000-system.md",
        "path": str(root / first / "0000-system.md"),
    }
    assert contents(root / first) == {
        "0000-system.md": b"Be kind\n",
        "0001-user.md": " Hi,\n\nthere 👋\n".encode(),
        "0002-assistant.md": b"Hello\n",
    }
    (root / second).rmdir()
    assert lines_of(root, "conversations") == [first, f"{second} (missing)"]
    assert json_of(root, "conversations") == [
        {"path": first, "missing": False},
        {"path": second, "missing": True},
    ]


def test_two_conversations_of_one_second_have_two_folders(root: Path) -> None:
    """W-037."""
    made_now = [lines_of(root, "create-conversation")[0] for _ in range(12)]
    assert len({*made_now}) == len(made_now)
    assert any(re.fullmatch(r"conversations/\d{8}-\d{6}-\d+", each) for each in made_now)
    assert lines_of(root, "conversations") == made_now


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ("[", ":1: is no JSON"),
        ('[\n"a",\n]', ":3: is no JSON"),
        ("{}", ":1: is no list of paths"),
        ('["a",\n 5]', ":2: is no path"),
        ("", ":1: is no JSON"),
        ("[" * 100_000, ":1: is no JSON"),
        (b"\xff", ": is not UTF-8 at byte 0"),
    ],
)
def test_a_damaged_list_is_never_overwritten(root: Path, content: str | bytes, line: str) -> None:
    """W-039."""
    file = root / "meta/conversations.json"
    given = content if isinstance(content, bytes) else content.encode()
    file.write_bytes(given)
    for words in (("conversations",), ("create-conversation",)):
        assert refuses(root, *words).startswith(f"{file}{line}")
    assert f"damaged list: meta/conversations.json: {file}{line}" in wiki(root, "check").stdout
    assert wiki(root, "init").exit_code == 0
    assert file.read_bytes() == given
    assert not (root / "conversations").exists()


@pytest.mark.parametrize("given", [b"", b" \n\t\n", b"\xef\xbb\xbf\n", "\u3000".encode()])
def test_a_blank_message_is_refused_as_wrong_usage(root: Path, given: bytes) -> None:
    """Issue 20: exit code 2, and nothing is written."""
    [path] = lines_of(root, "create-conversation")
    add = ("add-message", "--conversation", path, "user")
    assert "the message is blank" in refuses(root, *add, given=given, code=2)
    assert contents(root / path) == {}


@pytest.mark.parametrize(
    ("given", "line"),
    [
        (b"\xff", "the message is not UTF-8 at byte 0: save it as UTF-8"),
        (b"a\x00b", "the message is not a text file: save it as UTF-8, or move it aside"),
        (b"x" * 5_000_001, "the message has over 5,000,000 bytes: shorten it"),
    ],
    ids=["latin", "nul", "large"],
)
def test_a_message_that_is_no_text_is_refused(root: Path, given: bytes, line: str) -> None:
    [path] = lines_of(root, "create-conversation")
    assert refuses(root, "add-message", "--conversation", path, "user", given=given) == line
    assert contents(root / path) == {}


def test_a_role_is_one_of_three(root: Path) -> None:
    [path] = lines_of(root, "create-conversation")
    line = refuses(root, "add-message", "--conversation", path, "wizard", given=b"x", code=2)
    assert "'wizard' is not one of 'system', 'user', 'assistant'" in line


def test_a_folder_of_nothing_but_messages_is_a_conversation(root: Path, tmp_path: Path) -> None:
    """W-038."""
    folder = tmp_path / "by hand"
    folder.mkdir()
    (folder / "a-user.md").write_text("Hi\n")
    add = ("add-message", "--conversation", str(folder))
    assert lines_of(root, *add, "assistant", given=b"Hello") == ["0001-assistant.md"]
    assert lines_of(tmp_path / "none", *add, "user", given=b"Bye") == ["0002-user.md"]
    (folder / "notes.txt").write_text("x")
    before = contents(folder)
    line = refuses(root, *add, "user", given=b"More")
    assert line == (
        f"{folder} holds notes.txt: only a folder with nothing but messages is a conversation"
    )
    assert contents(folder) == before


@pytest.mark.parametrize(
    "path",
    [
        "semantic",
        "meta",
        "sleep",
        ".",
        "",
        "episodic-raw/20260504/talk",
        "conversations",
        "nowhere",
    ],
)
def test_no_other_folder_of_a_store_is_a_conversation(root: Path, path: str) -> None:
    """W-036: by its path in the store, and by its path on the disk."""
    (root / "conversations").mkdir()
    before = contents(root)
    for named in (path, str(root / path)):
        line = refuses(root, "add-message", "--conversation", named, "user", given=b"x")
        assert "no conversation" in line
    assert contents(root) == before


def test_a_raw_copy_that_is_listed_is_not_added_to(root: Path) -> None:
    """W-013."""
    raw = "episodic-raw/20260504/talk"
    (root / "meta/conversations.json").write_text(json.dumps([raw]))
    line = refuses(root, "add-message", "--conversation", raw, "user", given=b"x")
    assert line.endswith("is kept word for word: nothing is added to it")


def test_a_ring_of_links_is_no_folder(root: Path, tmp_path: Path) -> None:
    (tmp_path / "ring").symlink_to("ring")
    add = ("add-message", "--conversation", str(tmp_path / "ring"), "user")
    assert "is no folder that can be entered" in refuses(root, *add, given=b"x")
    assert "cannot be read" in refuses(tmp_path / "ring", "read", "Index")
    assert "ring" in refuses(tmp_path / "ring", *add, given=b"x")


# search


def test_words_are_found_in_names_then_headings_then_texts_then_beside_them(root: Path) -> None:
    """Issue 20, section 3: no model; accents and upper case make no difference."""
    for path, text in {
        "semantic/Röses.md": "# x\n\n[[Beside]]",
        "semantic/Head.md": "# All roses\n\ny",
        "semantic/Text.md": "one line\nof ROSES and more\n",
        "semantic/Beside.md": "Only linked",
        "semantic/Apart.md": "nothing of it",
    }.items():
        (root / path).write_text(page(text))
    assert lines_of(root, "search", "roses", "--k", "20") == [
        *("semantic/Röses", "    # x"),
        *("semantic/Head", "    # All roses"),
        *("episodic/Ann", "    [[Garden#Roses]] [[semantic/Ann]] [[Ann]]"),
        *("semantic/Ann", "    Grows roses in the [[Garden|garden]] since [[2026-05-04]]."),
        *("semantic/Garden", "    Roses by [[Ann]], `[[Nobody]]`."),
        *("semantic/Text", "    of ROSES and more"),
        *("semantic/Beside (linked with semantic/Röses)", "    Only linked"),
    ]
    assert lines_of(root, "search", "RÓSES", "--k", "1") == ["semantic/Röses", "    # x"]
    assert lines_of(root, "search", "zebra") == ["No page fits."]
    assert lines_of(root, "search", "*.(") == ["No page fits."]
    assert json_of(root, "search", "zebra") == []
    found = json_of(root, "search", "roses", "--k", "1")
    assert isinstance(found, list)
    assert (found[0]["path"], found[0]["line"]) == ("semantic/Röses.md", "# x")
    assert refuses(root, "search", "x", "--k", "0", code=2)


def test_a_word_is_found_whole_or_by_its_beginning(root: Path) -> None:
    """M-096: of four letters; a whole one comes first; anywhere in a script without blanks."""
    for path, text in {
        "Nowak": "a dentist",
        "Snow": "cold snowdrops",
        "Tokyo": "昨日は東京で",
    }.items():
        (root / f"semantic/{path}.md").write_text(page(text))
    (root / "semantic/Snowman.md").write_text(page("a man"))
    assert lines_of(root, "search", "now") == ["No page fits."]
    assert lines_of(root, "search", "snow")[::2] == ["semantic/Snow", "semantic/Snowman"]
    assert lines_of(root, "search", "drops") == ["No page fits."]
    assert lines_of(root, "search", "東京")[::2] == ["semantic/Tokyo"]


def test_a_page_with_all_words_comes_before_one_with_one_of_them_often(root: Path) -> None:
    for path, text in {"A": "tea " * 50, "B": "tea with mint"}.items():
        (root / f"semantic/{path}.md").write_text(page(text))
    assert lines_of(root, "search", "mint tea")[0] == "semantic/B"


def test_a_long_line_is_shown_where_the_word_is(root: Path) -> None:
    (root / "semantic/Long.md").write_text(page(f"{'x ' * 500}zebra\x1b[2J{' y' * 500}"))
    [_, line] = lines_of(root, "search", "zebra")
    assert line.startswith("    …x x")
    assert "zebra[2J y" in line
    assert len(line) < 130


@pytest.mark.parametrize("letter", ["ß", "ﷺ", "e\u0301"], ids=["two", "eighteen", "none"])
def test_a_long_line_is_shown_there_whatever_its_letters_are_folded_to(
    root: Path, letter: str
) -> None:
    """What is looked for is found in other letters than those that are shown."""
    text = page(f"{letter * 300} zebra {'y ' * 500}")
    (root / "semantic/Long.md").write_text(text)
    [_, line] = lines_of(root, "search", "zebra")
    assert " zebra y" in line


# check


@pytest.mark.parametrize(
    ("path", "text", "line"),
    [
        ("semantic/New.md", page("[[Nowhere]]"), "broken link: semantic/New: [[Nowhere]]"),
        ("semantic/New.md", page("x"), "orphan: semantic/New: no page links to it"),
        ("meta/Garden.md", "x", "ambiguous name: Garden: 2 pages have this name: meta/Garden.md, semantic/Garden.md"),
        ("semantic/New.md", "# New", "frontmatter: semantic/New: has no frontmatter: created and updated are missing"),
        ("semantic/New.md", MATTER.replace("created", "made"), "frontmatter: semantic/New: unknown key 'made' in its frontmatter"),
        ("semantic/New.md", MATTER.replace("created: 2026-05-04\n", ""), "frontmatter: semantic/New: created is missing in its frontmatter"),
        ("semantic/New.md", MATTER.replace("updated: 2026-05-04", "updated: 2026-02-30"), "frontmatter: semantic/New: updated is no date such as 2026-05-04: '2026-02-30'"),
        ("semantic/New.md", MATTER.replace("---\n\n", "created: 2026-05-05\n---\n\n"), "frontmatter: semantic/New: 'created' is in its frontmatter twice"),
        ("semantic/New.md", "---\n- a\n---\n", "frontmatter: semantic/New: its frontmatter is no list of keys and values"),
        ("semantic/New.md", page("x" * 8000), "long page: semantic/New: about 2,013 tokens, over 2,000: split it"),
        ("meta/Index.md", page("x\n" * 101), "long index: meta/Index: 101 lines, of which the first 100 are shown"),
        ("semantic/New.md", b"\xff", "not read: semantic/New: is not UTF-8 at byte 0: save it as UTF-8"),
    ],
)  # fmt: skip
def test_each_problem_is_one_line(tmp_path: Path, path: str, text: str | bytes, line: str) -> None:
    """W-010, W-024, W-051; reading works all the same."""
    root = made(tmp_path, {"meta/Index.md": page("[[Garden]]"), "semantic/Garden.md": page("x")})
    assert lines_of(root, "check") == []
    made(root, {path: text} if path == "meta/Index.md" else {"meta/Index.md": page("[[semantic/Garden]]"), path: text})  # fmt: skip
    done = wiki(root, "check")
    assert (done.exit_code, done.stderr) == (1, "")
    assert line in done.stdout.splitlines()
    values = json_of(root, "check")
    assert isinstance(values, list)
    assert len(values) == len(done.stdout.splitlines())
    assert wiki(root, "read", path).exit_code == 0


def test_what_is_skipped_is_reported_wherever_it_lies(root: Path) -> None:
    """W-077."""
    os.mkfifo(root / "semantic/Pipe.md")
    os.mkfifo(root / "episodic-raw/20260504/talk/pipe")
    (root / "sleep/20260504-010000/away").symlink_to("/etc")
    (root / "semantic/Loud.MD").write_text(page("x"))
    lines = wiki(root, "check").stdout.splitlines()
    assert "not read: semantic/Pipe: is no plain file: not opened" in lines
    assert "not read: episodic-raw/20260504/talk/pipe: is no plain file: not opened" in lines
    assert "not read: semantic/Loud.MD: does not end in .md: rename it" in lines
    assert "not read: sleep/20260504-010000/away: is a link: not followed" in lines


def test_pages_that_lie_where_none_belongs_are_named(root: Path) -> None:
    """W-013, W-014: they have titles; nothing is wrong with them."""
    (root / "Diary.md").write_text("# hello")
    (root / "daily").mkdir()
    for n in range(6):
        (root / f"daily/{n}.md").write_text("# x")
    done = wiki(root, "check")
    assert "neither searched nor checked: Diary.md, daily/0.md, daily/1.md" in done.stderr
    assert "and 2 more" in done.stderr
    assert "Diary" not in done.stdout


# Help


def test_the_help_of_the_wiki_loads_nothing_and_says_what_each_command_says() -> None:
    """Issue 20, figures; L-080."""
    group = cli.get_command(click.Context(cli), "wiki")
    assert isinstance(group, click.Group)
    context = click.Context(group)
    assert group.list_commands(context) == [*VERBS]
    for verb, (_, line) in VERBS.items():
        command = group.get_command(context, verb)
        assert command is not None
        assert (command.name, command.get_short_help_str(80)) == (verb, line)
    script = (
        "import sys, wintermute.cli.main as m\n"
        "try: m.cli(['wiki', '--help'])\nfinally: print(*sys.modules)"
    )
    run = [sys.executable, "-c", script]
    done = subprocess.run(run, capture_output=True, check=True, text=True)
    loaded = set(done.stdout.splitlines()[-1].split())
    assert loaded & {"asyncio", "yaml", "dataclasses", "logging", "zoneinfo", "json.tool"} == set()
    assert {name for name in loaded if name.startswith("wintermute.")} == {
        *("wintermute.cli", "wintermute.cli.main", "wintermute.cli.options", "wintermute.cli.wiki"),
        "wintermute.errors",
    }
