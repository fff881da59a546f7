"""Texts for people are plain: short sentences, short pages, one version (U-030, U-007)."""

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.world.budget import Budgeted
from tests.write_docs import DOCS, commands
from wintermute import __version__

ROOT = DOCS.parent
GENERATED = {DOCS / "commands.md", DOCS / "configuration.md"}
TOP = ("README.md", "SECURITY.md", "CHANGELOG.md", "CONTRIBUTING.md")
PAGES = [*map(ROOT.joinpath, TOP), *sorted(DOCS.glob("*.md"))]
CODE = re.compile(r"<!--.*?-->|^ *```.*?^ *```$|^ {4}[^\n]*$|^\|[^\n]*$", re.M | re.S)
BLOCK = re.compile(r"\n\s*\n|^\s*(?:[-*#>]+|\d+\.) +", re.M)
END = re.compile(r"[.!?][*_)\"”']*\s+| -> ")
STOP = re.compile(r"[.:;!?]")
SQL = re.compile(r"\b(SELECT|INSERT|UPDATE|DELETE|CREATE|FROM|WHERE|PRAGMA|IS NOT NULL)\b|\(\?:")
LONG, LONGEST, SHARE = 25, 40, 0.05


def sentences(text: str) -> Iterator[str]:
    """The sentences of a page or message; a piece of code counts as one word."""
    plain = re.sub(r"(`+).+?\1", "CODE", CODE.sub("\n\n", text), flags=re.S)
    plain = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", plain)
    for block in BLOCK.split(plain):
        yield from END.split(block)


def count(text: str) -> int:
    """Count words: whatever has a letter or a digit in it."""
    return sum(bool(re.search(r"\w", word)) for word in text.split())


def messages(module: Path) -> Iterator[str]:
    """Texts of a module that people may read: all but docstrings, the log's lines and SQL."""
    nodes = list(ast.walk(ast.parse(module.read_text("utf-8"))))
    left_out = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            left_out.update(map(id, node.values))
        if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("log."):
            left_out.update(map(id, node.args))
    for node in nodes:
        if isinstance(node, ast.JoinedStr | ast.Constant) and id(node) not in left_out:
            text = re.sub(r"\{.*?\}", "VALUE", ast.unparse(node)).replace("\\n", "\n")
            yield from [text] if STOP.search(text) and not SQL.search(text) else []


def texts(kind: str) -> Iterator[tuple[str, str]]:
    """Every text of a kind, with where it is."""
    if kind == "pages":
        yield from ((page.name, page.read_text("utf-8")) for page in PAGES if page not in GENERATED)
    for words, command, _ in commands() if kind == "help" else ():
        options = (getattr(parameter, "help", "") or "" for parameter in command.params)
        yield from ((words, inspect.cleandoc(text)) for text in (command.help or "", *options))
    for module in sorted((ROOT / "wintermute").rglob("*.py")) if kind == "messages" else ():
        yield from ((module.name, text) for text in messages(module))


@pytest.mark.parametrize("kind", ["pages", "help", "messages"])
def test_sentences_are_short(kind: str) -> None:
    """U-030: at most one of twenty has more than 25 words, none more than 40."""
    found = [(count(each), where, each) for where, text in texts(kind) for each in sentences(text)]
    found = [each for each in found if each[0] > 2]
    long = sorted((each for each in found if each[0] > LONG), reverse=True)
    assert [each for each in long if each[0] > LONGEST] == [], "two sentences read better than one"
    assert len(long) <= len(found) * SHARE, f"break up some of {long}"


def test_the_pages_are_short(budget: Budgeted) -> None:
    """U-030."""
    sizes = {page.name: count(page.read_text("utf-8")) for page in PAGES if page not in GENERATED}
    docs = sum(sizes[page.name] for page in DOCS.glob("*.md") if page not in GENERATED)
    used = {name: sizes[name] for name in ("README.md", "benchmarks.md")}
    used["the other pages of docs/"] = docs - sizes["benchmarks.md"]
    most = dict(zip(used, (1500, 2500, 18_000), strict=True))
    budget("words", used, most, "Drop what another page says as well, or what few people need.")


def test_the_version_is_told_everywhere_alike() -> None:
    """U-007: `--version` prints the package's own."""
    changes = (ROOT / "CHANGELOG.md").read_text("utf-8")
    assert re.findall(r"^## (.+)$", changes, re.M) == [f"{__version__}, not yet released"]
    assert f"{__version__} is not yet released" in (DOCS / "upgrading.md").read_text("utf-8")
    assert f"Version {__version__} is not yet released" in (ROOT / "README.md").read_text("utf-8")
