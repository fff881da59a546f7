"""`wintermute wiki`: the pages that link to each other."""

import click

from wintermute.cli.wiki_pages import consolidate, undo


@click.group("wiki")
def command() -> None:
    """Pages that link, and grow out of conversations.

    Example: wintermute wiki undo
    """


command.add_command(consolidate)
command.add_command(undo)
