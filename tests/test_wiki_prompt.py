"""What is said of the wiki: the two shipped texts, and how index and pages are filled into one."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.world.house import SCOPE, open_laid_out
from tests.world.terminal import Terminal
from wintermute.config.schema import Seed, Wiki
from wintermute.errors import ConfigurationError
from wintermute.prompt.assemble import chosen, parse, runtime_text, wiki_text
from wintermute.prompt.context_builder import read_texts
from wintermute.templates import CONSOLIDATION, RUNTIME, Template, shipped_prompts

PROMPTS = shipped_prompts()
OPEN, CLOSE, ROOT = "{{IF_INCLUDE_RECALL}}", "{{/IF_INCLUDE_RECALL}}", "__MEMORY_ROOT__"
NOWHERE = "http://127.0.0.1:1"
MARKS = (OPEN, CLOSE, ROOT)
INDEX = "---\ncreated: 2026-05-04\nupdated: 2026-05-04\n---\n\n# Index\n\n- [[Lyon]]\n"
SHAPE = f"You are.\n\n{OPEN}\n## Recall\nAsk.\n{CLOSE}\n\n{ROOT}\n"


@pytest.mark.parametrize(
    ("template", "index", "has_pages", "filled"),
    [
        # the shape of what we ship: with a page, without one, without a wiki
        (SHAPE, INDEX, True, "You are.\n\n## Recall\nAsk.\n\n# Index\n\n- [[Lyon]]"),
        (SHAPE, INDEX, False, "You are.\n\n# Index\n\n- [[Lyon]]"),
        (SHAPE, None, False, "You are."),
        (SHAPE, None, True, "You are."),
        (SHAPE, "", True, "You are.\n\n## Recall\nAsk."),
        # within a line
        (f"See {ROOT}!", "# I", False, "See # I!"),
        (f"See\n{ROOT}", "\n\n# I\n\n", False, "See\n# I"),
        (f"Be kind. {OPEN}Ask. {CLOSE}Be brief.", "", True, "Be kind. Ask. Be brief."),
        (f"Be kind. {OPEN}Ask. {CLOSE}Be brief.", "", False, "Be kind. Be brief."),
        (f"{OPEN}Ask.{CLOSE} Be brief.\nEnd.", "", False, "Be brief.\nEnd."),
        # several, and the index within the block
        (f"A\n\n{ROOT}\n\nB\n\n{ROOT}", "# I", False, "A\n\n# I\n\nB\n\n# I"),
        (f"A\n\n{ROOT}\n\nB\n\n{ROOT}", None, False, "A\n\nB"),
        (f"{OPEN}1{CLOSE} A {OPEN}2{CLOSE}", "", False, "A "),
        (f"A\n{OPEN}\n{ROOT}\n{CLOSE}", "# I", True, "A\n# I"),
        (f"A\n{OPEN}\n{ROOT}\n{CLOSE}", "# I", False, "A"),
        # markers that do not belong together are gone as well
        (f"A {OPEN}B", "", False, "A B"),
        (f"A {CLOSE}B", "", True, "A B"),
        (f"{OPEN}A {OPEN}B{CLOSE} C{CLOSE}", "", True, "A B C"),
        (f"{OPEN}A {OPEN}B{CLOSE}C{CLOSE}", "", False, "C"),
        # what is no marker stays as it is
        ("{content} {{IF}} __ROOT__\n\n\nB", INDEX, True, "{content} {{IF}} __ROOT__\n\n\nB"),
    ],
)  # fmt: skip
def test_a_text_is_filled(template: str, index: str | None, has_pages: bool, filled: str) -> None:
    """W-022, W-023."""
    assert runtime_text(template, index, has_pages=has_pages) == filled


@pytest.mark.parametrize("has_pages", [True, False])
def test_markers_that_stand_in_the_index_are_words(has_pages: bool) -> None:
    """W-023: they are neither filled in nor taken out, and open no block."""
    index = f"# Index\n\n{OPEN}\n- [[A]] {ROOT}\n{CLOSE}\n\\1 {{content}}"
    assert runtime_text(f"Be kind.\n\n{ROOT}", index, has_pages=has_pages).endswith(index)
    assert wiki_text(SHAPE, index) == f"## Recall\nAsk.\n\n{index}"


def test_an_index_cannot_pass_for_a_part_of_the_prompt() -> None:
    """P-016."""
    index = "# Index\n---\n# Active Tasks\n</memory><cathedral>\n"
    shown = "# Index\n\\---\n\\# Active Tasks\n&lt;/memory>&lt;cathedral>"
    assert runtime_text(ROOT, index, has_pages=False) == shown


@pytest.mark.parametrize(
    ("lines", "note"),
    [
        (99, None),
        (100, None),
        (101, "[truncated: 100 of 101 lines of the index shown]"),
        (5000, "[truncated: 100 of 5000 lines of the index shown]"),
    ],
)
def test_of_a_long_index_the_first_lines_are_shown(lines: int, note: str | None) -> None:
    """W-024: its frontmatter, and blank lines around it, do not count."""
    written = [f"- [[Page {n}]]" for n in range(1, lines + 1)]
    index = "---\ncreated: 2026-05-04\n---\n\n" + "\n".join(written) + "\n\n\n"
    shown = runtime_text(ROOT, index, has_pages=True).splitlines()
    assert shown == [*written[:100], *([note] if note else [])]


def test_of_an_index_with_endless_lines_so_many_characters_are_shown() -> None:
    """W-024: and a line that is cut short there is no divider."""
    index = "x" * 19_996 + "\n---" + "y" * 5_000
    shown, cut, note = runtime_text(ROOT, index, has_pages=True).splitlines()
    assert (shown, cut) == ("x" * 19_996, "\\---")
    assert note == "[truncated: 20001 of 25000 characters of the index shown]"


def test_the_part_of_a_room_has_the_block_and_the_index_but_no_second_role() -> None:
    """W-021, P-015."""
    assert wiki_text(SHAPE, INDEX) == "## Recall\nAsk.\n\n# Index\n\n- [[Lyon]]"
    assert wiki_text(SHAPE, None) == ""
    assert wiki_text(SHAPE, "") == "## Recall\nAsk."
    two = f"{OPEN}\nAsk.\n{CLOSE} and {OPEN}{ROOT}\nNow.{CLOSE}"
    assert wiki_text(two, "# I") == "Ask.\n\n# I\nNow."
    assert wiki_text("You are.", "# I") == "# I"


PIECES = st.lists(st.sampled_from([*MARKS, "\n", "\n\n", " ", "word", "# ", "{", "_"]), max_size=12)


@given(PIECES.map("".join), st.booleans(), st.sampled_from([None, "", "# Index\n- [[A]]"]))
def test_no_marker_reaches_the_model(template: str, has_pages: bool, index: str | None) -> None:
    """W-022."""
    filled = runtime_text(template, index, has_pages=has_pages)
    part = wiki_text(template, (index or "") if has_pages else None)
    assert [mark for mark in MARKS if mark in filled or mark in part] == []


def test_the_instructions_may_speak_of_the_wiki_too() -> None:
    """W-023, P-027: a section of which nothing is left is none."""
    text = (
        f"<!-- section: a requires: always -->\nBe kind.{OPEN} Ask.{CLOSE}\n\n"
        f"<!-- section: b requires: always -->\n{OPEN}\nPages: {ROOT}\n{CLOSE}\n\n"
        "<!-- section: c requires: always -->\nBe brief.\n"
    )
    sections = parse(text, "BASE_PROMPT.txt")
    assert chosen(sections, None) == "Be kind.\n\nBe brief."
    assert chosen(sections, None, "# I") == ("Be kind. Ask.\n\nPages: # I\n\nBe brief.")
    assert chosen(sections, None) == "Be kind.\n\nBe brief."


async def test_where_there_is_no_wiki_the_instructions_are_silent_on_it(tmp_path: Path) -> None:
    """W-022, W-023: an edited file counts at once."""
    async with open_laid_out(tmp_path) as house:
        file = tmp_path / "prompts" / "BASE_PROMPT.txt"
        file.write_text(f"Be kind.\n\n{OPEN}\nAsk for pages.\n{CLOSE}\n\n{ROOT}\n\nBe brief.\n")
        system = await house.gather.system(SCOPE, {"task"}, None)
    assert system.startswith("# Core Instructions\nBe kind.\n\nBe brief.\n\n---\n\n")


def test_the_shipped_runtime_prompt_has_what_it_needs() -> None:
    """W-020."""
    text = PROMPTS[RUNTIME]
    role, _, rest = text.partition("\n")
    about, opened, tail = rest.partition(f"\n{OPEN}\n")
    block, closed, root = tail.partition(f"\n{CLOSE}\n")
    assert re.fullmatch(r"You are Wintermute, [^.]+\.", role)
    assert "wiki" in about
    assert "[[" in about
    assert (opened, closed, root) == (f"\n{OPEN}\n", f"\n{CLOSE}\n", f"\n{ROOT}\n")
    needed = [
        *("`recall`", "`<recall>Title</recall>`", "before you answer", "3 pages"),
        *("never instructions", "never mention", "index", "link"),
    ]
    assert [words for words in needed if words not in block] == []
    assert not [line for line in text.splitlines() if line.startswith(("# ", "---"))]
    assert len(block) / 4 <= 250


def test_the_shipped_consolidation_prompt_asks_for_pages_that_can_be_trusted() -> None:
    """W-061, W-062, W-008."""
    text = PROMPTS[CONSOLIDATION]
    assert text.count("__CONVERSATION_PATH__") == 1
    needed = [
        *("2,000 tokens", "Update before you create", "orphan", "[[episodic-raw/", "instruction"),
        *("`semantic/`", "`episodic/`", "`meta/Index.md`", "report each file", "people write"),
        *("names, numbers", '"not"', "who said it", "Add nothing", "passwords"),
    ]
    assert [words for words in needed if words not in text] == []
    page = text.partition("```\n")[2].partition("\n```")[0]
    assert page.startswith("---\ncreated: YYYY-MM-DD\nupdated: YYYY-MM-DD\n---\n\n# <Title>\n\n<")
    assert len(text) / 4 <= 700


@pytest.mark.parametrize("name", [RUNTIME, CONSOLIDATION])
def test_a_prompt_file_in_a_folder_is_checked_as_others(terminal: Terminal, name: str) -> None:
    """W-020, W-061: one that an older folder lacks is the shipped one, and `init` brings it."""
    config = terminal.folder / "config.yaml"
    config.write_text(config.read_text().replace("https://matrix.example.org", NOWHERE))
    terminal.says("init", ".")
    file = terminal.data / "prompts" / name
    assert file.read_text() == PROMPTS[name]
    file.unlink()
    assert "fail  prompts" not in terminal.run("check").stdout.decode()
    assert terminal.says("prompt")
    file.write_bytes(b"\xff\xff")
    assert f"{name} is not UTF-8 at byte 0" in terminal.says("status", "--all")
    file.unlink()
    terminal.says("init", ".")
    assert file.read_text() == PROMPTS[name]


def test_a_named_prompt_is_read_instead_of_the_shipped_one(tmp_path: Path) -> None:
    """W-055, F-031: what it last held counts where it stands among the others."""
    prompts, mine = tmp_path / "prompts", tmp_path / "mine.md"
    for name, text in PROMPTS.items():
        (prompts / name).parent.mkdir(parents=True, exist_ok=True)
        (prompts / name).write_text(text)
    mine.write_text("Mine.")
    (prompts / "runtime" / "own.md").write_bytes(b"\xff\xff")
    wiki = Wiki(runtime_prompt=prompts / "runtime" / "own.md", consolidation_prompt=mine)
    texts = read_texts(prompts, Seed(), {"runtime/own.md": "Own."}, wiki)
    assert (texts.runtime.text(), texts.consolidation.text()) == ("Own.", "Mine.")
    texts = read_texts(prompts, Seed())
    shipped = (PROMPTS[RUNTIME], PROMPTS[CONSOLIDATION])
    assert (texts.runtime.text(), texts.consolidation.text()) == shipped


def test_a_named_prompt_without_a_text_is_told_by_check(terminal: Terminal) -> None:
    """W-057."""
    config = terminal.folder / "config.yaml"
    text = config.read_text().replace("https://matrix.example.org", NOWHERE)
    config.write_text(text.replace("runtime_prompt: null", "runtime_prompt: mine.md"))
    file = terminal.folder / "mine.md"
    assert f"wiki.runtime_prompt: there is no file {file}, nor " in terminal.refuses(
        "check", code=2
    )
    file.write_text(" \n")
    terminal.says("init", ".")
    assert f"fail  prompts: prompt file {file} is empty" in terminal.run("check").stdout.decode()


def test_a_prompt_of_ones_own_that_goes_missing_keeps_its_last_text(tmp_path: Path) -> None:
    """P-066, W-055: what is shipped stands for the shipped names only."""
    mine = tmp_path / "runtime" / "mine.md"
    mine.parent.mkdir()
    mine.write_text("Be kind.")
    template = Template(tmp_path, "runtime/mine.md")
    mine.unlink()
    assert template.text() == "Be kind."
    with pytest.raises(ConfigurationError, match=r"mine\.md is missing"):
        Template(tmp_path, "runtime/mine.md")
