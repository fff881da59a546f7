"""The command line as the documents name it: words that it understands, keys of a section."""

from collections.abc import Iterator
from typing import Any

import click

from tests.write_docs import DOCS
from wintermute.cli.main import cli

ROOT = DOCS.parent
NAME = "wintermute"


def understood(words: list[str]) -> None:
    """Let the command line read this, and not do it. Raises: click.UsageError."""
    # A command keeps the help option of the first context it is read in, for all that come after.
    command, context = cli, click.Context(cli, info_name=NAME, **cli.context_settings)
    found: click.Command = command
    while isinstance(found, click.Group):
        _, words, _ = found.make_parser(context).parse_args(list(words))
        if not words:
            return
        name, inner, words = found.resolve_command(context, words)
        assert inner is not None
        found, context = inner, click.Context(inner, context, info_name=name)
    found.make_context(context.info_name, words, parent=context.parent).close()


def dotted(section: Any, before: str = "") -> Iterator[str]:
    """List the keys of a section, with dots between."""
    for name, value in section.items():
        if isinstance(value, dict) and value:
            yield from dotted(value, f"{before}{name}.")
        else:
            yield before + name
