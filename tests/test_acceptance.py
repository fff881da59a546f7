"""What the program does is written down, and what is cited stands there (L-001)."""

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
ACCEPTANCE = ROOT / "docs" / "acceptance"
LINE = re.compile(r"^- ([A-Z]-\d{3})( \*\(open\)\*)? ", re.MULTILINE)
CITED = re.compile(r"\b([AFLMPTUVWX])-(\d{3})(?:(?:…|\.\.| to )\1-(\d{3}))?(?!\d)")
DECISION = re.compile(r"\bA-(\d{1,2})\b(?!-)")
READ = {".py", ".md", ".sql", ".txt", ".yaml", ".js"}


def texts(*folders: str) -> Iterator[tuple[Path, str]]:
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in READ and path.is_file() and "node_modules" not in path.parts:
                yield path, path.read_text("utf-8")


def stated() -> dict[str, bool]:
    """Each id, and whether what it says is there."""
    found = [each for _, text in texts("docs/acceptance") for each in LINE.findall(text)]
    assert len(found) == len(dict(found)), "an id stands for two statements"
    return {name: not is_open for name, is_open in found}


def cited(text: str) -> set[str]:
    """The ids that a text names, those between two of them included."""
    return {
        f"{kind}-{number:03}"
        for kind, first, last in CITED.findall(text)
        for number in range(int(first), int(last or first) + 1)
    }


def test_every_statement_that_is_cited_is_written_down() -> None:
    known = stated().keys()
    unknown = {
        f"{path.relative_to(ROOT)}: {name}"
        for path, text in [*texts("wintermute", "tests", "docs"), *texts_of_the_root()]
        for name in cited(text) - known
    }
    assert unknown == set()


def texts_of_the_root() -> list[tuple[Path, str]]:
    return [(path, path.read_text("utf-8")) for path in sorted(ROOT.glob("*.md"))]


def test_every_statement_that_is_not_open_has_a_test_that_names_it() -> None:
    named = {name for _, text in texts("tests") for name in cited(text)}
    assert {name for name, holds in stated().items() if holds} - named == set()


def test_every_decision_and_note_that_is_cited_is_there() -> None:
    design = (ROOT / "docs" / "design.md").read_text("utf-8")
    decided = set(DECISION.findall(design[design.index("## 7.") :]))
    for path, text in texts("wintermute", "tests"):
        assert set(DECISION.findall(text)) <= decided, path
        for note in re.findall(r"\bnotes/([a-z]+)(?:\.md)? §", text):
            assert (ROOT / "docs" / "notes" / f"{note}.md").exists(), path
