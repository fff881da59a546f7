"""The documentation says what the program does: nothing is missing, every example works (L-082)."""

import contextlib
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import click
import pytest
import yaml

from tests.full_config import full_config
from tests.world.manual import NAME, ROOT, dotted, understood
from tests.write_docs import DEFINITIONS, DOCS, PAGES, commands
from wintermute.commands.chat import NAMES
from wintermute.text import EMPTY_AT_SHELL

README = ROOT / "README.md"
WRITTEN = [README, *sorted(DOCS.rglob("*.md")), *sorted(ROOT.glob("[CS]*.md"))]
PLANNED = {DOCS / "design.md", *(DOCS / "acceptance").iterdir(), *(DOCS / "notes").iterdir()}
"""Pages that speak of what is not there yet as well."""
BLOCK = re.compile(r"^(<!-- runs -->\n)?```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def shell_blocks(page: Path) -> list[tuple[bool, str]]:
    """The shell examples of a page, and whether each is marked as one that runs as it stands."""
    return [(bool(mark), text) for mark, text in BLOCK.findall(page.read_text("utf-8"))]


def indented(page: Path) -> list[str]:
    """The code of a page that is set off by spaces."""
    return re.findall(r"(?:^ {4}.+\n)+", page.read_text("utf-8"), re.MULTILINE)


def simple_commands(text: str) -> Iterator[list[str]]:
    """What a piece of shell runs: one list of words for each program."""
    for line in text.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        words: list[str] = []
        for word in lexer:
            if set(word) <= set("();<>|&"):
                yield words
                words = []
            else:
                words.append(word)
        yield words


def examples() -> list[tuple[str, list[str]]]:
    """Every call of ours in help texts and shell blocks, with where it stands."""
    found = []
    for words, command, _ in commands():
        for line in re.findall(r"Example: (.+)", command.help or ""):
            found += [(f"{words} --help", call) for call in simple_commands(line)]
    for page in (page for page in WRITTEN if page not in PLANNED):
        for text in (*(text for _, text in shell_blocks(page)), *indented(page)):
            found += [(page.name, call) for call in simple_commands(text)]
    return [(where, call[1:]) for where, call in found if call and Path(call[0]).name == NAME]


def slug(heading: str) -> str:
    """The anchor of a heading, as forges make it."""
    plain = re.sub(r"[^\w\- ]", "", heading.lower())
    return plain.replace(" ", "-")


@pytest.mark.parametrize("page", PAGES)
def test_a_written_page_says_what_the_program_says_now(page: str) -> None:
    told = "is old: run python -m tests.write_docs"
    assert (ROOT / page).read_text("utf-8") == PAGES[page](), f"{page} {told}"


def test_every_key_that_init_writes_is_explained() -> None:
    page = (DOCS / "configuration.md").read_text("utf-8")
    keys = list(dotted(yaml.load(full_config(), yaml.BaseLoader)))
    named = [key.replace("backends.local", "backends.NAME").removesuffix(".env") for key in keys]
    assert [key for key in named if not re.search(rf"^\| `{key}[`.]", page, re.MULTILINE)] == []


def test_every_command_and_flag_is_explained() -> None:
    page = (DOCS / "commands.md").read_text("utf-8")
    parts = dict(re.findall(r"^## ([^\n]+)\n\n```text\n(.*?)^```$", page, re.MULTILINE | re.DOTALL))
    for words, command, _ in commands():
        assert words in parts
        flags = [flag for parameter in command.params for flag in parameter.opts if "-" in flag[:1]]
        assert [flag for flag in flags if flag not in parts[words]] == [], words


def test_every_chat_command_and_tool_is_explained() -> None:
    page = (DOCS / "commands.md").read_text("utf-8")
    tools = {path.stem for path in DEFINITIONS.glob("*.json")}
    assert [name for name in (*NAMES, *tools) if f"- `{name}`: " not in page] == []


@pytest.mark.parametrize(("where", "words"), examples(), ids=lambda value: str(value)[:60])
def test_every_example_is_understood(where: str, words: list[str], tmp_path: Path) -> None:
    for word in words:
        if re.fullmatch(r"[\w-]+\.\w+", word):
            (tmp_path / word).touch()  # a file that the example takes as given
    with contextlib.chdir(tmp_path), contextlib.suppress(click.exceptions.Exit):
        understood(words)


def test_what_an_empty_list_says_to_type_is_understood(tmp_path: Path) -> None:
    """U-013: at the shell."""
    with contextlib.chdir(tmp_path):
        for line in EMPTY_AT_SHELL.values():
            understood(shlex.split(line.partition(f": {NAME} ")[2].replace("report.md", "-")))


@pytest.mark.parametrize("words", [["init"], ["memory", "fly"], ["--wings"], ["run", "--wings"]])
def test_a_wrong_example_would_be_noticed(words: list[str]) -> None:
    with pytest.raises(click.UsageError):
        understood(words)


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: page.name)
def test_examples_marked_as_running_run_as_they_stand(page: Path, tmp_path: Path) -> None:
    """All of a page in order, with an empty home."""
    script = "".join(text for runs, text in shell_blocks(page) if runs)
    (tmp_path / ".venv").symlink_to(sys.prefix)
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=tmp_path,
        env={"HOME": str(tmp_path), "PATH": f"{sys.prefix}/bin:{os.defpath}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_readme_has_examples_that_run() -> None:
    assert any(runs for runs, _ in shell_blocks(README))


def test_the_demo_is_one_line() -> None:
    """L-083."""
    line = "python3 -m venv .venv && .venv/bin/pip install -e '.[demo,meaning,web]' && .venv/bin/wintermute demo"
    assert line in README.read_text("utf-8").splitlines()


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: page.name)
def test_every_link_inside_the_project_leads_somewhere(page: Path) -> None:
    dead = []
    for link in LINK.findall(FENCED.sub("", page.read_text("utf-8"))):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = unquote(link).partition("#")
        target = page.parent / path if path else page
        if not target.exists() or (
            anchor and anchor not in map(slug, HEADING.findall(target.read_text("utf-8")))
        ):
            dead.append(link)
    assert dead == []
