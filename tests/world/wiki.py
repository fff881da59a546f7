"""A wiki store as a person makes one by hand, and the commands on it, run in this process."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from wintermute.cli.main import cli
from wintermute.wiki.links import INDEX

MATTER = "---\ncreated: 2026-05-04\nupdated: 2026-05-04\n---\n\n"


def page(text: str) -> str:
    """A page with the frontmatter it should have."""
    return f"{MATTER}{text}\n"


def made(root: Path, files: Mapping[str, str | bytes]) -> Path:
    """A store with these files, and an index that links to nothing unless it is one of them."""
    for path, content in {INDEX: page("# Index"), **files}.items():
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content.encode() if isinstance(content, str) else content)
    return root


def wiki(
    root: Path | str | None, verb: str, *words: str, given: bytes = b"", **environment: Any
) -> Result:
    """What `wintermute wiki` did, with its output as bytes and as text; never a traceback."""
    store = [] if root is None else ["--store", str(root)]
    line = ["wiki", verb, *store, *words]
    done = CliRunner().invoke(cli, line, input=given, env=environment)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exc_info
    assert done.exit_code in (0, 1, 2)
    return done


def lines_of(root: Path, *words: str, given: bytes = b"") -> list[str]:
    """The lines of a command that must not fail."""
    done = wiki(root, *words, given=given)
    assert (done.exit_code, done.stderr) == (0, ""), done.output
    return done.stdout.splitlines()


def refuses(root: Path, *words: str, given: bytes = b"", code: int = 1) -> str:
    """The only line of a command that must fail, or the last one of a wrong usage."""
    done = wiki(root, *words, given=given)
    lines = done.stderr.splitlines()
    assert (done.exit_code, done.stdout) == (code, ""), done.output
    assert code == 2 or len(lines) == 1, lines
    return lines[-1].removeprefix("wintermute: ")
